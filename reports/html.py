"""The report: a folder of pages that opens offline, with the figures, tables and rows beside them.

``index.html`` (what held and what did not), ``papers/<name>.html``, ``matrix.html``,
``methods.html`` with ``methods/<room>-<name>.html``, ``advice.html``, ``claims.html`` and
``data.html``. Pages of what is not there (no matrix among the results, no form for advice) are left
out. Links to a claim are ``papers/<name>.html#row-<id>``.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from reports import book, claims, methods, papers, shown, tables, verdicts
from reports.claims import Claim

_HERE = Path(__file__).parent
_ROOT = _HERE.parent
_TEMPLATES = _HERE / "templates"
MATRIX = "matrix"
_NAMES = {
    "dds": "DDS",
    "geomx": "GeoMX",
    "lpsp": "LPSP",
    "rat": "RAT",
    "sketch_fusion": "Sketch-Fusion",
}

MEANING = {
    "holds": "our result agrees with what is printed",
    "direction only": "same direction, another size",
    "undecided": "our intervals do not settle it",
    "fails": "our result says otherwise",
    "impossible as printed": "below what physics allows",
    "contradicts itself": "the document's own numbers say otherwise",
    "not comparable": "depends on hardware, software or a model we do not have",
    "not run here": "not run, for the reason given",
    "used as printed": "the parameter is used as printed",
    "scaled here": "the parameter is scaled at this scale",
    "not printed": "the document does not say; our choice is given",
    "lost": "lost in the text that we have; our choice is given",
    "implemented": "implemented and tested as described, or as inferred",
}
_FINDING = {
    "holds": "It holds here",
    "direction only": "The direction holds here, the size does not",
    "undecided": "Our runs do not settle it",
    "fails": "It fails here",
    "impossible as printed": "It is impossible as printed",
    "contradicts itself": "The document contradicts it",
    "not comparable": "It cannot be compared",
    "not run here": "It was not run here",
}
_ABSTRACTS = {
    "matrix.html": "every method in every cell, ranked fairly, with ties as ties",
    "methods.html": "a card each: what it sends, what it costs, how to run it",
    "advice.html": "predicted round times of all methods for your own numbers",
    "claims.html": "with verdict, reason and the command that makes the number",
    "data.html": "data sets, versions, machine, seeds, durations, the recipe as run",
}
_OUTCOMES = {
    "What held": ("holds", "direction only"),
    "What did not hold": ("fails", "contradicts itself"),
    "What is physically impossible": ("impossible as printed",),
    "What stays open": ("undecided", "not comparable", "not run here"),
}


def build(
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
    results: tidy table of all results of one scale.
    verdict_table: from ``reports.verdicts.detail``, of one or several papers.
    recipe: the recipe as run: paper -> mapping, or one paper's mapping.
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
        raise ValueError(f"verdicts lack {', '.join(missing)}: make them with verdicts.detail")
    out_dir = Path(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        _write(fresh, results, verdict_table, recipe, provenance, processes)
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
    results: pd.DataFrame,
    verdict_table: pd.DataFrame,
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    processes: int,
) -> None:
    shutil.copytree(_HERE / "assets", folder / "assets")
    verdict_table[verdicts.COLUMNS].to_csv(folder / "verdicts.csv", index=False)
    mine = dict(iter(results.groupby("paper")))
    none = results[:0]
    judged = dict(iter(verdict_table.groupby("paper", sort=False)))
    parts = [partial(_matrix, mine.get(MATRIX, none), folder)]
    parts += [
        partial(_paper, name, mine.get(name, none), its, folder) for name, its in judged.items()
    ]
    parts += [partial(methods.card, room, name) for room, name in methods.names()]
    matrix, *made = _all(parts, processes)
    documents, cards = dict(zip(judged, made, strict=False)), made[len(judged) :]
    advice = _advice(results)
    every = [claim for document in documents.values() for claim in document["claims"]]
    counts = tables.scoreboard(verdict_table)
    failed = results[(results["status"] == "failed") & (results["paper"] != MATRIX)]
    menu = {
        "index.html": "Overview",
        **{f"papers/{name}.html": document["label"] for name, document in documents.items()},
        **({"matrix.html": "Matrix"} if matrix else {}),
        "methods.html": "Methods",
        **({"advice.html": "Advice"} if advice is not None else {}),
        "claims.html": "Claims",
        "data.html": "Data",
    }
    common = {
        "pages": menu,
        "provenance": provenance,
        "meaning": MEANING,
        "matrix": matrix,
        "papers": documents,
        "claims": every,
        "kinds": list(dict.fromkeys(verdict_table["kind"])),
        "counts": counts.to_dict("index"),
        "totals": counts.sum().to_dict(),
    }
    page = _renderer(folder, common)
    page("index.html", outcomes=_outcomes(documents), abstracts=_ABSTRACTS)
    for name, document in documents.items():
        page(f"papers/{name}.html", "paper.html", paper=document)
    if matrix:
        page("matrix.html")
    page("methods.html", rooms=methods.ROOMS, cards=cards)
    for card in cards:
        ours = [claim for claim in every if card.file in claim["reason"]]
        page(card.page, "method.html", card=card, ranked=_ranked(card, matrix), about=ours)
    if advice is not None:
        page("advice.html", **advice)
    page("claims.html", rules=verdicts.RULES)
    page(
        "data.html",
        recipe=flat(recipe),
        sources=_sources(),
        used_data=sorted(set(results["dataset"]) - {""}),
        failed=failed[["experiment", "case", "metric", "seed", "reason"]].to_dict("records"),
    )
    found = json.dumps(_search(documents, matrix, cards), ensure_ascii=False)
    text = f"window.searchIndex = {found};\n"
    (folder / "assets" / "search.js").write_text(text, encoding="utf-8")


def _all(tasks: Sequence[Callable[[], Any]], processes: int) -> list[Any]:
    """What each of them returns."""
    if processes == 1:
        return [task() for task in tasks]
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        return [made.result() for made in [pool.submit(task) for task in tasks]]


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
    environment.filters["number"] = lambda value: "" if pd.isna(value) else book.number(value)
    environment.filters["plain"] = shown.plain

    def page(path: str, template: str = "", **context: Any) -> None:
        root = "../" * path.count("/")
        told = {**common, **context, "here": path, "root": root}
        text = environment.get_template(template or path).render(told)
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")

    return page


def _paper(name: str, results: pd.DataFrame, judged: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Everything the pages show of one document, of its rows and verdicts; its figures and tables
    go to ``folder``."""
    source = _ROOT / "data" / "claims" / f"{name}.yaml"
    printed = claims.load(source)
    items: list[papers.Shown] = []
    made = []
    if name in papers.names():
        module = papers.load(name)
        items = list(module.PAGE)
        made = [shown.entry(name, item, module, judged, results, printed, folder) for item in items]
    again = {claim.id: _command(name, claim, items) for claim in printed}
    counts = tables.scoreboard(judged)
    return {
        "name": name,
        "label": _NAMES.get(name, _spaced(name)),
        **claims.about(source),
        "shown": made,
        "claims": [row | {"command": again[row["id"]]} for row in judged.to_dict("records")],
        "counts": counts.sum().to_dict(),
        "command": shown.command(name),
        "parameters": tables.parameters(judged).to_dict("records"),
        "algorithms": tables.algorithms(judged).to_dict("records"),
        "findings": [_finding(row) for row in judged[judged["headline"] != ""].itertuples()],
    }


