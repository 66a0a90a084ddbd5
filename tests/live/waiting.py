"""Waiting in tests: for what is to become true, and for processes to end."""

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


def descendants(pid):
    """Names of processes that this one has started, and those, by number."""
    found = {}
    for child in children(pid):
        found |= {child: Path(f"/proc/{child}/comm").read_text().strip()} | descendants(child)
    return found


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
