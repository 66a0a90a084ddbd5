"""Run one training recipe and write its curves."""

from testbed import results
from testbed.training import train
from testbed.training.recipe import Recipe
from workflow.job import job


def main(recipe: dict, output: str, log: str) -> None:
    with job(log) as say:
        results.write(train(Recipe(**recipe), progress=say), output)


if "snakemake" in globals():
    main(snakemake.params.recipe, snakemake.output[0], snakemake.log[0])  # noqa: F821
