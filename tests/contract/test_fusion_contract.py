"""What every fusion promises, whichever files are there."""

import dataclasses
import math

import numpy as np
import pytest

from slowlink.methods import fusion
from slowlink.methods.fusion import Costs, timeline

NEEDY = [name for name in fusion.names() if fusion.load(name).needs_costs]


def case(n, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 10_000, n).tolist()
    costs = Costs.by_values(
        sizes,
        backward_s=rng.exponential(0.1, n).tolist(),
        encode=lambda values: 0.02 + 1e-5 * values,
        communicate=lambda values: 0.05 + 1e-3 * values**0.8,
        decode=lambda values: 0.01 + 1e-5 * values,
        forward_s=0.5,
    )
    return sizes, costs


@pytest.mark.parametrize("n", [0, 1, 2, 50])
@pytest.mark.parametrize("name", fusion.names())
def test_every_tensor_once_in_order_and_alike_each_time(name, n):
    sizes, costs = case(n)
    groups = fusion.load(name)(sizes, costs)
    assert [i for group in groups for i in group] == list(range(n))
    assert all(groups)
    assert groups == fusion.load(name)(tuple(sizes), dataclasses.replace(costs))


@pytest.mark.parametrize("n", [0, 3])
@pytest.mark.parametrize("name", sorted(set(fusion.names()) - set(NEEDY)))
def test_who_needs_no_costs_groups_alike_without(name, n):
    sizes, costs = case(n)
    assert fusion.load(name)(sizes) == fusion.load(name)(sizes, costs)


@pytest.mark.parametrize("name", NEEDY)
def test_costs_that_are_missing_or_do_not_fit_are_refused(name):
    sizes, costs = case(4)
    method = fusion.load(name)
    with pytest.raises(ValueError, match=f"^{name}: needs costs"):
        method(sizes)
    with pytest.raises(ValueError, match=f"^{name}: .*3 backward times.*4 tensors"):
        method(sizes, dataclasses.replace(costs, backward_s=costs.backward_s[:3]))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"^{name}: backward_s\[0\] must be finite"):
            method(sizes, dataclasses.replace(costs, backward_s=[bad, 0.0, 0.0, 0.0]))
        with pytest.raises(ValueError, match=rf"^{name}: communicate\(\d, \d\) must be finite"):
            method(sizes, dataclasses.replace(costs, communicate=lambda begin, end, bad=bad: bad))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", fusion.names())
def test_nobody_beats_the_optimum(name, seed):
    sizes, costs = case(50, seed)
    best, here = (
        timeline(sizes, fusion.load(n)(sizes, costs), costs).iteration_s for n in ("optimal", name)
    )
    assert best <= here * (1 + 1e-9)
