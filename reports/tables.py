"""What the tables of all documents share, and the tables that every document has.

The tables themselves stand on the pages of their documents. One that has ``COLUMNS`` is a
printed table cell by cell (printed, least possible, ours, ratio, verdict); any other is shown as it
is.
"""

from __future__ import annotations

import pandas as pd

from slowlink.reports.charts import Missing
from slowlink.reports.evidence import Estimate
from slowlink.reports.verdicts import VERDICTS

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
    """Claims by document (rows) and verdict (columns, those that occur, in their usual order);
    entries of one printed number that come out alike count once."""
    once = verdicts.drop_duplicates(["document", "number", "verdict"])
    counts = pd.crosstab(once["document"], once["verdict"])
    return counts[[verdict for verdict in VERDICTS if verdict in counts]]


def parameters(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Parameters as printed and as used here."""
    rows = verdicts[verdicts["kind"] == "param"]
    return rows[["id", "where", "setting", "metric", "printed", "ours", "verdict", "reason"]]


def algorithms(verdicts: pd.DataFrame) -> pd.DataFrame:
    """Algorithms and formulas with the files that implement and the tests that prove them."""
    rows = verdicts[verdicts["kind"].isin(["algorithm", "formula"])]
    return rows[["id", "where", "setting", "metric", "printed", "verdict", "reason"]]


def wide(rows: pd.DataFrame, by: list[str], across: str = "metric") -> pd.DataFrame:
    """Values that arrived, a line for every place ``by`` (in the order of the rows), a column for
    every metric or other coordinate; the mean where a place has several seeds."""
    good = rows[rows["status"] == "ok"]
    if good.empty:
        raise Missing(f"no results by {', '.join(by)}")
    found = good.pivot_table("value", by, across, sort=False)
    return found.rename_axis(columns=None)


def mean(values: pd.Series, by: list[str], quantity: str = "") -> pd.Series:
    """Means over the seeds of places; of a ``ratio`` as logarithms."""
    return values.groupby(by, sort=False).agg(
        lambda one: Estimate.of(one.reset_index(drop=True), quantity).mean
    )


def distinct(texts: pd.Series) -> str:
    """Different texts, each once."""
    return "; ".join(dict.fromkeys(text for text in texts if text))
