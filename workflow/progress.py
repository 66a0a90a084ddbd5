"""How much of a run is done, and how long the rest takes: one line on the terminal.

Jobs are weighed by how long they took the last time, which stands beside their logs, else by how
long they took where the project's own run was recorded (``data/recorded/seconds.csv``).

    python -m workflow.progress logs/desk      records the run that wrote these logs
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
"""Of a job that nobody has timed."""
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
        return 1 - sum(self._pending.values()) / self._all if self._all else 1.0

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes, about, at the pace of this machine so far."""
        rest = sum(self._pending.values()) / self._cores
        done = (self._all - sum(self._pending.values())) / self._cores
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
        self._recorded: dict[str, float] = {}
        if RECORDED.is_file():
            with RECORDED.open(newline="") as file:
                self._recorded = {row["log"]: float(row["s"]) for row in csv.DictReader(file)}

    def of(self, job: Any) -> float:
        """Of one of Snakemake's jobs."""
        if not job.log:
            return 0.0
        log = str(job.log[0])
        taken = Path(log).with_suffix(".tsv")
        if taken.is_file():
            with taken.open(newline="") as file:
                return float(next(csv.DictReader(file, delimiter="\t"))["s"])
        return self._recorded.get(log, UNKNOWN_S)


def duration(seconds: float) -> str:
    """In words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def record(logs: Path) -> None:
    """Write how long the jobs of a run took, which estimates others on machines without one."""
    found = {}
    if RECORDED.is_file():
        with RECORDED.open(newline="") as file:
            found = {row["log"]: row["s"] for row in csv.DictReader(file)}
    for file in logs.rglob("*.tsv"):
        with file.open(newline="") as rows:
            seconds = next(csv.DictReader(rows, delimiter="\t"))["s"]
        found[file.with_suffix(".log").as_posix()] = f"{float(seconds):.1f}"
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["log", "s"])
        writer.writerows(sorted(found.items()))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
