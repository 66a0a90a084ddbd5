"""Round times for the form in the report."""

from testbed import results
from workflow import advice
from workflow.job import job
from workflow.recipes.matrix import Matrix


def main(cells: list[str], recipe: dict, scale: str, output: str, log: str) -> None:
    with job(log) as say:
        results.write(advice.rows(Matrix(**recipe), results.read(cells), scale, say), output)


if "snakemake" in globals():
    main(
        list(snakemake.input.cells),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
