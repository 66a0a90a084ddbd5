"""Write files so that a reader finds them whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: str | Path, lasting: bool = False) -> Iterator[Path]:
    """Yield a hidden path beside ``path`` that takes its name only when all went well.

    Whoever reads finds the old or the new file. One writer at a time; what a killed one left, the
    next one overwrites.

    Parameters
    ----------
    lasting: the new file is there once this returns, even if the machine stops.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        if lasting:
            _settle(part)
        os.replace(part, path)
        if lasting:
            _settle(path.parent)  # the folder holds the name
    finally:
        part.unlink(missing_ok=True)


def _settle(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
