"""What LPSP's experiments share: the policies, the workers' speeds, the network, the workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from slowlink.testbed.training.recipe import How, Model, Part, Policy
from slowlink.workflow import experiment as declarations
from slowlink.workflow.experiment import Section, Seeds, distinct
from slowlink.workflow.named import known

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

BSP, LPSP = "BSP", "LPSP"

Average = Literal["members", "all"]
Share = Annotated[float, Field(ge=0, lt=1)]
Sizes = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(distinct)]


def coordinates_of(label: str, policy: Part, reading: str = LPSP) -> dict[str, str]:
    """Where in results a policy is: its method and, of LPSP, the reading and the option that is
    changed, empty for none."""
    if policy.name != "lpsp":
        return {"method": label}
    option = "" if label == LPSP else label
    method = option or reading
    if option and reading != LPSP:
        method = f"{option}, {reading.removeprefix(LPSP).strip()}"
    return {"method": method, "reading": reading, "option": option}


class Stragglers(Section):
    """Uneven workers: ``highest`` factor, share of ``jitter``, iterations from change to change."""

    highest: Annotated[float, Field(ge=1)]
    jitter: Share
    period: PositiveFloat


class Network(Section):
    """Workers and a server on one switch: bit/s, seconds a hop, share of payload in a frame."""

    rate: PositiveFloat
    latency: NonNegativeFloat
    efficiency: Annotated[float, Field(gt=0, le=1)]


class Workload(Section):
    """What is trained until when: ``images`` to train on; ``evaluate_every`` in epochs of all
    workers together.

    ``lr`` is null where each method has its own. ``readings`` of LPSP are trained on
    ``readings_on`` of the ``workers``, too, and so are, on ``ablated_workers``, ``ablations``,
    groups of the recipe's, in ``ablated_readings``. ``dataset`` is not marked as one, since
    experiments that use only the speeds and the model do without the data.
    """

    dataset: str
    model: Model
    workers: Sizes
    methods: list[str]
    gradients: How
    readings: list[str]
    readings_on: Sizes
    ablations: list[str] = []
    ablated_workers: PositiveInt | None = None
    ablated_readings: list[str] = []
    base_s: PositiveFloat
    seconds: PositiveFloat
    target: PositiveFloat
    window: PositiveInt
    batch: PositiveInt
    lr: PositiveFloat | None
    momentum: Share
    evaluate_every: PositiveFloat
    seeds: Seeds
    images: PositiveInt
    test_limit: PositiveInt | None

    def rounds_between(self, workers: int) -> int:
        """Rounds from one evaluation to the next."""
        return max(1, round(self.evaluate_every * self.images / (self.batch * workers)))


class Settings(declarations.Settings):
    """``readings``: what else LPSP can be read as, by label. ``ablations``: LPSP with one option
    changed, by group and label."""

    accelerator: Literal["auto", "cpu", "cuda"]
    averaged_over: Average
    methods: dict[str, Policy]
    readings: dict[str, Policy]
    ablations: dict[str, dict[str, Policy]]
    stragglers: Stragglers
    network: Network

    @property
    def policies(self) -> dict[str, Policy]:
        """The methods, and LPSP as else it can be read."""
        return self.methods | self.readings

    def check(self, check: Check) -> None:
        for label in (BSP, LPSP):
            check.need("methods", label, self.methods)
        trained = "mnist", "mnist_12", "cifar10"
        for name in (*trained, "control", "control_rivals", "control_rate", "ray"):
            for label in getattr(self, name).methods:
                check.need(f"{name}.methods", label, self.methods)
        for label in self.ray.readings:
            check.need("ray.readings", label, self.readings)
        for name in trained:
            workload = getattr(self, name)
            check.need(f"{name}.dataset", workload.dataset, known("dataset"))
            for label in workload.readings:
                check.need(f"{name}.readings", label, self.readings)
            for label in workload.ablated_readings:
                check.need(f"{name}.ablated_readings", label, [LPSP, *self.readings])
            if not set(workload.readings_on) <= set(workload.workers):
                check.fail(f"{name}.readings_on", f"not all are among {name}.workers")
        if self.mnist_rates.workers not in self.mnist.workers:
            check.fail("mnist_rates.workers", "is not among mnist.workers")
        for group in self.cifar10.ablations:
            check.need("cifar10.ablations", group, self.ablations)
        for name in ("cifar10", "waiting", "by_reading"):
            ablated, workers = self.cifar10.ablated_workers, getattr(self, name).workers
            if ablated not in workers:
                check.fail("cifar10.ablated_workers", f"{ablated} is not among {name}.workers")

    def lpsp(self, changed: Mapping[str, Part], reading: str = LPSP) -> dict[str, Part]:
        """LPSP in a reading, with options changed: by label, of ``changed`` that of the recipe."""
        plain, read = self.methods[LPSP].parameters, self.readings.get(reading, self.methods[LPSP])
        own = {}
        for label, part in changed.items():
            options = {k: v for k, v in part.parameters.items() if plain.get(k) != v}
            own[label] = Part(name=read.name, **read.parameters | options)
        return own


Bench = declarations.Bench[Settings]
