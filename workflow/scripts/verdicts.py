"""A verdict for every claim of every document."""

import pandas as pd

from reports import verdicts
from testbed.files import whole
from workflow.job import job
from workflow.settings import wing_of
from workflow.verdicts import judge_from


def main(files: list[str], recipes: dict, scale: str, csv: str, details: str, log: str) -> None:
    with job(log) as say:
        judged = pd.concat(
            [
                judge_from(wing_of(name), _own(files, name), recipe, scale)[0]
                for name, recipe in recipes.items()
            ],
            ignore_index=True,
        )
        say(judged["verdict"].value_counts().to_string())
        with whole(details) as path:
            judged.to_parquet(path, index=False)
        with whole(csv) as path:
            judged[verdicts.COLUMNS].to_csv(path, index=False)


def _own(files: list[str], wing: str) -> list[str]:
    """The result files of a wing, which lie in its folder."""
    return [file for file in files if f"/{wing}/" in file]


if "snakemake" in globals():
    main(
        list(snakemake.input.rows),  # noqa: F821
        snakemake.params.recipes,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.output.details,  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
