"""Device profiles: seconds of computing and compressing on a stated or measured device."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import torch
import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from methods import compression
from testbed.training import models

PROFILES = Path(__file__).parents[2] / "data" / "devices.yaml"


class Device(BaseModel):
    """What computing and compressing cost on one device; see ``data/devices.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    flops: PositiveFloat
    round_overhead_s: float
    compression: dict[str, float]

    def compute_s(self, flops_per_image: float, batch: int) -> float:
        """Seconds of one local iteration (forward and backward) over ``batch`` images."""
        return self.round_overhead_s + flops_per_image * batch / self.flops

    def compression_s(self, codec: str, nbytes: float) -> float:
        """Seconds to encode and decode ``nbytes`` of float32 values."""
        rate = self.compression.get(codec, self.compression.get("other"))
        if rate is None:
            raise ValueError(f"device {self.title!r} has no compression rate for {codec!r}")
        return nbytes / rate


@cache
def profiles(path: Path = PROFILES) -> dict[str, Device]:
    """All profiles of the file.

    Raises
    ------
    ValueError
        A profile that does not fit; names the file, the profile and the field.
    """
    found = {}
    for name, entry in yaml.safe_load(path.read_text()).items():
        try:
            found[name] = Device(**entry)
        except ValidationError as error:
            raise ValueError(f"{path.name}: profile {name!r}: {error}") from error
    return found


def profile(name: str) -> Device:
    """The profile called ``name``; ``this_cpu`` is measured on the spot."""
    if name == "this_cpu":
        return measure()
    known = profiles()
    if name not in known:
        raise ValueError(f"no device {name!r}; there are: this_cpu, {', '.join(sorted(known))}")
    return known[name]


@cache
def measure(values: int = 2_000_000, repeats: int = 5) -> Device:
    """Measure this machine, with the threads torch has now: the median of ``repeats`` runs.

    Computing is timed on LeNet-5 at batch 64, compressing on ``values`` normal float32 values.
    """
    model = models.make("lenet5")
    images, labels = torch.randn(64, 1, 28, 28), torch.arange(64) % 10

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()

    flops = models.flops_per_image(models.make("lenet5"), (1, 28, 28)) * 64
    gradient = torch.randn(values, generator=torch.Generator().manual_seed(0))
    rates = {}
    for name in compression.names():
        codec = compression.load(name)
        if codec.one_shot:
            seconds = _median_s(
                lambda codec=codec: codec.decompress(codec.compress(gradient, "probe")), repeats
            )
            rates[name] = 4 * values / seconds
    return Device(
        title="this machine's CPU",
        source=f"measured with {torch.get_num_threads()} threads",
        flops=flops / _median_s(step, repeats),
        round_overhead_s=0.0,
        compression=rates | {"other": min(rates.values())},
    )


def _median_s(function, repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]
