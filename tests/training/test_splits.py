"""Splits of a data set into unlike shares."""

import numpy as np
import pytest
import torch

from slowlink.testbed.training import splits


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def labels():
    return torch.arange(1000) % 10


@pytest.mark.parametrize("name", splits.SPLITS)
@pytest.mark.parametrize("workers", [1, 3, 10])
def test_every_sample_goes_to_one_worker(name, workers, labels):
    shares = splits.split(name, labels, workers, generator())
    assert len(shares) == workers
    assert torch.cat(shares).sort().values.tolist() == list(range(1000))
    again = splits.split(name, labels, workers, generator())
    assert all(map(torch.equal, shares, again))
    if workers > 1:
        other = splits.split(name, labels, workers, generator(1))
        assert not all(map(torch.equal, shares, other))


def test_by_label_gives_few_labels(labels):
    # As many shards as labels, each of one label.
    shares = splits.by_label(labels, 5, generator(), shards_each=2)
    assert [len(share) for share in shares] == [200] * 5
    assert [len(labels[share].unique()) for share in shares] == [2] * 5


def test_by_label_of_unsorted_labels():
    labels = torch.tensor([1, 0, 2, 0, 1, 2])
    shares = splits.by_label(labels, 3, generator(), shards_each=1)
    assert sorted(sorted(share.tolist()) for share in shares) == [[0, 4], [1, 3], [2, 5]]


def test_dirichlet_is_even_for_large_alpha_and_apart_for_small(labels):
    def counts(alpha):
        shares = splits.dirichlet(labels, 4, generator(), alpha)
        return np.array([np.bincount(labels[share], minlength=10) for share in shares])

    assert np.abs(counts(1e6) - 25).max() <= 1
    # Nearly all of every label is with one worker.
    assert (counts(1e-3).max(axis=0) >= 95).all()
    # A Dirichlet share has variance (1/w)(1 - 1/w) / (w·alpha + 1).
    many = torch.arange(200_000) % 200
    shares = splits.dirichlet(many, 4, generator(), 0.5)
    spread = np.array([np.bincount(many[share], minlength=200) for share in shares]) / 1000
    assert spread.var() == pytest.approx(0.25 * 0.75 / 3, rel=0.15)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("sorted", {}, "no split 'sorted'; there are: even, by_label, dirichlet"),
        ("even", {"alpha": 1.0}, "even: unknown parameter 'alpha'; it takes: none"),
        ("dirichlet", {"alpha": 0.0}, "alpha must be a finite number above 0"),
        ("dirichlet", {"alpha": "much"}, "alpha must be a finite number above 0"),
        ("by_label", {"shards_each": 0}, "a whole number of at least 1, not 0"),
        ("by_label", {"shards_each": 1001}, "1000 samples are too few for 1001 shards"),
    ],
)
def test_what_cannot_be_is_refused(name, parameters, message, labels):
    with pytest.raises(ValueError, match=message):
        splits.split(name, labels, 1, generator(), **parameters)


def test_dirichlet_says_when_nobody_can_be_served():
    with pytest.raises(ValueError, match="leaves one of 4 workers without any of 3 samples"):
        splits.dirichlet(torch.tensor([0, 1, 2]), 4, generator())
