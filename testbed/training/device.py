"""Device profiles: seconds of computing and compressing on a stated or measured device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import (
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
)

from slowlink.methods import compression
from slowlink.methods.compression import Compressor, Work
from slowlink.testbed import given, measuring
from slowlink.testbed.given import Measured
from slowlink.testbed.training import models

PROFILES = Path(__file__).parents[2] / "data" / "devices.yaml"
REMEDY = "slowlink measure makes such a file, data/devices.yaml says what its fields are"


class Cost(BaseModel):
    """``fixed_s + bytes / rate`` seconds, in bytes of the float32 tensor that is coded."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    rate: Annotated[PositiveFloat, AllowInfNan(True)]
    fixed_s: NonNegativeFloat = 0.0

    def seconds(self, nbytes: float) -> float:
        return self.fixed_s + nbytes / self.rate


Spread = tuple[PositiveFloat, PositiveFloat]
"""The lower and the upper quartile of measured seconds over their median."""


class Coding(Cost):
    """What encoding and then decoding one tensor cost, with ``parameters`` of the codec.

    ``decode``: the share that decoding takes. ``codec``: its name, where the profile has it under
    another since it has several of one.
    """

    decode: Annotated[float, Field(ge=0, le=1)] = 0.5
    codec: str = ""
    parameters: dict[str, Any] = {}
    spread: Spread = (1.0, 1.0)

    def times(self, factor: float) -> Coding:
        """So many times as slow."""
        update = {"rate": self.rate / factor, "fixed_s": self.fixed_s * factor}
        return self.model_copy(update=update)


def _rate(value: Any) -> Any:
    return value if isinstance(value, dict | Cost) else {"rate": value}


Kind = Annotated[Cost, BeforeValidator(_rate)]


class Prices(BaseModel):
    """What one of each kind of :class:`Work` costs; a number is a rate without a fixed cost."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kernel_s: NonNegativeFloat
    passes: Kind
    selections: Kind
    draws: Kind
    products: Kind

    def seconds(self, work: Work, nbytes: float) -> float:
        kinds = ("passes", "selections", "draws", "products")
        each = (getattr(work, kind) * getattr(self, kind).seconds(nbytes) for kind in kinds)
        return work.kernels * self.kernel_s + sum(each)


FREE = Prices(kernel_s=0.0, passes=inf, selections=inf, draws=inf, products=inf)
"""Coding takes no time."""


class Device(BaseModel):
    """What computing and coding cost on one device; see ``data/devices.yaml``.

    Attributes
    ----------
    flops: operations a second that training reaches; None if unknown.
    work: prices of coding by what a codec does. What follows from them alone is a guess.
    known: costs that a document prints, or that were measured, by the codec's name. They are those
        of its work: whatever does the same work costs the same, however its file is called.
    spread: of computing; each known coding has its own.
    measured: when and with what, of a profile that was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    title: str
    source: str
    flops: PositiveFloat | None
    samples_per_s: dict[str, PositiveFloat] = {}
    round_overhead_s: NonNegativeFloat
    work: Prices
    known: dict[str, Annotated[Coding, BeforeValidator(_rate)]] = {}
    spread: Spread = (1.0, 1.0)
    measured: Measured | None = None

    def at(self, end: Literal["fast", "slow"]) -> Device:
        """The device with computing and known coding at one quartile of what was measured. Prices
        that are guesses, and have no spread, stay."""
        which = 0 if end == "fast" else 1
        factor = self.spread[which]
        speeds = {model: rate / factor for model, rate in self.samples_per_s.items()}
        known = {name: cost.times(cost.spread[which]) for name, cost in self.known.items()}
        flops = self.flops and self.flops / factor
        update = {"flops": flops, "samples_per_s": speeds, "known": known}
        return type(self)(**(dict(self) | update))

    def compute_s(self, flops_per_sample: float, batch: int, model: str = "") -> float:
        """Seconds of one local iteration (forward and backward) over ``batch`` samples.

        By the rate known for ``model``, else by operations. Raises ValueError where neither is
        known.
        """
        if model in self.samples_per_s:
            return self.round_overhead_s + batch / self.samples_per_s[model]
        if not self.flops or not flops_per_sample:
            what = "operations" if self.flops else "operations a second"
            raise ValueError(
                f"{model} on {self.title}: neither samples_per_s nor {what} are known; measure the "
                "model on this device with slowlink measure"
            )
        return self.round_overhead_s + flops_per_sample * batch / self.flops

    @cached_property
    def _known(self) -> dict[tuple[Work, Work], Coding]:
        there = set(compression.names())
        codecs = {
            name: compression.load(cost.codec or name, **cost.parameters)
            for name, cost in self.known.items()
            if (cost.codec or name) in there
        }
        return {work(codec): self.known[name] for name, codec in codecs.items()}

    def guesses(self, codec: Compressor) -> bool:
        """Whether what coding costs follows from the codec's work alone."""
        return any(work(codec)) and work(codec) not in self._known

    def encode_s(self, codec: Compressor, nbytes: float) -> float:
        """Seconds to encode one tensor of ``nbytes`` of float32 values. Known costs are those of
        any tensor, for they come from what whole models take."""
        if cost := self._known.get(work(codec)):
            return (1 - cost.decode) * cost.seconds(nbytes)
        encoding, _ = codec.work(round(nbytes / 4))
        return self.work.seconds(encoding, nbytes)

    def decode_s(self, codec: Compressor, nbytes: float) -> float:
        """Seconds to decode one payload that stands for ``nbytes`` of float32 values."""
        if cost := self._known.get(work(codec)):
            return cost.decode * cost.seconds(nbytes)
        _, decoding = codec.work(round(nbytes / 4))
        return self.work.seconds(decoding, nbytes)


