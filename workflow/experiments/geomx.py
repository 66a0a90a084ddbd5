"""GeoMX's tables of one round, simulated and on emulated links, from its recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from methods import exchange
from testbed.network.counting import Sizes
from testbed.results import Row, Scale
from testbed.rounds import (
    Bodies,
    Timing,
    bound,
    byte_rows,
    costs,
    real_payloads,
    real_traffic,
    time_rows,
)
from testbed.training import models
from testbed.training.recipe import Link, Part, Recipe
from testbed.training.trainer import topology, train
from workflow.experiments._links import NOTHING_YET, TIME, compared, lived
from workflow.recipes.geomx import GeoMX, network_of

IMAGES = 4
"""Images a worker for gradients whose sizes alone matter."""


def rows(
    recipe: GeoMX, scale: Scale, experiment: str, say: Callable[[str], None] = print
) -> Iterator[Row]:
    """Rows of ``table1`` or ``table2`` (of the latter also ``sensitivity``), of their cells on
    ``emulated`` links, of ``agreement`` or of the ``system`` itself."""
    real = {"emulated": _emulated, "agreement": _agreement, "system": _system}
    run = real.get(experiment, partial(_rounds, experiment=experiment))
    return run(recipe, scale, say=say)


def _rounds(
    recipe: GeoMX, scale: Scale, experiment: str, say: Callable[[str], None]
) -> Iterator[Row]:
    table = getattr(recipe, experiment)
    for network in recipe.networks(experiment):
        systems = {case.system for case in table.cases.values()}
        recipes = {
            name: _full_size(recipe, table, name, network, scale) for name in sorted(systems)
        }
        say(f"{experiment}: gradients of {network.name} through {', '.join(recipes)}")
        traffic = real_traffic(recipes, distinct=experiment == "table2")
        for case_name, case in table.cases.items():
            say(f"{experiment}: {network.name}, {case_name}")
            run = recipes[case.system]
            row = _row(experiment, case_name, case.wan, run)
            sent = traffic[case.system]
            yield from byte_rows(row, network, len(run.levels), sent)
            timings = {
                name: Timing(recipe.link(case, table.workers, variant), variant.exchange)
                for name, variant in recipe.variants.items()
            }
            best = Link(
                **recipe.link(case, table.workers).model_dump()
                | {"colocated": recipe.cluster.gpus_per_server, "efficiency": 1.0}
            )
            compute_s, compression_s = costs(run.model_copy(update={"batch": recipe.batch}), sent)
            rows = list(
                time_rows(
                    row, run.exchange, table.workers, timings, best, sent, compute_s, compression_s
                )
            )
            yield from rows
            if experiment == "table2":
                communication_s = rows[0].value
                yield from _sensitivity(recipe, row, communication_s + compression_s)


def _emulated(recipe: GeoMX, scale: Scale, say: Callable[[str], None]) -> Iterator[Row]:
    """The cells that this scale emulates, with their times again as further evidence beside the
    table's simulated ones."""
    for row in _cells(recipe, scale, say):
        yield row
        if (row.metric, row.status, row.evidence) == (TIME, "ok", "emulated"):
            variant = next(iter(recipe.variants))
            yield row.model_copy(update=dict(experiment=row.variant, variant=variant, reason=""))


def _cells(recipe: GeoMX, scale: Scale, say: Callable[[str], None]) -> Iterator[Row]:
    for name in ("table1", "table2"):
        table = getattr(recipe, name)
        for network, cases in recipe.cells(name):
            systems = {case.system for case in cases.values()}
            runs = {
                system: _full_size(recipe, table, system, network, scale)
                for system in sorted(systems)
            }
            for system, sizes, bodies in _sent(runs, say):
                for case_name, case in cases.items():
                    if case.system != system:
                        continue
                    say(f"emulated: {name}, {network.name}, {case_name}")
                    link = recipe.link(case, table.workers)
                    bare = dict(lan_latency=0.0, wan_latency=0.0)  # none is emulated
                    sites = topology(table.workers, link.model_copy(update=bare))
                    options = recipe.default_variant.exchange
                    plan = exchange.load(runs[system].exchange.name, **options)(sites)
                    row = _row("emulated", case_name, case.wan, runs[system])
                    yield from compared(
                        row.model_copy(update=dict(variant=name)),
                        TIME,
                        plan,
                        sites,
                        sizes,
                        bodies=bodies and bound(plan, bodies),
                        efficiency=link.efficiency,
                        measured_s=recipe.emulated.measured_s,
                        timeout_s=recipe.emulated.timeout_s,
                        say=say,
                    )


