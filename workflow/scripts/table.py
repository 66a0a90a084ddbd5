"""One table of a document with our numbers and verdicts, as CSV."""

from reports import papers
from testbed.files import whole
from workflow.job import job
from workflow.judging import judge_from


def main(
    paper: str, name: str, results: list[str], recipe: dict, scale: str, output: str, log: str
) -> None:
    with job(log):
        judged, rows = judge_from(paper, results, recipe, scale, table=name)
        with whole(output) as path:
            papers.load(paper).TABLES[name](judged, rows).to_csv(path, index=False)


if "snakemake" in globals():
    main(
        snakemake.wildcards.paper,  # noqa: F821
        snakemake.wildcards.name,  # noqa: F821
        list(snakemake.input.results),  # noqa: F821
        snakemake.params.recipe,  # noqa: F821
        snakemake.params.scale,  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
