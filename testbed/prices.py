"""The price list: what a round of a system costs, whoever asks.

A :class:`System` is an exchange with its codecs on a network. It says how many bytes the message in
every slot of the plan has (:meth:`System.sizes`), who codes what where (:meth:`System.gradient`,
:meth:`System.model`), how long transfers take (:meth:`System.communicate_s`), and what of it
overlaps with computing (:meth:`System.costs`). The trainer's clock, the matrix, advice, the search
for groups, the methods' cards and GeoMX's tables all ask it.

Who codes what where:

- A worker encodes what it sends, and decodes what comes back.
- Payloads that add (``sum``) are added as they arrive, by the workers of a ring and by a server
  alike. Adding is part of receiving: nobody decodes on the way, not even between levels, if all of
  them have one codec.
- Payloads that merge (``merge``) are decoded, one after the other, by the server that answers with
  their sum; colocated servers share that work as they share the vector. The answer is as large as
  the codec says (``answer_bytes``): dense for two_bit, one bit a value for a vote of signs, the
  union of all indices for sparse values; not so many times a payload as there are parties. Where
  no server answers, everybody gets all payloads and decodes them.
- Payloads that only decode (``gather``) are passed on by a server as they are, and decoded by
  everybody who gets them. The server itself decodes nothing: what it would sum nobody asks for.
- Between levels in different codecs a site's server decodes what its group sent (one sum, or each
  payload), encodes the result for the next level, and codes the answer the other way round.
- Where the server keeps the model (policies that send changes, an optimizer at the server), it
  decodes what is pushed, and the model comes back in codecs of its own.

Parties of a level work side by side, so the largest group's server tells the time. What servers
code counts as communication, for it keeps the message from its receiver.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from slowlink.methods import compression, exchange, method_name
from slowlink.methods.compression import Compressor, Work
from slowlink.methods.exchange import Exchange, Plan, PlanPart, Topology, in_pieces
from slowlink.methods.fusion import Cost, Costs, by_values
from slowlink.methods.synchronization import Policy
from slowlink.testbed import network
from slowlink.testbed.cache import beginning, cached, sources
from slowlink.testbed.network import Alone, simulate
from slowlink.testbed.network.counting import complete
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.pipeline import Layers
from slowlink.testbed.training.recipe import CodecScope, Level, Part

STEP = 4.0
"""Plans are simulated for messages of STEP ** 0, 1, 2 … bytes and interpolated between, with more
sizes wherever a line is off by more than BENT: other links can limit small messages than large."""

BENT = 5e-4

LEAST = STEP**-8
"""Scaled bytes below which time is taken for one line. Below one byte it is not: where the fastest
links are as many times as fast as the slowest, that is a message of thousands of bytes."""

BETWEEN = 0.5, 0.29, 0.77
"""Where on a line times are held against it, in parts of the logarithm of sizes: not evenly, as
times that jump with the pieces of a message come back to one line again and again."""

RATIO = 0.9
"""Shares of the largest slot's bytes are powers of this, or interpolated between two of them; those
that halves and quarters of values make are simulated as they are, since time may jump nearby."""

RATE = 1e9
"""bit/s of the fastest links with which networks are simulated: if all links are so many times as
fast, time is that of so many times fewer bytes."""

REMEMBERED = 512
"""Tables of what the tensors of a model send, and of what coding them takes, that are kept for
other networks."""

DENSE = Part(name="identity")

K, V = TypeVar("K"), TypeVar("V")

Sizes = dict[str, float]
"""Bytes of the whole message by slot."""

Groups = list[list[list[int]]]
"""Who meets, level by level, as :meth:`Exchange.groups` lists it."""


def load_codec(part: Part, parties: int | None = None) -> Compressor:
    """The codec ``part``, among ``parties`` if their number is given."""
    part = part if parties is None else among(part, parties)
    return compression.load(part.name, **part.parameters)


def among(part: Part, parties: int) -> Part:
    """The codec ``part``; one that must know how many parties merge is told."""
    if not hasattr(load_codec(part), "parties"):
        return part
    return Part(name=part.name, **({"parties": parties} | part.parameters))


def check_pair(exchanger: Exchange, codec: Compressor) -> None:
    """Refuse a pair of exchange and codec that makes no sense, with the reason."""
    carries = exchanger.combines | ({"merge"} if "gather" in exchanger.combines else set())
    if codec.combine not in carries:
        name = method_name(exchanger)
        raise ValueError(
            f"{name} cannot carry {codec.name}: its payloads combine by {codec.combine}, and "
            f"{name} can only {', '.join(sorted(exchanger.combines))}"
        )


@cache
def default_down(level: Level) -> Part:
    """The codec in which an inner level answers where its recipe names none."""
    # A codec whose payloads add can answer in kind; a sparsifier's aggregate comes back dense.
    return level.up if load_codec(level.up).combine == "sum" else DENSE


def passes(up: Sequence[Compressor], down: Sequence[Compressor]) -> bool:
    """Whether payloads add all the way to the last server and their sum comes all the way back, in
    one codec, so that only workers code.

    Parameters
    ----------
    up: codecs of all levels. down: those in which the inner ones answer.
    """
    return up[-1].combine == "sum" and all(codec == up[-1] for codec in (*up, *down))


def load_system(
    part: Part,
    levels: Sequence[Level],
    topology: Topology,
    efficiency: float = 1.0,
    overhead_s: float = 0.0,
    pieces: int = 1,
) -> System:
    """The system that these names stand for; see :class:`System`.

    Where the exchange finds more levels in the network, the last one's codecs stand for the rest.

    Raises
    ------
    ValueError
        What cannot be combined; says why.
    """
    exchanger = exchange.load(part.name, **part.parameters)
    groups = exchanger.groups(topology)
    depth, parties = len(groups), sum(map(len, groups[-1]))
    if len(levels) > depth:
        raise ValueError(
            f"{part.name} has {depth} level{'s' * (depth > 1)} on this network, "
            f"the method codecs for {len(levels)}"
        )
    levels = [*levels, *levels[-1:] * (depth - len(levels))]
    return System(
        exchanger,
        [load_codec(level.up, parties) for level in levels],
        topology,
        down=[load_codec(level.down or default_down(level)) for level in levels[:-1]],
        model_down=[load_codec(level.down or DENSE) for level in levels],
        efficiency=efficiency,
        overhead_s=overhead_s,
        pieces=pieces,
    )


@dataclass(frozen=True)
class Step:
    """``times`` payloads go through ``codec`` at one place, one after the other.

    Each has the ``share`` of the message's values that this place serves.
    """

    place: Literal["worker", "site", "centre"]
    what: Literal["encode", "decode"]
    codec: Compressor
    times: int = 1
    share: float = 1.0

    @property
    def work(self) -> Work:
        return self.codec.encode_work if self.what == "encode" else self.codec.decode_work

    def seconds(self, device: Device, values: float | np.ndarray) -> float | np.ndarray:
        """How long it takes for a message of so many values; an array for several."""
        if isinstance(values, np.ndarray):  # size by size, as a codec's work may depend on it
            sizes, which = np.unique(values, return_inverse=True)
            return np.array([self.seconds(device, size) for size in sizes.tolist()])[which]
        code = device.encode_s if self.what == "encode" else device.decode_s
        return self.times * code(self.codec, 4 * self.share * values)


class System:
    """An exchange with its codecs on a network.

    Parameters
    ----------
    up: codecs towards the server, level by level, innermost first.
    down: codecs in which inner levels answer; those of ``up`` if None.
    model_down: codecs of all levels in which a server hands out its model; dense if None.
    efficiency: share of the links' rates that payload gets.
    overhead_s: seconds that each round of communication takes besides the transfers.
    pieces: nothing larger than 1/``pieces`` of a message is waited for before it is passed on; 1
        leaves messages as the exchange cuts them.
    inner: the network inside of a server, for hierarchical communication (Sketch-Fusion, section
        2.1): its workers add up dense gradients, the servers (the workers of ``topology``) exchange
        coded ones, and the sum is handed back inside. The two inner steps take what the halves of a
        dense ring all-reduce take, and count as communication.

    Raises
    ------
    ValueError
        Codecs that the exchange cannot carry, or not at this level.
    """

    def __init__(
        self,
        exchanger: Exchange,
        up: Sequence[Compressor],
        topology: Topology,
        *,
        down: Sequence[Compressor] | None = None,
        model_down: Sequence[Compressor] | None = None,
        efficiency: float = 1.0,
        overhead_s: float = 0.0,
        pieces: int = 1,
        inner: Topology | None = None,
    ) -> None:
        self.exchange, self.up, self.topology = exchanger, list(up), topology
        self.efficiency, self.overhead_s, self.inner = efficiency, overhead_s, inner
        self.pieces = pieces
        # Policies are played many times; a network knows a plan that it has seen by its identity.
        self._phase = lru_cache(maxsize=1024)(self._made_phase)
        self.groups: Groups = exchanger.groups(topology)
        if len(self.up) != len(self.groups):
            raise ValueError(
                f"{method_name(exchanger)} has {len(self.groups)} levels on this network, and "
                f"there are codecs for {len(self.up)}"
            )
        self.parties = sum(map(len, self.groups[-1]))
        self.down = list(self.up[:-1] if down is None else down)
        self.model_down = [load_codec(DENSE)] * len(self.up) if model_down is None else model_down
        check_pair(exchanger, self.up[-1])
        self.passes = passes(self.up, self.down)
        if not self.passes and not all(codec.one_shot for codec in self.up[:-1]):
            raise ValueError(f"{self.up[0].name} needs several rounds: outermost level only")

    def check_meetings(self, policy: Policy) -> None:
        """Refuse a policy whose meetings this exchange or these codecs cannot serve, with the
        reason."""
        name, outer, when = method_name(self.exchange), self.up[-1].name, method_name(policy)
        apart = f"{name} cannot carry {when}: some of the workers meet without the others, and "
        if not policy.together and self.exchange.whole:
            raise ValueError(
                apart + "no node keeps a model for these; use an exchange with a server"
            )
        if not policy.together and set(self.holders) & set(self.topology.workers.tolist()):
            raise ValueError(
                apart + "the sum is with one of these, not with a server that keeps a model"
            )
        keeps = policy.travels == "delta" or policy.asynchronous
        if keeps and not self.exchange.whole and not all(one.one_shot for one in self.up):
            raise ValueError(
                f"{name} cannot carry {outer} with {when}: it sends in several rounds, and between "
                "them a server that keeps the model answers nobody; use an exchange without one"
            )
        if policy.averages_inside and any(one.name != DENSE.name for one in self.up):
            raise ValueError(
                f"{when} averages at several levels, and {outer} would keep one memory for all of "
                "them: only identity"
            )

    @cached_property
    def holders(self) -> list[int]:
        """Who has the sum after the push of an exchange that is not ``whole``."""
        return self.transfers_of("push").plan.receivers.tolist()

    @cached_property
    def transfers(self) -> Transfers:
        return self.transfers_of("all")

    def transfers_of(self, part: PlanPart) -> Transfers:
        """The transfers of a whole exchange, or of one fragment of it."""
        return transfers(self.exchange, self.topology, self.efficiency, part, self.pieces)

    @property
    def plan(self) -> Plan:
        return self.transfers.plan

    def phase(self, nodes: Sequence[int], phase: Literal["push", "pull"]) -> Plan | None:
        """What a phase of a meeting of these workers runs; None for nothing, where the push of an
        exchange that is ``whole`` has already brought the sum to everybody."""
        return self._phase(tuple(nodes), phase)

    def _made_phase(self, nodes: tuple[int, ...], phase: Literal["push", "pull"]) -> Plan | None:
        if not self.exchange.whole:
            return _cut(self.exchange(self.topology, nodes, phase), self.pieces)
        return _cut(self.exchange(self.topology, nodes), self.pieces) if phase == "push" else None

    @cached_property
    def servers(self) -> int:
        """Nodes that answer with a part of the aggregate; 0 where everybody gets all payloads."""
        plan, last = self.plan, f"pull/{len(self.up) - 1}"
        slots = [number for number, slot in enumerate(plan.slots) if slot == last]
        return len(np.unique(plan.src[np.isin(plan.slot, slots) & (plan.src != plan.dst)]))

    # Bytes ---------------------------------------------------------------------------------------

    def sizes(self, shape: Sequence[int]) -> list[Sizes]:
        """Bytes by slot of the message for a tensor, a mapping a round of communication."""
        outer, last = self.up[-1], f"pull/{len(self.up) - 1}"
        rounds = [
            dict.fromkeys(self.plan.slots, float(sent)) | {last: float(answered)}
            for sent, answered in zip(
                outer.payload_bytes(shape), outer.answer_bytes(shape, self.parties), strict=True
            )
        ]
        for level, down in enumerate(() if self.passes else self.down):
            for sizes in rounds:
                sizes[f"push/{level}"] = sizes[f"pull/{level}"] = 0.0
            rounds[0][f"push/{level}"] = float(sum(self.up[level].payload_bytes(shape)))
            rounds[-1][f"pull/{level}"] = float(sum(down.payload_bytes(shape)))
        return rounds

    def model_sizes(self, shape: Sequence[int]) -> Sizes:
        """Bytes by slot of what is pushed to a server that keeps the model, and of the model."""
        return {
            f"{way}/{level}": float(sum(codec.payload_bytes(shape)))
            for way, codecs in (("push", self.up), ("pull", self.model_down))
            for level, codec in enumerate(codecs)
        }

    def whole_model(self, layers: Layers) -> Sizes:
        """:meth:`model_sizes` of all tensors."""
        total, sizes = Counter(), cache(self.model_sizes)
        for tensor in layers.tensors:
            total.update(sizes(tensor.shape))
        return dict(total)

    def messages(
        self, layers: Layers, codec_scope: CodecScope = "group"
    ) -> Callable[[int, int], list[Sizes]]:
        """Bytes by slot, a mapping a round of communication, of the message of the tensors from the
        first number up to the second, that one left out."""
        if codec_scope == "group":
            return lambda begin, end: self.sizes(layers.shape(sum(layers.sizes[begin:end])))
        slots, before = self.plan.slots, self._before(layers).table

        def message(begin: int, end: int) -> list[Sizes]:
            sent = before[end] - before[begin]
            return [dict(zip(slots, sizes, strict=True)) for sizes in sent.tolist()]

        return message

    @cached_property
    def _sends(self) -> str:
        """What tells the bytes of a message from those of another system."""
        return repr((self.up, self.down, self.parties, self.plan.slots))

    def _before(self, layers: Layers) -> _Before:
        """Kept for other systems that send the same, on other links."""
        return _remembered(
            _bytes_before, (self._sends, layers), lambda: _Before(self._table(layers))
        )

    def _table(self, layers: Layers) -> np.ndarray:
        """What :class:`_Before` has."""
        sizes = cache(self.sizes)  # many tensors have one shape
        tensors = [sizes(tensor.shape) for tensor in layers.tensors]
        rounds = max(map(len, tensors), default=0)
        table = np.zeros((len(tensors) + 1, rounds, len(self.plan.slots)))
        for number, sent in enumerate(tensors, start=1):
            table[number, : len(sent)] = [[one[slot] for slot in self.plan.slots] for one in sent]
        return table.cumsum(axis=0)

    def _sending(self, layers: Layers, codec_scope: CodecScope) -> tuple[Cost, bool]:
        """Seconds of all rounds of communication of a message, by its first tensor and the one
        after its last; and whether that takes arrays."""
        if codec_scope == "group":
            message = self.messages(layers, codec_scope)
            return lambda begin, end: sum(map(self.communicate_s, message(begin, end))), False
        moving = tuple(self.plan.slots.index(slot) for slot in self.transfers.simulated.slots)
        known = self._before(layers)
        before, rounds = known.table, known.alike(moving)

        def told(begin: int, end: int) -> float:
            rounds = [sizes for sizes in (before[end] - before[begin]).tolist() if any(sizes)]
            return sum(self.moving_s([sizes[slot] for slot in moving]) for sizes in rounds)

        def sent(begin: int | np.ndarray, end: int | np.ndarray) -> float | np.ndarray:
            return sum(self.alike_s(one[end] - one[begin]) for one in rounds)

        return (told, False) if rounds is None else (sent, True)

    # Coding --------------------------------------------------------------------------------------

    def gradient(self, groups: Groups | None = None) -> list[Step]:
        """Who codes one message of gradients, from the first worker to the last.

        ``groups``: who meets, if not everybody.
        """
        groups = groups or self.groups
        outer, parties = self.up[-1], sum(map(len, groups[-1]))
        merged = outer.combine == "merge" and self.servers
        steps = list(self._push(groups))
        if merged:
            steps.append(Step("centre", "decode", outer, parties, 1 / self.servers))
        receiver = "worker" if self.passes or len(self.up) == 1 else "site"
        alone = parties if outer.combine != "sum" and not merged else 1
        steps.append(Step(receiver, "decode", outer, alone))
        return steps if self.passes else [*steps, *self._pull(self.down)]

    def model(self, groups: Groups | None = None) -> tuple[list[Step], list[Step]]:
        """Who codes a message to a server that keeps the model, and who the model's way back."""
        groups = groups or self.groups
        parties = sum(map(len, groups[-1])) if self.up[-1].combine != "sum" else 1
        decoded = Step("centre", "decode", self.up[-1], parties)
        return [*self._push(groups), decoded], list(self._pull(self.model_down))

    def _push(self, groups: Groups) -> Iterator[Step]:
        yield Step("worker", "encode", self.up[0])
        if self.passes:
            return
        for level, (codec, above) in enumerate(zip(self.up, self.up[1:], strict=False)):
            sent = 1 if codec.combine == "sum" else max(map(len, groups[level]))
            yield Step("site", "decode", codec, sent)
            yield Step("site", "encode", above)

    def _pull(self, codecs: Sequence[Compressor]) -> Iterator[Step]:
        """An answer on its way from the server of the last of these levels down to the workers."""
        for level in reversed(range(len(codecs))):
            yield Step("centre" if level == len(self.up) - 1 else "site", "encode", codecs[level])
            yield Step("site" if level else "worker", "decode", codecs[level])

    def guessed(self, device: Device) -> bool:
        """Whether some price of coding follows from work alone, neither printed nor measured."""
        every = [*self.gradient(), *self.model()[1]]
        return any(device.guesses(step.codec) for step in every)

    # Time ----------------------------------------------------------------------------------------

    def communicate_s(self, sizes: Sizes) -> float:
        """Seconds of one round of communication on a network that is otherwise idle."""
        moving = self.transfers.simulated.slots
        return self.moving_s([sizes[slot] for slot in moving]) if any(sizes.values()) else 0.0

    def moving_s(self, nbytes: Sequence[float]) -> float:
        """:meth:`communicate_s` of a message, by what is in each slot that moves."""
        return self.transfers.of(nbytes) + self.overhead_s

    def alike_s(self, nbytes: float | np.ndarray) -> float | np.ndarray:
        """:meth:`communicate_s` of so many bytes in every slot; an array for several."""
        if not isinstance(nbytes, np.ndarray):
            return self.transfers.alike(nbytes) + self.overhead_s if nbytes > 0 else 0.0
        return np.where(nbytes > 0, self.transfers.alike(nbytes) + self.overhead_s, 0.0)

    def costs(
        self,
        device: Device,
        layers: Layers,
        compute_s: float,
        codec_scope: CodecScope = "group",
    ) -> Costs:
        """What computing, coding and sending cost a worker whose iteration takes ``compute_s``.

        All of encoding comes before the first round of communication, also what codecs with several
        rounds do between them. A worker alone neither codes nor sends.
        """
        backward_s = [tensor.backward * compute_s for tensor in layers.tensors]
        forward_s = max(compute_s - sum(backward_s), 0.0)
        inside = by_values(layers.sizes, _inside(self.inner))
        if len(self.topology.workers) == 1:
            nothing = by_values(layers.sizes, _nothing)
            return Costs(backward_s, nothing, inside, nothing, forward_s)
        encoded, *on_the_way, decoded = self.gradient()
        sent, at_once = self._sending(layers, codec_scope)

        def coded(*steps: Step) -> Cost:
            if codec_scope == "group":

                def of_one(values: int) -> float:
                    return sum(step.seconds(device, float(values)) for step in steps)

                return by_values(layers.sizes, of_one)
            before = _coded_before(device, steps, layers)
            return lambda begin, end: before[end] - before[begin]

        on_the_way = coded(*on_the_way)

        def communicate(begin: int | np.ndarray, end: int | np.ndarray) -> float | np.ndarray:
            here = 0.0 if self.inner is None else inside(begin, end)
            return here + sent(begin, end) + on_the_way(begin, end)

        return Costs(
            backward_s,
            encode=coded(encoded),
            communicate=communicate,
            decode=coded(decoded),
            forward_s=forward_s,
            at_once=at_once and self.inner is None,
        )


