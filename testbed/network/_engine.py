"""The compiled core of the fluid simulator: events, and max-min fair rates between them.

State is arrays of records. A transfer sends one piece (chunk) at a time, so everything about the
piece in flight lives in its transfer's record. All that happens at one instant is handled as one
batch, and rates are solved again only for the transfers that share links, directly or through
others, with one that began or ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

TRANSFER = np.dtype(
    [
        # Fixed when the plan starts.
        ("src", "i4"),
        ("dst", "i4"),
        ("instance", "i4"),
        ("limited", "i1"),  # has a link that constrains
        ("linked", "i1"),  # its piece is in the lists of its links
        ("latency", "f8"),
        ("nbytes", "f8"),  # of a piece
        ("piece0", "i8"),
        ("route0", "i8"),
        ("route1", "i8"),
        ("next0", "i8"),  # transfers that depend on this one
        ("next1", "i8"),
        ("order", "i8"),  # entry of the instance's list of transfers by phase
        # The piece in flight.
        ("chunk", "i8"),
        ("slot", "i8"),
        ("remaining", "f8"),
        ("rate", "f8"),
        ("last", "f8"),  # when ``remaining`` was right
        ("finish", "f8"),
        ("target", "f8"),
        ("mark", "i8"),
        ("left", "i8"),  # children in its sender's queue
        ("right", "i8"),
        ("start_s", "f8"),
        ("end_s", "f8"),
    ],
    align=True,
)
PIECE = np.dtype([("ready", "f8"), ("pending", "i4")], align=True)
HOP = np.dtype([("link", "i8"), ("owner", "i8"), ("next", "i8"), ("prev", "i8")])
INSTANCE = np.dtype(
    [
        ("chunks", "i8"),
        ("window", "i8"),
        ("left", "i8"),
        ("transfer0", "i8"),
        ("slot0", "i8"),
        ("phase0", "i8"),
        ("phase", "i8"),
        ("phase_left", "i8"),
    ]
)
SENDER = np.dtype([("root", "i8"), ("last", "f8"), ("touched", "i8")])
LINK = np.dtype(
    [
        ("rate", "f8"),  # bytes/s
        ("bytes", "f8"),
        ("head", "i8"),
        ("flows", "i8"),
        ("foreign", "i8"),  # background flows
        ("spare", "f8"),
        ("open", "i8"),
        ("mark", "i8"),
        ("dirty", "i8"),
    ]
)
NODE = np.dtype([("paused", "i8"), ("resumed", "f8")])
EVENT = np.dtype([("time", "f8"), ("code", "i8")])
CHANGE = np.dtype([("link", "i8"), ("rate", "f8"), ("foreign", "i8")])

# Kinds of timed events, in the order in which one instant handles them.
RESUME, PAUSE, ALTER, READY, ENTER, CLOSE = range(6)
KIND_SHIFT = 40

# Entries of ``State.count``.
ACTIVE, EVENTS, WORK, TOUCHED, DIRTY, DONE, STAMP = range(7)
N_COUNTS = 7

SAME_SIZE = 1e-9
"""Share of a piece, or of a link's rate, that counts as nothing."""
SAME_TIME = 1e-14
"""Share of the clock within which timed events are simultaneous: rounding only."""


class State(NamedTuple):
    transfers: np.ndarray
    pieces: np.ndarray
    hops: np.ndarray
    successors: np.ndarray
    phases: np.ndarray
    slots: np.ndarray  # when each send slot was last free, inf while it is taken
    instances: np.ndarray
    senders: np.ndarray  # (instances, nodes)
    links: np.ndarray
    nodes: np.ndarray
    changes: np.ndarray  # what links become
    events: np.ndarray  # a binary heap
    active: np.ndarray
    work: np.ndarray
    touched: np.ndarray
    dirty: np.ndarray
    some_flows: np.ndarray
    some_links: np.ndarray
    done: np.ndarray
    count: np.ndarray
    clock: np.ndarray  # now, and the rate cap of a transfer


POOLS = dict(
    transfers=TRANSFER,
    pieces=PIECE,
    hops=HOP,
    successors=np.dtype("i8"),
    phases=np.dtype("i8"),
    slots=np.dtype("f8"),
    instances=INSTANCE,
)
"""The arrays of which every running plan has a block."""


