"""Clients that train and then send something else, for trials of what a server can stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from slowlink.testbed.live.dds.federated.training import sgd


def spoiled(factor: float, noise: float = 0.0) -> Callable[..., Iterator[None]]:
    """A client's ``script``, see :func:`.training.sgd`, that in the end has changed the model by
    ``factor`` times what it learned, and by Gaussian noise as long as ``noise`` times that.

    -1 turns the change around, -10 a longer one, and 0 with noise sends nothing but noise, as
    Blanchard et al. 2017 [@blanchard2017machine] do.
    """

    def script(model, data, index, *, generator: Generator, **how: Any) -> Iterator[None]:
        start = parameters_to_vector(model.parameters()).detach().clone()
        yield from sgd(model, data, index, generator=generator, **how)
        with torch.no_grad():
            change = parameters_to_vector(model.parameters()) - start
            drawn = torch.randn(len(change), generator=generator)
            drawn *= noise * change.norm() / drawn.norm()
            vector_to_parameters(start + factor * change + drawn, model.parameters())

    return script
