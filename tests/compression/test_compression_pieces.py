"""The pieces against independent oracles and worked numbers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slowlink.methods.compression.pieces import memory, packing, sampling


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("n", "share", "floor", "ceil"),
    [
        (100, 0.29, 29, 29),
        (1_000, 0.001, 1, 1),
        (999, 0.01, 9, 10),
        (7, 1.0, 7, 7),
        (3, 1e-5, 0, 1),
    ],
)
def test_shares_are_decimal(n, share, floor, ceil):
    assert sampling.floor_share(n, share) == floor
    assert sampling.ceil_share(n, share) == ceil


@given(n=st.integers(1, 5_000), part=st.floats(0.001, 1), seed=st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_scattered_positions_are_distinct_and_one_a_part(n, part, seed):
    m = max(1, int(n * part))
    at = sampling.scattered_positions(n, m, sampling.generator(seed, "w", 0)).tolist()
    assert len(at) == m
    assert all(i * n // m <= position < (i + 1) * n // m for i, position in enumerate(at))


def test_scattered_positions_are_uniform():
    counts = np.zeros(50)
    for step in range(2_000):
        at = sampling.scattered_positions(50, 7, sampling.generator(0, "w", step))
        counts[at.numpy()] += 1
    # One of each seventh: an index of a part of 7 has chance 1/7, of a part of 8 has 1/8.
    edges = np.arange(8) * 50 // 7
    width = np.repeat(np.diff(edges), np.diff(edges))
    assert stats.chisquare(counts, 2_000 / width).pvalue > 0.001


@given(n=st.integers(1, 5_000), part=st.floats(0.001, 1), seed=st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_strided_positions_are_enough_odd_and_in_range(n, part, seed):
    m = max(1, int(n * part))
    at = sampling.strided_positions(n, m, partial(sampling.generator, seed, "w", 0)).numpy()
    assert m <= len(at) <= max(2 * m + 2, n if n < 3 * m else 0)
    assert at[0] >= 0 and at[-1] < n
    strides = set(np.diff(at))
    assert len(strides) <= 1 and all(stride % 2 for stride in strides)


def test_strided_positions_reach_every_index():
    seen = set()
    for step in range(200):
        random = partial(sampling.generator, 0, "w", step)
        seen |= set(sampling.strided_positions(60, 6, random).tolist())
    assert seen == set(range(60))


def test_generators_depend_on_seed_key_and_step():
    def draw(*identity):
        return torch.rand(3, generator=sampling.generator(*identity)).tolist()

    identities = [(0, "w", 0), (1, "w", 0), (0, "v", 0), (0, "w", 1), (0, ("w", 0), 0), (0, 7, 0)]
    assert len({tuple(draw(*identity)) for identity in identities}) == len(identities)
    assert draw(0, "w", 0) == draw(0, "w", 0)


@pytest.mark.parametrize("kinds", [1, 3, 1000])
@pytest.mark.parametrize("order", [np.array, np.sort, lambda values: np.sort(values)[::-1]])
def test_selection_finds_what_sorting_does(kinds, order):
    random = np.random.default_rng(kinds)
    for n in (1, 2, 3, 4, 7, 64, 301):
        values = order(random.integers(0, kinds, n, dtype=np.int32))
        for place in range(n):
            taken = values.copy()
            assert sampling._kth(taken, place) == np.sort(values)[place]
            assert (np.sort(taken) == np.sort(values)).all()


@pytest.mark.parametrize("n", [0, 1, 1_000, 2**18, 2**18 + 1, 2**19 + 9])
def test_indices_at_least_equals_a_plain_search(n):
    values, threshold = normal(n), torch.tensor(2.0)
    found = sampling.indices_at_least(values, threshold)
    assert found.dtype == torch.int64
    assert found.tolist() == np.flatnonzero(np.abs(values.numpy()) >= 2).tolist()


def test_kth_largest_and_largest_of():
    values = torch.tensor([3.0, -9.0, 1.0, 4.0, -4.0])
    assert [float(sampling.kth_largest(values.abs(), k)) for k in (1, 2, 3, 5)] == [9, 4, 4, 1]
    indices = torch.tensor([0, 1, 2, 4])
    assert sampling.largest_of(values, indices, 2).tolist() == [1, 4]
    assert sampling.largest_of(values, indices, 9).tolist() == [0, 1, 2, 4]
    assert sampling.largest_of(-values, torch.arange(5), 2).tolist() == [1, 3]  # ties: the first
    assert sampling.largest_of(values, indices, 0).tolist() == []


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("n", [0, 1, 511, 513, 1_000, 2**18 + 1, 2**19 + 9])
def test_correcting_and_searching_at_once_is_one_after_the_other(n, nesterov):
    g, *buffers = (normal(n, seed) for seed in range(3))
    expected = [buffer.clone() for buffer in buffers]
    memory.momentum_correct(g, *expected, 0.9, nesterov)
    found = memory.correct_and_find(g, *buffers, 0.9, 2.0, nesterov)
    assert all(map(torch.equal, buffers, expected))
    assert found.tolist() == np.flatnonzero(np.abs(expected[1].numpy()) >= 2).tolist()


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros"])
@pytest.mark.parametrize("n", [1, 511, 513, 1_000, 48_000, 2**18, 2**19 + 9])
def test_the_largest_of_a_sum_are_taken_and_leave_zeros(n, kind):
    g, residual, k = normal(n), normal(n, 1), -(-n // 100)
    if kind == "ties":
        g, residual = g.round(), residual.round()
    elif kind == "zeros":  # fewer are not than are taken
        g, residual = torch.zeros(n), torch.zeros(n)
        g[:: 2 * n // k + 1] = normal(len(g[:: 2 * n // k + 1]))
    total = residual + g
    values, taken = memory.take_largest(g, k, "a tensor", residual)
    by_size = np.argsort(-np.abs(total.numpy()), kind="stable")
    assert taken.tolist() == sorted(by_size[:k].tolist())
    assert torch.equal(values, total[taken])
    alone = memory.take_largest(total, k, "a tensor")
    assert torch.equal(alone[0], values) and torch.equal(alone[1], taken)
    total[taken] = 0
    assert torch.equal(residual, total)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1_001, packing.SMALL, packing.SMALL + 1, 2**18 + 5])
@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_a_stream_of_bits(bits, n):
    """Held against numpy's bits, few codes and many; bits beyond the last must be 0."""
    codes = torch.randint(2**bits, (n,), generator=torch.Generator().manual_seed(n))
    each = np.unpackbits(codes.numpy().astype(np.uint8)[:, None], axis=1)[:, 8 - bits :]
    packed = packing.pack(codes.to(torch.uint8), bits)
    assert packed.numpy().tobytes() == np.packbits(each.ravel()).tobytes()
    assert torch.equal(packing.unpack(packed, bits, n, "codes").long(), codes)
    levels = normal(2**bits)
    assert torch.equal(packing.unpack_levels(packed, bits, levels, n, "codes"), levels[codes])
    for more in range(2):
        padded = torch.cat([packed, torch.zeros(more, dtype=torch.uint8)])
        if 8 * len(padded) > n * bits:
            padded[-1] |= 1
            with pytest.raises(ValueError, match="beyond the last code"):
                packing.unpack(padded, bits, n, "codes")
    if n:
        levels[codes[-1]] = torch.nan
        with pytest.raises(ValueError, match=f"a {bits}-bit code stands for nothing"):
            packing.unpack_levels(packed, bits, levels, n, "codes")


