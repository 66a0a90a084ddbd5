"""The systems of the matrix: those its recipe names, and what the files of the rooms make.

A system is an exchange × codecs by level × fusion × synchronization. What it does to the model is
its class, which any exchange leaves as it is that can carry it; so a class names all of those, and
each cell of the matrix takes the fastest. Nothing is imported of a method for this: what it must
know of one stands in the method's file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from slowlink.methods import synchronization
from slowlink.testbed.training.recipe import (
    Codec,
    CodecScope,
    Exchange,
    Fusion,
    Level,
    Part,
    Policy,
)
from slowlink.workflow.experiment import Section
from slowlink.workflow.named import constant, known, parameters

if TYPE_CHECKING:
    from slowlink.testbed.matrix import Method
    from slowlink.workflow.matrix.experiments import Matrix

Group = Literal[
    "system",
    "baseline",
    "combination",
    "codec",
    "sites",
    "local",
    "exchange",
    "policy",
    "fusion",
]
DENSE = Part(name="identity")
BSP = Part(name="bsp")
WHOLE = Part(name="whole_model")
SERVER = "parameter_server"
SITES = "hips"
"""The exchange that has codecs of its own inside of sites and between them."""


class System(Section):
    """Four answers, and what codecs see of a message.

    Attributes
    ----------
    exchange: one, or several, of which the fastest counts.
    fusion: the recipe's where none is given.
    trained: whether its class is; if not, only its rounds are known.
    """

    exchange: Annotated[list[Exchange], Field(min_length=1)]
    levels: Annotated[list[Level], Field(min_length=1)]
    synchronization: Policy = BSP
    fusion: Fusion | None = None
    codec_scope: CodecScope = "layer"
    group: Group = "system"
    trained: bool = True

    @field_validator("exchange", mode="before")
    @classmethod
    def _several(cls, exchange: Any) -> Any:
        return exchange if isinstance(exchange, list | tuple) else [exchange]

    @property
    def answers(self) -> tuple[Any, ...]:
        return self.exchange, self.levels, self.synchronization, self.fusion, self.codec_scope

    @property
    def parts(self) -> list[Part]:
        """Every method that it is made of."""
        every = *self.exchange, self.synchronization, self.fusion, *codecs_of(self.levels)
        return [part for part in every if part]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of :attr:`parts`."""
        return tuple(part.name for part in self.parts)

    @property
    def dense(self) -> bool:
        """Whether every worker gets the exact mean in every round."""
        return self.synchronization == BSP and not coded(self)

    @property
    def grouped(self) -> bool:
        """Whether fusion has a say: what is sent after several iterations is one message."""
        part = self.synchronization
        policy = synchronization.load(part.name, **part.parameters)
        return policy.together and policy.travels == "gradient"

    @property
    def blended(self) -> bool:
        """Whether a codec makes something else of layers that travel together: it sees them as one,
        and does not take value by value."""
        named = {codec.name for codec in codecs_of(self.levels) if codec}
        one_by_one = (constant("compression", name, "elementwise", False) for name in named)
        return self.codec_scope == "group" and not all(one_by_one)


def codecs_of(levels: Iterable[Level]) -> list[Codec | None]:
    """Up and down, level by level."""
    return [codec for level in levels for codec in (level.up, level.down)]


def coded(one: System | Method) -> bool:
    """Whether anything but plain values travels."""
    return any(codec not in (None, DENSE) for codec in codecs_of(one.levels))


LocalSteps = dict[PositiveInt, list[str]]
"""Everybody meets after so many iterations; with which codecs that is trained."""


class BetweenSites(Section):
    """Plain values inside of sites, a codec between them; ``trained``: with these."""

    trained: list[str]


def found(matrix: Matrix) -> dict[str, System]:
    """Every system by its label: those that the recipe spells out, and all that the rooms make.

    What one of the first repeats to the letter is not made once more.
    """
    told = matrix.model_dump_json()
    if told not in _found:
        _found.clear()
        _found[told] = _made(matrix)
    return dict(_found[told])


