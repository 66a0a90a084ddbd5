"""The jobs that follow from what wings declare: outputs, inputs, parameters.

The inputs of a job are computed: the import closure of what its function uses
(:mod:`workflow.closure`), the files of the methods, and the data sets, that the settings it gets
name, and the results of the experiments that it comes after.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slowlink.testbed.training.recipe import Recipe, slug
from slowlink.workflow import closure
from slowlink.workflow.closure import ROOMS, ROOT
from slowlink.workflow.experiment import Bench, Experiment, Training
from slowlink.workflow.named import named
from slowlink.workflow.settings import Settings
from slowlink.workflow.wing import Wing

SUMMARY = "summary"
TRAINER = "testbed/training/trainer.py"
READER = "workflow/recorded.py"


def recorded_in(wing: str, experiment: str) -> str:
    """The folder, from the repository on, where the runs of a training are kept."""
    return f"data/recorded/{wing}_{experiment}"


@dataclass(frozen=True)
class Job:
    """One result file: an experiment or a part of it, a group of training runs, or the summary of
    their curves."""

    wing: Wing
    recipe: Any
    scale: str
    experiment: Experiment
    name: str
    part: str | None = None
    runs: tuple[Recipe, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        return f"results/{self.scale}/{self.wing.name}/{self.name}.parquet"

    @property
    def summary(self) -> bool:
        return self.name.endswith(f"/{SUMMARY}")

    @property
    def recorded(self) -> str:
        """The folder that a job reads training from, in place of training; empty if it trains."""
        kept = isinstance(self.experiment, Training) and self.experiment.recorded
        kept = kept and not self.summary
        return recorded_in(self.wing.name, self.experiment.name) if kept else ""

    @property
    def gpu(self) -> int:
        trains = self.experiment.gpu and not (self.summary or self.recorded)
        return int(self.scale == "paper" and trains)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What of the recipe the job gets, as plain data; not what follows from it."""
        if self.runs:
            return {}
        # A summary reads the recipe where it likes.
        keys = self.wing.sections if self.summary else self.experiment.sections
        told = {key: getattr(self.recipe, key) for key in keys}
        dump = dict(mode="json", round_trip=True)
        own = self.recipe.model_dump(include=set(self.wing.settings.model_fields), **dump)
        plain = self.recipe.narrowed(own, self.experiment, self.part, told)
        return plain | {key: one.model_dump(**dump) for key, one in told.items()}

    @cached_property
    def inputs(self) -> dict[str, list[str]]:
        """Input files by what they are: results, data sets, sources."""
        sources, names = set(), []
        if self.runs and not self.recorded:
            sources = closure.closure([TRAINER])
            names = [one for run in self.runs for one in named(run)]
        elif not self.runs:
            sources = self._code[0]
            told = self.wing.settings(**self._own(self.wing.settings))
            names = [*named(told)]
            for key, schema in self.wing.sections.items():
                if key in self.settings:
                    names += named(schema(**self.settings[key]))
        if self.summary:
            names = []
        methods = {(one.kind, one.name) for one in names if one.kind in ROOMS}
        if self.recorded:  # which trains on nothing
            sources |= {READER, *glob.glob(f"{self.recorded}/*")}
            names = []
        files = {file for pattern in self.experiment.files for file in glob.glob(pattern)}
        return dict(
            rows=list(self.after),
            data=sorted(
                {f"results/data/{one.name}.json" for one in names if one.kind == "dataset"}
            ),
            sources=sorted(sources | closure.methods_of(methods) | files),
        )

    @property
    def params(self) -> dict[str, Any]:
        """What the script gets; a change of it redoes the job."""
        told = dict(wing=self.wing.name, experiment=self.experiment.name, scale=self.scale)
        told |= dict(recorded=True) if self.recorded else {}
        if self.runs:
            return told | dict(runs=[run.model_dump(mode="json") for run in self.runs])
        told |= dict(part=self.part, settings=self.settings, code=self._code[1])
        return told | dict(summary=True) if self.summary else told

    @cached_property
    def _code(self) -> tuple[frozenset[str], str]:
        if self.summary:
            function = self.experiment.summarise
            return closure.of_function(function.__module__, function.__qualname__)
        return closure.of_function(self.experiment.module, self.experiment.name)

    def _own(self, schema: type) -> dict[str, Any]:
        return {key: self.settings[key] for key in schema.model_fields if key in self.settings}


