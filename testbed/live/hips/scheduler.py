"""Schedulers: who is a member, and from which round all of them go on.

The scheduler of a site knows its nodes, watches their heartbeats and passes their messages on; the
global scheduler decides. Source: GeoMX, section 2.3 (fault tolerance is ours).
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slowlink.testbed.live.hips.messages import (
    GLOBAL_SCHEDULER,
    GLOBAL_SERVER,
    MASTER,
    Message,
    Sends,
    scheduler_of,
    site_of,
)

OnLoss = Literal["stop", "continue", "wait"]

SETTLE_S = 0.3
"""Changes that come within so long of each other make one epoch."""

STALL_S = 0.5
"""A scheduler that was held up for longer has heard nobody meanwhile, and blames nobody for it."""


class _Watch:
    """Monotonic time, and who was last heard when."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.now: float | None = None
        self.last: dict[str, float] = {}

    def tick(self, now: float) -> None:
        held_up = 0.0 if self.now is None or now - self.now < STALL_S else now - self.now
        self.last = {node: at + held_up for node, at in self.last.items()}
        self.now = now

    def hear(self, node: str) -> None:
        if self.now is not None:
            self.last[node] = self.now

    def silent(self, node: str) -> bool:
        return self.now - self.last.setdefault(node, self.now) > self.timeout_s


class SiteScheduler:
    """Stands between the nodes of a site and the global scheduler.

    Parameters
    ----------
    name: ``site1/scheduler``.
    timeout_s: a node that is silent for longer is lost.
    start_s: how long to wait for the global scheduler at first.
    patience_s: how long to wait for it to come back.
    """

    def __init__(self, name: str, timeout_s: float, start_s: float, patience_s: float) -> None:
        self.name, self.finished, self.reason = name, False, ""
        self.start_s, self.patience_s = start_s, patience_s
        self.nodes: dict[str, Message] = {}
        self._watch = _Watch(timeout_s)
        self._started: float | None = None
        self._met = False
        self._life = secrets.token_hex(8)

    def on(self, message: Message) -> Sends:
        self._watch.hear(message.sender)
        if message.sender == GLOBAL_SCHEDULER:
            return self._from_above(message)
        node = message.sender
        if scheduler_of(node) != self.name:
            return []
        if message.kind == "heartbeat":
            return [] if node in self.nodes else [(node, Message("left", body={"node": node}))]
        if message.kind == "register":
            self.nodes[node] = message
        elif message.kind in ("leave", "left") and self.nodes.pop(node, None) is None:
            return []
        return [self._up(message)]

    def _from_above(self, message: Message) -> Sends:
        self._met = True
        if message.kind == "heartbeat":
            return []
        if message.kind == "left":
            if "reason" in message.body:  # a node that left will not come back
                return self._stop(message.body["reason"])
            return self._register()
        if message.kind == "stop":
            self.finished, self.reason = True, message.body.get("reason", "")
        if message.kind == "epoch":
            body, site = message.body, site_of(self.name)
            own = dict(round=body["rounds"].get(site, 0), lineage=body["lineages"].get(site, ""))
            message = replace(message, body=body | own)
        return [(node, message) for node in self.nodes]

    def tick(self, now: float) -> Sends:
        self._watch.tick(now)
        sends = []
        if self._started is None:
            self._started = now
            sends += self._register()
        for node in [node for node in self.nodes if self._watch.silent(node)]:
            del self.nodes[node]
            reason = f"silent for {self._watch.timeout_s:g} s"
            body = {"node": node, "reason": reason}
            sends.append((GLOBAL_SCHEDULER, Message("left", body=body)))
        since = self._watch.last.get(GLOBAL_SCHEDULER, self._started)
        allowed = max(self.patience_s, self._watch.timeout_s) if self._met else self.start_s
        if now - since > allowed and not self.finished:
            sends += self._stop(f"silent for {allowed:g} s")
        return sends

    def _stop(self, reason: str) -> list[tuple[str, Message]]:
        self.finished, self.reason = True, f"lost {GLOBAL_SCHEDULER}: {reason}"
        stop = Message("stop", body={"reason": f"{self.name}: {self.reason}"})
        return [(node, stop) for node in self.nodes]

    def _register(self) -> list[tuple[str, Message]]:
        own = Message("register", body={"node": self.name, "life": self._life})
        return [(GLOBAL_SCHEDULER, own), *(self._up(its) for its in self.nodes.values())]

    def _up(self, message: Message) -> tuple[str, Message]:
        return GLOBAL_SCHEDULER, replace(message, body=message.body | {"node": message.sender})


