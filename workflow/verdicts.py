"""Claims, recipe and result files of one document brought before the rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from slowlink.reports import claims, verdicts
from slowlink.testbed import results
from slowlink.workflow.settings import RECIPE, recipe_of
from slowlink.workflow.wing import Wing


def claims_of(wing: Wing) -> list[claims.Claim]:
    """What a document prints; nothing of a wing that is none."""
    return claims.load(wing.claims) if wing.claims else []


def judge_from(
    wing: Wing,
    files: Sequence[str],
    recipe: dict,
    scale: str,
    experiments: Collection[str] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Judged claims and the results they rest on.

    ``experiments`` judges only the claims about numbers that rows of these answer, so that one
    table can be made without the results of the others.
    """
    rows = results.read(files)
    every = claims_of(wing)
    only = None
    if experiments is not None:
        known = {claim.id: claim for claim in every}
        needed = {claim.id: claim.experiments(known) for claim in every}
        only = {name for name, needs in needed.items() if needs and needs <= set(experiments)}
    full = recipe_of(wing, wing.folder / RECIPE, "paper", names=False).model_dump(mode="json")
    return verdicts.judge(every, rows, recipe, scale, only, full), rows