def _sent(
    runs: Mapping[str, Recipe], say: Callable[[str], None]
) -> Iterator[tuple[str, Sizes, Bodies | None]]:
    """What each system sends in one round: a dense vector, or the payloads of real gradients."""
    coded = {}
    for system, run in runs.items():
        if any(level.up.name != "identity" for level in run.levels):
            coded[system] = run.model_copy(update=dict(accelerator="cpu"))  # a few images
            continue
        network = models.make(run.model.name, **run.model.parameters)
        yield system, 4.0 * models.count(models.gradient_shapes(network, norm=run.norm)), None
    if coded:
        say(f"emulated: real gradients of {run.model.name} through {', '.join(coded)}")
        for system, traffic, bodies in real_payloads(coded):
            yield system, traffic.rounds[0], bodies


def _agreement(recipe: GeoMX, scale: Scale, say: Callable[[str], None]) -> Iterator[Row]:
    """Exchanges on real processes against the simulator."""
    chosen = recipe.agreement
    for case, one in chosen.cases.items():
        if chosen.chosen is not None and case not in chosen.chosen:
            continue
        say(f"agreement: {case}")
        network = network_of(one.network)
        plan = exchange.load(one.exchange.name, **one.exchange.parameters)(network)
        row = Row(
            paper=recipe.paper,
            experiment="agreement",
            case=case,
            exchange=one.exchange.name,
            compression="identity",
            workers=len(network.workers),
            bandwidth=float(network.link_rate.min()),
            scale=scale,
            **NOTHING_YET,
        )
        yield row.model_copy(
            update=dict(metric="vector", value=one.nbytes / 1e6, unit="MB", evidence="computed")
        )
        yield from compared(
            row,
            "completion_time",
            plan,
            network,
            one.nbytes,
            efficiency=recipe.default_variant.efficiency,
            fair=one.fair,
            repeats=chosen.repeats,
            measured_s=recipe.emulated.measured_s,
            timeout_s=recipe.emulated.timeout_s,
            say=say,
        )


def _system(recipe: GeoMX, scale: Scale, say: Callable[[str], None]) -> Iterator[Row]:
    """Training by processes over emulated links and in virtual time: variants ``live`` and
    ``virtual``; ``live_difference`` is the largest one of test losses between them.

    Raises
    ------
    RuntimeError
        They differ, and the run does not say why it may (as ``reason`` of its rows).
    """
    for name in recipe.live.systems:
        run = recipe.live_run(name, scale)
        say(f"system: {name}, in virtual time")
        virtual = list(train(run, say))
        yield from (row.model_copy(update=dict(variant="virtual")) for row in virtual)
        say(f"system: {name}, live")
        real = lived(run, recipe.emulated.measured_s, recipe.live.timeout_s, say)
        yield from real
        losses = [{r.round: r.value for r in rows if r.metric == "test_loss"}
                  for rows in (virtual, real)]  # fmt: skip
        if shared := losses[0].keys() & losses[1].keys():
            apart = max(abs(losses[0][n] - losses[1][n]) for n in shared)
            if apart != 0 and not real[0].reason:
                raise RuntimeError(
                    f"{name}: test losses of real processes and of the trainer are {apart:g} "
                    "apart, not 0"
                )
            update = dict(metric="live_difference", value=apart, unit="1", round=max(shared))
            update |= dict(time_s=math.nan)
            yield real[0].model_copy(update=update)


def _row(experiment: str, case: str, bandwidth: float, run: Recipe) -> Row:
    """What all rows of a cell share."""
    place = dict(experiment=experiment, case=case, bandwidth=bandwidth, seed=-1)
    return Row(**run.told | place, **NOTHING_YET)


def _sensitivity(recipe: GeoMX, row: Row, rest_s: float) -> Iterator[Row]:
    for seconds in recipe.sensitivity.compute_s:
        yield row.model_copy(
            update=dict(
                experiment="sensitivity",
                variant=f"compute={seconds}",
                metric="round_time",
                value=rest_s + seconds,
                unit="s",
                evidence="simulated",
            )
        )


def _full_size(recipe: GeoMX, table, system_name: str, network: Part, scale: Scale) -> Recipe:
    """A recipe of one round on the document's own model, whatever the scale trains."""
    run = next(iter(recipe.runs(scale).values()))
    system = recipe.systems[system_name]
    case = next(c for c in table.cases.values() if c.system == system_name)
    return run.model_copy(
        update=dict(
            system=system_name,
            exchange=Part(name=system.exchange),
            levels=recipe.levels(system, table.workers, full_size=True),
            model=network,
            stands_for=None,
            norm=False,
            workers=tuple(table.workers),
            batch=IMAGES,
            networks={"any": recipe.link(case, table.workers)},
        )
    )
