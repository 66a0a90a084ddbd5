"""Running plans on integers, so that a contribution missing or doubled cannot hide in rounding."""

from __future__ import annotations

import numpy as np

from slowlink.testbed.network import execute


def total_is_exact(plan, seed=0):
    """Every receiver of ``plan`` ends with the sum of what the contributors began with."""
    rng = np.random.default_rng(seed)
    arrays = {int(node): rng.integers(-1000, 1000, (3, 37)) for node in plan.contributors}
    got = execute(plan, arrays)
    assert sorted(got) == sorted(plan.receivers.tolist())
    for result in got.values():
        assert np.array_equal(result, sum(arrays.values()))
