"""What nodes tell each other, and what a role is: a state machine that knows no socket.

Membership. Everything between two epochs happens among fixed members; data of another epoch are
dropped. A change goes like this; schedulers of sites pass all of it on between their nodes and the
global scheduler::

    node -> scheduler    register {node, address, life}, heartbeat
    scheduler -> below   left {node}        is taken for lost, and may register again
    scheduler -> node    members {}         stand by: the membership is about to change
    node -> scheduler    ready {rounds}     rounds that the node can begin, and their lineages
    scheduler -> node    epoch {members, rounds, lineages, anew, round, lineage, addresses}
    node -> scheduler    leave              its part is over before the end
    node -> scheduler    failed {reason}    ends the run
    transport -> node    left {reason}      of a node whose process is seen to be gone
    node -> scheduler    done {}            its part is over; with the master's, all is
    scheduler -> node    stop {reason}      end; with a reason, as an error

In ``epoch``, ``members`` holds node names by site, in the order in which sums are taken
(``central``: the global server and the master), ``rounds`` by site where it goes (back) to, and
``round`` that of the receiver. Only in mixed mode sites differ. ``anew`` names who has no state of
that round and goes on with a model of its parent and fresh codecs.

A ``lineage`` tells states of a round from those of the same round in another history, which other
members have computed: see :func:`succeeding`.

``node.run`` does all of this for a role, which gets ``epoch`` and everything that other roles send;
it may itself send ``failed`` to its scheduler, which ends the run. ``members``, ``epoch``, ``left``
and ``stop`` are obeyed if the node's own scheduler sends them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a scheduler does without torch
    from slowlink.methods.compression import Payload

GLOBAL_SERVER, MASTER = "central/server", "central/master"
GLOBAL_SCHEDULER, CENTRAL_SCHEDULER = "global/scheduler", "central/scheduler"

ADDRESS = re.compile(r"tcp://[^:/\s]+:\d{1,5}\Z")

DATA = ("push", "pull")
"""Kinds that carry payloads: up towards the server, and its answer down."""

CONTROL = (
    "register",
    "members",
    "heartbeat",
    "left",
    "leave",
    "config",
    "done",
    "epoch",
    "ready",
    "stop",
    "failed",
)


def site_of(node: str) -> str:
    """The site of a node: ``site1/worker0`` is of ``site1``."""
    return node.partition("/")[0]


def scheduler_of(node: str) -> str:
    """The scheduler that watches ``node``."""
    return f"{site_of(node)}/scheduler"


def succeeding(lineage: str, epoch: int, members: Mapping[str, Sequence[str]]) -> str:
    """The lineage after one more round, completed in this epoch by these members, by site."""
    text = json.dumps([lineage, epoch, members], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Message:
    """One message between two nodes.

    Attributes
    ----------
    kind: one of ``DATA`` or ``CONTROL``.
    sender: name of the node that sent it.
    epoch: number of the membership it belongs to; data of another epoch are dropped.
    round: 0-based round of training.
    key: number of the group of tensors.
    step: round of communication of the codec, several for codecs such as PowerSGD.
    payload: one encoded tensor, or None.
    body: small data that JSON can carry.
    """

    kind: str
    sender: str = ""
    epoch: int = 0
    round: int = -1
    key: int = -1
    step: int = 0
    payload: Payload | None = None
    body: dict[str, Any] = field(default_factory=dict)


Sends = Sequence[tuple[str, Message]]
"""Messages with the name of the node each goes to; whoever carries them fills in the sender."""


class Role(Protocol):
    """A node's part in the run.

    Attributes
    ----------
    name: the node's name.
    finished: whether its part is over; another ``epoch`` may still come.
    rounds: lineages of rounds that it can begin, whose snapshots it keeps; empty if it has no state
        yet.
    """

    name: str
    finished: bool
    rounds: Mapping[int, str]

    def on(self, message: Message) -> Sends:
        """Take a message in; what to send."""

    def tick(self, now: float) -> Sends:
        """Called at least every 0.1 s while idle, with the monotonic time in seconds."""

    def snapshot(self) -> dict:
        """All that is needed to begin the present round again."""

    def restore(self, state: dict) -> None:
        """Go back to what :meth:`snapshot` gave."""
