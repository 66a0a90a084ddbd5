"""Gradients of several workers, each at its own parameters and batch, in one call.

Three ways to the same numbers, up to rounding: ``one_by_one`` is a forward and a backward pass a
worker; ``channels_last`` is the same with the images' channels innermost in memory; ``vmap`` is one
forward and one backward pass through a model whose parameters have a dimension of workers.

Workers that hold the very same parameters, as between meetings of all, go through plain stacks of
convolutions and linear layers together, where this processor's kernels give each of them the bits
that it would have alone; only the gradients of the weights are taken apart. That is twice as fast
where layers are small. On a GPU, where no live worker has to have their bits, :mod:`.one_pass`
does so for residual networks too.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from functools import partial
from typing import get_args

import torch
from torch import nn
from torch.func import functional_call, vmap

from slowlink.testbed import measuring
from slowlink.testbed.training import models, one_pass
from slowlink.testbed.training.recipe import How


def gradients(
    model: nn.Module,
    leaves: Sequence[nn.Parameter],
    parameters: Sequence[Sequence[torch.Tensor]],
    images: Sequence[torch.Tensor],
    labels: Sequence[torch.Tensor],
    how: How = "one_by_one",
    buffers: Sequence[Sequence[torch.Tensor]] | None = None,
) -> tuple[list[list[torch.Tensor]], torch.Tensor]:
    """Every worker's gradient of the mean cross-entropy of its batch.

    Parameters
    ----------
    model: in training or evaluation mode; what its leaves and buffers hold is lost.
    leaves: those of its parameters that are trained.
    parameters: a list a worker, shaped and ordered as ``leaves``; gradients will lie where they do,
        wherever the model and the images are.
    images, labels: a batch a worker; of one size for ``vmap``.
    buffers: a list a worker, as ``model.buffers()``, where the model has any. They change in place.

    Returns
    -------
    A list a worker, like ``parameters``; and the losses, (workers,), without a graph.

    Raises
    ------
    ValueError
        ``how`` is unknown or cannot do it, with the reason; something is missing for a worker.
    """
    _check(model, leaves, parameters, images, labels, how, buffers)
    given = (model, leaves, parameters, images, labels)
    if how == "vmap":
        return _stacked(*given)
    lay = channels_last if how == "channels_last" else lambda batch: batch
    state = [()] * len(parameters) if buffers is None else buffers
    same = _same(parameters, images, state)
    if same and images[0].is_cuda and one_pass.fits(model, leaves):
        return one_pass.gradients(model, leaves, parameters[0], images, labels, state[0])
    if same and _plain(model, leaves):
        kernels = f"{model} {how} {len(images)} of {images[0].shape} {images[0].dtype}"
        kernels += f" {images[0].device} {torch.get_num_threads()}"
        if kernels not in _same_bits:
            _same_bits[kernels] = _agree(*given, lay)
        if _same_bits[kernels]:
            return _together(*given, lay)
    return _looped(*given, lay, state)


def _looped(model, leaves, parameters, images, labels, lay, buffers):
    found, losses = [], []
    for own, batch, wanted, state in zip(parameters, images, labels, buffers, strict=True):
        for leaf, value in zip(leaves, own, strict=True):
            leaf.data = value.to(batch.device)
        for inside, held in zip(model.buffers(), state, strict=True):
            inside.copy_(held)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(lay(batch)), wanted)
        loss.backward()  # autograd.grad would not call the hooks by which a live run sends
        found.append([leaf.grad.to(value.device) for leaf, value in zip(leaves, own, strict=True)])
        losses.append(loss.detach())
        for inside, held in zip(model.buffers(), state, strict=True):
            held.copy_(inside)
    model.zero_grad()
    return found, torch.stack(losses)


def _stacked(model, leaves, parameters, images, labels):
    known = {parameter: name for name, parameter in model.named_parameters()}
    names = [known[leaf] for leaf in leaves]
    by_tensor = zip(*parameters, strict=True)
    home, device = parameters[0][0].device, images[0].device
    stacked = [torch.stack(v).detach().to(device).requires_grad_() for v in by_tensor]

    def loss(values, batch, wanted):
        scores = functional_call(model, dict(zip(names, values, strict=True)), (batch,))
        return nn.functional.cross_entropy(scores, wanted)

    losses = vmap(loss)(stacked, torch.stack(list(images)), torch.stack(list(labels)))
    # A worker's loss depends on its own parameters alone: the sum's gradient is everyone's own.
    found = [one.to(home) for one in torch.autograd.grad(losses.sum(), stacked)]
    return [list(own) for own in zip(*found, strict=True)], losses.detach()


TOGETHER = 256
"""Samples that pass at once: their values stay in cache between layers."""
_same_bits: dict[str, bool] = {}
"""Whether a worker's numbers are the same to the bit, whoever passes with it. Torch's kernels go by
the processor and by the number of samples, and some add in another order than others; a live
worker, who passes alone, must have the bits of the trainer, where all pass."""


def _agree(model, leaves, parameters, images, labels, lay) -> bool:
    """Whether workers that pass together find, to the bit, what each finds alone."""
    given = (model, leaves, parameters, images, labels, lay)
    (found, losses), (alone, expected) = _together(*given), _looped(*given, [()] * len(images))
    pairs = zip(itertools.chain(*found, [losses]), itertools.chain(*alone, [expected]), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def _same(parameters, images, buffers) -> bool:
    """Whether several workers hold one replica, and batches of one size."""
    return (
        len(parameters) > 1
        and all(own is parameters[0] for own in parameters)
        and all(own is buffers[0] or not own for own in buffers)
        and len({len(batch) for batch in images}) == 1
    )


def _plain(model, leaves) -> bool:
    """Whether :func:`_together` takes ``model``."""
    plain = (nn.Conv2d, nn.Linear, nn.ReLU, nn.MaxPool2d, nn.Flatten)
    return (
        type(model) is nn.Sequential
        and all(isinstance(layer, plain) for layer in model)
        and all(getattr(layer, "padding_mode", "zeros") == "zeros" for layer in model)
        and len(leaves) == len(list(model.parameters()))
    )


def _together(model, leaves, parameters, images, labels, lay):
    of = dict(zip(leaves, parameters[0], strict=True))
    at_once = max(1, TOGETHER // len(images[0]))
    found, losses = [], []
    for first in range(0, len(images), at_once):
        batches, wanted = images[first : first + at_once], labels[first : first + at_once]
        everyone = {
            leaf: value.detach().expand(len(batches), *value.shape).requires_grad_()
            for leaf, value in of.items()
        }
        values = lay(torch.cat(batches))
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                values = _Convolution.apply(values, *_own(layer, everyone), layer)
            elif isinstance(layer, nn.Linear):
                values = _Product.apply(values, *_own(layer, everyone))
            else:
                values = layer(values)
        pairs = zip(values.chunk(len(batches)), wanted, strict=True)
        loss = torch.stack([nn.functional.cross_entropy(*pair) for pair in pairs])
        by_tensor = torch.autograd.grad(loss.sum(), list(everyone.values()))
        found += [list(own) for own in zip(*by_tensor, strict=True)]
        losses.append(loss.detach())
    return found, torch.cat(losses)


def _own(layer, everyone):
    return everyone[layer.weight], None if layer.bias is None else everyone[layer.bias]


class _Convolution(torch.autograd.Function):
    """A convolution by weights that all workers share, (workers, …) in name; gradients of each."""

    @staticmethod
    def forward(ctx, x, weights, biases, layer):
        ctx.save_for_backward(x, weights)
        ctx.biased = biases is not None
        ctx.shape = layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups
        bias = biases[0] if ctx.biased else None
        return nn.functional.conv2d(x, weights[0], bias, *ctx.shape[:3], layer.groups)

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        given = weights[0], [len(weights[0])] if ctx.biased else None, *ctx.shape
        back = torch.ops.aten.convolution_backward
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x, _, _ = back(gradient, x, *given, (True, False, False))
        wanted = (False, True, ctx.biased)
        workers = len(weights)
        pairs = zip(gradient.chunk(workers), x.chunk(workers), strict=True)
        _, of_weights, of_biases = zip(
            *(back(*pair, *given, wanted) for pair in pairs), strict=True
        )
        return of_x, torch.stack(of_weights), torch.stack(of_biases) if ctx.biased else None, None


class _Product(torch.autograd.Function):
    """A linear layer likewise."""

    @staticmethod
    def forward(ctx, x, weights, biases):
        ctx.save_for_backward(x, weights)
        return nn.functional.linear(x, weights[0], None if biases is None else biases[0])

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        of_x = gradient @ weights[0] if ctx.needs_input_grad[0] else None
        by_worker = gradient.view(len(weights), -1, gradient.shape[1])
        of_weights = by_worker.mT @ x.view(len(weights), -1, x.shape[1])
        return of_x, of_weights, by_worker.sum(1) if ctx.needs_input_grad[2] else None


def channels_last(images: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W) images with their channels innermost in memory.

    One channel is innermost and outermost at once, and torch takes it for outermost; by its stride
    it is told otherwise, so that a convolution's result has its own channels innermost.
    """
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    images = images.contiguous()
    return images.as_strided(images.shape, (images.stride(0), 1, images.stride(2), 1))


