"""How long computing takes, tensor by tensor, in the order in which backward produces gradients."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from slowlink.methods.fusion import Costs, Fusion, Timeline, timeline
from slowlink.testbed.cache import cached, sources
from slowlink.testbed.training import models
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.recipe import Part


@dataclass(frozen=True)
class Layer:
    """A tensor; ``backward`` is the share of an iteration's computing that ends at its gradient."""

    name: str
    shape: tuple[int, ...]
    backward: float

    @cached_property
    def values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layers:
    """A model's tensors in the order in which backward produces their gradients.

    Attributes
    ----------
    flops: operations of a sample, forward and backward.
    sample_s: measured seconds of a sample, forward and backward; None to go by the device.
    """

    model: str
    tensors: tuple[Layer, ...]
    flops: float
    sample_s: float | None = None

    def __hash__(self) -> int:  # without a look at hundreds of tensors
        return hash((self.model, len(self.tensors), self.flops))

    @cached_property
    def sizes(self) -> list[int]:
        """Values of each tensor."""
        return [tensor.values for tensor in self.tensors]

    def shape(self, values: int) -> tuple[int, ...]:
        """The shape of a message of so many values: a tensor's, if one has so many, else flat."""
        return self._shapes.get(values, (values,))

    @cached_property
    def _shapes(self) -> dict[int, tuple[int, ...]]:
        return {tensor.values: tensor.shape for tensor in self.tensors}

    def standing_for(self, original: Layers) -> Layers:
        """These tensors, as large and as slow as if they were ``original``'s."""
        scale = sum(original.sizes) / sum(self.sizes)
        tensors = [replace(t, shape=(max(1, round(scale * t.values)),)) for t in self.tensors]
        return replace(original, tensors=tuple(tensors))


def layers(part: Part, sample: tuple[int, ...] | None = None, norm: bool = True) -> Layers:
    """The tensors of a model; backward takes its time by counted operations.

    Parameters
    ----------
    sample: shape of a sample; as the model is commonly trained if None.
    norm: whether BatchNorm's scale and shift travel.

    The tensors of one layer are ready together. What has no matrix product or convolution
    (BatchNorm, embeddings) takes no time.
    """

    # Counting imports torch's compiler, which takes a second: in one process, for all to know.
    def counted() -> tuple[list[tuple[str, tuple[int, ...], float]], float]:
        with torch.device("meta"):
            model = models.make(part.name, **part.parameters)
        shapes = models.gradient_shapes(model, norm)
        counts = models.flops_by_module(model, sample or models.sample_shape(part.name))
        flops = sum(forward + backward for forward, backward in counts.values())
        tensors = []
        for name in reversed(shapes):
            # The first of a layer's tensors waits for the layer, the others are there with it.
            _, backward = counts.pop(name.rpartition(".")[0], (0.0, 0.0))
            tensors.append((name, shapes[name], backward / flops))
        return tensors, flops

    key = f"{_counting()} {part.model_dump_json()} {sample} {norm}"
    if key not in _layers:
        tensors, flops = cached(key, counted)
        made = (Layer(name, tuple(shape), backward) for name, shape, backward in tensors)
        _layers[key] = Layers(part.name, tuple(made), flops)
    return _layers[key]


_layers: dict[str, Layers] = {}


@cache
def _counting() -> str:
    """What counted operations depend on besides the model."""
    return f"{torch.__version__} {sources(Path(__file__), Path(models.__file__))}"


def measured_layers(part: Part, batch: int, repeats: int = 3) -> Layers:
    """The same with times of this machine: medians of ``repeats`` iterations after one not counted.

    ``batch`` may be smaller than the one that is asked about later; time is taken to grow with the
    batch. The optimizer's step is left out.
    """
    model = models.make(part.name, **part.parameters).train()
    shape = models.sample_shape(part.name)
    inputs = models.samples(model, shape, batch)

    def loss() -> torch.Tensor:
        scores = model(inputs)
        return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))

    parameters = dict(model.named_parameters())
    runs = []
    for run in timed(model, loss, repeats):
        latest, spans = run.forward_s, []
        for name in reversed(parameters):
            # A tensor that is ready before one in front of it takes no time of its own.
            spans.append(max(run.ready_s[name] - latest, 0.0))
            latest = max(run.ready_s[name], latest)
        runs.append([run.forward_s, *spans])
    forward_s, *backward_s = (statistics.median(column) for column in zip(*runs, strict=True))
    total = forward_s + sum(backward_s)
    tensors = [
        Layer(name, tuple(parameters[name].shape), seconds / total)
        for name, seconds in zip(reversed(parameters), backward_s, strict=True)
    ]
    return Layers(part.name, tuple(tensors), models.flops_per_sample(model, shape), total / batch)


@dataclass(frozen=True)
class Iteration:
    """Seconds since an iteration began.

    Attributes
    ----------
    forward_s: until the loss is there.
    ready_s: until each parameter's gradient is, by its name; in the order in which they came.
    total_s: until backward is over.
    """

    forward_s: float
    ready_s: dict[str, float]
    total_s: float


def timed(
    model: torch.nn.Module, loss: Callable[[], torch.Tensor], repeats: int, warm: int = 1
) -> list[Iteration]:
    """``repeats`` forward and backward passes of ``model`` after ``warm`` ones that do not count.

    On a GPU, times are those of CUDA events, so that what the host does meanwhile is not counted.
    """
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    mark, since = (_event, _between) if on_gpu else (time.perf_counter, lambda a, b: b - a)
    ready: dict[str, Any] = {}

    def note(name: str) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            ready.pop(name, None)  # of a parameter with several gradients the last one counts
            ready[name] = mark()

        return hook

    hooks = [
        parameter.register_post_accumulate_grad_hook(note(name))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    made = []
    try:
        for _ in range(repeats + warm):
            model.zero_grad()
            ready.clear()
            start = mark()
            lost = loss()
            forward = mark()
            lost.backward()
            end = mark()
            if on_gpu:
                torch.cuda.synchronize()
            times = {name: since(start, at) for name, at in ready.items()}
            made.append(Iteration(since(start, forward), times, since(start, end)))
    finally:
        for hook in hooks:
            hook.remove()
    return made[warm:]


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return begin.elapsed_time(end) / 1e3


def single_gpu_s(device: Device, layers: Layers, batch: int) -> float:
    """Seconds of an iteration of a worker that is alone: nothing is coded or sent."""
    if layers.sample_s is not None:
        return layers.sample_s * batch
    return device.compute_s(layers.flops, batch, layers.model)


def overlapped(layers: Layers, fusion: Fusion, costs: Costs) -> Timeline:
    """The iteration that a fusion arrives at."""
    return timeline(layers.sizes, fusion(layers.sizes, costs), costs)
