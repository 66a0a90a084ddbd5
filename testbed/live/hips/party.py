"""The computation of one node: the virtual-time trainer's arithmetic, cut where payloads travel.

A :class:`Party` is the trainer's own :class:`~testbed.training.learner.Learner` with the pieces of
its aggregation one by one, so that nodes which pass on payloads come to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slowlink.methods import compression, exchange
from slowlink.methods.compression import Combine, Compressor, Encoding, Payload
from slowlink.methods.compression.pieces.packing import check_finite
from slowlink.testbed.prices import load_codec, passes
from slowlink.testbed.training import models, trainer
from slowlink.testbed.training.datasets import Dataset, load_dataset
from slowlink.testbed.training.learner import IDENTITY, Learner, Replica, fused, unfused
from slowlink.testbed.training.recipe import Recipe

Combined = Payload | list[Payload]
DENSE = compression.load("identity")
"""Carries models whole."""


def check(recipe: Recipe) -> None:
    """Refuse what cannot run on real nodes.

    Raises
    ------
    ValueError
        Names the field of the recipe and what it may be.
    """
    for number, level in enumerate(recipe.levels):
        for way, part in (("up", level.up), ("down", level.down or IDENTITY)):
            try:
                compression.load(part.name, **part.parameters)
            except ValueError as error:
                raise ValueError(f"levels.{number}.{way}: {error}") from None
    exchanges = {"hips": 2, "parameter_server": 1}
    depth = exchanges.get(recipe.exchange.name)
    policy, level = recipe.synchronization, recipe.levels[-1].up
    for field, holds, allowed in (
        ("exchange", depth is not None, "hips or parameter_server"),
        ("exchange.shards", recipe.exchange.parameters.get("shards", "central") == "central",
         "central"),
        ("levels", len(recipe.levels) == depth, f"a list of {depth} for {recipe.exchange.name}"),
        ("levels", not _added(recipe) or level.name in ("identity", "fp16"),
         "in different codecs, or identity or fp16, which a server may decode and code anew"),
        ("synchronization", policy.name in ("bsp", "mixed"), "bsp or mixed"),
        ("synchronization.local_iterations", policy.parameters.get("local_iterations", 1) == 1,
         "1: gradients travel"),
        ("optimizer_at", policy.name == "bsp" or recipe.optimizer_at == "server",
         "server for mixed"),
        ("exchange", policy.name == "bsp" or depth == 2, "hips for mixed"),
        ("rounds", recipe.rounds is not None, "a number, instead of seconds"),
        ("cluster", recipe.cluster == "sites", "sites"),
        ("overlap", not recipe.overlap, "false"),
        ("uneven", recipe.uneven is None, "null: nodes are as fast as they are"),
        ("stands_for", recipe.stands_for is None, "null: real bytes travel"),
        ("optimizer_at",
         recipe.optimizer_at == "worker"
         or compression.load(level.name, **level.parameters).one_shot,
         f"worker for {level.name}, which needs several rounds"),
    ):  # fmt: skip
        if not holds:
            raise ValueError(f"{field}: must be {allowed}")


def _added(recipe: Recipe) -> bool:
    """Whether payloads would be added by several servers in a row, as the trainer does."""
    parts = [level.up for level in recipe.levels]
    return len(parts) > 1 and passes([load_codec(part) for part in parts], [])


def make(recipe: Recipe, load: Callable[..., Dataset] = load_dataset) -> Party:
    """The party that any node of a run of ``recipe`` is."""
    check(recipe)
    torch.set_num_threads(recipe.torch_threads)
    torch.set_deterministic_debug_mode("warn")  # the longer name also imports the compiler
    limits = dict(limit=recipe.limit, test_limit=recipe.test_limit)
    dataset = load(recipe.dataset, **limits, steps=recipe.steps, words=recipe.words)
    part = trainer.fitting(recipe.model, dataset)
    model = models.make(part.name, recipe.seed, **part.parameters)
    between = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
    sites = trainer.topology(recipe.workers, next(iter(recipe.networks.values())))
    return Party(recipe, model, dataset, between, sites)


class Party(Learner):
    """A node's codecs, model and, of a worker, data; nodes are known by name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.numbers = {name: i for i, name in enumerate(self.topology.node_names)}
        self.worker_names = [self.topology.node_names[node] for node in self.nodes]
        self.outermost = len(self.recipe.levels) - 1
        self.at_server = self.recipe.optimizer_at == "server"
        self.initial = self.server

    def up(self, level: int, name: str) -> Compressor:
        """The codec by which ``name`` pushes at ``level``, or combines what is pushed to it."""
        centre = name == self.topology.node_names[self.topology.servers[0]]
        return self.codec.up(level, -1 if centre else self.numbers[name])

    # Gradients -----------------------------------------------------------------------------------

    def fused(self, gradient: Sequence[Tensor], weight: float) -> Iterator[Tensor]:
        """By key, what a worker of this weight in the mean pushes."""
        for group in self.groups:
            yield fused(gradient, group) * weight

    def unfused(self, totals: dict[int, Tensor]) -> list[Tensor]:
        """The aggregate, one tensor a parameter, from those by key."""
        out: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        for key, group in enumerate(self.groups):
            for i, piece in unfused(totals[key], group, self.shapes).items():
                out[i] = piece
        return out

    def shape(self, key: int) -> torch.Size:
        """Shape of the tensor that travels under ``key``."""
        group = self.groups[key]
        shapes = [self.parameters[i].shape for i in group]
        return shapes[0] if len(group) == 1 else torch.Size([sum(s.numel() for s in shapes)])

    def summed(self, name: str, payloads: Sequence[Payload], key: int) -> Tensor:
        """The sum that a site's server ``name`` makes of its workers' pushes, in their order."""
        codec = self.up(0, name)
        combined = compression.combine_payloads(codec, payloads, codec.combine, key)
        parts = combined if isinstance(combined, list) else [combined]
        return sum(codec.decompress(part, self.device) for part in parts)

    def answered(self, total: Tensor, key: int) -> tuple[Payload, Tensor]:
        """The payload by which a site's server passes on an aggregate, and what workers decode."""
        payload = self.codec.down(0).compress(total, key)
        return payload, self.codec.down(0).decompress(payload, self.device).view_as(total)

    def heard(self, payload: Payload, key: int) -> Tensor:
        """The worker's reading of :meth:`answered`."""
        return self.codec.down(0).decompress(payload, self.device).view(self.shape(key))

    def listen(self, key: int) -> Listener:
        """A reader of what outermost parties get, which pushes nothing itself."""
        spec = self.recipe.levels[self.outermost].up
        return Listener(self.codec("listen", self.outermost, -1, spec), self, key)

    # Models --------------------------------------------------------------------------------------

    def lowered(self, level: int, parameter: Tensor, number: int) -> Payload:
        """Encode the parameter of this number for its way down through ``level``."""
        return self.codec.weights(level).compress(parameter, number)

    def lifted(self, level: int, payload: Payload) -> Tensor:
        """Decode what :meth:`lowered` has encoded."""
        return self.codec.weights(level).decompress(payload, self.device)


