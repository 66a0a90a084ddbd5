"""The one file that describes a live run: what it trains, who takes part, what it waits for.

JSON or YAML, for instance::

    training:
      exchange: {name: ring}
      levels: [{up: {name: identity}}]
      synchronization: {name: bsp}
      model: {name: lenet5}
      dataset: fashion_mnist
      workers: [2, 2]                   # two sites
      batch: 32
      lr: 0.05
      rounds: 100
      evaluate_every: 10
    output: runs/first

With ``own``, what is trained is a model, data, loss and optimizer of one's own, and ``training``
needs no ``model``, ``dataset``, ``batch`` and ``lr``::

    own:
      model: train.py:make_model
      data: train.py:batches            # batches("site1", 0): what this worker alone reads
      loss: torch.nn.functional:cross_entropy
      optimizer: train.py:make_optimizer
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import logging
import math
import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from slowlink.methods import aggregation, compression, exchange, fusion
from slowlink.methods.aggregation import Aggregation
from slowlink.methods.exchange import Exchange, Topology
from slowlink.methods.synchronization import Policy
from slowlink.testbed.live import documents
from slowlink.testbed.live.engine.flow import FINITE
from slowlink.testbed.prices import default_down, load_codec, load_system, passes
from slowlink.testbed.training import models
from slowlink.testbed.training.fetch import read_sources
from slowlink.testbed.training.learner import IDENTITY, apart, check_text, grouped
from slowlink.testbed.training.recipe import Link, Part, Recipe
from slowlink.testbed.training.stragglers import Fixed, Stragglers, Trace
from slowlink.testbed.training.trainer import GLOBAL, flat, speeds, topology
from slowlink.testbed.training.virtual_time import play

COORDINATOR = "coordinator"

HERE = {"tcp://127.0.0.1", "tcp://localhost"}
"""Hosts that nobody else reaches."""
ADDRESS = re.compile(r"tcp://[^:/\s]+:\d{1,5}\Z")

USUAL: dict[str, Any] = documents.USUAL | dict(experiment="live", system="live", compute_s=0.0)
"""Fields of a recipe that may be left out."""

OWN: dict[str, Any] = dict(model={"name": "own"}, dataset="own", batch=1, lr=1.0)
"""Fields of a recipe that one's own training has no use for, but a recipe has to have."""

OF_RECIPES = (
    *OWN, "stands_for", "norm", "limit", "test_limit", "validation", "words", "steps", "sampler",
    "augment", "colour", "lr_steps", "momentum", "weight_decay", "gradients", "split", "deal",
    "subset", "momentum_lasts",
)  # fmt: skip
"""Fields that say what one's own functions say, where there are any."""

TEXTS = ("penn_treebank",)
"""Data sets of words, for language models."""

TRIED = 2**18
"""Values of a tensor that codecs are tried on, more than any of them leaves as it is."""

PROBED, MET = 24, 4
"""Iterations of each worker by which a policy is tried in virtual time before a process starts, or
as many as are between so many meetings of all."""

Seconds = Annotated[PositiveFloat, Field(allow_inf_nan=False)]

log = logging.getLogger(__name__)


