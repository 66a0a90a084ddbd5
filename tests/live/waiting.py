"""Waiting in tests: for what is to become true, and for processes to end."""

import contextlib
import time
from pathlib import Path


def until(true, within_s=20.0):
    """Wait until ``true()``."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def children(pid):
    return [int(its) for its in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(ancestor):
    """Names of processes that this one has started, and those, by number."""
    names, parents, found = {}, {}, {ancestor}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            named, _, fields = path.read_text().rpartition(")")
            pid = int(path.parent.name)
            names[pid], parents[pid] = named.partition("(")[2], int(fields.split()[1])
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found - {ancestor}}


def all_end(pids, within_s):
    """Wait until none of these processes runs."""
    end = time.monotonic() + within_s
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)


def runs(pid):
    """Whether a process still runs: one that is dead may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
