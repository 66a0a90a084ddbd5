"""Splits of a data set over workers, and the order in which a worker draws its samples.

Source: GeoMX §2, data processing module: each node keeps one slice of the data set and draws
mini-batches from it at random, in sequence, or by importance; §3: Fashion-MNIST is split evenly
over all workers. Nothing here touches a global random state.
"""

from __future__ import annotations

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


def importance(scores: Tensor) -> Sampler:
    """A sampler that draws with replacement, sample i with probability ``scores[i] / sum``.

    An epoch has as many draws as the shard has samples. Scale the loss of draw i by
    :func:`importance_weights` to keep the gradient unbiased.
    """
    probabilities = _probabilities(scores)

    def draw(n: int, generator: Generator) -> Tensor:
        if n != len(probabilities):
            raise ValueError(f"{len(probabilities)} scores for a shard of {n} samples")
        return torch.multinomial(probabilities, n, replacement=True, generator=generator)

    return draw


def importance_weights(scores: Tensor) -> Tensor:
    """``1 / (n p_i)``: the weights with which importance sampling estimates the plain mean."""
    probabilities = _probabilities(scores)
    return 1 / (len(probabilities) * probabilities)


def _probabilities(scores: Tensor) -> Tensor:
    scores = torch.as_tensor(scores, dtype=torch.float64)
    if scores.ndim != 1 or len(scores) == 0 or not bool((scores.isfinite() & (scores > 0)).all()):
        raise ValueError("importance scores must be one positive finite number a sample")
    return scores / scores.sum()


SAMPLERS: dict[str, Sampler] = {"random": random, "sequential": sequential}
"""The samplers that need no scores, by the names that recipes use."""


def batches(
    shard: Tensor,
    batch_size: int,
    sampler: str | Sampler,
    generator: Generator,
    last: Literal["drop", "keep"] = "drop",
) -> Iterator[Tensor]:
    """A worker's endless stream of mini-batches.

    Parameters
    ----------
    shard: (n,) indices of this worker's samples.
    sampler: a name of ``SAMPLERS`` or a :data:`Sampler`; asked anew for each epoch's order.
    last: what happens to the smaller batch that an epoch may end with. ``drop`` leaves it out, so
        every batch counts alike when workers are averaged; ``keep`` yields it.

    Yields
    ------
    (batch_size,) int64 indices into the data set.
    """
    order = SAMPLERS.get(sampler) if isinstance(sampler, str) else sampler
    if order is None:
        raise ValueError(f"no sampler {sampler!r}; there are: {', '.join(SAMPLERS)}")
    if last not in ("drop", "keep"):
        raise ValueError(f"last must be 'drop' or 'keep', not {last!r}")
    n = len(shard)
    if batch_size < 1 or n < (batch_size if last == "drop" else 1):
        raise ValueError(f"no batch of {batch_size} fits in a shard of {n} samples")
    return _stream(shard, batch_size, order, generator, n - n % batch_size if last == "drop" else n)


def _stream(
    shard: Tensor, batch_size: int, order: Sampler, generator: Generator, used: int
) -> Iterator[Tensor]:
    while True:
        yield from shard[order(len(shard), generator)[:used]].split(batch_size)
