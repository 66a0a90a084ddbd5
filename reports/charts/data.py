"""Rows of a chart: chosen by coordinates, divided, and averaged over seeds."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from slowlink.reports import charts
from slowlink.reports.charts import Missing, Printed, Rows, Style, units
from slowlink.reports.evidence import CONFIDENCE, MIN_SEEDS, Estimate
from slowlink.testbed.results import coordinates

_NO_PLACE = {"metric", "value", "unit", "status", "reason", "evidence", "device", "scale"}
"""Columns that do not say where two metrics of one run belong together."""
_NO_PLACE |= {"experiment", "time_s"}
_NAMES = {"time_s": "time"}
_GRID = 200
"""Points that a curve is drawn with where its seeds were measured at different places."""
_REASONS, _LETTERS = 2, 90
"""How many reasons are given for what is left out, and how long each is at the most."""


@dataclass(frozen=True)
class Chosen:
    """Rows that a layer draws.

    Attributes
    ----------
    table: a row a seed and place, with the coordinates asked for, ``seed`` and ``value``, in base
        units.
    left: late and failed ones, with ``status`` and ``reason``.
    unit: of the values. geometric: whether they are averaged as logarithms.
    """

    table: pd.DataFrame
    left: pd.DataFrame
    unit: str
    geometric: bool = False

    def at(self, **place: Any) -> Chosen:
        """The rows with these coordinates; a coordinate that rows lack holds for all."""
        table, left = self.table, self.left
        for name, value in place.items():
            table = table[_is(table, name, value)] if name in table else table
            left = left[_is(left, name, value)] if name in left else left
        return Chosen(table, left, self.unit, self.geometric)

    def estimates(self, by: Sequence[str]) -> pd.DataFrame:
        """The mean over seeds by place: ``mean``, and its interval ``low`` and ``high`` (nan where
        there is none). Places of which a seed was late or failed are left out."""
        lines = [[*place, *own] for place, _, own in self.places(by) if own]
        return pd.DataFrame(lines, columns=[*by, "mean", "low", "high"])

    def places(self, by: Sequence[str]) -> Iterator[tuple[tuple, pd.DataFrame, tuple | None]]:
        """Places with their rows, and mean, low and high of :meth:`estimates` if they have them."""
        gone = set(keys(self.left, by)) if len(self.left) else set()
        for place, rows in groups(self.table, by):
            if place in gone:
                yield place, rows, None
                continue
            own = self.estimate(rows)
            low, high = own.interval.low, own.interval.high
            known = math.isfinite(low) and math.isfinite(high) and own.seeds > 0
            yield place, rows, (own.mean, *((low, high) if known else (math.nan, math.nan)))

    def estimate(self, rows: pd.DataFrame) -> Estimate:
        """The mean over the seeds of one place."""
        if list(rows["seed"]) == [-1]:
            return Estimate.of(rows["value"].iloc[0])
        return Estimate.of(rows.set_index("seed")["value"], "ratio" if self.geometric else "")


class Data:
    """The rows and claims that a figure is drawn from."""

    def __init__(self, figure: charts.Figure, rows: pd.DataFrame, claims: Iterable[Any]) -> None:
        self.figure, self.claims = figure, list(claims)
        mine = rows[rows["experiment"].isin(figure.experiments)]
        self.rows = coordinates(mine) if "at" in mine else mine

    def fail(self, text: str) -> ValueError:
        return ValueError(f"{self.figure.title}: {text}")

    def choose(
        self,
        what: Rows | Printed | str,
        by: Sequence[str],
        optional: Sequence[str] = (),
        several: bool = False,
    ) -> Chosen:
        """The rows of a layer, with the coordinates ``by``, and those ``optional`` that it has.

        A place may have ``several`` values of a seed.

        Raises
        ------
        Missing
            There are none.
        ValueError
            A coordinate is unknown, or one place has several values of one seed.
        """
        if isinstance(what, str):
            what = Rows(what)
        if isinstance(what, Printed):
            return self._printed(what, [*by, *optional])
        rows = self._of(what)
        table = self._rows(rows, what, by, what.metric, what.where)
        by = [*by, *(name for name in optional if name in table and table[name].notna().any())]
        table = table.dropna(subset=by)
        unit = self._unit(table)
        good, left = _split(table)
        left = pd.concat([left, self._failed(rows, what, by, pd.concat([good, left]))])
        geometric = what.geometric
        if what.relative_to is not None:
            to = dict(what.relative_to)
            under, _ = _split(self._rows(rows, what, by, to.pop("metric", what.metric),
                                         {**what.where, **to}))  # fmt: skip
            if under.empty:
                raise Missing(f"nothing arrived that {what.metric} is relative to")
            unit = "" if unit == self._unit(under) else f"{unit or 1}/{self._unit(under)}"
            good, geometric = self._divide(good, under, by, what.relative_to), True
        if not several:
            self._once(good, by)
        return Chosen(good, left, unit, geometric)

    def value(self, claim: str) -> float | None:
        """What a claim, or a part of it after a slash, prints; None if it is not among them."""
        name, _, label = claim.partition("/")
        for one in self.claims:
            if one.id == name:
                several = () if one.kind in ("value", "param") else one.statements()
                for part in [part for part in several if part.label == label or not label] or [one]:
                    return float(part.printed) * units.base(part.unit or one.unit)[1]
        return None

    def _of(self, what: Rows) -> pd.DataFrame:
        """Rows of the experiments, before a metric is chosen."""
        names = [what.experiment] if isinstance(what.experiment, str) else list(what.experiment)
        names = [name for name in names if name] or self.figure.experiments
        rows = self.rows[self.rows["experiment"].isin(names)]
        if rows.empty:
            raise Missing(f"no results of experiment {' or '.join(map(repr, names))}")
        return what.prepare(rows) if what.prepare else rows

    def _rows(
        self, rows: pd.DataFrame, what: Rows, by: Sequence[str], metric: Any, where: charts.Where
    ) -> pd.DataFrame:
        names = [metric] if isinstance(metric, str) else list(metric)
        table = rows[rows["metric"].isin(names)]
        if table.empty:
            about = sorted(set(rows["experiment"]))
            raise Missing(
                f"no results of experiment {' or '.join(map(repr, about))} with metric "
                f"{' or '.join(map(repr, names))}"
            )
        for name in [*by, *where]:
            if name not in table:
                table = self._joined(table, rows, name)
        try:
            table = chosen(table, where)
        except KeyError as error:
            raise self._unknown(table, str(error.args[0])) from None
        if table.empty:
            told = ", ".join(f"{name} {value}" for name, value in where.items())
            raise Missing(f"no results with metric {' or '.join(map(repr, names))} and {told}")
        for name in by:
            if table[name].isna().all():
                raise self._unknown(table, name)
        return table.dropna(subset=list(by))

    def _failed(
        self, rows: pd.DataFrame, what: Rows, by: Sequence[str], known: pd.DataFrame
    ) -> pd.DataFrame:
        """Failures in another metric at places that are not known: a run that fails may say so
        once, whatever it was to measure."""
        names = [what.metric] if isinstance(what.metric, str) else list(what.metric)
        failed = rows[(rows["status"] == "failed") & ~rows["metric"].isin(names)]
        if failed.empty or not set(by) <= set(rows.columns) or "metric" in by:
            return rows[:0]
        failed = chosen(failed, {n: v for n, v in what.where.items() if not callable(v)})
        places = set(keys(known, by))
        alone = np.array([place not in places for place in keys(failed, by)], dtype=bool)
        return failed[alone].dropna(subset=list(by)).drop_duplicates([*by, "seed"])

    def _joined(self, table: pd.DataFrame, rows: pd.DataFrame, name: str) -> pd.DataFrame:
        """``table`` with a column of the values of another metric at the same places."""
        other = rows[(rows["metric"] == name) & (rows["status"] == "ok")]
        if other.empty:
            raise self._unknown(table, name)
        place = [one for one in table.columns.intersection(other.columns) if one not in _NO_PLACE]
        # What has no seeds, or no rounds, is the same in all of them.
        place = [one for one in place if one not in ("seed", "round") or (other[one] >= 0).any()]
        scale = units.base(other["unit"].iloc[0])[1]
        other = other[place].assign(**{name: scale * other["value"]})
        return table.merge(other.drop_duplicates(place), on=place, how="left")

    def _unknown(self, table: pd.DataFrame, name: str) -> ValueError:
        """Why no row of ``table`` has a coordinate; runs that all failed may lack any."""
        if (table["status"] == "failed").all():
            return Missing(f"all failed: {'; '.join(dict.fromkeys(table['reason']))}")
        known = sorted(set(table.columns[table.notna().any()]) - {"value", "reason", "status"})
        return self.fail(f"its rows have no coordinate {name!r}; they have {', '.join(known)}")

    def _unit(self, table: pd.DataFrame) -> str:
        found = {units.base(unit)[0] for unit in table["unit"]}
        if len(found) > 1:
            raise self.fail(f"rows of different units on one axis: {', '.join(sorted(found))}")
        return found.pop()

    def _divide(
        self, over: pd.DataFrame, under: pd.DataFrame, by: Sequence[str], to: charts.Where
    ) -> pd.DataFrame:
        on = [name for name in by if name not in to]
        self._once(under, on)
        if not (set(under["seed"]) == {-1} and set(over["seed"]) != {-1}):
            on = [*on, "seed"]  # one deterministic value serves for every seed
        under = under[[*on, "value"]].rename(columns={"value": "under"})
        # A key that is the same in all rows merges tables without a common coordinate.
        both = over.assign(all=0).merge(under.assign(all=0), on=[*on, "all"])
        return both.assign(value=both["value"] / both["under"]).drop(columns=["all", "under"])

    def _once(self, table: pd.DataFrame, by: Sequence[str]) -> None:
        twice = table[table.duplicated([*by, "seed"], keep=False)]
        if len(twice):
            first = twice.iloc[0]
            same = (twice[[*by, "seed"]] == first[[*by, "seed"]]) | (
                twice[[*by, "seed"]].isna() & first[[*by, "seed"]].isna()
            )
            among = twice[same.all(axis=1)]
            differ = [name for name in among if name not in ("value", "reason", "time_s")
                      and among[name].nunique(dropna=False) > 1]  # fmt: skip
            at = ", ".join(f"{name} {first[name]}" for name in by)
            raise self.fail(
                f"several values of metric {first['metric']!r} at {at}, of one seed; they differ "
                f"in {', '.join(differ) or 'nothing'}: choose with where"
            )

    def _printed(self, what: Printed, by: Sequence[str]) -> Chosen:
        found = []
        for name, at in what.ids.items():
            value = self.value(name)
            if value is not None:
                found.append({"value": what.times * value, **at})
        unit = ""
        for claim in self.claims:
            ours = getattr(claim, "ours", None)
            if not (what.place and claim.kind == "value" and claim.where == what.place and ours):
                continue
            if what.metric in ("", ours.metric):
                unit, times = units.base(claim.unit)
                if ours.times != 1:
                    times = 1 / ours.times  # by which ours are brought to the printed unit
                found.append({"value": times * float(claim.printed), **dict(ours.where)})
        columns = [*dict.fromkeys([*by, *(name for one in found for name in one)]), "seed", "value"]
        table = pd.DataFrame(found).reindex(columns=list(dict.fromkeys(columns)))
        table = table.assign(seed=-1, metric=what.metric or "printed")
        table = table.loc[:, table.notna().any()] if len(table) else table
        where = {k: v for k, v in what.where.items() if k in table}
        every, table = table, chosen(table, where)
        if what.relative_to is not None and len(table):
            on = [name for name in by if name in table]
            under = chosen(every, {**where, **what.relative_to})
            table = self._divide(table, under, on, what.relative_to)
        return Chosen(table, table[:0].assign(status="", reason=""), unit)


def chosen(table: pd.DataFrame, where: charts.Where) -> pd.DataFrame:
    """The rows that have these coordinates."""
    for name, value in where.items():
        column = table[name]
        if callable(value):
            value = value(sorted(column.dropna().unique()))
        table = table[_is(table, name, value)]
    return table


def _is(table: pd.DataFrame, name: str, value: Any) -> pd.Series:
    several = isinstance(value, list | set | frozenset)
    return table[name].isin(list(value) if several else [value])


def _split(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Those that arrived, in base units, and the others."""
    good = table["status"] == "ok"
    scale = table.loc[good, "unit"].map(lambda unit: units.base(unit)[1]).astype(float)
    return table[good].assign(value=table.loc[good, "value"] * scale), table[~good]


