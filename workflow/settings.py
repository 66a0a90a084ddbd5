"""Settings of a run: the recipes of the papers with the overrides of a scale, validated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from testbed.results import Scale
from testbed.training.recipe import Level, Link, Part, Recipe

CONFIG = Path(__file__).parent / "config"
PAPERS = ("geomx",)
SCALES = get_args(Scale)


class SettingsError(ValueError):
    """A setting that does not fit: names the file, the key and what is allowed."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _distinct(values: list[int]) -> list[int]:
    if len(set(values)) < len(values):
        raise ValueError(f"must differ from each other, not {values}")
    return values


class Cluster(_Strict):
    device: str
    servers_per_site: list[PositiveInt]
    gpus_per_server: PositiveInt
    lan: PositiveFloat
    lan_latency: Annotated[float, Field(ge=0)]
    wan_latency: Annotated[float, Field(ge=0)]


class Optimizer(_Strict):
    name: Literal["sgd"]
    lr: PositiveFloat
    momentum: Annotated[float, Field(ge=0, lt=1)]


class Target(_Strict):
    below_dense: PositiveFloat


class BiSparse(_Strict):
    ratio: Annotated[float, Field(gt=0, le=1)]
    sample_rate: Annotated[float, Field(gt=0, le=1)]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    lower_bound: PositiveInt
    format: Literal["padded", "tight"]
    stand_in_lower_bound: PositiveInt | None = None


class System(_Strict):
    exchange: str
    levels: list[Level]


class Variant(_Strict):
    exchange: dict[str, Any] = {}
    colocated: bool = False
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0


class Case(_Strict):
    system: str
    wan: PositiveFloat
    synchronization: str = "bsp"


class Experiment(_Strict):
    workers: list[PositiveInt]
    cases: dict[str, Case]
    models: dict[str, dict[str, Any]] = {}
    model: Part | None = None


class Sensitivity(_Strict):
    compute_s: list[Annotated[float, Field(ge=0)]]


