"""One round of a system on full-size models: real payload bytes, simulated communication time."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from slowlink.methods import exchange
from slowlink.methods.compression import Compressor, Encoding, Payload, add_payloads
from slowlink.methods.exchange import Plan
from slowlink.testbed.network import bounds
from slowlink.testbed.network.counting import complete
from slowlink.testbed.prices import coding_s, exchange_s, load_system
from slowlink.testbed.results import Row
from slowlink.testbed.training import models
from slowlink.testbed.training.datasets import load_dataset
from slowlink.testbed.training.device import profile
from slowlink.testbed.training.learner import Codecs, Learner, Traffic
from slowlink.testbed.training.pipeline import Layers, layers, single_gpu_s
from slowlink.testbed.training.recipe import Link, Part, Recipe
from slowlink.testbed.training.trainer import topology

Bodies = dict[str, dict[int, bytes]]
"""Payload bodies of a whole vector by message slot and sender, tensor after tensor."""
ANSWER = -1
"""The sender of what comes back, which is the same whoever sends it."""


@dataclass(frozen=True)
class Timing:
    """How one case's round is modelled: the links, and options of the exchange."""

    link: Link
    exchange: Mapping[str, object]


def real_traffic(recipes: Mapping[str, Recipe]) -> dict[str, Traffic]:
    """Bytes of one round of each system: those of payloads of real gradients, or where only shapes
    decide of how many bytes they are, of shapes.

    All ``recipes`` name the same model, data and workers; the gradients are computed once.
    """
    found = {name: _of_shapes(recipe) for name, recipe in recipes.items()}
    real = {name: recipe for name, recipe in recipes.items() if found[name] is None}
    found |= {name: traffic for name, _, traffic in _aggregated(real, Learner)}
    return found


def _of_shapes(recipe: Recipe) -> Traffic | None:
    """Bytes of one round as the shapes of tensors have them; None if values have a say in them."""
    sites = topology(recipe.workers, next(iter(recipe.networks.values())))
    system = load_system(recipe.exchange, recipe.levels, sites)
    codecs = [*system.up, *system.down]
    if not all(codec.exact_bytes and codec.combine == "sum" for codec in codecs):
        return None
    shapes = [tensor.shape for tensor in _layers(recipe).tensors]
    traffic = Traffic(values=[math.prod(shape) for shape in shapes], groups=system.groups)
    parties = [[node for group in level for node in group] for level in system.groups]
    for shape in shapes:
        for number, sizes in enumerate(system.sizes(shape)):
            for slot, nbytes in sizes.items():
                way, _, level = slot.partition("/")
                for node in parties[int(level)] if way == "push" else [None]:
                    traffic.add(number, slot, node, nbytes)
    return traffic


def _layers(recipe: Recipe) -> Layers:
    image = models.image_shape(recipe.model.parameters, _image_shape(recipe.dataset))
    return layers(recipe.model, image, recipe.norm)


@cache
def _image_shape(dataset: str) -> tuple[int, ...]:
    return load_dataset(dataset, limit=1).shape


def real_payloads(recipes: Mapping[str, Recipe]) -> Iterator[tuple[str, Traffic, Bodies]]:
    """One round of each system as :func:`real_traffic` counts it, with the bodies that it sends.

    System by system, so that a caller need not hold the bodies of all at once.

    Raises
    ------
    ValueError
        A codec with several rounds of communication.
    """
    for name, learner, traffic in _aggregated(recipes, _Keeping):
        bodies = {
            slot: {
                node: b"".join(one.body for parts in by_key.values() for one in parts)
                for node, by_key in by_node.items()
            }
            for slot, by_node in learner.kept.items()
        }
        learner.kept.clear()
        yield name, traffic, bodies


def bound(plan: Plan, bodies: Bodies) -> Bodies:
    """``bodies`` by the nodes that send them in ``plan``: whoever answers sends the same."""
    found: Bodies = {}
    for index, slot in enumerate(plan.slots):
        sends = (plan.slot == index) & (plan.src != plan.dst)
        kept = bodies.get(slot, {})
        senders = np.unique(plan.src[sends]).tolist()
        found[slot] = {node: kept.get(node, kept.get(ANSWER, b"")) for node in senders}
    return found


def _aggregated(
    recipes: Mapping[str, Recipe], kind: type[Learner]
) -> Iterator[tuple[str, Learner, Traffic]]:
    """Each recipe's learner after one aggregation of the same real gradients, and its traffic."""
    if not recipes:
        return
    first = next(iter(recipes.values()))
    dataset = load_dataset(first.dataset, limit=first.limit)
    gradients: dict[int, list] = {}
    for name, recipe in recipes.items():
        model = models.make(recipe.model.name, recipe.seed, **recipe.model.parameters)
        system = exchange.load(recipe.exchange.name, **recipe.exchange.parameters)
        sites = topology(recipe.workers, next(iter(recipe.networks.values())))
        learner = kind(recipe, model, dataset, system, sites)
        members = range(len(learner.nodes))
        if not gradients:
            gradients = {rank: learner.gradient(rank) for rank in members}
        _, traffic = learner.aggregate(members, gradients)
        yield name, learner, traffic


class _KeepingCodecs(Codecs):
    """Codecs that keep what they send."""

    def __init__(self, codecs: Codecs, kept: dict) -> None:
        self.__dict__ |= vars(codecs) | {"kept": kept}

    def __call__(self, direction: str, level: int, node: int, part: Part) -> Compressor:
        return _Kept(
            super().__call__(direction, level, node, part), direction, level, node, self.kept
        )