class Own(BaseModel):
    """A training of one's own: functions, each as ``module:name`` or ``path/to/file.py:name``.

    Attributes
    ----------
    model: ``model() -> torch.nn.Module``, seeded alike at every node: torch, numpy and ``random``.
    data: ``data(site, worker)``, names such as ``site1`` and a number from 0: batches ``(x, y)``
        of that worker, as often as it is iterated over. Only a worker calls it, with its own place.
        Where ``x`` is a tuple or a list, it is what a model of several inputs takes.
    loss: ``loss(model(x), y) -> scalar tensor``.
    optimizer: ``optimizer(parameters) -> torch.optim.Optimizer``, or a pair of it and a scheduler
        of its learning rate, which steps after each of its steps.
    evaluate: ``evaluate(model) -> {metric: number}``, called where the model is; null for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    data: str
    loss: str
    optimizer: str
    evaluate: str | None = None

    @field_validator("*")
    @classmethod
    def _well_formed(cls, function: str | None) -> str | None:
        if function is not None and not all(function.rpartition(":")):
            raise ValueError(f"must be module:name or path/to/file.py:name, not {function!r}")
        return function


class Limits(BaseModel):
    """What is waited for, and held, at most.

    Attributes
    ----------
    join_s: until all members are there.
    compute_s: an iteration, or a batch that is drawn anew as a run goes on from a snapshot.
    evaluate_s: an evaluation, which is no part of an iteration.
    meeting_s: a meeting.
    silence_s: a member that sends nothing, heartbeats included, for so long is lost.
    replacements: of one worker, in a run.
    tensor_bytes: largest tensor, in bytes of float32.
    largest: of the values that a member brings, by magnitude, running statistics included.
    queue_bytes: of one member's messages that wait to be received.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    join_s: Seconds = 120.0
    compute_s: Seconds = 600.0
    evaluate_s: Seconds = 600.0
    meeting_s: Seconds = 300.0
    silence_s: Annotated[float, Field(ge=1, le=600)] = 10.0
    replacements: PositiveInt = 3
    tensor_bytes: Annotated[int, Field(ge=2**10, le=2**33)] = 2**30
    largest: Annotated[PositiveFloat, Field(le=FINITE)] = 1e6
    queue_bytes: Annotated[int, Field(ge=2**20, le=2**36)] = 2**32


