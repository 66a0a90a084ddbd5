"""Records of what takes too long for every run: a file each, with the settings it is of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slowlink.testbed import files
from slowlink.testbed.training.recipe import slug
from slowlink.workflow.provenance import processor


def kept(folder: str, label: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of a system with these settings; empty if nothing is."""
    file = Path(folder) / f"{slug(label)}.json"
    found = json.loads(file.read_text()) if file.is_file() else {}
    return found if found.get("setting") == setting else {}


def keep(folder: str, label: str, setting: Mapping[str, Any], command: str, **found: Any) -> None:
    """Record what was ``found``; a list has a line an entry."""
    machine = f"{processor()}, {len(os.sched_getaffinity(0))} cores"
    about = dict(command=command, machine=machine, setting=setting) | found
    told = ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in about.items())
    with files.whole(Path(folder) / f"{slug(label)}.json") as part:
        part.write_text(f"{{\n{told}\n}}\n")


def _lines(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