def empty_state(nodes: int, links: int, events: int, changes: int) -> State:
    """Nothing runs, at time 0; room for so many nodes, links, events and changes of links."""
    state = State(
        **{name: np.zeros(0, dtype) for name, dtype in POOLS.items()},
        senders=np.zeros((0, nodes), SENDER),
        links=np.zeros(links, LINK),
        nodes=np.zeros(nodes, NODE),
        events=np.zeros(events + changes, EVENT),
        changes=np.zeros(changes, CHANGE),
        dirty=np.zeros(links, np.int64),
        some_links=np.zeros(links, np.int64),
        count=np.zeros(N_COUNTS, np.int64),
        clock=np.array([0.0, np.inf]),
        **dict.fromkeys(("active", "work", "touched", "some_flows", "done"), np.zeros(0, np.int64)),
    )
    state.links["head"] = -1
    state.nodes["resumed"] = -np.inf
    return state


def grown(state: State, pools: dict[str, np.ndarray]) -> State:
    """``state`` with ``pools`` in place of its own, and room for all that may happen in them.

    A transfer has at most one timed event at a time, and so has an instance.
    """
    more = {name: len(array) - len(getattr(state, name)) for name, array in pools.items()}
    t, i = more["transfers"], more["instances"]
    room = dict(events=t + i, active=t, work=t, some_flows=t, senders=i, done=i)
    room["touched"] = i * state.senders.shape[1]
    longer_ones = {
        name: longer(getattr(state, name), len(getattr(state, name)) + extra)
        for name, extra in room.items()
    }
    longer_ones["senders"]["root"][len(state.senders) :] = -1
    return state._replace(**pools, **longer_ones)


def longer(array: np.ndarray, length: int) -> np.ndarray:
    """``array`` with zeros after it up to ``length``."""
    new = np.zeros((length, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


@numba.njit(cache=True)
def advance(s, until, first):
    """Run until the time ``until``, or only to the first completion if that comes before."""
    while not (first and s.count[DONE]):
        time = np.inf
        for k in range(s.count[ACTIVE]):
            time = min(time, s.transfers[s.active[k]].finish)
        if s.count[EVENTS]:
            time = min(time, s.events[0].time)
        if time > until or time == np.inf:
            if until < np.inf:
                s.clock[0] = until
            return
        s.clock[0] = max(time, s.clock[0])
        _instant(s, s.clock[0])


@numba.njit(cache=True)
def push_events(s, times, codes):
    for i in range(len(times)):
        _push(s, times[i], codes[i])


@numba.njit(cache=True)
def _instant(s, now):
    k = 0
    while k < s.count[ACTIVE]:
        t = s.active[k]
        flow = s.transfers[t]
        if flow.finish <= now or (flow.finish - now) * flow.rate <= SAME_SIZE * flow.nbytes:
            _unlink(s, t, now)
            s.count[ACTIVE] -= 1
            s.active[k] = s.active[s.count[ACTIVE]]
            _work(s, t)
        else:
            k += 1
    while s.count[EVENTS] and s.events[0].time <= _soon(now):
        code = _pop(s)
        kind, item = code >> KIND_SHIFT, code & ((1 << KIND_SHIFT) - 1)
        if kind == READY:
            _ready(s, item, now)
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
    while s.count[WORK] or s.count[TOUCHED]:
        while s.count[WORK]:
            s.count[WORK] -= 1
            _complete(s, s.work[s.count[WORK]], now)
        # Only now, when all that may start is known, do senders choose.
        for i in range(s.count[TOUCHED]):
            _send(s, s.touched[i], now)
        s.count[TOUCHED] = 0
    if s.count[DIRTY]:
        _share(s, now)


@numba.njit(cache=True)
def _soon(now):
    return now + SAME_TIME * abs(now)


@numba.njit(cache=True)
def _ready(s, t, now):
    """The current piece of ``t`` lacks nothing: send it, now or when its time comes."""
    flow = s.transfers[t]
    ready = s.pieces[flow.piece0 + flow.chunk].ready
    if ready > _soon(now):
        _push(s, ready, (READY << KIND_SHIFT) | t)
    elif flow.src == flow.dst:
        _work(s, t)
    elif s.instances[flow.instance].window == 0 and not s.nodes[flow.src].paused:
        _start(s, t, -1, -np.inf, now)
    else:
        sender = s.senders[flow.instance, flow.src]
        s.transfers[t].left = -1
        s.transfers[t].right = -1
        sender.root = _meld(s, sender.root, t)
        _touch(s, flow.instance, flow.src)


@numba.njit(cache=True)
def _touch(s, instance, node):
    if not s.senders[instance, node].touched:
        s.senders[instance, node].touched = 1
        s.touched[s.count[TOUCHED]] = instance * s.senders.shape[1] + node
        s.count[TOUCHED] += 1


@numba.njit(cache=True)
def _send(s, which, now):
    """Start what a sender's queue holds, lowest number first, as far as slots allow."""
    instance, node = which // s.senders.shape[1], which % s.senders.shape[1]
    sender = s.senders[instance, node]
    sender.touched = 0
    window = s.instances[instance].window
    while sender.root >= 0 and not s.nodes[node].paused:
        slot, free = -1, -np.inf
        if window:
            slot = s.instances[instance].slot0 + node * window
            for k in range(slot + 1, slot + window):
                if s.slots[k] < s.slots[slot]:
                    slot = k
            free = s.slots[slot]
            if free == np.inf:
                break
            s.slots[slot] = np.inf
        t = sender.root
        sender.root = _meld(s, s.transfers[t].left, s.transfers[t].right)
        _start(s, t, slot, free, now)


@numba.njit(cache=True)
def _start(s, t, slot, free, now):
    """Put the current piece of ``t`` on its way; it shares links after its latency.

    The slot was free and the piece ready some time ago if the last message left, as it did, its
    latency before it arrived: so that latency is waited for once and not once a piece.
    """
    flow = s.transfers[t]
    begin = max(s.pieces[flow.piece0 + flow.chunk].ready, free, s.nodes[flow.src].resumed)
    if flow.chunk == 0:
        flow.start_s = begin
    flow.slot = slot
    enter = begin + flow.latency
    if enter > _soon(now):
        _push(s, enter, (ENTER << KIND_SHIFT) | t)
    else:
        _enter(s, t, now)


@numba.njit(cache=True)
def _enter(s, t, now):
    flow = s.transfers[t]
    if flow.nbytes <= 0 or (not flow.limited and s.clock[1] == np.inf):
        _work(s, t)
        return
    flow.remaining = flow.nbytes
    flow.rate = 0.0
    flow.last = now
    flow.finish = np.inf
    s.active[s.count[ACTIVE]] = t
    s.count[ACTIVE] += 1
    if not s.nodes[flow.src].paused:
        _link(s, t, now)


@numba.njit(cache=True)
def _link(s, t, now):
    """Let the piece of ``t`` share: put it in the lists of the links that it crosses."""
    flow = s.transfers[t]
    if not flow.limited:
        _set_rate(s, t, s.clock[1], now)
        return
    flow.linked = 1
    for h in range(flow.route0, flow.route1):
        hop = s.hops[h]
        link = s.links[hop.link]
        if link.rate == np.inf:
            continue
        hop.prev = -1
        hop.next = link.head
        if link.head >= 0:
            s.hops[link.head].prev = h
        link.head = h
        link.flows += 1
        _soil(s, hop.link)


@numba.njit(cache=True)
def _unlink(s, t, now):
    """Stop the piece of ``t``, and give its share of its links to others."""
    _set_rate(s, t, 0.0, now)
    flow = s.transfers[t]
    if not flow.linked:
        return
    flow.linked = 0
    for h in range(flow.route0, flow.route1):
        hop = s.hops[h]
        link = s.links[hop.link]
        if link.rate == np.inf:
            continue
        if hop.prev >= 0:
            s.hops[hop.prev].next = hop.next
        else:
            link.head = hop.next
        if hop.next >= 0:
            s.hops[hop.next].prev = hop.prev
        link.flows -= 1
        _soil(s, hop.link)


@numba.njit(cache=True)
def _soil(s, index):
    if not s.links[index].dirty:
        s.links[index].dirty = 1
        s.dirty[s.count[DIRTY]] = index
        s.count[DIRTY] += 1


@numba.njit(cache=True)
def _set_rate(s, t, rate, now):
    flow = s.transfers[t]
    flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.last))
    flow.last = now
    flow.rate = rate
    flow.finish = now + flow.remaining / rate if rate > 0 else np.inf