@pytest.mark.parametrize("nesterov", [False, True])
def test_kernels_equal_plain_tensor_operations_bit_by_bit(nesterov):
    g, u, v = (normal(10_001, seed) for seed in range(3))
    if nesterov:
        expected_u = (u + g) * 0.9
        expected_v = v + expected_u + g
    else:
        expected_u = u * 0.9 + g
        expected_v = v + expected_u
    memory.momentum_correct(g, u, v, 0.9, nesterov)
    assert torch.equal(u, expected_u) and torch.equal(v, expected_v)
    large, residual = normal(2**18 + 9), normal(2**18 + 9, 1)
    expected = residual + large
    assert torch.equal(memory.accumulate(large, residual), expected)
    assert torch.equal(residual, expected)


def test_momentum_correction_by_hand():
    velocity, accumulated = torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0])
    memory.momentum_correct(torch.tensor([1.0, 4.0]), velocity, accumulated, 0.5)
    assert (velocity.tolist(), accumulated.tolist()) == ([2, 4], [3, 5])
    memory.momentum_correct(torch.tensor([2.0, 0.0]), velocity, accumulated, 0.5, nesterov=True)
    # velocity = 0.5·([2, 4] + [2, 0]); accumulated += velocity + [2, 0]
    assert (velocity.tolist(), accumulated.tolist()) == ([2, 2], [7, 7])


