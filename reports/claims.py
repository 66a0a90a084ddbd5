"""What a document prints, as data: its ``claims.yaml``, read and checked.

A claim holds no verdict. It says what is printed and where, how the same quantity is found in the
results (a path, or an expression over paths and other claims), and what else of the document it
must agree with. See ``Claim`` for the fields, ``reports.grids`` for entries that stand for several.

A path names result rows by their coordinates: ``figure7/Ring/2/0.01/slowdown`` is an experiment,
values of its axes in the order in which the file declares them (``axes: {figure7: [method, k,
d]}``), and a metric. An axis that is left out at the end matches anything, and so does a coordinate
that is none of the axes; ``variant=balanced`` as a step names a coordinate itself. A coordinate is
a field of a result row or a key of its ``at``. In expressions ``{figure7/Ring/2/0.01/slowdown}`` is
what we have there, and ``{GEO-T2-M1-h}`` what another claim of the file is about.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from slowlink.reports import expressions, grids
from slowlink.testbed.given import Loader
from slowlink.testbed.results import Scale

Kind = Literal["value", "ordering", "derived", "param", "algorithm", "formula"]
Quantity = Literal[
    "count",
    "bytes",
    "latency",
    "throughput",
    "hours",
    "rounds",
    "accuracy",
    "share",
    "ratio",
    "change",
    "saving",
    "difference",
    "gap",
    "kept",
    "at_least",
    "at_most",
]
Expression = Annotated[str, AfterValidator(expressions.check)]
Otherwise = Annotated[
    dict[str, str],
    Field(max_length=1),
    BeforeValidator(
        lambda value: {"variant": value} if isinstance(value, str) and value else value or {}
    ),
]
"""What other values of a coordinate are to a claim; words alone are about the variant."""
Several = BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)
"""One entry may be written without the brackets of a list."""
Reason = Annotated[str, Field(min_length=10)]

Coordinate = float | str
Axes = Mapping[str, tuple[str, ...]]
"""The coordinates that the steps of a path are, by experiment."""

NO_COORDINATES = {"document", "case", "at", "seed", "scale", "value", "unit", "round", "time_s"}
NO_COORDINATES |= {"status", "reason"}
"""Fields of a row that tell no place in a document: what is looked up, or what it is called."""


def coordinate(value: Any) -> Coordinate:
    """A coordinate as it is compared: numbers as numbers, however they are written, up to
    rounding."""
    try:
        return float(f"{float(value):.12g}")
    except (TypeError, ValueError):
        return str(value)


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Lookup(_Data):
    """Which result rows hold a quantity: those with these coordinates (``where``).

    ``times`` converts units. Made from a mapping, any other key is a coordinate.
    """

    experiment: str
    metric: str
    where: tuple[tuple[str, Coordinate], ...] = ()
    times: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _coordinates(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        where = dict(data.get("where", ()))
        where |= {key: value for key, value in data.items() if key not in cls.model_fields}
        if wrong := sorted(where.keys() & NO_COORDINATES):
            raise ValueError(f"{', '.join(wrong)}: no coordinate")
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        return own | {"where": tuple((key, coordinate(one)) for key, one in where.items())}

    @classmethod
    def of(cls, path: str, axes: Axes) -> Lookup:
        """The rows that a path names.

        Raises
        ------
        ValueError
            It has no metric, or more steps than the experiment has axes.
        """
        return _looked_up(path, tuple(axes.get(path.split("/")[0], ())))

    def get(self, key: str) -> Coordinate | None:
        """The value of one coordinate, None where any will do."""
        return dict(self.where).get(key)

    def having(self, **other: Coordinate) -> Lookup:
        """The same with other coordinates."""
        where = dict(self.where) | other
        return self.model_copy(update={"where": tuple(where.items())})

    def without(self, key: str) -> Lookup:
        """The same wherever one coordinate is."""
        where = tuple(one for one in self.where if one[0] != key)
        return self.model_copy(update={"where": where})

    def __str__(self) -> str:
        places = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
                  for key, value in self.where]  # fmt: skip
        return "/".join([self.experiment, *places, self.metric])


@functools.cache
def _looked_up(path: str, axes: tuple[str, ...]) -> Lookup:
    experiment, *steps = path.split("/")
    if not steps or not all(steps):
        raise ValueError(f"{path!r} is no path: experiment/…/metric")
    *places, metric = steps
    named = dict(step.split("=", 1) for step in places if "=" in step)
    by_axis = [step for step in places if "=" not in step]
    open_axes = [axis for axis in axes if axis not in named]
    if len(by_axis) > len(open_axes):
        raise ValueError(f"{path!r}: axes of {experiment} are {', '.join(axes) or 'not declared'}")
    found = dict(zip(open_axes, by_axis, strict=False)) | named
    return Lookup(experiment=experiment, metric=metric, **found)


class NotRun(_Data):
    """Claims that scales do not run, or run in part, with the reason.

    ``missing`` says of which coordinates results may not be there (``{experiment: mnist, workers:
    [8, 16]}``), without it any may be missing. What is missing else is an error.
    """

    claims: Annotated[tuple[str, ...], Field(min_length=1)]
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]
    reason: Reason
    missing: tuple[dict[str, Coordinate | tuple[Coordinate, ...]], ...] = ()

    def covers(self, lookup: Lookup) -> bool:
        """Whether results of ``lookup`` may be missing."""
        place = {"experiment": lookup.experiment, "metric": lookup.metric} | dict(lookup.where)
        return not self.missing or any(
            all(place.get(key) in _several(value) for key, value in one.items())
            for one in self.missing
        )


def _several(value: Coordinate | tuple[Coordinate, ...]) -> list[Coordinate]:
    return [coordinate(one) for one in (value if isinstance(value, tuple) else (value,))]


class Other(_Data):
    """Other numbers that bear on a statement, and ``why`` they do; ``unit`` if not its own.

    ``quantity`` says how seeds are averaged. Beside a number, ``printed`` is another reading of
    what is printed, which the same value is held against without deciding.
    """

    value: Expression | None = None
    order: tuple[Expression, ...] = ()
    printed: str = ""
    terms: tuple[str, ...] = ()
    why: str
    unit: str = ""
    quantity: Quantity | None = None

    @model_validator(mode="after")
    def _one(self) -> Other:
        if sum(map(bool, (self.value, self.order, self.printed))) != 1:
            raise ValueError("give one of value, order and printed")
        if self.printed:
            expressions.printed(self.printed)
        _check_terms(self)
        return self


class Part(_Data):
    """One statement: a printed number that ``value`` must meet, or terms in ascending ``order``.

    In place of ``value``, ``largest`` has several expressions: the largest of those that were run
    must meet the number. ``terms`` name those of ``order`` where their expressions would not read
    well. ``may_mean``: what else the sentence may say, as another value, order or printed number in
    place of this one's, and ``why``; if that leads to another verdict, it depends on the reading.
    ``elsewhere`` says why ours cannot speak for the document's machine: the statement is then
    not comparable, whether it agrees or not.
    """

    label: str = ""
    printed: str = ""
    unit: str = ""
    quantity: Quantity | None = None
    value: Expression | None = None
    largest: tuple[Expression, ...] = ()
    order: tuple[Expression, ...] = ()
    against: tuple[Other, ...] = ()
    may_mean: Annotated[tuple[Other, ...], Several] = ()
    beside: Annotated[tuple[Other, ...], Several] = ()
    terms: tuple[str, ...] = ()
    elsewhere: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Part:
        if sum(map(bool, (self.value, self.largest, self.order))) != 1:
            raise ValueError("give either value or order, or largest")
        if any(other.printed for other in self.against):
            raise ValueError("against: another reading stands beside")
        if self.order and len(self.order) < 2:
            raise ValueError("order: needs at least two terms")
        _check_terms(self)
        if not self.order:
            if self.quantity is None:
                raise ValueError("quantity: required beside value")
            expressions.printed(self.printed)
        return self


def _check_terms(one: Other | Part) -> None:
    if one.terms and len(one.terms) != len(one.order):
        raise ValueError("terms: needs a name for every term of order")


class Fitted(_Data):
    """The ``table`` of absolute numbers that a value is fitted with (``reports.fits``), and this
    cell's ``terms``, by the name of the rate that they share; without any, our own value.
    ``within``: the group of cells with which this one may trade numbers when agreement is held
    against luck; all by default. ``rests_on``: a table of what its terms are made of, without which
    it says nothing."""

    table: str
    terms: dict[str, Expression] = {}
    within: str = ""
    rests_on: str = ""


class Claim(_Data):
    """One entry of a document.

    Attributes
    ----------
    printed: the number with its digits as printed (values), else the statement in short.
    model: the model the document used, as results name it; other models are stand-ins.
    ours: rows that hold our counterpart, as a path or as the fields of ``Lookup``.
    bound: the least value physics allows.
    fit: of an absolute number, the table that it is fitted with. comparable: why it can be held
        against ours as it is, in place of a fit.
    number: what is printed once and stands in several entries, which count once; else the id.
    over: what an absolute number is judged as a multiple of, another cell of its table, so that
        what other machines change cancels.
    value, order, against, may_mean, beside: a single part written in place; parts: several. What a
        statement is held ``against`` must agree with it; what stands ``beside`` is only shown,
        the document's numbers or ours.
    otherwise: what other variants of the same rows are to this claim, which are told with its
        verdict; ``{shape: in other shapes}`` if another coordinate varies, empty if nothing does.
    readings: those of them that are readings of the document which its text leaves open. Where
        they lead to different verdicts, the claim depends on the reading.
    headline: the claim in plain words, where it is one of the document's main ones.
    calibrates: what of our set-up was chosen from this number, which therefore proves nothing.
    tie: the share by which simulated values of an order must differ to count as ordered, and a
        simulated ratio from 1 to count as an effect.
    recipe: recipe path -> value as printed; of an ordering or derived claim, what its results
    depend on, told where it differs. not_printed: recipe path -> what the document omits.
    lost_with: what of the document is lost in our text with what ``not_printed`` names, or with
        part of what is printed.
    cited: whom the document quotes for a number that nothing in it is computed from.
    implemented_by: files. proved_by: pytest node ids. inferred: the formula is lost, and what is
        implemented is inferred from the words around it. otherwise_here: what of it is not built as
        the document has it, at any scale.
    row, column: its place in a printed table. document, axes, not_run: of the file; ``not_run`` has
        what the claim lacks by scale.
    """

    id: str
    where: str
    kind: Kind
    setting: str
    metric: str
    printed: str
    unit: str = ""
    quantity: Quantity | None = None
    model: str = ""
    ours: Lookup | None = None
    bound: Expression | None = None
    fit: Fitted | None = None
    over: Expression | None = None
    comparable: str = ""
    number: str = ""
    value: Expression | None = None
    order: tuple[Expression, ...] = ()
    against: tuple[Other, ...] = ()
    may_mean: Annotated[tuple[Other, ...], Several] = ()
    beside: Annotated[tuple[Other, ...], Several] = ()
    parts: tuple[Part, ...] = ()
    otherwise: Otherwise = {"variant": "modelled otherwise"}
    readings: tuple[str, ...] = ()
    headline: str = ""
    calibrates: str = ""
    tie: Annotated[float, Field(ge=0, lt=1)] = 0.0
    recipe: dict[str, Any] = {}
    code: dict[str, Any] = {}
    not_printed: dict[str, str] = {}
    lost_with: str = ""
    cited: str = ""
    implemented_by: tuple[str, ...] = ()
    proved_by: tuple[str, ...] = ()
    inferred: bool = False
    otherwise_here: str = ""
    note: str = ""
    row: str = ""
    column: str = ""
    document: str = ""
    axes: dict[str, tuple[str, ...]] = Field(default={}, repr=False)
    not_run: dict[Scale, NotRun] = {}

    @model_validator(mode="before")
    @classmethod
    def _path(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and isinstance(data.get("ours"), str):
            return {**data, "ours": Lookup.of(data["ours"], data.get("axes", {}))}
        return data

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if self.kind != "value" and (self.calibrates or self.fit or self.over or self.comparable):
            raise ValueError("calibrates, fit, over and comparable: only of a value")
        if self.fit and self.over:
            raise ValueError("give either fit or over")
        if self.otherwise_here and not self.implemented_by:
            raise ValueError("otherwise_here: only of what is implemented_by files")
        if self.readings and not self.otherwise:
            raise ValueError("readings: otherwise must name their coordinate")
        if self.kind == "value":
            if self.quantity is None or self.ours is None:
                raise ValueError("a value needs quantity and ours")
            expressions.printed(self.printed)
        elif self.kind in ("ordering", "derived"):
            self.statements()
        elif self.kind == "param":
            said = (self.recipe, self.code, self.not_printed, self.implemented_by, self.cited)
            if not any(said):
                raise ValueError("a param needs recipe, code, not_printed, implemented_by or cited")
            if self.ours is not None:
                if self.quantity is None:
                    raise ValueError("a param with ours needs quantity")
                expressions.printed(self.printed)
        elif not (self.implemented_by and self.proved_by):
            raise ValueError(f"an {self.kind} needs implemented_by and proved_by")
        self.lookups()
        return self

    def statements(self) -> tuple[Part, ...]:
        """The parts that an ordering or derived claim is judged by."""
        if self.parts:
            if self.value or self.order or self.against or self.may_mean:
                raise ValueError("give either parts or value/order/against/may_mean, not both")
            return self.parts
        fields = Part.model_fields.keys() & Claim.model_fields.keys()
        return (Part(**{name: getattr(self, name) for name in fields}),)

    def lookup(self, name: str) -> Lookup | None:
        """The rows that a name in an expression stands for; None if it is another claim's id."""
        return Lookup.of(name, self.axes) if "/" in name else None

    def names(self) -> list[str]:
        """The names in its expressions, each once."""
        every = (name for text in self.expressions() for name in expressions.names(text))
        return list(dict.fromkeys(every))

    def lookups(self) -> list[Lookup]:
        """What its expressions look up by a path."""
        return [lookup for name in self.names() if (lookup := self.lookup(name))]

    def experiments(self, others: Mapping[str, Claim] | None = None) -> set[str]:
        """The experiments whose rows it is judged by; ``others``: by id, those it refers to.
        Of what stands beside it the printed numbers are enough."""
        texts = self.expressions(needed=True)
        names = dict.fromkeys(name for text in texts for name in expressions.names(text))
        found = [self.ours, *self.lookups()]
        found += [other.ours for name in names if (other := (others or {}).get(name))]
        return {lookup.experiment for lookup in found if lookup}

    def expressions(self, needed: bool = False) -> list[str]:
        """Every expression of this claim, or those for which results of others are needed."""
        holders: list[Claim | Part] = [self]
        if self.kind in ("ordering", "derived"):
            holders += self.parts
        texts = [self.bound, self.over, *(self.fit.terms.values() if self.fit else ())]
        for one in holders:
            for statement in (one, *one.against, *one.may_mean, *(() if needed else one.beside)):
                texts += [statement.value, *statement.order]
            texts += one.largest if isinstance(one, Part) else ()
        return [text for text in texts if text]