def _check(model, leaves, parameters, images, labels, how, buffers) -> None:
    lengths = [len(each) for each in (parameters, images, labels, buffers) if each is not None]
    if not parameters or len(set(lengths)) > 1:
        raise ValueError(
            "parameters, images, labels and buffers (if any) need one entry a worker, "
            f"not {', '.join(map(str, lengths))}"
        )
    reason = refusal(model, tuple(images[0].shape[1:]), how)
    if reason:
        raise ValueError(f"{how}: {reason}")
    needed = {"parameters": len(leaves), "buffers": len(list(model.buffers()))}
    for kind, given in (("parameters", parameters), ("buffers", buffers)):
        for worker in range(len(parameters)):
            there = len(given[worker]) if given is not None else 0
            if there != needed[kind]:
                raise ValueError(f"worker {worker} has {there} {kind}, not {needed[kind]}")
    sizes = [len(batch) for batch in images]
    if how == "vmap" and len(set(sizes)) > 1:
        raise ValueError(f"vmap: all batches must be of one size, these are of {sizes}")


def refusal(model: nn.Module, sample: tuple[int, ...], how: How) -> str | None:
    """Why ``how`` cannot take ``model`` on samples of this shape, or None if it can."""
    if how not in get_args(How):
        return f"no such way; there are: {', '.join(get_args(How))}"
    if how == "channels_last" and len(sample) != 3:
        return f"samples must be images (channels, height, width), not of shape {sample}"
    if how == "vmap" and any(True for _ in model.buffers()):
        return "the model has buffers (as BatchNorm has), which a batch of workers cannot update"
    if how == "vmap" and any(isinstance(module, nn.RNNBase) for module in model.modules()):
        return "the model is recurrent, and torch has no batched form of its layers"
    return None


