"""The last line of the terminal, for what goes on at the moment."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """In place of what stood there; nothing where no terminal reads along. "" wipes it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
