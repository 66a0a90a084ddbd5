"""Data-parallel training over DDS as a command, set up by a file, JSON or YAML.

``python -m slowlink.testbed.live.dds.launch --config file.json --workers 2`` runs all ranks on this
machine. Without ``--workers`` it is one rank: ``RANK`` of ``WORLD``, both from the environment, as
the DDS document starts its processes; see :class:`testbed.live.dds.DomainConfig` for other hosts.
``WORLD`` of 1 is the centralised run.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError

from slowlink.methods import compression
from slowlink.testbed import files
from slowlink.testbed.live import data_parallel, documents
from slowlink.testbed.live.data_parallel import LiveRun
from slowlink.testbed.live.dds.data_parallel import join
from slowlink.testbed.live.dds.domain import LAST_DOMAIN
from slowlink.testbed.live.processes import RankFailed, run_ranks
from slowlink.testbed.training import models
from slowlink.testbed.training.recipe import Recipe

USUAL: dict[str, Any] = documents.USUAL | dict(
    experiment="launch",
    system="dds",
    exchange=dict(name="allgather"),
    synchronization=dict(name="bsp"),
    evaluate_every=100,
    networks={"this": dict(lan=1.0, wan=1.0)},
)
"""Fields of a recipe that may be left out."""


class Settings(BaseModel):
    """What the file says.

    Attributes
    ----------
    run: a name that no other run in the domain has meanwhile; alike for all ranks.
    domain: DDS domain, which no other run on the network uses.
    training: a :class:`testbed.training.recipe.Recipe`, which needs no more than ``model``,
        ``dataset``, ``levels`` (the codec), ``batch``, ``lr`` and ``rounds`` (the steps). The
        number of workers comes from outside.
    keys: folder of identities, or "none"; see :func:`testbed.live.dds.domain.keys_folder`.
    output: a folder for :func:`save`.
    timeout_s: how long a rank waits for another.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: Annotated[str, Field(min_length=1)]
    domain: Annotated[int, Field(ge=0, le=LAST_DOMAIN)]
    training: dict[str, Any]
    keys: str | None = None
    output: str | None = None
    timeout_s: PositiveFloat = 60.0

    def case(self, workers: int) -> LiveRun:
        """The run that the file describes, on so many workers.

        Raises
        ------
        ValueError
            Training that cannot be, with the field and the reason.
        """
        if "workers" in self.training:
            raise ValueError("training.workers: comes from WORLD or --workers, leave it out")
        try:
            recipe = Recipe(**(USUAL | self.training), workers=[workers])
        except ValidationError as error:
            raise ValueError("\n".join(documents.lines(error, Recipe, "training"))) from None
        if recipe.rounds is None:
            raise ValueError("training.rounds: needs the number of steps")
        case = LiveRun(recipe, recipe.rounds, ordered=True, evaluate=True)
        try:
            data_parallel.check(case)
            compression.load(recipe.levels[0].up.name, **recipe.levels[0].up.parameters)
            with torch.device("meta"):
                models.make(recipe.model.name, **recipe.model.parameters)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"training: {error}") from error
        return case


def load_settings(path: str | Path) -> Settings:
    """Read a file; raises as :func:`testbed.live.documents.read`."""
    return documents.read(path, lambda document: documents.validated(Settings, document))


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """This rank and how many there are. Raises ValueError if the environment does not say."""
    found = []
    for name in ("RANK", "WORLD"):
        text = environment.get(name, "")
        if not (text.isascii() and text.isdigit()):
            raise ValueError(
                f"{name}: {text!r} in the environment, needs a whole number; or give --workers"
            )
        found.append(int(text))
    rank, world = found
    if rank >= world:
        raise ValueError(f"RANK: {rank} with a WORLD of {world}, must be from 0 to {world - 1}")
    return rank, world


def run_rank(
    settings: Settings, world: int, rank: int, tell: data_parallel.Tell = data_parallel.ignore
) -> None:
    """Train as ``rank`` of ``world`` and save what came of it.

    Raises
    ------
    ValueError
        Settings or data that cannot be.
    ConnectionError
        A rank is out of reach; :class:`testbed.live.dds.RankLost` names it.
    RuntimeError
        The ranks' parameters differ at the end.
    """
    case = settings.case(world)
    job = data_parallel.prepare(case, data_parallel.load_for(case.recipe))
    say = data_parallel.ignore if rank else data_parallel.show
    tell("joining")
    with join(
        settings.run, settings.domain, settings.keys, None, settings.timeout_s, rank, world
    ) as wire:
        report = data_parallel.train(job, wire, tell, say)
        digests = wire.group.all_gather(report["digest"], "digest of the parameters")
        digests.wait(settings.timeout_s)
        if len(set(map(bytes, digests.collect()))) > 1:
            raise RuntimeError("the ranks' parameters differ after the run")
    if settings.output is not None:
        save(report, rank, Path(settings.output))


def save(report: dict, rank: int, folder: Path) -> None:
    """Write ``rank-R.json``, what was measured by step, and of rank 0 ``model.pt``, parameters by
    name."""
    profile = {name: report[name] for name in ("tests", "sent", "framed", "received", "times")}
    with files.whole(folder / f"rank-{rank}.json") as part:
        part.write_text(json.dumps(profile) + "\n")
    if rank == 0:
        files.save(folder / "model.pt", report["parameters"])


def launch(settings: Settings, workers: int) -> None:
    """All ranks on this machine; none is left running, however this ends.

    Raises
    ------
    ValueError
        Settings that cannot be.
    RankFailed
        A rank failed, died or hung; names it.
    """
    settings.case(workers)
    # The same file may be launched twice at once.
    once = settings.model_copy(update=dict(run=f"{settings.run} {secrets.token_hex()}"))
    patience = settings.timeout_s + data_parallel.GRACE_S
    run_ranks(partial(run_rank, once, workers), workers, timeout_s=patience)


def main(arguments: Sequence[str]) -> int:
    """Train one model on several processes over DDS."""
    parser = argparse.ArgumentParser(
        prog="python -m slowlink.testbed.live.dds.launch", description=main.__doc__
    )
    parser.add_argument("--config", required=True, help="JSON or YAML; see Settings")
    parser.add_argument("--workers", type=int, help="start so many ranks here; else one rank")
    given = parser.parse_args(arguments)
    try:
        settings = load_settings(given.config)
        if given.workers is None:
            rank, world = place()
            run_rank(settings, world, rank)
        elif given.workers < 1:
            raise ValueError(f"--workers: {given.workers}, must be at least 1")
        else:
            launch(settings, given.workers)
    except (ValueError, OSError, RankFailed, RuntimeError, ArithmeticError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # Ranks import this function by its module's name.
    from slowlink.testbed.live.dds import launch as by_name

    code = by_name.main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # an ordinary exit would wait for threads that wait for other ranks
