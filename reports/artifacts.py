"""Figures and tables as files, and as pages show these files.

A target makes a file, ``figures/<name>.svg`` or ``tables/<name>.csv``, and the page shows that very
file. Where what a figure or table needs was not run, its file says so (``missing``): the SVG is a
line of text with the reason in ``data-missing``, the CSV has one column, ``missing``.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from slowlink.reports import evidence, tables
from slowlink.reports.charts import Figure, Item, Missing, Table, target
from slowlink.reports.charts.drawing import draw
from slowlink.reports.charts.look import INK, PALETTE, save
from slowlink.reports.claims import NO_COORDINATES
from slowlink.testbed.results import coordinates

_NUMBERS = ("bound", "ratio")
"""Columns of a printed table that hold numbers; the others are texts with their digits."""
_MISSING = "missing"


# Files ---------------------------------------------------------------------------------------


def write_figure(figure: Figure, rows: pd.DataFrame, claims: Iterable[Any], path: Path) -> str:
    """Draw a figure to ``path``; the reason if it cannot be drawn, else nothing."""
    try:
        save(draw(figure, rows, claims), path)
    except Missing as missing:
        told = html.escape(str(missing), quote=True)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="640pt" height="24pt" '
            f'data-{_MISSING}="{told}"><text x="4" y="20" font-size="12" '
            f'font-family="sans-serif">{told}</text></svg>\n',
            encoding="utf-8",
        )
        return str(missing)
    return ""


def write_table(table: Table, rows: pd.DataFrame, verdicts: pd.DataFrame, path: Path) -> str:
    """Write a table to ``path``; the reason if it cannot be made, else nothing.

    ``rows`` and ``verdicts`` are those of its document.
    """
    mine = rows[rows["experiment"].isin(table.experiments)]
    try:
        if mine.empty:
            raise Missing(f"no results of experiment {' or '.join(map(repr, table.experiments))}")
        made = table.make(coordinates(mine), verdicts)
    except Missing as missing:
        pd.DataFrame({_MISSING: [str(missing)]}).to_csv(path, index=False)
        return str(missing)
    made.to_csv(path, index=False)
    return ""


def read_table(path: Path) -> pd.DataFrame:
    """A table as it was written: numbers where every cell of a column is one, else texts with all
    their digits."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    printed = list(table.columns) == tables.COLUMNS
    for name in table:
        if name in _NUMBERS if printed else all(map(_plain_number, table[name])):
            table[name] = pd.to_numeric(table[name], errors="coerce")  # nan where it is empty
    return table


def _plain_number(text: str) -> bool:
    """Whether a cell is empty or a number as it is written without a format: 6.7, not 6.70."""
    try:
        return not text or text in (str(float(text)), str(int(float(text))))
    except (ValueError, OverflowError):
        return False


# The page --------------------------------------------------------------------------------------


