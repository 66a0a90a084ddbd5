"""GeoMX's tables of one round, from its recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from testbed.results import Row, Scale
from testbed.rounds import Timing, byte_rows, costs, real_traffic, time_rows
from testbed.training.recipe import Link, Part, Recipe
from workflow.recipes.geomx import GeoMX

IMAGES = 4
"""Images a worker for gradients whose sizes alone matter."""


def rows(
    recipe: GeoMX, scale: Scale, experiment: str, say: Callable[[str], None] = print
) -> Iterator[Row]:
    """Rows of ``table1`` or ``table2``; of the latter also ``sensitivity``."""
    table = getattr(recipe, experiment)
    networks = (
        [table.model]
        if table.model
        else [Part(name=name, **options) for name, options in table.models.items()]
    )
    for network in networks:
        systems = {case.system for case in table.cases.values()}
        recipes = {
            name: _full_size(recipe, table, name, network, scale) for name in sorted(systems)
        }
        say(f"{experiment}: gradients of {network.name} through {', '.join(recipes)}")
        traffic = real_traffic(recipes, distinct=experiment == "table2")
        for case_name, case in table.cases.items():
            say(f"{experiment}: {network.name}, {case_name}")
            run = recipes[case.system]
            row = Row(
                paper=recipe.paper,
                experiment=experiment,
                case=case_name,
                exchange=run.exchange.name,
                compression=run.levels[-1].up.name,
                synchronization=run.synchronization.name,
                fusion=run.fusion.name,
                model=network.name,
                dataset=recipe.dataset,
                workers=sum(table.workers),
                bandwidth=case.wan,
                scale=scale,
                device=recipe.cluster.device,
                evidence="computed",
                metric="",
                value=0.0,
                unit="",
            )
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
