"""A cache of computed values that several processes, and later runs, share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 10.0

TABLE = "cached (name TEXT PRIMARY KEY, value TEXT)"

VARIABLE = "SLOWLINK_CACHE"
"""Names the file that keeps what :func:`cached` is asked for; nothing is kept if not set."""


class Cache:
    """Values that JSON can tell, by name, in an SQLite file, which is made if it is not there.

    A value that cannot be read or written is computed, be the file damaged, locked or on a full
    disk. A name must say everything that its value depends on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get(self, name: str, compute: Callable[[], T]) -> T:
        """The value of this name, computed the first time."""
        with contextlib.suppress(sqlite3.Error, OSError):
            with self._file() as file:
                asked = file.execute("SELECT value FROM cached WHERE name = ?", (name,))
                found = asked.fetchall()
            if found:
                return json.loads(found[0][0])
        told = json.dumps(compute())
        with contextlib.suppress(sqlite3.Error, OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._file() as file:
                # What a lost machine loses is computed anew, so nothing waits for the disk.
                file.execute("PRAGMA synchronous = OFF")
                file.execute(
                    "CREATE TABLE IF NOT EXISTS cached (name TEXT PRIMARY KEY, value TEXT)"
                )
                file.execute("INSERT OR REPLACE INTO cached VALUES (?, ?)", (name, told))
        return json.loads(told)

    @contextlib.contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=WAIT_S)) as file, file:
            yield file


def cached(name: str, compute: Callable[[], T]) -> T:
    """:meth:`Cache.get` of the file that the environment names; computed if it names none."""
    path = os.environ.get(VARIABLE)
    return Cache(path).get(name, compute) if path else compute()


def sources(*files: Path) -> str:
    """A digest of what is in ``files``, for names of what they compute."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        text = file.read_bytes()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()