def _coded_before(device: Device, steps: tuple[Step, ...], layers: Layers) -> np.ndarray:
    """Seconds of these steps for all tensors before each, and for all, tensor by tensor."""

    def made() -> tuple[Device, np.ndarray]:
        values, each = np.array(layers.sizes, dtype=float), np.zeros(len(layers.sizes))
        for step in steps:
            each = each + step.seconds(device, values)
        # While the device is kept, its id is nobody else's.
        return device, np.concatenate([[0.0], each.cumsum()])

    return _remembered(_seconds_before, (id(device), repr(steps), layers), made)[1]


def _remembered(known: dict[K, V], name: K, make: Callable[[], V]) -> V:
    """What is known under a name, made the first time; the oldest of too many is forgotten."""
    if (found := known.get(name)) is not None:
        return found
    if len(known) >= REMEMBERED:
        known.pop(next(iter(known)), None)
    return known.setdefault(name, make())


def coding_s(device: Device, steps: Iterable[Step], values: Iterable[float]) -> float:
    """Seconds of coding messages of so many values each, one after the other."""
    values = np.array(list(values), dtype=float)
    return float(sum(step.seconds(device, values).sum() for step in steps))


def exchange_s(plan: Plan, topology: Topology, rounds: Sequence, efficiency: float) -> float:
    """Seconds of rounds of communication on an idle network, of sizes by slot or also by sender."""
    return sum(
        simulate(plan, topology, complete(plan, sizes), efficiency=efficiency).completion_s
        for sizes in rounds
    )