class Dds(BaseModel):
    """Where members find each other on Cyclone DDS. What is not given is drawn, or the loopback
    interface, where all members start together.

    Attributes
    ----------
    domain: its number.
    run: name that no other run in the domain has, such as 16 random letters.
    interface: name or address of each member's network interface.
    peers: addresses of the other hosts, where multicast does not reach.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    domain: NonNegativeInt | None = None
    run: str = ""
    interface: str | None = None
    peers: tuple[str, ...] = ()


class LiveSettings(BaseModel):
    """The content of the file.

    Attributes
    ----------
    training: see :class:`testbed.training.recipe.Recipe`; :data:`USUAL` may be left out, and
        ``networks``: real links are what they are.
    network: shape the links between the members by these rates, on this machine alone; null for
        links as they are. Nothing that travels is scaled, and ``efficiency`` is for models of
        networks: these carry real packets.
    own: one's own model and data, instead of the recipe's.
    order: sums where no server is: ``plan``, partial sums on the way, or ``rank``, all payloads
        side by side to the end and then added as the trainer adds them, which costs their bytes. A
        server adds in the order of the ranks whatever this says.
    statistics: running statistics (BatchNorm) are the ``mean`` over the members after each
        meeting, or each worker's ``own``, where no server keeps the model.
    worst: the server looks at each new model before it takes effect. If its loss is more than so
        many times that of the model before, or of the initial one where this is more, whose change
        alone makes such a model has sent what cannot be; if nobody's does, the old model stays. A
        look is an evaluation, of one's own by what ``evaluate`` gives as ``loss``; null for none.
    on_loss: when a worker is lost, late or sends what cannot be, ``stop`` with an error,
        ``continue`` without it, or ``replace`` it where its process died or hangs: another one
        takes the server's present model and begins the worker's data anew. Without a server or the
        coordinator all stops.
    begin_with: the run begins when so many workers are there, and the others take part from when
        they come, as one that replaces another does; null for all.
    iteration_s: seconds that each worker's iterations take at least, by rank, from the first again
        after the last, so that policies are compared on the same times; empty for none. Of
        ``training.uneven`` workers are slowed by their factors: after an iteration of c seconds a
        worker sleeps (factor - 1) c.
    limits: see :class:`Limits`.
    state: folder for snapshots, from which the same command goes on; null for none.
    snapshot_every: rounds between two.
    kept: the latest snapshots that stay; one member may be one behind the others.
    output: folder for logs, rows (``rows.jsonl``, as they come) and the final ``model.pt``.
    addresses: ``tcp://host:port`` by member. Where members are on several machines, the
        coordinator needs one; others listen at any free port.
    dds: messages travel over Cyclone DDS, see :class:`Dds`; null for ZeroMQ over TCP.
    keys: folder with the keys of all members, by which connections are encrypted and
        authenticated; where other hosts reach the members, there must be one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    training: Recipe
    network: Link | None = None
    own: Own | None = None
    order: Literal["plan", "rank"] = "plan"
    statistics: Literal["mean", "own"] = "mean"
    worst: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    on_loss: Literal["stop", "continue", "replace"] = "stop"
    begin_with: PositiveInt | None = None
    iteration_s: tuple[Annotated[tuple[Seconds, ...], Field(min_length=1)], ...] = ()
    limits: Limits = Limits()
    state: Path | None = None
    snapshot_every: PositiveInt = 1
    kept: Annotated[int, Field(ge=2)] = 3
    output: Path
    addresses: dict[str, str] = {}
    dds: Dds | None = None
    keys: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("training"), dict):
            return given
        training = given["training"]
        if "networks" in training:
            raise ValueError("training.networks: leave it out, `network` says what links are like")
        usual = USUAL | (OWN if given.get("own") else {})
        shaped = given.get("network")
        case, link = ("shaped links", shaped) if shaped else ("real links", dict(lan=1.0, wan=1.0))
        return given | {"training": usual | training | {"networks": {case: link}}}

    @field_validator("addresses")
    @classmethod
    def _well_formed(cls, addresses: dict[str, str]) -> dict[str, str]:
        for member, address in addresses.items():
            if not ADDRESS.match(address):
                raise ValueError(f"{member} must be at tcp://host:port, not {address!r}")
        return addresses

    @model_validator(mode="after")
    def _can_run(self, info: ValidationInfo) -> Self:
        if not (info.context or {}).get("checked"):
            check(self)
        for field in ("addresses", "network"):
            if self.dds and getattr(self, field):
                raise ValueError(f"{field}: is of connections over TCP, and so not with dds")
        for name in self.addresses:
            if name not in self.members:
                known = ", ".join(self.members)
                raise ValueError(f"addresses: no member {name!r}; there are: {known}")
        hosts = {address.rpartition(":")[0] for address in self.addresses.values()}
        beyond = self.dds is not None and bool(self.dds.interface or self.dds.peers)
        # Shaped links are in namespaces of this machine, which nobody else reaches.
        beyond |= bool(hosts - HERE) and self.network is None or len(hosts) > 1
        if beyond and self.keys is None:
            raise ValueError(
                "keys: name a folder, since other hosts reach the members; --make-keys fills it"
            )
        return self

    # What follows from it ----------------------------------------------------------------------

    @cached_property
    def topology(self) -> Topology:
        recipe, link = self.training, next(iter(self.training.networks.values()))
        if recipe.cluster == "star":
            return flat(sum(recipe.workers), link)
        return topology(recipe.workers, link)

    @cached_property
    def exchange(self) -> Exchange:
        part = self.training.exchange
        return exchange.load(part.name, **part.parameters)

    def policy(self) -> Policy:
        """A new one."""
        return self.training.policy()

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """Nodes of the topology, by rank."""
        return tuple(int(node) for node in self.topology.workers)

    @property
    def spare(self) -> int:
        """How many workers may come later."""
        return len(self.workers) - (self.begin_with or len(self.workers))

    @cached_property
    def groups(self) -> list[int]:
        """The group of each worker, by rank, as policies are told."""
        inner = self.exchange.groups(self.topology)[0]
        of = {node: number for number, group in enumerate(inner) for node in group}
        return [of[node] for node in self.workers]

    @cached_property
    def servers(self) -> tuple[int, ...]:
        """Nodes that hold payloads of others, the central one first."""
        plan = self.exchange(self.topology)
        there = {*plan.src.tolist(), *plan.dst.tolist()} - set(self.workers)
        return tuple(int(node) for node in self.topology.servers if int(node) in there)

    def partners(self, node: int) -> set[str]:
        """Names of the members that ``node`` may exchange anything with, whoever meets: those of
        the whole plan where a server stands between all others, else everybody else."""
        names, plan = self.topology.node_names, self.exchange(self.topology)
        if self.exchange.whole:
            found = {*self.servers, *self.workers}
        else:
            found = {*plan.dst[plan.src == node].tolist(), *plan.src[plan.dst == node].tolist()}
        return {names[other] for other in found - {node}}

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Names of all processes of the run."""
        nodes = (*self.servers, *self.workers)
        return (COORDINATOR, *(self.topology.node_names[node] for node in nodes))

    @cached_property
    def stepwise(self) -> bool:
        """Whether every round is one gradient of all, so that the trainer is in lockstep, too."""
        policy = self.policy()
        return policy.clock_free and policy.travels == "gradient"

    @cached_property
    def rule(self) -> Aggregation | None:
        """By which the server combines what it decodes of each worker; None for the mean of all
        that come in one codec, which sums have."""
        part, codecs = self.training.aggregation, self.training.codecs
        if part.name == "mean" and not codecs:
            return None
        return aggregation.load(part.name, **part.parameters)

    @property
    def apart(self) -> bool:
        """Whether a server has to know what each worker brings."""
        return self.rule is not None or self.worst is not None

    @cached_property
    def mode(self) -> Literal["sum", "model"]:
        """What comes back from a meeting."""
        at_worker = self.stepwise and self.training.optimizer_at == "worker" and not self.apart
        return "sum" if self.exchange.whole or at_worker else "model"

    def pause_s(self, rank: int, iteration: int, took_s: float) -> float:
        """Seconds that a worker sleeps after its iteration of this number, from 1."""
        least = self._pace(rank, iteration, 0.0)
        return max(0.0, least - took_s) if self.iteration_s else (least - 1) * took_s

    @cached_property
    def _pace(self) -> Stragglers:
        return Trace(self.iteration_s) if self.iteration_s else speeds(self.training, 1.0)

    @property
    def run(self) -> str:
        """Names the configuration, so that snapshots of another one are refused."""
        told = [self.training.model_dump_json(), self.order, self.statistics, self.worst]
        text = json.dumps([*told, self.own and self.own.model_dump_json()])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check(settings: LiveSettings) -> None:
    """Refuse what real nodes cannot run; raises ValueError with the field and the reason."""
    recipe = settings.training
    for number, level in enumerate(recipe.levels):
        for way, part in (("up", level.up), ("down", level.down or IDENTITY)):
            with naming(f"training.levels.{number}.{way}"):
                load_codec(part)
    for rank, part in recipe.codecs.items():
        with naming(f"training.codecs.{rank}"):
            load_codec(part)
    usual = {name: field.default for name, field in Recipe.model_fields.items()}
    usual |= OWN | dict(model=Part(**OWN["model"]))
    for field in OF_RECIPES if settings.own else ():
        if getattr(recipe, field) != usual[field]:
            raise ValueError(f"training.{field}: leave it out, what is trained is your `own`")
    if not settings.own:
        _check_data(recipe)
    with naming("training.aggregation"):
        rule = settings.rule
    with naming("training.fusion"):
        grouping = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)
    with naming("training.synchronization"):
        policy = settings.policy()
    with naming("training.exchange"):
        between = settings.exchange
        between(settings.topology)
    sync, name, workers = recipe.synchronization.name, recipe.exchange.name, sum(recipe.workers)
    depth = len(between.groups(settings.topology))
    if len(recipe.levels) != depth:
        raise ValueError(
            f"training.levels: {name} has {depth} levels, the recipe codecs for "
            f"{len(recipe.levels)}"
        )
    up = [load_codec(level.up) for level in recipe.levels]
    down = [load_codec(level.down or default_down(level)) for level in recipe.levels[:-1]]
    known = apart(between, depth, up[-1])
    keeps = settings.mode == "model"
    _check_codecs(recipe, between, depth)
    for field, holds, why in (
        ("overlap", not recipe.overlap, "must be false: nothing is sent during backward"),
        ("uneven", recipe.uneven is None
         or min(recipe.uneven.sites or [1.0]) * (1 - recipe.uneven.jitter) >= 1,
         "factors below 1 would need faster workers"),
        ("stands_for", recipe.stands_for is None, "must be null: real bytes travel"),
        ("spoiled", recipe.spoiled is None,
         "must be null: workers bring what they learned, and only virtual time tries others"),
        ("accelerator", recipe.accelerator == "cpu", "must be cpu: nodes are CPU processes"),
        ("compute_s", not recipe.compute_s, "real iterations take what they take; `iteration_s` "
         "paces them"),
        ("gradients", recipe.gradients != "vmap",
         "vmap takes the gradients of several workers at once, and a worker has its own"),
        ("fusion", not grouping.needs_costs,
         f"{recipe.fusion.name} weighs costs, which real nodes do not know"),
        ("exchange", between.chunks == 1, "chunks must be 1: messages travel whole"),
        ("exchange", between.overlap, "overlap must be true: phases have no barrier"),
        ("aggregation", rule is None or known,
         f"{recipe.aggregation.name} needs a server that has every worker's values, which "
         f"{name} with {up[-1].name} gives to none"),
        ("optimizer_at", not (between.whole and recipe.optimizer_at == "server"),
         f"must be worker: {name} has no server"),
        ("synchronization", not policy.continues_after_upload
         or policy.travels == "delta" and keeps,
         f"{sync} lets workers compute on while changes travel to a server, and here is none"),
        ("synchronization", not policy.asynchronous or policy.travels == "delta"
         or recipe.optimizer_at == "server", f"{sync} needs optimizer_at: server"),
        ("levels", not (between.whole and depth > 1) or passes(up, down),
         f"{name} adds payloads on their way through all levels, which need one codec that adds"),
        ("levels", not (settings.apart and settings.stepwise and recipe.optimizer_at == "worker")
         or all(level.down in (None, IDENTITY) for level in recipe.levels),
         "down would code the model, with which a server answers that knows what each brings"),
        ("levels", not keeps or up[-1].one_shot,
         f"{up[-1].name} needs several rounds, and a server that keeps the model is no party"),
        ("exchange", not (name == "parameter_server" and between.whole
                          and up[-1].combine == "merge"),
         f"colocated servers cannot merge {up[-1].name}: a shard of a payload is none"),
    ):  # fmt: skip
        if not holds:
            raise ValueError(f"training.{field}: {why}")
    with naming("training.exchange"):
        load_system(recipe.exchange, recipe.levels, settings.topology).check_meetings(policy)
    if settings.worst is not None and not known:
        raise ValueError(f"worst: {name} with {up[-1].name} has no server that knows whose is bad")
    if settings.iteration_s and (recipe.uneven or len(settings.iteration_s) != workers):
        raise ValueError(f"iteration_s: give those of {workers} workers, and no training.uneven")
    if settings.on_loss == "replace" and not keeps:
        raise ValueError("on_loss: replace needs a server that keeps the model")
    if settings.begin_with is not None and settings.on_loss != "replace":
        raise ValueError("begin_with: needs on_loss: replace, by which workers may join")
    if settings.spare < 0:
        raise ValueError(f"begin_with: there are {workers} workers")
    for number, groups in enumerate(between.groups(settings.topology)):
        # Inside, those of a group come together, at the top those of all groups.
        sizes = [len(group) for group in groups]
        for parties in {sum(sizes)} if number == depth - 1 else {*sizes}:
            codecs = [load_codec(recipe.levels[number].up) for _ in range(parties)]
            with naming("training.levels"):
                compression.aggregate(codecs, [torch.linspace(-1, 1, TRIED)] * parties, 0)
    if keeps:
        keepers = between(settings.topology, None, "push").receivers.tolist()
        if len(keepers) != 1 or keepers[0] in settings.workers:
            raise ValueError(f"training.exchange: {name} has no server that could keep the model")
    if settings.state is not None and not (policy.clock_free and policy.together):
        raise ValueError(
            f"state: {sync} has no moment at which all stand still, so it cannot be resumed"
        )
    if settings.state is not None and recipe.seconds:
        raise ValueError("state: a run of so many seconds cannot be resumed; give rounds")
    _check_levels(settings, policy)
    if not settings.own:
        _warn_of_bounds(recipe)


@contextlib.contextmanager
def naming(field: str) -> Iterator[None]:
    """What is refused meanwhile is refused with the field before the reason."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{field}: {error}") from None


