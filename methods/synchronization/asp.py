"""Asynchronous parallel: nobody waits for anybody."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.synchronization import Sync
from slowlink.methods.synchronization._local import Local


@dataclass
class ASP(Local):
    """Each worker, after its local iterations, adds what it changed to the server's model and
    goes on with the result (LPSP §1, ASP).

    A synchronization has one member.
    """

    summary = "Each worker exchanges with the server alone; nobody waits"
    source = "LPSP §1 (ASP [8], [@dean2012large])"
    travels = "delta"
    asynchronous = True
    alone = True

    def arrived(self, worker, t):
        return [Sync((worker,))]
