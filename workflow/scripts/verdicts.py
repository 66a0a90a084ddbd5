"""A verdict for every claim of every document."""

import pandas as pd

from reports import verdicts
from testbed.files import whole
from workflow.job import job
from workflow.judging import judge_from


def main(results: list[str], recipes: dict, scale: str, csv: str, details: str, log: str) -> None:
    with job(log) as say:
        judged = pd.concat(
            [judge_from(paper, results, recipe, scale)[0] for paper, recipe in recipes.items()],
            ignore_index=True,
        )
        say(judged["verdict"].value_counts().to_string())
        with whole(details) as path:
            judged.to_parquet(path, index=False)
        with whole(csv) as path:
            judged[verdicts.COLUMNS].to_csv(path, index=False)


if "snakemake" in globals():
    main(
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.recipes,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.output.details,  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