def keys(table: pd.DataFrame, by: Sequence[str]) -> Iterable[tuple]:
    """The place of every row."""
    return table[list(by)].itertuples(index=False, name=None) if by else [()] * len(table)


def groups(table: pd.DataFrame, by: Sequence[str]) -> Iterable[tuple[tuple, pd.DataFrame]]:
    """Rows by place, in the order in which places appear."""
    if not by:
        return [((), table)] if len(table) else []
    return table.groupby(list(by), sort=False, dropna=False)


def ordered(values: Iterable[Any], coordinate: str, style: Style) -> list[Any]:
    """Values of a coordinate in the style's order; else numbers rise, and others stay."""
    found = [value for value in dict.fromkeys(values) if not _none(value)]
    first = list(style.order.get(coordinate, ()))
    if not first and all(isinstance(value, int | float | np.number) for value in found):
        return sorted(found)
    return sorted(found, key=lambda one: first.index(one) if one in first else len(first))


def curve(rows: pd.DataFrame, x: str, smooth: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Where a curve has values, and these, a row a place and a column a seed.

    Seeds are compared where all have values: at the places that they share, or, where they were
    measured at other ones, between their points. ``smooth`` is the width of a running mean.
    """
    seeds = [one.sort_values(x)[[x, "value"]].to_numpy(float).T for _, one in rows.groupby("seed")]
    if smooth > 1:
        seeds = [
            np.stack([at, pd.Series(values).rolling(smooth, min_periods=1).mean()])
            for at, values in seeds
        ]
    shared = functools.reduce(np.intersect1d, [at for at, _ in seeds])
    if 2 * len(shared) < min(len(at) for at, _ in seeds):
        shared = np.unique(np.concatenate([at for at, _ in seeds]))
        low, high = max(at[0] for at, _ in seeds), min(at[-1] for at, _ in seeds)
        shared = shared[(shared >= low) & (shared <= high)]
        shared = shared[np.unique(np.linspace(0, len(shared) - 1, _GRID).astype(int))]
    return shared, np.stack([np.interp(shared, at, values) for at, values in seeds], axis=1)


def means(values: np.ndarray, geometric: bool = False) -> tuple[np.ndarray, ...]:
    """Means over seeds (columns) and the ends of their intervals, nan below three seeds: what
    ``Estimate.of`` gives one by one."""
    count = values.shape[1]
    if count == 1:
        return values[:, 0], *np.full((2, len(values)), math.nan)
    there, back = (np.log, np.exp) if geometric else (np.asarray, np.asarray)
    mean = there(values).mean(axis=1)
    half = np.full(len(values), math.nan)
    if count >= MIN_SEEDS:
        half = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * stats.sem(there(values), axis=1)
    return back(mean), back(mean - half), back(mean + half)


def name_of(value: Any, coordinate: str, style: Style) -> str:
    """How a value of a coordinate is written."""
    if isinstance(value, tuple):
        return " ".join(filter(None, map(str, value)))
    if value in style.names:
        return style.names[value]
    if isinstance(value, str):
        return title_of(value, style) if coordinate == "metric" else value
    if form := style.forms.get(coordinate):
        return form.format(units.written(value, ""))
    return units.written(value, unit_of(coordinate, style))


def unit_of(coordinate: str, style: Style) -> str:
    return style.units.get(coordinate) or units.KNOWN.get(coordinate, "")


def title_of(coordinate: str, style: Style) -> str:
    """How a coordinate or metric is written."""
    return style.names.get(coordinate, _NAMES.get(coordinate, coordinate.replace("_", " ")))


def _none(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def left_out(parts: Iterable[Chosen]) -> list[str]:
    """How many rows a figure leaves out, and why, in a sentence; none if it does not."""
    rows = pd.concat([one.left for one in parts])
    rows = rows[~rows.index.duplicated()]
    told = []
    for status, some in rows.groupby("status", sort=True):
        reasons = list(dict.fromkeys(some["reason"]))
        why = "; ".join(_short(one) for one in reasons[:_REASONS])
        more = f"; and {len(reasons) - _REASONS} more reasons" * (len(reasons) > _REASONS)
        told.append(f"{len(some)} {status} ({why}{more})")
    return [f"Not drawn: {', '.join(told)}"] * bool(told)


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}…"
