"""Random-k: shared positions, chances of exactly k/n, unbiasedness, error feedback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from scipy import stats

from slowlink.methods.compression import Payload, aggregate, combine_payloads, load


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def decoded(codec, tensor, steps: int) -> torch.Tensor:
    """(steps, n) what ``steps`` steps of one gradient are received as."""
    return torch.stack([codec.decompress(codec.compress(tensor, "w")) for _ in range(steps)])


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 101, 1_000])
def test_exactly_k_distinct_positions(n, ratio):
    k = -int(-n * ratio // 1)
    codec = load("random_k", ratio=ratio, error_feedback=False)
    for received in decoded(codec, torch.ones(n), 5):
        assert int((received == 1).sum()) == k and int(received.count_nonzero()) == k


def test_all_parties_draw_the_same_positions_and_bodies_add():
    codecs = [load("random_k", ratio=0.1) for _ in range(3)]
    for step in range(3):
        before = [c.state["w"]["residual"].clone() if c.state else 0 for c in codecs]
        tensors = [normal(500, 10 * step + party).round(decimals=2) for party in range(3)]
        results, up, down = aggregate(codecs, tensors, "w")
        assert up == [[200]] * 3 and down == [200]  # 4k bytes each way: no indices
        due = sum(g + r for g, r in zip(tensors, before, strict=True))
        at = results[0] != 0
        assert int(at.sum()) == 50
        torch.testing.assert_close(results[0][at], due[at])
        assert all(torch.equal(result, results[0]) for result in results)


def test_draws_differ_by_seed_key_and_step_only():
    def at(seed=0, key="w", steps=1):
        codec = load("random_k", seed=seed, ratio=0.1)
        for _ in range(steps):
            payload = codec.compress(torch.ones(300), key)
        return payload.form

    assert at() == at()
    assert len({at(), at(seed=1), at(key="v"), at(steps=2)}) == 4


def test_values_of_different_positions_never_add():
    a, b = (load("random_k", seed=seed) for seed in (0, 1))
    sent = [a.compress(normal(300), "w"), b.compress(normal(300), "w")]
    with pytest.raises(ValueError, match="payloads differ in codec, shape, form"):
        combine_payloads(a, sent, "sum")


def test_who_did_not_draw_can_decode():
    sender, other = load("random_k", ratio=0.2), load("random_k", ratio=0.2, seed=9)
    payload = sender.compress(normal(40), "w")
    assert torch.equal(other.decompress(payload), sender.decompress(payload))
    assert not other.state


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(50, 7), (50, 20), (64, 8)])
def test_every_value_has_the_same_chance(n, k):
    """Also where k does not divide n. Within a draw, chances of two values are not independent."""
    draws = 2_000
    codec = load("random_k", ratio=k / n, error_feedback=False)
    counts = decoded(codec, torch.ones(n), draws).sum(0).numpy()
    z = (counts - draws * k / n) / np.sqrt(draws * k / n * (1 - k / n))
    assert np.abs(z).max() < stats.norm.isf(0.0005 / n)


def test_scaled_values_are_unbiased():
    n, k, draws = 50, 7, 2_000
    gradient = normal(n)
    codec = load("random_k", ratio=k / n, error_feedback=False, scale=True)
    received = decoded(codec, gradient, draws).double()
    # Each is g·n/k with chance k/n, else 0: variance g²·(n/k - 1).
    deviation = gradient.double().abs() * ((n / k - 1) / draws) ** 0.5
    z = (received.mean(0) - gradient) / deviation
    assert float(z.abs().max()) < stats.norm.isf(0.0005 / n)


def test_unscaled_values_contract_as_published():
    """E|g - C(g)|² = (1 - k/n)·|g|² (Stich et al. 2018, lemma A.1)."""
    n, k, draws = 50, 7, 2_000
    gradient = normal(n)
    codec = load("random_k", ratio=k / n, error_feedback=False)
    left = (gradient - decoded(codec, gradient, draws)).square().sum(1).double().numpy()
    expected = (1 - k / n) * float(gradient.square().sum())
    assert abs(left.mean() - expected) < 4 * left.std() / draws**0.5


def test_what_is_sent_and_the_residual_are_the_input_exactly():
    codec, residual = load("random_k", ratio=0.05), torch.zeros(3_001)
    for step in range(5):
        gradient = normal(3_001, step)
        due = residual + gradient
        sent = codec.decompress(codec.compress(gradient, "w"))
        residual = codec.state["w"]["residual"].clone()
        assert torch.equal(sent + residual, due)
        assert not ((sent != 0) & (residual != 0)).any()


def descend(name: str, **parameters) -> float:
    """Relative distance to the optimum of least squares after SGD theory's rates 1/(μt)."""
    n = 40
    matrix, optimum = normal(200 * n).view(200, n) / 200**0.5, normal(n, 1)
    target, hessian = matrix @ optimum, matrix.T @ matrix
    least = float(torch.linalg.eigvalsh(hessian)[0])
    codec, x = load(name, **parameters), torch.zeros(n)
    for step in range(2_000):
        gradient = matrix.T @ (matrix @ x - target)
        (update,), _, _ = aggregate([codec], [gradient], "x")
        x -= update / (least * (step + 200))
    return float((x - optimum).norm() / optimum.norm())


@pytest.mark.slow
def test_error_feedback_converges_where_the_bare_method_stalls():
    uncompressed = descend("identity")
    assert uncompressed < 0.05
    assert descend("random_k", ratio=0.05) < 1.5 * uncompressed
    assert descend("random_k", ratio=0.05, error_feedback=False) > 10 * uncompressed


def test_malformed_payloads():
    codec = load("random_k", ratio=0.5)
    good = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    for changes, message in (
        ({"body": good.body[:-1]}, "random_k values: body has 7 bytes, its shape needs 8"),
        ({"body": struct.pack("<2f", 1, float("inf"))}, "NaN or infinite"),
        ({"form": "random_0123"}, "is not one of random_ and 16 hexadecimal digits"),
        ({"form": "random_" + "g" * 16}, "is not one of random_ and 16"),
    ):
        with pytest.raises(ValueError, match=message):
            codec.decompress(Payload(**{**vars(good), **changes}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 2}, r"random_k: ratio must be a number in \(0, 1\]"),
        ({"scale": True}, "random_k: scale needs error_feedback=false"),
        ({"scale": 1}, "scale must be true or false"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("random_k", **parameters)
