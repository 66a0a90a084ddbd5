"""Data-parallel training on real processes: groups of gradients leave during backward.

What the virtual-time trainer simulates, on as many processes of this machine as the recipe has
workers, joined by gloo or what else is a :class:`slowlink.torch.wire.Wire`. Batches, codecs and
the update are the :class:`Learner`'s own, so the parameters are the trainer's; only BatchNorm's
running statistics stay each rank's own.

Source: Sketch-Fusion §4.1, Algorithm 2: a group is compressed and sent when the last of its
gradients is there, while backward goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slowlink.methods import exchange, fusion
from slowlink.methods.compression import Payload, add_payloads
from slowlink.methods.fusion import Costs
from slowlink.testbed.live.processes import GRACE_S, LOOPBACK, Tell, run_ranks
from slowlink.testbed.training import models, trainer
from slowlink.testbed.training.datasets import Dataset, load_dataset
from slowlink.testbed.training.learner import Learner, Replica, digest, fused, unfused
from slowlink.testbed.training.recipe import Part, Recipe
from slowlink.torch.data_parallel import CommHook
from slowlink.torch.messenger import Aggregation, Messenger
from slowlink.torch.wire import ProcessGroup, Wire

HOST = "127.0.0.1"

Join = Callable[[int, int], AbstractContextManager[Wire]]
"""Enters the run as this rank of so many; must be importable by name."""

CARRIED = ("ring", "allgather")
"""Exchanges that a recipe may name: what a wire's collectives do. Any other would label a run in
which it has no part."""

Groups = Sequence[Sequence[int]]
"""Numbers of the tensors of each message, counted in the order in which backward produces them."""


@dataclass(frozen=True)
class Run:
    """What a live run did.

    Attributes
    ----------
    parameters: by name, after the last step; the same bits on every rank.
    payload_bytes: (ranks, steps, rounds) int64, what each rank put in at each round of the codec.
    frame_bytes: (ranks, steps) int64, the same in the frames of the wire.
    received_bytes: (ranks, steps) int64, frames of the other ranks that arrived, see
        :class:`slowlink.torch.wire.Flight`.
    groups: the messages of one step.
    step_s: (ranks, steps) seconds: batch, forward, backward, communication and update.
    compute_s: (ranks, steps) seconds of batch, forward and backward.
    compress_s: (ranks, steps) seconds of encoding; of codecs with several rounds the first one's.
    wait_s: (ranks, steps) seconds from the last launch on in which payloads of other ranks were
        waited for; decoding in between does not count.
    busy_s: (ranks, steps) seconds that messages took to combine and decode, waiting for slower
        ranks included.
    exposed_s: (ranks, steps) seconds from the last launch until all sums were there; what it is
        less than ``busy_s`` was hidden behind backward.
    launched_early: share of messages that left while backward still owed gradients.
    tests: of each evaluation the step, the seconds of training until then, and the test accuracy
        (%).
    """

    parameters: dict[str, Tensor]
    payload_bytes: np.ndarray
    frame_bytes: np.ndarray
    received_bytes: np.ndarray
    groups: Groups
    step_s: np.ndarray
    compute_s: np.ndarray
    compress_s: np.ndarray
    wait_s: np.ndarray
    busy_s: np.ndarray
    exposed_s: np.ndarray
    launched_early: float
    tests: list[tuple[int, float, float]]


@dataclass(frozen=True)
class LiveRun:
    """One run of :func:`measure_all`: ``recipe`` trained for ``steps`` on one process a worker.

    Attributes
    ----------
    ordered: add payloads in the order of ranks, bit-equal to the virtual-time trainer; else gloo's
        all-reduce adds in an order of its own.
    ddp: let torch's DistributedDataParallel carry the whole model through a
        :class:`slowlink.torch.CommHook`; needs the fusion ``whole_model``.
    costs: for a fusion that needs them, in the order in which backward produces gradients.
    evaluate: test every ``recipe.evaluate_every`` steps and at the end, each rank on a share of the
        test samples.
    paces: seconds until the first gradient is there, and of backward that end with each tensor's,
        in the order in which backward produces them. Computing is then replayed: one real gradient
        arrives at these paces in every step, while the rank sleeps, so that more ranks than
        processors do not hold each other up.
    """

    recipe: Recipe
    steps: int
    ordered: bool = False
    ddp: bool = False
    costs: Costs | None = None
    evaluate: bool = False
    paces: Sequence[float] | None = None


def measure_all(
    cases: Sequence[LiveRun],
    *,
    dataset: Dataset | None = None,
    join: Join | None = None,
    timeout_s: float = 120.0,
) -> list[Run]:
    """Runs one after the other on the same processes, which take seconds to start.

    Parameters
    ----------
    dataset: stands in for the recipes' own; ``join`` for gloo.
    timeout_s: longest silence of the ranks; then the run is ended.

    Raises
    ------
    ValueError
        A recipe that is not a flat, synchronous one with the optimizer at the workers, or cases of
        different numbers of workers.
    RankFailed
        A rank failed, died or hung; nothing is left running.
    """
    sizes = sorted({sum(case.recipe.workers) for case in cases})
    if len(sizes) != 1:
        raise ValueError(f"workers: all cases need the same number, not {sizes}")
    (ranks,) = sizes
    for case in cases:
        check(case)
    load = cache(load_dataset)
    jobs = [prepare(case, dataset or trainer.data_of(case.recipe, load)) for case in cases]
    if join is None:
        store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        join = partial(_join_gloo, store.port, timeout_s)
    # A rank that waits in vain names the one it waits for, so it comes first.
    options = dict(timeout_s=timeout_s + GRACE_S, environment=lambda rank: LOOPBACK)
    reports = run_ranks(_rank, ranks, jobs, join, ranks, **options)
    by_job = zip(*reports, strict=True)
    return [run_of(job.groups, of_ranks) for job, of_ranks in zip(jobs, by_job, strict=True)]


def group(recipe: Recipe, dataset: Dataset, costs: Costs | None = None) -> Groups:
    """The messages of ``recipe``, by its fusion.

    Raises ValueError where codecs see layers: a live message is one vector.
    """
    if recipe.codec_scope != "group":
        raise ValueError("codec_scope: live, codecs see whole messages: say group")
    method = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)
    shapes = models.gradient_shapes(_model(recipe, dataset), norm=recipe.norm)
    return method([torch.Size(shape).numel() for shape in reversed(shapes.values())], costs)


# One rank -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Everything that a rank needs for its part of a run."""

    case: LiveRun
    groups: Groups
    dataset: Dataset


