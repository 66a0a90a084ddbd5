"""The documents, a folder each: ``claims.yaml``, ``recipe.yaml``, ``experiments.py``, ``page.py``.

A document is found because its folder is there. Every Python file of the folder is read for
declarations: :class:`workflow.experiment.Settings`, experiments, figures and tables.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from slowlink.workflow.wing import Wing

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of all documents, sorted."""
    return sorted(file.parent.name for file in FOLDER.glob("*/recipe.yaml"))


@cache
def load(name: str) -> Wing:
    """What the document declares. Raises ValueError if there is none by this name."""
    if name not in names():
        raise ValueError(f"no document {name!r}; there are: {', '.join(names())}")
    return Wing.read(f"{__name__}.{name}", FOLDER / name)
