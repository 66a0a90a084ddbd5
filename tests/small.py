"""Small trainings: recipes and images that tests of the trainer and of live runs have in common."""

import torch
from torch import nn

from slowlink.testbed.training import models
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.device import FREE, Device
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe

DEVICE = Device(title="test", source="", flops=1e9, round_overhead_s=0.0, work=FREE)
"""Of which coding takes no time."""


def recipe(**fields) -> Recipe:
    """A recipe with these fields, and the usual ones of tests; without ``workers`` and ``rounds``,
    it is none."""
    usual = dict(
        document="test",
        experiment="unit",
        system="unit",
        exchange=Part(name="parameter_server"),
        levels=(Level(up=Part(name="identity")),),
        synchronization=Part(name="bsp"),
        model=Part(name="lenet5", hidden=[20, 16]),
        dataset="tiny",
        batch=8,
        lr=0.05,
        seed=7,
        scale="smoke",
        device="test",
        networks={"one": Link(lan=1e9, wan=1e9)},
        accelerator="cpu",
    )
    return Recipe(**usual | fields)


def noise(count: int, tests: int) -> Dataset:
    """Images of which nothing can be learned; the first ones are also there to test."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return _dataset(images, labels, images[:tests], labels[:tests], 0.25)


def prototypes(count: int, tests: int, std: float = 0.5) -> Dataset:
    """Images that a small network can tell apart, and others to test."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count + tests) % 10
    drawn = torch.randint(0, 256, (10, 1, 28, 28), generator=generator)
    around = torch.randint(-40, 41, (count + tests, 1, 28, 28), generator=generator)
    images = (drawn[labels] + around).clamp(0, 255).to(torch.uint8)
    return _dataset(images[:count], labels[:count], images[count:], labels[count:], std)


def _dataset(x, y, test_x, test_y, std: float) -> Dataset:
    moments = torch.tensor([0.5]), torch.tensor([std])
    return Dataset("tiny", x, y, test_x, test_y, 10, (1, 28, 28), *moments)


def plainly_trained(spec: Recipe, data: Dataset, streams) -> nn.Module:
    """The model that torch's own optimizer comes to on the joint batches of these index streams."""
    model = models.make(spec.model.name, spec.seed, **spec.model.parameters)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=spec.lr, momentum=spec.momentum, weight_decay=spec.weight_decay
    )
    for _ in range(spec.rounds):
        index = torch.cat([next(stream) for stream in streams])
        optimizer.zero_grad()
        images = data.prepare(data.train_x[index])
        nn.functional.cross_entropy(model(images), data.train_y[index]).backward()
        optimizer.step()
    return model


@torch.no_grad()
def loss(model: nn.Module, data: Dataset) -> float:
    """Over all samples to test."""
    scores = model(data.prepare(data.test_x))
    return float(nn.functional.cross_entropy(scores, data.test_y))
