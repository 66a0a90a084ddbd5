"""From the settings of a job to its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from testbed import results
from testbed.results import Row
from workflow.job import job


def main(params: dict[str, Any], files: Sequence[str], output: str, log: str) -> None:
    """Make the rows of a job.

    Parameters
    ----------
    params: what :attr:`workflow.jobs.Job.params` gives.
    files: the results that it comes after.
    """
    with job(log) as say:
        made = trained(params["runs"], say) if "runs" in params else rows(params, files, say)
        results.write(made, output)


def trained(runs: list[dict], say) -> Iterator[Row]:
    """Curves of runs, given as plain data."""
    from testbed.training.recipe import Recipe
    from testbed.training.trainer import train_all

    yield from train_all([Recipe(**run) for run in runs], say)


def rows(params: dict[str, Any], files: Sequence[str], say=print) -> Iterator[Row]:
    """Rows of an experiment, or of the summary of its curves.

    Raises
    ------
    RuntimeError
        A row of another experiment than those that the declaration names.
    """
    from workflow.experiment import Bench
    from workflow.settings import wing_of

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
