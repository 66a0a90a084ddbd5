"""The compiled core of the fluid simulator: events, and max-min fair rates between them.

State is arrays of records. A transfer sends one piece (chunk) at a time, so everything about the
piece in flight lives in its transfer's records. All that happens at one instant is one batch.

In a max-min fair share every flow has a link that holds it back: a full one, on which no flow is
faster. Flows that one link holds back are a group. They have one rate, so a group counts the bytes
that each of its flows was served, and a flow only knows at what count it ends: time passes for
groups, not for flows. The cap on a transfer's rate is the last group.

When flows leave or capacities change, groups mostly stay, and their rates follow from counts of
flows alone (:func:`_adjust`). Where that does not hold, or when flows join, progressive filling
finds the groups anew, for the links that flows connect to those that changed (:func:`_fill`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import from_dtype

TRANSFER = np.dtype(
    [
        # Fixed when the plan starts.
        ("lag", "f8"),  # before a piece flows, and by which it arrives later than it leaves
        ("nbytes", "f8"),  # of a piece
        ("src", "i4"),
        ("dst", "i4"),
        ("instance", "i4"),
        ("piece0", "i4"),
        ("next0", "i4"),  # transfers that depend on this one
        ("next1", "i4"),
        ("order", "i4"),  # entry of the instance's list of transfers by phase
        # As it goes on.
        ("chunk", "i4"),
        ("written", "i4"),  # pieces that its sender's software is done with
        ("behind", "i4"),  # the next that its sender's software has to do
        ("slot", "i4"),
        ("lane", "i4"),
        ("left", "i4"),  # children in its lane's queue
        ("right", "i4"),
        ("limited", "i1"),  # has a link that constrains
        ("start_s", "f8"),
        ("end_s", "f8"),
    ],
    align=True,
)
FLOW = np.dtype(
    [
        ("route0", "i4"),
        ("route1", "i4"),
        ("at", "i4"),  # entry of ``State.active``; -1 while nothing is on its way
        ("group", "i4"),  # the link that holds it back; -1 while it stands still
        ("left", "f8"),  # bytes to go; in a group, its count of bytes at which this flow ends
        ("nothing", "f8"),  # so few bytes do not matter
        ("seen", "i8"),  # last filling that reached it
        ("linked", "i8"),  # listed at its links
    ]
)
# ``asked``: what its sender's software still waits for, where messages take it time.
PIECE = np.dtype([("ready", "f8"), ("pending", "i4"), ("asked", "i4")], align=True)
# ``weight``: flows of its kind that share each link of this kind.
HOP = np.dtype([("link", "i4"), ("place", "i4"), ("pair", "i4"), ("weight", "i4")])
INSTANCE = np.dtype(
    [
        ("chunks", "i8"),
        ("window", "i8"),
        ("left", "i8"),
        ("transfer0", "i8"),
        ("lane0", "i8"),
        ("lane1", "i8"),
        ("slot0", "i8"),
        ("phase0", "i8"),
        ("phase", "i8"),
        ("phase_left", "i8"),
    ]
)
# What one node has to send to one other.
LANE = np.dtype([("root", "i4"), ("touched", "i4"), ("node", "i4"), ("instance", "i4")])
LINK = np.dtype(
    [
        ("rate", "f8"),  # bytes/s
        ("bytes", "f8"),
        ("spare", "f8"),  # what flows with a rate leave
        ("peak", "f8"),  # rate of the fastest flow that is in another group
        ("seen", "i8"),  # last time that rates were solved here
        ("tag", "i8"),  # last group whose pair with this link is ``pair``
        ("first", "i8"),  # its stretch of ``State.members``
        ("room", "i4"),
        ("listed", "i4"),  # entries in its stretch
        ("flows", "i4"),  # their weights
        ("open", "i4"),  # weights of flows without a rate yet
        ("foreign", "i4"),  # background flows
        ("capped", "i4"),  # flows that only the cap holds back
        ("pair", "i4"),
        ("order0", "i4"),  # the stretch of ``State.order`` that it was last filled with
        ("order1", "i4"),
        ("dirty", "i4"),
    ],
    align=True,
)
MEMBER = np.dtype([("flow", "i4"), ("hop", "i4")])
GROUP = np.dtype(
    [
        ("rate", "f8"),  # of each flow, bytes/s
        ("target", "f8"),  # its rate if groups can stay
        ("served", "f8"),  # bytes to each flow …
        ("last", "f8"),  # … up to this time
        ("next", "f8"),  # the least ``left`` of its flows …
        ("soon", "f8"),  # … and the least that matters
        ("flows", "i4"),
        ("pair0", "i4"),  # its stretch of ``State.pairs``
        ("pair1", "i4"),
    ],
    align=True,
)
BLOCK = 32
"""Groups that are looked through together: for the next that ends, blocks of them are."""
LEAST = np.dtype([("finish", "f8"), ("early", "f8")])
PAIR = np.dtype([("link", "i4"), ("flows", "i4")])
NODE = np.dtype(
    [
        ("paused", "i8"),
        ("resumed", "f8"),
        ("first", "i8"),  # transfers whose pieces its software has to do, the first and the last
        ("last", "i8"),
        ("writing", "i8"),  # its software does one
        ("roused", "i8"),
    ]
)
EVENT = np.dtype([("time", "f8"), ("code", "i8")])
CHANGE = np.dtype([("link", "i8"), ("rate", "f8"), ("foreign", "i8")])

_inner = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
"""Compiles what only compiled code calls. It allocates nothing, so it need not count references to
the state's many arrays: half of the time otherwise, and more to compile.

