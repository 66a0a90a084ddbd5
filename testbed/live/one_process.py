"""What live runs are held against: the same in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from slowlink.testbed.live import data_parallel
from slowlink.testbed.training import trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.learner import Diverged, Replica
from slowlink.testbed.training.recipe import Recipe


def simulated(
    recipe: Recipe, groups: data_parallel.Groups, steps: int, dataset: Dataset
) -> list[Tensor]:
    """The parameters after so many steps in one process, by the trainer's own learner.

    Sets torch's number of threads, as each rank does.
    """
    torch.set_num_threads(recipe.torch_threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    learner = data_parallel.make_learner(recipe, dataset)
    last = len(learner.parameters) - 1
    learner.groups = [[last - number for number in group] for group in groups]
    members = range(len(learner.nodes))
    for _ in range(steps):
        total, _ = learner.aggregate(members, {rank: learner.gradient(rank) for rank in members})
        learner.replicas = [learner.update(learner.replicas[0], total)] * len(members)
    return learner.replicas[0].parameters


def trained(recipe: Recipe) -> list[Tensor]:
    """The parameters with which the trainer ends. Raises Diverged if it comes to none."""
    found: list[Tensor] = []
    for row in trainer.train(recipe, ended=found.extend):
        if row.status == "failed":
            raise Diverged(row.reason)
    return found


def evaluated(recipe: Recipe, parameters: Sequence[Tensor]) -> float:
    """The test accuracy (%) of a model without running statistics, with these parameters."""
    learner = data_parallel.make_learner(recipe, trainer.data_of(recipe))
    return learner.evaluate(Replica(list(parameters), []))[0]


def difference(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> float:
    """The largest absolute difference between parameters."""
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def same(ours: Iterable[Tensor], theirs: Iterable[Tensor], what: str) -> float:
    """Their difference, 0, where they must be equal. Raises RuntimeError if they are not."""
    apart = difference(ours, theirs)
    if apart != 0:  # nan, too
        raise RuntimeError(f"{what}: real processes and one process are {apart:g} apart, not 0")
    return apart