def _command(paper: str, claim: Claim, items: Sequence[papers.Shown]) -> str:
    """What makes the number of a claim again: its test, or the table or figure where it stands, or
    another one with its results."""
    if claim.proved_by:
        return f"pytest {shlex.quote(claim.proved_by[0])}"
    if claim.kind == "param" and claim.ours is None:
        return "snakemake --cores 2 verdicts"
    place = claim.where.lower().replace(" ", "")
    lookups = [claim.ours, *claim.lookups.values()]
    used = [lookup.experiment for lookup in lookups if lookup]
    for item in items:
        if item.name == place:
            return shown.command(paper, item.name)
    for item in items:
        if used and used[0] in item.experiment.split():
            return shown.command(paper, item.name)
    return shown.command(paper)


def _finding(row: Any) -> dict[str, Any]:
    return {
        "paper": row.paper,
        "id": row.id,
        "statement": row.headline,
        "verdict": row.verdict,
        "lead": _FINDING.get(row.verdict, row.verdict.capitalize()),
        "ours": row.ours,
        "reason": row.reason,
        "where": row.where,
        "evidence": row.evidence,
    }


def _outcomes(documents: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The main claims by how they came out, and every claim that physics rules out."""
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
        for outcome, among in _OUTCOMES.items()
    }


# The matrix and advice ------------------------------------------------------------------------


def _matrix(results: pd.DataFrame, folder: Path) -> dict[str, Any] | None:
    """What its pages show, if the matrix is among the results."""
    if results.empty or MATRIX not in papers.names():
        return None
    module: Any = papers.load(MATRIX)
    nothing = pd.DataFrame(columns=verdicts.DETAILS)
    made = [shown.entry(MATRIX, item, module, nothing, results, [], folder) for item in module.PAGE]
    headline = getattr(module, "headline", lambda _: "")
    standing = getattr(module, "standing", lambda _: pd.DataFrame(columns=["label"]))
    return {
        "shown": made,
        "map": next((item for item in made if item["id"] == f"{MATRIX}-winners"), None),
        "headline": headline(results),
        "standing": standing(results),
        "command": shown.command(MATRIX),
    }


def _ranked(card: methods.Card, matrix: Mapping[str, Any] | None) -> pd.DataFrame:
    """How the matrix's methods that use this one came out."""
    if matrix is None:
        return pd.DataFrame()
    standing = matrix["standing"]
    uses = standing["label"] == card.name
    if card.room in standing:
        uses |= standing[card.room] == card.name
    return standing[uses].drop(columns=list(methods.ROOMS), errors="ignore")


def _advice(results: pd.DataFrame) -> Mapping[str, Any] | None:
    """What the page of advice is rendered with; None if there is none."""
    if not (_TEMPLATES / "advice.html").is_file():
        return None
    return importlib.import_module("reports.advise").page(results)


# Search, recipe, sources ----------------------------------------------------------------------


def _search(
    documents: Mapping[str, Any], matrix: Mapping[str, Any] | None, cards: Sequence[methods.Card]
) -> list[list[str]]:
    """What the search looks through: kind, title, more words, link from the report's folder."""
    found = [
        ["method", card.name, f"{card.summary} · {card.room} · {_spaced(card.name)}", card.page]
        for card in cards
    ]
    pages = {f"papers/{name}.html": document for name, document in documents.items()}
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
        return {path: book.show(value)}
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