@numba.njit(cache=True)
def _switch(s, node, pause, now):
    """Pause a node, or let it go on."""
    s.nodes[node].paused = pause
    for k in range(s.count[ACTIVE]):
        t = s.active[k]
        if s.transfers[t].src == node:
            if pause:
                _unlink(s, t, now)
            else:
                _link(s, t, now)
    if not pause:
        s.nodes[node].resumed = now
        for instance in range(len(s.instances)):
            if s.senders[instance, node].root >= 0:
                _touch(s, instance, node)


@numba.njit(cache=True)
def _complete(s, t, now):
    """A piece of ``t`` arrived (or a local step is done): release what waited for it."""
    flow = s.transfers[t]
    plan = s.instances[flow.instance]
    chunk = flow.chunk
    s.senders[flow.instance, flow.dst].last = now
    for h in range(flow.route0, flow.route1):
        s.links[s.hops[h].link].bytes += flow.nbytes
    if flow.slot >= 0:
        s.slots[flow.slot] = now - flow.latency
        flow.slot = -1
        _touch(s, flow.instance, flow.src)
    flow.chunk = chunk + 1
    for k in range(flow.next0, flow.next1):
        after = s.successors[k]
        _release(s, after, s.transfers[after].piece0 + chunk, now, now)
    if flow.chunk < plan.chunks:
        # The next piece follows as soon as this one has left, a latency before it arrived.
        _release(s, t, flow.piece0 + flow.chunk, now - flow.latency, now)
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
            after = s.transfers[plan.transfer0 + k].order
            _release(s, after, s.transfers[after].piece0, now, now)


