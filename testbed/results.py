"""The one result row. Everything measured, simulated or computed is written through here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from testbed import files

if TYPE_CHECKING:  # slow to import, and most processes only make rows
    import pandas as pd

Evidence = Literal["computed", "simulated", "packet", "emulated", "measured", "recorded"]
Scale = Literal["smoke", "desk", "paper"]
Unit = Literal["", "s", "h", "B", "MB", "bit/s", "1", "%", "rounds", "1/s", "GB/s", "values"]


class Row(BaseModel):
    """One measured number and everything needed to place it.

    ``case`` names the row of the document's table or the curve of its figure (``GeoMX-155M``);
    ``variant`` how we modelled it where there is a choice (``serial``, ``overlapped``). Points of
    a curve carry ``round`` and ``time_s``. ``bandwidth`` is that of the constraining link, bit/s.
    A run that failed is a row with ``status`` failed, its ``reason`` and no value.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    paper: str
    experiment: str
    case: str
    variant: str = ""
    exchange: str = ""
    compression: str = ""
    synchronization: str = ""
    fusion: str = ""
    model: str = ""
    dataset: str = ""
    workers: int = 0
    bandwidth: float = math.nan
    seed: int = -1
    scale: Scale
    device: str = ""
    evidence: Evidence
    metric: str
    value: float = math.nan
    unit: Unit
    round: int = -1
    time_s: float = math.nan
    status: Literal["ok", "failed"] = "ok"
    reason: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Row:
        if self.status == "ok" and not math.isfinite(self.value):
            raise ValueError(f"metric {self.metric!r} of {self.case!r} has no finite value")
        if self.status == "failed" and not self.reason:
            raise ValueError(f"failed row of {self.case!r} gives no reason")
        return self


COLUMNS = list(Row.model_fields)


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a table, one column a field, in the schema's order."""
    import pandas as pd

    return pd.DataFrame([row.model_dump() for row in rows], columns=COLUMNS)


def write(rows: Iterable[Row], path: str | Path) -> None:
    """Write rows to a parquet file, whole or not at all."""
    table = frame(rows)
    if table.empty:
        raise ValueError(f"{path}: no rows to write")
    with files.whole(path) as part:
        table.to_parquet(part, index=False)


def read(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Read and validate result files into one table.

    Raises
    ------
    ValueError
        A file that is not parquet, lacks a column or holds an invalid row; names the file.
    """
    import pandas as pd

    tables = []
    for path in paths:
        try:
            table = pd.read_parquet(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: not a readable result file ({error})") from error
        if list(table.columns) != COLUMNS:
            raise ValueError(f"{path}: columns {list(table.columns)} are not the result schema")
        for column, allowed in (("evidence", Evidence), ("scale", Scale), ("unit", Unit)):
            if bad := set(table[column]) - set(get_args(allowed)):
                raise ValueError(f"{path}: unknown {column} {sorted(bad)}")
        good = table["status"] == "ok"
        whole = np.where(good, np.isfinite(table["value"]), table["reason"] != "")
        if not whole.all():
            broken = table.iloc[int(np.argmin(whole))]
            raise ValueError(f"{path}: {broken['metric']!r} of {broken['case']!r} is incomplete")
        try:
            for record in table.drop_duplicates(["metric", "unit", "status"]).to_dict("records"):
                Row(**record)
        except ValidationError as error:
            raise ValueError(f"{path}: {error}") from error
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else frame([])
