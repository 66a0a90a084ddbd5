"""One round of every case of Table 1 or 2: bytes of real payloads, simulated times, bounds."""

from testbed import results
from workflow.geomx import round_rows
from workflow.job import job
from workflow.settings import GeoMX


def main(recipe: dict, scale: str, experiment: str, output: str, log: str) -> None:
    with job(log) as say:
        results.write(round_rows(GeoMX(**recipe), scale, experiment, say), output)


if "snakemake" in globals():
    main(
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.wildcards.experiment,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
