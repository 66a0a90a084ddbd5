"""The report: a folder of pages that opens offline, with the figures, tables and rows beside them.

``index.html`` (what held and what did not), ``documents/<name>.html``, ``matrix.html``,
``methods.html`` with ``methods/<room>-<name>.html``, ``advice.html``, ``claims.html`` and
``data.html``. Pages of what is not there (no matrix, no form for advice) are left out. Links to a
claim are ``documents/<name>.html#row-<id>``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from slowlink.reports import artifacts, claims, evidence, methods, tables, verdicts
from slowlink.reports.charts import Item, target
from slowlink.reports.claims import Claim

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_TEMPLATES = _HERE / "templates"
MATRIX = "matrix"
PART = "part.pickle"
"""The file of a part, among those that its page links."""

MEANING = {
    "holds": "our result agrees",
    "off by ×": "our number is another, by the factor given",
    "direction only": "the direction is right, the size is not",
    "undecided": "our runs spread too much to tell",
    "depends on the reading": "the text can be read in several ways, and they lead apart",
    "fails": "our result disagrees",
    "impossible as printed": "physics rules it out",
    "contradicts itself": "the document's own numbers disagree",
    "not comparable": "it needs hardware, software or a model that we do not have",
    "not run here": "not run at this scale; the reason is given",
    "used as printed": "we set what is printed",
    "differs": "we set or do something else at every scale, which is told",
    "scaled here": "we set something else at this scale",
    "not printed": "the document does not say; we chose",
    "lost": "our text of the document lacks it; we chose",
    "implemented": "built as described, or as inferred, and tested",
}
SCORE = {
    "holds": ("holds",),
    "off": ("off by ×", "direction only"),
    "fails": ("fails", "contradicts itself"),
    "impossible": ("impossible as printed",),
    "open": ("undecided", "depends on the reading", "not comparable", "not run here"),
}
"""The verdicts of claims that can hold or fail, as the front page counts them."""
OUTCOME_MEANING = {
    "holds": "we find what is printed",
    "off": "the size is another; the factor or the direction is given",
    "fails": "we, or the document's own numbers, disagree",
    "impossible": "physics rules it out",
    "open": "our runs, or the text, cannot tell",
}
_ABSTRACTS = {
    "matrix.html": "all methods on the same networks, ranked",
    "methods.html": "a card for each: what it sends, what it costs, how to run it",
    "advice.html": "predicted round times on your own cluster",
    "claims.html": "each with its verdict, the reason and the command",
    "data.html": "data sets, versions, machine, seeds, run times and recipes",
}


@dataclass(frozen=True)
class Chapter:
    """A document or the matrix, as its page is made.

    Attributes
    ----------
    items: its figures and tables by name, in their order.
    made: the folder of the files that their targets made.
    claims: the file of what a document prints.
    """

    name: str
    items: Mapping[str, Item]
    made: Path
    claims: Path | None = None


@dataclass(frozen=True)
class Matrix:
    """What the report says of the matrix besides its figures and tables.

    Attributes
    ----------
    headline: the main finding in words.
    standing: how each method came out: its ``label``, its four answers, and more.
    advice: what the page of the form is rendered with; None if there is none.
    """

    headline: str = ""
    standing: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["label"]))
    advice: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Part:
    """What the report shows of one chapter, whose files lie in a folder of its own.

    Attributes
    ----------
    items: its figures and tables, as :func:`artifacts.entry` gives them.
    document: everything that pages show of a document; None of the matrix.
    judged: the verdicts of a document.
    failed: the rows of results that failed.
    datasets, seeds: what its results come from.
    """

    name: str
    items: list[dict[str, Any]]
    document: dict[str, Any] | None
    judged: pd.DataFrame | None
    matrix: Matrix | None
    failed: list[dict[str, Any]]
    datasets: set[str]
    seeds: set[int]


@dataclass(frozen=True)
class Waits:
    """What a report still lacks: labels of chapters, and about how long they take, in words."""

    labels: Sequence[str] = ()
    left: str = ""


def part(
    chapter: Chapter,
    results: pd.DataFrame,
    judged: pd.DataFrame | None,
    matrix: Matrix | None,
    folder: Path,
) -> Part:
    """What the report shows of a chapter; the files that its page links go to ``folder``.

    Parameters
    ----------
    results: its tidy rows, of one scale.
    judged: of a document, from ``reports.verdicts.judge``.

    Raises
    ------
    ValueError
        The verdicts lack a column of ``reports.verdicts.DETAILS``.
    """
    if judged is not None:
        missing = [column for column in verdicts.DETAILS if column not in judged]
        if missing:
            raise ValueError(f"verdicts lack {', '.join(missing)}: make them with verdicts.judge")
    items = [
        artifacts.entry(chapter.name, name, item, results, chapter.made, folder)
        for name, item in chapter.items.items()
    ]
    failed = results[(results["status"] == "failed") & (chapter.name != MATRIX)]
    return Part(
        name=chapter.name,
        items=items,
        document=None if judged is None else _document(chapter, items, judged),
        judged=judged,
        matrix=matrix,
        failed=failed[["experiment", "case", "metric", "seed", "reason"]].to_dict("records"),
        datasets=set(results["dataset"]) - {""},
        seeds=set(results["seed"].astype(int)) - {-1},
    )


def label(name: str, file: Path | None) -> str:
    """How pages call a chapter."""
    return claims.about(file).label if file else "Matrix"


def build(
    parts: Mapping[Path, Part],
    cards: Sequence[methods.Card],
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    out_dir: str | Path,
    waits: Waits = Waits(),
) -> Path:
    """Write the report and return the path of its first page, ``out_dir/index.html``.

    Parameters
    ----------
    parts: what :func:`part` made, by the folder of its files.
    recipe: the recipes as run: chapter -> mapping.
    provenance: what is shown under Provenance (``scale``, ``versions``, ``machine``, ``seeds``,
        ``durations``, ...); values are texts, numbers, lists or mappings.
    out_dir: the folder; what was in it is replaced once everything new is written.
    waits: what is missing, of a report that is written while its run goes on. Its first page is
        dated as old as can be, so that whoever compares dates knows that it is not the last.
    """
    out_dir = Path(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        for files in (_HERE / "assets", *parts):
            target = fresh / "assets" if files == _HERE / "assets" else fresh
            shutil.copytree(files, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(PART))
        _write(fresh, list(parts.values()), cards, recipe, provenance, waits)
        if waits.labels:
            os.utime(fresh / "index.html", (0, 0))
        fresh.chmod(0o755)
        if out_dir.exists():
            shutil.rmtree(out_dir)
        os.replace(fresh, out_dir)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return out_dir / "index.html"


def _write(
    folder: Path,
    parts: Sequence[Part],
    cards: Sequence[methods.Card],
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    waits: Waits,
) -> None:
    documents = {one.name: one.document for one in parts if one.document}
    judged = [one.judged for one in parts if one.judged is not None]
    verdict_table = pd.concat(judged) if judged else pd.DataFrame(columns=verdicts.DETAILS)
    verdict_table[verdicts.COLUMNS].to_csv(folder / "verdicts.csv", index=False)
    matrix = next((one.matrix for one in parts if one.matrix), Matrix())
    shown_matrix = next((_matrix(matrix, one.items) for one in parts if one.name == MATRIX), None)
    every = [claim for document in documents.values() for claim in document["claims"]]
    counts = tables.scoreboard(verdict_table)
    menu = {
        "index.html": "Overview",
        **{f"documents/{name}.html": document["label"] for name, document in documents.items()},
        **({"matrix.html": "Matrix"} if shown_matrix else {}),
        **({"methods.html": "Methods"} if cards else {}),
        **({"advice.html": "Advice"} if matrix.advice is not None else {}),
        "claims.html": "Claims",
        "data.html": "Data",
    }
    common = {
        "pages": menu,
        "provenance": provenance,
        "matrix": shown_matrix,
        "documents": documents,
        "claims": every,
        "kinds": list(dict.fromkeys(verdict_table["kind"])),
        "asked": score(counts.sum().to_dict()),
        "outcomes": SCORE,
        "meaning": MEANING,
        "outcome_meaning": OUTCOME_MEANING,
        "score": {name: score(row) for name, row in counts.to_dict("index").items()},
        "counts": counts.to_dict("index"),
        "totals": counts.sum().to_dict(),
    }
    page = _renderer(folder, common)
    page("index.html", found=_findings(documents), abstracts=_ABSTRACTS, waits=waits)
    for name, document in documents.items():
        page(f"documents/{name}.html", "document.html", document=document)
    if shown_matrix:
        page("matrix.html")
    if cards:
        page("methods.html", rooms=methods.ROOMS, cards=cards)
    for card in cards:
        ours = [claim for claim in every if card.file in claim["reason"]]
        page(card.page, "method.html", card=card, ranked=_ranked(card, matrix.standing), about=ours)
    if matrix.advice is not None:
        page("advice.html", **matrix.advice)
    page("claims.html", rules=verdicts.RULES)
    page(
        "data.html",
        recipe=flat(recipe),
        sources=_sources(),
        used_data=sorted(set().union(*(one.datasets for one in parts))),
        failed=[row for one in parts for row in one.failed],
    )
    found = json.dumps(_search(documents, shown_matrix, cards), ensure_ascii=False)
    text = f"window.searchIndex = {found};\n"
    (folder / "assets" / "search.js").write_text(text, encoding="utf-8")


def _unbroken(shown: Any) -> Any:
    """A text whose percent signs stay on the line of their number."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", shown) if type(shown) is str else shown


