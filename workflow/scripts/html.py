"""The HTML report of a scale."""

from pathlib import Path

import pandas as pd

from reports import html
from reports.html import Chapter
from testbed import results as rows
from workflow import settings
from workflow.job import job
from workflow.provenance import provenance


def main(
    files: list[str],
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
        table = rows.read(files)
        origin = provenance(scale, table, datasets, jobs)
        chapters = [
            Chapter(name, wing.shown, Path("results") / scale / name, wing.claims)
            for name, wing in settings.wings().items()
        ]
        judged = pd.read_parquet(details)
        folder = Path(output).parent
        ours = matrix(table[table["document"] == html.MATRIX])
        html.build(chapters, ours, table, judged, recipes, origin, folder, processes)


def matrix(table: pd.DataFrame) -> html.Matrix:
    """What the report says of the matrix, from its rows."""
    if table.empty:
        return html.Matrix()
    from workflow.matrix import advice, page, ranking

    told = rows.coordinates(table)
    return html.Matrix(ranking.headline(told), page.standing(told), advice.page(told))


if "snakemake" in globals():
    main(
        list(snakemake.input.rows),  # noqa: F821
        snakemake.input.details,  # noqa: F821
        list(snakemake.input.datasets),  # noqa: F821
        snakemake.params.recipes,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.params.jobs,  # noqa: F821
        snakemake.threads,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
