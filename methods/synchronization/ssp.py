"""Stale synchronous parallel: nobody runs too far ahead of the slowest."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.synchronization._local import Bounded


@dataclass
class SSP(Bounded):
    """As ASP, but a worker starts no round more than ``staleness`` rounds ahead of the slowest one
    (LPSP §1, SSP; Ho et al., NeurIPS 2013).

    So at every start of a round r (from 0) the server has at least r - ``staleness`` rounds of all
    others, and the model that is read holds them; ``staleness`` 0 waits as BSP does. With several
    local iterations a round is ``local_iterations`` of them. A synchronization has one member.
    """

    summary = "Asynchronous, at most `staleness` rounds ahead of the slowest worker"
    source = "LPSP §1 (SSP [10], [@ho2013more])"
    travels = "delta"
    asynchronous = True
    alone = True

    def pace(self, worker):
        return list(self._clock)
