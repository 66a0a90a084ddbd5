"""The HTML report of a scale."""

from pathlib import Path

import pandas as pd

from reports import html
from testbed import results as rows
from workflow.job import job
from workflow.provenance import provenance


def main(
    results: list[str],
    details: str,
    datasets: list[str],
    recipes: dict,
    scale: str,
    jobs: str,
    processes: int,
    output: str,
    log: str,
) -> None:
    with job(log):
        table = rows.read(results)
        origin = provenance(scale, table, datasets, jobs)
        folder = Path(output).parent
        html.build(table, pd.read_parquet(details), recipes, origin, folder, processes)


if "snakemake" in globals():
    main(
        list(snakemake.input.results),  # noqa: F821
        snakemake.input.details,  # noqa: F821
        list(snakemake.input.datasets),  # noqa: F821
        snakemake.params.recipes,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.params.jobs,  # noqa: F821
        snakemake.threads,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
