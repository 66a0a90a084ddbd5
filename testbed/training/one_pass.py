"""Gradients of workers that hold one replica, by one pass over the samples of all: a GPU's way.

Kernels of one worker's batch are so short that launching them takes longer. So all samples go
through a layer together, in the order (batch, workers): values of (batch · workers, channels, …)
are then, without a copy, those of (batch, workers · channels, …), in which BatchNorm finds each
worker's own statistics. The kernels of a whole pass are recorded once and launched as one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slowlink.testbed.training import models

_PLAIN = (nn.Sequential, nn.ReLU, nn.MaxPool2d, nn.Flatten, models.Average, models.PlainBlock)
"""Modules without parameters of their own, which each sample passes by itself."""

Found = tuple[list[list[Tensor]], Tensor]
"""Gradients, a list a worker; and losses, (workers,)."""


def fits(model: nn.Module, leaves: Sequence[nn.Parameter]) -> bool:
    """Whether ``model`` is made of layers that are known here, with all its parameters trained."""
    whole = len(leaves) == sum(1 for _ in model.parameters())
    return whole and model.training and all(_known(module) for module in model.modules())


def _known(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and set(module.dilation) == {1}
        return plain and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.BatchNorm2d):
        return module.affine and module.track_running_stats and module.momentum is not None
    return isinstance(module, (nn.Linear, *_PLAIN))


def gradients(
    model: nn.Module,
    leaves: Sequence[nn.Parameter],
    parameters: Sequence[Tensor],
    images: Sequence[Tensor],
    labels: Sequence[Tensor],
    buffers: Sequence[Tensor],
) -> Found:
    """Every worker's gradient of the mean cross-entropy of its batch.

    Parameters
    ----------
    model: on a GPU, as :func:`fits` has it; what its leaves and buffers hold is lost.
    leaves: all of its parameters.
    parameters: what all workers hold of them; gradients will lie where these do.
    images, labels: a batch a worker, all of one size, where the model is.
    buffers: the model's, which follow the batches of one worker after the other, in place.
    """
    key = (len(images), images[0].shape)
    graphs = _graphs.setdefault(model, {})
    if key not in graphs:
        graphs[key] = _Graph(model, leaves, parameters, images, labels, buffers)
    return graphs[key](parameters, images, labels, buffers)


class _Graph:
    """:func:`together`, recorded."""

    def __init__(self, model, leaves, parameters, images, labels, buffers):
        given = (model, list(leaves), [one.to(images[0].device, copy=True) for one in parameters])
        given += (torch.stack(list(images)), torch.stack(list(labels)))
        given += ([one.to(images[0].device, copy=True) for one in buffers],)
        _, _, own, *batches, state = given
        self.inputs, self.state = [*own, *state], state
        self.batches = batches
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries settle down before their kernels are recorded
            for _ in range(3):
                together(*given)
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            found, self.losses = together(*given)
            self.found = torch.cat([one.flatten(1) for one in found], 1)
        self.shapes = [one.shape for one in own]

    def __call__(self, parameters, images, labels, buffers) -> Found:
        for inside, value in zip(self.inputs, [*parameters, *buffers], strict=True):
            inside.copy_(value)
        for inside, parts in zip(self.batches, (images, labels), strict=True):
            torch.stack(list(parts), out=inside)
        self.graph.replay()
        for held, inside in zip(buffers, self.state, strict=True):
            held.copy_(inside)
        # The next replay writes over what this one found.
        found = self.found.to(parameters[0].device, copy=True)
        parts = found.split([shape.numel() for shape in self.shapes], 1)
        by_tensor = [part.view(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return [list(own) for own in zip(*by_tensor, strict=True)], self.losses.clone()


_graphs: WeakKeyDictionary[nn.Module, dict[tuple, _Graph]] = WeakKeyDictionary()


def together(
    model: nn.Module,
    leaves: Sequence[nn.Parameter],
    parameters: Sequence[Tensor],
    images: Tensor,
    labels: Tensor,
    buffers: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """Gradients, (workers, …) a parameter, and losses, (workers,), of (workers, batch, …) images
    and (workers, batch) labels; see :func:`gradients`."""
    for leaf, value in zip(leaves, parameters, strict=True):
        leaf.data = value
    for inside, held in zip(model.buffers(), buffers, strict=True):
        inside.copy_(held)
    workers = len(images)
    everyone = {
        leaf: leaf.detach().expand(workers, *leaf.shape).requires_grad_() for leaf in leaves
    }
    with _Apart(workers, everyone):
        scores = model(images.transpose(0, 1).flatten(0, 1))
    loss = nn.functional.cross_entropy(scores, labels.T.flatten(), reduction="none")
    losses = loss.view(-1, workers).mean(0)
    found = torch.autograd.grad(losses.sum(), list(everyone.values()))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # which counts its calls
            module.num_batches_tracked += workers - 1
    for inside, held in zip(model.buffers(), buffers, strict=True):
        held.copy_(inside)
    return list(found), losses.detach()


class _Apart(TorchFunctionMode):
    """A model's layers, where samples are of several workers.

    everyone: by parameter, its (workers, …) copies, to which gradients go.
    """

    def __init__(self, workers: int, everyone: Mapping[nn.Parameter, Tensor]) -> None:
        super().__init__()
        self.workers, self.everyone = workers, everyone

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.conv2d:
            x, weight, bias, stride, padding, *_ = args
            return _Convolution.apply(x, *self._own(weight, bias), stride, padding)
        if func is nn.functional.linear:
            x, weight, bias = args
            return _Product.apply(x, *self._own(weight, bias))
        if func is nn.functional.batch_norm:
            return self._normalised(*args, **kwargs)
        return func(*args, **(kwargs or {}))

    def _own(self, weight, bias):
        return self.everyone[weight], None if bias is None else self.everyone[bias]

    def _normalised(self, x, mean, variance, weight, bias, training, momentum, eps):
        own = [one.flatten() for one in self._own(weight, bias)]
        found = torch.zeros_like(own[0]), torch.zeros_like(own[0])
        by_worker = x.reshape(-1, self.workers * x.shape[1], *x.shape[2:])
        # With a momentum of 1, what follows the statistics of a batch is those.
        y = nn.functional.batch_norm(by_worker, *found, *own, True, 1.0, eps)
        last = torch.arange(self.workers, device=x.device).flip(0)
        with torch.no_grad():
            for running, one in zip((mean, variance), found, strict=True):
                weights = momentum * (1 - momentum) ** last.to(one.dtype)
                running *= (1 - momentum) ** self.workers
                running += weights @ one.view(self.workers, -1)
        return y.view(x.shape)


class _Convolution(torch.autograd.Function):
    """A convolution by weights that all workers share, (workers, …) in name; gradients of each."""

    @staticmethod
    def forward(ctx, x, weights, biases, stride, padding):
        ctx.save_for_backward(x, weights)
        ctx.shape, ctx.biased = (stride, padding), biases is not None
        bias = biases[0] if ctx.biased else None
        return nn.functional.conv2d(x, weights[0], bias, stride, padding)

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        stride, padding = ctx.shape
        workers, _, _, *size = weights.shape
        of_x = None
        if ctx.needs_input_grad[0]:
            how = (None, stride, padding, (1, 1), False, (0, 0), 1, (True, False, False))
            of_x, _, _ = torch.ops.aten.convolution_backward(gradient, x, weights[0], *how)
        # A sample's gradient is a product of what comes back with the windows that it came from.
        padded = nn.functional.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        windows = padded.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
        windows = windows.permute(0, 1, 4, 5, 2, 3)
        windows = windows.reshape(len(x), -1, gradient[0, 0].numel())
        of_weights = gradient.flatten(2) @ windows.mT
        of_weights = of_weights.view(-1, *weights.shape).sum(0)
        of_biases = None
        if ctx.biased:
            of_biases = gradient.sum((2, 3)).view(-1, workers, gradient.shape[1]).sum(0)
        return of_x, of_weights, of_biases, None, None


class _Product(torch.autograd.Function):
    """A linear layer likewise."""

    @staticmethod
    def forward(ctx, x, weights, biases):
        ctx.save_for_backward(x, weights)
        return nn.functional.linear(x, weights[0], None if biases is None else biases[0])

    @staticmethod
    def backward(ctx, gradient):
        x, weights = ctx.saved_tensors
        own, values = (one.view(-1, len(weights), one.shape[1]) for one in (gradient, x))
        of_biases = own.sum(0) if ctx.needs_input_grad[2] else None
        return gradient @ weights[0], torch.einsum("bwo,bwi->woi", own, values), of_biases
