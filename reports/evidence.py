"""Claims and results, asked for values: what a document prints, and what we have in its place."""

from __future__ import annotations

import copy
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import special

from slowlink.reports import expressions
from slowlink.reports.claims import NO_COORDINATES, Claim, Coordinate, Lookup, coordinate
from slowlink.reports.expressions import Interval

MIN_SEEDS = 3
CONFIDENCE = 0.95
AGREES = 0.1
"""Share within which kinds of evidence agree where no claim says how near is near enough."""
ROUNDING = 1e-9
"""Deterministic values this close, relative to their size, are equal."""


_SCALES: dict[str, tuple[Callable, Callable]] = {
    "": (lambda v: v, lambda v: v),
    "ratio": (np.log, np.exp),
    "duration": (np.log, np.exp),
    "change": (lambda v: np.log1p(v / 100), lambda v: 100 * np.expm1(v)),
}
"""Functions to the scale on which seeds are averaged, and back, by quantity."""


@dataclass(frozen=True)
class Estimate:
    """Our number: the mean over seeds with its interval, or one deterministic value (seeds 0).

    Seeds that never reached their target are infinite, and then so is the mean. With ``beyond``,
    this is a bound: the number is at least that (1), or at most (-1).
    """

    mean: float
    interval: Interval
    seeds: int = 0
    by_seed: pd.Series | None = None
    quantity: str = ""
    beyond: int = 0

    @classmethod
    def of(cls, value: float | pd.Series, quantity: str = "") -> Estimate:
        """The estimate of one value, or of one a seed. Ratios and relative changes are averaged as
        logarithms: twice as fast and half as fast lie equally far from equal. So are durations, as
        of a training, and compared so, too: none is below zero, and what takes long varies much.
        No interval of a share (%) goes beyond 0 and 100."""
        if not isinstance(value, pd.Series):
            return cls(float(value), Interval.of(value))
        values = value.to_numpy(float)
        if np.isinf(values).any():
            return cls(math.inf, Interval(-math.inf, math.inf), len(value), value)
        there, back = _SCALES.get(quantity, _SCALES[""])
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = there(values)
        if not np.isfinite(scaled).all():  # a ratio of 0 or below has no logarithm
            quantity, (there, back), scaled = "", _SCALES[""], values
        low, high = t_interval(scaled)
        mean = float(back(scaled.mean()))
        if not math.isfinite(low):
            return cls(mean, Interval(-math.inf, math.inf), len(value), value, quantity)
        low, high = float(back(low)), float(back(high))
        if quantity == "share":
            low, high = max(low, 0.0), min(high, 100.0)
        return cls(mean, Interval(low, high), len(value), value, quantity)

    def bounding(self, beyond: int) -> Estimate:
        """What is at least this, or at most."""
        low, high = self.interval.low, self.interval.high
        interval = Interval(low, math.inf) if beyond > 0 else Interval(-math.inf, high)
        return replace(self, interval=interval, beyond=beyond)

    def below(self, other: Estimate, among: int = 1) -> bool:
        """Whether this lies surely below ``other``.

        Runs of one seed share data order and initial weights, so two series of seeds are compared
        pair by pair: the 95 % interval of their difference must lie above zero, a wider one where
        the question is one ``among`` several of which any may be answered with yes. What no seed
        ever reached comes after what every seed reached.
        """
        if self.never or other.never:
            few = any(0 < one.seeds < MIN_SEEDS for one in (self, other))
            return not (self.never or few) and other.never == (other.seeds or 1)
        if self.by_seed is None or other.by_seed is None:
            return self.interval.high < other.interval.low and not self.equals(other)
        return self.chance(other) < (1 - CONFIDENCE) / 2 / among

    def chance(self, other: Estimate) -> float:
        """The p of a one-sided paired t-test that this lies below ``other``; 0 where nothing is
        random, NaN where it cannot be told."""
        if self.never or other.never:
            return math.nan
        if self.by_seed is None or other.by_seed is None:
            return 0.0
        difference = self._up_to(other)
        if len(difference) < MIN_SEEDS:
            return math.nan
        if np.ptp(difference) <= ROUNDING * abs(difference[0]):
            return 0.0 if difference[0] > 0 else 1.0
        return float(special.stdtr(len(difference) - 1, -difference.mean() / _error(difference)))

    def apart(self, value: float) -> float:
        """The p of a two-sided t-test that the mean over seeds is ``value``; 0 where nothing is
        random, NaN where it cannot be told."""
        if self.never or 0 < self.seeds < MIN_SEEDS:
            return math.nan
        if self.by_seed is None:
            return 0.0
        there, _ = _SCALES.get(self.quantity, _SCALES[""])
        with np.errstate(divide="ignore", invalid="ignore"):
            away = there(self.by_seed.to_numpy(float)) - there(value)
        if not np.isfinite(away).all():  # no mean on this scale is there
            return 0.0
        if np.ptp(away) <= ROUNDING * abs(away[0]):
            return 0.0
        return float(2 * special.stdtr(len(away) - 1, -abs(away.mean()) / _error(away)))

    def equals(self, other: Estimate) -> bool:
        """Whether both are deterministic and the same up to rounding."""
        if self.never or other.never:
            return False
        same = math.isclose(self.mean, other.mean, rel_tol=ROUNDING, abs_tol=ROUNDING)
        return not self.seeds and not other.seeds and same

    @functools.cached_property
    def never(self) -> int:
        """How many seeds never reached their target; 1 of what is deterministic and did not."""
        if self.by_seed is None:
            return int(math.isinf(self.mean))
        return int(np.isinf(self.by_seed.to_numpy()).sum())

    def near(self, other: Estimate, share: float) -> bool:
        """Whether the means differ by less than this share of the larger one."""
        return abs(self.mean - other.mean) < share * max(abs(self.mean), abs(other.mean))

    def gap(self, other: Estimate) -> str:
        """How far ``other`` lies above this, seed by seed, in words; empty without seeds."""
        if self.by_seed is None or other.by_seed is None or self.never or other.never:
            return ""
        return f", larger by {Estimate.of(pd.Series(self._up_to(other)))}"

    def _up_to(self, other: Estimate) -> np.ndarray:
        """How far ``other`` lies above this, by the seeds of both."""
        (ours, theirs), _ = _paired([self.by_seed, other.by_seed])
        if self.quantity == other.quantity == "duration":
            ours, theirs = np.log(ours), np.log(theirs)
        apart = theirs - ours
        return apart[~np.isnan(apart)]

    def __str__(self) -> str:
        low, high = self.interval.low, self.interval.high
        if self.beyond:
            return f"at least {number(low)}" if self.beyond > 0 else f"at most {number(high)}"
        if self.never:
            some = self.never < self.seeds
            return f"{self.never} of {self.seeds} seeds never" if some else "never"
        if self.seeds and not math.isfinite(low):
            return f"{number(self.mean)} ({self.seeds} seed{'s' * (self.seeds > 1)})"
        if high - low <= 1e-9 * abs(self.mean):  # seeds that agree up to rounding
            return number(self.mean)
        # No digit beyond the second that the interval leaves open.
        digits = max(0, 1 - math.floor(math.log10((high - low) / 2)))
        mean, low, high = (f"{value:z.{digits}f}" for value in (self.mean, low, high))
        return f"{mean} [{low}, {high}]"


