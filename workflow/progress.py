"""How much of a run is done, and how long the rest takes: one line on the terminal.

Jobs are weighed by how long they took the last time, which stands beside their logs, else by how
long they took where the project's own run was recorded (``data/recorded/seconds.csv``).

    python -m slowlink.workflow.progress logs/desk      records the run that wrote these logs
"""

from __future__ import annotations

import csv
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from snakemake_interface_logger_plugins.common import LogEvent

RECORDED = Path("data/recorded/seconds.csv")
UNKNOWN_S = 1.0
"""Seconds of a job that nobody has timed."""
STEP = 0.05
"""Where output goes to a file, a line comes for every such share that is done."""


class Progress(logging.Handler):
    """Follows what Snakemake logs, in whose place it tells the terminal.

    Parameters
    ----------
    jobs: of Snakemake, that are to run.
    cores: that they share.
    stream: what the line is written to.
    """

    def __init__(self, jobs: Iterable[Any], cores: int, stream: TextIO = sys.stderr) -> None:
        super().__init__()
        seconds = Seconds()
        self._weights = {job.jobid: seconds.of(job) * job.threads for job in jobs}
        self._pending, self._all = dict(self._weights), sum(self._weights.values())
        self._cores, self._stream, self._start = cores, stream, time.monotonic()
        self._told = -STEP

    @property
    def share(self) -> float:
        return 1 - self._rest / self._all if self._all else 1.0

    @property
    def _rest(self) -> float:
        return sum(self._pending.values())

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes, about, at the pace of this machine so far."""
        rest, done = self._rest / self._cores, (self._all - self._rest) / self._cores
        spent = time.monotonic() - self._start
        # The first jobs say little of the machine's pace: the estimate counts like a minute of it.
        return rest * (spent + 60) / (done + 60)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", None) == LogEvent.JOB_FINISHED:
            self._pending.pop(record.job_id, None)
            self._tell()

    def filter_terminal(self, logger: logging.Logger) -> None:
        """Listen to Snakemake; of what it writes to the terminal, leave warnings and errors."""
        for handler in logger.handlers:
            if handler.name == "DefaultStreamHandler":
                handler.addFilter(lambda record: record.levelno > logging.INFO)
        logger.addHandler(self)
        self._tell()

    def _tell(self) -> None:
        done = len(self._weights) - len(self._pending)
        line = f"{self.share:4.0%} done, {done} of {len(self._weights)} jobs"
        if self._pending:
            line += f", about {duration(self.left_s)} left"
        if self._stream.isatty():
            end = "" if self._pending else "\n"
            print(f"\r\x1b[K{line}", end=end, file=self._stream, flush=True)
        elif self.share >= self._told + STEP or not self._pending:
            self._told = self.share
            print(line, file=self._stream, flush=True)


class Seconds:
    """How long jobs took the last time."""

    def __init__(self) -> None:
        self._recorded = _recorded()

    def of(self, job: Any) -> float:
        """How long one of Snakemake's jobs took."""
        if not job.log:
            return 0.0
        log = str(job.log[0])
        taken = Path(log).with_suffix(".tsv")
        if taken.is_file():
            return _taken(taken)
        return self._recorded.get(log, UNKNOWN_S)


def _recorded() -> dict[str, float]:
    """Seconds by log of the run that was recorded; nothing if none was."""
    if not RECORDED.is_file():
        return {}
    with RECORDED.open(newline="") as file:
        return {row["log"]: float(row["s"]) for row in csv.DictReader(file)}


def _taken(file: Path) -> float:
    """What stands beside a log."""
    with file.open(newline="") as rows:
        return float(next(csv.DictReader(rows, delimiter="\t"))["s"])


def duration(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def record(logs: Path) -> None:
    """Write how long the jobs of a whole run took, which estimates others on machines without one,
    in place of what those of its scale took before."""
    before = _recorded().items()
    found = {log: s for log, s in before if not Path(log).is_relative_to(logs)}
    for file in logs.rglob("*.tsv"):
        found[file.with_suffix(".log").as_posix()] = round(_taken(file), 1)
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["log", "s"])
        writer.writerows(sorted(found.items()))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
