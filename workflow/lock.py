"""One run at a time in a folder."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO


def only_run(folder: Path) -> TextIO | None:
    """Clear the locks that a killed run left in Snakemake's ``folder``.

    Snakemake's own lock outlives a killed run. This one does not: the system frees it with its
    holder. Whoever gets it knows that no other run is alive. Keep what is returned; None means
    that another run is alive (or that this is one of its jobs), whose locks stay.
    """
    folder.mkdir(exist_ok=True)
    holder = open(folder / "run.lock", "w")  # noqa: SIM115 (held for as long as we run)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder.close()
        return None
    for lock in (folder / "locks").glob("*.lock"):
        lock.unlink(missing_ok=True)
    return holder
