"""Final accuracies and times to the target of one experiment."""

from testbed import results
from testbed.training.summary import converged, summarise
from workflow.job import job


def main(runs: list[str], below_dense: float, table: str, output: str, log: str) -> None:
    with job(log):
        rows = list(summarise(results.read(runs), below_dense))
        printed = converged(rows, table) if table else []
        results.write([*rows, *printed], output)


if "snakemake" in globals():
    main(
        list(snakemake.input.runs),  # noqa: F821
        snakemake.params.below_dense,  # noqa: F821
        snakemake.params.table,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
