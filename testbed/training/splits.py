"""Splits of a data set over workers whose shares differ in what they hold (non-IID).

:func:`split` makes one by name; ``even`` is :func:`testbed.training.sampling.split` in random
order. Every sample goes to exactly one worker.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from slowlink.testbed.training import sampling

ATTEMPTS = 100
"""How often :func:`dirichlet` draws until nobody is left without a sample."""


def even(labels: Tensor, workers: int, generator: Generator) -> list[Tensor]:
    """Even shares of the samples in random order."""
    return sampling.split(len(labels), workers, generator)


def by_label(
    labels: Tensor, workers: int, generator: Generator, shards_each: int = 2
) -> list[Tensor]:
    """Samples sorted by label, cut into even shards; ``shards_each`` of them a worker, at random.

    Workers so see few labels: about ``shards_each`` where there are as many shards as labels, or
    more. Source: McMahan et al., AISTATS 2017, section 3.

    Returns
    -------
    one int64 tensor of indices a worker.

    Raises
    ------
    ValueError
        More shards than samples, or less than one each.
    """
    check("by_label", {"shards_each": shards_each})
    if workers * shards_each > len(labels):
        raise ValueError(
            f"by_label: {len(labels)} samples are too few for {workers * shards_each} shards"
        )
    shards = torch.tensor_split(labels.argsort(stable=True), workers * shards_each)
    dealt = torch.randperm(len(shards), generator=generator).view(workers, shards_each).tolist()
    return [torch.cat([shards[number] for number in own]) for own in dealt]


def dirichlet(
    labels: Tensor, workers: int, generator: Generator, alpha: float = 0.5
) -> list[Tensor]:
    """Each label's samples over the workers in proportions drawn from a Dirichlet distribution.

    A small ``alpha`` gives nearly all of a label to one worker, a large one even shares. Drawn
    again while a worker has nothing. Source: Yurochkin et al., ICML 2019, section 4.

    Returns
    -------
    one int64 tensor of indices a worker, ascending.

    Raises
    ------
    ValueError
        An ``alpha`` that is not above 0, or somebody is left without a sample time and again.
    """
    check("dirichlet", {"alpha": alpha})
    draw = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    for _ in range(ATTEMPTS):
        owner = torch.empty(len(labels), dtype=torch.int64)
        for label in labels.unique():
            own = (labels == label).nonzero().view(-1)
            own = own[torch.randperm(len(own), generator=generator)]
            shares = draw.dirichlet([alpha] * workers)
            ends = np.rint(np.cumsum(shares) * len(own)).astype(np.int64)[:-1]
            for worker, part in enumerate(torch.tensor_split(own, ends.tolist())):
                owner[part] = worker
        found = [(owner == worker).nonzero().view(-1) for worker in range(workers)]
        if all(len(own) for own in found):
            return found
    raise ValueError(
        f"dirichlet: alpha {alpha} leaves one of {workers} workers without any of {len(labels)} "
        f"samples, {ATTEMPTS} times; give a larger alpha or fewer workers"
    )


SPLITS: dict[str, Callable[..., list[Tensor]]] = {
    "even": even,
    "by_label": by_label,
    "dirichlet": dirichlet,
}


def split(
    name: str, labels: Tensor, workers: int, generator: Generator, **parameters
) -> list[Tensor]:
    """The split ``name`` of samples with these (n,) ``labels``.

    Raises
    ------
    ValueError
        Unknown split or parameter, or one that the split refuses.
    """
    check(name, parameters)
    return SPLITS[name](labels, workers, generator, **parameters)


def check(name: str, parameters: dict) -> None:
    """Raise ValueError for an unknown split or parameter, or an impossible value."""
    if name not in SPLITS:
        raise ValueError(f"no split {name!r}; there are: {', '.join(SPLITS)}")
    allowed = list(inspect.signature(SPLITS[name]).parameters)[3:]
    unknown = sorted(set(parameters) - set(allowed))
    if unknown:
        raise ValueError(
            f"{name}: unknown parameter {', '.join(map(repr, unknown))}; "
            f"it takes: {', '.join(allowed) or 'none'}"
        )
    shards, alpha = parameters.get("shards_each", 1), parameters.get("alpha", 1.0)
    if type(shards) is not int or shards < 1:
        raise ValueError(
            f"{name}: shards_each must be a whole number of at least 1, not {shards!r}"
        )
    if type(alpha) not in (int, float) or not 0 < alpha < math.inf:
        raise ValueError(f"{name}: alpha must be a finite number above 0, not {alpha!r}")