def _renderer(folder: Path, common: Mapping[str, Any]) -> Callable[..., None]:
    """A function that writes a page; its template has the page's name if it is not given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_unbroken,
    )
    environment.filters["slug"] = lambda text: re.sub(r"\W+", "-", text.lower())
    environment.filters["number"] = lambda value: "" if pd.isna(value) else evidence.number(value)
    environment.filters["plain"] = artifacts.plain

    def page(path: str, template: str = "", **context: Any) -> None:
        root = "../" * path.count("/")
        told = {**common, **context, "here": path, "root": root}
        text = environment.get_template(template or path).render(told)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")

    return page


def _document(chapter: Chapter, made: list[dict[str, Any]], judged: pd.DataFrame) -> dict[str, Any]:
    """Everything the pages show of one document."""
    printed = claims.load(chapter.claims)
    again = {claim.id: _command(chapter, claim) for claim in printed}
    counts = tables.scoreboard(judged).sum().to_dict()
    return {
        **claims.about(chapter.claims).model_dump(),
        "name": chapter.name,
        "shown": made,
        "claims": [row | {"command": again[row["id"]]} for row in judged.to_dict("records")],
        "counts": counts,
        "score": score(counts),
        "command": artifacts.command(chapter.name),
        "parameters": tables.parameters(judged).to_dict("records"),
        "algorithms": tables.algorithms(judged).to_dict("records"),
        "findings": [_finding(row) for row in judged[judged["headline"] != ""].itertuples()],
    }


def score(counts: Mapping[str, int]) -> dict[str, int]:
    """How many claims came out in each of the ways that a reader looks for first."""
    return {name: sum(counts.get(verdict, 0) for verdict in among) for name, among in SCORE.items()}


def _command(chapter: Chapter, claim: Claim) -> str:
    """What makes the number of a claim again: its test, or the table or figure where it stands, or
    another one with its results."""
    if claim.proved_by:
        return f"pytest {shlex.quote(claim.proved_by[0])}"
    if claim.kind == "param" and claim.ours is None:
        return "snakemake --cores 2 verdicts"
    places = claim.where.lower().replace(" ", "").split(",")
    used = claim.experiments()
    with_results = [name for name, item in chapter.items.items() if used & set(item.experiments)]
    name = next(iter([*(place for place in places if place in chapter.items), *with_results]), "")
    return artifacts.command(chapter.name, target(name))


def _finding(row: Any) -> dict[str, Any]:
    return {
        "document": row.document,
        "id": row.id,
        "statement": row.headline,
        "verdict": row.verdict,
        "ours": row.ours,
        "reason": row.reason,
        "where": row.where,
        "evidence": row.evidence,
    }


def _findings(documents: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The main claims by their outcome, and every claim that physics rules out."""
    findings = [one for document in documents.values() for one in document["findings"]]
    main = {one["id"] for one in findings}
    for document in documents.values():
        for claim in document["claims"]:
            if claim["verdict"] == "impossible as printed" and claim["id"] not in main:
                printed = f"{claim['metric']}, {claim['setting']}: {claim['printed']}"
                statement = f"{document['label']}, {printed} {claim['unit']}".rstrip()
                row = pd.Series(claim | {"headline": statement})
                findings.append(_finding(row))
    return {
        outcome: [one for one in findings if one["verdict"] in among]
        for outcome, among in SCORE.items()
    }


