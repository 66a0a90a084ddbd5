"""Gradients and models on their way: through codecs, along a plan, at one of its nodes.

What is added where and through which codec is as in :meth:`Learner.aggregate`, cut where payloads
travel. Of an exchange with servers every level is a fragment of the plan of its own: what a site's
server gets, it decodes, and encodes anew for the next level. An exchange without servers
(``whole``), or one whose levels all have one codec that adds, is one fragment, in which payloads
add on the way or lie side by side.

Everything here is a generator (:data:`Travel`), so that a node does all tensors at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slowlink.methods import aggregation, compression
from slowlink.methods.aggregation import Aggregation
from slowlink.methods.compression import Compressor, Payload
from slowlink.methods.compression.pieces.packing import check_finite
from slowlink.methods.exchange import Exchange, Plan, Topology
from slowlink.testbed.live.engine.delivery import Travel, along
from slowlink.testbed.live.engine.flow import (
    ANSWER,
    FINITE,
    Algebra,
    Bundles,
    Due,
    Part,
    Refused,
    Sums,
    Value,
    check_range,
)
from slowlink.testbed.prices import default_down, load_codec, passes
from slowlink.testbed.training.learner import Codecs, by_rule, fused, unfused

Mode = Literal["sum", "model"]
"""What comes back from a meeting: the sum of what was brought, or the model of a server that adds
it to its own."""

Order = Literal["plan", "rank"]
"""How payloads that add are summed where no server is: on the way, as the plan says, or side by
side until they arrive, and then in the order of the ranks, as the trainer adds them."""

STATISTICS = -1
"""The key of running statistics."""

DENSE = compression.load("identity")


@dataclass
class Place:
    """What a node knows of the system: where it is, and how things are coded there.

    Attributes
    ----------
    node: its id in the topology.
    groups: of parameters, by index, each of which codecs see as one tensor.
    shapes: of all parameters.
    limit: largest tensor, in bytes of float32.
    largest: of the values that a member brings, by magnitude.
    rule: by which the central server combines what it decodes of each member; None for the weighted
        mean of all as sums have it.
    apart: whether the central server gets what each member brings, and not their sum.
    """

    node: int
    topology: Topology
    exchange: Exchange
    codecs: Codecs
    groups: Sequence[Sequence[int]]
    shapes: Sequence[torch.Size]
    order: Order
    limit: int
    largest: float = FINITE
    rule: Aggregation | None = None
    apart: bool = False
    _plans: dict[tuple, Plan] = field(default_factory=dict)
    _parts: dict[tuple, Part] = field(default_factory=dict)

    @cached_property
    def passes(self) -> bool:
        """Whether servers add payloads and pass on their sum, see :func:`testbed.prices.passes`."""
        levels = self.codecs.levels
        down = [load_codec(level.down or default_down(level)) for level in levels[:-1]]
        return passes([load_codec(level.up) for level in levels], down)

    @cached_property
    def served(self) -> bool:
        """Whether a server adds what workers bring."""
        plan = self.exchange(self.topology)
        nodes = {*plan.src.tolist(), *plan.dst.tolist()}
        return not self.exchange.whole and not nodes <= {int(n) for n in self.topology.workers}

    @property
    def top(self) -> int:
        return len(self.codecs.levels) - 1

    def plan(self, nodes: Sequence[int], phase: str) -> Plan:
        """The plan among these workers, or its ``push`` or ``pull``."""
        key = (tuple(nodes), phase)
        if key not in self._plans:
            self._plans[key] = self.exchange(self.topology, list(nodes), phase)
        return self._plans[key]

    def part(self, nodes: Sequence[int], phase: str, slots: tuple[str, ...] | None) -> Part:
        """This node's transfers of that plan in ``slots`` (None: all)."""
        key = (tuple(nodes), phase, slots)
        if key not in self._parts:
            self._parts[key] = Part(self.plan(nodes, phase), self.node, slots)
        return self._parts[key]

    def shape(self, key: int) -> torch.Size:
        """Of the tensor that travels under ``key``."""
        group = self.groups[key]
        if len(group) == 1:
            return self.shapes[group[0]]
        return torch.Size([sum(self.shapes[i].numel() for i in group)])


