"""The launch command on made-up data; a module of its own, for ranks import it by name."""

import os
import sys

import torch

from slowlink.testbed.live import data_parallel
from slowlink.testbed.live.dds import launch
from slowlink.testbed.training.datasets import Dataset


def noise() -> Dataset:
    """What is learned from it does not matter here."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (240, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.arange(240) % 10
    moments = (torch.tensor([0.5]), torch.tensor([0.25]))
    test = (images[:23], labels[:23])
    return Dataset("noise", images, labels, *test, 10, (1, 28, 28), *moments)


data_parallel.load_for = lambda recipe: noise()
as_it_is = launch.run_rank


def run_rank(*arguments):
    as_it_is(*arguments)


launch.run_rank = run_rank


def main():
    code = launch.main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
