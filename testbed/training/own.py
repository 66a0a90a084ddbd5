"""A model of one's own: timed on this device, with every codec on its tensors.

What is to be timed is named ``module:function``. The function takes no argument and returns

- a model, if the shape of a sample is given beside it: random samples and, for scores of classes,
  cross-entropy;
- ``(model, batch)``, where ``batch`` is ``(inputs, labels)`` for cross-entropy;
- ``(model, batch, loss)``, where ``loss(model, batch)`` returns a scalar, whatever ``batch`` is.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import nn
from torch.nn import functional

from slowlink.methods import compression
from slowlink.methods.compression import Compressor
from slowlink.testbed import given, measuring
from slowlink.testbed.given import Measured
from slowlink.testbed.training import device as devices
from slowlink.testbed.training import models
from slowlink.testbed.training.device import Coding, Device, Spread
from slowlink.testbed.training.pipeline import Layer, Layers, timed
from slowlink.testbed.training.recipe import Part

REMEDY = "slowlink measure makes such a file"
LARGEST = 1 << 24
"""Values of the largest tensor that codecs are timed on; of larger ones so many are taken."""
SIZES = 12
"""Sizes of tensors that codecs are timed on, at most."""


class Tensor(BaseModel):
    """``backward_s``: from the gradient before it, or the loss, to its own."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    shape: tuple[PositiveInt, ...]
    backward_s: NonNegativeFloat


class ModelFile(BaseModel):
    """A model as it was timed: its tensors in the order in which backward has their gradients.

    Attributes
    ----------
    batch: samples of an iteration.
    forward_s: until the loss is there, the median.
    rest_s: after the last gradient.
    samples_per_s: forward and backward, without the optimizer and without loading samples.
    flops: operations of a sample as counted, forward and backward; None where they cannot be.
    spread: quartiles of an iteration over its median.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    model: str
    batch: PositiveInt
    forward_s: PositiveFloat
    rest_s: NonNegativeFloat = 0.0
    samples_per_s: PositiveFloat
    flops: PositiveFloat | None = None
    spread: Spread = (1.0, 1.0)
    tensors: Annotated[tuple[Tensor, ...], Field(min_length=1)]
    measured: Measured | None = None

    @property
    def layers(self) -> Layers:
        """The layers as everything else takes them. Their time is the device's: by samples a second
        where its profile knows the model, else by operations."""
        total = self.forward_s + self.rest_s + sum(tensor.backward_s for tensor in self.tensors)
        tensors = (Layer(t.name, t.shape, t.backward_s / total) for t in self.tensors)
        return Layers(self.model, tuple(tensors), self.flops or 0.0)


def load(path: str | Path) -> ModelFile:
    """Raises ValueError, in one line with file, field and remedy."""
    return given.read(path, ModelFile, REMEDY)


@dataclass(frozen=True)
class Subject:
    """What is timed: ``loss()`` runs forward on ``samples`` samples."""

    name: str
    model: nn.Module
    loss: Callable[[], torch.Tensor]
    samples: int


def subject(
    spec: str,
    batch: int | None = None,
    sample: Sequence[int] | None = None,
    device: str = "cpu",
) -> Subject:
    """What ``spec`` names: ``module:function``, or a model of this project.

    Parameters
    ----------
    batch: samples, 32 if None; not where the function returns its own.
    sample: shape of one, where the function returns a model alone.

    Raises
    ------
    ValueError
        What cannot be imported, fails or returns something else; with the remedy.
    """
    if ":" not in spec:
        if spec not in models.MODELS:
            raise ValueError(
                f"{spec!r} names no function and no model; say module:function, such as "
                f"train:build for build() in train.py, or one of {', '.join(sorted(models.MODELS))}"
            )
        made, name = (models.make(spec),), spec
        sample = sample or models.sample_shape(spec)
    else:
        made, name = _called(spec), spec
    model, *rest = made
    model = model.train().to(device)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{spec}: the model has no parameter that is trained")
    if not rest:
        if sample is None:
            raise ValueError(
                f"{spec} returns a model alone: give the shape of a sample (--input 3x32x32), or "
                "return (model, batch) or (model, batch, loss)"
            )
        inputs = models.samples(model, tuple(sample), batch or 32)
        return Subject(name, model, partial(_of_scores, spec, model, inputs), batch or 32)
    if batch is not None:
        raise ValueError(
            f"{spec} returns its own batch; leave --batch out, or return a model alone"
        )
    own = _moved(rest[0], device)
    count = next((len(one) for one in _tensors(own) if one.ndim), None)
    if not count:
        raise ValueError(f"{spec}: there is no tensor of samples in the batch that it returns")
    if len(rest) == 2:
        loss = rest[1]
        return Subject(name, model, lambda: _scalar(spec, loss(model, own)), count)
    if not isinstance(own, tuple | list) or len(own) != 2:
        raise ValueError(f"{spec}: return batch as (inputs, labels), or a loss as the third")
    inputs, labels = own
    return Subject(name, model, lambda: functional.cross_entropy(model(inputs), labels), count)


def _called(spec: str) -> tuple[Any, ...]:
    """What the function returns, as a tuple with a model first."""
    module_name, _, function_name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _blamed(f"import {module_name}"):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"{module_name} has no function {function_name!r}; say module:function")
    with _blamed(f"{spec}()"):
        made = function()
    made = made if isinstance(made, tuple) else (made,)
    if not isinstance(made[0], nn.Module) or len(made) > 3:
        raise ValueError(
            f"{spec} returns {type(made[0]).__name__}; return a torch model, (model, batch) or "
            "(model, batch, loss)"
        )
    return made


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Errors of code that is not ours, in a line."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{what} fails: {type(error).__name__}: {error}; run it by itself in the folder where "
            "it lies"
        ) from error


def _of_scores(spec: str, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    scores = model(inputs)
    if not isinstance(scores, torch.Tensor) or scores.ndim != 2:
        raise ValueError(
            f"{spec}: the model returns no scores (samples, classes), so its loss is unknown; "
            "return (model, batch, loss)"
        )
    labels = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    return functional.cross_entropy(scores, labels)


def _scalar(spec: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ValueError(f"{spec}: its loss returns {type(value).__name__}, not one number")
    return value


def _moved(batch: Any, device: str) -> Any:
    if isinstance(batch, torch.Tensor | nn.Module):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(one, device) for key, one in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_moved(one, device) for one in batch)
    return batch


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from (one for value in batch.values() for one in _tensors(value))
    elif isinstance(batch, tuple | list):
        yield from (one for value in batch for one in _tensors(value))


def count_flops(asked: Subject) -> float | None:
    """Operations of a sample, forward and backward; None where none can be counted."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            asked.loss().backward()
    except Exception:  # a model that the counter does not understand is timed all the same
        return None
    return counter.get_total_flops() / asked.samples or None