@dataclass
class Meeting:
    """One exchange among workers, as one node takes part in it.

    Attributes
    ----------
    bringing, members: nodes of the workers that bring something, and of those that get the result.
    statistics: at the central server by node, the running statistics that each has brought, where
        they come apart.
    """

    place: Place
    mode: Mode
    bringing: Sequence[int]
    members: Sequence[int]

    def __post_init__(self) -> None:
        place = self.place
        self.levels = place.exchange.groups(place.topology, list(self.bringing or self.members))
        self.leveled = not place.exchange.whole and len(self.levels) > 1
        self.fragments = self.leveled and not place.passes
        self.flat = [node for group in self.levels[0] for node in group]
        self.phase = "all" if self.mode == "sum" else "push"
        self.statistics: dict[int, Tensor] = {}
        self._came: dict[int, tuple[Sequence[int], Sequence[Payload]]] = {}
        """By key, what came side by side, to tell whose payload is to blame."""

    # What roles do ----------------------------------------------------------------------------

    def bring(self, tensors: Sequence[Tensor], weight: float, key: int) -> Travel:
        """A worker's part: push its share of the group ``key``; the total in sum mode."""
        one = fused(tensors, self.place.groups[key])
        if self.place.rule is None:
            one = one * weight
        return (yield from self._party(0, one, key))

    def relay(self, level: int, key: int) -> Travel:
        """A site server's part: decode what ``level`` sends and encode it for the next; or only add
        and pass on, where all levels have one codec that adds."""
        place, codec = self.place, self.place.codecs.up(level, self.place.node)
        if not self.fragments:
            rounds = len(codec.payload_bytes(place.shape(key))) if self.mode == "sum" else 1
            for step in range(rounds):
                yield from self._combined(None, key, step, codec, None, self.flat, codec)
            return None
        group = next(
            group
            for group, party in zip(self.levels[level], self._parties(level + 1), strict=True)
            if party == place.node
        )
        slots = (f"push/{level}",)
        combined = yield from self._combined(slots, key, 0, codec, None, group, codec)
        tensor = self._sum_of(codec, combined, group, key)
        total = yield from self._party(level + 1, tensor, key)
        if self.mode == "sum":
            answer = place.codecs.down(level).compress(total, key)
            yield from self._answer((f"pull/{level}",), "all", key, answer)
        return None

    def serve(self, key: int) -> Travel:
        """The central server's part; in model mode it returns the total, if this is a sum."""
        place = self.place
        codec, parties = place.codecs.up(place.top, ANSWER), self._parties(place.top)
        slots = self._top_slots
        if self.mode == "sum":
            for step in range(len(codec.payload_bytes(place.shape(key)))):
                yield from self._combined(slots, key, step, codec, None, parties, codec)
            return None
        combined = yield from self._combined(slots, key, 0, codec, None, parties, codec)
        if place.rule is not None:
            return None
        total = self._sum_of(codec, combined, parties, key)
        return check_finite(total, f"the sum of tensor {key}")

    def by_rule(
        self, weights: Sequence[float], origin: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """The total by parameter, of what the central server has got of each who brings something,
        where it is no sum.

        origin: the server's model, where models were brought.
        """
        vectors, before = [self.brought(node) for node in self.bringing], None
        if origin is not None:
            order = [index for group in self.place.groups for index in group]
            before = torch.cat([origin[index].flatten() for index in order])
        return self.unfused(by_rule(self.place.rule, vectors, weights, before))

    def brought(self, node: int) -> Tensor:
        """All values that this worker has brought, where they come apart, group by group, as its
        own codec decodes them."""
        codec, parts = self.place.codecs.up(self.place.top, node), []
        for key in range(len(self.place.groups)):
            parties, payloads = self._came[key]
            payload = payloads[parties.index(node)]
            make = partial(codec.decompress, payload)
            parts.append(self._checked(make, codec, [node], [payload]).flatten())
        return torch.cat(parts)

    def unfused(self, vector: Tensor) -> list[Tensor]:
        """By parameter, what is group by group in one vector."""
        place = self.place
        order = [index for group in place.groups for index in group]
        pieces = unfused(vector, order, place.shapes)
        return [pieces[index] for index in range(len(place.shapes))]

    def hand_out(self, parameter: Tensor, index: int) -> Travel:
        """The central server's part of the way back of a model: one parameter."""
        place = self.place
        payload = place.codecs.weights(place.top).compress(parameter, index)
        yield from self._answer(self._pull_slots(place.top), "pull", index, payload)

    def pass_down(self, level: int, index: int) -> Travel:
        """A site server's part of that: from ``level`` + 1 down to ``level``."""
        codecs = self.place.codecs
        parameter = yield from self._heard(level + 1, "pull", index, codecs.weights(level + 1))
        payload = codecs.weights(level).compress(parameter, index)
        yield from self._answer(self._pull_slots(level), "pull", index, payload)

    def take(self, index: int) -> Travel:
        """A worker's part of that: the parameter as it arrives."""
        codec = self.place.codecs.weights(0)
        parameter = yield from self._heard(0, "pull", index, codec)
        return parameter.view(self.place.shapes[index])

    def mean(self, vector: Tensor | None) -> Travel:
        """The mean over all who bring a float32 vector, by plain sums along the whole plan, or what
        the server's rule makes of all; a node that brings none gives None, and who gets none back
        returns None."""
        place, own, count = self.place, None, len(self.bringing)
        part = place.part(self.bringing, self.phase, None)
        due = Due(DENSE.name, place.limit, largest=place.largest)
        algebra = Bundles(part, due, part.carried(False)) if place.apart else Sums(part, due)
        if vector is not None:
            share = vector if place.apart else vector / count
            own = self._own(algebra, DENSE.compress(share, STATISTICS))
        tag = (self.phase, STATISTICS, 0)
        value = yield from along(tag, part, algebra, own)
        if self.mode == "model":
            part = place.part(self.members, "pull", None)
            tag = ("pull", STATISTICS, 0)
            # The server answers with what it has, everybody else passes it on.
            gives = None
            if part.leaving and not part.arriving:
                gives = self._mean_of(algebra, value)
            algebra = Sums(part, Due(DENSE.name, place.limit))
            value = yield from along(tag, part, algebra, gives and algebra.own(gives))
        if not value:
            return None
        return DENSE.decompress(algebra.payload(value))

    def _mean_of(self, algebra: Algebra, value: Value) -> Payload:
        """The answer to vectors that have come, as their sum or apart."""
        if isinstance(algebra, Sums):
            return algebra.payload(value)
        payloads = algebra.payloads(value)
        for node in self.bringing:
            make, payload = partial(DENSE.decompress, payloads[node]), payloads[node]
            self.statistics[node] = self._checked(make, DENSE, [node], [payload])
        vectors, rule = list(self.statistics.values()), self.place.rule or aggregation.load("mean")
        equal = [1 / len(vectors)] * len(vectors)
        return DENSE.compress(by_rule(rule, vectors, equal), STATISTICS)

    # Levels --------------------------------------------------------------------------------------

    def _parties(self, level: int) -> list[int]:
        """The nodes that push at ``level``, in the order in which they are added."""
        if self.place.exchange.whole:
            return self.flat
        return [node for group in self.levels[level] for node in group]

    @property
    def _top_slots(self) -> tuple[str, ...] | None:
        if not self.fragments:
            return None
        top = self.place.top
        return (f"push/{top}",) if self.mode == "model" else (f"push/{top}", f"pull/{top}")

    def _pull_slots(self, level: int) -> tuple[str, ...] | None:
        return (f"pull/{level}",) if self.leveled else None

    def _party(self, level: int, tensor: Tensor, key: int) -> Travel:
        """Push ``tensor`` at ``level``; in sum mode, what comes back."""
        place = self.place
        top = place.top if self.fragments else 0
        codec = place.codecs.up(place.top if level == top else level, place.node)
        if level < top:
            payload = codec.compress(tensor, key)
            yield from self._push((f"push/{level}",), key, codec, payload)
            if self.mode == "model":
                return None
            total = yield from self._heard(level, "all", key, place.codecs.down(level))
            return total.view(place.shape(key))
        if self.mode == "model":
            yield from self._push(self._top_slots, key, codec, codec.compress(tensor, key))
            return None
        encoding = codec.encode(tensor, key)
        payload, how = next(encoding)
        centre = place.codecs.up(place.top, ANSWER)
        for step in count():
            if how != codec.combine:
                raise ValueError(f"{codec.name} combines by {how} in round {step}")
            combined = yield from self._combined(
                self._top_slots, key, step, codec, payload, self._parties(place.top), centre
            )
            came = self._came.pop(key, ([], []))
            going, found = self._checked(partial(_advanced, encoding, combined), codec, *came)
            if not going:
                return found
            payload, how = found

    def _push(self, slots, key: int, codec: Compressor, payload: Payload) -> Travel:
        part = self.place.part(self.bringing, self.phase, slots)
        algebra = self._algebra(part, codec, key, 0)
        tag = (_fragment(self.phase, slots), key, 0)
        yield from along(tag, part, algebra, self._own(algebra, payload))

    def _combined(
        self,
        slots: tuple[str, ...] | None,
        key: int,
        step: int,
        codec: Compressor,
        payload: Payload | None,
        parties: Sequence[int],
        centre: Compressor,
    ) -> Travel:
        """What the payloads of ``parties`` combine to, as this node ends with it."""
        place = self.place
        part = place.part(self.bringing, self.phase, slots)
        algebra = self._algebra(part, codec, key, step)
        own = None if payload is None else self._own(algebra, payload)
        turn = None
        if codec.combine == "merge" and own is None:

            def turn(value: Value) -> Value:
                payloads = algebra.payloads(value)
                ordered = [payloads[node] for node in parties]
                merged = self._checked(lambda: centre.merge(ordered, key), centre, parties, ordered)
                return algebra.own(merged, ANSWER)

        tag = (_fragment(self.phase, slots), key, step)
        value = yield from along(tag, part, algebra, own, turn)
        if isinstance(algebra, Sums):
            return algebra.payload(value)
        payloads = algebra.payloads(value)
        if ANSWER in payloads:
            return payloads[ANSWER]
        ordered = [payloads[node] for node in parties]
        self._came[key] = parties, ordered
        if place.rule is not None:
            return None
        if codec.combine == "sum":
            return self._nested(dict(zip(parties, ordered, strict=True)))
        how = codec.combine
        return self._checked(
            lambda: compression.combine_payloads(centre, ordered, how, key),
            centre,
            parties,
            ordered,
        )

    def _algebra(self, part: Part, codec: Compressor, key: int, step: int) -> Algebra:
        due = self._due(codec, key, step)
        adds = codec.combine == "sum" and not self.side_by_side
        if adds:
            return Sums(part, due)
        own, place = {}, self.place
        if place.apart:  # each comes straight from who sends it, in that one's codec
            nodes = {part.src[t] for t in part.arriving}
            own = {n: self._due(place.codecs.up(place.top, n), key, step) for n in nodes}
        return Bundles(part, due, part.carried(codec.combine == "merge"), own)

    def _due(self, codec: Compressor, key: int, step: int) -> Due:
        """What a payload of this codec may be in this round of communication."""
        place, shape = self.place, self.place.shape(key)
        rounds = codec.payload_bytes(shape)
        if step >= len(rounds):
            raise ValueError(f"{codec.name}: more than {len(rounds)} rounds")
        return Due(codec.name, place.limit, tuple(shape), rounds[step], place.largest)

    @property
    def side_by_side(self) -> bool:
        """Whether payloads that would add travel side by side: where nothing is added on the way
        anyhow, sums are the same everywhere only if all take them in the order of the ranks. Or
        where the server has to know what each member brings."""
        place = self.place
        if place.apart or place.served:
            return place.apart
        return place.order == "rank" or not len(place.plan(self.bringing, "all").dep_idx)

    def _own(self, algebra: Algebra, payload: Payload) -> Value:
        if isinstance(algebra, Sums):
            return algebra.own(payload)
        return algebra.own(payload, self.place.node)

    def _nested(self, payloads: dict[int, Payload]) -> Payload:
        """The sum, group by group and level by level, as the trainer takes it."""
        held = payloads
        for level, groups in enumerate(self.levels):
            above = self.levels[level + 1] if level + 1 < len(self.levels) else [[ANSWER]]
            if level + 1 == len(self.levels):
                groups = [[node for group in groups for node in group]]
            parents = [node for group in above for node in group]
            held = {
                parent: compression.add_payloads([held[node] for node in group])
                for group, parent in zip(groups, parents, strict=True)
            }
        (total,) = held.values()
        return total

    # The way back --------------------------------------------------------------------------------

    def _answer(
        self, slots: tuple[str, ...] | None, phase: str, key: int, payload: Payload
    ) -> Travel:
        part = self.place.part(self.members, phase, slots)
        algebra = Bundles(part, Due(payload.codec, self.place.limit), part.answered)
        own = algebra.own(payload, ANSWER)
        yield from along((_fragment(phase, slots), key, 0), part, algebra, own)

    def _heard(self, level: int, phase: str, key: int, codec: Compressor) -> Travel:
        slots = self._pull_slots(level)
        part = self.place.part(self.members, phase, slots)
        shape = self.place.shapes[key] if phase == "pull" else self.place.shape(key)
        algebra = Bundles(part, Due(codec.name, self.place.limit, tuple(shape)), part.answered)
        value = yield from along((_fragment(phase, slots), key, 0), part, algebra, None)
        (sender,) = {part.src[t] for t in part.arriving}
        payload = algebra.payloads(value)[ANSWER]
        make = partial(codec.decompress, payload)
        return self._checked(make, codec, [sender], [payload], FINITE)

    # What cannot be -------------------------------------------------------------------------------

    def _sum_of(self, codec: Compressor, combined, parties: Sequence[int], key: int) -> Tensor:
        """The tensor that ``combined`` stands for."""
        parts = combined if isinstance(combined, list) else [combined]
        shape = self.place.shape(key)
        total = self._checked(
            lambda: sum(codec.decompress(part) for part in parts), codec, parties, parts
        )
        if total.numel() != shape.numel():
            raise ValueError(f"tensor {key} came with {total.numel()} values, not {shape.numel()}")
        return total.view(shape)

    def _checked(
        self,
        make: Callable[[], Any],
        codec: Compressor,
        parties: Sequence[int],
        payloads: Sequence[Payload],
        largest: float | None = None,
    ) -> Any:
        """What ``make`` makes of payloads; where it cannot, or values are too large, whose payload
        is to blame."""
        largest = self.place.largest if largest is None else largest
        try:
            made = make()
        except ValueError as error:
            made, why = None, error
        tensor = made[1] if isinstance(made, tuple) else made
        if made is not None and (not isinstance(tensor, Tensor) or _extreme(tensor) <= largest):
            return made
        extremes = {}
        for node, payload in zip(parties, payloads, strict=False):
            try:
                tensor = codec.decompress(payload)
            except ValueError as error:
                raise Refused(node, str(error)) from None
            extremes[node] = _extreme(tensor)
            check_range(node, -extremes[node], extremes[node], FINITE)
        if made is None:
            raise why
        if extremes:
            worst = max(extremes, key=extremes.get)
            check_range(worst, -extremes[worst], extremes[worst], largest / len(extremes))
        raise ValueError(f"{codec.name}: the sum is too large, though no summand is to blame")


def _extreme(tensor: Tensor) -> float:
    """The largest magnitude; NaN if a value is NaN."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.aminmax()
    return max(-float(low), float(high)) if low == low else math.nan


def _fragment(phase: str, slots: tuple[str, ...] | None) -> str:
    return ":".join((phase, *(slots or ())))


def _advanced(encoding: compression.Encoding, combined) -> tuple[bool, Any]:
    """Whether another round follows, and its payload, or else the aggregate."""
    try:
        return True, encoding.send(combined)
    except StopIteration as stop:
        return False, stop.value


def as_vector(tensors: Sequence[Tensor]) -> Tensor:
    """All values of ``tensors`` in one flat float32 vector."""
    if not tensors:
        return torch.from_numpy(np.zeros(0, np.float32))
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])
