"""What the tables of all documents share, and the tables that every document has.

The tables themselves live with their document in ``reports.papers``: functions of the verdicts and
results of one document. One that has ``COLUMNS`` is a printed table cell by cell (printed, least
possible, ours, ratio, verdict); any other is shown as it is.
"""

from __future__ import annotations

import pandas as pd

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


def cells(verdicts: pd.DataFrame, where: str) -> pd.DataFrame:
    """Verdicts on the values that one table of a document prints."""
    chosen = (verdicts["where"] == where) & (verdicts["kind"] == "value")
    if not chosen.any():
        raise ValueError(f"no verdicts on values of {where}")
    return verdicts[chosen].copy()


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