Numbers of transfers, links and the like lie in arrays as int32, and are passed as int64: for every
combination of types a function would be compiled anew, which takes seconds."""

# Kinds of timed events, in the order in which one instant handles them.
RESUME, PAUSE, ALTER, ASK, WRITTEN, READY, ENTER, CLOSE = range(8)
KIND_SHIFT = 40

# Entries of ``State.count``.
ACTIVE, ENDED, EVENTS, WORK, TOUCHED, DIRTY, BUSY, DONE, REGROUP, PAIRS, ORDER, STAMP = range(12)
ASKED, ROUSED = 12, 13
N_COUNTS = 14

SAME_SIZE = 1e-9
"""Share of a piece, or of a link's rate, that counts as nothing."""
SAME_TIME = 1e-14
"""Share of the clock within which timed events are simultaneous: rounding only."""


POOLS = dict(
    transfers=TRANSFER,
    flows=FLOW,  # the hot part of each transfer, same number
    pieces=PIECE,
    hops=HOP,
    successors=np.dtype("i4"),
    phases=np.dtype("i4"),
    lanes=LANE,
    slots=np.dtype("f8"),  # when each slot of a lane was last free, inf while it is taken
    instances=INSTANCE,
)
"""The arrays of which every running plan has a block."""

ARRAYS = POOLS | dict(
    links=LINK,
    members=MEMBER,  # for each link the flows that share it
    groups=GROUP,  # of flows that a link, or last the cap, holds back
    finish=np.dtype("f8"),  # when the next flow of each group has left …
    early=np.dtype("f8"),  # … and from when on what is left of it is nothing
    blocks=LEAST,  # the least of both, of BLOCK groups each
    pairs=PAIR,  # for each group the other links that its flows cross, and how many do
    order=np.dtype("i4"),  # links in an order in which groups can be solved
    nodes=NODE,
    changes=CHANGE,  # what links become
    events=EVENT,  # a binary heap
    active=np.dtype("i4"),  # transfers whose piece is on its way
    ended=np.dtype("i4"),  # transfers whose piece ended in this instant
    work=np.dtype("i4"),
    touched=np.dtype("i8"),
    asked=EVENT,  # a binary heap: chunks and transfers that software takes up in this instant
    roused=np.dtype("i8"),  # nodes whose software may begin another
    dirty=np.dtype("i8"),
    some_links=np.dtype("i8"),
    levels=EVENT,  # a binary heap
    done=np.dtype("i8"),
    count=np.dtype("i8"),
    clock=np.dtype("f8"),  # now, the rate cap of a transfer, and what a message takes software
)
"""The arrays of a state."""
NUMBERS = {name: number for number, name in enumerate(ARRAYS)}


class State:
    """The :data:`ARRAYS` as attributes, and where they lie, by which compiled code finds them. So
    functions pass one pointer on, where seven numbers an array take up to half of the time that
    is simulated in, and a quarter of that to compile. They are called with the number that it is,
    of which numba tells the type at once.

    ``arrays``: all of them, in their order.
    """

    def __init__(self, *arrays: np.ndarray) -> None:
        places = np.zeros((len(ARRAYS), 2), np.int64)
        vars(self).update(_places=places, _address=places.ctypes.data, _moved=set())
        self.put(**dict(zip(ARRAYS, arrays, strict=True)))

    def __reduce__(self) -> tuple:
        return State, tuple(self)  # a copy lies elsewhere

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} is set by put, so that compiled code finds it")

    def __iter__(self) -> Iterator[np.ndarray]:
        return (getattr(self, name) for name in ARRAYS)

    def put(self, **arrays: np.ndarray) -> None:
        """Set some arrays."""
        for name, array in arrays.items():
            kind = ARRAYS[name]
            # Types of records are slow to compare, and are one object most often.
            if array.dtype is not kind and array.dtype != kind or not array.flags.c_contiguous:
                raise TypeError(f"{name} must be a contiguous array of {kind}")
        vars(self).update(arrays)
        self._moved.update(arrays)

    @property
    def address(self) -> int:
        """Of the address and the length of each array, as int64."""
        while self._moved:
            array = getattr(self, name := self._moved.pop())
            self._places[NUMBERS[name]] = array.ctypes.data, len(array)
        return self._address


class _StateType(types.Type):
    """A :class:`State` in compiled code: the address of the places of its arrays."""

    def __init__(self) -> None:
        super().__init__(name="State")


register_model(_StateType)(models.OpaqueModel)


