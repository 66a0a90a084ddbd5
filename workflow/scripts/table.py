"""One table with our numbers and verdicts, as CSV: what its target makes and its page shows."""

from reports import artifacts
from testbed.files import whole
from workflow.job import job
from workflow.settings import wing_of
from workflow.verdicts import judge_from


def main(
    wing: str, name: str, files: list[str], recipe: dict, scale: str, output: str, log: str
) -> None:
    with job(log), whole(output) as path:
        made = wing_of(wing)
        table = made.tables[name]
        judged, rows = judge_from(made, files, recipe, scale, table.experiments)
        artifacts.write_table(table, rows, judged, path)


if "snakemake" in globals():
    main(
        snakemake.wildcards.wing,  # noqa: F821
        snakemake.wildcards.name,  # noqa: F821
        list(snakemake.input.rows),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