def _check_codecs(recipe: Recipe, between: Exchange, depth: int) -> None:
    """Refuse codecs of single workers where no server decodes what each worker sends."""
    name = recipe.exchange.name
    for rank, part in recipe.codecs.items():
        for codec in (load_codec(part), load_codec(recipe.levels[-1].up)):
            if not apart(between, depth, codec):
                raise ValueError(
                    f"training.codecs.{rank}: {name} with {codec.name} has no server that decodes "
                    "what each worker sends; take parameter_server, and codecs of one round that "
                    "add"
                )


def _warn_of_bounds(recipe: Recipe) -> None:
    """Tell of codecs that leave all of the model as it is: their usual bounds are of large models,
    and the run would only seem to compress."""
    parts = {f"levels.{number}.up": level.up for number, level in enumerate(recipe.levels)}
    parts |= {f"codecs.{rank}": part for rank, part in recipe.codecs.items()}
    bounds = {field: getattr(load_codec(part), "lower_bound", 0) for field, part in parts.items()}
    if not any(bounds.values()):
        return
    model = models.make(recipe.model.name, **recipe.model.parameters)
    shapes = models.gradient_shapes(model, norm=recipe.norm)
    sizes = list(map(math.prod, shapes.values()))
    largest = max(sum(sizes[i] for i in group) for group in grouped(recipe, sizes))
    for field, bound in bounds.items():
        if largest < bound:
            log.warning(
                "training.%s: %s sends all of %s as it is, whose largest tensor has %d values, "
                "fewer than lower_bound=%d; give a lower one",
                field, parts[field].name, recipe.model.name, largest, bound,
            )  # fmt: skip


