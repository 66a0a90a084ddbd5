"""One experiment of a document, from its recipe."""

from testbed import results
from workflow.experiments import rows
from workflow.job import job


def main(paper: str, recipe: dict, scale: str, experiment: str, output: str, log: str) -> None:
    with job(log) as say:
        results.write(rows(paper, recipe, scale, experiment, say), output)


if "snakemake" in globals():
    main(
        snakemake.params.paper,  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.wildcards.experiment,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