@intrinsic
def _state(context, address):
    """The :class:`State` of this ``address``."""

    def pointer(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return _StateType()(address), pointer


@infer_getattr
class _Attributes(AttributeTemplate):
    key = _StateType

    def generic_resolve(self, state, name):
        return types.Array(from_dtype(ARRAYS[name]), 1, "C") if name in ARRAYS else None


@lower_getattr_generic(_StateType)
def _attribute(context, builder, kind, state, name):
    word = context.get_value_type(types.intp)
    places = builder.bitcast(state, word.as_pointer())
    begin = 2 * NUMBERS[name]
    place, length = (
        builder.load(cgutils.gep_inbounds(builder, places, begin + i)) for i in range(2)
    )
    array_type = types.Array(from_dtype(ARRAYS[name]), 1, "C")
    array, size = context.make_array(array_type)(context, builder), ARRAYS[name].itemsize
    populate_array(
        array,
        data=builder.inttoptr(place, array.data.type),
        shape=cgutils.pack_array(builder, [length]),
        strides=cgutils.pack_array(builder, [word(size)]),
        itemsize=word(size),
        meminfo=None,
    )
    return array._getvalue()


class Blocks(NamedTuple):
    """Where a plan's blocks of the :data:`POOLS` begin, or how long they are."""

    transfers: int
    flows: int
    pieces: int
    hops: int
    successors: int
    phases: int
    lanes: int
    slots: int
    instances: int


class Course(NamedTuple):
    """How a plan goes on, numbered from 0.

    Attributes
    ----------
    next_ptr, successors: ``successors[next_ptr[t]:next_ptr[t + 1]]`` depend on transfer ``t``.
    order, phase_ptr: transfers by phase, and where each phase begins and the last one ends.
    """

    next_ptr: np.ndarray
    successors: np.ndarray
    order: np.ndarray
    phase_ptr: np.ndarray


def empty_state(nodes: int, links: int, events: int, changes: int) -> State:
    """Nothing runs, at time 0; room for so many nodes, links, events and changes of links."""
    by_link = ("links", "dirty", "some_links", "levels")
    room = dict.fromkeys(by_link, links) | dict.fromkeys(("groups", "finish", "early"), links + 1)
    room |= dict(nodes=nodes, roused=nodes, changes=changes, count=N_COUNTS, clock=3)
    room |= dict(events=events + changes + nodes)
    room |= dict(blocks=links // BLOCK + 1, order=8 * links)
    state = State(*(np.zeros(room.get(name, 0), kind) for name, kind in ARRAYS.items()))
    state.finish[:] = state.early[:] = state.clock[1] = np.inf
    state.blocks["finish"] = state.blocks["early"] = np.inf
    state.nodes["resumed"] = -np.inf
    state.nodes["first"] = state.nodes["last"] = -1
    return state


def grow(state: State, pools: dict[str, np.ndarray]) -> None:
    """Put ``pools`` in place of a state's own, and make room for all that may happen in them.

    A transfer has at most one timed event at a time, and one more while its sender's software waits
    for a value; a node has one, and so has an instance.
    """
    more = {name: len(array) - len(getattr(state, name)) for name, array in pools.items()}
    t, i = more["transfers"], more["instances"]
    room = dict(events=2 * t + i, done=i, touched=more["lanes"])
    room |= dict.fromkeys(("active", "ended", "work", "asked"), t)
    longer_ones = {
        name: longer(getattr(state, name), len(getattr(state, name)) + extra)
        for name, extra in room.items()
    }
    state.put(**pools, **longer_ones)


def make_room(state: State, room: np.ndarray) -> None:
    """Let each link list ``room`` flows, (links,)."""
    links = state.links
    if (room <= links["room"]).all():
        return
    room = np.where(room > links["room"], np.maximum(room, 2 * links["room"]), links["room"])
    first = np.concatenate([[0], np.cumsum(room)])
    members = np.zeros(first[-1], MEMBER)
    for link in np.flatnonzero(links["listed"]):
        old, new, listed = links["first"][link], first[link], links["listed"][link]
        members[new : new + listed] = state.members[old : old + listed]
    links["room"], links["first"] = room, first[:-1]
    state.put(members=members, pairs=longer(state.pairs, 2 * len(members)))


def narrow(state: State) -> None:
    """Leave out the links that no transfer crosses, while nothing has happened yet."""
    used, state.hops["link"] = np.unique(state.hops["link"], return_inverse=True)
    empty = empty_state(0, len(used), 0, 0)
    by_link = ("groups", "finish", "early", "blocks", "dirty", "some_links", "levels")
    state.put(links=state.links[used], **{name: getattr(empty, name) for name in by_link})


def packed(state: State) -> tuple[State, np.ndarray]:
    """``state`` in one stretch of memory, and that: to copy its bytes back undoes what happened."""
    begins = np.cumsum([0, *(-(-array.nbytes // 16) * 16 for array in state)]).tolist()
    memory = np.zeros(begins.pop(), np.uint8)
    arrays = [
        np.ndarray(array.shape, array.dtype, memory, begin)
        for array, begin in zip(state, begins, strict=True)
    ]
    for new, array in zip(arrays, state, strict=True):
        new[:] = array
    return State(*arrays), memory


def longer(array: np.ndarray, length: int) -> np.ndarray:
    """``array`` with zeros after it up to ``length``."""
    new = np.zeros((length, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


@numba.njit(cache=True)
def advance(address, until, first):
    """Run the :class:`State` there until the time ``until``, or only to the first completion if
    that comes before."""
    s = _state(address)
    while not (first and s.count[DONE]):
        time = np.inf
        for block in range(len(s.blocks)):
            time = min(time, s.blocks[block].finish)
        if s.count[EVENTS]:
            time = min(time, s.events[0].time)
        if time > until or time == np.inf:
            if until < np.inf:
                s.clock[0] = until
            return
        s.clock[0] = max(time, s.clock[0])
        _instant(s, s.clock[0])


@numba.njit(cache=True)
def place(address, at, sizes, plan, course, nbytes, begin):
    """Write a plan into its blocks, and what it begins with into the timed events, of the
    :class:`State` there.

    ``at``: where its blocks begin. ``sizes``: pieces of a transfer, and slots of a lane. ``plan``,
    ``course``: its :class:`~.symmetry.Flows`, and how they follow each other. ``nbytes``,
    ``begin``: of each transfer, and when its sender may start.
    """
    s, instance = _state(address), at.instances
    chunks, window = sizes
    n = len(nbytes)
    for t in range(n):
        row, flow = s.transfers[at.transfers + t], s.flows[at.transfers + t]
        row.src, row.dst, row.limited = plan.src[t], plan.dst[t], plan.limited[t]
        row.lag = plan.lag[t]
        row.nbytes, row.instance = nbytes[t] / chunks, instance
        row.piece0 = at.pieces + t * chunks
        row.next0 = at.successors + course.next_ptr[t]
        row.next1 = at.successors + course.next_ptr[t + 1]
        row.order, row.lane = at.transfers + course.order[t], at.lanes + plan.lane[t]
        row.chunk, row.written, row.slot = 0, 0, -1
        flow.route0, flow.route1 = at.hops + plan.hop_ptr[t], at.hops + plan.hop_ptr[t + 1]
        flow.at, flow.group, flow.linked = -1, -1, 0
        flow.nothing = SAME_SIZE * row.nbytes
        for chunk in range(chunks):
            piece = s.pieces[row.piece0 + chunk]
            piece.ready = begin[t]
            # It waits for the piece before it, and the first one for the phases before its own.
            waits = plan.dep_ptr[t + 1] - plan.dep_ptr[t] + (chunk > 0 or plan.rank[t] > 0)
            piece.pending, piece.asked = waits, 0
            if _by_software(s, row):
                # Its software waits for all that; it, for its software and the piece before it.
                piece.pending, piece.asked = 1 + (chunk > 0), waits
        first = s.pieces[row.piece0]
        if _by_software(s, row):
            if first.asked == 0:
                _schedule(s, begin[t], (ASK << KIND_SHIFT) | (at.transfers + t))
        elif first.pending == 0:
            _schedule(s, begin[t], (READY << KIND_SHIFT) | (at.transfers + t))
    for h in range(len(plan.hops)):
        hop = s.hops[at.hops + h]
        hop.link, hop.weight = plan.hops[h], plan.weight[h]
    for i in range(len(course.successors)):
        s.successors[at.successors + i] = at.transfers + course.successors[i]
    for i in range(len(course.phase_ptr)):
        s.phases[at.phases + i] = course.phase_ptr[i]
    lanes = len(plan.lane_node)
    for i in range(lanes):
        lane = s.lanes[at.lanes + i]
        lane.root, lane.touched = -1, 0
        lane.node, lane.instance = plan.lane_node[i], instance
    s.slots[at.slots : at.slots + lanes * window] = -np.inf
    row = s.instances[instance]
    row.chunks, row.window, row.left = chunks, window, n
    row.transfer0, row.phase0, row.slot0 = at.transfers, at.phases, at.slots
    row.lane0, row.lane1 = at.lanes, at.lanes + lanes
    row.phase, row.phase_left = 0, course.phase_ptr[1]


@numba.njit(cache=True)
def push_events(events, n, times, codes):
    """Add to the ``n`` timed events of a state; return how many there are now."""
    for i in range(len(times)):
        n = _push(events, n, times[i], codes[i])
    return n


@_inner
def _instant(s, now):
    """All that happens now: pieces end, then timed events, then what follows from both."""
    for block in range(len(s.blocks)):
        if s.blocks[block].early <= _soon(now):
            for g in range(block * BLOCK, min((block + 1) * BLOCK, len(s.early))):
                if s.early[g] <= _soon(now):
                    _finish(s, g, now)
    for i in range(s.count[ENDED]):
        t = np.int64(s.ended[i])
        s.count[ACTIVE] -= 1
        last = s.active[s.count[ACTIVE]]
        s.active[s.flows[t].at], s.flows[last].at = last, s.flows[t].at
        s.flows[t].at = -1
        _work(s, t)
    switched = False
    while s.count[EVENTS] and s.events[0].time <= _soon(now):
        code = s.events[0].code
        s.count[EVENTS] = _pop(s.events, s.count[EVENTS])
        kind, item = code >> KIND_SHIFT, code & ((1 << KIND_SHIFT) - 1)
        if kind == READY:
            _ready(s, item, now)
        elif kind == ASK:
            _ask(s, item, now)
        elif kind == WRITTEN:
            _written(s, item, now)
        elif kind == ENTER:
            _enter(s, item, now)
        elif kind == CLOSE:
            s.done[s.count[DONE]] = item
            s.count[DONE] += 1
        elif kind == ALTER:
            change = s.changes[item]
            link = s.links[change.link]
            link.rate, link.foreign = change.rate, change.foreign
            _soil(s, change.link)
        else:
            _switch(s, item, kind == PAUSE, now)
            switched = True
    if switched:
        _obey(s, now)
    while s.count[WORK] or s.count[TOUCHED]:
        while s.count[WORK]:
            s.count[WORK] -= 1
            _complete(s, np.int64(s.work[s.count[WORK]]), now)
        # Only now, when all that may start is known, do lanes choose.
        for i in range(s.count[TOUCHED]):
            _send(s, s.touched[i], now)
        s.count[TOUCHED] = 0
    while s.count[ASKED]:
        t = s.asked[0].code
        s.count[ASKED] = _pop(s.asked, s.count[ASKED])
        _queue(s, t)
    for i in range(s.count[ROUSED]):
        _write(s, s.roused[i], now)
    s.count[ROUSED] = 0
    for i in range(s.count[ENDED]):
        t = np.int64(s.ended[i])
        if s.flows[t].at < 0:
            _leave(s, t, now)
    s.count[ENDED] = 0
    if s.count[DIRTY]:
        if s.count[REGROUP] or not _adjust(s, now):
            _fill(s, now)
        for i in range(s.count[DIRTY]):
            s.links[s.dirty[i]].dirty = 0
        s.count[DIRTY] = 0
    s.count[REGROUP] = 0


@_inner
def _soon(now):
    return now + SAME_TIME * abs(now)


@_inner
def _by_software(s, transfer):
    """Whether messages take their sender's software time, and this is one."""
    return s.clock[2] > 0 and transfer.src != transfer.dst


@_inner
def _need(s, t, piece, now):
    """Something that a piece of ``t`` needs is there: its value, or its phase."""
    if not _by_software(s, s.transfers[t]):
        _release(s, t, piece, now, now)
        return
    s.pieces[piece].asked -= 1
    if s.pieces[piece].asked == 0:
        _ask(s, t, now)


@_inner
def _ask(s, t, now):
    """The next piece of ``t`` is its sender's software's to do, now or when its time comes."""
    flow = s.transfers[t]
    ready = s.pieces[flow.piece0 + flow.written].ready
    if ready > _soon(now):
        _schedule(s, ready, (ASK << KIND_SHIFT) | t)
    else:
        s.count[ASKED] = _push(s.asked, s.count[ASKED], float(flow.written), t)


@_inner
def _queue(s, t):
    """Put ``t`` behind what its sender's software has to do."""
    node = s.nodes[s.transfers[t].src]
    s.transfers[t].behind = -1
    if node.first < 0:
        node.first = t
    else:
        s.transfers[node.last].behind = t
    node.last = t
    _rouse(s, np.int64(s.transfers[t].src))


@_inner
def _rouse(s, node):
    if not s.nodes[node].roused:
        s.nodes[node].roused = 1
        s.roused[s.count[ROUSED]] = node
        s.count[ROUSED] += 1


@_inner
def _write(s, which, now):
    """Let a node's software begin with the first piece that it has to do, unless it pauses."""
    node = s.nodes[which]
    node.roused = 0
    if node.first >= 0 and not node.writing and not node.paused:
        _schedule(s, now + s.clock[2], (WRITTEN << KIND_SHIFT) | node.first)
        node.first, node.writing = s.transfers[node.first].behind, 1


@_inner
def _written(s, t, now):
    """Software is done with a piece of ``t``, which waits only for its turn now."""
    flow = s.transfers[t]
    piece = flow.piece0 + flow.written
    flow.written += 1
    s.nodes[flow.src].writing = 0
    _rouse(s, np.int64(flow.src))
    _release(s, t, np.int64(piece), now, now)
    if flow.written < s.instances[flow.instance].chunks:
        _need(s, t, np.int64(piece + 1), now)


@_inner
def _ready(s, t, now):
    """The current piece of ``t`` lacks nothing: send it, now or when its time comes."""
    flow = s.transfers[t]
    ready = s.pieces[flow.piece0 + flow.chunk].ready
    if ready > _soon(now):
        _schedule(s, ready, (READY << KIND_SHIFT) | t)
    elif flow.src == flow.dst:
        _work(s, t)
    elif s.instances[flow.instance].window == 0 and not s.nodes[flow.src].paused:
        _start(s, t, np.int64(-1), -np.inf, now)
    else:
        flow.left = flow.right = -1
        lane = s.lanes[flow.lane]
        lane.root = _meld(s, np.int64(lane.root), np.int64(t))
        _touch(s, np.int64(flow.lane))


@_inner
def _touch(s, which):
    if not s.lanes[which].touched:
        s.lanes[which].touched = 1
        s.touched[s.count[TOUCHED]] = which
        s.count[TOUCHED] += 1


@_inner
def _send(s, which, now):
    """Start what a lane's queue holds, in its order, as far as slots allow."""
    lane = s.lanes[which]
    lane.touched = 0
    plan = s.instances[lane.instance]
    first = plan.slot0 + (which - plan.lane0) * plan.window
    while lane.root >= 0 and not s.nodes[lane.node].paused:
        slot, free = -1, -np.inf
        if plan.window:
            slot = first
            for k in range(first + 1, first + plan.window):
                if s.slots[k] < s.slots[slot]:
                    slot = k
            free = s.slots[slot]
            if free == np.inf:
                break
            s.slots[slot] = np.inf
        t = _pick(s, lane, max(free, s.nodes[lane.node].resumed))
        _start(s, t, slot, free, now)


@_inner
def _pick(s, lane, free):
    """Take what a sender that could send from ``free`` on sends next out of a lane's queue.

    That is the first in the queue's order of what was ready then, or else what was ready first: a
    slot is known to be free only when its message arrives, which is later than it left, and what
    became ready in between cannot have kept the sender from what it had.
    """
    least, best, later = np.inf, np.int64(-1), np.int64(-1)
    while lane.root >= 0:
        t = np.int64(lane.root)
        flow = s.transfers[t]
        lane.root = _meld(s, np.int64(flow.left), np.int64(flow.right))
        ready = s.pieces[flow.piece0 + flow.chunk].ready
        if ready <= _soon(free):
            lane.root = _meld(s, np.int64(lane.root), later)
            return t
        if ready < least:
            least, best = ready, t
        flow.left = flow.right = -1
        later = _meld(s, later, t)
    while later >= 0:
        t = later
        flow = s.transfers[t]
        later = _meld(s, np.int64(flow.left), np.int64(flow.right))
        if t != best:
            flow.left = flow.right = -1
            lane.root = _meld(s, np.int64(lane.root), t)
    return best


@_inner
def _start(s, t, slot, free, now):
    """Put the current piece of ``t`` on its way; it shares links after its latency.

    The slot was free and the piece ready some time ago if the last message left, as it did, its
    lag before it arrived: so the route's latency is waited for once and not once a piece.
    """
    flow = s.transfers[t]
    begin = max(s.pieces[flow.piece0 + flow.chunk].ready, free, s.nodes[flow.src].resumed)
    if flow.chunk == 0:
        flow.start_s = begin
    flow.slot = slot
    enter = begin + flow.lag
    if enter > _soon(now):
        _schedule(s, enter, (ENTER << KIND_SHIFT) | t)
    else:
        _enter(s, t, now)


@_inner
def _enter(s, t, now):
    """Let the current piece of ``t`` flow, unless its node pauses."""
    flow, transfer = s.flows[t], s.transfers[t]
    if transfer.nbytes <= 0 or (not transfer.limited and s.clock[1] == np.inf):
        _work(s, t)
        return
    flow.at = s.count[ACTIVE]
    s.active[flow.at] = t
    s.count[ACTIVE] += 1
    if flow.group >= 0 and not s.nodes[transfer.src].paused:
        # The piece before it ended in this instant: for the links nothing changes.
        flow.left = s.groups[flow.group].served + transfer.nbytes
        _expect(s, t)
        return
    if flow.group >= 0:
        _leave(s, t, now)
    flow.left = transfer.nbytes
    if not s.nodes[transfer.src].paused:
        _join(s, t, now)


@_inner
def _finish(s, g, now):
    """End those pieces of a group that have left, and find out which is next."""
    _serve(s, g, now)
    group = s.groups[g]
    group.next = group.soon = np.inf
    served = group.served + group.rate * (_soon(now) - now)
    capped = g == len(s.links)
    begin = 0 if capped else s.links[g].first
    end = s.count[ACTIVE] if capped else begin + s.links[g].listed
    for i in range(begin, end):
        t = np.int64(s.active[i] if capped else s.members[i].flow)
        flow = s.flows[t]
        if flow.group != g:
            continue
        if flow.left - flow.nothing <= served:
            s.ended[s.count[ENDED]] = t
            s.count[ENDED] += 1
        else:
            group.next = min(group.next, flow.left)
            group.soon = min(group.soon, flow.left - flow.nothing)
    _aim(s, g)


@_inner
def _serve(s, g, now):
    """Bring the count of a group's bytes up to date."""
    group = s.groups[g]
    group.served += group.rate * (now - group.last)
    group.last = now


@_inner
def _aim(s, g):
    """When the next flow of a group ends, if its rate stays."""
    group, finish, early = s.groups[g], np.inf, np.inf
    if group.flows and group.rate > 0:
        finish = group.last + (group.next - group.served) / group.rate
        early = group.last + (group.soon - group.served) / group.rate
    block = s.blocks[g // BLOCK]
    stale = s.finish[g] == block.finish or s.early[g] == block.early
    s.finish[g], s.early[g] = finish, early
    if stale:
        block.finish = block.early = np.inf
        begin = g // BLOCK * BLOCK
        for k in range(begin, min(begin + BLOCK, len(s.finish))):
            block.finish = min(block.finish, s.finish[k])
            block.early = min(block.early, s.early[k])
    else:
        block.finish, block.early = min(block.finish, finish), min(block.early, early)


@_inner
def _expect(s, t):
    """Flow ``t`` is in its group: it may be the next to end there."""
    flow = s.flows[t]
    group = s.groups[flow.group]
    if flow.left - flow.nothing < group.soon or flow.left < group.next:
        group.next = min(group.next, flow.left)
        group.soon = min(group.soon, flow.left - flow.nothing)
        _aim(s, np.int64(flow.group))


@_inner
def _join(s, t, now):
    """Let the piece of ``t`` share its links; it will find its group when all is known."""
    flow = s.flows[t]
    if not s.transfers[t].limited:
        _cap(s, t, now)
        _expect(s, t)
        return
    flow.linked = 1
    s.count[REGROUP] += 1
    for h in range(flow.route0, flow.route1):
        link = s.links[s.hops[h].link]
        if link.rate == np.inf:
            continue
        member = s.members[link.first + link.listed]
        member.flow, member.hop = t, h
        s.hops[h].place = link.listed
        s.count[BUSY] += link.listed == 0
        link.listed += 1
        link.flows += s.hops[h].weight
        _soil(s, np.int64(s.hops[h].link))


@_inner
def _cap(s, t, now):
    """Only the cap holds ``t`` back."""
    flow, g = s.flows[t], len(s.links)
    group = s.groups[g]
    if group.flows == 0:
        group.served, group.next, group.soon = 0.0, np.inf, np.inf
        group.last, group.rate = now, s.clock[1]
    _serve(s, g, now)
    group.flows += 1
    flow.group = g
    flow.left += group.served


@_inner
def _leave(s, t, now):
    """Take ``t`` out of its group and off its links; what is left of its piece stands still."""
    flow, capped = s.flows[t], len(s.links)
    g = np.int64(flow.group)
    if g >= 0:
        group = s.groups[g]
        flow.left = max(0.0, flow.left - group.served - group.rate * (now - group.last))
        flow.group = -1
    if g == capped:
        s.groups[g].flows -= 1
    if flow.linked:
        _unlink(s, t, g)
    if g >= 0 and s.groups[g].flows == 0:
        _aim(s, g)


@_inner
def _unlink(s, t, g):
    """Take ``t``, until now of group ``g``, off its links."""
    flow, capped = s.flows[t], len(s.links)
    flow.linked = 0
    for h in range(flow.route0, flow.route1):
        hop = s.hops[h]
        link = s.links[hop.link]
        if link.rate == np.inf:
            continue
        if g == capped:
            link.capped -= hop.weight
        elif g == hop.link:
            s.groups[g].flows -= hop.weight
        elif g >= 0:
            s.pairs[hop.pair].flows -= hop.weight
        link.flows -= hop.weight
        link.listed -= 1
        s.count[BUSY] -= link.listed == 0
        hole, last = s.members[link.first + hop.place], s.members[link.first + link.listed]
        hole.flow, hole.hop = last.flow, last.hop
        s.hops[last.hop].place = hop.place
        _soil(s, np.int64(hop.link))


@_inner
def _soil(s, index):
    if not s.links[index].dirty:
        s.links[index].dirty = 1
        s.dirty[s.count[DIRTY]] = index
        s.count[DIRTY] += 1


@_inner
def _switch(s, node, pause, now):
    """Pause a node, or let it go on."""
    s.nodes[node].paused = pause
    if not pause:
        s.nodes[node].resumed = now
        _rouse(s, node)
        for instance in range(len(s.instances)):
            # A plan's lanes are in the order of their nodes.
            low, high = s.instances[instance].lane0, s.instances[instance].lane1
            end = high
            while low < high:
                middle = (low + high) // 2
                if s.lanes[middle].node < node:
                    low = middle + 1
                else:
                    high = middle
            while low < end and s.lanes[low].node == node:
                if s.lanes[low].root >= 0:
                    _touch(s, low)
                low += 1


@_inner
def _obey(s, now):
    """Some nodes paused or went on: so do the pieces that they are sending."""
    for k in range(s.count[ACTIVE]):
        t = np.int64(s.active[k])
        flow = s.flows[t]
        paused = s.nodes[s.transfers[t].src].paused
        if paused and (flow.linked or flow.group >= 0):
            _leave(s, t, now)
            s.count[REGROUP] += 1  # its group no longer knows which flow is next
        elif not paused and not flow.linked and flow.group < 0:
            _join(s, t, now)


@_inner
def _complete(s, t, now):
    """A piece of ``t`` arrived (or a local step is done): release what waited for it."""
    flow = s.transfers[t]
    plan = s.instances[flow.instance]
    chunk = flow.chunk
    for h in range(s.flows[t].route0, s.flows[t].route1):
        s.links[s.hops[h].link].bytes += s.hops[h].weight * flow.nbytes
    if flow.slot >= 0:
        s.slots[flow.slot] = now - flow.lag
        flow.slot = -1
        _touch(s, np.int64(flow.lane))
    flow.chunk = chunk + 1
    for k in range(flow.next0, flow.next1):
        after = np.int64(s.successors[k])
        _need(s, after, s.transfers[after].piece0 + chunk, now)
    if flow.chunk < plan.chunks:
        # The next piece follows as soon as this one has left, a lag before it arrived.
        _release(s, t, flow.piece0 + flow.chunk, now - flow.lag, now)
        return
    flow.end_s = now
    plan.left -= 1
    plan.phase_left -= 1
    if plan.left == 0:
        s.done[s.count[DONE]] = flow.instance
        s.count[DONE] += 1
    elif plan.phase_left == 0:
        plan.phase += 1
        begin = s.phases[plan.phase0 + plan.phase]
        end = s.phases[plan.phase0 + plan.phase + 1]
        plan.phase_left = end - begin
        for k in range(begin, end):
            after = np.int64(s.transfers[plan.transfer0 + k].order)
            _need(s, after, np.int64(s.transfers[after].piece0), now)


@_inner
def _release(s, t, piece, when, now):
    waiting = s.pieces[piece]
    waiting.ready = max(waiting.ready, when)
    waiting.pending -= 1
    if waiting.pending == 0:
        _ready(s, t, now)


@_inner
def _work(s, t):
    s.work[s.count[WORK]] = t
    s.count[WORK] += 1


@_inner
def _adjust(s, now):
    """Give the groups as they are the rates that they must have; False if they cannot stay.

    A group's rate is what those before it leave of its link, in equal parts. The groups can stay
    if no flow is faster than the group of another link that it crosses, and no link carries more
    than it can.
    """
    s.count[STAMP] += 2
    stamp, cap = s.count[STAMP], s.clock[1]
    for k in range(s.count[DIRTY]):
        link = s.links[s.dirty[k]]
        if link.flows == 0 or link.seen == stamp:
            continue
        order0, order1 = link.order0, link.order1
        for i in range(order0, order1):
            link = s.links[s.order[i]]
            link.spare, link.peak = link.rate, 0.0
            if link.capped:
                link.spare, link.peak = link.rate - link.capped * cap, cap
        for i in range(order0, order1):
            link, group = s.links[s.order[i]], s.groups[s.order[i]]
            if link.order0 != order0:
                continue  # filled with others since
            link.seen = stamp
            sharers = group.flows + link.foreign
            if sharers == 0:
                if link.spare < -SAME_SIZE * link.rate:
                    return False
                continue
            group.target = link.spare / sharers
            if group.target < link.peak * (1 - SAME_SIZE):
                return False
            if group.flows == 0:
                continue
            if group.target > cap:
                return False
            for p in range(group.pair0, group.pair1):
                pair = s.pairs[p]
                if pair.flows:
                    other = s.links[pair.link]
                    other.spare -= pair.flows * group.target
                    other.peak = max(other.peak, group.target)
    for k in range(s.count[DIRTY]):
        link = s.links[s.dirty[k]]
        for i in range(link.order0, link.order1):
            g = np.int64(s.order[i])
            if s.links[g].seen == stamp and s.groups[g].flows:
                s.links[g].seen = 0
                _serve(s, g, now)
                s.groups[g].rate = s.groups[g].target
                _aim(s, g)
    return True


@_inner
def _fill(s, now):
    """Max-min fair rates by progressive filling.

    All rates rise together until a link is full; then its flows have their rate, and the others
    rise on. As what flows leave each other only grows on the way, the heap of levels may be
    behind: a link that comes up is asked again before it counts as the next to be full.
    """
    n = _connected(s)
    links, levels, waiting = s.some_links, s.levels, np.int64(0)
    order0 = s.count[ORDER]
    _serve(s, len(s.links), now)
    for k in range(n):
        link, group = s.links[links[k]], s.groups[links[k]]
        _serve(s, links[k], now)
        group.flows, group.pair0, group.pair1 = 0, 0, 0
        link.capped, link.order0, link.order1 = 0, order0, order0 + n
        link.spare, link.open = link.rate, link.flows
        share = link.rate / (link.flows + link.foreign) if link.flows else np.inf
        waiting = _push(levels, waiting, share, links[k])
    stamp, rate, cap = s.count[STAMP], 0.0, s.clock[1]
    while waiting:
        g = levels[0].code
        link, group = s.links[g], s.groups[g]
        share = link.spare / (link.open + link.foreign) if link.open else np.inf
        if share > levels[0].time:
            levels[0].time = share
            _sink(levels, waiting)
            continue
        if share >= cap:
            break
        if share > rate * (1 + SAME_SIZE):
            rate = share
        waiting = _pop(levels, waiting)
        group.rate, group.next, group.soon = rate, np.inf, np.inf
        _gather(s, g, stamp)
        s.order[s.count[ORDER]] = g
        s.count[ORDER] += 1
    for k in range(waiting):
        g = levels[k].code
        s.order[s.count[ORDER]] = g
        s.count[ORDER] += 1
        if s.links[g].open:
            _gather_capped(s, g, stamp, now)
    for k in range(n):
        s.groups[links[k]].served = 0.0
        _aim(s, links[k])
    _aim(s, len(s.links))


@_inner
def _connected(s):
    """List the links to fill anew, those that flows join to changed ones; return how many."""
    s.count[STAMP] += 2
    stamp, links, n, busy, hops = s.count[STAMP], s.some_links, 0, 0, 0
    for k in range(s.count[DIRTY]):
        link = s.links[s.dirty[k]]
        link.seen = stamp
        busy += link.listed > 0
        hops += link.listed
        links[n] = s.dirty[k]
        n += 1
    k = 0
    while k < n and busy < s.count[BUSY]:
        link = s.links[links[k]]
        k += 1
        for i in range(link.first, link.first + link.listed):
            flow = s.flows[s.members[i].flow]
            if flow.seen == stamp:
                continue
            flow.seen = stamp
            for h in range(flow.route0, flow.route1):
                other = s.links[s.hops[h].link]
                if other.seen != stamp and other.rate < np.inf:
                    other.seen = stamp
                    links[n] = s.hops[h].link
                    n += 1
                    busy += 1
                    hops += other.listed
    if s.count[PAIRS] + hops > len(s.pairs) or s.count[ORDER] + n > len(s.order):
        # No room to note down more: begin again, with all links.
        s.count[PAIRS] = s.count[ORDER] = 0
        for g in range(len(s.links)):
            if s.links[g].flows and s.links[g].seen != stamp:
                links[n] = g
                n += 1
    return n


@_inner
def _gather(s, g, stamp):
    """A link is full: those of its flows that have no group yet are its group."""
    link, group = s.links[g], s.groups[g]
    s.count[STAMP] += 1
    tag = s.count[STAMP]
    group.pair0 = s.count[PAIRS]
    for i in range(link.first, link.first + link.listed):
        flow = s.flows[s.members[i].flow]
        if flow.seen > stamp:
            continue
        flow.seen = stamp + 1
        if flow.group >= 0:
            flow.left -= s.groups[flow.group].served
        if flow.group == len(s.links):
            s.groups[flow.group].flows -= 1
        flow.group = g
        group.flows += s.hops[s.members[i].hop].weight
        group.next = min(group.next, flow.left)
        group.soon = min(group.soon, flow.left - flow.nothing)
        for h in range(flow.route0, flow.route1):
            hop = s.hops[h]
            other = s.links[hop.link]
            if hop.link == g or other.rate == np.inf:
                continue
            other.spare -= hop.weight * group.rate
            other.open -= hop.weight
            if other.tag != tag:
                other.tag, other.pair = tag, s.count[PAIRS]
                pair = s.pairs[other.pair]
                pair.link, pair.flows = hop.link, 0
                s.count[PAIRS] += 1
            hop.pair = other.pair
            s.pairs[hop.pair].flows += hop.weight
    group.pair1 = s.count[PAIRS]


@_inner
def _gather_capped(s, g, stamp, now):
    """The cap comes first: those flows of a link that have no group yet are in the last one."""
    link, capped = s.links[g], len(s.links)
    for i in range(link.first, link.first + link.listed):
        t = np.int64(s.members[i].flow)
        flow = s.flows[t]
        if flow.seen > stamp:
            continue
        flow.seen = stamp + 1
        if flow.group != capped:
            if flow.group >= 0:
                flow.left -= s.groups[flow.group].served
            _cap(s, t, now)
        _expect(s, t)
        for h in range(flow.route0, flow.route1):
            s.links[s.hops[h].link].capped += s.hops[h].weight


@_inner
def _meld(s, a, b):
    """Join two queues, skew heaps of transfers, the first to send on top; -1 is an empty one."""
    if a < 0 or b < 0:
        return max(a, b)
    root, b = _ranked(s, a, b)
    a = root
    while True:
        right = np.int64(s.transfers[a].right)
        s.transfers[a].right = s.transfers[a].left
        if right < 0:
            s.transfers[a].left = b
            return root
        a, b, parent = *_ranked(s, right, b), a
        s.transfers[parent].left = a


@_inner
def _ranked(s, a, b):
    """Two transfers in the order in which their pieces go: the earlier piece, the lower number."""
    x, y = s.transfers[a].chunk, s.transfers[b].chunk
    return (a, b) if x < y or (x == y and a < b) else (b, a)


@_inner
def _before(a, b):
    return a.time < b.time or (a.time == b.time and a.code < b.code)


@_inner
def _swap(heap, i, j):
    time, code = heap[i].time, heap[i].code
    heap[i].time, heap[i].code = heap[j].time, heap[j].code
    heap[j].time, heap[j].code = time, code


@_inner
def _schedule(s, time, code):
    s.count[EVENTS] = _push(s.events, s.count[EVENTS], time, code)


@_inner
def _push(heap, n, time, code):
    """Add to a heap of ``n`` entries; return how many there are now, as :func:`_pop` does."""
    i = n
    heap[i].time, heap[i].code = time, code
    while i and _before(heap[i], heap[(i - 1) // 2]):
        _swap(heap, i, (i - 1) // 2)
        i = (i - 1) // 2
    return n + 1


@_inner
def _pop(heap, n):
    heap[0].time, heap[0].code = heap[n - 1].time, heap[n - 1].code
    _sink(heap, n - 1)
    return n - 1


@_inner
def _sink(heap, n):
    """Put the first of ``n`` entries, the only one that may be wrong, in its place."""
    i = np.int64(0)
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _before(heap[child + 1], heap[child]):
            child += 1
        if not _before(heap[child], heap[i]):
            break
        _swap(heap, i, child)
        i = child
