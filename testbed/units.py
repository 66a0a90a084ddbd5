"""Rates and times as people write them, and numbers as text."""

from __future__ import annotations

import re

PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TO_A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6}


def bits_per_s(text: str) -> float:
    """bit/s of ``155M``, ``1G``, ``2.5Gbit/s`` or ``1e9``. Raises ValueError for anything else,
    bytes among it."""
    found = re.fullmatch(
        r"([\d.]+(?:e[+-]?\d+)?)\s*([KMGT]?)(?:bit/s|bits/s|bit|bps)?", text.strip(), re.IGNORECASE
    )
    try:
        value = float(found[1]) * PREFIXES[found[2].upper()] if found else 0.0
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is no rate; say 155M or 1G, in bits a second and not in bytes")
    return value


def seconds(text: str) -> float:
    """Seconds of ``5ms``, ``20us``, ``0.3 s`` or ``0.005``. Raises ValueError for anything else."""
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)\s*(s|ms|us|µs|)", text.strip(), re.IGNORECASE)
    try:
        value = float(found[1]) / _TO_A_SECOND[found[2].lower() or "s"] if found else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{text!r} is no time; say 5ms or 0.005 (seconds)")
    return value


def said_rate(value: float) -> str:
    """``155 Mbit/s``."""
    fitting = (prefix for prefix, unit in PREFIXES.items() if unit <= value)
    prefix = max(fitting, key=PREFIXES.__getitem__, default="")
    return f"{float(f'{value / PREFIXES[prefix]:.4g}'):g} {prefix}bit/s"


def counted(count: int, thing: str) -> str:
    """``1 site``, ``2 sites``."""
    return f"{count} {thing}{'s' * (count != 1)}"


def said_s(seconds: float) -> str:
    """``1.25 s``, ``340 ms``."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