class _Simulated:
    """How long a plan takes on an idle network, for proportions of its slots' sizes.

    The whole plan is simulated with its own dependencies, so whoever has what it needs goes on
    while others still wait.
    """

    def __init__(self, plan: Plan, topology: Topology, efficiency: float) -> None:
        self.plan, self.topology, self.efficiency = plan, topology, efficiency
        moving = np.unique(plan.slot[plan.src != plan.dst])
        self.slots = [plan.slots[slot] for slot in moving]
        self.name = _digest(plan, topology, efficiency, _simulator(), BENT, BETWEEN)
        self._at, self._line = cache(self._simulate), cache(self._known_line)
        self._kept = cache(lambda shares: beginning(self._named(shares)))
        self.of = cache(self._of)

    def _of(self, shares: tuple[float, ...]) -> Callable:
        """How long messages take, by the bytes of the largest, of which each slot has its share:
        along lines, each looked for once. Takes arrays as well."""
        lines = [(-math.inf, -math.inf, 0.0, 0.0)]  # before all others, and holds nothing
        table = np.array(lines).T

        def line(nbytes: float) -> tuple[float, float, float, float]:
            found = lines[bisect.bisect_right(lines, (nbytes, math.inf)) - 1]
            if nbytes < found[1]:
                return found
            made = self._around(shares, nbytes)
            bisect.insort(lines, made)
            return made

        def seconds(nbytes: float | np.ndarray) -> float | np.ndarray:
            if not isinstance(nbytes, np.ndarray):
                low, high, begin, end = line(nbytes)
                return begin + (end - begin) * (nbytes - low) / (high - low)
            nonlocal table
            place = np.searchsorted(table[0], nbytes, side="right") - 1
            if len(left := np.unique(nbytes[nbytes >= table[1, place]])):
                while len(left):
                    left = left[left >= line(left[0])[1]]
                table = np.array(lines).T
                place = np.searchsorted(table[0], nbytes, side="right") - 1
            low, high, begin, end = table[:, place]
            return begin + (end - begin) * (nbytes - low) / (high - low)

        return seconds

    def _around(self, shares: tuple[float, ...], nbytes: float) -> tuple[float, ...]:
        """Bytes below and above ``nbytes`` between which time is a line, and the time of both."""
        if nbytes < LEAST:
            low, high = 0.0, LEAST
        else:
            power = math.floor(math.log(nbytes, STEP))
            power -= nbytes < STEP**power  # the logarithm is rounded
            low, high = STEP**power, STEP ** (power + 1)
        while not (ends := self._line(shares, low, high)):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if nbytes < middle else (middle, high)
        return low, high, *ends

    def _known_line(self, shares: tuple[float, ...], low: float, high: float) -> list[float]:
        """The times of two sizes; none where a line between them is off."""
        name = f"{self._named(shares)}{low!r} {high!r}"
        if told := self._kept(shares).get(name):
            return json.loads(told)
        return cached(name, lambda: self._drawn(shares, low, high))

    def _named(self, shares: tuple[float, ...]) -> str:
        """How names begin of what is kept of these shares."""
        return f"{self.name} {shares} "

    def _drawn(self, shares: tuple[float, ...], low: float, high: float) -> list[float]:
        begin, end = self._at(shares, low), self._at(shares, high)
        for part in BETWEEN if low else ():
            # The middle to the last bit, since a line that is off is cut there.
            between = math.sqrt(low * high) if part == 0.5 else low * (high / low) ** part
            guess = begin + (end - begin) * (between - low) / (high - low)
            if not math.isclose(self._at(shares, between), guess, rel_tol=BENT):
                return []
        return [begin, end]

    def _simulate(self, shares: tuple[float, ...], nbytes: float) -> float:
        used = {slot: share * nbytes for slot, share in zip(self.slots, shares, strict=True)}
        return self._alone.completion_s(complete(self.plan, used))

    @cached_property
    def _alone(self) -> Alone:
        return Alone(self.plan, self.topology, efficiency=self.efficiency)


