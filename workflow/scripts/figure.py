"""One figure, as SVG."""

from reports import claims, figures, papers
from testbed import results as rows
from workflow.job import job, whole
from workflow.judging import CLAIMS


def main(paper: str, name: str, results: list[str], output: str, log: str) -> None:
    with job(log), whole(output) as path:
        printed = claims.load(CLAIMS / f"{paper}.yaml")
        figures.save(papers.load(paper).FIGURES[name](rows.read(results), printed), path)


if "snakemake" in globals():
    main(
        snakemake.wildcards.paper,  # noqa: F821
        snakemake.wildcards.name,  # noqa: F821
        list(snakemake.input.results),  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
