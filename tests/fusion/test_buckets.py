"""Buckets against those that torch itself fills."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from slowlink.methods import fusion


@pytest.mark.parametrize("seed", range(10))
def test_buckets_are_those_of_torch(seed):
    rng = np.random.default_rng(seed)
    sizes = (10 ** rng.uniform(1, 6.5, rng.integers(1, 200))).astype(int).tolist()
    with torch.device("meta"):
        tensors = [torch.empty(size) for size in sizes]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [2**20, 25 * 2**20])
    assert fusion.load("buckets")(sizes) == theirs


def test_no_tensors_fill_no_bucket():
    assert fusion.load("buckets")([]) == []
    assert fusion.load("buckets", first=1e-6)([1, 1]) == [[0], [1]]


@pytest.mark.parametrize("name", ["megabytes", "first"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_sizes_that_are_none_are_refused(name, value):
    with pytest.raises(ValueError, match=f"buckets: {name} must be above 0"):
        fusion.load("buckets", **{name: value})