def work(codec: Compressor) -> tuple[Work, Work]:
    """What encoding and decoding do to a tensor that is not sent as it is. Raises ValueError where
    the codec does not say."""
    try:
        return codec.encode_work, codec.decode_work
    except AttributeError:
        raise ValueError(
            f"{codec.name}: does not say its encode_work and decode_work, so no device can price "
            "it; methods/template.py shows how"
        ) from None


@cache
def profiles(path: Path = PROFILES) -> dict[str, Device]:
    """All profiles of a file, by name. Raises ValueError, with file, field and remedy."""
    return given.read(path, dict[str, Device], REMEDY)


def load(path: str | Path) -> tuple[str, Device]:
    """The one profile of a file, and its name. Raises ValueError as :func:`profiles`, and where it
    knows a codec that there is not: stated profiles may, whose codecs somebody removes."""
    found = given.read(path, dict[str, Device], REMEDY)
    if len(found) != 1:
        raise ValueError(f"{path}: {len(found)} profiles; leave the one that the advice is for")
    ((name, profile),) = found.items()
    for label, cost in profile.known.items():
        try:
            compression.load(cost.codec or label, **cost.parameters)
        except ValueError as error:
            raise ValueError(f"{path}: {name}.known.{label}: {error}; {REMEDY}") from None
    return name, profile


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
    because many codecs send them dense. What does no work is not timed: frameworks send it from
    where it lies. Codecs that are not timed are priced by how long a copy takes here, and by what
    other kinds of work take beside a copy on the processor of ``geomx_k40m``.

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
        if any(work(compression.load(name, **parameters)))
    }
    copied = 4 * values / measuring.copy_s(torch.randn(values), repeats)
    return Device(
        title="this machine's CPU",
        source=f"measured with {torch.get_num_threads()} threads",
        flops=flops / measuring.median_s(step, repeats),
        round_overhead_s=0.0,
        work=prices(copied, "geomx_k40m"),
        known={
            name: cost.model_copy(update={"parameters": dict(codecs[name])})
            for name, cost in codings.items()
        },
    )


def prices(copied: float, like: str) -> Prices:
    """What kinds of work cost where ``copied`` bytes are copied in a second, if each takes as many
    copies as on the stated device ``like``. Guesses, but for the copies."""
    beside = profiles()[like].work
    kinds = {}
    for kind in ("passes", "selections", "draws", "products"):
        cost = getattr(beside, kind)
        rate = copied * cost.rate / beside.passes.rate
        kinds[kind] = cost.model_copy(update={"rate": rate})
    return Prices(kernel_s=beside.kernel_s, **kinds)


def measure_coding(
    make: Callable[[], Compressor],
    values: int,
    repeats: int,
    small: int = 2**14,
    clock: Callable[[], float] | None = None,
) -> Coding:
    """What a codec costs on this machine: a line through tensors of ``small`` and ``values``.

    ``clock``: see :func:`slowlink.testbed.measuring.coding`.
    """
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=generator) for n in (small, values)]
    low, high = (measuring.coding(make, [tensor], repeats, clock) for tensor in tensors)
    # Noise may tilt the line of a codec that costs next to nothing.
    slope = max((high.total_s - low.total_s) / (4 * (values - small)), 1e-13)
    return Coding(
        rate=1 / slope,
        fixed_s=max(low.total_s - 4 * small * slope, 0.0),
        decode=high.decode_s / high.total_s,
    )