_found: dict[str, dict[str, System]] = {}
"""The last answer of :func:`found`, which a plan asks for with every part of an experiment."""


def _made(matrix: Matrix) -> dict[str, System]:
    def full(system: System) -> System:
        # Where workers meet less often, all layers are there at once.
        chosen = matrix.fusion if system.synchronization == BSP else WHOLE
        return system if system.fusion else system.model_copy(update={"fusion": chosen})

    made = dict(matrix.systems)
    for label, system in matrix.combinations.items():
        made[label] = system.model_copy(update={"group": "combination"})
    made = {label: full(system) for label, system in made.items()}
    # Only systems of the same methods can be alike, which spares comparing all with all.
    alike: dict[tuple[str, ...], list[System]] = {}
    for system in made.values():
        alike.setdefault(system.names, []).append(system)
    for label, system in in_rooms(matrix):
        whole = full(system)
        others = alike.setdefault(whole.names, [])
        if all(whole.answers != other.answers for other in others):
            made[label] = whole
            others.append(whole)
    for label in matrix.baselines:
        made[label] = made[label].model_copy(update={"group": "baseline"})
    return made


def in_rooms(matrix: Matrix) -> Iterator[tuple[str, System]]:
    """Exchanges and fusions with plain values; codecs on every exchange that can carry them, in
    every round, between sites alone, and of what several iterations have changed; and policies,
    with plain values: by a server where workers meet in parts, else by any exchange."""
    part = matrix.part

    def carrying(codec: str) -> list[Part]:
        given = matrix.carriers.get(codec)
        # What adds is one sum over all levels; other codecs would code it anew at each.
        depth = exchanges.values() if adds(codec) else flat
        able = [part(given)] if given else [p for p in depth if carries(p.name, codec)]
        # The first one trains its class.
        return sorted(able, key=lambda one: one.name != ("ring" if adds(codec) else "allgather"))

    def system(group: Group, carrier: list[Part], *codecs: Codec, **answers: Any) -> System:
        levels = [Level(up=codec) for codec in codecs]
        return System(exchange=carrier, levels=levels, group=group, **answers)

    exchanges = {name: part(name) for name in known("exchange")} | matrix.exchanges
    flat = [one for one in exchanges.values() if one.name != SITES]
    for label, carrier in exchanges.items():
        depth = 2 if carrier.name == SITES else 1
        yield label, system("exchange", [carrier], *[DENSE] * depth)
    for name in known("compression"):
        if name == DENSE.name:
            continue
        yield name, system("codec", carrying(name), part(name))
        told = name in matrix.between_sites.trained
        yield (
            f"{name} between sites",
            system("sites", [part(SITES)], DENSE, part(name), trained=told),
        )
    for iterations, trained in matrix.local_steps.items():
        meeting = Part(name="bsp", local_iterations=iterations)
        for name in known("compression"):
            told = dict(synchronization=meeting, trained=name in trained)
            label = f"{name} every {iterations}"
            yield label, system("local", carrying(name), of_changes(part(name)), **told)
    for name in known("synchronization"):
        if name != BSP.name:
            meeting, ways = part(name), [part(matrix.carriers.get(name, SERVER))]
            if _by_what_it_does(meeting).name == BSP.name:
                ways = carrying(DENSE.name)
            depth = 2 if ways[0].name == SITES else 1
            yield name, system("policy", ways, *[DENSE] * depth, synchronization=meeting)
    for name in known("fusion"):
        yield name, system("fusion", [part("ring")], DENSE, fusion=part(name))