def test_momentum_correction_with_everything_sent_is_momentum_sgd():
    """Without sparsity the sum of what is sent equals the optimiser's own momentum."""
    weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimiser = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    velocity, sent = (torch.zeros(5, dtype=torch.float64) for _ in range(2))
    for seed in range(6):
        weight.grad = normal(5, seed).double()
        optimiser.step()
        memory.momentum_correct(weight.grad, velocity, sent, 0.9)
    torch.testing.assert_close(weight.detach(), -sent)


def test_mask_and_accumulate():
    a, b = torch.arange(4.0), torch.ones(4)
    memory.mask(torch.tensor([1, 3]), a, b)
    assert (a.tolist(), b.tolist()) == ([0, 0, 2, 0], [1, 0, 1, 0])
    assert memory.accumulate(torch.ones(4), a) is a
    assert a.tolist() == [1, 1, 3, 1]


def test_clip_by_norm():
    gradient = torch.tensor([3.0, 4.0])
    assert memory.clip_by_norm(gradient, 5.0) is gradient
    assert memory.clip_by_norm(gradient, 2.5).tolist() == [1.5, 2]
    assert memory.clip_by_norm(gradient, 5.0, parties=4).tolist() == [1.5, 2]
    huge = torch.full((2,), 3e38)  # the norm does not overflow
    assert memory.clip_by_norm(huge, 1.0).tolist() == pytest.approx([0.5**0.5] * 2)


def test_warm_up_schedule():
    ratios = memory.warmup_ratios(0.0001, 3)
    assert ratios == pytest.approx((0.1, 0.01, 0.001))
    assert memory.warmup_ratios(0.1, 0) == ()
    steps = [memory.scheduled_ratio(step, 0.5, (0.9, 0.8), 3) for step in (0, 2, 3, 5, 6, 99)]
    assert steps == [0.9, 0.9, 0.8, 0.8, 0.5, 0.5]


@pytest.mark.parametrize("read", ["codes", "levels"])
def test_unpack_refuses_stray_bits(read):
    packed, levels = torch.tensor([0xC0, 1], dtype=torch.uint8), torch.arange(4.0)
    with pytest.raises(ValueError, match="test: bits beyond the last code are not 0"):
        if read == "codes":
            packing.unpack(packed, 2, 7, "test")
        else:
            packing.unpack_levels(packed, 2, levels, 7, "test")


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("n", [0, 1, 3, 8, 17, 1_000])
def test_unpack_levels_is_the_level_of_each_code(bits, n):
    codes = torch.randint(2**bits, (n,), generator=torch.Generator().manual_seed(n)).byte()
    levels = normal(2**bits)
    read = packing.unpack_levels(packing.pack(codes, bits), bits, levels, n, "test")
    assert torch.equal(read, levels[codes.int()])


