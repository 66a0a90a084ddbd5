"""Splits and samplers: nothing lost, nothing twice, frequencies as promised, all from the seed."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from slowlink.testbed.training.sampling import (
    SAMPLERS,
    batches,
    batches_in_rounds,
    split,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("n", "workers"), [(12, 12), (10, 3), (7, 1), (60_000, 12), (60_000, 7)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_shards_partition_the_data_evenly(n, workers, shuffled):
    shards = split(n, workers, seeded() if shuffled else None)
    assert torch.equal(torch.cat(shards).sort().values, torch.arange(n))
    bigger = n % workers
    assert [len(s) for s in shards] == [n // workers + (rank < bigger) for rank in range(workers)]


def test_contiguous_shards_are_worked_by_hand():
    assert [s.tolist() for s in split(8, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_shuffled_shards_depend_on_the_generator_alone():
    first, again, other = (torch.cat(split(100, 4, seeded(s))) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first, torch.arange(100))


@pytest.mark.parametrize(("n", "workers"), [(3, 4), (3, 0), (0, 1)])
def test_impossible_splits_are_refused(n, workers):
    with pytest.raises(ValueError, match=f"cannot split {n} samples over {workers} workers"):
        split(n, workers)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("size", [1, 4, 5, 10, 64])
def test_each_index_once_an_epoch(name, size):
    shard = torch.arange(100, 164)
    stream = batches(shard, size, name, seeded(), last="keep")
    for _ in range(3):
        epoch = list(islice(stream, -(-64 // size)))
        assert [len(b) for b in epoch] == [size] * (64 // size) + [64 % size] * (64 % size > 0)
        assert torch.equal(torch.cat(epoch).sort().values, shard)


@pytest.mark.parametrize("name", SAMPLERS)
def test_dropping_the_last_batch(name):
    shard = torch.arange(64)
    stream = batches(shard, 10, name, seeded())
    for _ in range(3):
        epoch = torch.cat(list(islice(stream, 6)))
        assert len(epoch) == len(epoch.unique()) == 60, "six whole batches of different samples"


def test_sequential_is_in_the_shards_order():
    shard = torch.tensor([5, 3, 9, 1, 7])
    got = [b.tolist() for b in islice(batches(shard, 2, "sequential", seeded()), 4)]
    assert got == [[5, 3], [9, 1], [5, 3], [9, 1]]
    got = [b.tolist() for b in islice(batches(shard, 2, "sequential", seeded(), "keep"), 4)]
    assert got == [[5, 3], [9, 1], [7], [5, 3]]


def test_random_epochs_differ_and_repeat_with_the_seed():
    shard = torch.arange(50)
    first, again, other = (
        torch.stack(list(islice(batches(shard, 50, "random", seeded(s)), 3))) for s in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])


def test_random_positions_are_uniform():
    # each of 6 samples comes first in a sixth of 6,000 epochs: within 5 standard deviations
    stream = batches(torch.arange(6), 6, "random", seeded(3))
    firsts = torch.tensor([int(b[0]) for b in islice(stream, 6000)])
    deviation = (6000 * (1 / 6) * (5 / 6)) ** 0.5
    assert (torch.bincount(firsts, minlength=6) - 1000).abs().max() < 5 * deviation


def test_rounds_have_samples_of_their_own():
    def samples(number):
        return torch.arange(5) + 10 * number

    def stream(iterations):
        return batches_in_rounds(samples, iterations, 2, "sequential", seeded)

    taken = [batch.tolist() for batch in islice(stream(4), 9)]
    first, second = ([[n, n + 1], [n + 2, n + 3], [n + 4], [n, n + 1]] for n in (10, 20))
    assert taken == [*first, *second, [30, 31]]
    taken = [batch.tolist() for batch in islice(stream(2), 4)]
    assert taken == [[10, 11], [12, 13], [20, 21], [22, 23]]


def test_a_rounds_order_is_its_own():
    stream = batches_in_rounds(lambda number: torch.arange(20), 2, 20, "random", seeded)
    found = list(islice(stream, 4))
    for number in (1, 2):
        alone = batches(torch.arange(20), 20, "random", seeded(number))
        assert all(map(torch.equal, islice(alone, 2), found[2 * number - 2 :]))
    assert not torch.equal(found[0], found[2])


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    split(100, 3, seeded())
    list(islice(batches(torch.arange(10), 3, "random", seeded()), 9))
    assert torch.equal(before, torch.get_rng_state())


def test_bad_requests_are_refused_before_the_first_batch():
    shard = torch.arange(5)
    with pytest.raises(ValueError, match="no sampler 'shuffle'; there are: random, sequential"):
        batches(shard, 2, "shuffle", seeded())
    with pytest.raises(ValueError, match="no batch of 6 fits in a shard of 5"):
        batches(shard, 6, "random", seeded())
    with pytest.raises(ValueError, match="no batch of 0"):
        batches(shard, 0, "random", seeded())
    with pytest.raises(ValueError, match="no batch of 1 fits in a shard of 0"):
        batches(shard[:0], 1, "sequential", seeded(), last="keep")
    with pytest.raises(ValueError, match="'drop' or 'keep', not 'pad'"):
        batches(shard, 2, "random", seeded(), last="pad")
    assert len(next(batches(shard, 6, "random", seeded(), last="keep"))) == 5
