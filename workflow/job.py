"""What every script of the workflow shares: a log, progress on the terminal, errors in one line."""

from __future__ import annotations

import fcntl
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

EVERY_S = 5.0
"""Progress lines on the terminal come no faster than this; the log gets all of them."""


@contextmanager
def job(log: str | Path) -> Iterator[Callable[[str], None]]:
    """Yield ``say(message)``, which writes to the log and, now and then, to the terminal.

    An error ends the job with one line on the terminal; the log keeps the traceback.
    """
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        last = 0.0

        def say(message: str) -> None:
            nonlocal last
            file.write(f"{message}\n")
            file.flush()
            if time.monotonic() - last >= EVERY_S:
                last = time.monotonic()
                print(f"  {message}", file=sys.stderr, flush=True)

        try:
            yield say
        except Exception as error:
            traceback.print_exc(file=file)
            print(f"error: {error} (log: {log})", file=sys.stderr, flush=True)
            sys.exit(1)


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
