"""What arrives at a node goes to the generator that waits for it, and what that sends goes out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slowlink.testbed.live.engine.flow import Algebra, Part, Sent, Value, flow

Tag = tuple[str, int, int]
"""Of what arrives: the fragment of the plan, the key, and the round of communication."""

Arrival = tuple[int, Mapping[str, Any], bytes]
"""A transfer's number, head and body."""

Travel = Generator[tuple[Tag, Sent | None], Arrival | None, Any]
"""Yields ``(tag, Sent)`` for what leaves, and ``(tag, None)`` to be sent the next arrival with this
tag."""

Which = Hashable
"""Names a travel among those of an exchange."""


def along(
    tag: Tag,
    part: Part,
    algebra: Algebra,
    own: Value | None,
    turn: Callable[[Value], Value] | None = None,
) -> Travel:
    """A node's part of a plan under one tag, see :func:`flow`."""
    running, arrival = flow(part, algebra, own, turn), None
    while True:
        try:
            sent = running.send(arrival)
        except StopIteration as stop:
            return stop.value
        arrival = yield tag, sent


@dataclass(kw_only=True)
class Delivery:
    """The travels of one exchange at one node: those that run, what they wait for, what has come
    before they did, and what they have ended with."""

    running: dict[Which, Travel] = field(default_factory=dict)
    waiting: dict[Tag, Which] = field(default_factory=dict)
    early: dict[Tag, deque[Arrival]] = field(default_factory=lambda: defaultdict(deque))
    results: dict[Which, Any] = field(default_factory=dict)

    def take(self, tag: Tag, arrival: Arrival) -> Which | None:
        """The travel that goes on with this arrival; None where none waits for it yet."""
        which = self.waiting.pop(tag, None)
        if which is None:
            self.early[tag].append(arrival)
        return which

    def go_on(self, which: Which, arrival: Arrival | None = None) -> Iterator[tuple[Tag, Sent]]:
        """Run a travel until it has ended or waits for what has not come; yields what leaves."""
        travel = self.running[which]
        while True:
            try:
                tag, sent = travel.send(arrival)
            except StopIteration as stop:
                del self.running[which]
                self.results[which] = stop.value
                return
            arrival = None
            if sent is not None:
                yield tag, sent
            elif self.early[tag]:
                arrival = self.early[tag].popleft()
            else:
                self.waiting[tag] = which
                return