def measure_model(asked: Subject, repeats: int = 20) -> ModelFile:
    """Time forward and backward, and when each gradient is ready: medians of ``repeats``.

    Raises
    ------
    ValueError
        The model or its loss fails, or no parameter gets a gradient.
    """
    with _blamed(f"{asked.name}: forward and backward"):
        runs = timed(asked.model, asked.loss, repeats, warm=2)
    totals = np.array([run.total_s for run in runs])
    low, middle, high = np.percentile(totals, [25, 50, 75])
    shapes = models.gradient_shapes(asked.model)
    ready = {
        name: float(np.median([run.ready_s[name] for run in runs]))
        for name in runs[-1].ready_s
        if all(name in run.ready_s for run in runs)
    }
    if not ready:
        raise ValueError(f"{asked.name}: no parameter gets a gradient from the loss")
    forward = float(np.median([run.forward_s for run in runs]))
    latest, tensors = forward, []
    for name in sorted(ready, key=ready.__getitem__):
        # A scalar travels as one value.
        backward = max(ready[name] - latest, 0.0)
        tensors.append(Tensor(name=name, shape=shapes[name] or (1,), backward_s=_short(backward)))
        latest = max(latest, ready[name])
    trained = [name for name, one in asked.model.named_parameters() if one.requires_grad]
    notes = []
    if left := [name for name in trained if name not in ready]:
        notes.append(f"{len(left)} parameters get no gradient and are left out, as {left[0]}")
    return ModelFile(
        model=asked.name,
        batch=asked.samples,
        forward_s=_short(forward),
        rest_s=_short(max(float(middle) - latest, 0.0)),
        samples_per_s=_short(asked.samples / float(middle)),
        flops=count_flops(asked),
        spread=(_short(low / middle), _short(high / middle)),
        tensors=tuple(tensors),
        measured=given.here(repeats, *notes, torch=torch.__version__),
    )