def test_unpack_levels_refuses_forbidden_codes():
    levels = torch.tensor([0.0, torch.nan, 2.0, 3.0])
    good, bad = (torch.tensor([byte], dtype=torch.uint8) for byte in (0b11100010, 0b11100110))
    assert packing.unpack_levels(good, 2, levels, 4, "test").tolist() == [3, 2, 0, 2]
    with pytest.raises(ValueError, match="test: a 2-bit code stands for nothing"):
        packing.unpack_levels(bad, 2, levels, 4, "test")


def sparse(indices: list[int], seed: int) -> packing.Pairs:
    order = np.array(sorted(set(indices)), np.int64)
    return normal(len(order), seed).numpy(), order


index_lists = st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=5)


@given(lists=index_lists)
@settings(max_examples=100, deadline=None)
def test_union_sum_equals_the_dense_sum(lists):
    parties = [sparse(indices, seed) for seed, indices in enumerate(lists)]
    dense, present = np.zeros(41, np.float32), np.zeros(41, bool)
    for values, indices in parties:
        dense[indices] += values
        present[indices] = True
    values, indices = packing.union_sum(parties)
    assert indices.tolist() == np.flatnonzero(present).tolist()
    assert values.dtype == np.float32 and np.array_equal(values, dense[indices])
    assert np.array_equal(packing.scatter((values, indices), 41).numpy(), dense)


@given(indices=st.lists(st.integers(0, 2**24 - 1), max_size=20), spare=st.integers(0, 4))
@settings(max_examples=100, deadline=None)
def test_pairs_survive_either_form(indices, spare):
    pairs = sparse(indices, 0)
    room = len(pairs[0]) + spare
    for body, padded in (
        (packing.write_pairs(*pairs), False),
        (packing.write_pairs(*pairs, room), True),
    ):
        assert len(body) == 8 * (room if padded else len(pairs[0]))
        values, at = packing.read_pairs(body, 2**24, "test", padded)
        assert np.array_equal(values, pairs[0]) and np.array_equal(at, pairs[1])


@pytest.mark.parametrize(
    ("values", "indices", "message"),
    [
        ([1, 7], [0, -1], "padding is not"),
        ([5, -65530], [-1, 3], "padding is not"),
        ([-65530, 2], [-1, 1], "padding is not"),
        ([1, 2], [0, 1.5], "not a whole number"),
        ([1, 2], [0, np.inf], "not a whole number"),
        ([1, 2], [-2, 3], "outside 0…3"),
        ([1, 2], [3, 4], "outside 0…3"),
        ([1, 2], [1, 1], "do not ascend"),
        ([1, np.nan], [1, 2], "NaN or infinite"),
    ],
)
def test_malformed_padded_pairs(values, indices, message):
    with pytest.raises(ValueError, match=f"test: .*{message}"):
        packing.read_pairs(np.array(values + indices, "<f4").tobytes(), 4, "test", padded=True)


def test_pairs_need_their_room():
    with pytest.raises(ValueError, match="2 pairs do not fit into a body of 1"):
        packing.write_pairs(*sparse([1, 2], 0), 1)


def test_arrays_are_little_endian():
    assert packing.to_bytes(torch.tensor([1, 2]), "int16").hex() == "01000200"
    assert packing.from_bytes(b"\x01\x00\x02\x00", "int16", 2, "test").tolist() == [1, 2]


def test_check_finite_counts_and_tolerates_sums_that_overflow():
    packing.check_finite(torch.full((4,), 3e38), "test")  # the sum is infinite, no value is
    packing.check_finite(torch.empty(0), "test")
    bad = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    with pytest.raises(ValueError, match="test: 3 of 4 values are NaN or infinite"):
        packing.check_finite(bad, "test")


