"""Small trainings: recipes and images that tests of the trainer and of live runs have in common."""

import torch

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
