"""How long an iteration takes when backward, coding and communication overlap.

A model's tensors, in the order in which backward produces their gradients, get backward times from
a device; codec, exchange and network give what a message costs. Together they are the ``Costs`` by
which a fusion groups tensors, and which :func:`methods.fusion.timeline` plays through.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import torch
from torch.nn import functional

from methods import exchange as exchanges
from methods.compression import Compressor
from methods.exchange import Exchange, Plan, Topology
from methods.fusion import Costs, Fusion, Timeline, timeline
from testbed.kept import kept, sources
from testbed.network import simulate
from testbed.training import models
from testbed.training.device import Device
from testbed.training.recipe import Part


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

    @cached_property
    def sizes(self) -> list[int]:
        """Values of each tensor."""
        return [tensor.values for tensor in self.tensors]

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

    tensors, flops = kept(f"{_counting()} {part.model_dump_json()} {sample} {norm}", counted)
    made = (Layer(name, tuple(shape), backward) for name, shape, backward in tensors)
    return Layers(part.name, tuple(made), flops)


@cache
def _counting() -> str:
    """What counted operations depend on besides the model."""
    return f"{torch.__version__} {sources(Path(__file__), Path(models.__file__))}"


def measured_layers(
    part: Part, batch: int, sample: tuple[int, ...] | None = None, repeats: int = 3
) -> Layers:
    """The same with times of this machine: medians of ``repeats`` iterations after one not counted.

    ``batch`` may be smaller than the one that is asked about later; time is taken to grow with the
    batch. The optimizer's step is left out.
    """
    model = models.make(part.name, **part.parameters).train()
    shape = sample or models.sample_shape(part.name)
    inputs = models.samples(model, shape, batch)
    ready: dict[str, float] = {}
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: ready.__setitem__(name, time.perf_counter())
        )
    runs = []
    for _ in range(repeats + 1):
        model.zero_grad()
        start = time.perf_counter()
        scores = model(inputs)
        loss = functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.int64))
        latest = forward = time.perf_counter()
        loss.backward()
        spans = []
        for name in reversed(parameters):
            # A tensor that is ready before one in front of it takes no time of its own.
            spans.append(max(ready[name] - latest, 0.0))
            latest = max(ready[name], latest)
        runs.append([forward - start, *spans])
    forward_s, *backward_s = (statistics.median(column) for column in zip(*runs[1:], strict=True))
    total = forward_s + sum(backward_s)
    tensors = [
        Layer(name, tuple(parameters[name].shape), seconds / total)
        for name, seconds in zip(reversed(parameters), backward_s, strict=True)
    ]
    return Layers(part.name, tuple(tensors), models.flops_per_sample(model, shape), total / batch)


def single_gpu_s(device: Device, layers: Layers, batch: int) -> float:
    """Seconds of an iteration of a worker that is alone: nothing is coded or sent."""
    if layers.sample_s is not None:
        return layers.sample_s * batch
    return device.compute_s(layers.flops, batch, layers.model)


def costs(
    device: Device,
    layers: Layers,
    codec: Compressor,
    exchange: Exchange,
    topology: Topology,
    batch: int,
    efficiency: float = 1.0,
    overhead_s: float = 0.0,
    inner: Topology | None = None,
) -> Costs:
    """What computing, coding and sending cost each worker.

    Parameters
    ----------
    codec, exchange: as they are loaded; the exchange is flat.
    topology: whose workers take part in the exchange.
    batch: samples a worker and iteration.
    efficiency: share of the links' rates that payload gets.
    overhead_s: seconds that each round of communication takes besides the transfers.
    inner: the network inside of a server, for hierarchical communication (Sketch-Fusion, section
        2.1): its workers add up dense gradients, the servers (the workers of ``topology``) exchange
        coded ones, and the sum is handed back inside. The two inner steps take what the halves of a
        dense ring all-reduce take, and count as communication: coding keeps its place in front of
        and behind all three.

    All of encoding comes before the first round of communication, also what codecs with several
    rounds do between them. Where every party gets all payloads it decodes each of them. A message
    whose number of values is that of a tensor takes the tensor's shape; other messages are flat.

    Raises
    ------
    ValueError
        An exchange of several levels.
    """
    if len(exchange.groups(topology)) != 1:
        name = type(exchange).__module__.rpartition(".")[2]
        raise ValueError(f"{name} has several levels; overlap is timed for flat exchanges only")
    compute_s = single_gpu_s(device, layers, batch)
    backward_s = [tensor.backward * compute_s for tensor in layers.tensors]
    forward_s = compute_s - sum(backward_s)
    parties = len(topology.workers)
    inside = _inside(inner)
    if parties == 1:
        return Costs(backward_s, _nothing, inside, _nothing, max(forward_s, 0.0))
    shapes = {tensor.values: tensor.shape for tensor in layers.tensors}
    plan = exchange(topology)
    # Where nothing is pulled, every party has all payloads and nobody has merged them for it.
    pulled = any(plan.slots[slot].startswith("pull") for slot in set(plan.slot.tolist()))
    alone = codec.combine == "gather" or (codec.combine == "merge" and not pulled)
    payloads = parties if alone else 1
    # What comes back holds every party's payload, merged at most that; sums and votes do not grow.
    down = 1 if codec.combine == "sum" or not codec.adds else parties
    send = transfer_s(plan, topology, efficiency, down)

    def communicate(values: int) -> float:
        rounds = codec.payload_bytes(shapes.get(values, (values,)))
        return inside(values) + sum(send(nbytes) + overhead_s for nbytes in rounds if nbytes)

    return Costs(
        backward_s,
        encode=lambda values: device.encode_s(codec.name, 4 * values),
        communicate=communicate,
        decode=lambda values: payloads * device.decode_s(codec.name, 4 * values),
        forward_s=max(forward_s, 0.0),
    )


def transfer_s(
    plan: Plan, topology: Topology, efficiency: float = 1.0, down: int = 1
) -> Callable[[float], float]:
    """Seconds that ``plan`` takes for payloads of so many bytes, ``down`` times as many to pull.

    Simulated at powers of four and interpolated: an idle network's time grows along a line.
    """

    @cache
    def at(power: int) -> float:
        nbytes = 4.0**power
        sizes = {slot: nbytes * (down if slot.startswith("pull") else 1) for slot in plan.slots}
        return simulate(plan, topology, sizes, efficiency=efficiency).completion_s

    def seconds(nbytes: float) -> float:
        power = (int(max(nbytes, 1)).bit_length() - 1) // 2
        low, high = at(power), at(power + 1)
        return low + (high - low) * (nbytes / 4.0**power - 1) / 3

    return seconds


def _nothing(values: int) -> float:
    return 0.0


def _inside(inner: Topology | None) -> Callable[[int], float]:
    """Seconds to add up and to hand back so many float32 values inside of a server."""
    if inner is None or len(inner.workers) == 1:
        return _nothing
    seconds = transfer_s(exchanges.load("ring", overlap=False)(inner), inner)
    return lambda values: seconds(4 * values)


def overlapped(layers: Layers, fusion: Fusion, costs: Costs) -> Timeline:
    """The iteration that a fusion arrives at."""
    return timeline(layers.sizes, fusion(layers.sizes, costs), costs)
