"""Rules against other implementations, by brute force, and under attack."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from slowlink.methods import aggregation

ROBUST = [name for name in aggregation.names() if name != "mean"]


def draw(members, values=13, seed=0):
    return torch.randn(members, values, generator=torch.Generator().manual_seed(seed))


def equal(members):
    return [1 / members for _ in range(members)]


@pytest.mark.parametrize("name", aggregation.names())
@pytest.mark.parametrize("members", [5, 6, 9])
def test_of_equal_updates_it_is_that_update(name, members):
    update = draw(1)
    got = aggregation.load(name)(update.expand(members, -1), equal(members))
    torch.testing.assert_close(got, update[0])


@pytest.mark.parametrize("name", aggregation.names())
def test_it_moves_with_its_origin(name):
    """Weights of models combine as their changes from the model do."""
    updates, origin, rule = draw(7), draw(1, seed=1)[0], aggregation.load(name)
    changes = rule(updates, equal(7))
    torch.testing.assert_close(rule(updates + origin, equal(7), origin), changes + origin)


@pytest.mark.parametrize("name", aggregation.names())
def test_what_is_bounded_stays_bounded_by_the_others(name):
    """Two of nine send 1e30; the honest lie within 5 of 0."""
    updates, rule = draw(9), aggregation.load(name)
    rule = aggregation.load(name, byzantine=2) if name == "krum" else rule
    updates[3], updates[7] = 1e30, -3e37
    got = rule(updates, equal(9))
    assert torch.isfinite(got).all()
    assert (got.abs().max() < 5) == (name in ROBUST)


@pytest.mark.parametrize("name", aggregation.names())
def test_too_few_are_refused(name):
    rule = aggregation.load(name)
    with pytest.raises(ValueError, match=f"{name}: {rule.least - 1} members .* needs {rule.least}"):
        rule(draw(rule.least - 1), equal(rule.least - 1))


def test_mean_is_weighted():
    updates = draw(3)
    expected = 0.5 * updates[0] + 0.2 * updates[1] + 0.3 * updates[2]
    got = aggregation.load("mean")(updates, [0.5, 0.2, 0.3])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("members", range(1, 12))
def test_median_is_that_of_numpy_and_of_torch_where_one_is_in_the_middle(members):
    updates = draw(members)
    got = aggregation.load("median")(updates, equal(members))
    np.testing.assert_allclose(got, np.median(updates.numpy(), axis=0), rtol=1e-6)
    if members % 2:
        assert torch.equal(got, torch.median(updates, dim=0).values)


@pytest.mark.parametrize("members", range(1, 12))
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.25, 0.34, 0.49])
def test_trimmed_mean_is_that_of_scipy(members, trim):
    updates = draw(members)
    got = aggregation.load("trimmed_mean", trim=trim)(updates, equal(members))
    expected = stats.trim_mean(updates.double().numpy(), trim, axis=0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_a_share_is_the_decimal_that_is_written():
    """0.29 of 100 are 29, though the product of floats is less."""
    updates = draw(100)
    got = aggregation.load("trimmed_mean", trim=0.29)(updates, equal(100))
    assert torch.equal(got, updates.sort(dim=0).values[29:71].mean(dim=0))


@pytest.mark.parametrize("members, byzantine", [(5, 1), (7, 1), (7, 2), (9, 3), (4, 0)])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_krum_by_brute_force(members, byzantine, keep):
    """The score of one is the least sum over every choice of so many others."""
    updates = draw(members, seed=members + keep)
    rows = updates.double().numpy()
    scores = []
    for one in range(members):
        away = [((rows[one] - rows[other]) ** 2).sum() for other in range(members) if other != one]
        scores.append(min(map(sum, itertools.combinations(away, members - byzantine - 2))))
    expected = sorted(np.argsort(scores, kind="stable")[:keep].tolist())
    rule = aggregation.load("krum", byzantine=byzantine, keep=keep)
    assert rule.chosen(updates) == expected
    torch.testing.assert_close(rule(updates, equal(members)), updates[expected].mean(dim=0))


def test_krum_leaves_out_who_is_far_and_takes_the_first_of_equals():
    updates = torch.zeros(6, 3)
    updates[0] = 7
    rule = aggregation.load("krum", byzantine=1, keep=3)
    assert rule.chosen(updates) == [1, 2, 3]


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_norm_bound_scales_down_who_is_longer(times):
    updates, weights = draw(6), [0.1, 0.1, 0.2, 0.2, 0.3, 0.1]
    norms = np.linalg.norm(updates.double().numpy(), axis=1)
    scaled = updates.numpy() * np.minimum(1, times * np.median(norms) / norms)[:, None]
    got = aggregation.load("norm_bound", times=times)(updates, weights)
    np.testing.assert_allclose(got, np.average(scaled, axis=0, weights=weights), rtol=1e-5)


def test_norm_bound_of_nothing_is_nothing():
    rule = aggregation.load("norm_bound")
    assert not rule(torch.zeros(3, 4), equal(3)).any()
    assert not rule(torch.tensor([[0.0], [0.0], [9.0]]), equal(3)).any()


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("trimmed_mean", dict(trim=0.5)),
        ("trimmed_mean", dict(trim=-0.1)),
        ("krum", dict(byzantine=-1)),
        ("krum", dict(byzantine=1.5)),
        ("krum", dict(keep=0)),
        ("norm_bound", dict(times=0.0)),
        ("norm_bound", dict(times=float("nan"))),
    ],
)
def test_what_cannot_be_is_refused(name, wrong):
    with pytest.raises(ValueError, match=f"{name}: {next(iter(wrong))} must be"):
        aggregation.load(name, **wrong)
