"""Products of long matrices against the same in double precision."""

import pytest
import torch

from slowlink.methods.compression.pieces import products


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (40, 9_001)])
def test_expands_and_subtracts(rank, shape):
    rows, columns = shape
    generator = torch.Generator().manual_seed(rank)
    p, q, total, residual = (
        torch.randn(*size, generator=generator)
        for size in ((rank, rows), (rank, columns), (rank, columns), shape)
    )
    left = residual.double() - p.double().T @ q.double()
    made = products.expand(p, q, total, residual)
    torch.testing.assert_close(residual.double(), left, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(made.double(), p.double().T @ total.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (6, 5), (41, 9_001), (300, 2_000)])
@pytest.mark.parametrize("missing", [0, 3])
def test_adds_and_multiplies_from_either_side(rank, shape, missing):
    """Values fill all of the matrix, or all but the last few."""
    rows, columns = shape
    generator = torch.Generator().manual_seed(rank)
    p, q, residual = (
        torch.randn(*size, generator=generator) for size in ((rank, rows), (rank, columns), shape)
    )
    values = torch.randn(max(0, rows * columns - missing), generator=generator)
    added = residual.double()
    added.view(-1)[: len(values)] += values.double()
    made = products.add_and_project(residual, values, q)
    torch.testing.assert_close(residual.double(), added, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(made.double(), q.double() @ added.T, rtol=1e-4, atol=1e-3)
    made = products.collapse(p, residual)
    torch.testing.assert_close(made.double(), p.double() @ added, rtol=1e-4, atol=1e-3)


def test_the_number_of_threads_changes_no_bit():
    p, q, residual = torch.randn(4, 3_000), torch.randn(4, 7_001), torch.randn(3_000, 7_001)
    values = torch.randn(residual.numel() - 5)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            kept = residual.clone()
            first, second = products.add_and_project(kept, values, q), products.collapse(p, kept)
            results.append((products.expand(p, q, q, kept), kept, first, second))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))