def entry(
    document: str, name: str, item: Item, rows: pd.DataFrame, made_in: Path, folder: Path
) -> dict[str, Any]:
    """All that a page says of one figure or table, from the file that its target made.

    Parameters
    ----------
    rows: of the document. made_in: the document's folder of results, with ``figures`` and
        ``tables``. folder: the report's, which the files are copied to.

    What cannot be made says why under ``missing``.
    """
    mine = rows[rows["experiment"].isin(item.experiments)]
    about = _described(document, name, item, mine)
    if isinstance(item, Figure):
        made = _figure(made_in / "figures" / f"{name}.svg", about["id"])
        copies = {"SVG": f"figures/{document}_{name}.svg"}
    else:
        made = _table(made_in / "tables" / f"{name}.csv")
        copies = {"CSV": f"tables/{document}_{name}.csv"}
    if _MISSING in made:
        return about | made
    for path in copies.values():
        (folder / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(made_in / path.replace(f"{document}_", "", 1), folder / path)
    if isinstance(item, Figure):
        copies |= _behind(document, item, mine, folder)
    return about | made | {"files": copies}


def _figure(path: Path, prefix: str) -> dict[str, Any]:
    svg = path.read_text(encoding="utf-8")
    if missing := re.search(rf'data-{_MISSING}="([^"]*)"', svg):
        return {_MISSING: html.unescape(missing.group(1))}
    return {"svg": inline(svg, prefix)}


def _table(path: Path) -> dict[str, Any]:
    table = read_table(path)
    if list(table.columns) == [_MISSING]:
        return {_MISSING: table[_MISSING].iloc[0]}
    if list(table.columns) == tables.COLUMNS:
        return {"matrix": _matrix(table), "groups": _groups(table)}
    return {"plain": plain(table)}


def _behind(document: str, item: Item, rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """The rows behind a figure: a file for each of its experiments, shared with other figures."""
    files = {}
    for experiment, mine in rows.groupby("experiment", sort=False):
        path = folder / "data" / f"{document}_{experiment}.csv"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            wide(mine).to_csv(path, index=False, float_format="%.6g")
        several = f" {experiment}" * (len(item.experiments) > 1)
        files[f"CSV{several}"] = f"data/{path.name}"
    return files


def wide(rows: pd.DataFrame) -> pd.DataFrame:
    """Result rows for reading: a column a metric, and of the others those that vary.

    Rows stay long where two of them have the same place. Labels of cases are left out where the
    coordinates say them again, and so is what failed.
    """
    rows = coordinates(rows[rows["status"] == "ok"])
    among = rows.columns.difference(["metric", "value", "unit", "status", "reason"], sort=False)
    keys = [name for name in among if rows[name].nunique(dropna=False) > 1]
    heads = rows["metric"] + np.where(rows["unit"] == "1", "", " (" + rows["unit"] + ")")
    others = [name for name in keys if name != "case"]
    if others and not rows.drop_duplicates([*others, "case"]).duplicated(others).any():
        keys = others
    if rows.empty or not keys or rows.assign(head=heads).duplicated([*keys, "head"]).any():
        return rows[[*keys, "metric", "value", "unit"]]
    places = rows[keys].astype(object).where(rows[keys].notna(), "")
    table = places.assign(head=heads, value=rows["value"])
    return table.set_index([*keys, "head"])["value"].unstack().reset_index()


def _described(document: str, name: str, item: Item, rows: pd.DataFrame) -> dict[str, Any]:
    rows = rows[rows["status"] == "ok"]
    return {
        "kind": item.kind,
        "id": f"{document}-{name}",
        "title": item.title,
        "shows": item.shows,
        "says": item.says,
        "basis": "; ".join(_basis(rows)),
        "evidence": ", ".join(sorted(rows["evidence"].unique())),
        "command": command(document, target(name)),
    }


def _basis(rows: pd.DataFrame) -> Sequence[str]:
    """What the rows come from: data, models, and how many seeds."""
    seeded = rows[rows["seed"] >= 0]
    data = sorted(set(seeded["dataset"].unique()) - {""})
    trained = sorted(seeded.loc[seeded["dataset"] != "", "model"].unique())
    told = [f"data: {', '.join(data)}"] * bool(data)
    told += [f"model trained: {', '.join(trained)}"] * bool(trained)
    if len(seeded):
        varies = seeded.nunique() > 1
        by = seeded.columns[varies].difference(NO_COORDINATES - {"at"})
        counts = seeded.assign(all=0).groupby(["all", *by], dropna=False)["seed"].nunique()
        few, most = int(counts.min()), int(counts.max())
        count = f"{few} to {most} seeds" if few < most else f"{most} seed{'s' * (most > 1)}"
        if most < evidence.MIN_SEEDS:
            return [*told, f"{count}: too few for intervals"]
        return [*told, f"{count}, intervals are 95 % of the mean over seeds (Student's t)"]
    ran = set(rows["evidence"].unique()) & {"emulated", "measured", "recorded"}
    return [*told, f"{'single runs' if ran else 'deterministic'}: no seeds, no intervals"]


def command(document: str, name: str = "") -> str:
    """What makes a document again, or one of its tables and figures."""
    return f"snakemake --cores 2 {document}{'_' * bool(name)}{name}"


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


def inline(svg: str, prefix: str) -> Markup:
    """A figure for the page: ids made unique, ink and palette handed to the style sheet."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = svg.replace(INK, "currentColor")
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name}, {colour})")
    width = re.search(r'width="([\d.]+)pt"', svg).group(1)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    return Markup(svg.replace("<svg", f'<svg aria-hidden="true" style="--width: {width}pt"', 1))