def _check_data(recipe: Recipe) -> None:
    """Refuse what cannot be trained, as far as it is known before any data are read."""
    with naming("training.model"):
        if recipe.model.name not in models.MODELS:
            known = ", ".join(sorted(models.MODELS))
            raise ValueError(f"no model {recipe.model.name!r}; there are: {known}")
        inspect.signature(models.MODELS[recipe.model.name]).bind(**recipe.model.parameters)
    known, name = read_sources(), recipe.dataset
    if name not in known:
        raise ValueError(f"training.dataset: no data set {name!r}; there are: {', '.join(known)}")
    text, limit = name in TEXTS, recipe.limit
    if (len(models.sample_shape(recipe.model.name)) == 1) != text:
        what = "text" if text else "images"
        raise ValueError(f"training.model: {recipe.model.name} is not for {name}, which is {what}")
    if text:
        try:
            check_text(recipe)
        except ValueError as error:
            raise ValueError(f"training.{error}") from None
    for field, holds, why in (
        ("validation", not (text and recipe.validation), f"{name} is text, only images are held "
         "out"),
        ("validation", not (limit and recipe.validation and recipe.validation >= limit),
         f"{recipe.validation} images held out leave none of limit: {limit} to train on"),
        ("words", text or not recipe.words, f"{name} has none"),
    ):  # fmt: skip
        if not holds:
            raise ValueError(f"training.{field}: {why}")


