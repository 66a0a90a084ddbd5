"""The methods of the matrix: those its recipe spells out, and every file of the rooms.

Nothing is imported of a method for this: what it must know of one stands in the method's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.training.recipe import CodecScope, Exchange, Fusion, Level, Part, Policy
from workflow.experiment import Section
from workflow.named import constant, known

Group = Literal["system", "combination", "codec", "exchange", "policy", "fusion"]
DENSE = Part(name="identity")
BSP = Part(name="bsp")
WHOLE = Part(name="whole_model")
SERVER = "parameter_server"


class System(Section):
    """Four answers, and what codecs see of a message; the fusion is the recipe's where none is
    given."""

    exchange: Exchange
    levels: Annotated[list[Level], Field(min_length=1)]
    synchronization: Policy = BSP
    fusion: Fusion | None = None
    codec_scope: CodecScope = "layer"
    group: Group = "system"

    @property
    def answers(self) -> tuple[Any, ...]:
        return self.exchange, self.levels, self.synchronization, self.fusion, self.codec_scope

    @property
    def parts(self) -> list[Part]:
        """Every method that it is made of."""
        codecs = [codec for level in self.levels for codec in (level.up, level.down)]
        return [p for p in (self.exchange, self.synchronization, self.fusion, *codecs) if p]

    @property
    def coded(self) -> bool:
        """Whether anything but plain values travels."""
        codecs = [codec for level in self.levels for codec in (level.up, level.down)]
        return any(codec not in (None, DENSE) for codec in codecs)

    @property
    def dense(self) -> bool:
        """Whether every worker gets the exact mean in every round."""
        return self.synchronization == BSP and not self.coded


def found(
    systems: Mapping[str, System],
    combinations: Mapping[str, System],
    fusion: Part,
    options: Mapping[str, Mapping[str, Any]],
    carriers: Mapping[str, str],
) -> dict[str, System]:
    """Every method by its label: those given, and all that the rooms hold.

    A file that one of those given repeats to the letter is not found once more.

    Parameters
    ----------
    fusion: of every method that does not name its own.
    options: parameters of found methods, by name.
    carriers: exchanges of found methods that need more than a ring, a gathering or one server.
    """

    def full(system: System) -> System:
        # Where workers meet other than in lockstep, whole models travel.
        chosen = fusion if system.synchronization == BSP else WHOLE
        return system if system.fusion else system.model_copy(update={"fusion": chosen})

    made = dict(systems)
    for label, system in combinations.items():
        made[label] = system.model_copy(update={"group": "combination"})
    made = {label: full(system) for label, system in made.items()}
    for label, system in in_rooms(options, carriers):
        whole = full(system)
        if all(whole.answers != other.answers for other in made.values()):
            made[label] = whole
    return made


def in_rooms(
    options: Mapping[str, Mapping[str, Any]], carriers: Mapping[str, str]
) -> Iterator[tuple[str, System]]:
    """A method for every file: exchanges and fusions dense, codecs on a ring where their payloads
    add and else gathered, policies dense at a parameter server."""

    def part(name: str) -> Part:
        return Part(name=name, **options.get(name, {}))

    def system(group: Group, carrier: str, codec: Part = DENSE, **answers: Part) -> System:
        depth = 2 if carrier == "hips" else 1
        return System(
            exchange=part(carrier), levels=[Level(up=codec)] * depth, group=group, **answers
        )

    for name in known("exchange"):
        yield name, system("exchange", name)
    for name in known("compression"):
        if name != DENSE.name:
            carrier = carriers.get(name, "ring" if adds(part(name)) else "allgather")
            yield name, system("codec", carrier, part(name))
    for name in known("synchronization"):
        if name != BSP.name:
            carrier = carriers.get(name, SERVER)
            yield name, system("policy", carrier, synchronization=part(name))
    for name in known("fusion"):
        yield name, system("fusion", carriers.get(name, "ring"), fusion=part(name))


def adds(codec: Part) -> bool:
    """Whether the payloads of a codec are summed on their way."""
    return constant("compression", codec.name, "combine", "sum") == "sum"


def trained_as(systems: Mapping[str, System]) -> dict[str, str]:
    """By method, the label under which it is trained: those that differ only in how the same sums
    are carried share a run."""
    first: dict[str, str] = {}
    return {
        label: first.setdefault(_arithmetic(system), label) for label, system in systems.items()
    }


def _arithmetic(system: System) -> str:
    """What decides the course of training: equal texts, equal training."""
    if system.dense:
        return "dense"
    summed = len(system.levels) == 1 and adds(system.levels[0].up)
    keep = {"levels", "synchronization"} | (set() if summed else {"exchange"})
    if system.codec_scope == "group":
        keep |= {"fusion", "codec_scope"}
    return system.model_dump_json(include=keep)