@dataclass(frozen=True)
class Transfers:
    """How long one plan takes on one network that is otherwise idle.

    ``scale``: as many times the bytes take as long where the plan was ``simulated``.
    """

    simulated: _Simulated
    scale: float

    @property
    def plan(self) -> Plan:
        return self.simulated.plan

    def alike(self, nbytes: float | np.ndarray) -> float | np.ndarray:
        """How long messages of so many bytes in every slot take; an array for several."""
        return self.simulated.of((1.0,) * len(self.simulated.slots))(self.scale * nbytes)

    def seconds(self, sizes: Sizes) -> float:
        """How long messages of these bytes by slot take.

        Interpolated between proportions of the slots that are powers of ``RATIO``, in the simplex
        of them around these, and along messages of one proportion. What takes a message along is a
        chain of its slots, so that its time is nearly linear in each.
        """
        return self.of([sizes[slot] for slot in self.simulated.slots])

    def of(self, used: Sequence[float]) -> float:
        """:meth:`seconds` of bytes in the order of the slots that are simulated."""
        most = max(used, default=0.0)
        if most and min(used) == most:  # most are so
            return self.alike(most)
        near = [_beside(nbytes / (most or 1)) for nbytes in used]
        shares = [high for high, _, _ in near]
        total, left = 0.0, 1.0
        for part, slot in sorted(((part, i) for i, (_, _, part) in enumerate(near)), reverse=True):
            if part < left:
                seconds = self.simulated.of(tuple(shares))(self.scale * most)
                total, left = total + (left - part) * seconds, part
            shares[slot] = near[slot][1]
        if left:
            total += left * self.simulated.of(tuple(shares))(self.scale * most)
        return total


