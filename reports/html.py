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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from reports import artifacts, claims, evidence, methods, tables, verdicts
from reports.charts import Item, target
from reports.claims import Claim

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_TEMPLATES = _HERE / "templates"
MATRIX = "matrix"

MEANING = {
    "holds": "our result agrees",
    "direction only": "the direction is right, the size is not",
    "undecided": "our runs spread too much to tell",
    "fails": "our result disagrees",
    "impossible as printed": "physics rules it out",
    "contradicts itself": "the document's own numbers disagree",
    "not comparable": "it needs hardware, software or a model that we do not have",
    "not run here": "not run at this scale; the reason is given",
    "used as printed": "we set what is printed",
    "scaled here": "we set something else at this scale",
    "not printed": "the document does not say; we chose",
    "lost": "our text of the document lacks it; we chose",
    "implemented": "built as described, or as inferred, and tested",
}
SCORE = {
    "holds": ("holds",),
    "off": ("direction only",),
    "fails": ("fails", "contradicts itself"),
    "impossible": ("impossible as printed",),
    "open": ("undecided", "not comparable", "not run here"),
}
"""The verdicts of claims that can hold or fail, as the front page counts them."""
OUTCOME_MEANING = {
    "holds": "we find what is printed",
    "off": "the direction is right, the size is not",
    "fails": "we, or the document's own numbers, disagree",
    "impossible": "physics rules it out",
    "open": "our runs cannot tell",
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


def build(
    chapters: Sequence[Chapter],
    matrix: Matrix,
    results: pd.DataFrame,
    verdict_table: pd.DataFrame,
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    out_dir: str | Path,
    processes: int = 1,
) -> Path:
    """Write the report and return the path of its first page, ``out_dir/index.html``.

    Parameters
    ----------
    chapters: the documents, and the matrix if there is one.
    results: tidy table of all results of one scale.
    verdict_table: from ``reports.verdicts.judge``, of all documents.
    recipe: the recipes as run: chapter -> mapping.
    provenance: what is shown under Provenance (``scale``, ``versions``, ``machine``, ``seeds``,
        ``durations``, ...); values are texts, numbers, lists or mappings.
    out_dir: the folder; what was in it is replaced once everything new is written.
    processes: that make the documents' parts and the methods' cards; several are forked, so this
        one should not have used threads of torch before.

    Raises
    ------
    ValueError
        The verdicts lack a column of ``reports.verdicts.DETAILS``.
    """
    missing = [column for column in verdicts.DETAILS if column not in verdict_table]
    if missing:
        raise ValueError(f"verdicts lack {', '.join(missing)}: make them with verdicts.judge")
    out_dir = Path(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        _write(fresh, chapters, matrix, results, verdict_table, recipe, provenance, processes)
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
    chapters: Sequence[Chapter],
    matrix: Matrix,
    results: pd.DataFrame,
    verdict_table: pd.DataFrame,
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    processes: int,
) -> None:
    shutil.copytree(_HERE / "assets", folder / "assets")
    verdict_table[verdicts.COLUMNS].to_csv(folder / "verdicts.csv", index=False)
    mine, none = dict(iter(results.groupby("document"))), results[:0]
    judged = dict(iter(verdict_table.groupby("document", sort=False)))
    parts = [partial(_items, one, mine.get(one.name, none), folder) for one in chapters]
    parts += [partial(methods.card, room, name) for room, name in methods.names()]
    made = _all(parts, processes)
    items = dict(zip((one.name for one in chapters), made, strict=False))
    cards = made[len(chapters) :]
    documents = {
        one.name: _document(one, items[one.name], judged[one.name])
        for one in chapters
        if one.name in judged
    }
    shown_matrix = _matrix(matrix, items[MATRIX]) if MATRIX in items else None
    every = [claim for document in documents.values() for claim in document["claims"]]
    counts = tables.scoreboard(verdict_table)
    failed = results[(results["status"] == "failed") & (results["document"] != MATRIX)]
    menu = {
        "index.html": "Overview",
        **{f"documents/{name}.html": document["label"] for name, document in documents.items()},
        **({"matrix.html": "Matrix"} if shown_matrix else {}),
        "methods.html": "Methods",
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
    page("index.html", found=_findings(documents), abstracts=_ABSTRACTS)
    for name, document in documents.items():
        page(f"documents/{name}.html", "document.html", document=document)
    if shown_matrix:
        page("matrix.html")
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
        used_data=sorted(set(results["dataset"]) - {""}),
        failed=failed[["experiment", "case", "metric", "seed", "reason"]].to_dict("records"),
    )
    found = json.dumps(_search(documents, shown_matrix, cards), ensure_ascii=False)
    text = f"window.searchIndex = {found};\n"
    (folder / "assets" / "search.js").write_text(text, encoding="utf-8")


def _all(tasks: Sequence[Callable[[], Any]], processes: int) -> list[Any]:
    """What each of them returns."""
    if processes == 1:
        return [task() for task in tasks]
    # Declarations cannot be sent to a process, but one that is forked has them already.
    _tasks[:] = tasks
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        return list(pool.map(_run, range(len(tasks))))


_tasks: list[Callable[[], Any]] = []


def _run(number: int) -> Any:
    return _tasks[number]()


def _renderer(folder: Path, common: Mapping[str, Any]) -> Callable[..., None]:
    """A function that writes a page; its template has the page's name if it is not given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
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


def _items(chapter: Chapter, results: pd.DataFrame, folder: Path) -> list[dict[str, Any]]:
    """The figures and tables of a chapter; their files go to ``folder``."""
    return [
        artifacts.entry(chapter.name, name, item, results, chapter.made, folder)
        for name, item in chapter.items.items()
    ]


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
        "map": next((item for item in made if item["id"] == f"{MATRIX}-winners"), None),
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
    path = _ROOT / "data" / "sources.yaml"
    if not path.is_file():
        return []
    return [
        {"name": name, **{key: entry.get(key, "") for key in ("title", "licence", "homepage")}}
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8")).items()
    ]
