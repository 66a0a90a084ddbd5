"""Gradients of eight workers by the ways to compute them, beside one pass a worker.

The ratio to ``one_by_one`` of the same run goes into ``extra_info``; no way is asserted to win,
since that depends on the machine.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

from slowlink.testbed.training import batching, models

WORKERS, ROUNDS = 8, 5
SIZES = {
    "lenet5": ({}, (16, 64)),
    "strided_cnn": ({}, (16, 64)),
    "cnn3": ({"width": 8}, (16, 64)),
}
CASES = [
    (name, batch, how)
    for name, (_, batches) in SIZES.items()
    for batch, how in itertools.product(batches, ("one_by_one", "channels_last", "vmap"))
]


@cache
def seconds(name: str, batch: int) -> dict[str, float]:
    model, shape = models.make(name, **SIZES[name][0]), models.sample_shape(name)
    return batching.measure(model, shape, WORKERS, batch, repeats=ROUNDS)


@pytest.mark.parametrize(("name", "batch", "how"), CASES)
def test_gradients(benchmark, name, batch, how):
    benchmark.group = f"gradients of {WORKERS} workers, {name}, batch {batch}"
    model, shape = models.make(name, **SIZES[name][0]), models.sample_shape(name)
    leaves = list(model.parameters())
    parameters = [[p.detach().clone() for p in leaves] for _ in range(WORKERS)]
    images = [models.samples(model, shape, batch)] * WORKERS
    labels = [torch.arange(batch) % 10] * WORKERS
    found, losses = benchmark.pedantic(
        batching.gradients,
        args=(model, leaves, parameters, images, labels, how),
        rounds=ROUNDS,
        warmup_rounds=1,
    )
    took = seconds(name, batch)
    benchmark.extra_info |= {
        "threads": torch.get_num_threads(),
        "times_one_by_one": took[how] / took["one_by_one"],
    }
    assert len(found) == len(losses) == WORKERS
