"""Measure how busy the processors are while something runs, whatever keeps them busy."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np

EVERY_S = 0.05
STAT = Path("/proc/stat")
CGROUPS = Path("/sys/fs/cgroup")


class LoadMonitor:
    """``with LoadMonitor() as monitor``: samples the kernel's counters of the processors that this
    process may use, and of the time that a quota on its control groups has held threads back."""

    def __enter__(self) -> Self:
        self._samples = [_counters()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()
        self._samples.append(_counters())

    def over(self, begin: float, end: float) -> tuple[float, float]:
        """Shares of the processors' time from ``begin`` to ``end`` (``time.monotonic``), 0 to 1:
        in which they were busy, interrupts and what the machine's own host took included, and in
        which a quota held threads back; nan where the kernel does not tell."""
        at, *counters = np.array(self._samples).T
        since = (counter - counter[0] for counter in counters)  # large ones would round
        busy, whole, held_s = (np.diff(np.interp([begin, end], at, c)).item() for c in since)
        available_s = (end - begin) * len(os.sched_getaffinity(0))
        return min(busy / whole, 1.0) if whole > 0 else math.nan, held_s / available_s

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            self._samples.append(_counters())


def queued_s() -> float:
    """Seconds that the calling thread was ready to run and had no processor, since it began; nan
    where the kernel does not tell."""
    try:
        return 1e-9 * float(Path("/proc/thread-self/schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return math.nan


def _counters() -> tuple[float, float, float, float]:
    """The time, busy and all ticks of our processors, and seconds that threads were held back."""
    return time.monotonic(), *_ticks(), _held_s()


def _ticks() -> tuple[float, float]:
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
    except OSError:
        return math.nan, math.nan
    # user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen
    rows = np.array([line[1:9] for line in lines if line and line[0] in ours], dtype=float)
    return float(rows.sum() - rows[:, 3:5].sum()), float(rows.sum())


def _held_s() -> float:
    """Seconds that our control group, or one around it, was throttled; both versions of cgroups."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return math.nan
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = CGROUPS / controllers
        for part in Path(path).parts:
            folder = folder / part.strip("/")
            found += _held(folder / "cpu.stat")
    return sum(found) if found else math.nan


def _held(file: Path) -> list[float]:
    units = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
    try:
        words = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return []
    return [units[name] * float(value) for name, value in words if name in units]