@cache
def _beside(share: float) -> tuple[float, float, float]:
    """The powers of ``RATIO`` above and below a share of at most 1, and how far below the first it
    is, in parts of the way between them."""
    if share <= RATIO**200:
        return 0.0, 0.0, 0.0
    halves = 2.0 ** round(math.log2(share))
    if math.isclose(share, halves, rel_tol=1e-9):
        return halves, halves, 0.0
    power = math.floor(math.log(share, RATIO) + 1e-9)
    high, low = (float(f"{RATIO**p:.6g}") for p in (power, power + 1))
    part = (high - share) / (high - low)
    return (high, low, part) if part > 1e-6 else (high, low, 0.0)


class _Before:
    """Bytes of all tensors before each, and of all: a row a number of tensors, a column a round of
    communication, by slot (``table``)."""

    def __init__(self, table: np.ndarray) -> None:
        self.table, self.alike = table, cache(self._alike)

    def _alike(self, moving: tuple[int, ...]) -> np.ndarray | None:
        """Bytes before each tensor, a row a round, where of any message all slots that move have as
        many, as most often, so that one number says it all; None where they do not."""
        if not moving:
            return None
        own, one = np.diff(self.table, axis=0), self.table[:, :, moving[:1]]
        silent = own[:, :, moving[0]] == 0
        if (self.table != one)[:, :, moving].any() or own[silent].any():
            return None
        return one[:, :, 0].T


