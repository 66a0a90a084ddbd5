"""The last line of the terminal, for what goes on at the moment."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """Write a text in place of the one before, if a terminal reads along. "" wipes that."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
