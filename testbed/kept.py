"""What several processes, and later runs, need not compute again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 10.0

VARIABLE = "SLOWLINK_KEPT"
"""Names the file that keeps what :func:`kept` is asked for; nothing is kept if not set."""


class Kept:
    """Values that JSON can tell, by name, in an SQLite file, which is made if it is not there.

    What cannot be read or written, because the file is damaged, locked or on a disk that is full,
    is computed: a name must say all that its value depends on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get(self, name: str, compute: Callable[[], T]) -> T:
        """The value of this name, computed the first time."""
        with contextlib.suppress(sqlite3.Error, OSError):
            found = self._do("SELECT value FROM kept WHERE name = ?", name)
            if found:
                return json.loads(found[0][0])
        told = json.dumps(compute())
        with contextlib.suppress(sqlite3.Error, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._do("CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value TEXT)")
            self._do("INSERT OR REPLACE INTO kept VALUES (?, ?)", name, told)
        return json.loads(told)

    def _do(self, statement: str, *values: str) -> list[tuple]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as file, file:
            return file.execute(statement, values).fetchall()


def kept(name: str, compute: Callable[[], T]) -> T:
    """:meth:`Kept.get` of the file that the environment names; computed if it names none."""
    path = os.environ.get(VARIABLE)
    return Kept(path).get(name, compute) if path else compute()


def sources(*files: Path) -> str:
    """A digest of what is in ``files``, for names of what they compute."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        text = file.read_bytes()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()