class OnAnotherDevice(torch.Tensor):
    """As a CUDA tensor is: numpy must not look into it."""

    def __array__(self, *_):
        raise TypeError("can't convert a tensor of another device to numpy")


def test_a_threshold_may_lie_on_another_device():
    values = normal(1_000)
    threshold = torch.tensor(1.5).as_subclass(OnAnotherDevice)
    found = sampling.indices_at_least(values, threshold)
    assert torch.equal(found, (values.abs() >= 1.5).nonzero().view(-1))


def test_bodies_on_a_device_are_those_of_the_processor():
    """Put together by torch alone, which other devices have, too."""
    parts = (torch.tensor([1.5, -2.0]), "float32"), (torch.tensor([3, 4, 5]), "int32")
    parts += ((np.array([7, 8, 9], np.uint8), "uint8"), (torch.tensor([0.1]), "float16"))
    on_device = packing.join_on(torch.device("cpu"), *parts, head=b"head")
    assert on_device.dtype == torch.uint8
    assert on_device.numpy().tobytes() == packing.join(*parts, head=b"head")


@pytest.mark.parametrize("n", [0, 1, 5, 3 * 2**18 + 1])
def test_scale_is_a_product_in_place_of_finite_values(n):
    values = torch.randn(n)
    wanted = values * (1 / 3)
    assert packing.scale(values, 1 / 3, "g") is values and values.equal(wanted)
    for bad in (torch.inf, torch.nan) if n else ():
        values[-1] = bad
        with pytest.raises(ValueError, match=f"^g: 1 of {n} values are NaN or infinite"):
            packing.scale(values, 1 / 3, "g")


@pytest.mark.parametrize("n", [0, 1, 5, 8, 4 * 2**18 + 3])
def test_saturate_takes_infinite_halves_and_nothing_else(n):
    """Held against torch's clamp, of the largest and smallest values, with every one infinite."""
    most = torch.finfo(torch.float16).max
    ends = torch.tensor([most, -most, -0.0, 0.0, 6e-8, -6e-8, 1.0], dtype=torch.float16)
    halves = ends.repeat(n // 7 + 1)[:n]
    assert packing.saturate(halves.clone(), most).equal(halves)
    for place in {*range(min(n, 8)), *range(max(0, n - 4), n)}:
        for infinite in (torch.inf, -torch.inf):
            halves[place] = infinite
            wanted = halves.clone().clamp_(-most, most)
            assert packing.saturate(halves, most) is halves and halves.equal(wanted)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 2**18 + 65])
def test_halves_are_those_of_torch(monkeypatch, n, native):
    """Held against torch's conversions, of magnitudes from below the least half to the largest."""
    monkeypatch.setattr(packing.vectors, "HALVES", native and packing.vectors.HALVES)
    values, most = normal(n) * torch.logspace(-9, 4, n), torch.finfo(torch.float16).max
    for factor in (1.0, 0.5, 1 / 3):
        halves, beyond = packing.write_halves(values, "g", most, factor)
        assert halves.equal((values * factor).half()) and beyond == 0
        back = packing.from_bytes(halves.numpy().tobytes(), "float16", n, "g")
        assert back.equal(halves.float())
    for place in {0, n // 2, n - 1} if n else ():
        large = values.clone()
        large[place] = 70000.0
        halves, beyond = packing.write_halves(large, "g", most)
        assert beyond == 1 and halves[place] == most
        large[place] = torch.nan
        with pytest.raises(ValueError, match=f"^g: 1 of {n} values are NaN or infinite"):
            packing.write_halves(large, "g", most)
        with pytest.raises(ValueError, match="^g: 1 of"):
            packing.from_bytes(large.half().numpy().tobytes(), "float16", n, "g")


def test_halves_of_no_values_are_saturated():
    """Of a dimension of 0, torch gives a stride that no view of bytes takes."""
    assert packing.saturate(torch.zeros(4, dtype=torch.float16)[::2][:0], 65504.0).numel() == 0
