"""Entries of a claims file that stand for several: a printed table, or one statement a model.

Such an entry is an entry with placeholders in braces, and

``rows``, ``columns``
    what they are: a list of names, or a mapping from a name to what its placeholders stand for.
    ``{row}`` and ``{column}`` are the names; a placeholder of both is the column's. What is a field
    of the entry stands in for that field, too.
``cells``
    the printed numbers as text, so that their digits stay: a line with what the rows are and the
    names of the columns, and a line a row with its name first. ``-`` stands where nothing is
    printed. Without cells there is an entry for every row and column.
``except``
    row -> column -> other fields of a single cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

KEYS = {"rows", "columns", "cells", "except"}
EMPTY = "-"


def expanded(entry: Mapping[str, Any], fields: Collection[str]) -> list[dict[str, Any]]:
    """The entries that one entry stands for, itself if it has no grid.

    Parameters
    ----------
    entry: plain data as the file has it.
    fields: the names of an entry's own fields; all else in a row or column is a placeholder.

    Raises
    ------
    ValueError
        A line of ``cells`` is longer or shorter than its head, or a name is not one of the grid's.
    """
    if not KEYS & entry.keys():
        return [dict(entry)]
    template = {key: value for key, value in entry.items() if key not in KEYS}
    rows, columns = (_named(entry.get(key)) for key in ("rows", "columns"))
    other = {row: _named(several) for row, several in _named(entry.get("except")).items()}
    cells = list(_cells(entry["cells"]) if "cells" in entry else _product(rows, columns))
    places = {(row, column) for row, column, _ in cells}
    for row, column in [(row, column) for row, several in other.items() for column in several]:
        if (row, column) not in places:
            raise ValueError(f"except: there is no cell {row}, {column}")
    made = []
    for row, column, printed in cells:
        for kind, name, known in (("rows", row, rows), ("columns", column, columns)):
            if known and name not in known:
                raise ValueError(f"cells: {name!r} is not one of the {kind}")
        here, there = rows.get(row, {}), columns.get(column, {})
        single = other.get(row, {}).get(column, {})
        values = {"row": row, "column": column} | here | there
        told = {key: value for key, value in (here | there).items() if key in fields}
        one = template | told | printed | single
        if "id" in one:
            one |= {"row": str(here.get("name", row)), "column": str(there.get("name", column))}
        made.append(_filled(one, {f"{{{key}}}": str(value) for key, value in values.items()}))
    return made


def _named(given: Any) -> dict[str, dict[str, Any]]:
    if isinstance(given, Mapping):
        return {str(name): dict(about or {}) for name, about in given.items()}
    return {str(name): {} for name in given or ()}


def _product(rows: Mapping, columns: Mapping) -> Iterator[tuple[str, str, dict[str, str]]]:
    for row, column in itertools.product(rows, columns or [""]):
        yield row, column, {}


def _cells(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Row, column and field of each cell in which something is printed."""
    (_, *head), *lines = (line.split() for line in text.strip().splitlines())
    for row, *numbers in lines:
        if len(numbers) != len(head):
            raise ValueError(f"cells: {row} has {len(numbers)} numbers for {len(head)} columns")
        for column, printed in zip(head, numbers, strict=True):
            if printed != EMPTY:
                yield row, column, {"printed": printed}


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """``value`` with its placeholders filled in, in keys, too."""
    if isinstance(value, str):
        for placeholder, text in values.items():
            value = value.replace(placeholder, text)
        return value
    if isinstance(value, Mapping):
        return {_filled(key, values): _filled(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, values) for one in value]
    return value