@dataclass(frozen=True)
class _Present:
    """A node that has registered: its address, and a word that only this process of it has."""

    address: str
    life: str


class GlobalScheduler:
    """Decides on epochs, and on the end.

    Parameters
    ----------
    nodes: all that may take part, in the order of sums; no schedulers.
    expected: those without whom the first epoch does not begin.
    serving: nodes without which their site cannot take part (its server).
    on_loss: ``stop`` everything when a member is lost, ``continue`` without it, or ``wait`` for it.
    independent: whether each site counts its own rounds (mixed mode).
    timeout_s: a scheduler that is silent for longer is lost, and its site with it.
    start_s: how long to wait for all who are expected at first.
    rejoin_s: how long to wait for those lost, with ``wait``.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        expected: Collection[str],
        serving: Collection[str],
        on_loss: OnLoss,
        independent: bool,
        timeout_s: float,
        start_s: float,
        rejoin_s: float,
    ) -> None:
        self.name, self.finished, self.reason = GLOBAL_SCHEDULER, False, ""
        self.nodes, self.expected, self.serving = list(nodes), set(expected), list(serving)
        self.on_loss, self.independent = on_loss, independent
        self.start_s, self.rejoin_s = start_s, rejoin_s
        self.members: dict[str, _Present] = {}
        self._present: dict[str, _Present] = {}
        self._schedulers: dict[str, str] = {}
        """A word that only this process of it has, by name."""
        self._watch = _Watch(timeout_s)
        self._started: float | None = None
        self._changed: float | None = None
        self._lost: dict[str, tuple[float, str]] = {}
        self._broken = False
        self._number = 0
        self._asking: dict[str, _Present] = {}
        self._ready: dict[str, dict[int, str]] = {}

    def on(self, message: Message) -> Sends:
        if self.finished or message.sender not in map(scheduler_of, self.nodes):
            return []
        self._watch.hear(message.sender)
        node, known = message.body.get("node", message.sender), message.sender in self._schedulers
        if message.kind == "register" and node == message.sender:
            return self._meet(node, str(message.body.get("life", "")))
        if message.epoch > self._number:
            return self._stop(f"{self.name} was replaced, and the membership with it is lost")
        if message.kind == "left" and node == message.sender:
            return self._lose_site(node, str(message.body.get("reason")))
        if not known:  # the node was taken for lost and does not know it yet
            return [(message.sender, Message("left", body={"node": message.sender}))]
        if node not in self.nodes or site_of(node) != site_of(message.sender):
            return []
        match message.kind:
            case "register":
                return self._register(node, message.body)
            case "failed":
                return self._stop(f"{node} failed: {message.body.get('reason')}")
            case "left":
                return self._lose(node, str(message.body.get("reason")))
            case "leave" if node in (GLOBAL_SERVER, MASTER):
                return self._stop(f"{node} has left, and nothing goes on without it")
            case "leave":
                self._present.pop(node, None)
                self.expected.discard(node)
                self._changed = self._watch.now
            case "ready" if message.epoch == self._number and node in self._asking:
                rounds = message.body.get("rounds", {})
                self._ready[node] = {int(number): str(its) for number, its in rounds.items()}
                return self._announce() if self._ready.keys() == self._asking.keys() else []
            case "done" if node == MASTER:
                return self._stop("")
        return []

    def _meet(self, scheduler: str, life: str) -> Sends:
        sends: Sends = []
        if self._schedulers.get(scheduler, life) != life:
            # The scheduler before it may have lost messages; its nodes will register again.
            sends = self._lose_site(scheduler, "its process was replaced")
        self._schedulers[scheduler] = life
        return sends

    def _register(self, node: str, body: Mapping) -> Sends:
        now = _Present(str(body.get("address", "")), str(body.get("life", "")))
        sends = []
        if node in self._present and self._present[node] != now:
            sends = self._lose(node, "its process was replaced")
        if not self.finished and self._present.get(node) != now:
            self._present[node] = now
            self._changed = self._watch.now
        return sends

    def _lose_site(self, scheduler: str, reason: str) -> Sends:
        self._schedulers.pop(scheduler, None)
        sends: list[tuple[str, Message]] = []
        for node in [node for node in self.nodes if scheduler_of(node) == scheduler]:
            sends += self._lose(node, f"of {scheduler}: {reason}")
        return sends

    def _lose(self, node: str, reason: str) -> Sends:
        if self.finished or self._present.pop(node, None) is None:
            return []
        self._changed = self._watch.now
        if node in self.members.keys() | self._asking.keys():
            reason = f"lost {node}: {reason}"
            if node in (GLOBAL_SERVER, MASTER) or self.on_loss == "stop":
                return self._stop(reason)
            self._lost.setdefault(node, (self._watch.now, reason))
            self._broken = True  # even if the node comes back, its messages may be lost
        return []

    def tick(self, now: float) -> Sends:
        self._watch.tick(now)
        sends: list[tuple[str, Message]] = []
        if self._started is None:
            self._started = now
        for scheduler in sorted(s for s in self._schedulers if self._watch.silent(s)):
            sends += self._lose_site(scheduler, f"silent for {self._watch.timeout_s:g} s")
        if not self.finished:
            sends += self._next() if self._number else self._first()
        return sends

    def _first(self) -> Sends:
        missing = [node for node in self.nodes if node in self.expected - self._present.keys()]
        if not missing:
            return self._ask(self._able())
        if self._watch.now - self._started > self.start_s:
            return self._stop(f"not there after {self.start_s:g} s: {', '.join(missing)}")
        return []

    def _next(self) -> Sends:
        now = self._watch.now
        self._lost = {n: why for n, why in self._lost.items() if n not in self._present}
        if self._lost and self.on_loss == "wait":
            since, reason = min(self._lost.values())
            if now - since > self.rejoin_s:
                return self._stop(f"{reason}; it did not come back in {self.rejoin_s:g} s")
            return []
        if self._changed is None or now - self._changed < SETTLE_S:
            return []
        self._changed = None
        able = self._able()
        if not {site_of(node) for node in able} - {site_of(GLOBAL_SERVER)}:
            why = "; ".join(reason for _, reason in self._lost.values()) or "all have left"
            return self._stop(f"no worker remains: {why}")
        changed = self._broken or self._asking or able != self.members
        return self._ask(able) if changed else []

    def _able(self) -> dict[str, _Present]:
        """The nodes that can take part, in order; a site needs its server and a worker."""
        there = [node for node in self.nodes if node in self._present]
        lacking = {site_of(node) for node in set(self.serving) - self._present.keys()}
        working = {site_of(node) for node in there if node not in self.serving}
        sites = working - lacking
        return {node: self._present[node] for node in there if site_of(node) in sites}

    def _ask(self, able: dict[str, _Present]) -> Sends:
        self._number += 1
        self._asking, self._ready = able, {}
        return self._to_all(Message("members", epoch=self._number))

    def _announce(self) -> Sends:
        self.members, self._asking, self._broken = self._asking, {}, False
        sites: dict[str, list[str]] = {}
        for node in self.members:
            sites.setdefault(site_of(node), []).append(node)
        rounds: dict[str, int] = {}
        lineages: dict[str, str] = {}
        anew: list[str] = []
        for group in [[site] for site in sites] if self.independent else [list(sites)]:
            known = {node: self._ready[node] for site in group for node in sites[site]}
            begin, lineage = where_to_begin(known, self.serving)
            rounds |= dict.fromkeys(group, begin)
            lineages |= dict.fromkeys(group, lineage)
            anew += who_begins_anew(known, begin, lineage)
        addresses = {node: its.address for node, its in self.members.items()}
        body = dict(members=sites, rounds=rounds, lineages=lineages, anew=anew)
        body["addresses"] = addresses
        return self._to_all(Message("epoch", epoch=self._number, body=body))

    def _stop(self, reason: str) -> Sends:
        self.finished, self.reason = True, reason
        return self._to_all(Message("stop", body={"reason": reason}))

    def _to_all(self, message: Message) -> list[tuple[str, Message]]:
        return [(scheduler, message) for scheduler in sorted(self._schedulers)]


def where_to_begin(
    rounds: Mapping[str, Mapping[int, str]], servers: Sequence[str]
) -> tuple[int, str]:
    """The round that nodes begin with, of those that each has state of, and its lineage.

    It is one that the first server with any state can begin (without such servers: any node), of
    these the one that most nodes can with the same lineage, of these the latest; 0 where nobody has
    any state.
    """
    keepers = [node for node in servers if rounds.get(node)] or [n for n in rounds if rounds[n]]
    own = rounds[keepers[0]] if keepers else {}
    can = Counter(n for its in rounds.values() for n in its if its[n] == own.get(n))
    begin = max(own, key=lambda number: (can[number], number), default=0)
    return begin, own.get(begin, "")


def who_begins_anew(rounds: Mapping[str, Mapping[int, str]], begin: int, lineage: str) -> list[str]:
    """Nodes that have no state of this round though there is one; the master needs none."""
    lack = [node for node, its in rounds.items() if its.get(begin) != lineage and node != MASTER]
    return lack if begin else []
