"""Where in the grid of RAT's Figure 7 both printed ratios fit."""

from testbed import results
from workflow.experiments.rat import joint
from workflow.job import job
from workflow.recipes.rat import Rat


def main(files: list[str], recipe: dict, scale: str, output: str, log: str) -> None:
    with job(log):
        results.write(joint(Rat(**recipe), scale, results.read(files)), output)


if "snakemake" in globals():
    main(
        list(snakemake.input.rows),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
