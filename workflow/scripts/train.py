"""Run the training recipes of one job and write their curves."""

from testbed import results
from testbed.training import train_all
from testbed.training.recipe import Recipe
from workflow.job import job


def main(recipes: list[dict], output: str, log: str) -> None:
    with job(log) as say:
        results.write(train_all([Recipe(**recipe) for recipe in recipes], say), output)


if "snakemake" in globals():
    main(snakemake.params.recipes, snakemake.output[0], snakemake.log[0])  # noqa: F821