def _check_levels(settings: LiveSettings, policy: Policy) -> None:
    """Try the policy in virtual time: all of its workers must meet now and then."""
    recipe, count = settings.training, len(settings.workers)
    between = getattr(policy, "local_iterations", 1) * getattr(policy, "hub_rounds", 1)
    with naming("training.synchronization"):
        log = play(
            policy,
            Fixed(tuple(1 + rank / 7 for rank in range(count))),
            0.1,
            groups=settings.groups,
            iterations=max(PROBED, MET * between) * count,
        )
    levels = {meeting.sync.level for meeting in log.meetings}
    fewest = min(len(its.sync.bringing) for its in log.meetings if its.sync.bringing)
    if settings.rule is not None and fewest < settings.rule.least:
        raise ValueError(
            f"training.aggregation: {recipe.aggregation.name} needs {settings.rule.least} workers "
            f"that bring something to a meeting, {recipe.synchronization.name} has {fewest}"
        )
    if levels != {GLOBAL} and settings.mode != "model":
        raise ValueError(
            f"training.exchange: {recipe.synchronization.name} averages at several levels, which "
            "needs a server that keeps the models"
        )
    if GLOBAL not in levels:
        raise ValueError(f"training.synchronization: {recipe.synchronization.name} never meets all")


def parse(document: Any, checked: bool = False) -> LiveSettings:
    """The run that plain data describe.

    checked: whether this machine has done :func:`check`, which takes longer than all else.

    Raises ValueError: what is wrong, a line each.
    """
    return documents.validated(LiveSettings, document, checked=checked)


def read(path: str | Path, checked: bool = False) -> LiveSettings:
    """The run that a file describes; raises as :func:`documents.read`."""
    return documents.read(path, partial(parse, checked=checked))
