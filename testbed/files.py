"""Write files so that a reader finds them whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: str | Path, lasting: bool = False) -> Iterator[Path]:
    """Yield a hidden path beside ``path`` that takes its name only when all went well.

    Whoever reads finds the old or the new file. One writer at a time; what a killed one left, the
    next one overwrites.

    Parameters
    ----------
    lasting: the new file is there once this returns, even if the machine stops.

    Raises
    ------
    OSError
        The disk is full, for instance; names the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with _told_of(path, "cannot be written, and is as it was", part):
            yield part
        if lasting:
            _settle(part)
        os.replace(part, path)
        if lasting:
            _settle(path.parent)  # the folder holds the name
    finally:
        part.unlink(missing_ok=True)


def save(path: str | Path, state: Any, lasting: bool = False) -> None:
    """Write ``state`` as torch does; see :func:`whole`."""
    import torch  # only here: most who write files do without

    # To a file of its own torch writes from C++, which does not say why it cannot.
    saved = io.BytesIO()
    torch.save(state, saved)
    with whole(path, lasting) as part:
        part.write_bytes(saved.getbuffer())


def append(path: str | Path, text: str) -> None:
    """Add to a file. Raises OSError, which names it."""
    with _told_of(path, "cannot be written"), Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def _told_of(path: str | Path, what: str, *parts: Path) -> Iterator[None]:
    """An error of the system while ``path`` is written, itself or under another name, says so."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(path), *map(str, parts)):
            raise
        if error.errno is None:  # a library's own
            raise OSError(f"{path}: {what}: {error}") from error
        raise OSError(error.errno, f"{what}: {error.strerror}", str(path)) from error


def _settle(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