class About(_Data):
    """The head of a claims file: the document, the ``label`` that pages call it by, and the main
    claim that is the most ``striking``, by its id."""

    document: str
    label: str
    striking: str = ""
    title: str
    citation: str


class _File(About):
    axes: dict[str, tuple[str, ...]] = {}
    claims: tuple[Claim, ...]
    not_run: tuple[NotRun, ...] = ()


def load(path: str | Path, root: str | Path | None = None) -> list[Claim]:
    """Read a claims file.

    Parameters
    ----------
    path: the YAML file.
    root: the repository; if given, the files and tests that claims name must exist below it.

    Raises
    ------
    ValueError
        Names the file, the id and the field of everything wrong: unknown keys, references to
        claims that are not there, expressions that are not arithmetic, missing files or tests.
    """
    path = Path(path)
    file = _validated(path, _expanded(path, _raw(path)))
    problems = [*_reference_problems(file.claims), *_not_run_problems(file)]
    if file.striking and not any(c.id == file.striking and c.headline for c in file.claims):
        problems.append(f"striking: {file.striking!r} is no claim with a headline")
    if root is not None:
        problems += _proof_problems(file.claims, Path(root))
    if problems:
        raise ValueError("\n".join(f"{path}: {problem}" for problem in problems))
    return [_lacking(claim, file.not_run) for claim in file.claims]