def measure_device(
    file: ModelFile,
    codecs: Mapping[str, Part],
    device: str = "cpu",
    repeats: int = 5,
    say: Callable[[str], None] = lambda text: None,
) -> Device:
    """A profile of this device: how fast it computes ``file``'s model, and what each codec takes on
    that model's tensors, as :func:`measure_coding` tells it.

    Parameters
    ----------
    codecs: what to time, under the names that the profile shall have them. What does no work is
        left out: it is sent from where it lies.
    """
    known = {}
    for number, (name, part) in enumerate(codecs.items()):
        make = partial(compression.load, part.name, **part.parameters)
        if any(devices.work(make())):
            say(f"timing {name} ({number} of {len(codecs)} done)")
            cost = measure_coding(make, file, device, repeats)
            update = {"parameters": part.parameters}
            update |= {"codec": part.name} if part.name != name else {}
            known[name] = cost.model_copy(update=update)
    say("timing copies")
    copied = torch.randn(1 << 22, device=device)
    target, clock = torch.empty_like(copied), _clock(device)

    def copy() -> float:
        start = clock()
        target.copy_(copied)
        return clock() - start

    copy_s = float(np.median([copy() for _ in range(4 * repeats)][repeats:]))
    like, title = "geomx_k40m", f"{given.processor()}, {torch.get_num_threads()} threads"
    versions = {"torch": torch.__version__}
    if device.startswith("cuda"):
        like, title = "v100_document", torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
    return Device(
        title=title,
        source=f"slowlink measure, on the tensors of {file.model}, {file.batch} samples at a time. "
        f"Under work, copies are measured; what else takes as many copies as on {like}, a guess.",
        flops=file.flops and _short(file.flops * file.samples_per_s),
        samples_per_s={file.model: file.samples_per_s},
        round_overhead_s=0.0,
        work=devices.prices(_short(copied.nbytes / copy_s), like),
        known=known,
        spread=file.spread,
        measured=given.here(repeats, **versions),
    )


def measure_coding(
    make: Callable[[], Compressor], file: ModelFile, device: str = "cpu", repeats: int = 5
) -> Coding:
    """What a codec takes on the tensors of a model: a line over their sizes.

    Of :data:`SIZES` tensors at most, from the smallest to the largest, each stands for those next
    to it in size. The line fits relative errors least, and then is scaled so that the whole model
    takes what was measured. Its spread is that of the whole model's time.
    """
    tensors, counts = _chosen([tensor.shape for tensor in file.tensors])
    generator = torch.Generator().manual_seed(0)
    encode, decode = [], []
    for shape in tensors:
        values = torch.randn(shape, generator=generator).to(device)
        made = measuring.runs(make, [values], repeats, _clock(device))
        encode.append([one.encode_s for one in made])
        decode.append([one.decode_s for one in made])
    both = np.array(encode) + np.array(decode)
    sizes = np.array([float(np.prod(shape)) for shape in tensors])
    each, weight = np.median(both, axis=1), np.array(counts, dtype=float)
    fixed, slope = _line(sizes, each)
    whole, line = float(weight @ each), float(weight @ (fixed + slope * sizes))
    runs = weight @ both
    low, middle, high = np.percentile(runs, [25, 50, 75])
    return Coding(
        rate=_short(4 * line / (slope * whole)),
        fixed_s=_short(fixed * whole / line),
        decode=_short(float(weight @ np.median(decode, axis=1)) / whole),
        spread=(_short(low / middle), _short(high / middle)),
    )


def _line(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """``a + b n`` with neither below 0 and the least relative errors."""
    scaled = np.stack([1 / seconds, sizes / seconds], axis=1)
    (fixed, slope), *_ = np.linalg.lstsq(scaled, np.ones(len(sizes)), rcond=None)
    if len(np.unique(sizes)) == 1 or fixed < 0:
        fixed, slope = 0.0, float(np.sum(sizes / seconds) / np.sum((sizes / seconds) ** 2))
    if slope <= 0:  # noise may tilt the line of a codec that costs next to nothing
        fixed, slope = float(np.mean(seconds)), 1e-13
    return float(fixed), float(slope)


def _chosen(shapes: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Shapes to time, and how many tensors each stands for."""
    ordered = sorted(shapes, key=lambda shape: float(np.prod(shape)))
    groups = np.array_split(np.arange(len(ordered)), min(SIZES, len(ordered)))
    chosen = [ordered[group[-1]] for group in groups]
    cut = [
        shape if np.prod(shape) <= LARGEST else (LARGEST // shape[-1] or 1, shape[-1])
        for shape in chosen
    ]
    return [s if np.prod(s) <= LARGEST else (LARGEST,) for s in cut], [len(g) for g in groups]


def _clock(device: str) -> Callable[[], float]:
    """Seconds; on a GPU, when what was begun is done: coding works on the host as well."""
    if not device.startswith("cuda"):
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def _short(value: float) -> float:
    """Six digits, which is more than any clock is good for."""
    return float(f"{float(value):.6g}")
