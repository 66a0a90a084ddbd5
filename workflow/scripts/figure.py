"""One figure, as SVG: what its target makes and its page shows."""

from reports import artifacts
from testbed.files import whole
from testbed.results import read
from workflow.job import job
from workflow.settings import wing_of
from workflow.verdicts import claims_of


def main(wing: str, name: str, files: list[str], output: str, log: str) -> None:
    with job(log), whole(output) as path:
        made = wing_of(wing)
        artifacts.write_figure(made.figures[name], read(files), claims_of(made), path)


if "snakemake" in globals():
    main(
        snakemake.wildcards.wing,  # noqa: F821
        snakemake.wildcards.name,  # noqa: F821
        list(snakemake.input.rows),  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
