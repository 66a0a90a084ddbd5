"""Advice that is checked: the step that the price list predicts, and real ones on shaped links.

Every rank is a process in a network of its own (:mod:`testbed.network.emulated`), gloo joins them,
and payloads are coded for real. Before the steps of a case its parts are measured, each alone while
all ranks do the same: an iteration without exchange, the codec on messages of two sizes, and the
smallest message. From these, from the rates that the links are shaped to and from the sizes of
tensors, the price list predicts the step. Nothing of the step itself goes into that.

How gloo carries messages (:class:`slowlink.torch.wire.ProcessGroup`), and the plan that prices it:

- Sums of numbers that it can add: an all-reduce, which is a ring in segments, two of them under way
  (plan ``ring``). Sums of halves take the same bytes in two steps, a part to each rank, which adds
  it, and all parts back to all.
- Everything else: an all-gather around a ring. Like the plan ``allgather`` it takes all payloads of
  the others through every card. Where data decide how long they are, that is gathered before, and
  is part of what the smallest message takes.

Neither always gets the whole rate (gloo's all-gather of two ranks often gets two thirds), so that a
single large message is measured, too, on links that are otherwise idle, and the plan is priced at
the share of the rate that it got.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from slowlink.methods import compression, exchange, fusion
from slowlink.methods.compression import Compressor
from slowlink.methods.exchange import Topology
from slowlink.methods.fusion import Costs, timeline
from slowlink.testbed.live.data_parallel import (
    Groups,
    Job,
    LiveRun,
    Run,
    check,
    make_learner,
    run_of,
    train,
)
from slowlink.testbed.live.processes import GRACE_S, Line, run_ranks
from slowlink.testbed.live.processor_load import LoadMonitor, queued_s
from slowlink.testbed.network import star
from slowlink.testbed.network.emulated import Emulated, Measured
from slowlink.testbed.network.fluid import tcp_efficiency
from slowlink.testbed.prices import exchange_s, load_codec, load_system
from slowlink.testbed.training import models, trainer
from slowlink.testbed.training.datasets import Dataset, load_dataset
from slowlink.testbed.training.device import FREE, Coding, Device, measure_coding
from slowlink.testbed.training.learner import Learner
from slowlink.testbed.training.pipeline import Layer, Layers
from slowlink.testbed.training.recipe import Part, Recipe
from slowlink.torch.wire import NATIVE, ProcessGroup, Wire

NEAR = 0.1
"""A predicted step that is off by more has its reason counted."""
BUSY, SHORT, UNSTEADY = 0.9, 0.95, 0.1
"""Shares from which on busy processors, links below their rate and steps that vary are named."""

ALONE, MESSAGES, CODINGS = 5, 15, 5
"""How often an iteration, a message and coding are measured; the median counts."""
SINGLE_S, SINGLES = 0.25, 6
"""A single large message is one that a card takes so long for, but no larger than the model; the
mean of so many counts, since gloo sometimes gets the whole rate and sometimes not."""


@dataclass(frozen=True)
class Alone:
    """What one rank measured while all ranks did the same and nothing else.

    Attributes
    ----------
    iterations: (:data:`ALONE`, tensors + 2) seconds: until the first gradient was there, of
        backward that ended with each tensor's, in the order of backward, and of the update.
    coding: of the case's codec, in processor time.
    smallest_s, single_s: seconds of the smallest message, and of one of ``single_bytes`` (measured
        once for all codecs), that go the way of the codec's payloads.
    """

    iterations: np.ndarray
    coding: Coding
    smallest_s: float
    single_s: float
    single_bytes: int


@dataclass(frozen=True)
class Parts:
    """A step, seconds. The first three follow on each other and add up to ``step_s``.

    Attributes
    ----------
    compute_s: forward, backward and update.
    coding_s: encoding, and decoding that computing waited for.
    exchange_s: for which computing waited, slower ranks included.
    hidden_s: of messages, while the rank computed or encoded. Of real steps with their decoding,
        for the messenger decodes what came before it sends the next; predicted ones decode last.
    """

    compute_s: float
    coding_s: float
    exchange_s: float
    hidden_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.coding_s + self.exchange_s


@dataclass(frozen=True)
class Prediction:
    """What the price list says of a case.

    Attributes
    ----------
    carrier: the plan that prices the exchange.
    groups: the messages of a step.
    in_turn_s: the step if a message is decoded before the next one is sent.
    payload_bytes: that a rank puts in at each step.
    carried: share of the rate that TCP can get, which a single message got.
    together_s: the step if messages start while others are under way, as some of the wire's do, so
        that what the smallest message takes is waited for once; the price list adds it up.
    """

    carrier: str
    groups: Groups
    parts: Parts
    in_turn_s: float
    payload_bytes: float
    carried: float
    together_s: float = math.nan


@dataclass(frozen=True)
class Checked:
    """A case predicted and run.

    Attributes
    ----------
    measured: the step that took the median of time, in the mean of ranks.
    quartiles: of the seconds of all steps.
    payload_bytes: that a rank put in at each step, in the mean.
    busy_share, cpu_share: of all processors' time, what anything took while the case ran, and what
        its ranks took; 0 to 1, nan if unknown.
    queued_s: seconds a step, in the mean, that a rank's own thread was ready to go on and had no
        processor; nan if unknown.
    link_share: of the rate that TCP can get, what single transfers got, the least of all workers.
    """

    predicted: Prediction
    measured: Parts
    quartiles: tuple[float, float]
    payload_bytes: float
    busy_share: float
    cpu_share: float
    queued_s: float
    link_share: float

    @property
    def error(self) -> float:
        """How much longer than it was the step was predicted, as a share of what it was."""
        return self.predicted.parts.step_s / self.measured.step_s - 1

    @property
    def told(self) -> str:
        """In words."""
        step = f"step {_ms(self.measured.step_s)}, predicted {_ms(self.predicted.parts.step_s)}"
        return f"{step} ({100 * self.error:+.1f} %){'; ' * bool(self.why)}{self.why}"

    @property
    def spread(self) -> float:
        """Between the quartiles of all steps, as a share of the median."""
        return (self.quartiles[1] - self.quartiles[0]) / self.measured.step_s

    @property
    def why(self) -> str:
        """What the numbers say of an error of more than :data:`NEAR`; empty below."""
        if abs(self.error) <= NEAR:
            return ""
        predicted, real = self.predicted.parts, self.measured
        off_s = real.step_s - predicted.step_s
        parts = {"computing": "compute_s", "coding": "coding_s", "exchange": "exchange_s"}
        told = {}
        for name, part in parts.items():
            expected, found = getattr(predicted, part), getattr(real, part)
            told[name] = (found - expected) / off_s, f"{name} {_ms(found)}, not {_ms(expected)}"
        # Those that are off in the direction of the whole, until they explain most of it.
        found, explained = [], 0.0
        for share, words in sorted(told.values(), reverse=True):
            if explained < 0.75 and share > 0:
                found.append(f"{words} ({100 * share:.0f} % of the difference)")
                explained += share
        turn_s = self.predicted.in_turn_s - predicted.step_s
        if abs(turn_s / off_s) > 0.25 and turn_s * off_s > 0:
            found.append(f"decoding between transfers: {_ms(turn_s)}")
        together_s = self.predicted.together_s - predicted.step_s
        if together_s / off_s > 0.25:
            found.append(f"messages under way together: {_ms(-together_s)} less")
        if abs(self.payload_bytes / self.predicted.payload_bytes - 1) > 0.02:
            found.append(
                f"payload {self.payload_bytes:.0f} B, not {self.predicted.payload_bytes:.0f} B"
            )
        if self.busy_share > BUSY:
            own = f"{100 * self.cpu_share:.0f} % with this"
            found.append(f"processors {100 * self.busy_share:.0f} % busy ({own})")
        if self.queued_s > 0.1 * abs(off_s):
            found.append(f"waiting for a processor {_ms(self.queued_s)} a step")
        if self.link_share < SHORT:
            found.append(f"before, links carried {100 * self.link_share:.0f} % of their rate")
        if self.spread > UNSTEADY:
            found.append(f"half of all steps within {100 * self.spread:.0f} % of their time")
        return "; ".join(found)


def cell_of(told: Mapping[str, Any]) -> Checked:
    """A cell from its fields as plain data, as :func:`dataclasses.asdict` has them; null is nan."""
    plain = {name: math.nan if value is None else value for name, value in told.items()}
    predicted = {name: one for name, one in plain["predicted"].items() if one is not None}
    predicted |= dict(parts=Parts(**predicted["parts"]))
    found = dict(
        predicted=Prediction(**predicted),
        measured=Parts(**plain["measured"]),
        quartiles=tuple(plain["quartiles"]),
    )
    return Checked(**plain | found)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


# The networks -------------------------------------------------------------------------------------


def flat(workers: int, down: float, up: float | None = None) -> Topology:
    """Workers around a switch, whose links to it have the rate ``up`` (``down`` if None) and those
    from it ``down``, bit/s."""
    network = star(workers, down)
    sends = np.isin(network.link_src, network.workers)
    return replace(network, link_rate=np.where(sends, up or down, network.link_rate))


# What is predicted --------------------------------------------------------------------------------


def carrier(codec: Compressor) -> str:
    """The plan that prices how gloo carries what ``codec`` sends."""
    return "ring" if _added(codec) else "allgather"


def _added(codec: Compressor) -> str:
    """The type of numbers that gloo adds on the way; empty where payloads are gathered."""
    payload, how = next(codec.encode(torch.ones(2**10), None))
    return payload.dtype if how == "sum" and payload.dtype in (*NATIVE, "float16") else ""


def predict(
    recipe: Recipe, shapes: Mapping[str, Sequence[int]], alone: Sequence[Alone], network: Topology
) -> Prediction:
    """The step of ``recipe`` on ``network`` from parts that every rank measured.

    Parameters
    ----------
    shapes: of the tensors that travel, in the order of the model.
    """
    up = recipe.levels[0].up
    tensors, compute_s = _layers(recipe.model.name, shapes, slowest(alone))
    device = _device(up, [one.coding for one in alone])
    name = carrier(load_codec(up))
    smallest_s = statistics.mean(one.smallest_s for one in alone)
    share = carried(name, network, alone)
    rate = share * tcp_efficiency()
    system = load_system(Part(name=name), recipe.levels, network, rate, smallest_s)
    costs = system.costs(device, tensors, compute_s)
    groups = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)(tensors.sizes, costs)
    spans = timeline(tensors.sizes, groups, costs)
    coding_s = float(np.diff(spans.encode).sum() + np.diff(spans.decode).sum())
    exposed_s = spans.exposed_communication_s
    hidden_s = float(np.diff(spans.communicate).sum()) - exposed_s
    sizes = system.messages(tensors)
    sent = sum(sum(s["push/0"] for s in sizes(group[0], group[-1] + 1)) for group in groups)
    parts = Parts(compute_s, coding_s, exposed_s, hidden_s)
    at_once = load_system(Part(name=name), recipe.levels, network, rate)
    spans = timeline(tensors.sizes, groups, at_once.costs(device, tensors, compute_s))
    together_s = spans.iteration_s + smallest_s
    return Prediction(name, groups, parts, in_turn_s(groups, costs), sent, share, together_s)


def carried(name: str, network: Topology, alone: Sequence[Alone]) -> float:
    """Share of the rate that TCP can get, which a single message on the plan ``name`` got."""
    plan = exchange.load(name)(network)
    (nbytes,) = {one.single_bytes for one in alone}
    sizes = dict.fromkeys(plan.slots, float(nbytes))
    least_s = exchange_s(plan, network, [sizes], tcp_efficiency())
    took_s = statistics.mean(one.single_s - one.smallest_s for one in alone)
    return min(1.0, least_s / took_s) if took_s > 0 else 1.0


def slowest(alone: Sequence[Alone]) -> np.ndarray:
    """An iteration of the rank that all wait for: columns as of :class:`Alone`, medians."""
    runs = np.array([one.iterations for one in alone])
    last = runs.sum(axis=2).argmax(axis=0)
    return np.median(runs[last, np.arange(runs.shape[1])], axis=0)


def in_turn_s(groups: Groups, costs: Costs) -> float:
    """Seconds of the step where messages are exchanged and decoded one after the other beside
    computing, as :class:`slowlink.torch.messenger.Messenger` does what cannot begin early."""
    now, done = costs.forward_s, 0.0
    for group in groups:
        message = group[0], group[-1] + 1
        now += sum(costs.backward_s[i] for i in group) + costs.encode(*message)
        done = max(now, done) + costs.communicate(*message) + costs.decode(*message)
    return max(now, done)


def _layers(
    model: str, shapes: Mapping[str, Sequence[int]], iteration: np.ndarray
) -> tuple[Layers, float]:
    """The model as its iteration was measured, and how long that took (s)."""
    compute_s, backward = float(iteration.sum()), iteration[1:-1] / iteration.sum()
    named = zip(reversed(list(shapes.items())), backward.tolist(), strict=True)
    tensors = tuple(Layer(name, tuple(shape), share) for (name, shape), share in named)
    return Layers(model, tensors, flops=1.0), compute_s


def _device(up: Part, codings: Sequence[Coding]) -> Device:
    """A profile that knows one codec, as all ranks measured it in the mean."""
    fixed_s = statistics.mean(one.fixed_s for one in codings)
    second_s = statistics.mean(1 / one.rate for one in codings)
    decode = statistics.mean(one.decode for one in codings)
    coding = Coding(rate=1 / second_s, fixed_s=fixed_s, decode=decode, parameters=up.parameters)
    about = dict(title="these ranks", source="measured before each case", flops=1.0)
    return Device(**about, round_overhead_s=0.0, work=FREE, known={up.name: coding})


# What is run --------------------------------------------------------------------------------------


def check_all(
    cases: Sequence[LiveRun],
    network: Topology,
    *,
    warm: int = 2,
    dataset: Dataset | None = None,
    measured_s: float = 0.5,
    timeout_s: float = 120.0,
    done: Callable[[LiveRun, Checked], None] = lambda case, found: None,
) -> list[Checked]:
    """Predict and run every case, one after the other on the same processes.

    Parameters
    ----------
    cases: of as many workers as the network has; ``costs`` are not needed, since those of the
        prediction choose the groups.
    network: what can be emulated, see :class:`testbed.network.emulated.Emulated`.
    warm: first steps of each case that do not count.
    dataset: stands in for the recipes' own.
    measured_s: seconds in which each worker's link is measured before.
    timeout_s: longest silence of the ranks.
    done: is told of each case when it has run.

    Raises
    ------
    ValueError
        A case that cannot run live, or whose steps are all warm-up.
    RuntimeError
        Links cannot be emulated, or a rank failed; nothing is left running.
    """
    for case in cases:
        check(case)
        if sum(case.recipe.workers) != len(network.workers):
            there = len(network.workers)
            raise ValueError(f"workers: the network has {there}, a case {case.recipe.workers}")
        if case.steps <= warm:
            raise ValueError(f"steps: {case.steps} are not more than {warm} that do not count")
    load = cache(load_dataset)
    data = [dataset or trainer.data_of(case.recipe, load) for case in cases]
    nodes = [int(node) for node in network.workers]
    with Emulated(network) as links, tempfile.TemporaryDirectory() as folder:
        pairs = zip(nodes, nodes[1:] + nodes[:1], strict=True)
        found = Found(cases, network, links.measure(list(pairs), measured_s), warm, done)
        run_ranks(
            _rank,
            len(nodes),
            cases,
            data,
            str(Path(folder) / "store"),
            len(nodes),
            timeout_s,
            4 * int(SINGLE_S * network.link_rate.min() / 32),
            # A rank that waits in vain names the one it waits for, so it comes first.
            timeout_s=timeout_s + GRACE_S,
            # Without this variable, gloo would look for its interface by the machine's name.
            environment=lambda rank: {"GLOO_SOCKET_IFNAME": links.card(nodes[rank])},
            namespaces=lambda rank: links.namespaces(nodes[rank]),
            hear=found.hear,
        )
    return found.checked


class Found:
    """What the ranks of :func:`check_all` have measured so far."""

    def __init__(
        self,
        cases: Sequence[LiveRun],
        network: Topology,
        links: Sequence[Measured],
        warm: int,
        done: Callable[[LiveRun, Checked], None],
    ) -> None:
        self.cases, self.network, self.warm, self.done = cases, network, warm, done
        self.link_share = min(one.rate / one.expected for one in links)
        self.checked: list[Checked] = []
        self._heard: dict[int, Any] = {}

    def hear(self, rank: int, value: Any) -> Mapping[int, Any]:
        """Take what a rank measured; once all have, say which groups to send, or keep the run."""
        self._heard[rank] = value
        if len(self._heard) < len(self.network.workers):
            return {}
        heard = [self._heard[rank] for rank in sorted(self._heard)]
        self._heard = {}
        case = self.cases[len(self.checked)]
        if isinstance(heard[0], _Ready):
            shapes, alone = heard[0].shapes, [one.alone for one in heard]
            self._predicted = predict(case.recipe, shapes, alone, self.network)
            return dict.fromkeys(range(len(heard)), self._predicted.groups)
        run = run_of(self._predicted.groups, [one.report for one in heard])
        wall_s = max(one.wall_s for one in heard)
        cpu_share = sum(one.cpu_s for one in heard) / wall_s / len(os.sched_getaffinity(0))
        measured, quartiles = typical(run, self.warm)
        one = Checked(
            self._predicted,
            measured,
            quartiles,
            float(run.payload_bytes.sum(axis=2)[:, self.warm :].mean()),
            float(np.mean([one.busy_share for one in heard])),
            cpu_share,
            float(np.mean([one.queued_s for one in heard])),
            self.link_share,
        )
        self.checked.append(one)
        self.done(case, one)
        return {}


def typical(run: Run, warm: int) -> tuple[Parts, tuple[float, float]]:
    """The parts of the step that took the median of time, and the quartiles of all steps (s)."""
    names = ("step_s", "compress_s", "exposed_s", "wait_s", "busy_s")
    step, compress, exposed, wait, busy = (getattr(run, name).mean(axis=0)[warm:] for name in names)
    middle = np.argsort(step)[len(step) // 2]
    parts = (
        step - compress - exposed,
        compress + exposed - wait,
        wait,
        np.maximum(busy - exposed, 0.0),
    )
    low, high = np.quantile(step, [0.25, 0.75])
    return Parts(*(float(part[middle]) for part in parts)), (float(low), float(high))


# One rank -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ready:
    """A rank has measured its parts."""

    shapes: dict[str, tuple[int, ...]]
    alone: Alone


@dataclass(frozen=True)
class _Ran:
    """A rank has run a case; ``report`` as of :func:`testbed.live.data_parallel.train`."""

    report: dict
    wall_s: float
    cpu_s: float
    queued_s: float
    busy_share: float


def _rank(
    cases: Sequence[LiveRun],
    data: Sequence[Dataset],
    store: str,
    ranks: int,
    timeout_s: float,
    single_bytes: int,
    rank: int,
    line: Line,
) -> None:
    line("joining")
    patience = timedelta(seconds=timeout_s)
    kept = dist.FileStore(store, ranks)  # no address is in reach of all ranks and their parent
    dist.init_process_group("gloo", store=kept, rank=rank, world_size=ranks, timeout=patience)
    wire, singles = ProcessGroup(timeout=patience), {}
    for case, dataset in zip(cases, data, strict=True):
        line(f"measuring the parts of {case.recipe.system}")
        line.post(_measure(case, dataset, wire, single_bytes, singles))
        job = Job(case, line.receive(), dataset)
        with LoadMonitor() as monitor:
            begun, cpu_s, queue_s = time.monotonic(), time.process_time(), queued_s()
            report = train(job, wire, line)
            ended, cpu_s, queue_s = (
                time.monotonic(),
                time.process_time() - cpu_s,
                (queued_s() - queue_s) / case.steps,
            )
        busy, _ = monitor.over(begun, ended)
        line.post(_Ran(report | dict(parameters={}), ended - begun, cpu_s, queue_s, busy))
        wire.barrier()


def _measure(
    case: LiveRun, dataset: Dataset, wire: Wire, single_bytes: int, singles: dict[str, float]
) -> _Ready:
    recipe, up = case.recipe, case.recipe.levels[0].up
    torch.set_num_threads(recipe.torch_threads)
    learner = make_learner(recipe, dataset)
    shapes = models.gradient_shapes(learner.model, norm=recipe.norm)
    wire.barrier()
    # What others keep busy does not count, but for the ranks' own computing at once.
    clock = time.perf_counter if case.paces is None else time.thread_time
    iterations = iterate(case, learner, wire, clock)
    wire.barrier()
    make = partial(compression.load, up.name, **up.parameters)
    coding = measure_coding(make, sum(learner.sizes), CODINGS, clock=time.thread_time)
    codec = make()
    smallest_s = statistics.median(_messages_s(codec, wire, 4 * wire.size, MESSAGES))
    nbytes = min(single_bytes, 4 * sum(learner.sizes))
    if (added := _added(codec)) not in singles:
        singles[added] = statistics.mean(_messages_s(codec, wire, nbytes, SINGLES))
    return _Ready(shapes, Alone(iterations, coding, smallest_s, singles[added], nbytes))


def iterate(case: LiveRun, learner: Learner, wire: Wire, clock: Callable[[], float]) -> np.ndarray:
    """Iterations without exchange, see :class:`Alone`; paces that are stated are as stated."""
    rank, ready, runs = wire.rank, {}, []
    backward = list(reversed(range(len(learner.parameters))))
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda _, number=number: ready.__setitem__(number, clock())
        )
        for number, parameter in enumerate(learner.parameters)
    ]
    gradients = learner.gradient(rank)  # the first ones warm up
    learner.replicas[rank] = learner.update(learner.replicas[rank], gradients)
    for _ in range(ALONE):
        wire.barrier()
        start = clock()
        if case.paces is None:
            gradients = learner.gradient(rank)
        computed = clock()
        learner.replicas[rank] = learner.update(learner.replicas[rank], gradients)
        update_s = clock() - computed
        # A tensor that is ready before one in front of it takes no time of its own.
        at = np.maximum.accumulate([ready[number] for number in backward])
        paces = case.paces or [at[0] - start, 0.0, *np.diff(at)]
        runs.append([*paces, update_s])
    for handle in handles:
        handle.remove()
    return np.array(runs)


def _messages_s(codec: Compressor, wire: Wire, nbytes: int, repeats: int) -> list[float]:
    """Seconds of messages of so many bytes that go the way of the codec's, after one that does not
    count. Nothing is coded."""
    halves = _added(codec) == "float16"
    plain = compression.load("fp16" if halves else "identity")
    payload = plain.compress(torch.ones(nbytes // (2 if halves else 4)), None)
    how = "sum" if _added(codec) else "gather"
    seconds = []
    for _ in range(repeats + 1):
        wire.barrier()
        start = time.perf_counter()
        wire.begin([payload], [how], [nbytes], exact=codec.exact_bytes).wait()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def paces(recipe: Recipe, dataset: Dataset | None = None) -> list[float]:
    """Paces of :class:`LiveRun`: an iteration on this machine, in processor time, medians."""
    case = LiveRun(recipe, 1)
    check(case)
    data = dataset or trainer.data_of(recipe)
    (runs,) = run_ranks(_iterated, 1, case, data, timeout_s=120.0)
    return np.median(runs, axis=0)[:-1].tolist()


def _iterated(case: LiveRun, dataset: Dataset, rank: int, line: Line) -> np.ndarray:
    torch.set_num_threads(case.recipe.torch_threads)
    return iterate(case, make_learner(case.recipe, dataset), _Nobody(), time.thread_time)


class _Nobody:
    """The wire of a rank that is alone."""

    rank, size = 0, 1

    def barrier(self) -> None:
        pass
