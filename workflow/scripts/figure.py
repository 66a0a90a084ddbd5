"""One figure, as SVG."""

from reports import figures
from workflow.job import job, whole
from workflow.judging import judge_from


def main(name: str, results: list[str], recipe: dict, scale: str, output: str, log: str) -> None:
    with job(log):
        judged, table = judge_from("geomx", results, recipe, scale, table="table1")
        with whole(output) as path:
            figures.save(figures.FIGURES[name](table, judged), path)


if "snakemake" in globals():
    main(
        snakemake.wildcards.figure,  # noqa: F821
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
