"""TernGrad: bytes, clipping, unbiased rounding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, load

Z = 5.5
"""Standard deviations that no value's mean of thousands may leave (chance 4e-8 each)."""


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_bytes_by_hand():
    codec = load("terngrad", clip=0.0)
    values = [2.0, 0.0, -2.0, 2.0, -2.0]  # all or nothing of the scale: nothing is random
    payload = codec.compress(torch.tensor(values), "w")
    assert payload.body == struct.pack("<f", 2) + bytes([0b01001101, 0b11000000])
    assert codec.decompress(payload).tolist() == values


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 255, 1_001])
def test_bytes_follow_the_formula(n):
    codec = load("terngrad")
    expected = (4 + (n + 3) // 4,)
    assert codec.payload_bytes((n,)) == expected == (codec.compress(normal(n), "w").nbytes,)


@pytest.mark.parametrize("clip", [0.0, 1.0, 2.5])
def test_mean_is_the_clipped_gradient_with_the_exact_variance(clip):
    tensor, count, codec = normal(300), 1_000, load("terngrad", clip=clip)
    values = tensor.double().numpy()
    limit = clip * values.std() if clip else np.inf
    clipped = np.clip(values, -limit, limit)
    scale = np.abs(clipped).max()
    payloads = [codec.compress(tensor, "w") for _ in range(count)]
    got = torch.stack([codec.decompress(payload) for payload in payloads]).double().numpy()
    assert struct.unpack("<f", payloads[0].body[:4]) == pytest.approx((scale,), rel=1e-6)
    assert set(np.unique(got)) == {-np.float32(scale), 0, np.float32(scale)}
    variance = np.maximum(scale * np.abs(clipped) - clipped**2, 0)
    assert (np.abs(got.mean(0) - clipped) <= Z * np.sqrt(variance / count) + 1e-6).all()
    errors = ((got - clipped) ** 2).sum(1)
    assert abs(errors.mean() - variance.sum()) <= Z * errors.std() / count**0.5


def test_equal_values_are_not_clipped_away():
    codec = load("terngrad")
    for values in ([0.1] * 1_000, [-0.1], [0.1, 0.1, 0.1]):
        tensor = torch.tensor(values)
        assert torch.equal(codec.decompress(codec.compress(tensor, len(values))), tensor)


def test_parties_of_one_seed_round_independently():
    one, same, other = (load("terngrad", party=party) for party in (0, 0, 1))
    first, again, second = (codec.compress(normal(10_000), "w") for codec in (one, same, other))
    assert first == again
    # Given the gradient, both send the sign with the same chance p: they agree as independents do.
    p = (normal(10_000).abs() / one.decompress(first).abs().max()).clamp(max=1).double()
    both = ((one.decompress(first) != 0) & (one.decompress(second) != 0)).double().sum()
    assert abs(both - (p**2).sum()) <= Z * (p**2 * (1 - p**2)).sum().sqrt()


def test_extreme_values_stay_finite():
    codec = load("terngrad")
    for values in ([3.4e38, -3.4e38, 0.0], [2.0**-149, 0.0, 0.0]):
        decoded = codec.decompress(codec.compress(torch.tensor(values), "w"))
        assert decoded.isfinite().all() and decoded[2] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack("<f", 1) + b"\x80\0", "a 2-bit code stands for nothing"),
        (struct.pack("<f", 1), "body has 4 bytes, its shape needs 6"),
        (struct.pack("<f", -1) + b"\0\0", "a scale is negative"),
    ],
)
def test_malformed_bodies(body, message):
    with pytest.raises(ValueError, match=f"terngrad ternary: .*{message}"):
        load("terngrad").decompress(Payload(body, "terngrad", (5,), "ternary"))


@pytest.mark.parametrize("clip", [-1, float("inf"), "2.5", None])
def test_clip_is_checked(clip):
    with pytest.raises(ValueError, match="terngrad: clip must be a number >= 0"):
        load("terngrad", clip=clip)
