"""What DDS's experiments share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from slowlink.workflow import experiment as declarations

if TYPE_CHECKING:
    from slowlink.workflow.settings import Check

MIB = 2**20

Momentum = Annotated[float, Field(ge=0, lt=1)]


class Settings(declarations.Settings):
    """``machines``: what each part of the document's framework runs on. ``threads``: torch's, of
    each process."""

    machines: dict[str, str] = {}
    threads: PositiveInt

    def check(self, check: Check) -> None:
        for name in ("federated_seeds", "federated_recorded", "non_iid"):
            for label in getattr(self, name).modes:
                check.need(f"{name}.modes", label, self.federated.modes)
        for label in self.ddp_recorded.methods:
            check.need("ddp_recorded.methods", label, self.ddp.methods)


Bench = declarations.Bench[Settings]


def need(key: str, labels: Iterable[str], known: Collection[str]) -> None:
    """Raises ValueError for a label that is not known."""
    for label in labels:
        if label not in known:
            raise ValueError(f"{key}: {label!r}; allowed: {', '.join(sorted(known))}")
