"""Device profiles: seconds of computing and compressing on a stated or measured device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import torch
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    ValidationError,
)

from methods import compression
from methods.compression import Compressor
from testbed import measuring
from testbed.training import models

PROFILES = Path(__file__).parents[2] / "data" / "devices.yaml"


class Coding(BaseModel):
    """What encoding and then decoding one tensor cost: ``fixed_s + bytes / rate`` seconds.

    ``rate`` is in bytes of float32 input a second; ``decode`` is the share that decoding takes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: PositiveFloat
    fixed_s: NonNegativeFloat = 0.0
    decode: Annotated[float, Field(ge=0, le=1)] = 0.5


def _named(value: Any) -> Any:
    return value if isinstance(value, dict | Coding) else {"rate": value}


class Device(BaseModel):
    """What computing and compressing cost on one device; see ``data/devices.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    flops: PositiveFloat
    samples_per_s: dict[str, PositiveFloat] = {}
    round_overhead_s: float
    compression: dict[str, Annotated[Coding, BeforeValidator(_named)]]

    def compute_s(self, flops_per_sample: float, batch: int, model: str = "") -> float:
        """Seconds of one local iteration (forward and backward) over ``batch`` samples.

        By the rate known for ``model``, else by operations.
        """
        if model in self.samples_per_s:
            return self.round_overhead_s + batch / self.samples_per_s[model]
        return self.round_overhead_s + flops_per_sample * batch / self.flops

    def coding(self, codec: str) -> Coding:
        """The cost of a codec. Raises ValueError where the profile has none."""
        found = self.compression.get(codec, self.compression.get("other"))
        if found is None:
            raise ValueError(f"device {self.title!r} has no compression rate for {codec!r}")
        return found

    def encode_s(self, codec: str, nbytes: float) -> float:
        """Seconds to encode one tensor of ``nbytes`` of float32 values."""
        cost = self.coding(codec)
        return (1 - cost.decode) * (cost.fixed_s + nbytes / cost.rate)

    def decode_s(self, codec: str, nbytes: float) -> float:
        """Seconds to decode one payload that stands for ``nbytes`` of float32 values."""
        cost = self.coding(codec)
        return cost.decode * (cost.fixed_s + nbytes / cost.rate)

    def compression_s(self, codec: str, nbytes: float, tensors: int = 1) -> float:
        """Seconds to encode and decode ``nbytes`` of float32 values, in so many tensors."""
        cost = self.coding(codec)
        return tensors * cost.fixed_s + nbytes / cost.rate


@cache
def profiles(path: Path = PROFILES) -> dict[str, Device]:
    """All profiles of the file, and of ``recorded/*.yaml`` beside it (measured on other machines).

    Raises
    ------
    ValueError
        A profile that does not fit; names the file, the profile and the field.
    """
    found = {}
    for file in [path, *sorted(path.parent.glob("recorded/*.yaml"))]:
        for name, entry in yaml.safe_load(file.read_text()).items():
            try:
                found[name] = Device(**entry)
            except ValidationError as error:
                raise ValueError(f"{file.name}: profile {name!r}: {error}") from error
    return found


def profile(name: str) -> Device:
    """The profile called ``name``; ``this_cpu`` is measured on the spot."""
    if name == "this_cpu":
        return _here()
    known = profiles()
    if name not in known:
        raise ValueError(f"no device {name!r}; there are: this_cpu, {', '.join(sorted(known))}")
    return known[name]


@cache
def _here() -> Device:
    return measure()


def measure(
    codecs: Mapping[str, Mapping[str, Any]] | None = None,
    values: int = 2_000_000,
    repeats: int = 5,
) -> Device:
    """Measure this machine, with the threads torch has now: the median of ``repeats`` runs.

    Computing is timed on LeNet-5 at batch 64, coding on 2^14 and on ``values`` normal float32
    values: a line through the two gives the fixed cost and the rate. Smaller tensors are left out
    because many codecs send them dense. What is not compressed costs nothing: frameworks send it
    from where it lies.

    Parameters
    ----------
    codecs: parameters of the codecs to time, by name; every codec with its defaults if None.
    """
    model = models.make("lenet5")
    images, labels = torch.randn(64, 1, 28, 28), torch.arange(64) % 10

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()

    flops = models.flops_per_sample(models.make("lenet5"), (1, 28, 28)) * 64
    if codecs is None:
        codecs = {name: {} for name in compression.names()}
    codings = {
        name: measure_coding(partial(compression.load, name, **parameters), values, repeats)
        for name, parameters in codecs.items()
    }
    slowest = min(codings.values(), key=lambda cost: cost.rate)
    return Device(
        title="this machine's CPU",
        source=f"measured with {torch.get_num_threads()} threads",
        flops=flops / measuring.median_s(step, repeats),
        round_overhead_s=0.0,
        compression=codings | {"identity": Coding(rate=math.inf), "other": slowest},
    )


def measure_coding(
    make: Callable[[], Compressor], values: int, repeats: int, small: int = 2**14
) -> Coding:
    """What a codec costs on this machine: a line through tensors of ``small`` and ``values``."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=generator) for n in (small, values)]
    low, high = (measuring.coding(make, [tensor], repeats) for tensor in tensors)
    # Noise may tilt the line of a codec that costs next to nothing.
    slope = max((high.total_s - low.total_s) / (4 * (values - small)), 1e-13)
    return Coding(
        rate=1 / slope,
        fixed_s=max(low.total_s - 4 * small * slope, 0.0),
        decode=high.decode_s / high.total_s,
    )
