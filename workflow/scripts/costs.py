"""What a scale costs, as a table."""

from workflow import cost
from workflow.job import job


def main(lines: list[dict], output: str, log: str) -> None:
    with job(log) as say:
        made = [cost.Cost(**line) for line in lines]
        say(cost.said(made))
        cost.write(made, output)


if "snakemake" in globals():
    main(snakemake.params.lines, snakemake.output[0], snakemake.log[0])  # noqa: F821
