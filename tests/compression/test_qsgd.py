"""QSGD: bytes, unbiased rounding and its variance, extremes, error feedback."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, aggregate, load

Z = 5.5
"""Standard deviations that no value's mean of thousands may leave (chance 4e-8 each)."""


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def draws(codec, tensor: torch.Tensor, count: int) -> np.ndarray:
    """(count, n) decodings of one tensor, at as many steps."""
    decoded = [codec.decompress(codec.compress(tensor, "w")) for _ in range(count)]
    return torch.stack(decoded).double().numpy()


def test_bytes_by_hand():
    codec = load("qsgd", bits=3, bucket=4, norm="max")
    values = [3.0, -1.0, 0.0, 2.0, -6.0]  # whole levels of norms 3 and 6: nothing is random
    payload = codec.compress(torch.tensor(values), "w")
    # 011 101 000 010 | 111, and a bit unused
    assert payload.body == struct.pack("<2f", 3, 6) + bytes([0b01110100, 0b00101110])
    assert codec.decompress(payload).tolist() == values


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("bucket", [0, 1, 64, 512])
def test_bytes_follow_the_formula(bits, bucket):
    codec = load("qsgd", bits=bits, bucket=bucket)
    for n in (0, 1, 2, 3, 5, 63, 64, 65, 511, 513, 1_000, 4_099):
        buckets = math.ceil(n / bucket) if bucket else min(n, 1)
        expected = 4 * buckets + math.ceil(n * bits / 8)
        assert codec.payload_bytes((n,)) == (expected,)
        assert codec.compress(normal(n), n).nbytes == expected


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bits", [2, 4, 7])
def test_is_unbiased_with_the_exact_variance_within_the_bound(bits, norm):
    d, n, count = 64, 300, 1_000
    s, tensor = 2 ** (bits - 1) - 1, normal(n)
    values = tensor.double().numpy()
    parts = [values[i : i + d] for i in range(0, n, d)]
    order = 2 if norm == "l2" else np.inf
    norms = np.concatenate([np.full(len(part), np.linalg.norm(part, order)) for part in parts])
    fraction = np.abs(values) / norms * s % 1
    variance = (norms / s) ** 2 * fraction * (1 - fraction)

    got = draws(load("qsgd", bits=bits, bucket=d, norm=norm), tensor, count)
    # Float32 rounds norms and levels: 1e-6 of the norm.
    assert (np.abs(got.mean(0) - values) <= Z * np.sqrt(variance / count) + 1e-6 * norms).all()
    errors = ((got - values) ** 2).sum(1)
    assert abs(errors.mean() - variance.sum()) <= Z * errors.std() / count**0.5
    squares = (values**2).sum()
    bound = min(d / s**2, d**0.5 / s) if norm == "l2" else d / (4 * s**2) * d
    assert variance.sum() <= bound * squares
    assert np.abs(got - values).max() <= norms.max() / s * (1 + 1e-6)


def test_the_largest_value_as_norm_loses_a_tenth_at_equal_bytes():
    """At two bits a value v of norm N has the variance N|v| - v², which sums up in closed form."""
    d, tensor = 512, normal(512 * 400)
    parts = tensor.double().numpy().reshape(-1, d)
    squares, bodies, lost = (parts**2).sum(), {}, {}
    for norm, order in (("l2", 2), ("max", np.inf)):
        codec = load("qsgd", bits=2, bucket=d, norm=norm)
        payload = codec.compress(tensor, "w")
        error = (codec.decompress(payload) - tensor).double().square().sum().item()
        norms = np.linalg.norm(parts, order, axis=1)
        exact = (norms * np.abs(parts).sum(1)).sum() / squares - 1
        bodies[norm], lost[norm] = payload.nbytes, error / squares
        assert lost[norm] == pytest.approx(exact, rel=0.02)
    assert bodies["l2"] == bodies["max"] == 4 * 400 + 2 * tensor.numel() // 8
    # Of normal values: √(2d/π) - 1 by l2; the largest of 512 is 3.0 to 3.3 deviations.
    assert lost["l2"] == pytest.approx(math.sqrt(2 * d / math.pi) - 1, rel=0.02)
    assert 3.0 * math.sqrt(2 / math.pi) - 1 < lost["max"] < 3.3 * math.sqrt(2 / math.pi) - 1


