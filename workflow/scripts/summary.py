"""Final accuracies and times to the target of one experiment."""

from testbed import results
from testbed.training.summary import converged, summarise, summarise_in_time
from workflow.job import job


def main(runs: list[str], how: dict, output: str, log: str) -> None:
    with job(log):
        curves = results.read(runs)
        if "below_dense" in how:
            rows = list(summarise(curves, how["below_dense"]))
        else:
            rows = list(summarise_in_time(curves, how["target"], how["window"]))
        printed = converged(rows, how["table"]) if "table" in how else []
        results.write([*rows, *printed], output)


if "snakemake" in globals():
    main(
        list(snakemake.input.runs),  # noqa: F821
        snakemake.params.how,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
