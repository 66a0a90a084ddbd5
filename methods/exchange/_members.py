"""Checks of the members of an exchange, which all exchanges share."""

from __future__ import annotations

from collections.abc import Sequence

from slowlink.methods.exchange import PlanPart, Topology


def participants(name: str, topology: Topology, members: Sequence[int] | None) -> list[int]:
    """``members`` in rank order; all workers if None. Raises ValueError for anything else."""
    workers = [int(node) for node in topology.workers]
    if members is None:
        chosen = workers
    else:
        wanted = [int(node) for node in members]
        strangers = sorted(set(wanted) - set(workers))
        if strangers:
            raise ValueError(f"{name}: node {strangers[0]} is not a worker of {topology.name}")
        if len(set(wanted)) < len(wanted):
            raise ValueError(f"{name}: a worker is named twice in members {wanted}")
        chosen = [node for node in workers if node in set(wanted)]
    if not chosen:
        raise ValueError(f"{name}: nobody takes part; name at least one worker of {topology.name}")
    return chosen


def central_server(name: str, topology: Topology) -> int:
    """The node id of ``servers[0]``. Raises ValueError where there is none."""
    if not len(topology.servers):
        raise ValueError(f"{name}: {topology.name} has no server; use a topology with one")
    return int(topology.servers[0])


def check_part(name: str, part: PlanPart) -> None:
    if part not in ("all", "push", "pull"):
        raise ValueError(f"{name}: part must be all, push or pull, not {part!r}")


def whole_only(name: str, part: PlanPart, instead: str = "") -> None:
    """Refuse fragments, for exchanges in which every node ends up with some part of the sum."""
    check_part(name, part)
    if part != "all":
        raise ValueError(
            f"{name}: there is no {part} fragment, because no node holds the whole sum in "
            f"between; ask for part 'all'{instead}"
        )
