"""Every entry of the bibliography is cited, and every citation has its entry."""

import re
from pathlib import Path

from slowlink.testbed.training.fetch import read_sources

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "data/bibliography.bib").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^@\w+\{([^,\s]+),", TEXT, re.M)


def test_the_file_is_well_formed():
    assert len(ENTRIES) == len(set(ENTRIES)) == len(re.findall("^@", TEXT, re.M))
    assert TEXT.count("{") == TEXT.count("}")


def test_every_entry_is_cited_and_every_cited_key_is_there():
    """A program cites as ``[@key]``, a data set by its ``citation``."""
    cited = {entry.citation for entry in read_sources().values()}
    for room in ("methods", "testbed"):
        for path in (ROOT / room).rglob("*.py"):
            cited |= set(re.findall(r"\[@([^\]]+)\]", path.read_text(encoding="utf-8")))
    assert cited == set(ENTRIES)
