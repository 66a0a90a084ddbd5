"""Verdicts, computed: what a document prints against itself, against physics and against results.

A number is judged in this order, and the first rule that applies decides:

1. *impossible as printed*: below the least value physics allows (a computed bound).
2. *contradicts itself*: a derived number that the document's own numbers do not give, or other
   numbers of the document that say otherwise; never by an assumption of ours.
3. *not run here*: no results, and the committed list says why; results must not just be missing.
4. *not comparable*: our model stands in for another and the number depends on the model, or our
   set-up was chosen from the number.
5. *holds*, *off by ×*, *direction only*, *undecided*, *fails* by the one table ``RULES``. What
   depends on machines that we do not have is judged within its table (``reports.fits``), or as a
   multiple of another number there.

Where the text leaves several readings open and their verdicts differ, the claim *depends on the
reading*; where only what our runs leave open keeps them apart, it is *undecided*. Claims that rest
on seeds are tests, of which a document has many: of those that come out, whichever way, the ones
that a false discovery rate of 5 % among all that were asked does not let through are *undecided*.

Of a claim with several statements the worst decides. Where some of them were not run, the others
are judged, and the claim is at best *undecided*; so is one about the largest of several sizes that
were not all run. The committed list may name what may be missing; anything else must be there.

An ordering holds if every step of it does: deterministic values must differ (equal ones fail), and
between seeded ones the 95 % interval of the difference, seed by seed, must not reach zero
(Student's t, at least three seeds). Values closer than a claim's ``tie``, the least that a
simulation can tell apart, are not ordered: the claim is *undecided*. Ratios and relative changes
are averaged over seeds as logarithms.

A seed that never reached its target is later than every seed that did: in an ordering what no seed
reached comes after what every seed reached. Where only some did, or neither, the step is open, and
a ratio of such times is *undecided*. This takes runs that end at the same value of what is
compared: of runs with as many rounds, hours say nothing, so that there nothing is decided. Of a
ratio of what no seed reached to what every seed did, the ends of the runs give a bound.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from slowlink.reports import expressions, fits
from slowlink.reports.claims import Claim, Coordinate, Lookup, Other, Part, Quantity
from slowlink.reports.evidence import (
    AGREES,
    MIN_SEEDS,
    Estimate,
    Evidence,
    Found,
    in_words,
    number,
    show,
)
from slowlink.reports.expressions import Interval

COLUMNS = [
    "id",
    "document",
    "where",
    "kind",
    "setting",
    "printed",
    "ours",
    "unit",
    "evidence",
    "verdict",
    "reason",
]
DETAILS = [
    *COLUMNS,
    "metric",
    "row",
    "column",
    "model",
    "number",
    "p",
    "weak",
    "ours_value",
    "bound",
    "ratio",
    "kinds_of_evidence",
    "headline",
]

VERDICTS = [
    "holds",
    "off by ×",
    "direction only",
    "undecided",
    "depends on the reading",
    "fails",
    "impossible as printed",
    "contradicts itself",
    "not comparable",
    "not run here",
    "used as printed",
    "differs",
    "scaled here",
    "not printed",
    "lost",
    "implemented",
]
WORST_FIRST = [
    "contradicts itself",
    "not run here",
    "fails",
    "undecided",
    "depends on the reading",
    "off by ×",
    "direction only",
    "not comparable",
    "holds",
]

DURATIONS = ("µs", "ms", "s", "min", "h")
"""Units whose values are compared as logarithms."""
DECIDED = ("holds", "off by ×", "direction only", "fails")
FALSE_DISCOVERIES = 0.05
MAX_NOT_RUN = 0.15
"""Largest share of value and ordering entries that may be *not run here*."""


MANY = 5
"""Parts of a claim that are given in numbers; of more, those that decide its verdict."""


@dataclass(frozen=True)
class Rule:
    """How near is near enough for one kind of quantity, and what else depends on.

    ``amount`` is a number of printed units in the last place (``digit``), a share of the printed
    number (``relative``) or a distance in its unit (``points``). ``neutral`` is the value that
    means *no effect*: being on the printed side of it is the claim's direction, and no tolerance
    reaches more than half the way to it. ``absolute`` says why the number is not ours alone to
    meet: it is fitted within its table, and off by a factor rather than wrong. ``stand_in`` says
    why it cannot be compared if another model was trained. With ``or_more`` anything above the
    printed number agrees too: what is not lost may be gained; with ``or_less`` anything below it.
    ``inverse`` numbers are rates: what their tables are fitted by are times.
    """

    tolerance: str
    amount: float
    neutral: float | None = None
    absolute: str = ""
    stand_in: str = ""
    or_more: bool = False
    or_less: bool = False
    inverse: bool = False

    def no_effect(self, unit: str) -> float | None:
        """``neutral`` in the unit of a number; ratios may be in percent."""
        return 100 * self.neutral if unit == "%" and self.neutral == 1.0 else self.neutral

    def band(self, printed: str, unit: str = "") -> Interval:
        """The values that agree with a printed number."""
        span = expressions.printed(printed)
        half = {
            "digit": self.amount * (span.high - span.low),
            "relative": self.amount * abs(span.middle),
            "points": self.amount,
        }[self.tolerance]
        neutral = self.no_effect(unit)
        if neutral not in (None, span.middle):
            half = min(half, abs(span.middle - neutral) / 2)
        # One part in 1e12 keeps binary fractions from deciding a tie.
        half += 1e-12 * abs(span.middle)
        low = -math.inf if self.or_less else span.middle - half
        return Interval(low, math.inf if self.or_more else span.middle + half)


_HARDWARE = "an absolute time on other hardware and software"
_THROUGHPUT = "an absolute speed on other hardware and software"
RULES = {
    "count": Rule("digit", 0.5),
    "bytes": Rule("digit", 0.5),
    "latency": Rule("relative", 0.10, absolute=_HARDWARE),
    "throughput": Rule("relative", 0.10, absolute=_THROUGHPUT, inverse=True),
    "hours": Rule(
        "relative",
        0.10,
        absolute=_HARDWARE,
        stand_in="the hours to converge depend on the model",
    ),
    "rounds": Rule(
        "relative",
        0.10,
        absolute="it depends on the learning rate, batch size and stopping rule",
        stand_in="the rounds to converge depend on the model",
    ),
    "accuracy": Rule("points", 0.5, stand_in="accuracy depends on the model; differences compare"),
    "share": Rule("relative", 0.10),
    "ratio": Rule("relative", 0.10, neutral=1.0),
    "change": Rule("relative", 0.10, neutral=0.0),
    "saving": Rule("points", 2.0, neutral=0.0),
    "difference": Rule("points", 0.5, neutral=0.0),
    "gap": Rule("relative", 0.10, neutral=0.0),
    "kept": Rule("points", 0.5, or_more=True),
    "at_least": Rule("digit", 0.5, or_more=True),
    "at_most": Rule("digit", 0.5, or_less=True),
}


@dataclass
class Judgement:
    """One statement's verdict with what a reader needs to check it."""

    verdict: str
    reason: str
    ours: str = ""
    ours_value: float = math.nan
    bound: float = math.nan
    ratio: float = math.nan
    partly: bool = False
    p: float = math.nan
    side: int = 0
    readings: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Verdict and side, by reading; a side is where ours is of what agrees with the printed number:
    below (-1), above (1) or neither."""


def judge(
    claims: Sequence[Claim],
    results: pd.DataFrame,
    recipe: Mapping[str, Any],
    scale: str,
    only: Collection[str] | None = None,
    full: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """A verdict for every claim of one document.

    Parameters
    ----------
    claims: of one document, from ``reports.claims.load``.
    results: the tidy table of ``testbed.results``; rows of other documents are ignored.
    recipe: the document's recipe after scale overrides, nested mappings.
    scale: ``smoke``, ``desk`` or ``paper``; rows of other scales are ignored.
    only: judges the claims with these ids and leaves the others out, results and all, and does not
        look for verdicts that could not have failed.
    full: the recipe at the document's own scale; what differs from the document there, too,
        differs for another reason than the scale.

    Returns
    -------
    DataFrame with ``DETAILS``, one row a claim in the claims' order; the first columns are
    ``COLUMNS``.

    Raises
    ------
    ValueError
        Results are missing that the claims' ``not_run`` does not list, more than 15 % of the value
        and ordering entries are not run, a lookup is ambiguous, or a recipe path is not there.
    """
    results = results[results["scale"] == scale]
    evidence = Evidence(claims, results)
    rows, absent = [], []
    for claim in claims:
        if only is not None and claim.id not in only:
            continue
        found = Found(_agreeing(claim.quantity, claim.printed))
        judgement = _judge_one(claim, evidence, recipe, full, found)
        listed = claim.not_run.get(scale)
        if gone := [one for one in found.missing if not (listed and listed.covers(one))]:
            absent.append(f"{claim.id} ({'; '.join(dict.fromkeys(map(str, gone)))})")
        elif found.missing and judgement.verdict == "not run here":
            judgement.reason = listed.reason
        elif found.missing:
            judgement.reason = f"{listed.reason}; {judgement.reason}"
        _qualify(claim, evidence, recipe, found, judgement)
        rows.append(
            {name: getattr(claim, name) for name in DETAILS if hasattr(claim, name)}
            | {
                "ours": judgement.ours,
                "evidence": "+".join(sorted(found.evidence)),
                "verdict": judgement.verdict,
                "reason": judgement.reason,
                "number": _counts_as(claim, judgement),
                "p": judgement.p,
                "weak": only is None
                and judgement.verdict == "holds"
                and _weak(claim, evidence, recipe, full),
                "ours_value": judgement.ours_value,
                "bound": judgement.bound,
                "ratio": judgement.ratio,
                "kinds_of_evidence": found.kinds if found.evidence else 0,
            }
        )
    if absent:
        raise ValueError(
            f"no results at scale {scale} for {len(absent)} claims: {'; '.join(absent)}. Run what "
            "produces them, or list them with a reason under not_run in the claims file"
        )
    table = pd.DataFrame(rows, columns=DETAILS)
    _correct_for_many(table)
    _note_foundations(table, evidence)
    if only is None:
        _check_share(table, scale)
    return table


def _counts_as(claim: Claim, judgement: Judgement) -> str:
    """What a verdict counts once for: the printed number, or a table that no cell is judged by."""
    if claim.fit and judgement.verdict == "not comparable":
        return claim.fit.table
    return claim.number or claim.id


def _qualify(
    claim: Claim, evidence: Evidence, recipe: Mapping[str, Any], found: Found, judgement: Judgement
) -> None:
    """Say what weakens a verdict: failed runs, a stand-in model, reduced settings, a single kind of
    evidence."""
    if judgement.verdict == "not run here":
        return
    if found.failures:
        if claim.kind not in ("ordering", "derived"):  # whose statements are weakened one by one
            _weaken(judgement, found)
        judgement.reason += f"; without a result: {_join(found.failures)}"
    if found.late:
        judgement.reason += f"; {_join(found.late)}"
    meant = {claim.model} | {
        evidence.claims[name].model for name in claim.names() if name in evidence.claims
    }
    named = {lookup.get("model") for lookup in claim.lookups()}
    other = sorted(found.models - meant - named)
    if claim.kind in ("ordering", "derived") and other:
        judgement.reason += (
            f"; {', '.join(other)} stands in for {claim.model or _join(sorted(meant - {''}))}"
        )
    if claim.kind in ("ordering", "derived"):
        for path, value in _differing(claim, recipe).items():
            full = show(claim.recipe[path])
            judgement.reason += f"; {path} is {show(value)} here in place of {full}"
    if claim.note and claim.note not in judgement.reason:
        judgement.reason += f"; {claim.note}"
    told = found.disagreement + found.agreement
    if (claim.headline or claim.kind == "value") and told:
        judgement.reason += f"; {_join(told)}"
    if claim.headline and found.evidence and found.kinds < 2 and not found.disagreement:
        judgement.reason += "; one kind of evidence only"


def _agreeing(quantity: Quantity | None, printed: str) -> Callable[[float, float], bool]:
    """Whether two numbers are as near each other as ours must be to the printed one."""
    rule = RULES.get(quantity)
    if rule is None:
        return partial(math.isclose, rel_tol=AGREES)
    if rule.tolerance == "points":
        return partial(math.isclose, rel_tol=0.0, abs_tol=rule.amount)
    if rule.tolerance == "relative":
        return partial(math.isclose, rel_tol=rule.amount)
    span = expressions.printed(printed)
    # As a share, for what a statement compares is not always what it is made of.
    share = rule.amount * (span.high - span.low) / abs(span.middle) if span.middle else 0.0
    return partial(math.isclose, rel_tol=share)


def _weak(
    claim: Claim, evidence: Evidence, recipe: Mapping[str, Any], full: Mapping[str, Any] | None
) -> bool:
    """Whether a claim would hold, too, whatever single number of ours behind it were half or twice
    as large, and whichever two of them were mistaken for each other."""
    behind = evidence.rests_on(claim)
    changes = [{one: (one, factor)} for one in behind for factor in (0.5, 2.0)]
    changes += [{a: (b, 1.0), b: (a, 1.0)} for a, b in itertools.combinations(behind, 2)]
    return all(
        _judge_one(claim, evidence.changed(change), recipe, full, Found()).verdict == "holds"
        for change in changes
    )


def _note_foundations(table: pd.DataFrame, evidence: Evidence) -> None:
    """Note where a statement rests on numbers that are impossible as printed."""
    impossible = set(table.loc[table["verdict"] == "impossible as printed", "id"])
    for index, row in table.iterrows():
        claim = evidence.claims[row["id"]]
        rests = sorted(impossible.intersection(claim.names()))
        if rests and claim.kind in ("ordering", "derived"):
            why = f"; rests on numbers impossible as printed: {_join(rests)}"
            table.loc[index, "reason"] += why


def _correct_for_many(table: pd.DataFrame) -> None:
    """Leave open what came out by tests over seeds, whichever way, and would not pass beside all
    that were asked (Benjamini and Hochberg's rule)."""
    tested = table.index[table["verdict"].isin([*DECIDED, "undecided"]) & (table["p"] > 0)]
    if not len(tested):
        return
    adjusted = stats.false_discovery_control(table.loc[tested, "p"])
    many = f"{len(tested)} such tests" if len(tested) > 1 else "one test"
    for index, p in zip(tested, adjusted, strict=True):
        verdict = table.loc[index, "verdict"]
        if verdict == "undecided":
            continue
        table.loc[index, "reason"] += f"; p {number(p)}, corrected for {many}"
        if p > FALSE_DISCOVERIES:
            table.loc[index, "reason"] = f"{verdict} by itself: {table.loc[index, 'reason']}"
            table.loc[index, "verdict"] = "undecided"


def _check_share(table: pd.DataFrame, scale: str) -> None:
    counted = table[table["kind"].isin(["value", "ordering"])]
    skipped = counted[counted["verdict"] == "not run here"]
    if len(skipped) > MAX_NOT_RUN * len(counted):
        raise ValueError(
            f"{len(skipped)} of {len(counted)} value and ordering entries are not run at scale "
            f"{scale}, more than {MAX_NOT_RUN:.0%}: {', '.join(skipped['id'])}"
        )


def _judge_one(
    claim: Claim,
    evidence: Evidence,
    recipe: Mapping[str, Any],
    full: Mapping[str, Any] | None,
    found: Found,
) -> Judgement:
    if claim.cited:
        rest = f"; {claim.note}" if claim.note else ""
        return Judgement("not run here", f"quoted from {claim.cited} as background{rest}")
    if claim.kind == "param" and (claim.recipe or claim.code or claim.not_printed):
        return _judge_parameters(claim, evidence, recipe, full, found)
    if claim.implemented_by:
        proof = f"; proved by {_join(claim.proved_by)}" if claim.proved_by else ""
        built = f"{_join(claim.implemented_by)}{proof}"
        if claim.otherwise_here:
            return Judgement("differs", f"{built}; {claim.otherwise_here}", "otherwise")
        return Judgement("implemented", built, "as inferred" if claim.inferred else "as described")
    if claim.kind == "value":
        return _judge_value(claim, evidence, found)
    return _combine(
        [_judge_statement(claim, part, evidence, found) for part in claim.statements()],
        [part.label for part in claim.statements()],
    )


def _judge_value(claim: Claim, evidence: Evidence, found: Found) -> Judgement:
    rule = RULES[claim.quantity]
    said = expressions.printed(claim.printed)
    ours = evidence.value(claim.document, claim.ours, found)
    result = Judgement("", "")
    if ours is not None:
        estimate = Estimate.of(ours)
        result.ours, result.ours_value = str(estimate), estimate.mean
        result.ratio = estimate.mean / said.middle
        expected = _expected(claim, evidence, rule) if _by_fit(claim, rule, found) else None
        result.ours += "" if expected is None else f", fitted {expected}"
        times = claim.over and _times(claim, evidence, found)
        result.ours += f", {times[0]} × {times[1]}" if times else ""
    bound = evidence.bound(claim, found) if claim.bound else None
    result.bound = math.nan if bound is None else bound
    result.verdict, result.reason = _value_verdict(claim, evidence, found, rule, ours, bound)
    if ours is not None and not (claim.fit or claim.over):
        result.p = _chance(estimate, rule.band(claim.printed, claim.unit))
    own = f"{{{claim.id}}}"
    behind = [own, *filter(None, [claim.over]), *(claim.fit.terms.values() if claim.fit else ())]
    for reading in evidence.readings(claim, behind):
        theirs = evidence.ours(claim, own, found, reading)
        if theirs is not None:
            verdict, _ = _value_verdict(claim, evidence, found, rule, theirs, bound, reading)
            result.readings[reading] = verdict, 0
    _leave_open(claim, result)
    if rule.stand_in and found.models - {claim.model}:
        result.bound = math.nan  # it bounds the document's model, and stands beside our stand-in
    result.reason += _beside(claim, claim.beside, claim.unit, evidence, found)
    return result


def _value_verdict(
    claim: Claim,
    evidence: Evidence,
    found: Found,
    rule: Rule,
    ours: float | pd.Series | None,
    bound: float | None,
    reading: Coordinate | None = None,
) -> tuple[str, str]:
    said = expressions.printed(claim.printed)
    if bound is not None and said.high < bound:
        return (
            "impossible as printed",
            f"physics needs at least {number(bound)} {claim.unit} "
            f"({bound / said.middle:.2f} times the printed value) even at full line rate, "
            f"both directions at once{_times_too_small(claim, evidence)}",
        )
    if ours is None:
        return _unanswered(found)
    other = sorted(found.models - {claim.model})
    estimate = Estimate.of(ours)
    ratio = f"ours is {number(estimate.mean / said.middle)} times the printed"
    if claim.over:
        return _over(claim, evidence, found, reading)
    if claim.calibrates:
        reason = f"{claim.calibrates} was chosen from this number; {ratio}"
        return "not comparable", reason + _variant_ratios(claim, evidence, said.middle)
    if _by_fit(claim, rule, found):
        verdict, reason = _fitted(claim, evidence, rule, reading)
        reason += f"; {ratio}{_variant_ratios(claim, evidence, said.middle)}"
        stands_in = f"; {_join(other)} stands in for {claim.model}" if other else ""
        return verdict, reason + stands_in
    if rule.stand_in and other:
        return "not comparable", f"{', '.join(other)} stands in for {claim.model}: {rule.stand_in}"
    verdict, reason = _near(claim.printed, claim.unit, rule, estimate)
    if rule.absolute and not claim.comparable:
        return "not comparable", f"{rule.absolute}; {ratio}"
    return verdict, reason + _variant_ratios(claim, evidence, said.middle)


def _times(
    claim: Claim, evidence: Evidence, found: Found, reading: Coordinate | None = None
) -> tuple[Estimate, str] | None:
    """How many times as much as another number of its table ours is, and that cell's name."""
    cell = f"{{{claim.id}}}"
    ours = evidence.ours(claim, f"{cell} / ({claim.over})", found, reading)
    other = evidence.labels(claim, [cell, claim.over])[1]
    return None if ours is None else (Estimate.of(ours, "ratio"), other)


def _over(
    claim: Claim, evidence: Evidence, found: Found, reading: Coordinate | None
) -> tuple[str, str]:
    """Whether a number is as many times as much as another of its table for us as it is printed."""
    told = _times(claim, evidence, found, reading)
    if told is None:
        return _unanswered(found)
    (estimate, other), rule = told, RULES["ratio"]
    said = evidence.printed(claim, f"{{{claim.id}}} / ({claim.over})").middle
    if math.isclose(said, 1, rel_tol=claim.tie):
        rule = replace(rule, neutral=None)  # no effect is what is printed
    verdict, reason = _near(number(said), "", rule, estimate, claim.tie)
    return verdict, f"{estimate} times {other}, printed {number(said)}: {reason}"


def _times_too_small(claim: Claim, evidence: Evidence) -> str:
    """How an impossible number lies to the rest of its table, as a slip of a digit would show."""
    table = _fit(evidence, claim.fit.table) if claim.fit else None
    terms = evidence.terms(claim) if table else None
    if terms is None or not terms.keys() <= table.rates.keys():
        return ""
    expected = sum(table.rates[name] * float(np.mean(term)) for name, term in terms.items())
    times = expected / expressions.printed(claim.printed).middle
    return f"; the rest of {claim.fit.table} gives {number(times)} times the printed"


def _by_fit(claim: Claim, rule: Rule, found: Found) -> bool:
    """Whether a number is held against the fit of its table, and not against ours as it is."""
    return bool(claim.fit and (rule.absolute or found.models - {claim.model}))


def _expected(
    claim: Claim, evidence: Evidence, rule: Rule, reading: Coordinate | None = None
) -> Estimate | None:
    """What a number should be by the fit on the other cells of its table."""
    table = _fit(evidence, claim.fit.table, reading)
    rates = table and table.others.get(claim.number or claim.id)
    if not rates:
        return None
    predicted = sum(rates[name] * term for name, term in evidence.terms(claim, reading).items())
    return Estimate.of(1 / predicted if rule.inverse else predicted)


def _fitted(
    claim: Claim,
    evidence: Evidence,
    rule: Rule,
    reading: Coordinate | None = None,
) -> tuple[str, str]:
    """What the fit on the other cells of its table says of a number; nothing, where numbers dealt
    out at random fit as well or constants better, and not that it holds where as many of them do or
    a constant is as near."""
    estimate = _expected(claim, evidence, rule, reading)
    if estimate is None:
        return "undecided", f"too few cells of {claim.fit.table} ran to fit it"
    table = _fit(evidence, claim.fit.table, reading)
    verdict, reason = _near(claim.printed, claim.unit, rule, estimate)
    told = f"by the other cells of {claim.fit.table} {estimate} {claim.unit}: {reason} ({table})"
    for one in filter(None, (claim.fit.table, claim.fit.rests_on)):
        if why := _no_measure(evidence, one, reading):
            return (
                "not comparable",
                f"{why}, so that no cell of {claim.fit.table} is judged; {told}",
            )
    if verdict == "holds" and table.p_near >= fits.LUCK:
        luck = f"as many cells of {claim.fit.table} agree with numbers dealt out at random"
        return "undecided", f"{luck} (p = {table.p_near:.2g}); {told}"
    constant = table.constants.get(claim.number or claim.id, math.inf)
    said = expressions.printed(claim.printed).middle
    if verdict == "holds" and abs(constant - said) <= abs(estimate.mean - said):
        nearer = f"{number(constant)} {claim.unit}, a constant, is as near to the printed"
        return "undecided", f"{told}; {nearer}"
    return verdict, told


def _no_measure(evidence: Evidence, name: str, reading: Coordinate | None = None) -> str:
    """Why ours says nothing of a table's numbers, if it does not; nor does it where a single seed
    of ours is all that keeps it from luck."""
    table = _fit(evidence, name, reading)
    if table is None:
        return f"too few cells of {name} ran to fit it"
    if table.lucky:
        return f"numbers dealt out at random fit {name} as well (p = {table.p:.2g})"
    for seed in _seeds(evidence, name, reading):
        less = _fit(evidence, name, reading, seed)
        if less is not None and less.lucky:
            luck = f"numbers dealt out at random fit {name} as well without seed {seed}"
            return f"{luck} (p = {less.p:.2g}; {table.p:.2g} with it)"
    if table.beaten:
        return f"a constant{' a group' * (len(table.groups) > 1)} fits {name} better"
    return ""


def _fit(
    evidence: Evidence,
    name: str,
    reading: Coordinate | None = None,
    without: int | None = None,
) -> fits.Fit | None:
    """The fit of a table in one reading, of its cells that ran and that physics allows; ``without``
    one of our seeds, where it is given."""
    if (name, reading, without) not in evidence.fits:
        cells = _cells(evidence, name)
        terms = {one.number or one.id: evidence.terms(one, reading) for one in reversed(cells)}
        said = {one.number or one.id: expressions.printed(one.printed).middle for one in cells}
        ran = {key: one for key, one in terms.items() if one is not None}

        def mean(term: float | pd.Series) -> float:
            seeded = without is not None and isinstance(term, pd.Series)
            return float(np.mean(term.drop(without, errors="ignore") if seeded else term))

        evidence.fits[name, reading, without] = fits.fit(
            {key: said[key] for key in ran},
            {key: {name: mean(term) for name, term in one.items()} for key, one in ran.items()},
            near=max((RULES[one.quantity].amount for one in cells), default=0.0),
            inverse=any(RULES[one.quantity].inverse for one in cells),
            within={one.number or one.id: one.fit.within for one in cells},
        )
    return evidence.fits[name, reading, without]


def _cells(evidence: Evidence, name: str) -> list[Claim]:
    return [
        one
        for one in evidence.claims.values()
        if one.fit and one.fit.table == name and not _impossible(one, evidence)
    ]


def _seeds(evidence: Evidence, name: str, reading: Coordinate | None) -> list[int]:
    """The seeds of a table's terms, each of which can be left out of them."""
    found = [evidence.terms(one, reading) or {} for one in _cells(evidence, name)]
    seeded = [one for terms in found for one in terms.values() if isinstance(one, pd.Series)]
    if any(len(term) == 1 for term in seeded):
        return []
    return sorted({seed for term in seeded for seed in term.index})


def _impossible(claim: Claim, evidence: Evidence) -> bool:
    bound = evidence.bound(claim, Found()) if claim.bound else None
    return bound is not None and expressions.printed(claim.printed).high < bound


def _unanswered(found: Found) -> tuple[str, str]:
    """The verdict where there is no value of ours: what ran and failed is not what never ran."""
    if found.missing:
        return "not run here", _without(found.missing)
    if found.undefined:
        return "undecided", _join(found.undefined)
    return "undecided", "no run gave a number"


def _without(missing: Iterable[Lookup]) -> str:
    """What there are no results of: the experiment, and where in it; by numbers where there are
    any, as a cluster's size says more than each method that did not run on it."""
    places = []
    for one in missing:
        sizes = [in_words(key, value) for key, value in one.where if isinstance(value, float)]
        names = [value for _, value in one.where if isinstance(value, str)]
        places.append(" ".join([one.experiment, *(sizes or names)]))
    return f"no results of {_join(places)}"


def _variant_ratios(claim: Claim, evidence: Evidence, said: float) -> str:
    """The same in other variants, where they come to another value."""
    text, own = f"{{{claim.id}}}", evidence.value(claim.document, claim.ours, Found())
    others = {
        variant: float(np.mean(evidence.ours(claim, text, Found(), variant)))
        for variant in evidence.variants(claim, [text])
    }
    ratios = [
        f"{variant} {number(value / said)}"
        for variant, value in others.items()
        if not math.isclose(value, float(np.mean(own)))
    ]
    return f" ({', '.join(ratios)})" if ratios else ""


def _near(printed: str, unit: str, rule: Rule, ours: Estimate, tie: float = 0.0) -> tuple[str, str]:
    """Whether our number agrees with a printed one under a rule; nearer than ``tie`` to what means
    no effect, it is none."""
    band = rule.band(printed, unit)
    low, high = f"{number(band.low)} {unit}".strip(), f"{number(band.high)} {unit}".strip()
    span = f"{number(band.low)} to {high}"
    if rule.or_more or rule.or_less:
        span = f"{low} or more" if rule.or_more else f"{high} or less"
    elif rule.tolerance == "digit":
        span = f"what rounds to {printed} {unit}".strip()
    if ours.seeds and ours.seeds < MIN_SEEDS:
        return "undecided", f"{ours.seeds} of the {MIN_SEEDS} seeds an interval needs"
    if ours.interval.within(band):
        return "holds", f"within {span}"
    if ours.interval.overlaps(band):
        return "undecided", f"our interval is only partly within {span}"
    neutral = rule.no_effect(unit)
    if neutral is not None and not band.low <= neutral <= band.high:
        low, high = (one - neutral for one in (ours.interval.low, ours.interval.high))
        within = tie * abs(neutral)
        if -within <= low and high <= within:
            nearer = f", by less than {number(100 * tie)} %" if tie else ""
            return "fails", f"outside {span}, and no effect: {number(neutral)}{nearer}"
        if low < 0 < high:
            return "fails", f"outside {span}, and on either side of {number(neutral)}"
        if (low >= 0) == (band.low > neutral):
            return "direction only", f"same direction, outside {span}"
        return "fails", f"outside {span}, and not on the printed side of {number(neutral)}"
    if rule.absolute and expressions.printed(printed).middle:
        low, middle, high = (
            number(value / expressions.printed(printed).middle)
            for value in (ours.interval.low, ours.mean, ours.interval.high)
        )
        spread = f" [{low}, {high}]" if ours.seeds else ""
        return "off by ×", f"{middle}{spread} times the printed, outside {span}"
    return "fails", f"outside {span}"


def _chance(ours: Estimate, band: Interval) -> float:
    """The p of a number's being within a band, or beyond the end of it that is nearer."""
    low, high = ours.apart(band.low), ours.apart(band.high)
    if band.low <= ours.mean <= band.high:
        return max(low, high)
    return low if ours.mean < band.low else high


def _chance_of_order(verdict: str, ours: Sequence[Estimate]) -> float:
    """The two-sided p of an order: of the step that says least for it, or most against it where it
    fails, as any of its steps might have; NaN where a step cannot be told."""
    steps = list(itertools.pairwise(ours))
    if verdict == "fails":
        one = len(steps) * np.min([high.chance(low) for low, high in steps])
    else:
        one = np.max([low.chance(high) for low, high in steps])
    return float(np.minimum(2 * one, 1.0))


def _judge_statement(claim: Claim, part: Part, evidence: Evidence, found: Found) -> Judgement:
    seen = Found(_agreeing(part.quantity, part.printed))
    result = _judge_part(claim, part, evidence, seen)
    for other in part.may_mean:
        texts = [text for text in (other.value, *other.order) if text]
        if result.verdict == "contradicts itself" and any(
            evidence.printed(claim, text) is None for text in texts
        ):
            continue  # it only says how ours comes about
        given = {name: getattr(other, name) for name in ("value", "order", "terms", "printed")}
        given = {name: value for name, value in given.items() if value}
        meant = _judge_part(claim, part.model_copy(update=given), evidence, seen)
        if meant.verdict == "not run here":
            continue
        sided = not other.printed  # ours lies between two numbers that may be meant many a time
        here = meant.verdict, sided * meant.side
        result.readings[other.why] = here
        for name, (verdict, side) in meant.readings.items():
            if (one := (verdict, sided * side)) != here:
                result.readings[f"{other.why}, {name}"] = one
        result.reason += f"; {other.why}, ours {meant.ours}"
    if part.elsewhere and result.verdict not in ("contradicts itself", "not run here"):
        result.reason = f"{part.elsewhere}; ours {result.verdict}: {result.reason}"
        result.verdict = "not comparable"
    _leave_open(claim, result)
    _weaken(result, seen)
    found.add(seen)
    return result


def _judge_part(claim: Claim, part: Part, evidence: Evidence, found: Found) -> Judgement:
    result = (_judge_order if part.order else _judge_derived)(claim, part, evidence, found)
    if result.verdict == "contradicts itself":  # whatever comes out here
        result.readings.clear()
    return result


def _side(ours: Estimate, band: Interval) -> int:
    """Where ours is of a band: below, above or neither."""
    return int(ours.interval.low > band.high) - int(ours.interval.high < band.low)


def _leave_open(claim: Claim, judgement: Judgement) -> None:
    """What readings of the document lead to; if not all to the same, they decide. Two that miss a
    number on different sides do not: it may be right in a third between them."""
    if not judgement.readings or judgement.verdict == "not run here":
        return
    every = {"as here": (judgement.verdict, judgement.side)}
    every |= {f"{name}:": told for name, told in judgement.readings.items()}
    missed = {side for verdict, side in every.values() if verdict in ("fails", "off by ×")}
    verdicts, sides = {verdict for verdict, _ in every.values()}, missed >= {-1, 1}
    if len(verdicts) == 1 and not sides:
        judgement.reason += f"; the same if read otherwise: {_join(judgement.readings)}"
        return
    where = {-1: " (below)", 0: "", 1: " (above)"}
    named = [f"{name} {verdict}{sides * where[side]}" for name, (verdict, side) in every.items()]
    judgement.reason = (
        f"several readings, which the text leaves open: {', '.join(named)}; {judgement.reason}"
    )
    differ = sides or len(verdicts - {"undecided"}) > 1
    judgement.verdict = "depends on the reading" if differ else "undecided"


def _weaken(judgement: Judgement, found: Found) -> None:
    """Where runs failed, those that did not settle nothing."""
    open_ = ("holds", "direction only", "depends on the reading", "fails")
    if found.failures and judgement.verdict in open_:
        judgement.verdict = "undecided"


def _judge_derived(claim: Claim, part: Part, evidence: Evidence, found: Found) -> Judgement:
    rule = RULES[part.quantity]
    text = part.value or _ran(claim, part.largest, evidence, found)
    estimate = _comes_to(claim, part, text, evidence, found) if text else None
    result = Judgement(*_unanswered(found), partly=bool(part.largest and text and found.missing))
    if estimate is not None:
        judged = partial(_near, part.printed, part.unit, rule, tie=claim.tie)
        result.verdict, result.reason = judged(estimate)
        result.side = _side(estimate, rule.band(part.printed, part.unit))
        result.ours, result.ours_value = f"{estimate} {part.unit}".strip(), estimate.mean
        result.p = _chance(estimate, rule.band(part.printed, part.unit))
        said = expressions.printed(part.printed).middle
        result.ratio = estimate.mean / said if said else math.nan
        result.reason = f"ours {estimate} {part.unit}: {result.reason}".replace(" :", ":")
        others = {}
        for variant in evidence.variants(claim, [text]):
            one = _comes_to(claim, part, text, evidence, Found(), variant)
            if one is not None:
                others[f"{variant} {one}"] = judged(one)[0]
        result.reason += _otherwise(claim, others, result.verdict)
        for reading in evidence.readings(claim, [text]):
            one = _comes_to(claim, part, text, evidence, found, reading)
            if one is not None:
                side = _side(one, rule.band(part.printed, part.unit))
                result.readings[reading] = judged(one)[0], side
        if result.partly:
            if result.verdict == "fails" and estimate.mean < rule.band(part.printed, part.unit).low:
                result.verdict = "undecided"  # another may be larger
            result.reason += f"; of those that ran, {_without(found.missing)}"
        for other in part.beside:
            if other.printed:
                verdict, reason = _near(other.printed, part.unit, rule, estimate)
                result.reason += f"; {other.why}, {other.printed}: {verdict}, {reason}"
    band = rule.band(part.printed, part.unit)
    checks = [(part.value, "its own numbers give")] if part.value else []
    checks += [(other.value, f"{other.why}:") for other in part.against]
    for text, why in checks:
        theirs = evidence.printed(claim, text)
        if theirs is not None and not theirs.overlaps(band):
            said = [f"{text} {part.unit}".rstrip() for text in (part.printed, _span(theirs))]
            result.reason = f"printed {said[0]}, but {why} {said[1]}; {result.reason}"
            result.verdict = "contradicts itself"
    result.reason += _beside(claim, part.beside, part.unit, evidence, found)
    return result


def _comes_to(
    claim: Claim,
    part: Part,
    text: str,
    evidence: Evidence,
    found: Found,
    variant: Coordinate | None = None,
) -> Estimate | None:
    """What a statement's value comes to; a bound of it where no seed reached what the others did,
    for then it is beyond what it would be had they reached it in their end."""
    seen, late = Found(found.near), Found(found.near)
    value = evidence.ours(claim, text, seen, variant)
    if value is not None:
        found.add(seen)
        return Estimate.of(value, part.quantity)
    end = evidence.ours(claim, text, late, variant, "end")
    never = None if end is None else evidence.ours(claim, text, Found(), variant, "never")
    beyond = set() if never is None else set(np.sign(np.atleast_1d(never - end))) - {0}
    if len(beyond) != 1:
        found.add(seen)
        return None
    found.add(late)
    return Estimate.of(end, part.quantity).bounding(int(beyond.pop()))


def _ran(claim: Claim, texts: Sequence[str], evidence: Evidence, found: Found) -> str:
    """The largest of those expressions that have results, as one; empty if none has."""
    ran = []
    for text in texts:
        seen = Found()
        evidence.ours(claim, text, seen)
        found.missing += seen.missing
        if not seen.missing:
            ran.append(text)
    return f"max({', '.join(ran)})" if ran else ""


def _judge_order(claim: Claim, part: Part, evidence: Evidence, found: Found) -> Judgement:
    """Ascending order of our values, after that of the document's own."""
    terms = [evidence.ours(claim, text, found, late="never") for text in part.order]
    if any(term is None for term in terms):
        result = Judgement(*_unanswered(found))
    else:
        quantity = "duration" if part.unit in DURATIONS else ""
        estimates = [Estimate.of(term, quantity) for term in terms]
        labels = list(part.terms) or evidence.labels(claim, part.order)
        verdict, reason = _ascending(labels, estimates, claim.tie)
        others = {}
        for variant in evidence.variants(claim, part.order):
            values = [evidence.ours(claim, text, Found(), variant, "never") for text in part.order]
            if all(value is not None for value in values):
                ran = [Estimate.of(value, quantity) for value in values]
                others[variant] = _ascending(labels, ran, claim.tie)[0]
        reason += _otherwise(claim, others, verdict)
        shown = zip(labels, estimates, strict=True)
        values = (
            (name, str(one) if one.never else f"{number(one.mean)} {part.unit}".strip())
            for name, one in shown
        )
        ours = ", ".join(
            value if value.split()[0] == name else f"{name} {value}" for name, value in values
        )
        result = Judgement(verdict, reason, ours)
        for reading in evidence.readings(claim, part.order):
            values = [evidence.ours(claim, text, found, reading, "never") for text in part.order]
            if all(value is not None for value in values):
                ran = [Estimate.of(value, quantity) for value in values]
                result.readings[reading] = _ascending(labels, ran, claim.tie)[0], 0
        result.p = _chance_of_order(verdict, estimates)
        means = [one.mean for one in estimates]
        if len(means) == 2 and means[1] and all(map(math.isfinite, means)):
            result.ratio = means[0] / means[1]
    for one, why in [(part, ""), *((other, other.why) for other in part.against)]:
        theirs = [evidence.printed(claim, text) for text in one.order]
        if any(value is None for value in theirs):
            continue
        names = one.terms or evidence.labels(claim, one.order)
        steps = itertools.pairwise(zip(names, theirs, strict=True))
        wrong = [
            f"{first} {_span(low)} > {second} {_span(high)} {part.unit}".rstrip()
            for (first, low), (second, high) in steps
            if low.low > high.high
        ]
        if wrong:
            result.verdict = "contradicts itself"
            lead = f"{why}: " if why else ""
            result.reason = f"the document says otherwise: {lead}{_join(wrong)}; {result.reason}"
    result.reason += _beside(claim, part.beside, part.unit, evidence, found)
    return result


def _otherwise(claim: Claim, others: Mapping[str, str], verdict: str) -> str:
    """Which other ways of modelling would give another verdict."""
    how = "".join(claim.otherwise.values())
    differ = [f"{name}: {other}" for name, other in others.items() if other != verdict]
    if differ:
        return f" ({how}: {', '.join(differ)})"
    return f" (the same {how}: {_join(others)})" if others else ""


def _ascending(names: Sequence[str], ours: Sequence[Estimate], tie: float = 0.0) -> tuple[str, str]:
    """Whether our values ascend; deterministic ones must differ, by ``tie`` if they are simulated,
    and paired seeds must separate."""
    reversed_, equal, close, open_ = [], [], [], []
    for index in range(len(ours) - 1):
        a, b = ours[index], ours[index + 1]
        step = f"{names[index]} ({a}) < {names[index + 1]} ({b}{a.gap(b)})"
        if a.near(b, tie):
            close.append(step)
        elif b.below(a, among=len(ours) - 1):
            reversed_.append(step)
        elif a.equals(b):
            equal.append(step)
        elif not a.below(b):
            open_.append(step)
    steps = len(ours) - 1
    if reversed_:
        return "fails", f"{len(reversed_)} of {steps} steps reversed: not {_join(reversed_)}"
    if equal:
        return "fails", f"{len(equal)} of {steps} steps equal: not {_join(equal)}"
    if close:
        why = f"closer than {number(100 * tie)} %"
        return "undecided", f"{len(close)} of {steps} steps open ({why}): {_join(close)}"
    if open_:
        few = any(0 < one.seeds < MIN_SEEDS for one in ours)
        never = any(one.never for one in ours)
        why = "not all arrived" if never else "intervals overlap"
        why = f"fewer than {MIN_SEEDS} seeds" if few else why
        return "undecided", f"{len(open_)} of {steps} steps open ({why}): {_join(open_)}"
    return "holds", f"all {steps} steps separate" if steps > 1 else "separate"


def _combine(judgements: list[Judgement], labels: list[str]) -> Judgement:
    """A claim of several statements is as good as its worst one; one that was not run leaves it
    undecided unless another decides against it."""
    if len(judgements) == 1:
        (one,), (label,) = judgements, labels
        verdict = one.verdict
        if one.partly and verdict not in ("contradicts itself", "fails"):
            verdict = "undecided"
        shown = f"{label}: {one.ours}" if label and one.ours else one.ours
        return replace(one, verdict=verdict, ours=shown)
    ran = [one for one in judgements if one.verdict != "not run here"]
    worst = min(ran or judgements, key=lambda one: WORST_FIRST.index(one.verdict))
    verdict = worst.verdict
    some = 0 < len(ran) < len(judgements) or any(one.partly for one in ran)
    if some and verdict not in ("contradicts itself", "fails"):
        verdict = "undecided"
    said = [
        f"{label or 'part'}: {one.verdict} ({one.reason.replace('; ', ', ')})"
        for label, one in zip(labels, judgements, strict=True)
    ]
    if not ran:
        return Judgement(verdict, "; ".join(said))
    ours = [
        f"{label}: {one.ours or 'no number'}" for label, one in zip(labels, judgements, strict=True)
    ]
    if len(ours) > MANY:
        decide = [one.verdict == worst.verdict for one in judgements]
        ours = list(itertools.compress(ours, decide))[:MANY]
        ours.append(f"and {len(judgements) - len(ours)} parts more")
    chances = [one.p for one in judgements if not math.isnan(one.p)]
    p = max(chances, default=math.nan)
    if verdict not in ("holds", "undecided"):  # any of those that decide would have done
        p = len(chances) * np.min([one.p for one in judgements if one.verdict == verdict])
    p = float(np.minimum(p, 1.0))
    return Judgement(verdict, "; ".join(said), "; ".join(ours), worst.ours_value, p=p)


def _judge_parameters(
    claim: Claim,
    evidence: Evidence,
    recipe: Mapping[str, Any],
    full: Mapping[str, Any] | None,
    found: Found,
) -> Judgement:
    ours = {path: at(recipe, path, claim.id) for path in (*claim.recipe, *claim.not_printed)}
    ours |= {name: _constant(name, claim.id) for name in claim.code}
    differs = _differing(claim, recipe)
    reasons = [f"{path} is {show(value)} here" for path, value in differs.items()]
    at_any_scale = [] if full is None else list(differs.keys() & _differing(claim, full).keys())
    for name, printed in claim.code.items():
        if not _same(ours[name], printed):
            at_any_scale.append(name)
            reasons.append(f"{name} is {show(ours[name])} here, printed is {show(printed)}")
    absent = f"lost with the document's {claim.lost_with}" if claim.lost_with else "not printed"
    reasons += [
        f"{absent}: {what} ({path} is {show(ours[path])} here)"
        for path, what in claim.not_printed.items()
    ]
    if claim.implemented_by:
        reasons.insert(0, _join(claim.implemented_by))
    shown = [show(value) for value in ours.values()]
    if claim.otherwise_here:
        at_any_scale.append("otherwise_here")
        reasons.append(claim.otherwise_here)
    scaled = bool(differs)
    measured = evidence.value(claim.document, claim.ours, found) if claim.ours else None
    if measured is not None:
        used = Estimate.of(measured)
        shown = [str(used)]
        if not Interval.of(used.mean).within(RULES[claim.quantity].band(claim.printed)):
            scaled = True
            reasons.append(f"{used} {claim.unit} was used here")
    if claim.note:
        reasons.append(claim.note)
    as_said = "used as printed" if claim.recipe or claim.code else "not printed"
    if claim.lost_with:
        as_said = "lost"
    elif claim.implemented_by:
        as_said = "implemented"
    if scaled:
        as_said = "scaled here"
    if at_any_scale:
        as_said = "differs"
    return Judgement(
        as_said,
        "; ".join(reasons) or f"{', '.join(claim.recipe)} in the recipe",
        ", ".join(shown),
    )


def _differing(claim: Claim, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What the recipe has otherwise than printed, by path."""
    ours = {path: at(recipe, path, claim.id) for path in claim.recipe}
    return {path: value for path, value in ours.items() if not _same(value, claim.recipe[path])}


def at(recipe: Mapping[str, Any], path: str, claim: str = "") -> Any:
    """The value at a dotted path of mappings and lists; ValueError if it is not there. What stands
    behind the name of a section is looked up in that."""
    value: Any = recipe
    for step in path.split("."):
        try:
            value = recipe[value] if isinstance(value, str) else value
            value = value[int(step) if isinstance(value, list | tuple) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise ValueError(
                f"{claim}: recipe: no {path!r} in the recipe (stopped at {step!r})"
            ) from None
    return value


def _constant(name: str, claim: str) -> Any:
    """A constant of a module, by its dotted name; ValueError if it is not there."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{claim}: code: {name} is not there ({error})") from None


def _same(ours: Any, printed: Any) -> bool:
    if isinstance(ours, list | tuple) and isinstance(printed, list | tuple):
        return len(ours) == len(printed) and all(map(_same, ours, printed))
    return ours == printed


def _span(value: Interval) -> str:
    low, high = number(value.low), number(value.high)
    return low if low == high else f"{low} to {high}"


def _beside(
    claim: Claim, others: Sequence[Other], unit: str, evidence: Evidence, found: Found
) -> str:
    """What stands beside a number: the document's own, else ours; what is not there is left out."""
    text = ""
    for other in others:
        if other.printed:
            continue  # held against the statement's own value
        seen = Found()
        theirs = evidence.printed(claim, other.value)
        alone = other.value in {f"{{{name}}}" for name in expressions.names(other.value)}
        late = "never" if alone else ""
        ours = None if theirs else evidence.ours(claim, other.value, seen, late=late)
        if theirs is not None or ours is not None:
            shown = _span(theirs) if ours is None else Estimate.of(ours, other.quantity or "")
            never = isinstance(shown, Estimate) and shown.never
            text += f"; beside it, {other.why}: {shown}"
            text += "" if never else f" {other.unit or unit}".rstrip()
            found.agreement += seen.disagreement + seen.agreement
    return text


def _join(items: Iterable[str], limit: int = 4) -> str:
    items = list(dict.fromkeys(items))
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more