def prepare(case: LiveRun, dataset: Dataset) -> Job:
    """Group the tensors of ``case``. Raises ValueError for fewer test samples than ranks."""
    ranks = sum(case.recipe.workers)
    if case.evaluate and len(dataset.test_y) < ranks:
        raise ValueError(f"{dataset.name}: {len(dataset.test_y)} test samples for {ranks} ranks")
    groups = group(case.recipe, dataset, case.costs)
    # Costs are functions, which do not travel to other processes; the groups are all they are for.
    return Job(replace(case, costs=None), groups, dataset)


@contextmanager
def _join_gloo(port: int, timeout_s: float, rank: int, ranks: int) -> Iterator[ProcessGroup]:
    patience = timedelta(seconds=timeout_s)
    store = dist.TCPStore(HOST, port, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=patience)
    yield ProcessGroup(timeout=patience)


def _rank(jobs: Sequence[Job], join: Join, ranks: int, rank: int, tell: Tell) -> list[dict]:
    tell("joining")
    with join(rank, ranks) as wire:
        return [train(job, wire, tell) for job in jobs]


def train(job: Job, wire: Wire, tell: Tell) -> dict:
    """This rank's part of a run.

    Parameters
    ----------
    tell: hears what the rank does now.

    Returns
    -------
    ``parameters`` of rank 0 by name after the last step, and their ``digest``; ``sent``, bytes by
    step, by message and by round; ``framed`` and ``received``, bytes by step; ``times``, seconds
    by the names of :class:`Run`, by step; ``early``; ``tests``.

    Raises
    ------
    ConnectionError
        Another rank is out of reach.
    """
    case, recipe, up = job.case, job.case.recipe, job.case.recipe.levels[0].up
    rank = wire.rank
    torch.set_deterministic_debug_mode("warn")  # the longer name also imports the compiler
    torch.set_num_threads(recipe.torch_threads)
    learner = make_learner(recipe, _with_share_of_tests(job.dataset, rank, wire.size))
    names = models.gradient_shapes(learner.model, norm=recipe.norm)
    last = len(names) - 1
    groups = [[last - number for number in group] for group in job.groups]
    codec = learner.codec("up", 0, learner.nodes[rank], up)
    messenger = Messenger(wire, codec, learner.codec("up", 0, -1, up), case.ordered)
    kept = learner.gradient(rank) if case.paces else []  # before anything waits for gradients
    backward = (_Ddp if case.ddp else _Hooks)(learner, groups, messenger)
    sent, framed, received, early, tests = [], [], [], [], []
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    wire.barrier()
    for step in range(case.steps):
        tell(f"computing step {step} of {up.name}")
        start = time.perf_counter()
        backward.begin()
        try:
            replayed = case.paces and backward.replay(kept, case.paces)
            gradients = replayed or learner.gradient(rank)
        except RuntimeError as error:
            raise _cause(error, backward.messages) from error
        computed = time.perf_counter()
        tell(f"waiting in step {step} of {up.name}")
        totals = backward.end(gradients)
        arrived = time.perf_counter()
        learner.replicas[rank] = learner.update(learner.replicas[rank], totals)
        messages = backward.messages
        ended = messages[-1].launched_at  # backward ended when the last gradient was there
        compress_s = sum(message.encode_s for message in messages)
        # DDP waits before it says that backward is done.
        within_s = sum(message.waited_s(ended, computed) for message in messages)
        seconds = dict(
            step_s=time.perf_counter() - start,
            compute_s=computed - start - compress_s - within_s,
            compress_s=compress_s,
            wait_s=sum(message.waited_s(ended) for message in messages),
            busy_s=sum(message.busy_s for message in messages),
            exposed_s=arrived - ended,
        )
        for name in TIMES:
            times[name].append(seconds[name])
        sent.append([message.sent for message in messages])
        framed.append(sum(sum(message.framed) for message in messages))
        received.append(sum(sum(message.received) for message in messages))
        early.append(backward.launched_early / len(messages))
        done = step + 1
        if case.evaluate and (done % recipe.evaluate_every == 0 or done == case.steps):
            tell(f"testing after step {step} of {up.name}")
            accuracy = evaluate(wire, learner, learner.replicas[rank])
            tests.append((done, sum(times["step_s"]), accuracy))
    messenger.close()
    final = learner.replicas[rank].parameters
    return dict(
        parameters=dict(zip(names, final, strict=True)) if rank == 0 else None,
        digest=digest(final),
        sent=sent,
        framed=framed,
        received=received,
        times=times,
        early=early,
        tests=tests,
    )


