"""What a document prints, as data: ``data/claims/<paper>.yaml``, read and checked.

A claim holds no verdict. It says what is printed and where, how the same quantity is found in the
results (a lookup, or an expression over other claims), and what else of the document it must agree
with. See ``Claim`` for the fields.
"""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from reports import expressions
from testbed.results import Scale

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
Several = BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)
"""One entry may be written without the brackets of a list."""
Reason = Annotated[str, Field(min_length=10)]

NOT_RUN = "not_run.yaml"


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Lookup(_Data):
    """Which result rows hold a quantity; ``None`` matches anything, ``times`` converts units."""

    experiment: str
    metric: str
    case: str | None = None
    model: str | None = None
    variant: str | None = None
    times: float = 1.0

    def __str__(self) -> str:
        keys = self.model_dump(exclude_none=True, exclude={"times"})
        return ", ".join(f"{key}={value}" for key, value in keys.items())


class Partly(_Data):
    """A claim that a scale runs in part: what may be ``missing``, as ``experiment: case`` with
    ``*`` for anything. Anything else of it that is not there is an error."""

    reason: Reason
    missing: Annotated[
        tuple[str, ...],
        Field(min_length=1),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ]

    def covers(self, lookup: Lookup) -> bool:
        place = f"{lookup.experiment}: {lookup.case or ''}"
        return any(fnmatch.fnmatchcase(place, pattern) for pattern in self.missing)


NotRun = dict[str, Reason | Partly]


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
    well. ``elsewhere`` says why a difference would be our machine's and not the document's: a
    statement that does not hold is then not comparable.
    """

    label: str = ""
    printed: str = ""
    unit: str = ""
    quantity: Quantity | None = None
    value: Expression | None = None
    largest: tuple[Expression, ...] = ()
    order: tuple[Expression, ...] = ()
    against: tuple[Other, ...] = ()
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


class Claim(_Data):
    """One entry of a document.

    Attributes
    ----------
    printed: the number with its digits as printed (values), else the statement in short.
    model: the model the document used, as results name it; other models are stand-ins.
    ours: rows that hold our counterpart. lookups: named rows for this claim's expressions.
    bound: the least value physics allows. part_of: the whole that this number is a part of.
    value, order, against, beside: a single part written in place; parts: several. What a
        statement is held ``against`` must agree with it; what stands ``beside`` is only shown,
        the document's numbers or ours.
    otherwise: what other variants of the same rows are to this claim, which are told with its
        verdict; empty if they are no counterpart.
    headline: the claim in plain words, where it is one of the document's main ones.
    calibrates: what of our set-up was chosen from this number, which therefore proves nothing.
    tie: the share by which simulated values of an order must differ to count as ordered.
    recipe: recipe path -> value as printed; of an ordering or derived claim, what its results
    depend on, told where it differs. not_printed: recipe path -> what the document omits.
    lost_with: what of the document is lost in our text with what ``not_printed`` names, or with
        part of what is printed.
    cited: whom the document quotes for a number that nothing in it is computed from.
    implemented_by: files. proved_by: pytest node ids. inferred: the formula is lost, and what is
        implemented is inferred from the words around it.
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
    lookups: dict[str, Lookup] = {}
    bound: Expression | None = None
    part_of: Expression | None = None
    value: Expression | None = None
    order: tuple[Expression, ...] = ()
    against: tuple[Other, ...] = ()
    beside: Annotated[tuple[Other, ...], Several] = ()
    parts: tuple[Part, ...] = ()
    otherwise: str = "modelled otherwise"
    headline: str = ""
    calibrates: str = ""
    tie: Annotated[float, Field(ge=0, lt=1)] = 0.0
    recipe: dict[str, Any] = {}
    not_printed: dict[str, str] = {}
    lost_with: str = ""
    cited: str = ""
    implemented_by: tuple[str, ...] = ()
    proved_by: tuple[str, ...] = ()
    inferred: bool = False
    note: str = ""
    paper: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if self.calibrates and self.kind != "value":
            raise ValueError("calibrates: only of a value")
        if self.kind == "value":
            if self.quantity is None or self.ours is None:
                raise ValueError("a value needs quantity and ours")
            expressions.printed(self.printed)
        elif self.kind in ("ordering", "derived"):
            self.statements()
        elif self.kind == "param":
            if not (self.recipe or self.not_printed or self.implemented_by or self.cited):
                raise ValueError("a param needs recipe, not_printed, implemented_by or cited")
            if self.ours is not None:
                if self.quantity is None:
                    raise ValueError("a param with ours needs quantity")
                expressions.printed(self.printed)
        elif not (self.implemented_by and self.proved_by):
            raise ValueError(f"an {self.kind} needs implemented_by and proved_by")
        return self

    def statements(self) -> tuple[Part, ...]:
        """The parts that an ordering or derived claim is judged by."""
        if self.parts:
            if self.value or self.order or self.against:
                raise ValueError("give either parts or value/order/against, not both")
            return self.parts
        fields = Part.model_fields.keys() & Claim.model_fields.keys()
        return (Part(**{name: getattr(self, name) for name in fields}),)

    def expressions(self) -> list[str]:
        """Every expression of this claim."""
        holders: list[Claim | Part] = [self]
        if self.kind in ("ordering", "derived"):
            holders += self.parts
        texts = [self.bound, self.part_of]
        for one in holders:
            for statement in (one, *one.against, *one.beside):
                texts += [statement.value, *statement.order]
            texts += one.largest if isinstance(one, Part) else ()
        return [text for text in texts if text]


