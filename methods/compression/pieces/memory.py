"""What a codec remembers between steps: error feedback, momentum correction, warm-up.

All work in place on flat float32 tensors of one size; on a CPU without the interpreter's lock, so
that blocks of a large tensor can be worked on side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

import numba
import numpy as np
import torch

from slowlink.methods.compression.pieces import packing, sampling
from slowlink.methods.compression.pieces.threads import NEAR, each_block, one_call

SAMPLE = 2**15
"""Values looked at to guess where the largest begin; speed only, the selection is exact."""


def accumulate(gradient: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Error feedback: add ``gradient`` to what was not sent before, and return that sum."""
    if gradient.device.type == "cpu":
        new, kept = gradient.numpy(), residual.numpy()
        each_block(len(new), lambda start, stop: _accumulate(new[start:stop], kept[start:stop]))
        return residual
    return residual.add_(gradient)


def take_largest(
    gradient: torch.Tensor, k: int, what: str, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k values of largest magnitude, and their ascending indices; of equals, the first.

    With a ``residual``, ``gradient`` is added to it and the largest are taken from there, which
    leaves zeros. ValueError, naming ``what``, where a value is not finite; nothing is added then.
    """
    n = gradient.numel()
    # An odd stride does not keep to the same columns.
    stride = max(n // SAMPLE, min(n // 1024, 16)) | 1
    values = gradient
    if residual is not None:
        packing.check_finite(gradient, what)
    if one_call(gradient):
        values = gradient if residual is None else accumulate(gradient, residual)
        taken = torch.from_numpy(sampling.largest_near(packing.bits_of(values), k, stride))
    elif residual is None:
        guess = sampling.threshold_for(gradient[::stride], n, k)
        if not math.isfinite(guess):
            packing.check_finite(gradient, what)
        taken = sampling.largest(gradient, k, guess)
    else:
        values = residual
        guess = sampling.threshold_for(residual[::stride] + gradient[::stride], n, k)
        taken = sampling.largest(residual, k, guess, partial(_add_and_find, gradient, residual))
    found = take(values, taken)
    if residual is not None:
        mask(taken, residual)
    elif not np.isfinite(found.cpu().numpy()).all():  # whatever is not finite is among the largest
        packing.refuse(gradient, what)
    return found, taken


def momentum_correct(
    gradient: torch.Tensor,
    velocity: torch.Tensor,
    accumulated: torch.Tensor,
    momentum: float,
    nesterov: bool = False,
) -> None:
    """Momentum correction: accumulate the velocity instead of the gradient.

    ``velocity = momentum·velocity + gradient; accumulated += velocity``, or with Nesterov's
    momentum ``velocity = momentum·(velocity + gradient); accumulated += velocity + gradient``.
    Lin et al. 2018, eq. 4 and algorithm 1; GeoMX §4, item 3 (which calls them v and u).
    """
    if gradient.device.type == "cpu":
        buffers = gradient.numpy(), velocity.numpy(), accumulated.numpy()
        _momentum_correct(*buffers, buffers[0].dtype.type(momentum), nesterov)
    elif nesterov:
        velocity.add_(gradient).mul_(momentum)
        accumulated.add_(velocity).add_(gradient)
    else:
        velocity.mul_(momentum).add_(gradient)
        accumulated.add_(velocity)


def correct_and_find(
    gradient: torch.Tensor,
    velocity: torch.Tensor,
    accumulated: torch.Tensor,
    momentum: float,
    threshold: torch.Tensor | float,
    nesterov: bool = False,
) -> torch.Tensor:
    """:func:`momentum_correct`, and where ``accumulated`` then is ``threshold`` or more, as
    :func:`.sampling.indices_at_least` says, in one pass."""
    if gradient.device.type != "cpu":
        momentum_correct(gradient, velocity, accumulated, momentum, nesterov)
        return sampling.indices_at_least(accumulated, threshold)
    buffers = gradient.numpy(), velocity.numpy(), accumulated.numpy()
    factor, bound = buffers[0].dtype.type(momentum), sampling.bits_of_magnitude(threshold)

    def find(start: int, stop: int) -> np.ndarray:
        block = (buffer[start:stop] for buffer in buffers)
        return _correct_and_find(*block, factor, nesterov, bound, start)

    return sampling.in_blocks(gradient.numel(), find)


def _add_and_find(
    gradient: torch.Tensor, residual: torch.Tensor, threshold: torch.Tensor | float
) -> torch.Tensor:
    """:func:`accumulate` and :func:`.sampling.indices_at_least` of the sum, in one pass."""
    if gradient.device.type != "cpu":
        return sampling.indices_at_least(accumulate(gradient, residual), threshold)
    new, kept, bound = gradient.numpy(), residual.numpy(), sampling.bits_of_magnitude(threshold)
    return sampling.in_blocks(
        len(new), lambda start, stop: _find(new[start:stop], kept[start:stop], bound, start)
    )


def mask(indices: torch.Tensor, *buffers: torch.Tensor) -> None:
    """Zero the buffers where values were sent (of the velocity too: momentum factor masking)."""
    for buffer in buffers:
        if buffer.device.type == "cpu":
            _zero(buffer.numpy(), indices.numpy())
        else:
            buffer[indices] = 0


def take(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The values at ``indices``, which are where values are."""
    if values.device.type != "cpu":
        return values[indices]
    found = np.empty(indices.numel(), np.float32)
    _take(values.numpy(), indices.numpy(), found)
    return torch.from_numpy(found)


def clip_by_norm(gradient: torch.Tensor, limit: float, parties: int = 1) -> torch.Tensor:
    """``gradient`` scaled so that its 2-norm is at most ``limit / sqrt(parties)``.

    Each party clips before it accumulates, hence the N^(-1/2) (Lin et al. 2018, §3.2).
    """
    bound = limit / parties**0.5
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return gradient * (bound / norm) if norm > bound else gradient


@cache
def warmup_ratios(ratio: float, epochs: int) -> tuple[float, ...]:
    """Kept shares of the warm-up epochs: geometric from 1 (exclusive) to ``ratio`` (exclusive)."""
    return tuple(ratio ** ((epoch + 1) / (epochs + 1)) for epoch in range(epochs))


def scheduled_ratio(
    step: int, ratio: float, warmup: Sequence[float], steps_per_epoch: int
) -> float:
    """The kept share at ``step`` (from 0): ``warmup``'s, one an epoch, and then ``ratio``."""
    epoch = step // steps_per_epoch
    return warmup[epoch] if epoch < len(warmup) else ratio


@numba.njit(nogil=True, cache=True)
def _accumulate(gradient: np.ndarray, residual: np.ndarray) -> None:
    for i in range(len(gradient)):
        residual[i] += gradient[i]


@numba.njit(nogil=True, cache=True)
def _momentum_correct(
    gradient: np.ndarray,
    velocity: np.ndarray,
    accumulated: np.ndarray,
    momentum: np.float32,
    nesterov: bool,
) -> None:
    if nesterov:
        for i in range(len(gradient)):
            velocity[i] = momentum * (velocity[i] + gradient[i])
            accumulated[i] = accumulated[i] + velocity[i] + gradient[i]
    else:
        for i in range(len(gradient)):
            velocity[i] = momentum * velocity[i] + gradient[i]
            accumulated[i] += velocity[i]


@numba.njit(nogil=True, cache=True)
def _find(
    gradient: np.ndarray, residual: np.ndarray, threshold: np.int32, offset: int
) -> np.ndarray:
    """Indices, plus ``offset``, of what reaches the threshold when the gradient is added."""
    found, at, bits = np.empty(gradient.size, np.int64), 0, residual.view(np.int32)
    for start in range(0, gradient.size, NEAR):
        of = slice(start, start + NEAR)
        _accumulate(gradient[of], residual[of])
        at = sampling.append_at_least(bits[of], threshold, offset + start, found, at)
    return found[:at].copy()


@numba.njit(nogil=True, cache=True)
def _correct_and_find(
    gradient: np.ndarray,
    velocity: np.ndarray,
    accumulated: np.ndarray,
    momentum: np.float32,
    nesterov: bool,
    threshold: np.int32,
    offset: int,
) -> np.ndarray:
    """As :func:`_find`, with momentum."""
    found, at, bits = np.empty(gradient.size, np.int64), 0, accumulated.view(np.int32)
    for start in range(0, gradient.size, NEAR):
        of = slice(start, start + NEAR)
        _momentum_correct(gradient[of], velocity[of], accumulated[of], momentum, nesterov)
        at = sampling.append_at_least(bits[of], threshold, offset + start, found, at)
    return found[:at].copy()


@numba.njit(nogil=True, cache=True)
def correct_and_take(
    gradient: np.ndarray,
    velocity: np.ndarray,
    accumulated: np.ndarray,
    at: np.ndarray,
    rank: int,
    k: int,
    momentum: np.float32,
    nesterov: bool,
    lower: float,
    upper: float,
    adaptations: int,
    resample: bool,
    masking: bool,
) -> packing.Pairs:
    """:func:`momentum_correct`, and the values at :func:`.sampling.about_k`, which are no longer
    there then: a step of DGC in one call, which for a small tensor is most of its time."""
    _momentum_correct(gradient, velocity, accumulated, momentum, nesterov)
    bits = accumulated.view(np.int32)
    sent = sampling.about_k(bits, at, rank, k, lower, upper, adaptations, resample)
    values = accumulated[sent]
    _zero(accumulated, sent)
    if masking:
        _zero(velocity, sent)
    return values, sent


@numba.njit(nogil=True, cache=True)
def _zero(values: np.ndarray, indices: np.ndarray) -> None:
    for i in range(indices.size):
        values[indices[i]] = 0


@numba.njit(nogil=True, cache=True)
def _take(values: np.ndarray, indices: np.ndarray, found: np.ndarray) -> None:
    for i in range(indices.size):
        found[i] = values[indices[i]]
