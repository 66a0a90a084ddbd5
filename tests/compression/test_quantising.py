"""Packed codes against a string of bits; kernels against plain torch; random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from slowlink.methods.compression import load
from slowlink.methods.compression.pieces import packing, quantising
from slowlink.methods.compression.pieces.threads import BLOCK

LONG = 2 * BLOCK + 13
"""Values of several blocks and a rest."""


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def codes_below(limit: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(limit, (n,), generator=generator, dtype=torch.uint8)


def naive(codes: list[int], bits: int) -> bytes:
    text = "".join(f"{code:0{bits}b}" for code in codes)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


@settings(max_examples=150, deadline=None)
@given(bits=st.integers(1, 8), n=st.integers(0, 70))
def test_packing_equals_a_string_of_bits(bits, n):
    codes = codes_below(2**bits, n)
    for pack in (packing.pack, packing.pack_torch):
        packed = pack(codes, bits)
        assert packing.to_bytes(packed, "uint8") == naive(codes.tolist(), bits)
    table = torch.arange(2**bits, dtype=torch.uint8)
    assert torch.equal(packing.unpack(packed, bits, n, "test"), codes)
    assert torch.equal(packing.unpack_torch(packed, bits, table, n), codes)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packing_many_blocks(bits):
    codes, levels = codes_below(2**bits, LONG), normal(2**bits)
    packed = packing.pack(codes, bits)
    assert torch.equal(packed, packing.pack_torch(codes, bits))
    assert torch.equal(packing.unpack(packed, bits, LONG, "test"), codes)
    assert torch.equal(
        packing.unpack_levels(packed, bits, levels, LONG, "test"), levels[codes.long()]
    )


def test_unpacking_refuses_what_packing_does_not_make():
    packed = torch.tensor([0b10110100, 0], dtype=torch.uint8)
    with pytest.raises(ValueError, match="test: bits beyond the last code are not 0"):
        packing.unpack(packed, 3, 1, "test")
    with pytest.raises(ValueError, match="test: 2 bytes do not hold 6 codes of 3 bits"):
        packing.unpack(packed, 3, 6, "test")
    levels = torch.tensor([0.0, 1.0, torch.nan, -1.0])
    with pytest.raises(ValueError, match="test: a 2-bit code stands for nothing"):
        packing.unpack_levels(packed, 2, levels, 8, "test")
    # A sum that is NaN without any forbidden code.
    huge = torch.tensor([3e38, -3e38, torch.nan, 0])
    codes = torch.tensor([0, 0, 0, 1, 1, 1], dtype=torch.uint8)
    values = packing.unpack_levels(packing.pack(codes, 2), 2, huge, 6, "test")
    assert torch.equal(values, huge[codes.long()])


@pytest.mark.parametrize("n", [0, 1, 7, 1_000, LONG])
def test_threshold_kernel_equals_torch(n):
    residuals = [normal(n, 1), normal(n, 1)]
    codes = [
        function(normal(n), residual, 0.7, (2, 3))
        for function, residual in zip(
            (quantising.threshold_codes, quantising.threshold_codes_torch), residuals, strict=True
        )
    ]
    assert torch.equal(*codes) and torch.equal(*residuals)


@pytest.mark.parametrize("n", [0, 1, 7, 1_000, LONG])
def test_sign_kernel_equals_torch(n):
    gradient, kernel, sent = normal(n), normal(n, 1), 0.75
    gradient[::3], kernel[::3] = 0, 0
    plain = torch.where(kernel < 0, kernel + sent, kernel - sent) + gradient
    by_torch = kernel.clone()
    codes = quantising.add_to_rest_torch(gradient, by_torch, sent)
    body, scale = quantising.scaled_signs(gradient, kernel, sent, "x")
    assert scale == pytest.approx(float(plain.double().abs().sum()) / max(n, 1), rel=1e-7)
    assert body == quantising.write_scaled(scale, codes, 1)
    assert torch.equal(kernel, plain) and torch.equal(by_torch, plain)


@pytest.mark.parametrize("bucket", [4, 512, 5_000])
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("n", [0, 1, 511, 512, 1_000, LONG])
def test_codes_in_one_pass_equal_those_step_by_step(n, norm, bucket):
    values, draw = normal(n), (3, 4)
    norms = quantising.bucket_norms(values, bucket, norm)
    codes = quantising.stochastic_codes(values, norms, bucket, 1, draw)
    expected = packing.join((norms, "float32"), (packing.pack(codes, 2), "uint8"))
    assert quantising.ternary_buckets(values, bucket, norm, draw, "x") == expected
    scale = torch.tensor([2.0])
    codes = quantising.stochastic_codes(values, scale, max(n, 1), 1, draw)
    assert quantising.ternary(values, 2.0, draw) == quantising.write_scaled(2.0, codes, 2)
    assert quantising.ternary(values, 0.0, draw) == bytes(4 + -(-n // 4))


@pytest.mark.parametrize("offset", [0.0, 0.3, 1e4])
@pytest.mark.parametrize("clip", [0.0, 0.5, 2.5])
@pytest.mark.parametrize("n", [1, 2, 1_000, LONG])
def test_clipping_in_one_pass_equals_two(n, clip, offset):
    values = normal(n) + offset
    largest, deviation = values.abs().amax().double(), quantising.deviation(values)
    limit = clip * deviation if clip and deviation else math.inf
    assert quantising.clipped_largest(values, clip, "x") == float(largest.clamp(max=limit).float())


@pytest.mark.parametrize("n", [0, 1, 511, 512, 1_000, LONG])
def test_sums_equal_float64(n):
    values = normal(n) + normal(n, 1)
    deviation = values.double().numpy().std() if n else 0
    assert quantising.deviation(values) == pytest.approx(deviation, rel=1e-11)


@pytest.mark.parametrize("first", [0.0, 1e6, -1e30])
def test_deviation_bears_an_outlier_and_an_offset(first):
    values = 1 + normal(10_000) / 1_000
    values[0] = first
    expected = values.double().numpy().std()
    assert quantising.deviation(values) == pytest.approx(expected, rel=1e-11)
    assert quantising.deviation(torch.full((10_001,), 0.1)) == 0


@pytest.mark.parametrize("bucket", [1, 5, 512, BLOCK + 1, 10**7])
@pytest.mark.parametrize("n", [0, 1, 511, LONG])
def test_norms_equal_numpy_and_torch(n, bucket):
    values = normal(n)
    starts = range(0, n, bucket)[:100]
    parts = [values[i : i + bucket].numpy().astype(np.float64) for i in starts]
    for norm, order in (("l2", 2), ("max", np.inf)):
        norms = quantising.bucket_norms(values, bucket, norm)
        assert norms.numel() == math.ceil(n / bucket)
        expected = np.array([np.linalg.norm(part, order) for part in parts])
        np.testing.assert_allclose(norms[:100].numpy(), expected, rtol=2**-23)
        reference = quantising.bucket_norms_torch(values, min(bucket, max(n, 1)), norm)
        torch.testing.assert_close(norms, reference, rtol=2**-23, atol=0)


@pytest.mark.parametrize("levels", [1, 3, 127])
@pytest.mark.parametrize("bucket", [1, 5, 512, LONG])
@pytest.mark.parametrize("n", [0, 1, 1_000, LONG])
def test_stochastic_kernel_equals_torch(n, bucket, levels):
    values, draw = normal(n), quantising.stream(1, 2, "w", 3)
    values[: n // 4] = 0
    norms = quantising.bucket_norms(values, bucket, "l2")
    codes = quantising.stochastic_codes(values, norms, bucket, levels, draw)
    reference = quantising.stochastic_codes_torch(values, norms, bucket, levels, draw)
    assert torch.equal(codes, reference)


@pytest.mark.parametrize("name", ["two_bit", "sign_sgd", "ef_sign_sgd", "qsgd", "terngrad"])
def test_threads_do_not_change_the_bytes(name):
    threads, bodies = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            codec = load(name)
            bodies.append([codec.compress(normal(LONG, step), "w").body for step in range(2)])
    finally:
        torch.set_num_threads(threads)
    assert bodies[0] == bodies[1]


def uniform(n: int, **changes) -> np.ndarray:
    draw = quantising.stream(**dict(seed=0, party=0, key="w", step=0) | changes)
    return quantising._random_torch(torch.arange(n), *draw).numpy() / 2**32


def test_random_numbers_are_uniform_and_streams_are_uncorrelated():
    n, base = 100_000, uniform(100_000)
    assert stats.kstest(base, "uniform").pvalue > 0.001
    for other in (
        uniform(n, step=1),
        uniform(n, party=1),
        uniform(n, seed=1),
        uniform(n, key="v"),
        np.roll(base, 1),
    ):
        # The correlation of n independent pairs has deviation 1/√n.
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / n**0.5
