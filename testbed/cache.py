"""A cache of computed values that several processes, and later runs, share."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from multiprocessing import util
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

WAIT_S = 10.0

SOON_S, MANY = 0.2, 100
"""Values are written together, so many at most, where one comes within so many seconds of the last:
each by itself would take longer than to compute many of them."""

TABLE = "CREATE TABLE IF NOT EXISTS cached (name TEXT PRIMARY KEY, value TEXT)"

VARIABLE = "SLOWLINK_CACHE"
"""Names the file that keeps what :func:`cached` is asked for; nothing is kept if not set."""


class Cache:
    """Values that JSON can tell, by name, in an SQLite file, which is made if it is not there.

    A value that cannot be read or written is computed, be the file damaged, locked or on a full
    disk. What a killed process computed in its last moment is lost. A name must say everything that
    its value depends on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def get(self, name: str, compute: Callable[[], T]) -> T:
        """The value of this name, computed the first time."""
        try:
            told = self._read(name)
        except (sqlite3.Error, OSError):
            _open.whose = told = None
        if told is None:
            told = json.dumps(compute())
            self._keep(name, told)
        return json.loads(told)

    def beginning(self, start: str) -> dict[str, str]:
        """What is written of all values whose names begin so, as text: one look for many."""
        try:
            file = self._file()
            asked = "SELECT name, value FROM cached WHERE name >= ? AND name < ?"
            return dict(file.execute(asked, (start, start + chr(sys.maxunicode))).fetchall())
        except (sqlite3.Error, OSError):
            _open.whose = None
            return {}

    def _read(self, name: str) -> str | None:
        file = self._file()
        if name in _open.waiting:
            return _open.waiting[name]
        found = file.execute("SELECT value FROM cached WHERE name = ?", (name,)).fetchall()
        return found[0][0] if found else None

    def _file(self) -> sqlite3.Connection:
        # A connection is of one thread, and must not be used by a process that was forked since.
        whose = os.getpid(), self.path
        if getattr(_open, "whose", None) != whose:
            _write()
            _open.whose, _open.waiting, _open.wrote = None, {}, 0.0
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
            # What a lost machine loses is computed anew, so nothing waits for the disk.
            file.execute("PRAGMA synchronous = OFF")
            file.execute(TABLE)
            _open.whose, _open.file = whose, file
            util.Finalize(None, _write, exitpriority=0)
        return _open.file

    def _keep(self, name: str, told: str) -> None:
        """Write a value, or let it wait for others."""
        if getattr(_open, "whose", None) == (os.getpid(), self.path):
            _open.waiting[name] = told
            if len(_open.waiting) >= MANY or time.monotonic() - _open.wrote > SOON_S:
                _write()


_open = threading.local()
"""The connection of each thread to the file that it used last, whose it is, the values that wait to
be written, and when the last ones were."""


def _write() -> None:
    """Write what waits in this thread, but for what did in the process that was forked."""
    whose = getattr(_open, "whose", None)
    if whose and whose[0] == os.getpid() and _open.waiting:
        with suppress(sqlite3.Error), _open.file:
            _open.file.execute("BEGIN")
            statement = "INSERT OR REPLACE INTO cached VALUES (?, ?)"
            _open.file.executemany(statement, _open.waiting.items())
        _open.waiting, _open.wrote = {}, time.monotonic()


def cached(name: str, compute: Callable[[], T]) -> T:
    """:meth:`Cache.get` of the file that the environment names; computed if it names none."""
    path = os.environ.get(VARIABLE)
    return _file(path).get(name, compute) if path else compute()


def beginning(start: str) -> dict[str, str]:
    """:meth:`Cache.beginning` of that file; empty if the environment names none."""
    path = os.environ.get(VARIABLE)
    return _file(path).beginning(start) if path else {}


_file = lru_cache(maxsize=8)(Cache)


def folder() -> Path:
    """Ours among the user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "slowlink")


def keep() -> None:
    """For a command: what :func:`cached` is asked for is kept, where the environment names no file,
    in :func:`folder`."""
    os.environ.setdefault(VARIABLE, str(folder() / "cache.sqlite"))


def state(*files: Path) -> str:
    """What tells, without reading them, that ``files`` are what they were: places, sizes and times
    of change."""
    told = [(file, file.stat()) for file in files]
    return " ".join(f"{file} {s.st_size} {s.st_mtime_ns} {s.st_ino}" for file, s in told)


def sources(*files: Path, text: str = "") -> str:
    """A digest of what is in ``files``, and of ``text``, for names of what they compute."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for file in files:
        read = file.read_bytes()
        digest.update(len(read).to_bytes(8, "little") + read)
    return digest.hexdigest()
