"""The matrix's results, condensed to what its figures, tables and pages need."""

from reports import matrix
from testbed import results
from workflow.job import job


def main(
    files: list[str],
    groups: dict[str, str],
    trained_as: dict[str, str],
    trained_at: dict[str, str],
    output: str,
    log: str,
) -> None:
    with job(log):
        rows = matrix.condense(results.read(files), groups, trained_as, trained_at)
        results.write(rows, output)


if "snakemake" in globals():
    main(
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.groups,  # noqa: F821
        snakemake.params.trained_as,  # noqa: F821
        snakemake.params.trained_at,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
