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


def test_the_number_of_threads_changes_no_bit():
    p, q, residual = torch.randn(4, 3_000), torch.randn(4, 700), torch.randn(3_000, 700)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            kept = residual.clone()
            results.append((products.expand(p, q, q, kept), kept))
    finally:
        torch.set_num_threads(threads)
    assert all(map(torch.equal, *results))
