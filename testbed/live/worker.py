"""One worker of a live run. Imports little, for every worker is a process that starts anew."""

from __future__ import annotations

import threading
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from slowlink.testbed.training.augmentation import standardise
from slowlink.testbed.training.sampling import batches


class Worker:
    """A replica of the model with its share of the data; the driver calls one thing at a time.

    Parameters
    ----------
    images, labels: its share: (n, channels, height, width) uint8 and (n,) int64.
    mean, std: (channels,) of all images.
    travels: what it gives to the server: its last ``gradient``, or a ``delta``.
    slow: it sleeps (slow - 1) times as long as an iteration took.
    seed: of the order of its samples.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        mean: Tensor,
        std: Tensor,
        *,
        travels: str,
        lr: float,
        momentum: float,
        batch: int,
        slow: float,
        seed: int,
    ) -> None:
        torch.set_num_threads(1)
        self.model, self.images, self.labels = model, images, labels
        self.mean, self.std = mean, std
        self.travels, self.slow = travels, slow
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr, momentum)
        self.base = self._vector()
        every = torch.arange(len(labels))
        generator = torch.Generator().manual_seed(seed)
        self.stream = batches(every, batch, "random", generator)
        # A first pass is slow, so it is made before the first iteration.
        self._backward(every[:batch])
        self.optimizer.zero_grad(set_to_none=False)

    def watch(self) -> None:
        """Never returns: the driver hears at once when this process dies."""
        threading.Event().wait()

    def ready(self) -> None:
        """Return once the worker is built."""

    def compute(self) -> None:
        """One iteration: a gradient and, unless gradients travel, a step."""
        start = time.perf_counter()
        self._backward(next(self.stream))
        if self.travels == "delta":
            self.optimizer.step()
        time.sleep((self.slow - 1) * (time.perf_counter() - start))

    def give(self, level: int) -> np.ndarray:
        """(n,) for a push: the parameters to an inner level; to the server the last gradient, or
        the change since the server's last model."""
        if level != -1:
            return self._vector().numpy()
        if self.travels == "gradient":
            return torch.cat([p.grad.flatten() for p in self.parameters]).numpy()
        return (self._vector() - self.base).numpy()

    def take(self, values: np.ndarray, level: int) -> None:
        """Go on with the (n,) parameters that were pulled."""
        vector = torch.tensor(values)  # a copy, because Ray shares memory read-only
        vector_to_parameters(vector, self.parameters)
        if level == -1:
            self.base = vector.clone()

    def _vector(self) -> Tensor:
        return parameters_to_vector(self.parameters).detach()

    def _backward(self, index: Tensor) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        scores = self.model(standardise(self.images[index], self.mean, self.std))
        loss = nn.functional.cross_entropy(scores, self.labels[index])
        if not torch.isfinite(loss):
            from slowlink.testbed.training.learner import (
                Diverged,  # it is slow to import and seldom needed
            )

            raise Diverged(f"loss is {loss.item()}; lower lr")
        loss.backward()