_known: dict[str, _Simulated] = {}
_bytes_before: dict[tuple[str, Layers], _Before] = {}
_seconds_before: dict[tuple[int, str, Layers], tuple[Device, np.ndarray]] = {}


def transfers(
    exchanger: Exchange,
    topology: Topology,
    efficiency: float = 1.0,
    part: PlanPart = "all",
    pieces: int = 1,
) -> Transfers:
    """The transfers of all workers. Networks that differ in how fast all links are share them."""
    finite = topology.link_rate[np.isfinite(topology.link_rate)]
    rate = finite.max(initial=0.0) or RATE
    alike = replace(topology, link_rate=topology.link_rate / rate * RATE, name="")
    name = _digest(type(exchanger).__module__, repr(exchanger), alike, efficiency, part, pieces)
    if name not in _known:
        _known[name] = _Simulated(_cut(exchanger(alike, part=part), pieces), alike, efficiency)
    return Transfers(_known[name], RATE / rate)


def _cut(plan: Plan, pieces: int) -> Plan:
    """The plan in so many pieces; at 1 as the exchange cuts it."""
    return in_pieces(plan, pieces) if pieces > 1 else plan


def _digest(*values: object) -> str:
    return hashlib.blake2b(pickle.dumps(values), digest_size=16).hexdigest()


@cache
def _simulator() -> str:
    """What a simulated number depends on besides the plan and the network."""
    return sources(*sorted(Path(network.__file__).parent.glob("*.py")))


def _nothing(values: int) -> float:
    return 0.0


def _inside(inner: Topology | None) -> Callable[[int], float]:
    """Seconds to add up and to hand back so many float32 values inside of a server."""
    if inner is None or len(inner.workers) == 1:
        return _nothing
    ring = transfers(exchange.load("ring", overlap=False), inner)
    return lambda values: ring.seconds(dict.fromkeys(ring.plan.slots, 4.0 * values))