TIMES = ("step_s", "compute_s", "compress_s", "wait_s", "busy_s", "exposed_s")


def _with_share_of_tests(dataset: Dataset, rank: int, size: int) -> Dataset:
    share = slice(rank, None, size)
    return replace(dataset, test_x=dataset.test_x[share], test_y=dataset.test_y[share])


def evaluate(wire: Wire, learner: Learner, replica: Replica) -> float:
    """Test accuracy (%) over the shares of all ranks, which count what they got right.

    Source: DDS document, distributed evaluation.
    """
    count = learner.data.test_y.numel()
    accuracy, _ = learner.evaluate(replica)
    counts = np.array([round(accuracy * count / 100), count], "<i8")
    payload = Payload(counts.tobytes(), "tests", counts.shape, "dense", "int64")
    (arrived,), _ = wire.begin([payload], ["sum"], ["tests"], exact=True).wait()
    total = arrived if isinstance(arrived, Payload) else add_payloads(arrived)
    correct, count = total.elements.tolist()
    return 100 * correct / count


def _model(recipe: Recipe, dataset: Dataset) -> nn.Module:
    part = trainer.fitting(recipe.model, dataset)
    return models.make(part.name, recipe.seed, **part.parameters)


def make_learner(recipe: Recipe, dataset: Dataset) -> Learner:
    """A learner for a flat recipe, one message a tensor, on the processor."""
    # Grouped by the caller, who has the costs.
    recipe = recipe.model_copy(update={"fusion": Part(name="layer_wise"), "accelerator": "cpu"})
    link = next(iter(recipe.networks.values()))
    if recipe.overlap:
        sites = trainer.flat(sum(recipe.workers), link)
    else:
        sites = trainer.topology(recipe.workers, link)
    system = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
    return Learner(recipe, _model(recipe, dataset), dataset, system, sites)


