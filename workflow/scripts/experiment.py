"""From the settings of a job to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from slowlink.testbed import results
from slowlink.testbed.results import Row
from slowlink.workflow.experiment import Bench, Say


def main(say: Say, job: dict[str, Any], files: Sequence[str], output: str) -> None:
    """Make the rows of a job.

    Parameters
    ----------
    job: what :attr:`workflow.jobs.Job.params` gives.
    files: the results that it comes after.
    """
    made = trained(job, say) if "runs" in job else rows(job, files, say)
    results.write(made, output)


def trained(job: dict[str, Any], say: Say) -> Iterator[Row]:
    """Curves of runs, given as plain data; those that were recorded are only read."""
    from slowlink.testbed.training.recipe import Recipe

    runs = [Recipe(**run) for run in job["runs"]]
    if "recorded" in job:
        from slowlink.workflow.recorded import read

        yield from read(job["wing"], job["experiment"], runs)
        return
    from slowlink.testbed.training.trainer import train_all

    yield from train_all(runs, say)


def rows(params: dict[str, Any], files: Sequence[str], say: Say = print) -> Iterator[Row]:
    """Rows of an experiment, or of the summary of its curves.

    Raises
    ------
    RuntimeError
        A row of another experiment than those that the declaration names.
    """
    from slowlink.workflow.settings import wing_of

    wing = wing_of(params["wing"])
    one = wing.experiments[params["experiment"]]
    settings = dict(params["settings"])
    sections = {
        key: schema(**settings.pop(key)) for key, schema in wing.sections.items() if key in settings
    }
    if "summary" in params:
        recipe = wing.schema(**params["settings"])
        yield from one.summarise(results.read(files), recipe)
        return
    bench = Bench(wing.name, one.name, wing.settings(**settings), params["scale"], say)
    if "recorded" in params:
        from slowlink.workflow.recorded import read

        yield from read(wing.name, one.name, one.runs(bench, sections).values())
        return
    given: dict[str, Any] = {}
    if one.takes("part"):
        given["part"] = params["part"]
    if one.takes("rows"):
        given["rows"] = results.read(files)
    for row in one(bench, **sections, **given):
        if row.experiment not in (one.name, *one.makes):
            raise RuntimeError(
                f"{wing.name}: {one.name} made a row of {row.experiment!r}; name it under makes"
            )
        yield row