# The matrix and advice ------------------------------------------------------------------------


def _matrix(matrix: Matrix, made: list[dict[str, Any]]) -> dict[str, Any]:
    """What the matrix's pages show."""
    return {
        "shown": made,
        "map": next((item for item in made if item["id"] == f"{MATRIX}-winners_target"), None),
        "headline": matrix.headline,
        "command": artifacts.command(MATRIX),
    }


def _ranked(card: methods.Card, standing: pd.DataFrame) -> pd.DataFrame:
    """How the matrix's methods that use this one came out."""
    uses = standing["label"] == card.name
    if card.room in standing:
        uses |= standing[card.room] == card.name
    return standing[uses].drop(columns=list(methods.ROOMS), errors="ignore")


# Search, recipe, sources ----------------------------------------------------------------------


def _search(
    documents: Mapping[str, Any], matrix: Mapping[str, Any] | None, cards: Sequence[methods.Card]
) -> list[list[str]]:
    """What the search looks through: kind, title, more words, link from the report's folder."""
    found = [
        ["method", card.name, f"{card.summary} · {card.room} · {_spaced(card.name)}", card.page]
        for card in cards
    ]
    pages = {f"documents/{name}.html": document for name, document in documents.items()}
    for path, document in {**pages, **({"matrix.html": matrix} if matrix else {})}.items():
        label = document.get("label", MATRIX)
        for item in document["shown"]:
            found.append([item["kind"], item["title"], label, f"{path}#h-{item['id']}"])
        for claim in document.get("claims", ()):
            title = claim["headline"] or f"{claim['metric']}, {claim['setting']}"
            words = [label, claim["id"], claim["where"], claim["verdict"], claim["printed"]]
            found.append(["claim", title, " · ".join(words), f"{path}#row-{claim['id']}"])
    return found


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Nested mappings as dotted paths."""
    if not isinstance(value, Mapping):
        return {path: evidence.show(value)}
    merged: dict[str, str] = {}
    for key, inner in value.items():
        merged |= flat(inner, f"{path}.{key}" if path else str(key))
    return merged


def _sources() -> list[dict[str, Any]]:
    text = (_ROOT / "data" / "sources.yaml").read_text(encoding="utf-8")
    return [
        {"name": name, **{key: entry.get(key, "") for key in ("title", "licence", "homepage")}}
        for name, entry in yaml.safe_load(text).items()
    ]