def beyond(matrix: Matrix) -> dict[str, System]:
    """What the space has besides the rows of the matrix, and nobody has trained: policies with
    every codec, by one server and by sites; and every pair of codecs inside of sites and between
    them. Some of it cannot run, and says why when it is timed. Where only some rows are asked for,
    what is made of their methods.

    Where a meeting has one member, sites have nothing to add up, and only one server is taken.
    """
    part, made = matrix.part, {}
    codecs = [name for name in known("compression") if name != DENSE.name]
    for policy in known("synchronization"):
        if policy == BSP.name:
            continue
        meeting, named = part(policy), matrix.carriers.get(policy)
        changes = constant("synchronization", policy, "travels", "gradient") == "delta"
        told = dict(group="policy", synchronization=meeting, fusion=WHOLE, trained=False)
        for name in (DENSE.name, *codecs):
            codec = of_changes(part(name)) if changes else part(name)
            ways = {"by one server": (SERVER, [codec])}
            if not constant("synchronization", policy, "alone", False):
                ways["by sites"] = SITES, [DENSE, codec]
            for way, (carrier, parts) in ways.items():
                levels = [Level(up=one) for one in parts]
                if named in (None, carrier):
                    label = f"{policy} with {name} {way}"
                    made[label] = System(exchange=[part(carrier)], levels=levels, **told)
    pairs = dict(group="sites", fusion=matrix.fusion, trained=False)
    for inner, outer in itertools.product(codecs, (DENSE.name, *codecs)):
        levels = [Level(up=part(inner)), Level(up=part(outer))]
        label = f"{inner} in sites, {outer} between"
        made[label] = System(exchange=[part(SITES)], levels=levels, **pairs)
    rows = matrix.found()
    there = {class_of(one) + str(one.exchange) for one in rows.values()}
    used = {part.name for one in rows.values() for part in one.parts}
    return {
        label: one
        for label, one in made.items()
        if class_of(one) + str(one.exchange) not in there
        and {part.name for part in one.parts} <= used
    }


def of_changes(codec: Part) -> Part:
    """A codec of what iterations have changed, in which their momentum already is."""
    if "momentum" not in parameters("compression", codec.name):
        return codec
    return Part(name=codec.name, **(codec.parameters | {"momentum": 0.0}))


def adds(codec: str) -> bool:
    """Whether the payloads of a codec are summed on their way."""
    return constant("compression", codec, "combine", "sum") == "sum"


def carries(exchange: str, codec: str) -> bool:
    """Whether an exchange can carry the payloads of a codec."""
    return adds(codec) or "gather" in constant("exchange", exchange, "combines", ())


def trained_as(systems: Mapping[str, System]) -> dict[str, str]:
    """By system that is trained, or shares the training of one that is, the label under which."""
    named: dict[str, str] = {}
    for label, system in systems.items():
        if system.trained:
            named.setdefault(class_of(system), label)
    classes = {label: class_of(system) for label, system in systems.items()}
    return {label: named[one] for label, one in classes.items() if one in named}


def recorded_as(
    systems: Mapping[str, System], every: Mapping[str, System], classes: Iterable[str]
) -> dict[str, str]:
    """By system whose class is that of one of ``classes``, labels of ``every``: which one."""
    named = {class_of(every[label]): label for label in classes if label in every}
    made = {label: class_of(system) for label, system in systems.items()}
    return {label: named[one] for label, one in made.items() if one in named}


def class_of(system: System) -> str:
    """What decides the course of training: equal texts, equal training."""
    system = system.model_copy(update={"synchronization": _by_what_it_does(system.synchronization)})
    if system.dense:
        return "dense"
    keep = {"levels", "synchronization"}
    if system.synchronization.name != BSP.name:
        keep |= {"exchange"}
    if system.blended:
        keep |= {"fusion", "codec_scope"}
    return system.model_dump_json(include=keep)


def _by_what_it_does(meeting: Policy) -> Policy:
    """Synchronous SGD of as many iterations, where a policy comes down to it: all meet in every
    round, and count alike. So it is with federated averaging that asks all and waits for all."""
    policy = synchronization.load(meeting.name, **meeting.parameters)
    if not policy.together or getattr(policy, "samples", None) is not None:
        return meeting
    plain = Part(name=BSP.name, local_iterations=policy.local_iterations)
    same = policy.travels == synchronization.load(plain.name, **plain.parameters).travels
    return plain if same and meeting.name != BSP.name else meeting
