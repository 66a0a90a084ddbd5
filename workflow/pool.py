"""Jobs, each in a process of its own, forked from one that has imported what all of them need.

A new interpreter needs three seconds of processor time for the imports of a job, a fork of one that
has done them milliseconds.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from slowlink.testbed.live import fork_server

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_CONTEXT = multiprocessing.get_context("forkserver")
# Python's fork server has its children import the main module, which under Snakemake is a line that
# calls its command.
_CONTEXT.set_forkserver_preload(["slowlink.workflow.warm", "snakemake.cli"])
_LOCK = threading.Lock()
"""How a process ended can be read once. Starting one reads it of all that ended, so that without
the lock a thread that waits for its own could find it gone, and take it for a failure."""


def begin() -> None:
    """Start the process that jobs are forked from, which imports what they need meanwhile."""
    for name in THREADS:
        os.environ.setdefault(name, "1")  # it must not start threads
    forkserver.ensure_running()


def run(module: str, log: str, threads: int = 1, **given: Any) -> None:
    """Run ``main(say, **given)`` of a module in a process, and wait for its end.

    ``say(message)`` writes to the log. Beside it, a file ``.tsv`` gets what the job took: seconds,
    seconds of processor time and MB of memory.

    Raises
    ------
    RuntimeError
        The job failed; the terminal has the error in one line, the log its traceback.
    """
    begin()
    child = _CONTEXT.Process(target=_job, args=(module, log, threads, given))
    with _LOCK:
        child.start()
    wait([child.sentinel])
    with _LOCK:
        child.join()
    if child.exitcode:
        how = f"was ended by signal {-child.exitcode}" if child.exitcode < 0 else "failed"
        raise RuntimeError(f"the job {how} (log: {log})")


def _job(module: str, log: str, threads: int, given: dict[str, Any]) -> None:
    # Whoever kills the run kills its jobs: the fork server ends with the run, and they with it.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    import torch

    start = time.monotonic()
    # Processes of live runs need not import anew what this one has, which has one thread yet.
    with fork_server.forked(), logged(log) as say:
        torch.set_num_threads(threads)
        importlib.import_module(module).main(say, **given)
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in spent)
    rss_mb = max(one.ru_maxrss for one in spent) / 1024
    Path(log).with_suffix(".tsv").write_text(
        f"s\tcpu_s\trss_mb\n{time.monotonic() - start:.3f}\t{cpu_s:.3f}\t{rss_mb:.0f}\n"
    )


@contextmanager
def logged(log: str | Path) -> Iterator[Callable[[str], None]]:
    """Yield ``say`` of a job. An error ends the process with one line on the terminal."""
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:

        def say(message: str) -> None:
            file.write(f"{message}\n")
            file.flush()

        try:
            yield say
        except Exception as error:
            traceback.print_exc(file=file)
            print(f"\nerror: {error} (log: {log})", file=sys.stderr, flush=True)
            sys.exit(1)