class _Hooks:
    """Launches each group as soon as the last of its gradients is there, in the order of groups."""

    def __init__(self, learner: Learner, groups: Groups, messenger: Messenger) -> None:
        self.parameters, self.groups, self.messenger = learner.parameters, groups, messenger
        for number, parameter in enumerate(learner.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, number))

    def begin(self) -> None:
        self.owed = set(range(len(self.parameters)))
        self.messages: list[Aggregation] = []
        self.launched_early = 0

    def _arrived(self, number: int, parameter: Tensor) -> None:
        self.owed.discard(number)
        # A group that is complete out of turn waits: all ranks launch in one order.
        for key, group in enumerate(self.groups[len(self.messages) :], len(self.messages)):
            if not self.owed.isdisjoint(group):
                return
            gradients = [self.parameters[i].grad for i in group]
            # This rank's summand of the mean, scaled as the learner does.
            share = fused(gradients, range(len(group))) * (1 / self.messenger.wire.size)
            self.messages.append(self.messenger.launch([(key, share)]))
            self.launched_early += bool(self.owed)

    def replay(self, gradients: Sequence[Tensor], paces: Sequence[float]) -> Sequence[Tensor]:
        """``gradients``, after they arrived at these paces; see :class:`LiveRun`."""
        first, *later = paces
        late = _sleep(first)
        in_order = reversed(list(enumerate(zip(self.parameters, gradients, strict=True))))
        for (number, (parameter, gradient)), pace in zip(in_order, later, strict=True):
            late = _sleep(pace - late)
            parameter.grad = gradient
            self._arrived(number, parameter)
        return gradients

    def end(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        if self.owed:
            raise ValueError(f"{len(self.owed)} parameters got no gradient; all must be used")
        totals: dict[int, Tensor] = dict(enumerate(gradients))
        shapes = [gradient.shape for gradient in gradients]
        for group, message in zip(self.groups, self.messages, strict=True):
            (total,) = message.totals.result()
            totals |= unfused(total, group, shapes)
        return list(totals.values())


class _Ddp:
    """The whole model as one message through torch's DistributedDataParallel."""

    launched_early = 0

    def __init__(self, learner: Learner, groups: Groups, messenger: Messenger) -> None:
        (order,) = groups
        model = DistributedDataParallel(learner.model)
        model.broadcast_buffers = False  # the argument's name differs between versions of torch
        # DDP knows the others, too, which no gradient comes to.
        names = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        parameters = {names[id(learner.parameters[i])]: learner.parameters[i] for i in order}
        hook = CommHook(
            parameters,
            messenger,
            groups=[list(parameters)],
            whole=True,
            launched=lambda message: self.messages.append(message),
        )
        model.register_comm_hook(None, hook.on_bucket)
        learner.model = model

    def begin(self) -> None:
        self.messages: list[Aggregation] = []

    def end(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        return list(gradients)  # DDP has waited and put the sums where the gradients were


def _sleep(seconds: float) -> float:
    """Sleep so long; returns by how many seconds it was longer."""
    start = time.perf_counter()
    if seconds > 0:
        time.sleep(seconds)
    return time.perf_counter() - start - seconds


def _cause(error: RuntimeError, messages: Sequence[Aggregation]) -> BaseException:
    """The error of a message, if there is one: DDP wraps it into another, mangled one."""
    failed = (m.totals.exception() for m in messages if m.totals.done())
    return next((cause for cause in failed if cause is not None), error)


# The parent -----------------------------------------------------------------------------------


def check(case: LiveRun) -> None:
    """Raise ValueError for a case that cannot run; see :func:`measure_all`."""
    recipe = case.recipe
    needed = {
        "synchronization": (recipe.synchronization.name, "bsp"),
        "optimizer_at": (recipe.optimizer_at, "worker"),
        "levels": (len(recipe.levels), 1),
        # Groups are sent before the norm of the whole gradient is known.
        "clip_norm": (recipe.clip_norm, None),
    }
    if case.ddp:
        needed["fusion"] = (recipe.fusion.name, "whole_model")
        needed["paces"] = (case.paces, None)
    for name, (has, allowed) in needed.items():
        if has != allowed:
            raise ValueError(f"{name}: a live run needs {allowed!r}, the recipe has {has!r}")
    if recipe.exchange.name not in CARRIED:
        raise ValueError(
            f"exchange: live, messages are added up or gathered by collectives of the wire's own, "
            f"{' or '.join(CARRIED)}; {recipe.exchange.name!r} would not run"
        )
    if case.steps < 1:
        raise ValueError(f"steps must be at least 1, not {case.steps}")


def run_of(groups: Groups, reports: Sequence[dict]) -> Run:
    """The run whose ranks' parts :func:`train` returned, in the order of ranks.

    Raises
    ------
    RuntimeError
        The ranks ended with different parameters.
    """
    apart = [rank for rank, one in enumerate(reports) if one["digest"] != reports[0]["digest"]]
    if apart:
        raise RuntimeError(f"parameters of ranks {apart} differ from rank 0's after the run")
    sent = [one["sent"] for one in reports]
    rounds = max(len(message) for steps in sent for step in steps for message in step)
    payload_bytes = np.zeros((len(sent), len(sent[0]), rounds), np.int64)
    for (rank, step), _ in np.ndenumerate(payload_bytes[..., 0]):
        for message in sent[rank][step]:
            payload_bytes[rank, step, : len(message)] += message
    return Run(
        parameters=reports[0]["parameters"],
        payload_bytes=payload_bytes,
        frame_bytes=np.array([one["framed"] for one in reports], np.int64),
        received_bytes=np.array([one["received"] for one in reports], np.int64),
        groups=groups,
        **{name: np.array([one["times"][name] for one in reports]) for name in TIMES},
        launched_early=float(np.mean([one["early"] for one in reports])),
        tests=reports[0]["tests"],
    )
