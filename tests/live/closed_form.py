"""A training whose every number can be written down: a weight, and gradients that are constant."""

import torch
from torch import nn

LR, MOMENTUM = 0.1, 0.5


def make_model():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def batches(site, worker):
    """The gradient of worker w is w + 1."""
    return [(torch.tensor([[worker + 1.0]]), None)]


def loss(scores, labels):
    return scores.sum()


def optimizer(parameters):
    return torch.optim.SGD(parameters, LR, MOMENTUM)


def weight(model):
    return {"weight": model.weight.item(), "loss": 1 + abs(model.weight.item())}


def make_wide():
    """A model of 20 weights, of which none is zero."""
    model = nn.Linear(20, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(wide_start())
    return model


def wide_start():
    return 0.01 * (torch.arange(20.0) + 1).flip(0)[None]


def wide_batches(site, worker):
    """The gradient of worker w is w + 1 times 1, -2, 3, ..."""
    return [((worker + 1.0) * wide_gradient(), None)]


def wide_gradient():
    return ((torch.arange(20.0) + 1) * torch.tensor([1.0, -1.0] * 10))[None]


def plain(parameters):
    return torch.optim.SGD(parameters, LR)


class Weight:
    """The weight and velocity of somebody who takes steps."""

    def __init__(self):
        self.value = self.base = self.velocity = 0.0

    def step(self, gradient):
        self.velocity = MOMENTUM * self.velocity + gradient
        self.value -= LR * self.velocity