def about(path: str | Path) -> About:
    """What document a claims file is about."""
    raw = _raw(Path(path))
    return About(**{name: raw[name] for name in About.model_fields if name in raw})


def _lacking(claim: Claim, entries: Iterable[NotRun]) -> Claim:
    """A claim with what the file says of it under ``not_run``."""
    mine = {scale: one for one in entries if claim.id in one.claims for scale in one.scales}
    return claim.model_copy(update={"not_run": mine})


def _raw(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("claims"), list):
        raise ValueError(f"{path}: a claims file is a mapping with a list of claims")
    return raw


def _expanded(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The file with its grids written out, and in every claim what it takes from the head."""
    head = {"document": raw.get("document", ""), "axes": raw.get("axes", {})}
    fields, claims = Claim.model_fields.keys() - head.keys(), []
    for entry in raw["claims"]:
        if not isinstance(entry, dict):
            claims.append(entry)
            continue
        try:
            for one in grids.expanded(entry, fields):
                if parts := one.get("parts"):
                    every = (grids.expanded(part, Part.model_fields) for part in parts)
                    one["parts"] = [part for several in every for part in several]
                claims.append(one | head)
        except ValueError as error:
            raise ValueError(f"{path}: {entry.get('id')}: {error}") from error
    return raw | {"claims": claims}


def _validated(path: Path, raw: dict[str, Any]) -> _File:
    try:
        return _File.model_validate(raw)
    except ValidationError as error:
        problems = (_problem(raw, one) for one in error.errors())
        raise ValueError("\n".join(f"{path}: {problem}" for problem in problems)) from error


def _problem(raw: Any, error: dict[str, Any]) -> str:
    """One validation error as ``id: field: message``."""
    place = [str(step) for step in error["loc"]]
    if len(place) > 1 and place[0] == "claims" and place[1].isdigit():
        entry = raw["claims"][int(place[1])]
        name = entry.get("id") if isinstance(entry, dict) else None
        place = [name or f"claim number {int(place[1]) + 1}", *place[2:]]
    message = "unknown key" if error["type"] == "extra_forbidden" else error["msg"]
    return f"{': '.join(place[:1])}: {'.'.join(place[1:]) or 'entry'}: {message}"


def _reference_problems(claims: Iterable[Claim]) -> list[str]:
    ids = [claim.id for claim in claims]
    problems = [
        f"{name}: id: appears twice" for name in sorted({n for n in ids if ids.count(n) > 1})
    ]
    with_value = {claim.id for claim in claims if claim.kind == "value" or claim.ours}
    return problems + [
        f"{claim.id}: {name!r} is neither a value of this file nor a path"
        for claim in claims
        for name in claim.names()
        if name not in with_value and not claim.lookup(name)
    ]


def _not_run_problems(file: _File) -> Iterator[str]:
    known = {claim.id: claim for claim in file.claims}
    for entry in file.not_run:
        for name in entry.claims:
            if name not in known:
                yield f"not_run: no claim has the id {name}"
                continue
            claim = known[name]
            looked_up = [*claim.lookups(), *([claim.ours] if claim.ours else [])]
            varies = next(iter(claim.otherwise), "")
            looked_up += [
                one.having(**{varies: reading})
                for reading in claim.readings
                for one in looked_up
                if one.get(varies) is not None
            ]
            for one in entry.missing:
                single = entry.model_copy(update={"missing": (one,)})
                if not any(map(single.covers, looked_up)):
                    yield f"not_run: {name} looks nothing up at {one}"


def _proof_problems(claims: Iterable[Claim], root: Path) -> list[str]:
    problems = []
    for claim in claims:
        for name in claim.implemented_by:
            if not (root / name).is_file():
                problems.append(f"{claim.id}: implemented_by: no file {name}")
        for node in claim.proved_by:
            file, *steps = node.split("::")
            if not (root / file).is_file():
                problems.append(f"{claim.id}: proved_by: no file {file}")
            elif not _defines((root / file).read_text(encoding="utf-8"), steps):
                problems.append(
                    f"{claim.id}: proved_by: {file} has no {'::'.join(steps) or 'test'}"
                )
    return problems


def _defines(source: str, steps: list[str]) -> bool:
    """Whether a test file defines ``Class::test`` or ``test`` (parameters in brackets ignored)."""
    body = ast.parse(source).body
    for step in steps:
        found = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == step.split("[")[0]
        ]
        if not found:
            return False
        body = found[0].body
    return bool(steps)