class _Keeping(Learner):
    """Keeps the payloads that its codecs send: by slot, sender and tensor."""

    def __init__(self, *arguments: object) -> None:
        self.kept: dict[str, dict[int, dict[Hashable, list[Payload]]]] = {}
        super().__init__(*arguments)
        self.codec = _KeepingCodecs(self.codec, self.kept)

    def _added(self, levels, tensors, key, traffic):
        """Servers send the sums of what comes to them, which no codec of theirs has made."""
        total = super()._added(levels, tensors, key, traffic)
        outermost = len(levels) - 1
        made = self.kept[f"push/{outermost}"]
        sent = {node: made[node].pop(key) for node in tensors}
        self.kept[f"push/{outermost}"] = {node: parts for node, parts in made.items() if parts}
        for level, groups in enumerate(levels):
            for node in (node for group in groups for node in group):
                kept = self.kept.setdefault(f"push/{level}", {})
                kept.setdefault(node, {})[key] = sent[node]
            if level < outermost:
                parents = [node for group in levels[level + 1] for node in group]
                sent = {
                    parent: [add_payloads([sent[node][0] for node in group])]
                    for group, parent in zip(groups, parents, strict=True)
                }
                answer = self.kept[f"pull/{outermost}"][ANSWER][key]
                self.kept.setdefault(f"pull/{level}", {}).setdefault(ANSWER, {})[key] = answer
        return total


class _Kept:
    """A codec that keeps what it sends and what is answered to it."""

    def __init__(self, codec: Compressor, direction: str, level: int, node: int, kept: dict):
        self._codec, self._level, self._kept = codec, level, kept
        self._slot = "push" if direction == "up" else "pull"
        self._node = node if direction == "up" else ANSWER

    def __getattr__(self, name: str) -> object:
        return getattr(self._codec, name)

    def _keep(self, way: str, node: int, key: Hashable, payloads: Sequence[Payload]) -> None:
        by_node = self._kept.setdefault(f"{way}/{self._level}", {})
        by_node.setdefault(node, {})[key] = list(payloads)

    def compress(self, tensor: torch.Tensor, key: Hashable) -> Payload:
        payload = self._codec.compress(tensor, key)
        self._keep(self._slot, self._node, key, [payload])
        return payload

    def encode(self, tensor: torch.Tensor, key: Hashable) -> Encoding:
        rounds = self._codec.encode(tensor, key)
        payload, how = next(rounds)
        self._keep("push", self._node, key, [payload])
        combined = yield payload, how
        # The same for every party: the last one's stays.
        self._keep("pull", ANSWER, key, combined if isinstance(combined, list) else [combined])
        try:
            rounds.send(combined)
        except StopIteration as stop:
            return stop.value
        raise ValueError(f"{self.name}: sends in several rounds; only those of one are kept")


def byte_rows(row: Row, levels: int, traffic: Traffic) -> Iterator[Row]:
    """``parameters``, and the MB (1e6 B) that one outermost party sends and receives."""
    values = sum(traffic.values)
    outer = levels - 1
    pushed = [sum(sizes[f"push/{outer}"].values()) for sizes in traffic.rounds]
    parties = max(len(sizes[f"push/{outer}"]) for sizes in traffic.rounds)
    pulled = [sizes[f"pull/{outer}"] for sizes in traffic.rounds]
    figures = [
        ("parameters", values, "1"),
        ("upload_raw", 4 * values / 1e6, "MB"),
        ("download_raw", 4 * values / 1e6, "MB"),
        ("upload", sum(pushed) / parties / 1e6, "MB"),
        ("download", sum(pulled) / 1e6, "MB"),
    ]
    for metric, value, unit in figures:
        yield row.model_copy(
            update=dict(metric=metric, value=float(value), unit=unit, evidence="computed")
        )


def time_rows(
    row: Row,
    system: Part,
    workers: Sequence[int],
    timings: Mapping[str, Timing],
    best: Link,
    traffic: Traffic,
    compute_s: float,
    compression_s: float,
) -> Iterator[Row]:
    """``communication_time`` and ``round_time`` a variant, and the two lower bounds, in seconds.

    The bounds hold for ``best``, the most favourable placement and ideal links: ``duplex`` for any
    schedule, ``serial`` for any without overlap of phases.
    """

    def made(variant: str, metric: str, value: float, evidence: str) -> Row:
        update = dict(variant=variant, metric=metric, value=float(value), unit="s")
        return row.model_copy(update=update | dict(evidence=evidence))

    for variant, timing in timings.items():
        sites = topology(workers, timing.link)
        plan = exchange.load(system.name, **(system.parameters | dict(timing.exchange)))(sites)
        seconds = exchange_s(plan, sites, traffic.rounds, timing.link.efficiency)
        yield made(variant, "communication_time", seconds, "simulated")
        yield made(variant, "round_time", seconds + compute_s + compression_s, "simulated")
    sites = topology(workers, best)
    plan = exchange.load(system.name)(sites)
    for name, duplex in (("duplex", True), ("serial", False)):
        seconds = sum(
            bounds.bound(plan, sites, complete(plan, sizes), duplex=duplex)
            for sizes in traffic.rounds
        )
        yield made(name, "bound_time", seconds, "computed")


def costs(recipe: Recipe, traffic: Traffic) -> tuple[float, float]:
    """Seconds a round that computing and coding take on the recipe's device, one after the other.

    What is coded at one place follows what is coded at the place before; see
    :mod:`testbed.prices`.
    """
    device = profile(recipe.device)
    compute_s = single_gpu_s(device, _layers(recipe), recipe.batch)
    sites = topology(recipe.workers, next(iter(recipe.networks.values())))
    system = load_system(recipe.exchange, recipe.levels, sites)
    return compute_s, coding_s(device, system.gradient(), traffic.values)
