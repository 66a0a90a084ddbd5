"""Trainings of one's own that are seldom, and some that cannot be."""

import math
import random
import sys
import time

import numpy as np
import torch
from torch import nn

LR, EVERY, FACTOR = 0.1, 2, 0.5


def linear():
    return nn.Linear(2, 2)


def drawn():
    """A model that is drawn by numpy and Python."""
    model = linear()
    nn.init.constant_(model.weight, np.random.rand())
    nn.init.constant_(model.bias, random.random())
    return model


def another(made=[]):  # noqa: B006
    """Each call gives another model."""
    made.append(linear())
    nn.init.constant_(made[-1].bias, len(made))
    return made[-1]


def normed():
    return nn.Sequential(nn.BatchNorm1d(2), linear())


def shifted():
    """A model that scores nothing rightly before its running statistics are those of the data."""
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3))


class Buffers(nn.Module):
    """Constants that are no statistics, and an activation that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.inside = torch.nn.utils.spectral_norm(normed()[1])
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.register_buffer("far", torch.tensor([1e9]))

    def forward(self, x, more=0.0):
        self.last = self.inside(self.norm(x + more))
        return self.last


class Centred(nn.Linear):
    """Buffers that follow the batches, of which one is not saved."""

    def __init__(self):
        super().__init__(2, 2)
        self.register_buffer("centre", torch.zeros(2))
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.centre = self.centre + x.mean(0)
            self.steps += 1
        return super().forward(x - self.centre / (1 + self.steps))


def centred():
    return Centred()


def buffers():
    return Buffers()


def sparse():
    """Scores of the two samples, each by a row of its own."""
    return nn.Sequential(Whole(), nn.EmbeddingBag(2, 2, sparse=True))


class Whole(nn.Module):
    def forward(self, x):
        return x.long()


class Owner:
    def loss(self, scores, labels):
        return loss(scores, labels)


def lazy():
    return nn.LazyLinear(2)


def double():
    return linear().double()


def no_module():
    return [3]


def frozen():
    return linear().requires_grad_(False)


X, Y = torch.eye(2), torch.tensor([0, 1])


def batches(site, worker):
    return [(X, Y)] * 3


def far(site, worker):
    """Samples far from zero, others for each worker."""
    drawn = torch.randn((32, 2), generator=torch.Generator().manual_seed(worker))
    return [(5 * x + 20, y) for x, y in zip(drawn.split(8), drawn.argmax(1).split(8), strict=True)]


class Noisy:
    """Samples that numpy and Python draw."""

    def __iter__(self):
        for _ in range(3):
            yield X * np.random.rand() + random.random(), Y


def noisy(site, worker):
    return Noisy()


class Slow:
    """Batches that are long in coming."""

    def __iter__(self):
        for number in range(100):
            time.sleep(0.2)
            yield X * number, Y


def slow(site, worker):
    return Slow()


def two_inputs(site, worker):
    return [((X, X), Y)]


def generator(site, worker):
    yield X, Y


def dicts(site, worker):
    return [dict(x=X, y=Y)]


def triples(site, worker):
    return [(X, X, Y)]


def number(site, worker):
    return 3


def loss(scores, labels):
    return nn.functional.cross_entropy(scores, labels)


def unreduced(scores, labels):
    return nn.functional.cross_entropy(scores, labels, reduction="none")


def missing(scores, labels):
    return {}["no such key"]


def gives_up(scores, labels):
    sys.exit("no more")


def wrong_shape(scores, labels):
    return loss(scores, labels[:1])


def sgd(parameters):
    return torch.optim.SGD(parameters, LR)


def stepped(parameters):
    optimizer = sgd(parameters)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, EVERY, FACTOR)


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters)


def plateau(parameters):
    optimizer = sgd(parameters)
    return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def bias(model):
    return {"bias": model.state_dict()["bias"].sum()}


def total(model):
    return {"total": sum(p.sum().item() for p in model.parameters())}


def far_loss(model):
    return {"loss": sum(loss(model(x), y).item() for x, y in far("site1", 9))}


def slowly(model):
    time.sleep(4)
    return total(model)


def undefined(model):
    return {"precision": math.nan, "recall": math.inf} | total(model)


def no_loss(model):
    return {"loss": math.nan}


def nothing(model):
    return None


def many(model):
    return {"loss": torch.ones(3)}