def t_interval(values: Iterable[float]) -> tuple[float, float]:
    """95 % interval of the mean by Student's t; unbounded below three values."""
    sample = np.asarray(list(values), dtype=float)
    if len(sample) < MIN_SEEDS:
        return -math.inf, math.inf
    half = special.stdtrit(len(sample) - 1, (1 + CONFIDENCE) / 2) * _error(sample)
    return float(sample.mean() - half), float(sample.mean() + half)


def _error(sample: np.ndarray) -> float:
    """The standard error of the mean."""
    return sample.std(ddof=1) / math.sqrt(len(sample))


def number(value: float) -> str:
    """A number with four significant digits, without an exponent where that is readable; a count
    that has more, such as one of bytes, in full."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e9 and value == round(value) != float(f"{value:.4g}"):
        return f"{value:.0f}"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        digits = 3 - math.floor(math.log10(abs(value))) if value else 0
        text = f"{value:.{max(digits, 0)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.4g}".split("e")
    return f"{mantissa}e{int(exponent)}"


def show(value: Any) -> str:
    """A recipe value as the report writes it."""
    if isinstance(value, float):
        return number(value)
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{key} {show(one)}" for key, one in value.items())
    return str(value)


@dataclass
class Found:
    """What lookups brought besides values: all that must be said about the rows behind them.

    ``kinds`` counts the kinds of evidence behind the least supported quantity, as far as they are
    ``near`` each other; ``agreement`` and ``disagreement`` say how far another kind is from the
    first. ``late`` are runs that only ended before the target, ``undefined`` says why there is no
    value although rows are there.
    """

    near: Callable[[float, float], bool] = lambda one, other: math.isclose(
        one, other, rel_tol=AGREES
    )
    evidence: set[str] = field(default_factory=set)
    kinds: int = 99
    disagreement: list[str] = field(default_factory=list)
    agreement: list[str] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    undefined: list[str] = field(default_factory=list)
    missing: list[Lookup] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """What ``other`` saw, too."""
        self.evidence |= other.evidence
        self.models |= other.models
        self.kinds = min(self.kinds, other.kinds)
        for name in ("agreement", "disagreement", "failures", "late", "undefined", "missing"):
            getattr(self, name).extend(getattr(other, name))


# Which kind of evidence speaks where rows of several kinds answer one lookup.
_PREFERENCE = ["computed", "measured", "simulated", "emulated", "packet", "recorded"]


Late = Literal["", "never", "end"]
"""What runs count as that never reached their target: not at all, as infinite, or as if they had
reached it in their end."""


@dataclass(frozen=True)
class _Answer:
    """What the rows of a lookup say: see :class:`Found`; values and their means by kind."""

    failures: list[str]
    late: list[str]
    models: set[str]
    by_kind: dict[str, float | pd.Series]
    mean: dict[str, float]

    @classmethod
    def of(cls, lookup: Lookup, rows: Sequence[Mapping[str, Any]], late: Late) -> _Answer:
        arrived = {"ok", "late"} if late else {"ok"}
        good = [row for row in rows if row["status"] in arrived]
        told = [(row["status"], f"{row['case']}: {row['reason']}") for row in rows]
        by_kind = {
            kind: _by_seed(lookup, [row for row in good if row["evidence"] == kind], late)
            for kind in sorted({row["evidence"] for row in good}, key=_PREFERENCE.index)
        }
        return cls(
            failures=[text for status, text in told if status not in {"ok"} | arrived],
            late=[text for status, text in told if status in arrived - {"ok"}],
            models={row["model"] for row in rows},
            by_kind=by_kind,
            mean={kind: float(np.mean(values)) for kind, values in by_kind.items()},
        )


class Evidence:
    """The claims and results of one document, ready to be asked for values."""

    def __init__(self, claims: Sequence[Claim], results: pd.DataFrame) -> None:
        self.claims = {claim.id: claim for claim in claims}
        self._groups = results.groupby(["document", "experiment", "metric"], sort=False)
        self._rows: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        self._indices: dict[tuple, dict[tuple, list[Mapping[str, Any]]]] = {}
        self._answers: dict[tuple[str, Lookup, Late], _Answer | None] = {}
        self._changed: Mapping[Lookup, tuple[Lookup, float]] = {}
        self.fits: dict[str, Any] = {}

    def changed(self, changes: Mapping[Lookup, tuple[Lookup, float]]) -> Evidence:
        """The same in a world where some lookups find what others do, times a factor."""
        other = copy.copy(self)
        other._changed, other.fits = changes, {}
        return other

    def select(self, document: str, lookup: Lookup) -> list[Mapping[str, Any]]:
        """Rows that a lookup matches, failed ones included, each with its coordinates."""
        group = (document, lookup.experiment, lookup.metric)
        keys = tuple(key for key, _ in lookup.where)
        if (group, keys) not in self._indices:
            index = defaultdict(list)
            for row in self._all(group):
                index[tuple(coordinate(row.get(key)) for key in keys)].append(row)
            self._indices[group, keys] = dict(index)
        return self._indices[group, keys].get(tuple(value for _, value in lookup.where), [])

    def _all(self, group: tuple[str, ...]) -> list[Mapping[str, Any]]:
        if group not in self._rows:
            known = group in self._groups.groups
            records = self._groups.get_group(group).to_dict("records") if known else []
            self._rows[group] = [row | json.loads(row["at"]) for row in records]
        return self._rows[group]

    def value(
        self, document: str, lookup: Lookup, found: Found, late: Late = ""
    ) -> float | pd.Series | None:
        """Our value of a lookup, by seed if the rows have seeds; notes what it saw in ``found``."""
        lookup, factor = self._changed.get(lookup, (lookup, 1.0))
        answer = self._answer(document, lookup, late)
        if answer is None:
            found.missing.append(lookup)
            return None
        found.failures += answer.failures
        found.late += answer.late
        found.models |= answer.models
        by_kind, mean = answer.by_kind, answer.mean
        if not by_kind:
            return None
        first, *others = by_kind
        found.evidence.add(first)
        apart = set()
        for kind in others:
            told = f"{_place(lookup)}: {kind} is {number(mean[kind] / mean[first])}"
            told += f" times {first}"
            if found.near(mean[first], mean[kind]):
                found.agreement.append(told)
            else:
                found.disagreement.append(f"{told}, kinds disagree")
                apart.add(_independent(kind, by_kind))
        kinds = {_independent(kind, by_kind) for kind in by_kind} - apart
        found.kinds = min(found.kinds, len(kinds | {_independent(first, by_kind)}))
        return by_kind[first] if factor == 1.0 else by_kind[first] * factor

    def _answer(self, document: str, lookup: Lookup, late: Late) -> _Answer | None:
        """What the rows of a lookup say; None without any."""
        if (document, lookup, late) not in self._answers:
            rows = self.select(document, lookup)
            answer = _Answer.of(lookup, rows, late) if rows else None
            self._answers[document, lookup, late] = answer
        return self._answers[document, lookup, late]

    def lookup(self, claim: Claim, name: str) -> Lookup:
        """The rows that a name in one of a claim's expressions stands for."""
        return claim.lookup(name) or self.claims[name].ours

    def ours(
        self,
        claim: Claim,
        text: str,
        found: Found,
        variant: Coordinate | None = None,
        late: Late = "",
    ) -> float | pd.Series | None:
        """Our value of an expression; seeds are paired, those that not every term has drop out.

        ``variant`` stands in for what varies by the claim's ``otherwise`` in every lookup that
        names it.
        """
        varies = next(iter(claim.otherwise), "")
        values: dict[str, Any] = {}
        for name in expressions.names(text):
            lookup = self.lookup(claim, name)
            if variant is not None and lookup.get(varies) not in (None, ""):
                lookup = lookup.having(**{varies: variant})
            values[name] = self.value(claim.document, lookup, found, late)
        if any(value is None for value in values.values()):
            return None
        paired, seeds = _paired(values.values())
        if seeds is not None and seeds.empty:
            found.undefined.append("its terms share no seed")
            return None
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                result = expressions.evaluate(text, dict(zip(values, paired, strict=True)))
        except ZeroDivisionError:
            result = math.nan
        if np.isnan(result).any() or (late != "never" and np.isinf(result).any()):
            found.undefined.append("it is not defined for every seed, as a division by zero is not")
            return None
        return pd.Series(result, seeds) if isinstance(result, np.ndarray) else result

    def terms(
        self, claim: Claim, reading: Coordinate | None = None
    ) -> dict[str, float | pd.Series] | None:
        """Our terms of a number that is fitted with its table, in one ``reading`` of the document;
        None if any has no value."""
        texts = claim.fit.terms or {"ours": f"{{{claim.id}}}"}
        found = {name: self.ours(claim, text, Found(), reading) for name, text in texts.items()}
        return None if any(value is None for value in found.values()) else found

    def printed(self, claim: Claim, text: str) -> Interval | None:
        """The document's own value of an expression; None if it holds an unprinted quantity."""
        names = expressions.names(text)
        if any(map(claim.lookup, names)):
            return None
        values = {name: expressions.printed(self.claims[name].printed) for name in names}
        return Interval.of(expressions.evaluate(text, values))

    def variants(self, claim: Claim, texts: Iterable[str]) -> list[Coordinate]:
        """Other ways of modelling that every varying term of some expressions was run with."""
        lookups = [self.lookup(claim, name) for text in texts for name in expressions.names(text)]
        varies = next(iter(claim.otherwise), "")
        ours = [(one, one.get(varies)) for one in lookups if one.get(varies) not in (None, "")]
        if len({own for _, own in ours}) != 1:
            return []
        choices = []
        for lookup, own in ours:
            rows = self.select(claim.document, lookup.without(varies))
            there = [row.get(varies) for row in rows if row["status"] == "ok"]
            choices.append({coordinate(one) for one in there if one is not None} - {own})
        return sorted(set.intersection(*choices), key=str)

    def readings(self, claim: Claim, texts: Iterable[str]) -> list[Coordinate]:
        """Those readings of a claim that change a lookup of some expressions. In the others these
        are the same by construction, which assures nobody of anything."""
        varies = next(iter(claim.otherwise), "")
        lookups = [self.lookup(claim, name) for text in texts for name in expressions.names(text)]
        own = {one.get(varies) for one in lookups} - {None, ""}
        return [reading for reading in claim.readings if own - {reading}]

    def rests_on(self, claim: Claim) -> list[Lookup]:
        """Every lookup of ours that decides about a claim; not the bounds of physics."""
        names = dict.fromkeys(
            name
            for text in claim.expressions(needed=True)
            if text != claim.bound
            for name in expressions.names(text)
        )
        found = [claim.ours, *(self.lookup(claim, name) for name in names)]
        return [one for one in dict.fromkeys(found) if one]

    def labels(self, claim: Claim, texts: Sequence[str]) -> list[str]:
        """Expressions as they read, each name by what tells it from the others.

        That is its place in a printed table, else the coordinates that differ, else the metric.
        """
        names = [name for text in texts for name in expressions.names(text)]
        lookups = [self.lookup(claim, name) for name in names]
        keys = dict.fromkeys(key for lookup in lookups for key, _ in lookup.where)
        differ = [key for key in keys if len({lookup.get(key) for lookup in lookups}) > 1]
        cells = [self.claims[name] for name in names if name in self.claims]
        places = [
            field for field in ("row", "column") if len({getattr(one, field) for one in cells}) > 1
        ]

        def shown(name: str, lookup: Lookup) -> str:
            told = [getattr(self.claims.get(name), field, "") for field in places]
            if not all(told) or len(cells) < len(names):
                told = [
                    in_words(key, one) for key, one in lookup.where if key in differ and one != ""
                ]
            return ", ".join(told) or self.metric(name, lookup)

        by_name = {name: shown(name, one) for name, one in zip(names, lookups, strict=True)}
        return [_filled(text, by_name) for text in texts]

    def metric(self, name: str, lookup: Lookup) -> str:
        """What the quantity is called that a name in an expression stands for."""
        own = self.claims[name].metric if name in self.claims else lookup.metric
        return own.replace("_", " ")

    def bound(self, claim: Claim, found: Found) -> float | None:
        """The least value physics allows for a claim, as its ``bound`` says."""
        values: dict[str, Any] = {}
        for name in expressions.names(claim.bound or ""):
            if lookup := claim.lookup(name):
                seen = Found()
                value = self.value(claim.document, lookup, seen)
                found.evidence |= seen.evidence
                found.missing += seen.missing
                if value is None:
                    return None
                values[name] = Interval.of(float(np.min(value)))
            else:
                values[name] = expressions.printed(self.claims[name].printed)
        if claim.bound is None:
            return None
        return Interval.of(expressions.evaluate(claim.bound, values)).low


