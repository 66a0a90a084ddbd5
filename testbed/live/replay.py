"""Record what a live run told its policy, and replay it in virtual time.

Times of what happens are whole ticks of 2^-20 s, so that sums and differences of them are exact in
float64: the virtual-time engine, given the recorded durations, meets the recorded times to the last
bit. Timers go off when the policy has said, whatever that is in ticks.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from slowlink.methods import synchronization
from slowlink.methods.synchronization import (
    Continue,
    Finished,
    Joined,
    Left,
    SetTimer,
    Sync,
    Synced,
    Timer,
    Wait,
)
from slowlink.testbed.training.virtual_time import Log, Phase, Seconds, Told, play

TICK_S = 2.0**-20

_KINDS = {
    kind.__name__: kind
    for kind in (Finished, Synced, Joined, Left, Timer, Continue, Wait, Sync, SetTimer)
}


@dataclass(frozen=True)
class Record:
    """A live run; all times are seconds since its beginning.

    Attributes
    ----------
    policy, parameters: the file name of the policy and its parameters.
    groups: the group (site) of each worker.
    told: every event that the policy saw, with its decisions.
    iterations: the seconds of each worker's finished iterations.
    meetings: (push, pull) seconds of each meeting, in the order of the decisions; NaN where the
        end came first.
    uploads: by meeting, in the same order: seconds by rank from when a worker began to send what it
        brings until the central server had all of it. Only of those that send it to that server,
        where one keeps the model and all members are on one machine, whose clock tells it.
    end: what happened until then is recorded.
    accuracy: test accuracy (%) of the server's model at the end.
    digest: of that model's bytes.
    about: how the run was made.
    """

    policy: str
    parameters: dict[str, Any]
    groups: tuple[int, ...]
    told: list[Told]
    iterations: list[list[float]]
    meetings: list[tuple[float, float]]
    end: float
    uploads: list[dict[int, float]] = field(default_factory=list)
    accuracy: float = math.nan
    digest: str = ""
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write JSON, times as numbers of ticks and one event a line."""
        told = [
            [t.event and _pack(t.event), [_pack(d) for d in t.decisions], _ticks(t.t)]
            for t in self.told
        ]
        document = asdict(self) | dict(
            told=told,
            iterations=[[_ticks(s) for s in seconds] for seconds in self.iterations],
            meetings=[[_ticks(s) for s in seconds] for seconds in self.meetings],
            uploads=[{rank: _ticks(s) for rank, s in its.items()} for its in self.uploads],
            end=_ticks(self.end),
        )
        short = json.JSONEncoder(separators=(",", ":")).encode
        entries = {name: short(value) for name, value in document.items()}
        entries["told"] = "[\n" + ",\n".join(map(short, told)) + "]"
        lines = ",\n".join(f'"{name}": {entry}' for name, entry in entries.items())
        Path(path).write_text(f"{{{lines}}}\n")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read what :meth:`save` wrote. Raises ValueError if it is not that."""
        try:
            document = json.loads(Path(path).read_text())
            told = [
                Told(event and _unpack(event), tuple(map(_unpack, decisions)), _seconds(t))
                for event, decisions, t in document["told"]
            ]
            times = dict(
                groups=tuple(document["groups"]),
                told=told,
                iterations=[[_seconds(s) for s in ticks] for ticks in document["iterations"]],
                meetings=[tuple(_seconds(s) for s in ticks) for ticks in document["meetings"]],
                uploads=[
                    {int(rank): _seconds(s) for rank, s in ticks.items()}
                    for ticks in document.get("uploads", [])  # what others recorded has none
                ],
                end=_seconds(document["end"]),
            )
            return cls(**document | times)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a recorded run ({error!r})") from error


def replayed(record: Record) -> float:
    """The share (%) of recorded events that the virtual-time engine repeats, at their times, in
    their order and with the same decisions, up to the first that differs."""
    pairs = zip(again(record).told, record.told, strict=False)
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return 100 * same / len(record.told)


def again(record: Record) -> Log:
    """Let the virtual-time engine play the policy with the durations of ``record``, and with who
    left and joined."""
    return play(
        synchronization.load(record.policy, **record.parameters),
        Iterations(record),
        Meetings(record),
        groups=record.groups,
        seconds=record.end,
        changes=[t.event for t in record.told if isinstance(t.event, Left | Joined)],
    )


def summary(record: Record) -> dict[str, float]:
    """Iterations a second of all workers together and how many they would do if they only
    computed, the share of their time that they idled, the mean staleness of what reached the
    server, and the final test accuracy (%)."""
    log = again(record)
    spent = math.fsum(span.end - span.start for span in log.spans)
    stale = log.staleness()
    return dict(
        iterations_per_s=log.iterations_per_s,
        capacity=sum(len(seconds) / math.fsum(seconds) for seconds in record.iterations if seconds),
        waited_share=log.waited() / spent,
        staleness=sum(stale) / len(stale) if stale else math.nan,
        accuracy=record.accuracy,
    )


class Iterations:
    """The recorded seconds of each worker's iterations; those that the end of the run cut off, or
    their worker's death, take longer than the run."""

    def __init__(self, record: Record) -> None:
        self.iterations, self.never = record.iterations, record.end + 1.0
        self.cut: dict[tuple[int, int], float] = {}
        """When a worker died that may have begun its iteration of this number."""
        done = [0] * len(record.groups)
        for told in record.told:
            match told.event:
                case Finished(worker=worker, iteration=iteration):
                    done[worker] = iteration
                case Left(worker=worker, t=t):
                    self.cut[worker, done[worker] + 1] = t

    def __call__(self, worker: int, iteration: int, t: float) -> float:
        seconds = self.iterations[worker]
        lost = t < self.cut.get((worker, iteration), 0.0) or iteration > len(seconds)
        return self.never if lost else seconds[iteration - 1]


class Meetings(Seconds):
    """The recorded (push, pull) seconds of each meeting; those that never ended take longer than
    the run.

    Meetings under way have no member in common, so their members tell them apart.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(0.0)
        self.meetings, self.never = record.meetings, record.end + 1.0
        self.numbers = itertools.count()
        self.pushed: dict[tuple[int, ...], int] = {}

    def seconds(self, phase: Phase, sync: Sync, t: float) -> float:
        if phase == "push" or not sync.bringing:
            self.pushed[sync.members] = next(self.numbers)
        number = self.pushed[sync.members]
        times = self.meetings[number] if number < len(self.meetings) else (math.nan, math.nan)
        took = times[phase == "pull"]
        return self.never if math.isnan(took) else took


def _ticks(seconds: float) -> float | None:
    ticks = seconds / TICK_S
    return None if math.isnan(ticks) else int(ticks) if ticks.is_integer() else ticks


def _seconds(ticks: float | None) -> float:
    return math.nan if ticks is None else ticks * TICK_S


def _pack(item: Any) -> list:
    """An event or a decision as its name and its fields."""
    values = [_ticks(v) if name == "t" else v for name, v in vars(item).items()]
    return [type(item).__name__, *values]


def _unpack(packed: list) -> Any:
    kind = _KINDS[packed[0]]
    names = [f.name for f in fields(kind)]
    values = [tuple(v) if isinstance(v, list) else v for v in packed[1:]]
    return kind(*(_seconds(v) if n == "t" else v for n, v in zip(names, values, strict=True)))