@dataclass
class Listener:
    """One key's way back at the outermost level, read by a node that pushes nothing.

    One-shot codecs are simply decoded. Codecs with several rounds are told zeros, which add
    nothing to a sum; what that party would push is dropped.
    """

    codec: Compressor
    party: Party
    key: int
    encoding: Encoding | None = None

    def hear(self, combined: Combined) -> Tensor | None:
        """The aggregate, once it is complete."""
        if self.codec.one_shot:
            return decoded(self.codec, combined, self.party.device).view(self.party.shape(self.key))
        if self.encoding is None:
            zeros = torch.zeros(self.party.shape(self.key), device=self.party.device)
            self.encoding = self.codec.encode(zeros, self.key)
            next(self.encoding)
        return advanced(self.encoding, combined)[1]


def decoded(codec: Compressor, combined: Combined, device: torch.device) -> Tensor:
    """How every party of a one-shot codec reads the answer, see ``Compressor.encode``."""
    if not isinstance(combined, list):
        return codec.decompress(combined, device)
    total = codec.decompress(combined[0], device)
    for payload in combined[1:]:
        total += codec.decompress(payload, device)
    return check_finite(total, f"{codec.name}: sum")


def advanced(
    encoding: Encoding, combined: Combined
) -> tuple[tuple[Payload, Combine] | None, Tensor | None]:
    """What the party sends next, or else the aggregate."""
    try:
        return encoding.send(combined), None
    except StopIteration as stop:
        return None, stop.value


def pack(replica: Replica) -> dict[str, Any]:
    """A replica as plain data; what changes in place is copied."""
    return vars(replica) | {"buffers": [buffer.clone() for buffer in replica.buffers]}


def unpack(state: dict[str, Any]) -> Replica:
    """The replica of :func:`pack`."""
    return Replica(**state | {"buffers": [buffer.clone() for buffer in state["buffers"]]})
