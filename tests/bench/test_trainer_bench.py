"""Steps of the trainer beside a plain torch loop that computes the same gradients.

Both have the same workers, batches and parameters, average what the workers find and take a step of
SGD with momentum. The trainer besides draws the batches, counts bytes and keeps replicas. The two
take turns in one run; ``times_plain`` is the median of their ratios, each of two neighbouring
steps, which a machine that becomes slower in between changes least. Where that leaves it open on
which side of the limit the median lies, they take more turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest
import torch
from torch import nn

from slowlink.methods import exchange
from slowlink.testbed.network import star
from slowlink.testbed.training import batching, models
from slowlink.testbed.training.allocator import keep_freed_memory
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.learner import Learner
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe

MOST = 1.15
"""Times the plain loop that a step may take."""

TURNS = 5
"""Times that each has its turn, at least: with few workers a step is short, and has more."""

MANY_TURNS = 48
"""Times that each has its turn, at most: one pair of steps in a noisy minute is off by a third."""

LR, MOMENTUM = 0.01, 0.9
MODELS = {
    "lenet5": (Part(name="lenet5"), 16),
    "resnet8": (Part(name="resnet8", width=8), 8),
    "resnet20": (Part(name="resnet20", width=8), 8),
    "lstm": (Part(name="lstm", words=500, embedding=64, hidden=64), 4),
}
CASES = [(name, workers) for name in MODELS for workers in (4, 16, 64)]


def made_up(name: str, samples: int) -> Dataset:
    shape = models.sample_shape(name)
    generator = torch.Generator().manual_seed(0)
    if name == "lstm":
        tokens = torch.randint(500, (samples, *shape), generator=generator)
        return Dataset("made up", tokens, tokens, tokens[:1], tokens[:1], 500, shape)
    images = torch.randint(256, (samples, *shape), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (samples,), generator=generator)
    scale = torch.full((shape[0],), 0.5), torch.full((shape[0],), 0.25)
    return Dataset("made up", images, labels, images[:1], labels[:1], 10, shape, *scale)


def learner(name: str, workers: int) -> Learner:
    part, batch = MODELS[name]
    recipe = Recipe(
        document="bench",
        experiment="trainer",
        system="identity",
        exchange=Part(name="parameter_server"),
        levels=(Level(up=Part(name="identity")),),
        synchronization=Part(name="bsp"),
        model=part,
        dataset="made up",
        workers=(workers,),
        cluster="star",
        batch=batch,
        lr=LR,
        momentum=MOMENTUM,
        rounds=1,
        evaluate_every=1,
        seed=1,
        scale="smoke",
        device="bench",
        compute_s=1.0,
        networks={"one": Link(lan=1e9, wan=1e9)},
        gradients="one_by_one" if name == "lstm" else "channels_last",
        accelerator="cpu",
    )
    model = models.make(part.name, recipe.seed, **part.parameters)
    system = exchange.load("parameter_server")
    return Learner(recipe, model, made_up(name, 2 * workers * batch), system, star(workers, 1e9))


def trainers_step(made: Learner):
    def step() -> None:
        members = range(len(made.nodes))
        total, _ = made.aggregate(members, made.gradients(members))
        made.server = made.update(made.server, total)
        made.replicas = [made.server] * len(members)

    return step


def plain_step(made: Learner, name: str):
    """Its own model and optimizer, on batches that are there already."""
    model = models.make(name, 1, **made.recipe.model.parameters).train()
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    batches = list(zip(*made._batches(range(len(made.nodes))), strict=True))
    if not made.text:  # laid as the trainer lays them
        batches = [(batching.channels_last(images), labels) for images, labels in batches]

    def step() -> None:
        parameters = list(model.parameters())
        totals = [torch.zeros_like(p) for p in parameters]
        for samples, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples), labels).backward()
            for total, parameter in zip(totals, parameters, strict=True):
                total += parameter.grad / len(batches)
        for total, parameter in zip(totals, parameters, strict=True):
            parameter.grad = total
        optimizer.step()

    return step


def seconds_of(step) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def open_still(ratios: list[float]) -> bool:
    """Whether the limit lies inside the median's interval of 95 %, between two order statistics."""
    ranked = sorted(ratios)
    outside = max(0, int((len(ranked) - 1.96 * len(ranked) ** 0.5) / 2))
    return ranked[outside] <= MOST <= ranked[-1 - outside]


def times_plain(steps: dict[str, Callable[[], None]], workers: int) -> float:
    for step in steps.values():
        step()
    ratios = []
    while len(ratios) < TURNS + 64 // workers or (open_still(ratios) and len(ratios) < MANY_TURNS):
        order = reversed(steps) if len(ratios) % 2 else steps
        took = {which: seconds_of(steps[which]) for which in order}
        ratios.append(took["trainer"] / took["plain"])
    return median(ratios)


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_a_step_beside_a_plain_loop(benchmark, name, workers):
    benchmark.group = f"a step of {workers} workers, {name}"
    torch.set_num_threads(1)
    keep_freed_memory()
    made = learner(name, workers)
    steps = {"plain": plain_step(made, name), "trainer": trainers_step(made)}
    ratio = times_plain(steps, workers)
    benchmark.pedantic(steps["trainer"], rounds=2)
    benchmark.extra_info["times_plain"] = ratio
    assert ratio <= MOST