def test_parties_of_one_seed_round_independently():
    tensor, count = normal(200), 500
    one, same, other = (draws(load("qsgd", party=p), tensor, count) for p in (0, 0, 1))
    assert np.array_equal(one, same)
    # Errors of independent parties do not correlate.
    products = (one - one.mean(0)) * (other - other.mean(0))
    deviation = one.std(0) * other.std(0) / count**0.5
    assert (np.abs(products.mean(0)) <= Z * deviation + 1e-9).all()


def test_zero_norms_and_extreme_values():
    codec = load("qsgd", bits=4, bucket=4)
    tiny, huge = 2.0**-149, 3.4e38
    values = [0.0, -0.0, 0.0, 0.0, tiny, 0.0, 0.0, 0.0, huge, huge, huge, -huge, 1.0, 0, 0, 0]
    decoded = codec.decompress(codec.compress(torch.tensor(values), "w"))
    assert decoded.isfinite().all()
    assert decoded[:8].tolist() == values[:8]
    assert decoded[12:].tolist() == values[12:]
    # The norm saturates above the values, which still are its multiples by levels.
    assert (decoded[8:11] >= 0).all() and decoded[11] <= 0 and decoded[8:12].abs().max() > 1e38


def test_error_feedback_conserves_the_gradient():
    codec = load("qsgd", bits=8, bucket=64, error_feedback=True)
    put_in, received = torch.zeros(500, dtype=torch.float64), torch.zeros(500)
    for step in range(20):
        before = codec.state["w"]["residual"].clone() if step else torch.zeros(500)
        payload = codec.compress(normal(500, step), "w")
        decoded, residual = codec.decompress(payload), codec.state["w"]["residual"]
        assert torch.equal(residual, before + normal(500, step) - decoded)
        put_in += normal(500, step)
        received += decoded
    torch.testing.assert_close((received + residual).double(), put_in, rtol=0, atol=1e-5)
    assert residual.norm() < normal(500).norm()


def test_parties_payloads_add():
    codecs = [load("qsgd", party=party) for party in range(3)]
    tensors = [normal(700, seed) for seed in range(3)]
    results, up, down = aggregate(codecs, tensors, "w")
    again = [load("qsgd", party=party) for party in range(3)]
    sent = [c.decompress(c.compress(t, "w")) for c, t in zip(again, tensors, strict=True)]
    assert all(torch.equal(result, sent[0] + sent[1] + sent[2]) for result in results)
    assert up == [[8 + 175]] * 3 and down == [3 * 183]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (struct.pack("<f", 1) + b"\x80\0", "a 2-bit code stands for nothing"),
        (struct.pack("<f", 1) + b"\0", "body has 5 bytes, its shape needs 6"),
        (struct.pack("<f", 1) + b"\0\x01", "bits beyond the last code"),
        (struct.pack("<f", -1) + b"\0\0", "a scale is negative"),
        (struct.pack("<f", float("nan")) + b"\0\0", "NaN or infinite"),
    ],
)
def test_malformed_bodies(body, message):
    with pytest.raises(ValueError, match=f"qsgd levels: .*{message}"):
        load("qsgd").decompress(Payload(body, "qsgd", (5,), "levels"))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("bits", 1, "a whole number in 2…8"),
        ("bits", 9, "a whole number in 2…8"),
        ("bits", 2.5, "a whole number in 2…8"),
        ("bucket", -1, "a whole number >= 0"),
        ("norm", "l1", "l2 or max"),
        ("error_feedback", 1, "true or false"),
        ("party", "a", "a whole number"),
    ],
)
def test_parameters_are_checked(name, value, allowed):
    with pytest.raises(ValueError, match=f"qsgd: {name} must be {allowed}"):
        load("qsgd", **{name: value})