class GeoMX(_Strict):
    """The recipe ``papers/geomx.yaml``."""

    paper: Literal["geomx"]
    dataset: Literal["mnist", "fashion_mnist", "cifar10"]
    sampler: Literal["random", "sequential"]
    augment: bool
    cluster: Cluster
    model: Part
    stands_for: Part | None
    optimizer: Optimizer
    batch: PositiveInt
    rounds: PositiveInt
    evaluate_every: PositiveInt
    seeds: Annotated[list[int], Field(min_length=1), AfterValidator(_distinct)]
    limit: PositiveInt | None
    accelerator: Literal["auto", "cpu", "cuda"]
    target: Target
    bisparse: BiSparse
    systems: dict[str, System]
    variants: dict[str, Variant]
    table1: Experiment
    figure4: Experiment
    table2: Experiment
    mixed: Experiment
    sensitivity: Sensitivity

    def colocated(self, workers: list[int]) -> int:
        """Workers that share a host with their site's server: what each machine has at least."""
        machines = self.cluster.servers_per_site[1:]
        return min(n // m for n, m in zip(workers, machines, strict=True))

    def link(self, case: Case, workers: list[int], variant: Variant | None = None) -> Link:
        """The network of ``case`` for sites of ``workers``, modelled as ``variant`` says."""
        variant = variant or self.default_variant
        return Link(
            lan=self.cluster.lan,
            wan=case.wan,
            lan_latency=self.cluster.lan_latency,
            wan_latency=self.cluster.wan_latency,
            colocated=self.colocated(workers) if variant.colocated else 0,
            efficiency=variant.efficiency,
        )

    @property
    def default_variant(self) -> Variant:
        return next(iter(self.variants.values()))

    def levels(
        self, system: System, workers: list[int], full_size: bool = False
    ) -> tuple[Level, ...]:
        """The codecs of ``system`` with the recipe's BiSparse settings filled in.

        ``full_size`` asks for the document's own model whatever this scale trains.
        """
        filled = self.bisparse.model_dump() | {"parties": len(workers)}
        smaller = filled.pop("stand_in_lower_bound")
        if self.stands_for and smaller and not full_size:
            filled["lower_bound"] = smaller

        def fill(part: Part | None) -> Part | None:
            if part is None or part.name != "bisparse":
                return part
            return Part(name="bisparse", **(filled | part.parameters))

        return tuple(Level(up=fill(lv.up), down=fill(lv.down)) for lv in system.levels)

    def runs(self, scale: Scale) -> dict[str, Recipe]:
        """Every training run by its id. Cases that train alike share a run and differ in links."""
        found: dict[str, Recipe] = {}
        experiments = {"figure4": self.figure4, "figure6": self.table2, "mixed": self.mixed}
        for name, experiment in experiments.items():
            shared: dict[tuple[str, str], dict[str, Link]] = {}
            for case_name, case in experiment.cases.items():
                networks = shared.setdefault((case.system, case.synchronization), {})
                networks[case_name] = self.link(case, experiment.workers)
            for (system_name, policy), networks in shared.items():
                for seed in self.seeds:
                    run = f"{name}-{system_name}-{policy}-seed{seed}"
                    found[_slug(run)] = self._recipe(
                        name, experiment, system_name, policy, networks, seed, scale
                    )
        return found

    def _recipe(self, name, experiment, system_name, policy, networks, seed, scale) -> Recipe:
        system = self.systems[system_name]
        levels = self.levels(system, experiment.workers)
        return Recipe(
            paper=self.paper,
            experiment=name,
            system=system_name,
            exchange=Part(name=system.exchange, **self.default_variant.exchange),
            levels=levels,
            synchronization=Part(name=policy),
            model=self.model,
            stands_for=self.stands_for,
            dataset=self.dataset,
            limit=self.limit,
            workers=tuple(experiment.workers),
            sampler=self.sampler,
            augment=self.augment,
            batch=self.batch,
            lr=self.optimizer.lr,
            momentum=self.optimizer.momentum,
            optimizer_at="server" if name == "mixed" else "worker",
            rounds=self.rounds,
            evaluate_every=self.evaluate_every,
            seed=seed,
            scale=scale,
            device=self.cluster.device,
            networks=networks,
            accelerator=self.accelerator,
        )


SCHEMAS: dict[str, type[BaseModel]] = {"geomx": GeoMX}


class Settings(_Strict):
    scale: Scale
    geomx: GeoMX


def load(
    command_line: dict[str, Any] | None = None, config: Path = CONFIG, names: bool = True
) -> Settings:
    """Settings for a scale, from ``--config`` and the files in ``workflow/config``.

    ``names=False`` skips the check that named methods, models and devices exist, which imports
    them: the jobs of a run need not repeat it.

    Raises
    ------
    SettingsError
        An unknown key, a wrong type or a value that is not allowed, with file and key.
    """
    given = dict(command_line or {})
    scale = given.pop("scale", "desk")
    if given:
        raise SettingsError(
            f"--config: unknown key {', '.join(map(repr, sorted(given)))}; allowed: scale"
        )
    if scale not in SCALES:
        raise SettingsError(f"--config: scale={scale!r}; allowed: {', '.join(SCALES)}")
    overrides_file = config / f"{scale}.yaml"
    overrides = _read(overrides_file)
    unknown = sorted(set(overrides) - set(PAPERS))
    if unknown:
        raise SettingsError(
            f"{_shown(overrides_file)}: unknown key {', '.join(map(repr, unknown))}; "
            f"allowed: {', '.join(PAPERS)}"
        )
    recipes = {}
    for paper in PAPERS:
        recipe_file = config / "papers" / f"{paper}.yaml"
        recipe = _read(recipe_file)
        changed = overrides.get(paper) or {}
        try:
            recipes[paper] = SCHEMAS[paper](**merge(recipe, changed))
        except ValidationError as error:
            raise SettingsError(_explain(error, recipe_file, overrides_file, changed)) from None
        if names:

            def shown(key: str, recipe_file=recipe_file, changed=changed) -> str:
                path = key.split(".")
                return _shown(overrides_file if _reaches(changed, path) else recipe_file)

            _check_names(recipes[paper], shown)
    return Settings(scale=scale, **recipes)


def merge(base: dict, override: dict) -> dict:
    """``override`` laid over ``base``, key by key; a mapping with a ``name`` replaces the whole."""
    merged = dict(base)
    for key, value in override.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if nested and "name" not in value else value
    return merged


def _check_names(recipe: GeoMX, shown: Callable[[str], str]) -> None:
    """Make every method, model and device that the recipe names, once, with its parameters."""
    from methods import compression, exchange, synchronization
    from testbed.network import geo_sites
    from testbed.training import device, models

    def need(key: str, name: str, known: Iterable[str]) -> None:
        if name not in known:
            allowed = ", ".join(sorted(known))
            raise SettingsError(f"{shown(key)}: {key}: {name!r}; allowed: {allowed}")

    def make(key: str, build: Callable, *args, **parameters):
        try:
            return build(*args, **parameters)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{shown(key)}: {key}: {error}") from None

    need("cluster.device", recipe.cluster.device, device.profiles())
    networks = {"model": recipe.model, "stands_for": recipe.stands_for}
    networks["table2.model"] = recipe.table2.model
    networks |= {f"table1.models.{n}": Part(name=n, **p) for n, p in recipe.table1.models.items()}
    for key, part in networks.items():
        if part is not None:
            need(f"{key}.name", part.name, models.MODELS)
            make(key, models.make, part.name, **part.parameters)
    sites = geo_sites([1, 1])
    for name, system in recipe.systems.items():
        need(f"systems.{name}.exchange", system.exchange, exchange.names())
        for variant, options in recipe.variants.items():
            key = f"variants.{variant}.exchange"
            make(key, exchange.load, system.exchange, **options.exchange)
        key = f"systems.{name}.levels"
        depth = len(exchange.load(system.exchange).groups(sites))
        if len(system.levels) != depth:
            raise SettingsError(
                f"{shown(key)}: {key}: {system.exchange} has {depth} levels, "
                f"{len(system.levels)} given"
            )
        for number, level in enumerate(recipe.levels(system, recipe.table2.workers)):
            for direction, part in (("up", level.up), ("down", level.down)):
                if part is not None:
                    where = f"{key}.{number}.{direction}"
                    need(where, part.name, compression.names())
                    make(where, compression.load, part.name, **part.parameters)
    for experiment in ("table1", "figure4", "table2", "mixed"):
        for name, case in getattr(recipe, experiment).cases.items():
            key = f"{experiment}.cases.{name}"
            need(f"{key}.system", case.system, recipe.systems)
            need(f"{key}.synchronization", case.synchronization, synchronization.names())


def _explain(error: ValidationError, recipe_file: Path, overrides_file: Path, changed: dict) -> str:
    lines = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        file = overrides_file if _reaches(changed, path) else recipe_file
        given = f" (given: {problem['input']!r})" if problem["type"] != "missing" else ""
        lines.append(f"{_shown(file)}: {'.'.join(path)}: {problem['msg']}{given}")
        if problem["type"] == "extra_forbidden":
            lines[-1] += f"; allowed here: {', '.join(_allowed(path[:-1])) or 'nothing'}"
    return "\n".join(lines)


def _reaches(changed: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(changed, dict) or part not in changed:
            return False
        changed = changed[part]
    return True


def _allowed(path: list[str]) -> list[str]:
    schema: Any = GeoMX
    for part in path:
        field = getattr(schema, "model_fields", {}).get(part)
        if field is None:
            return []
        choices = (field.annotation, *get_args(field.annotation))
        schema = next((choice for choice in choices if hasattr(choice, "model_fields")), None)
    return sorted(getattr(schema, "model_fields", {}))


def _read(file: Path) -> dict:
    try:
        return yaml.safe_load(file.read_text()) or {}
    except FileNotFoundError:
        raise SettingsError(f"{_shown(file)}: file is missing") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{_shown(file)}: not valid YAML: {error}") from None


def _shown(file: Path) -> str:
    """The path as a user would type it from the repository's root."""
    root = CONFIG.parents[1]
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)
