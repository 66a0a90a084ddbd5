"""Numbers that several processes, and later runs, need not compute again."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

WAIT_S = 10.0


class Kept:
    """Numbers by name in an SQLite file, which is made if it is not there.

    What cannot be read or written, because the file is damaged, locked or on a disk that is full,
    is computed: a name must say all that its number depends on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get(self, name: str, compute: Callable[[], float]) -> float:
        """The number of this name, computed the first time."""
        with contextlib.suppress(sqlite3.Error, OSError):
            found = self._do("SELECT value FROM kept WHERE name = ?", name)
            if found:
                return found[0][0]
        value = float(compute())
        with contextlib.suppress(sqlite3.Error, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._do("CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value REAL)")
            self._do("INSERT OR REPLACE INTO kept VALUES (?, ?)", name, value)
        return value

    def _do(self, statement: str, *values: str | float) -> list[tuple]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as file, file:
            return file.execute(statement, values).fetchall()
