"""Stale synchronous parallel: nobody runs too far ahead of the slowest."""

from __future__ import annotations

from dataclasses import dataclass

from methods.synchronization._local import Bounded


@dataclass
class SSP(Bounded):
    """As ASP, but a worker more than ``staleness`` rounds ahead of the slowest one waits for it
    (LPSP §1, SSP; Ho et al., NeurIPS 2013).

    So at every start of a round r (from 0) all others have computed at least r - ``staleness``
    rounds; ``staleness`` 0 waits as BSP does. With several local iterations a round is
    ``local_iterations`` of them. A synchronization has one member.
    """

    summary = "Asynchronous, at most `staleness` rounds ahead of the slowest worker"
    source = "LPSP §1 (SSP [10])"
    travels = "delta"
    asynchronous = True

    def pace(self, worker):
        return list(self._clock)