class _File(_Data):
    paper: str
    title: str
    citation: str
    claims: tuple[Claim, ...]


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
    data = _validated(path, TypeAdapter(_File))
    claims = [_own(claim, data.paper) for claim in data.claims]
    problems = _reference_problems(claims)
    if root is not None:
        problems += _proof_problems(claims, Path(root))
    if problems:
        raise ValueError("\n".join(f"{path}: {problem}" for problem in problems))
    return claims


def _own(claim: Claim, paper: str) -> Claim:
    """A claim of a paper with the lookups that it uses; anchors bring those of others, too."""
    used = {name for text in claim.expressions() for name in expressions.names(text)}
    lookups = {name: lookup for name, lookup in claim.lookups.items() if name in used}
    return claim.model_copy(update={"paper": paper, "lookups": lookups})


def load_all(folder: str | Path) -> list[Claim]:
    """The claims of every document in a folder, for what concerns all of them.

    Raises
    ------
    ValueError
        As ``load``; or two documents share an id.
    """
    files = sorted(set(Path(folder).glob("*.yaml")) - {Path(folder) / NOT_RUN})
    every = [claim for path in files for claim in load(path)]
    papers = {claim.id: claim.paper for claim in every}
    if shared := sorted(claim.id for claim in every if papers[claim.id] != claim.paper):
        raise ValueError(f"{folder}: ids of two documents: {', '.join(shared)}")
    return every


def about(path: str | Path) -> dict[str, str]:
    """Title and citation of the document that a claims file is about."""
    data = _validated(Path(path), TypeAdapter(_File))
    return {"paper": data.paper, "title": data.title, "citation": data.citation}


def load_not_run(path: str | Path, claims: list[Claim]) -> dict[str, NotRun]:
    """Read the committed list of claims not run: scale -> {id: reason}, every scale present.

    It covers all documents: ``claims`` are those of ``load_all``.

    Raises
    ------
    ValueError
        No such claim, or nothing of it is as an entry says it may be missing.
    """
    path = Path(path)
    listed = _validated(path, TypeAdapter(dict[Scale, NotRun]))
    known = {claim.id: claim for claim in claims}
    for scale, entries in listed.items():
        if unknown := sorted(set(entries) - set(known)):
            raise ValueError(f"{path}: {scale}: no claims with ids {', '.join(unknown)}")
        for name, entry in entries.items():
            for pattern in entry.missing if isinstance(entry, Partly) else ():
                one = entry.model_copy(update={"missing": (pattern,)})
                if not any(map(one.covers, known[name].lookups.values())):
                    raise ValueError(f"{path}: {scale}: {name}: no lookup is {pattern!r}")
    return {scale: listed.get(scale, {}) for scale in get_args(Scale)}


def _validated(path: Path, adapter: TypeAdapter) -> Any:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML ({error})") from error
    try:
        return adapter.validate_python(raw)
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


def _reference_problems(claims: list[Claim]) -> list[str]:
    ids = [claim.id for claim in claims]
    problems = [
        f"{name}: id: appears twice" for name in sorted({n for n in ids if ids.count(n) > 1})
    ]
    with_value = {claim.id for claim in claims if claim.kind == "value" or claim.ours}
    for claim in claims:
        for text in claim.expressions():
            for name in expressions.names(text):
                if name not in with_value and name not in claim.lookups:
                    problems.append(
                        f"{claim.id}: {text!r}: {name!r} is neither a value of this file nor a "
                        "lookup of this claim"
                    )
    return problems


def _proof_problems(claims: list[Claim], root: Path) -> list[str]:
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
