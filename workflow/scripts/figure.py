"""One figure, as SVG."""

from reports import figures, papers
from testbed import results as rows
from testbed.files import whole
from workflow.job import job
from workflow.judging import claims_of


def main(paper: str, name: str, results: list[str], output: str, log: str) -> None:
    with job(log), whole(output) as path:
        draw = papers.load(paper).FIGURES[name]
        figures.save(draw(rows.read(results), claims_of(paper)), path)


if "snakemake" in globals():
    main(
        snakemake.wildcards.paper,  # noqa: F821
        snakemake.wildcards.name,  # noqa: F821
        list(snakemake.input.results),  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
