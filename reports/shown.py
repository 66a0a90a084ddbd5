"""Tables and figures as pages show them, and the files beside the pages that hold their numbers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from reports import book, figures, papers, tables

MANY = 30_000
"""Rows from which on a file has columns for every case."""


def entry(
    paper: str,
    item: papers.Shown,
    module: papers.Paper,
    judged: pd.DataFrame,
    results: pd.DataFrame,
    printed: list[Any],
    folder: Path,
) -> dict[str, Any]:
    """All that a page says of one table or figure; its files go to ``folder``.

    ``judged``, ``results`` and ``printed`` are this paper's verdicts, rows and claims. What cannot
    be made says why under ``missing``.
    """
    made = _described(paper, item, results)
    try:
        if item.kind == "table":
            made |= _table(
                module.TABLES[item.name](judged, results), f"{paper}_{item.name}", folder
            )
        else:
            made |= _figure(
                module.FIGURES[item.name](results, printed), f"{paper}_{item.name}", folder
            )
            made["files"] |= _behind(paper, item, results, folder)
    except ValueError as error:
        made["missing"] = str(error)
    return made


def behind(item: papers.Shown, results: pd.DataFrame) -> pd.DataFrame:
    """The results that a table or figure rests on."""
    return results[results["experiment"].isin(item.experiment.split())]


def _table(table: pd.DataFrame, name: str, folder: Path) -> dict[str, Any]:
    path = folder / "tables" / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    table.to_csv(path, index=False)
    made: dict[str, Any] = {"files": {"CSV": f"tables/{path.name}"}}
    if list(table.columns) == tables.COLUMNS:
        return made | {"matrix": _matrix(table), "groups": _groups(table)}
    return made | {"plain": plain(table)}


def _figure(figure: Figure, name: str, folder: Path) -> dict[str, Any]:
    path = figures.save(figure, folder / "figures" / f"{name}.svg")
    svg = lean(path.read_text(encoding="utf-8"))
    path.write_text(svg, encoding="utf-8")
    return {"svg": inline(svg, path.stem), "files": {"SVG": f"figures/{path.name}"}}


def _behind(paper: str, item: papers.Shown, results: pd.DataFrame, folder: Path) -> dict[str, str]:
    """The rows behind a figure: a file for each of its experiments, shared with other figures."""
    files = {}
    for experiment in item.experiment.split():
        rows = results[results["experiment"] == experiment]
        path = folder / "data" / f"{paper}_{experiment}.csv"
        if not rows.empty:
            path.parent.mkdir(exist_ok=True)
            if not path.exists():
                wide(rows).to_csv(path, index=False, float_format="%.6g")
            several = f" {experiment}" * (" " in item.experiment)
            files[f"CSV{several}"] = f"data/{path.name}"
    return files


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Result rows for reading: a column a metric, and of the others those that vary in a case.

    Of very many rows, every case has its own columns, too. Rows stay long where two of them have
    the same place. What failed is left out.
    """
    rows = rows[rows["status"] == "ok"]
    heads = rows["metric"] + np.where(rows["unit"] == "1", "", " (" + rows["unit"] + ")")
    among = rows.columns.difference(
        ["case", "metric", "value", "unit", "status", "reason"], sort=False
    )
    varied = rows.groupby("case")[list(among)].nunique(dropna=False).max()
    keys = [name for name in among if varied.get(name, 0) > 1]
    if len(rows) > MANY:
        heads = rows["case"] + ": " + heads
    else:
        keys.insert(0, "case")
    if rows.empty or rows.assign(head=heads).duplicated([*keys, "head"]).any():
        return rows[[*dict.fromkeys(["case", *keys]), "metric", "value", "unit"]]
    table = rows[keys].assign(head=heads, value=rows["value"])
    return table.set_index([*keys, "head"])["value"].unstack().reset_index()


def _described(paper: str, item: papers.Shown, results: pd.DataFrame) -> dict[str, Any]:
    rows = behind(item, results).query("status == 'ok'")
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
    elif set(rows["evidence"]) & {"emulated", "measured", "recorded"}:
        basis.append("single runs: no seeds, no intervals")
    else:
        basis.append("deterministic: no seeds, no intervals")
    return {
        "kind": item.kind,
        "id": f"{paper}-{item.name}{'-table' * (item.kind == 'table')}",
        "title": item.title,
        "shows": item.shows,
        "says": item.says,
        "basis": "; ".join(basis),
        "evidence": ", ".join(sorted(set(rows["evidence"]))),
        "command": command(paper, item.name),
    }


def command(paper: str, name: str = "") -> str:
    """What makes a document again, or one of its tables and figures."""
    return f"snakemake --cores 2 {paper}{'_' * bool(name)}{name}"


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


def plain(table: pd.DataFrame) -> dict[str, Any]:
    """Any other table: its columns (name, whether it holds numbers) and its rows of cells."""
    numeric = [pd.api.types.is_numeric_dtype(table[column]) for column in table]
    return {
        "columns": list(zip(table.columns, numeric, strict=True)),
        "rows": table.astype(object).values.tolist(),
    }


def _groups(table: pd.DataFrame) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(name, rows.to_dict("records")) for name, rows in table.groupby("row", sort=False)]


def lean(svg: str) -> str:
    """The same picture in fewer bytes: coordinates to a hundredth of a point, no names that nothing
    refers to, one family of letters, no spaces between tags."""

    def rounded(number: re.Match[str]) -> str:
        text = f"{float(number.group()):.2f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    def shorter(attribute: re.Match[str]) -> str:
        text = re.sub(r"-?\d+\.\d{3,}", rounded, attribute.group())
        return re.sub(r"\s*([MLCQz])\s*", r"\1", text.replace("\n", " "))

    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda name: name.group() * (name.group(1) in used), svg)
    svg = re.sub(r'\s(?:d|x|y)="[^"]*"', shorter, svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r"font-family: [^;\"]*sans-serif", "font-family: sans-serif", svg)
    return re.sub(r">\s+<", "><", svg)


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
