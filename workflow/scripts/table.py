"""One table of a document with our numbers and verdicts, as CSV."""

from reports import tables
from workflow.job import job, whole
from workflow.judging import judge_from


def main(name: str, results: list[str], recipe: dict, scale: str, output: str, log: str) -> None:
    with job(log):
        judged, _ = judge_from("geomx", results, recipe, scale, table=name)
        with whole(output) as path:
            tables.TABLES[name](judged, "geomx").to_csv(path, index=False)


if "snakemake" in globals():
    main(
        snakemake.wildcards.table,  # noqa: F821
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