class Jobs:
    """All jobs of a run by wing and name.

    With ``--config only=<method>``, those of the matrix that make what uses the method; of the
    others, those whose results are there are ``kept``: they count, and nothing makes them anew.
    """

    def __init__(self, settings: Settings, wings: dict[str, Wing]) -> None:
        self.settings, self.wings = settings, wings
        self.all: dict[tuple[str, str], Job] = {}
        self.kept: dict[tuple[str, str], Job] = {}
        self._served: dict[str, dict[str, list[set[str]]]] = {}
        for name, wing in wings.items():
            for one in wing.experiments.values():
                for job in self._made(wing, settings.recipes[name], one):
                    if not self._left(job):
                        self.all[name, job.name] = job
                    elif (ROOT / job.output).is_file():
                        self.kept[name, job.name] = job

    def _left(self, job: Job) -> bool:
        """Whether a job is left as it is: its results are of other methods than the only one, or of
        others, too, and are there."""
        if self.settings.only is None or job.wing.name != "matrix" or job.part is None:
            return False
        name = job.experiment.name
        if name not in self._served:
            self._served[name] = job.recipe.served(job.experiment)
        uses = [self.settings.only in names for names in self._served[name].get(job.part, ())]
        return not any(uses) or (not all(uses) and (ROOT / job.output).is_file())

    def _made(self, wing: Wing, recipe: Any, one: Experiment) -> Iterable[Job]:
        shared = dict(wing=wing, recipe=recipe, scale=self.settings.scale, experiment=one)
        if isinstance(one, Training):
            outputs = []
            groups = {"recorded": []} if one.apart else self.grouped(wing, recipe, one)
            for group, runs in groups.items():
                job = Job(**shared, name=f"{one.name}/{group}", runs=tuple(runs))
                outputs.append(job.output)
                yield job
            if one.summarise and outputs:
                yield Job(**shared, name=f"{one.name}/{SUMMARY}", after=tuple(outputs))
            return
        after = tuple(job.output for before in one.after for job in self.of(wing.name, before))
        if one.parts is None:
            yield Job(**shared, name=one.name, after=after)
            return
        for part in one.parts(recipe):
            yield Job(**shared, name=f"{one.name}/{slug(part)}", part=part, after=after)

    def grouped(self, wing: Wing, recipe: Any, one: Training) -> dict[str, list[Recipe]]:
        """Runs by job: at paper scale a job a run, at desk scale one for all seeds, at smoke scale
        and of what is recorded one for the experiment, for starting a job takes seconds."""
        bench = Bench(wing.name, one.name, recipe, self.settings.scale)
        sections = {key: getattr(recipe, key) for key in one.sections}
        jobs: dict[str, list[Recipe]] = {}
        for name, run in one.runs(bench, sections).items():
            of_seeds = name.removesuffix(f"-seed{run.seed}")
            group = dict(paper=name, desk=of_seeds, smoke="all")[self.settings.scale]
            group = "recorded" if one.recorded else group
            jobs.setdefault(group, []).append(run)
        return jobs

    def of(self, wing: str, experiment: Experiment) -> list[Job]:
        """The jobs of one experiment, those whose results are kept last."""
        return [
            job
            for (name, _), job in [*self.all.items(), *self.kept.items()]
            if name == wing and job.experiment is experiment
        ]

    def outputs(self, wing: str, experiment: str) -> list[str]:
        """The result files that hold an experiment's rows; of an optional one, those there are."""
        found = []
        for maker in self.wings[wing].makers(experiment):
            files = [job.output for job in self.of(wing, maker)]
            found += [f for f in files if not maker.optional or (ROOT / f).is_file()]
        return found

    def behind(self, wing: str, of: Iterable[Experiment]) -> list[str]:
        """The result files that a figure or table of these experiments is made from."""
        return list(dict.fromkeys(f for one in of for f in self.outputs(wing, one.name)))

    def every(self, wing: str) -> list[str]:
        """All result files of a wing."""
        return self.behind(wing, self.wings[wing].experiments.values())
