"""References as people read them, from ``data/bibliography.bib``; texts cite them as ``[@key]``."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "bibliography.bib"
_ENTRY = re.compile(r"^@\w+\{([^,\s]+),\n(.*?)\n\}$", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^  (\w+) = \{(.*?)\},?(?=\n  \w+ = |\Z)", re.MULTILINE | re.DOTALL)
_CITED = re.compile(r"\[@([^\]]+)\]")
_ACCENT = re.compile(r"\\(['\"v])\s*(\w)")
_ACCENTS = {"'": "\N{COMBINING ACUTE ACCENT}", '"': "\N{COMBINING DIAERESIS}"}
_ACCENTS["v"] = "\N{COMBINING CARON}"


@dataclass(frozen=True)
class Reference:
    """An entry of the bibliography.

    Attributes
    ----------
    label: how a text names it, such as "Dean 2012"; its key where nobody signed it.
    link: its address; empty if the entry has none.
    """

    label: str
    authors: str
    year: str
    title: str
    link: str


def cited(text: str) -> list[Reference]:
    """The references that a text cites, each once. Raises KeyError for an unknown key."""
    return [references()[key] for key in dict.fromkeys(_CITED.findall(text))]


def readable(text: str) -> str:
    """The text with labels instead of keys."""
    return _CITED.sub(lambda match: f"[{references()[match[1]].label}]", text)


@cache
def references() -> dict[str, Reference]:
    """Every entry by its key."""
    entries = _ENTRY.findall(FILE.read_text(encoding="utf-8"))
    return {key: _reference(key, dict(_FIELD.findall(fields))) for key, fields in entries}


def _reference(key: str, fields: dict[str, str]) -> Reference:
    fields = {name: _plain(text) for name, text in fields.items()}
    names = [name.split(", ") for name in fields.get("author", "").split(" and ") if name]
    label = f"{names[0][0]} {fields['year']}" if names else key
    authors = ", ".join(" ".join(reversed(name)) for name in names)
    return Reference(label, authors, fields.get("year", ""), fields["title"], _link(fields))


def _plain(text: str) -> str:
    """A field without TeX's braces and accents, on one line."""
    bare = re.sub(r"\s+", " ", text.replace("{", "").replace("}", ""))
    accented = _ACCENT.sub(lambda match: match[2] + _ACCENTS[match[1]], bare)
    return unicodedata.normalize("NFC", accented).replace("--", "–")


def _link(fields: dict[str, str]) -> str:
    if "url" in fields:
        return fields["url"]
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else ""