def _independent(kind: str, among: Collection[str]) -> str:
    """The kind of evidence that rows are: a record of what ran here, too, is not another one."""
    ran = [one for one in ("measured", "emulated") if one in among]
    return ran[0] if kind == "recorded" and ran else kind


def _filled(text: str, by_name: Mapping[str, str]) -> str:
    for name, shown in by_name.items():
        text = text.replace(f"{{{name}}}", shown)
    return text


def _place(lookup: Lookup) -> str:
    """What a person calls the rows of a lookup: their coordinates, else the metric."""
    ours = [in_words(key, value) for key, value in lookup.where if key not in ("model", "variant")]
    return ", ".join(ours) or lookup.metric


def in_words(key: str, value: Coordinate) -> str:
    """A coordinate as a person writes it."""
    if isinstance(value, str):
        return value
    if key == "bandwidth":
        return f"{value / 1e9:g} Gbit/s" if value >= 1e9 else f"{value / 1e6:g} Mbit/s"
    return f"{key} {number(value)}"


def _paired(
    values: Iterable[float | pd.Series],
) -> tuple[list[float | np.ndarray], pd.Index | None]:
    """Values by the seeds that all of them have, and these seeds; None where none has any."""
    values = list(values)
    every = [value.index for value in values if isinstance(value, pd.Series)]
    if not every:
        return values, None
    seeds, *others = every
    if not all(seeds.equals(other) for other in others):
        seeds = functools.reduce(pd.Index.intersection, others, seeds)
        values = [one.loc[seeds] if isinstance(one, pd.Series) else one for one in values]
    return [one.to_numpy() if isinstance(one, pd.Series) else one for one in values], seeds


def _by_seed(lookup: Lookup, rows: Sequence[Mapping[str, Any]], late: Late) -> float | pd.Series:
    known = {"ok", "late"} if late == "end" else {"ok"}
    values = {(row["seed"], row["value"] if row["status"] in known else math.inf) for row in rows}
    if len({seed for seed, _ in values}) < len(values):
        every = sorted({key for row in rows for key in row} - NO_COORDINATES - {"metric"})
        several = {key: {str(row.get(key, "")) for row in rows} for key in every}
        differ = [f"{key} {sorted(seen)}" for key, seen in several.items() if len(seen) > 1]
        raise ValueError(
            f"the lookup {lookup} finds different values for one seed; name another coordinate "
            f"(rows differ in {'; '.join(differ) or 'nothing'})"
        )
    by_seed = {seed: value * lookup.times for seed, value in sorted(values)}
    return by_seed[-1] if list(by_seed) == [-1] else pd.Series(by_seed)
