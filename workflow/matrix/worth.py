"""What each answer of a system is worth: the same system with one of the four changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from testbed.matrix import Method, Round
from testbed.training.recipe import Level, Part
from workflow.matrix.rounds import said
from workflow.matrix.systems import BSP, DENSE, SITES, WHOLE, of_changes
from workflow.named import known

if TYPE_CHECKING:
    from workflow.matrix.experiments import Matrix

PLAIN = {"exchange": "ring", "codec": DENSE.name, "fusion": "layer_wise", "meetings": "every round"}
"""What people have who chose nothing."""


@dataclass(frozen=True)
class Choice:
    """A system's answer to one question, and the rounds (s) of others to the same."""

    question: str
    chosen: str
    seconds: float
    others: dict[str, float]

    @property
    def next(self) -> tuple[str, float] | None:
        """The best other answer, and how many times as long a round then takes."""
        if not self.others:
            return None
        best = min(self.others, key=self.others.__getitem__)
        return best, self.others[best] / self.seconds

    @property
    def plain(self) -> tuple[str, float] | None:
        """The same of the plain answer, if it can run and was not chosen."""
        plain = PLAIN[self.question]
        return (plain, self.others[plain] / self.seconds) if plain in self.others else None


def choices(
    matrix: Matrix, method: Method, made: Round, timed: Callable[[Method], Round]
) -> Iterator[Choice]:
    """A choice a question; answers that cannot run are left out.

    Parameters
    ----------
    made: the round of ``method``, and ``timed`` what times another where that was timed.
    """
    for question, (chosen, others) in _answers(matrix, method).items():
        seconds = {}
        for name, other in others.items():
            try:
                seconds[name] = timed(other).round_s
            except ValueError:
                continue
        yield Choice(question, chosen, made.round_s, seconds)


def _answers(matrix: Matrix, method: Method) -> dict[str, tuple[str, dict[str, Method]]]:
    """By question, the answer of ``method`` and the methods with another one."""
    codec, local = method.levels[-1].up, method.synchronization != BSP
    iterations = matrix.local_steps.iterations

    def part(name: str) -> Part:
        return Part(name=name, **matrix.options.get(name, {}))

    def coded(name: str) -> Method:
        other = of_changes(part(name)) if local else part(name)
        return replace(method, levels=(*method.levels[:-1], Level(up=other)))

    exchanges = {said(one): one for one in matrix.exchanges.values()}
    exchanges |= {name: part(name) for name in known("exchange") if name != SITES}
    found = {
        "exchange": (
            said(method.exchange),
            {
                name: replace(method, exchange=one)
                for name, one in exchanges.items()
                if one != method.exchange and len(method.levels) == 1
            },
        ),
        "codec": (
            codec.name,
            {name: coded(name) for name in known("compression") if name != codec.name},
        ),
    }
    if method.synchronization.name != BSP.name:
        return found
    if not local:
        names = [name for name in known("fusion") if name != method.fusion.name]
        others = {name: replace(method, fusion=part(name)) for name in names}
        found["fusion"] = method.fusion.name, others
    every, seldom = "every round", f"every {iterations} iterations"
    meeting = Part(name=BSP.name, local_iterations=iterations)
    if local:
        other = replace(method, synchronization=BSP, fusion=matrix.fusion)
        found["meetings"] = seldom, {every: replace(other, levels=coded_again(method, part))}
    else:
        levels = (*method.levels[:-1], Level(up=of_changes(codec)))
        other = replace(method, synchronization=meeting, fusion=WHOLE, levels=levels)
        found["meetings"] = every, {seldom: other}
    return found


def coded_again(method: Method, part: Callable[[str], Part]) -> tuple[Level, ...]:
    """The levels of a method of local steps as they code gradients."""
    return (*method.levels[:-1], Level(up=part(method.levels[-1].up.name)))
