"""The documents' tables, cell by cell: printed, least possible, ours, ratio, verdict."""

from __future__ import annotations

import pandas as pd

from reports.figures import model_name
from reports.verdicts import VERDICTS

COLUMNS = [
    "row",
    "quantity",
    "printed",
    "bound",
    "ours",
    "ratio",
    "unit",
    "verdict",
    "reason",
    "id",
]

_SHORT = {
    "converged accuracy": "accuracy",
    "convergence time": "time",
    "rounds to converge": "rounds",
    "communication time of a round": "a round's latency",
    "raw upload of a node and round": "raw up",
    "raw download of a node and round": "raw down",
    "compressed upload of a node and round": "sent up",
    "compressed download of a node and round": "sent down",
}


def table1(verdicts: pd.DataFrame, paper: str = "geomx") -> pd.DataFrame:
    """Table 1 of GeoMX, one row a cell: ``row`` is the model, ``quantity`` the column."""
    cells = _cells(verdicts, paper, "Table 1")
    cells["row"] = cells["model"].map(model_name)
    cells["quantity"] = cells["case"].where(cells["case"] != "", cells["metric"])
    return cells[COLUMNS].reset_index(drop=True)


def table2(verdicts: pd.DataFrame, paper: str = "geomx") -> pd.DataFrame:
    """Table 2 of GeoMX, one row a cell: ``row`` is the setting, ``quantity`` the column."""
    cells = _cells(verdicts, paper, "Table 2")
    cells["row"], cells["quantity"] = cells["case"], cells["metric"].replace(_SHORT)
    return cells[COLUMNS].reset_index(drop=True)


def scoreboard(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Claims by paper (rows) and verdict (columns, those that occur, in their usual order)."""
    counts = pd.crosstab(verdicts["paper"], verdicts["verdict"])
    return counts[[verdict for verdict in VERDICTS if verdict in counts]]


def parameters(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Parameters as printed and as used here."""
    rows = verdicts[verdicts["kind"] == "param"]
    return rows[["id", "where", "setting", "metric", "printed", "ours", "verdict", "reason"]]


def algorithms(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Algorithms and formulas with the files that implement and the tests that prove them."""
    rows = verdicts[verdicts["kind"].isin(["algorithm", "formula"])]
    return rows[["id", "where", "setting", "metric", "printed", "verdict", "reason"]]


TABLES = {"table1": table1, "table2": table2}


def _cells(verdicts: pd.DataFrame, paper: str, where: str) -> pd.DataFrame:
    chosen = (
        (verdicts["paper"] == paper) & (verdicts["where"] == where) & (verdicts["kind"] == "value")
    )
    if not chosen.any():
        raise ValueError(f"no verdicts on values of {where} of {paper}")
    return verdicts[chosen].copy()
