"""The report: one folder with one page that opens offline, figures and tables beside it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml
from markupsafe import Markup
from matplotlib.figure import Figure

from reports import book, claims, figures, papers, tables, verdicts

_HERE = Path(__file__).parent
_ROOT = _HERE.parent

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


def build(
    results: pd.DataFrame,
    verdict_table: pd.DataFrame,
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
    out_dir: str | Path,
) -> Path:
    """Write the report and return the path of its page, ``out_dir/index.html``.

    Parameters
    ----------
    results: tidy table of all results of one scale.
    verdict_table: from ``reports.verdicts.detail``, of one or several papers.
    recipe: the recipe as run: paper -> mapping, or one paper's mapping.
    provenance: what is shown under Provenance (``scale``, ``versions``, ``machine``, ``seeds``,
        ``durations``, ...); values are texts, numbers, lists or mappings.
    out_dir: the folder; what was in it is replaced once everything new is written.

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
        documents = [
            _paper(name, results, verdict_table, fresh)
            for name in dict.fromkeys(verdict_table["paper"])
        ]
        page = _render(documents, results, verdict_table, recipe, provenance)
        (fresh / "index.html").write_text(page, encoding="utf-8")
        verdict_table[verdicts.COLUMNS].to_csv(fresh / "verdicts.csv", index=False)
        fresh.chmod(0o755)
        if out_dir.exists():
            shutil.rmtree(out_dir)
        os.replace(fresh, out_dir)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return out_dir / "index.html"


def _paper(
    name: str, results: pd.DataFrame, verdict_table: pd.DataFrame, folder: Path
) -> dict[str, Any]:
    """Everything the template shows of one document; its figures and tables go to ``folder``."""
    source = _ROOT / "data" / "claims" / f"{name}.yaml"
    printed = claims.load(source)
    mine = results[results["paper"] == name]
    judged = verdict_table[verdict_table["paper"] == name]
    shown = []
    if name in papers.names():
        paper = papers.load(name)
        for item in paper.PAGE:
            entry = _described(name, item, mine)
            try:
                if item.kind == "table":
                    entry |= _table(paper.TABLES[item.name](judged, mine), entry["id"], folder)
                else:
                    entry |= _figure(paper.FIGURES[item.name](mine, printed), entry["id"], folder)
            except ValueError as error:
                entry["missing"] = str(error)
            shown.append(entry)
    return {
        "name": name,
        **claims.about(source),
        "shown": shown,
        "parameters": tables.parameters(judged).to_dict("records"),
        "algorithms": tables.algorithms(judged).to_dict("records"),
        "findings": [_finding(row) for row in judged[judged["headline"] != ""].itertuples()],
    }


def _table(table: pd.DataFrame, name: str, folder: Path) -> dict[str, Any]:
    """What the template needs of a table; the table itself goes to ``folder``."""
    path = folder / "tables" / f"{name.replace('-', '_')}.csv"
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False)
    entry: dict[str, Any] = {"csv": f"tables/{path.name}"}
    if list(table.columns) == tables.COLUMNS:
        return entry | {"matrix": _matrix(table), "groups": _groups(table)}
    return entry | {"plain": _plain(table)}


def _figure(figure: Figure, name: str, folder: Path) -> dict[str, Any]:
    path = figures.save(figure, folder / "figures" / f"{name.replace('-', '_')}.svg")
    return {"svg": inline(path.read_text(), path.stem), "file": f"figures/{path.name}"}


def _described(paper: str, item: papers.Shown, results: pd.DataFrame) -> dict[str, Any]:
    behind = results["experiment"].isin(item.experiment.split())
    rows = results[behind & (results["status"] == "ok")]
    seeds = sorted(set(rows["seed"]) - {-1})
    data = sorted(set(rows.loc[rows["seed"] >= 0, "dataset"]) - {""})
    trained = sorted(set(rows.loc[(rows["seed"] >= 0) & (rows["dataset"] != ""), "model"]))
    basis = []
    if data:
        basis.append(f"data: {', '.join(data)}")
    if trained:
        basis.append(f"model trained: {', '.join(trained)}")
    if len(seeds) >= book.MIN_SEEDS:
        basis.append(f"{len(seeds)} seeds, intervals are 95 % of the mean over seeds (Student's t)")
    elif seeds:
        basis.append(f"{len(seeds)} seed{'s' * (len(seeds) > 1)}: too few for intervals")
    else:
        basis.append("deterministic: no seeds, no intervals")
    return {
        "kind": item.kind,
        "id": f"{paper}-{item.name}",
        "title": item.title,
        "shows": item.shows,
        "says": item.says,
        "basis": "; ".join(basis),
        "evidence": ", ".join(sorted(set(rows["evidence"]))),
        "command": f"snakemake --cores 2 {paper}_{item.name}",
    }


def _matrix(table: pd.DataFrame) -> dict[str, Any]:
    """The table in the document's own layout: rows of cells, None where it prints nothing."""
    cells = {(row.row, row.quantity): row._asdict() for row in table.itertuples()}
    columns = list(dict.fromkeys(table["quantity"]))
    return {
        "columns": [
            (name, next(c["unit"] for k, c in cells.items() if k[1] == name)) for name in columns
        ],
        "rows": [
            (row, [cells.get((row, column)) for column in columns])
            for row in dict.fromkeys(table["row"])
        ],
    }


def _plain(table: pd.DataFrame) -> dict[str, Any]:
    """Any other table: its columns (name, whether it holds numbers) and its rows of cells."""
    numeric = [pd.api.types.is_numeric_dtype(table[column]) for column in table]
    return {
        "columns": list(zip(table.columns, numeric, strict=True)),
        "rows": table.astype(object).values.tolist(),
    }


def _groups(table: pd.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(name, rows.to_dict("records")) for name, rows in table.groupby("row", sort=False)]


def _finding(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "statement": row.headline,
        "verdict": row.verdict,
        "lead": _FINDING.get(row.verdict, row.verdict.capitalize()),
        "ours": row.ours,
        "reason": row.reason,
        "where": row.where,
        "evidence": row.evidence,
    }


def inline(svg: str, prefix: str) -> Markup:
    """A figure for the page: ids made unique, ink and palette handed to the style sheet."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = svg.replace(figures.INK, "currentColor")
    for name, colour in figures.PALETTE.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    width = re.search(r'width="([\d.]+)pt"', svg).group(1)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    return Markup(svg.replace("<svg", f'<svg aria-hidden="true" style="--width: {width}pt"', 1))


def _render(
    documents: list[dict[str, Any]],
    results: pd.DataFrame,
    verdict_table: pd.DataFrame,
    recipe: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = lambda text: re.sub(r"\W+", "-", text.lower())
    environment.filters["number"] = lambda value: "" if pd.isna(value) else book.number(value)
    counts = tables.scoreboard(verdict_table)
    failed = results[results["status"] == "failed"]
    return environment.get_template("index.html").render(
        css=Markup((_HERE / "assets" / "report.css").read_text(encoding="utf-8")),
        js=Markup((_HERE / "assets" / "report.js").read_text(encoding="utf-8")),
        meaning=MEANING,
        papers=documents,
        counts=counts.to_dict("index"),
        totals=counts.sum().to_dict(),
        claims=verdict_table.to_dict("records"),
        kinds=list(dict.fromkeys(verdict_table["kind"])),
        recipe=flat(recipe),
        provenance=provenance,
        sources=_sources(),
        used_data=sorted(set(results["dataset"]) - {""}),
        failed=failed[["experiment", "case", "metric", "seed", "reason"]].to_dict("records"),
        rules=verdicts.RULES,
    )


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
