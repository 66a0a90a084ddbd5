"""The count-sketch against a naive one, against exact sums, and against its theory.

The rows of a sketch are independent, so statistics come from sketches of thousands of rows.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from slowlink.methods.compression.pieces import sketch as sketching

MANY = 4001


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def integers(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1000, 1001, (n,), generator=generator).float()


def where(hashing, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, n) cells and signs of all values, by exact Python integers."""
    width = hashing.flips.shape[1]
    at, signs = [], []
    for starts, of_block, of_place in zip(
        hashing.starts.tolist(), hashing.signs.tolist(), hashing.flips.tolist(), strict=True
    ):
        at.append([(starts[i // width] + i % width) % hashing.columns for i in range(n)])
        signs.append([of_block[i // width] * of_place[i % width] for i in range(n)])
    return np.array(at), np.array(signs)


def naive(values: np.ndarray, rows: int, columns: int, seed: int) -> np.ndarray:
    """Estimates of a count-sketch that hashes each value by itself, in float64."""
    random = np.random.default_rng(seed)
    each = []
    for _ in range(rows):
        at = random.integers(columns, size=len(values))
        signs = random.choice([-1.0, 1.0], size=len(values))
        sums = np.bincount(at, signs * values, minlength=columns)
        each.append(signs * sums[at])
    return np.median(each, axis=0)


# The same as exact arithmetic says, on any number of threads and by either path.


@pytest.mark.parametrize(("n", "columns"), [(1, 1), (7, 3), (100, 8), (1000, 37), (3000, 700)])
@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_sketch_and_estimates_equal_exact_sums(n, columns, rows):
    values = integers(n)
    hashing = sketching.draw(n, rows, columns, seed=n)
    at, signs = where(hashing, n)
    table = sketching.sketch(values, hashing)
    signed = signs * values.numpy()
    exact = np.stack([np.bincount(at[row], signed[row], columns) for row in range(rows)])
    assert np.array_equal(table.numpy(), exact)
    read = np.median(signs * np.take_along_axis(exact, at, 1), axis=0)
    assert np.array_equal(sketching.estimates(table, hashing, n).numpy(), read)


def test_cells_are_exact_where_numbers_are_large():
    columns, width, blocks = 2**31 - 1, 2**20, 2**11
    starts = np.random.default_rng(0).integers(columns, size=(1, blocks))
    starts[0, [0, -1]] = 0, columns - 1
    ones = np.ones((1, width), np.float32)
    hashing = sketching.Hashing(columns, starts, ones[:, :blocks], ones)
    indices = [0, width - 1, width, 2**30 + 12345, 2**31 - 2]
    at, _ = sketching.cells(hashing, 0, "cpu", torch.tensor(indices))
    exact = [(int(starts[0, i // width]) + i % width) % columns for i in indices]
    assert at.tolist() == exact


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
def test_kernels_equal_the_torch_path(rows):
    n = 270_001  # more than one block of a thread
    hashing = sketching.draw(n, rows, 5000, seed=3)
    whole = integers(n)
    table = sketching.sketch(whole, hashing)
    assert torch.equal(table, sketching._sketch_by_torch(whole, hashing))
    table = sketching.sketch(normal(n), hashing)
    torch.testing.assert_close(
        table, sketching._sketch_by_torch(normal(n), hashing), rtol=0, atol=1e-4
    )
    read = sketching.estimates(table, hashing, n)
    assert torch.equal(read, sketching._estimates_by_torch(table, hashing, n))


def test_the_number_of_threads_changes_no_bit():
    n, before = 600_001, torch.get_num_threads()
    hashing = sketching.draw(n, 5, 4096, seed=1)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            table = sketching.sketch(normal(n), hashing)
            results.append((table, sketching.estimates(table, hashing, n)))
    finally:
        torch.set_num_threads(before)
    for table, read in results[1:]:
        assert torch.equal(table, results[0][0]) and torch.equal(read, results[0][1])


def test_sketch_of_the_sum_is_the_sum_of_the_sketches():
    n, hashing = 50_000, sketching.draw(50_000, 5, 3000, seed=5)
    whole = [integers(n, seed) for seed in range(4)]
    exact = sum(sketching.sketch(values, hashing) for values in whole)
    assert torch.equal(exact, sketching.sketch(sum(whole), hashing))
    real = [normal(n, seed) for seed in range(4)]
    parts = sum(sketching.sketch(values, hashing) for values in real)
    # Each cell adds about 17 values of 4 parties: float32's rounding of a few dozen.
    torch.testing.assert_close(parts, sketching.sketch(sum(real), hashing), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (2, 5), (4, 5), (3, 0)])
def test_even_rows_and_empty_ones_are_refused(rows, columns):
    with pytest.raises(ValueError, match="odd number of rows.*biased as a median"):
        sketching.draw(10, rows, columns, seed=0)


def test_either_middle_of_an_even_number_of_rows_is_biased():
    """Why even rows are refused: order statistics of 4 normals, against the median of 5."""
    draws = np.sort(np.random.default_rng(0).standard_normal((200_000, 4)), axis=1)
    lower, upper = draws[:, 1].mean(), draws[:, 2].mean()
    assert lower < -0.29 and upper > 0.29  # ∓0.297: the second and third of four
    five = np.median(np.random.default_rng(1).standard_normal((200_000, 5)), axis=1)
    assert abs(five.mean()) < 4 * five.std() / 200_000**0.5


# The hashing: what the bounds rest on.


def test_starts_are_uniform_pairwise_independent_and_signs_fair():
    columns, n = 12, 40  # blocks of 4
    at, signs = where(sketching.draw(n, 20_001, columns, seed=2), n)
    width = 4
    significant = 1e-3 / 100
    for i in (0, 3, 17, 39):
        counts = np.bincount(at[:, i], minlength=columns)
        assert stats.chisquare(counts).pvalue > significant
        assert stats.binomtest(int((signs[:, i] > 0).sum()), len(signs)).pvalue > significant
    for i, j in ((0, 4), (1, 6), (3, 36), (17, 39)):
        assert i // width != j // width
        pairs = np.bincount(at[:, i] * columns + at[:, j], minlength=columns**2)
        assert stats.chisquare(pairs).pvalue > significant
        together = int((at[:, i] == at[:, j]).sum())
        assert stats.binomtest(together, len(at), 1 / columns).pvalue > significant
    for i, j in ((0, 1), (0, 4), (1, 6), (17, 39)):
        equal = int((signs[:, i] == signs[:, j]).sum())
        assert stats.binomtest(equal, len(signs)).pvalue > significant
    sign_and_cell = np.bincount(at[:, 5] * 2 + (signs[:, 5] > 0), minlength=2 * columns)
    assert stats.chisquare(sign_and_cell).pvalue > significant


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 64, 500, 513, 5000])
def test_values_of_one_block_never_meet(columns):
    hashing = sketching.draw(2000, 3, columns, seed=0)
    width = hashing.flips.shape[1]
    assert 2 * width <= columns and width <= sketching.WIDEST
    at, _ = where(hashing, 2000)
    for row in at:
        for block in range(0, 2000, width):
            piece = row[block : block + width]
            assert len(set(piece.tolist())) == len(piece)


# Errors against theory.


def single_rows(values: torch.Tensor, columns: int, seed: int = 0) -> tuple[np.ndarray, int]:
    """(MANY, n) estimates by one row each, and the block size."""
    hashing = sketching.draw(len(values), MANY, columns, seed)
    table = sketching.sketch(values, hashing)
    indices = torch.arange(len(values))
    read = []
    for row in range(MANY):
        at, signs = sketching.cells(hashing, row, "cpu", indices)
        read.append((signs * table[row, at]).numpy())
    return np.array(read, np.float64), hashing.flips.shape[1]


@pytest.mark.parametrize("shape", ["normal", "constant", "spikes"])
def test_rows_are_unbiased_with_the_variance_of_theory(shape):
    n, columns = 96, 16  # blocks of 8
    values = {
        "normal": normal(n),
        "constant": torch.ones(n),
        "spikes": torch.where(torch.arange(n) % 13 == 0, 20.0, 1.0),
    }[shape]
    read, width = single_rows(values, columns)
    squares = values.double().numpy() ** 2
    error = read - values.double().numpy()
    of_block = squares.reshape(-1, width).sum(1).repeat(width)
    variance = (squares.sum() - of_block) / columns
    assert (variance <= squares.sum() / columns).all()
    # 96 dependent comparisons; 5 standard errors leave none by chance.
    assert (abs(error.mean(0)) < 5 * (variance / MANY) ** 0.5).all()
    second = error**2
    assert (abs(second.mean(0) - variance) < 5 * second.std(0) / MANY**0.5).all()


@pytest.mark.parametrize("shape", ["normal", "constant", "spikes"])
def test_sums_of_squares_have_the_moments_of_theory(shape):
    n, columns = 96, 16
    values = {
        "normal": normal(n, 1),
        "constant": torch.ones(n),
        "spikes": torch.where(torch.arange(n) % 8 == 0, 20.0, 1.0),
    }[shape]
    hashing = sketching.draw(n, MANY, columns, seed=4)
    sums = (sketching.sketch(values, hashing).double() ** 2).sum(1).numpy()
    total = float((values.double() ** 2).sum())
    blocks = values.double().numpy().reshape(-1, 8)
    energy = (blocks**2).sum(1)
    inner = blocks @ blocks.T
    off = ~np.eye(len(blocks), dtype=bool)
    aligned = blocks**2 @ (blocks**2).T
    variance = 2 / columns * (np.outer(energy, energy) - aligned + inner**2)[off].sum()
    assert variance <= 4 * total**2 / columns
    assert abs(sums.mean() - total) < 5 * (variance / MANY) ** 0.5
    second = (sums - total) ** 2
    assert abs(second.mean() - variance) < 5 * second.std() / MANY**0.5


def test_the_norm_is_the_root_of_the_median_sum_of_squares():
    table = torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    assert sketching.norm(table) == 5.0
    assert sketching.norm(torch.zeros(3, 4)) == 0.0
    values = normal(200_000)
    read = sketching.norm(sketching.sketch(values, sketching.draw(200_000, 5, 8000, 0)))
    # One row's relative variance is at most 4/c, so its norm is within 5·½·√(4/c).
    assert abs(read / float(values.norm()) - 1) < 5 * 0.5 * (4 / 8000) ** 0.5


def test_rows_keep_chebyshevs_bound_and_medians_amplify_it():
    n, columns = 20_000, 500
    values = normal(n)
    values[torch.randperm(n, generator=torch.Generator().manual_seed(2))[:40]] *= 300
    limit = 3 * float(values.norm()) / columns**0.5
    off = {}
    for rows in (1, 5):
        shares = []
        for seed in range(8):
            hashing = sketching.draw(n, rows, columns, seed)
            read = sketching.estimates(sketching.sketch(values, hashing), hashing, n)
            shares.append(float(((read - values).abs() > limit).double().mean()))
        off[rows] = np.mean(shares)
    # Three of five rows must be off for the median to be: at most 0.0115 at 1/9 each.
    most = stats.binom.sf(2, 5, 1 / 9)
    assert off[1] <= 1 / 9 and off[5] <= most
    assert off[1] > off[5]  # and there are some: whatever meets a spike


@pytest.mark.parametrize(("columns", "low", "high"), [(20_000, 0.9, 1.0), (2_000, 0.0, 0.7)])
def test_recall_of_heavy_hitters_is_that_of_a_naive_sketch(columns, low, high):
    """200 spikes of both signs in 200,000 values, by the 200 largest estimates."""
    n, count = 200_000, 200
    random = np.random.default_rng(7)
    ours, theirs, negative = [], [], []
    for seed in range(4):
        values = random.standard_normal(n)
        spikes = random.choice(n, count, replace=False)
        values[spikes] = random.choice([-12.0, 12.0], count)
        hashing = sketching.draw(n, 5, columns, seed)
        table = sketching.sketch(torch.from_numpy(values.astype(np.float32)), hashing)
        for recalls, read in (
            (ours, sketching.estimates(table, hashing, n).numpy()),
            (theirs, naive(values, 5, columns, seed)),
        ):
            largest = np.argpartition(-abs(read), count)[:count]
            found = np.isin(spikes, largest)
            recalls.append(found.mean())
            if recalls is ours:
                negative.append(found[values[spikes] < 0].mean())
    error = 4 * (np.mean(theirs) * (1 - np.mean(theirs)) * 2 / (4 * count) + 1e-5) ** 0.5
    assert abs(np.mean(ours) - np.mean(theirs)) < error
    assert low <= np.mean(ours) <= high
    assert abs(np.mean(negative) - np.mean(ours)) < 0.1
