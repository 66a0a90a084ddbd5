"""Splits of a data set over workers, and the order in which a worker draws its samples.

Source: GeoMX §2, data processing module: each node keeps one slice of the data set and draws
mini-batches from it at random or in sequence; §3: Fashion-MNIST is split evenly over all workers.
Importance sampling, which §2 names too, is left out: the document does not say by which scores.
Nothing here touches a global random state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Generator, Tensor

Sampler = Callable[[int, Generator], Tensor]
"""The order of one epoch: (n, generator) -> (n,) int64 positions in a shard of n samples."""


def split(n: int, workers: int, generator: Generator | None = None) -> list[Tensor]:
    """Split samples ``0 … n-1`` evenly over workers.

    Returns
    -------
    one int64 tensor of indices a worker. The first ``n % workers`` shards hold one sample more than
    the others, so all samples are used. Shards are contiguous, or with a generator contiguous
    pieces of a random order.
    """
    if not 1 <= workers <= n:
        raise ValueError(
            f"cannot split {n} samples over {workers} workers: each needs at least one"
        )
    order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
    return list(torch.tensor_split(order, workers))


def sequential(n: int, generator: Generator) -> Tensor:
    """Every sample once, in order."""
    return torch.arange(n)


def random(n: int, generator: Generator) -> Tensor:
    """Every sample once, in a new random order each epoch."""
    return torch.randperm(n, generator=generator)


SAMPLERS: dict[str, Sampler] = {"random": random, "sequential": sequential}
"""The samplers by the names that recipes use."""


def batches(
    shard: Tensor,
    batch_size: int,
    sampler: str,
    generator: Generator,
    last: Literal["drop", "keep"] = "drop",
) -> Iterator[Tensor]:
    """A worker's endless stream of mini-batches.

    Parameters
    ----------
    shard: (n,) indices of this worker's samples.
    sampler: a name of ``SAMPLERS``; asked anew for each epoch's order.
    last: what happens to the smaller batch that an epoch may end with. ``drop`` leaves it out, so
        every batch counts alike when workers are averaged, and of a sequential order the same
        samples each time; ``keep`` yields it.

    Yields
    ------
    (batch_size,) int64 indices into the data set.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"no sampler {sampler!r}; there are: {', '.join(SAMPLERS)}")
    if last not in ("drop", "keep"):
        raise ValueError(f"last must be 'drop' or 'keep', not {last!r}")
    n = len(shard)
    if batch_size < 1 or n < (batch_size if last == "drop" else 1):
        raise ValueError(f"no batch of {batch_size} fits in a shard of {n} samples")
    used = n - n % batch_size if last == "drop" else n
    return _stream(shard, batch_size, SAMPLERS[sampler], generator, used)


def _stream(
    shard: Tensor, batch_size: int, order: Sampler, generator: Generator, used: int
) -> Iterator[Tensor]:
    while True:
        yield from shard[order(len(shard), generator)[:used]].split(batch_size)


def batches_in_rounds(
    samples: Callable[[int], Tensor],
    iterations: int,
    batch_size: int,
    sampler: str,
    generator: Callable[[int], Generator],
) -> Iterator[Tensor]:
    """A worker's endless stream of mini-batches, whose rounds each have samples of their own.

    A round's samples come in the sampler's order, ``batch_size`` at a time with the smaller last
    batch kept, and over again in another order until the round has all of its batches.

    Parameters
    ----------
    samples: of the round of a number, from 1: (n,) indices, at least one.
    iterations: batches a round.
    sampler: a name of ``SAMPLERS``.
    generator: of the orders in the round of a number.

    Yields
    ------
    (batch_size,) int64 indices into the data set, or fewer.
    """
    for number in itertools.count(1):
        stream = batches(samples(number), batch_size, sampler, generator(number), last="keep")
        yield from itertools.islice(stream, iterations)
