"""The matrix's results, condensed to what its figures, tables and pages need."""

from typing import Any

from reports import matrix
from testbed import results
from workflow.job import job


def main(files: list[str], told: dict[str, Any], output: str, log: str) -> None:
    with job(log):
        results.write(matrix.condense(results.read(files), **told), output)


if "snakemake" in globals():
    main(
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.told,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
