"""Units: how numbers of rows and claims are brought to one, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from slowlink.reports.evidence import number

# Unit -> (what it is a multiple of, how many).
_UNITS = {
    "s": ("s", 1.0),
    "ns": ("s", 1e-9),
    "µs": ("s", 1e-6),
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "min": ("s", 60.0),
    "h": ("s", 3600.0),
    "B": ("B", 1.0),
    "kB": ("B", 1e3),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "TB": ("B", 1e12),
    "KiB": ("B", 2.0**10),
    "MiB": ("B", 2.0**20),
    "GiB": ("B", 2.0**30),
    "bit/s": ("bit/s", 1.0),
    "kbit/s": ("bit/s", 1e3),
    "Mbit/s": ("bit/s", 1e6),
    "Gbit/s": ("bit/s", 1e9),
    "Tbit/s": ("bit/s", 1e12),
}
# Those that a number may be shown in without asking.
_SHOWN = {
    "s": ["ns", "µs", "ms", "s", "h"],
    "B": ["B", "kB", "MB", "GB", "TB"],
    "bit/s": ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
}
_FROM = {"h": 7200.0}
"""Seconds from which on a unit is used, if not from one of it."""
KNOWN = {"bandwidth": "bit/s", "time_s": "s"}
"""Units of the fields of a row."""


def base(unit: str) -> tuple[str, float]:
    """The unit that ``unit`` is a multiple of, and how many of them it is."""
    return _UNITS.get(unit, ("" if unit == "1" else unit, 1.0))


def fitting(unit: str, values: Iterable[float], log: bool = False) -> str:
    """The unit to show numbers of a base unit in: by the largest, or by the middle of a
    logarithmic axis."""
    sizes = np.abs(np.array([v for v in values if v and math.isfinite(v)], dtype=float))
    if unit not in _SHOWN or not sizes.size:
        return unit
    size = 2 * math.sqrt(sizes.min() * sizes.max()) if log else sizes.max()
    fits = [one for one in _SHOWN[unit] if size >= _FROM.get(one, _UNITS[one][1]) * (1 - 1e-9)]
    return fits[-1] if fits else _SHOWN[unit][0]


def factor(unit: str) -> float:
    """What numbers of the base unit are multiplied by to be shown in ``unit``."""
    return 1 / base(unit)[1]


def written(value: float, unit: str) -> str:
    """One number of a unit, as a text: 40 Gbit/s. What is whole MiB is written so."""
    of, times = base(unit)
    whole = of == "B" and value and value * times % 2**20 == 0
    shown = "MiB" if whole else fitting(of, [value * times])
    return f"{number(float(f'{value * times * factor(shown):.12g}'))} {shown}".rstrip()


def heading(name: str, unit: str) -> str:
    """The label of an axis: what it is, and its unit."""
    return f"{name}, {unit}" if unit and name else name or unit
