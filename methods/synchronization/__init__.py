"""When workers meet: policies that see times and counts, never tensors.

The trainer (or a live engine) tells a policy what happened; the policy answers with decisions. So
every policy can be tested on worked examples without a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from slowlink.methods import room


@dataclass(frozen=True)
class Finished:
    """``worker`` computed its local iteration number ``iteration`` (from 1) at time ``t`` (s)."""

    worker: int
    iteration: int
    t: float


@dataclass(frozen=True)
class Synced:
    """``members`` hold the new model since ``t``; answers an earlier :class:`Sync`.

    Who left in the meantime is not among them.
    """

    members: tuple[int, ...]
    t: float


@dataclass(frozen=True)
class Joined:
    worker: int
    t: float


@dataclass(frozen=True)
class Left:
    worker: int
    t: float


@dataclass(frozen=True)
class Timer:
    name: str
    t: float


Event = Finished | Synced | Joined | Left | Timer


@dataclass(frozen=True)
class Continue:
    """Let ``worker`` compute its next local iteration."""

    worker: int


@dataclass(frozen=True)
class Wait:
    """``worker`` idles until a later decision names it."""

    worker: int


@dataclass(frozen=True)
class Sync:
    """Aggregate what ``members`` hold and give them the result.

    Attributes
    ----------
    members: workers, by rank.
    level: 0 inside the innermost group, counting outwards; -1 for global.
    weights: one weight a member in the aggregate; None for equal ones. Who has weight 0 brings
        nothing and only takes the result.
    """

    members: tuple[int, ...]
    level: int = -1
    weights: tuple[float, ...] | None = None

    @property
    def bringing(self) -> tuple[int, ...]:
        """The members that bring something."""
        weights = self.weights or (1.0,) * len(self.members)
        return tuple(w for w, weight in zip(self.members, weights, strict=True) if weight)


@dataclass(frozen=True)
class SetTimer:
    name: str
    t: float


Decision = Continue | Wait | Sync | SetTimer


@dataclass
class Policy:
    """Base of every synchronization policy.

    ``begin`` is called once with the group (site) of each worker, at time 0; ``on`` once an event.
    After a :class:`Synced`, the policy says which of the members go on. A :class:`Sync` names
    workers that idle, or any that no other one has under way if they compute on.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    travels: ClassVar[Literal["gradient", "delta"]] = "gradient"
    """What a worker sends: its last gradient, or its change since the last synchronization, of
    however many iterations. One instance may answer other than its class, by its parameters."""
    continues_after_upload: ClassVar[bool] = False
    """Whether a :class:`Sync` may name a worker that computes. It brings the iterations that it has
    finished; the one under way goes on, counts for its next meeting, and what it changes is added
    to the model that arrives. If not, a worker idles from its last :class:`Finished` until its
    :class:`Synced`. One instance may answer other than its class, by its parameters."""
    asynchronous: ClassVar[bool] = False
    """Whether synchronizations of disjoint members run side by side, so that a server that keeps
    the model must apply each as it comes."""

    clock_free: ClassVar[bool] = False
    """Whether decisions are the same whatever the clock says, so that one training run serves
    every network."""

    together: ClassVar[bool] = False
    """Whether every meeting has all workers as members, and each has brought ``local_iterations``:
    rounds then follow each other. One instance may answer other than its class, by its
    parameters."""

    alone: ClassVar[bool] = False
    """Whether every meeting has one member, who meets the server."""

    averages_inside: ClassVar[bool] = False
    """Whether some meetings average a part of the workers without reaching the server's model
    (:attr:`Sync.level` 0). One instance may answer other than its class, by its parameters."""

    groups: tuple[int, ...] = field(default=(), init=False)

    def begin(self, groups: Sequence[int]) -> list[Decision]:
        """Start with ``groups[rank]`` the group of each worker; all workers compute first."""
        self.groups = tuple(groups)
        return [Continue(rank) for rank in range(len(self.groups))]

    def on(self, event: Event) -> list[Decision]:
        raise NotImplementedError


names, load = room("slowlink.methods.synchronization", Policy)