@numba.njit(cache=True)
def _release(s, t, piece, when, now):
    waiting = s.pieces[piece]
    waiting.ready = max(waiting.ready, when)
    waiting.pending -= 1
    if waiting.pending == 0:
        _ready(s, t, now)


@numba.njit(cache=True)
def _work(s, t):
    s.work[s.count[WORK]] = t
    s.count[WORK] += 1


@numba.njit(cache=True)
def _share(s, now):
    """Max-min fair rates by progressive filling, where a link's list of flows has changed."""
    s.count[STAMP] += 1
    stamp = s.count[STAMP]
    flows, links, n_flows, n_links = s.some_flows, s.some_links, 0, 0
    for k in range(s.count[DIRTY]):
        s.links[s.dirty[k]].dirty = 0
        s.links[s.dirty[k]].mark = stamp
        links[n_links] = s.dirty[k]
        n_links += 1
    s.count[DIRTY] = 0
    k = 0
    while k < n_links:
        h = s.links[links[k]].head
        k += 1
        while h >= 0:
            t = s.hops[h].owner
            h = s.hops[h].next
            flow = s.transfers[t]
            if flow.mark == stamp:
                continue
            flow.mark = stamp
            flow.target = -1.0
            flows[n_flows] = t
            n_flows += 1
            for j in range(flow.route0, flow.route1):
                link = s.links[s.hops[j].link]
                if link.mark != stamp and link.rate < np.inf:
                    link.mark = stamp
                    links[n_links] = s.hops[j].link
                    n_links += 1
    for k in range(n_links):
        link = s.links[links[k]]
        link.spare = link.rate
        link.open = link.flows

    before = 0.0
    while True:
        level, kept = np.inf, 0
        for k in range(n_links):
            link = s.links[links[k]]
            if link.open:
                level = min(level, link.spare / (link.open + link.foreign))
                links[kept] = links[k]
                kept += 1
        n_links = kept
        level = before = max(level, before)  # rounding apart, levels rise
        if n_links == 0 or level >= s.clock[1]:
            break
        for k in range(n_links):
            link = s.links[links[k]]
            if not link.open or link.spare > level * (link.open + link.foreign) * (1 + SAME_SIZE):
                continue
            h = link.head
            while h >= 0:
                flow = s.transfers[s.hops[h].owner]
                h = s.hops[h].next
                if flow.target < 0:
                    flow.target = level
                    for j in range(flow.route0, flow.route1):
                        crossed = s.links[s.hops[j].link]
                        crossed.spare -= level
                        crossed.open -= 1
    for k in range(n_flows):
        flow = s.transfers[flows[k]]
        rate = flow.target if flow.target >= 0 else s.clock[1]
        if rate != flow.rate:
            _set_rate(s, flows[k], rate, now)


@numba.njit(cache=True)
def _meld(s, a, b):
    """Join two queues (skew heaps of transfer numbers, lowest first); -1 is an empty one."""
    if a < 0 or b < 0:
        return max(a, b)
    root = min(a, b)
    a, b = root, max(a, b)
    while True:
        right = s.transfers[a].right
        s.transfers[a].right = s.transfers[a].left
        if right < 0:
            s.transfers[a].left = b
            return root
        s.transfers[a].left = min(right, b)
        a, b = min(right, b), max(right, b)


@numba.njit(cache=True)
def _before(a, b):
    return a.time < b.time or (a.time == b.time and a.code < b.code)


@numba.njit(cache=True)
def _swap(heap, i, j):
    time, code = heap[i].time, heap[i].code
    heap[i].time, heap[i].code = heap[j].time, heap[j].code
    heap[j].time, heap[j].code = time, code


@numba.njit(cache=True)
def _push(s, time, code):
    heap = s.events
    i = s.count[EVENTS]
    s.count[EVENTS] += 1
    heap[i].time, heap[i].code = time, code
    while i and _before(heap[i], heap[(i - 1) // 2]):
        _swap(heap, i, (i - 1) // 2)
        i = (i - 1) // 2


@numba.njit(cache=True)
def _pop(s):
    heap = s.events
    code = heap[0].code
    s.count[EVENTS] -= 1
    n = s.count[EVENTS]
    _swap(heap, 0, n)
    i = 0
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _before(heap[child + 1], heap[child]):
            child += 1
        if not _before(heap[child], heap[i]):
            break
        _swap(heap, i, child)
        i = child
    return code
