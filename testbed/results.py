"""The one result row. Everything measured, simulated or computed is written through here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from slowlink.testbed import files

if TYPE_CHECKING:  # slow to import, and most processes only make rows
    import pandas as pd
    import pyarrow as pa

Evidence = Literal["computed", "simulated", "packet", "emulated", "measured", "recorded"]
Scale = Literal["smoke", "desk", "paper"]
Status = Literal["ok", "late", "failed"]
Unit = Literal["", "s", "h", "B", "MB", "bit/s", "1", "%", "rounds", "1/s", "GB/s", "values"]


class Row(BaseModel):
    """One number and everything needed to place it.

    ``at`` holds the coordinates that have no field of their own: the label of a method in its
    document, an oversubscription, the k and d of pausing nodes. Figures, tables and claims find a
    row by its fields and by ``at``; ``case`` is only what a person calls it, and nothing takes it
    apart. ``variant`` says how we modelled it where there is a choice (``serial``, ``overlapped``).
    Points of a curve carry ``round`` and ``time_s``. ``bandwidth`` is that of the constraining
    link, bit/s.

    A run that failed has ``status`` *failed*, a reason and no value. *late* is a run that ended
    before it reached its target where its end tells more than nothing: it had as much of what
    ``unit`` counts as the others had, so that it comes after all that did arrive. Its value, if it
    has one, is what it had come to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: str
    experiment: str
    case: str = ""
    variant: str = ""
    at: dict[str, float | str] = {}
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
    status: Status = "ok"
    reason: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Row:
        if self.status == "ok" and not math.isfinite(self.value):
            raise ValueError(f"metric {self.metric!r} of {self.case!r} has no finite value")
        if self.status != "ok" and not self.reason:
            raise ValueError(f"{self.status} row of {self.case!r} gives no reason")
        if taken := self.at.keys() & type(self).model_fields.keys():
            raise ValueError(f"at: {', '.join(sorted(taken))}: a field has this name")
        return self


COLUMNS = list(Row.model_fields)
KINDS = (("evidence", Evidence), ("scale", Scale), ("unit", Unit), ("status", Status))


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a table, one column a field, in the schema's order; ``at`` is JSON text in it."""
    import pandas as pd

    return pd.DataFrame([_record(row) for row in rows], columns=COLUMNS)


def _record(row: Row) -> dict:
    return dict(row) | {"at": json.dumps(row.at, sort_keys=True)}


def row_of(record: Mapping[str, Any], **changes: Any) -> Row:
    """The row that a record of a table stands for, with other fields where given."""
    return Row(**dict(record) | {"at": json.loads(record["at"])} | changes)


def coordinates(table: pd.DataFrame) -> pd.DataFrame:
    """``table`` with a column for every coordinate in ``at``, in place of it.

    A row that lacks a coordinate has NaN there.
    """
    import pandas as pd

    texts = table["at"].unique()
    known = pd.DataFrame([json.loads(text) for text in texts], index=texts)
    columns = known.reindex(table["at"]).set_axis(table.index)
    return table.drop(columns="at").join(columns)


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
    import pyarrow as pa

    tables = [_table(path) for path in paths]
    if not tables:
        return frame([])
    return pa.concat_tables(tables, promote_options="permissive").to_pandas()


def records(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a result file, for :func:`row_of`. Raises ValueError as :func:`read` does."""
    return _table(path).to_pylist()


def _table(path: str | Path) -> pa.Table:
    """A result file, validated."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            table = file.read()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable result file ({error})") from error
    for n, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):  # pandas writes nan as nothing
            table = table.set_column(n, field, table[n].fill_null(math.nan))
    if table.column_names != COLUMNS:
        raise ValueError(f"{path}: columns {table.column_names} are not the result schema")
    for column, allowed in KINDS:
        if bad := set(table[column].unique().to_pylist()) - set(get_args(allowed)):
            raise ValueError(f"{path}: unknown {column} {sorted(bad)}")
    names = ("case", "metric", "unit", "status", "reason", "value")
    case, metric, unit, status, reason, value = (table[name].to_pylist() for name in names)
    for n, good in enumerate(status):
        if not (math.isfinite(value[n]) if good == "ok" else reason[n]):
            raise ValueError(f"{path}: {metric[n]!r} of {case[n]!r} is incomplete")
    first = {key: n for n, key in reversed([*enumerate(zip(metric, unit, status, strict=True))])}
    try:
        for record in table.take(sorted(first.values())).to_pylist():
            row_of(record)
    except ValidationError as error:
        raise ValueError(f"{path}: {error}") from error
    return table