def ways(model: nn.Module, sample: tuple[int, ...]) -> list[How]:
    """The ways that can take ``model`` on samples of this shape."""
    return [how for how in get_args(How) if refusal(model, sample, how) is None]


def measure(
    model: nn.Module, sample: tuple[int, ...], workers: int, batch: int, repeats: int = 5
) -> dict[How, float]:
    """Median seconds of :func:`gradients` by way, of those that can take ``model``.

    The ways take turns, so that a machine that slows down slows all of them alike; ratios tell
    more than seconds. Made-up images on the device of ``model``, with torch's threads as set now.
    """
    images = models.samples(model, sample, batch)
    text = not images.is_floating_point()  # one label for each token
    labels = images.flatten() if text else torch.zeros(batch, dtype=torch.long).to(images.device)
    leaves = list(model.parameters())
    parameters = [[p.detach().clone() for p in leaves] for _ in range(workers)]
    buffers = [[b.clone() for b in model.buffers()] for _ in range(workers)]

    def once(how: How) -> None:
        batches = [images] * workers, [labels] * workers
        gradients(model, leaves, parameters, *batches, how, buffers)
        if images.is_cuda:
            torch.cuda.synchronize(images.device)

    seconds: dict[How, list[float]] = {how: [] for how in ways(model, sample)}
    for _ in range(repeats):
        for how, times in seconds.items():
            times.append(measuring.median_s(partial(once, how), repeats=1))
    return {how: statistics.median(times) for how, times in seconds.items()}
