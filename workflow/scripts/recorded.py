"""Cells that were emulated once and kept, beside what is simulated today."""

from testbed import results
from workflow.experiments._links import recorded
from workflow.job import job


def main(record: str, tables: list[str], scale: str, output: str, log: str) -> None:
    with job(log):
        results.write(recorded(record, results.read(tables), scale), output)


if "snakemake" in globals():
    main(
        snakemake.input.record,  # noqa: F821
        snakemake.input.tables,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
