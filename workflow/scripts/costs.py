"""What a scale costs, as a table."""

from workflow import cost
from workflow.job import job


def main(scale: str, output: str, log: str) -> None:
    with job(log) as say:
        made = cost.of_scale(scale)
        say(cost.said(made))
        cost.write(made, output)


if "snakemake" in globals():
    main(snakemake.params.scale, snakemake.output[0], snakemake.log[0])  # noqa: F821
