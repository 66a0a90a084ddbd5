"""Claims, recipe and result files of one paper brought before the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from reports import claims, verdicts
from testbed import results

CLAIMS = Path(__file__).parents[1] / "data" / "claims"


def claims_of(paper: str) -> list[claims.Claim]:
    """What a paper prints; nothing of one without a claims file."""
    file = CLAIMS / f"{paper}.yaml"
    return claims.load(file) if file.is_file() else []


def judge_from(
    paper: str, files: Sequence[str], recipe: dict, scale: str, table: str | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Judged claims and the results they rest on.

    ``table`` (``table2``) judges only the values that this table prints, so that one target can be
    made without the results of the others.
    """
    rows = results.read(files)
    every = claims_of(paper)
    not_run = claims.load_not_run(CLAIMS / claims.NOT_RUN, claims.load_all(CLAIMS))
    only = None
    if table is not None:
        where = f"Table {table.removeprefix('table')}"
        only = {claim.id for claim in every if claim.where == where and claim.kind == "value"}
    return verdicts.detail(every, rows, recipe, scale, not_run, only), rows
