"""RAT: what its recipe may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

from workflow.recipes import Check, PaperRecipe, Strict, distinct, slug

Sizes = Annotated[list[PositiveInt], Field(min_length=1)]
Seeds = Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]


class Method(BaseModel):
    """An exchange by name; every other key is an option of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    exchange: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Figure6(Strict):
    racks: PositiveInt
    spines: PositiveInt
    per_rack: Sizes
    rates: list[PositiveFloat]
    methods: list[str]


class Latency(Strict):
    ratio: Annotated[float, Field(gt=1)]
    hops: list[NonNegativeFloat]


class Pipelining(Strict):
    """``uplinks``: rate of an uplink over that of a card."""

    per_rack: PositiveInt
    uplinks: list[PositiveFloat]
    chunks: Sizes


class Exchanges(Strict):
    per_rack: Sizes
    rate: PositiveFloat


class Figure7(Strict):
    """``paused`` and ``periods`` are the document's k and d (seconds)."""

    racks: PositiveInt
    per_rack: PositiveInt
    rate: PositiveFloat
    oversubscription: PositiveFloat
    paused: Sizes
    periods: list[PositiveFloat]
    begin: NonNegativeFloat
    draws: Seeds
    methods: list[str]
    ring: PositiveFloat
    rat: PositiveFloat


class Pauses(Strict):
    paused: PositiveInt
    period: PositiveFloat
    draws: Seeds


class Table1(Strict):
    shapes: Annotated[list[Sizes], Field(min_length=1)]


class ChainBlocking(Strict):
    workers: Sizes


class CrossLoad(Strict):
    racks: PositiveInt
    per_rack: PositiveInt


class Packet(Strict):
    nbytes: PositiveFloat
    rate: PositiveFloat
    racks: PositiveInt
    per_rack: PositiveInt
    spines: PositiveInt
    latency: NonNegativeFloat
    oversubscription: list[PositiveFloat]
    paused_oversubscription: list[PositiveFloat]
    methods: list[str]
    pauses: Pauses
    tcp: dict[str, Any]


class Disturbance(Strict):
    """``share``: of the links' rate that higher-priority traffic takes; ``flows``: of a burst."""

    kind: Literal["failed", "burst", "priority"]
    begin: NonNegativeFloat
    end: PositiveFloat
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    flows: PositiveInt = 1


class Disturbances(Strict):
    per_rack: PositiveInt
    rate: PositiveFloat
    methods: list[str]
    kinds: dict[str, Disturbance]


class Scenario(Strict):
    """Racks by size and by the share of its uplinks' rate that each has; failed uplinks."""

    per_rack: Sizes
    uplinks: list[PositiveFloat]
    failed: list[tuple[int, int]] = []


class Asymmetric(Strict):
    rate: PositiveFloat
    chunks: PositiveInt
    spines: PositiveInt
    scenarios: dict[str, Scenario]


class Scaling(Strict):
    racks: PositiveInt
    spines: PositiveInt
    rate: PositiveFloat
    workers: Sizes
    methods: list[str]


# What an experiment needs besides its own section.
ALSO_NEEDS = {
    "latency": ("figure6", "latency_needed"),
    "pipelining": ("figure6",),
    "exchanges": ("figure6",),
    "disturbances": ("figure6",),
    "survival": ("figure7",),
    "table1": ("chain_blocking", "cross_load"),
}


class Rat(PaperRecipe):
    """The recipe ``papers/rat.yaml``."""

    paper: Literal["rat"]
    model: str
    nbytes: PositiveFloat
    synchronization: str
    paths: Literal["first", "ecmp", "balanced"]
    seed: int
    latency: NonNegativeFloat
    methods: dict[str, Method]
    # A job gets only those that it needs.
    figure6: Figure6 | None = None
    latency_needed: Latency | None = None
    pipelining: Pipelining | None = None
    exchanges: Exchanges | None = None
    survival: Pauses | None = None
    figure7: Figure7 | None = None
    table1: Table1 | None = None
    chain_blocking: ChainBlocking | None = None
    cross_load: CrossLoad | None = None
    packet: Packet | None = None
    disturbances: Disturbances | None = None
    asymmetric: Asymmetric | None = None
    scale: Scaling | None = None

    def parts(self, experiment: str) -> dict[str, str]:
        """Job -> method for an experiment that is run a job a method."""
        return {f"{experiment}-{slug(name)}": name for name in getattr(self, experiment).methods}

    def uses(self, job: str) -> list[str]:
        """The methods whose rows a job makes; all of them where it does not say."""
        experiment, _, part = job.partition("-")
        if part:
            return [self.parts(experiment)[job]]
        if experiment in ("latency", "pipelining", "asymmetric"):
            return ["Ring", "RAT"]
        return getattr(getattr(self, experiment), "methods", list(self.methods))

    def only(self, job: str) -> dict[str, Any]:
        """The recipe as plain data, without what this job does not need."""
        experiment = job.partition("-")[0]
        needed = {experiment, *ALSO_NEEDS.get(experiment, ())}
        optional = {
            name for name, field in type(self).model_fields.items() if not field.is_required()
        }
        data = self.model_dump(mode="json", exclude=optional - needed)
        data["methods"] = {name: data["methods"][name] for name in self.uses(job)}
        return data

    def check(self, check: Check) -> None:
        from methods import exchange, synchronization
        from testbed.network.packet import Tcp

        for name, value in self:
            if value is None:
                check.fail(name, "is missing")
        check.need("synchronization", self.synchronization, synchronization.names())
        for name, method in self.methods.items():
            check.need(f"methods.{name}.exchange", method.exchange, exchange.names())
            check.make(f"methods.{name}", exchange.load, method.exchange, **method.options)
        for name in ("PS", "Ring", "RAT"):
            check.need("methods", name, self.methods)
        for experiment in ("figure6", "figure7", "packet", "disturbances", "scale"):
            for name in getattr(self, experiment).methods:
                check.need(f"{experiment}.methods", name, self.methods)
        check.make("packet.tcp", Tcp, **self.packet.tcp)
        for ratio in self.packet.paused_oversubscription:
            if ratio not in self.packet.oversubscription:
                check.fail(
                    "packet.paused_oversubscription", f"{ratio:g} is not in oversubscription"
                )
        two_racks = self.figure7.racks * self.figure7.per_rack
        hosts = self.packet.racks * self.packet.per_rack
        for key, paused, workers in (
            ("figure7.paused", max(self.figure7.paused), two_racks),
            ("survival.paused", self.survival.paused, two_racks),
            ("packet.pauses.paused", self.packet.pauses.paused, hosts),
        ):
            if paused >= workers:
                check.fail(key, f"of {workers} workers at least one must go on, not pause {paused}")
        for name, scenario in self.asymmetric.scenarios.items():
            if len(scenario.per_rack) != len(scenario.uplinks):
                check.fail(f"asymmetric.scenarios.{name}.uplinks", "give one share a rack")
