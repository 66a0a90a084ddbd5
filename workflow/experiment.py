"""How a document declares what it runs.

A document's settings are one subclass of :class:`Settings`. An experiment is a function under
:func:`experiment`: its first parameter is a :class:`Bench`, and every other parameter is a section
of the recipe, whose key is the parameter's name and whose schema is its annotation::

    @experiment(minutes=5)
    def cross_load(bench: Bench, cross_load: CrossLoad) -> Iterator[Row]: ...

Two names are not sections: ``part`` is the part of the experiment that a job runs, where ``parts``
names several, and ``rows`` is the table of the results of the experiments in ``after``. A function
under :func:`training` returns the runs to train, and ``summarise`` turns their curves into the
numbers that tables print.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from slowlink.testbed.results import Row, Scale
from slowlink.testbed.training.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd

    from slowlink.workflow.settings import Check

PLANNING = False
"""True while Snakemake asks only what there is to run. Like ``TYPE_CHECKING``, it spares whoever
reads declarations the imports that running them needs."""


def distinct(values: list[int]) -> list[int]:
    """``values``, which must differ from each other."""
    if len(set(values)) < len(values):
        raise ValueError(f"must differ from each other, not {values}")
    return values


Sizes = Annotated[list[PositiveInt], Field(min_length=1)]
Seeds = Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]


class Section(BaseModel):
    """A part of a recipe: data without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(Section):
    """What all experiments of a document share.

    A field ``methods``, where there is one, is the table of the document's methods by their labels.
    A job gets only those that it uses: those that ``methods`` of its declaration names, else its
    part, else those that the section of the experiment's own name lists as ``methods``, else all.
    """

    def narrowed(
        self,
        plain: dict[str, Any],
        experiment: Experiment,
        part: str | None,
        sections: dict[str, Section],
    ) -> dict[str, Any]:
        """What a job of ``experiment`` uses of these settings, which are ``plain`` data."""
        if "methods" not in plain:
            return plain
        listed = getattr(sections.get(experiment.name), "methods", ())
        alone = [part] if part in plain["methods"] else []
        named = experiment.methods
        used = named if named is not None else alone or listed or plain["methods"]
        return plain | {"methods": {label: plain["methods"][label] for label in used}}

    def check(self, check: Check) -> None:
        """Say with ``check.fail`` what does not fit between sections, which are attributes, too."""

    def check_made(self, check: Check) -> None:
        """Say likewise what only methods themselves can judge, before the first job runs."""


S = TypeVar("S", bound=Settings)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Bench(Generic[S]):
    """What an experiment's function is given besides its sections."""

    document: str
    experiment: str
    settings: S
    scale: Scale
    say: Say = print

    def row(self, metric: str, value: float, unit: str, **fields: Any) -> Row:
        """A row of this experiment, unless ``fields`` say otherwise."""
        mine = dict(document=self.document, experiment=self.experiment, scale=self.scale)
        return Row(**mine | dict(metric=metric, value=float(value), unit=unit) | fields)


@dataclass(frozen=True)
class Experiment:
    """A declaration, which its jobs, their inputs, parameters and outputs follow from.

    Attributes
    ----------
    parts: of a recipe, the parts that are a job each; None for one job.
    after: experiments whose rows this one reads.
    makes: other experiments that some of its rows belong to.
    methods: of the document's methods, the labels of those that it uses; None for those that its
        part or its section names, or all.
    files: globs of what it reads besides code, settings and data sets.
    alone: nothing runs beside it, since it measures time.
    minutes, memory_mb: the most that a job takes at desk scale.
    gpu: whether a job wants a GPU at paper scale.
    optional: whether it runs only when it is asked for by name; what is there is shown.
    """

    function: Callable[..., Any]
    parts: Callable[[Any], Iterable[str]] | None = None
    after: Sequence[Experiment] = ()
    makes: tuple[str, ...] = ()
    methods: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()
    alone: bool = False
    minutes: int = 60
    memory_mb: int = 2000
    priority: int = 0
    gpu: bool = False
    optional: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def module(self) -> str:
        return self.function.__module__

    @property
    def sections(self) -> dict[str, type]:
        """Schema by key of every section that it reads."""
        known = self.function.__globals__
        given = list(inspect.signature(self.function).parameters.values())[1:]
        return {
            one.name: eval(one.annotation, known)
            for one in given
            if one.name not in ("part", "rows")
        }

    def takes(self, name: str) -> bool:
        return name in inspect.signature(self.function).parameters

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **named)


@dataclass(frozen=True)
class Training(Experiment):
    """An experiment whose function returns the runs to train, and how their curves are summarised.

    ``summarise`` gets the curves and the document's recipe. What is ``recorded`` takes hours: runs
    of the workflow read what ``workflow.recorded`` kept of it, at every scale the same. ``apart``:
    the job that reads them names its runs, since that takes imports which planning spares.
    """

    recorded: bool = False
    apart: bool = False
    summarise: Callable[[pd.DataFrame, Any], Iterator[Row]] | None = None
    minutes: int = 120
    memory_mb: int = 3000
    priority: int = 1  # the longest first, so that no core idles at the end
    gpu: bool = True

    def runs(self, bench: Bench, sections: dict[str, Any]) -> dict[str, Recipe]:
        """Every run by its id."""
        return {run.id: run for run in self.function(bench, **sections)}


def experiment(**options: Any) -> Callable[[Callable], Experiment]:
    """Declare the function below as an experiment, with the fields of :class:`Experiment`."""
    return lambda function: Experiment(function, **options)


def training(**options: Any) -> Callable[[Callable], Training]:
    """Declare the function below as training, with the fields of :class:`Training`."""
    return lambda function: Training(function, **options)
