"""Top-k against sorting: exactness, ties, conservation, contraction, error feedback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, aggregate, load
from slowlink.methods.compression.pieces import sampling


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def by_sorting(values: torch.Tensor, k: int) -> list[int]:
    """The oracle: a stable sort of the magnitudes."""
    order = np.argsort(-values.abs().double().numpy(), kind="stable")
    return sorted(order[:k].tolist())


def pairs(payload: Payload) -> tuple[np.ndarray, np.ndarray]:
    """Values and indices, read straight from the layout."""
    count = payload.nbytes // 8
    return (
        np.frombuffer(payload.body, "<f4", count),
        np.frombuffer(payload.body, "<i4", count, offset=4 * count),
    )


KINDS = {
    "normal": normal,
    "negative": lambda n, seed: -normal(n, seed).abs() - 1,
    "tied": lambda n, seed: normal(n, seed).round(),
    "tied but for the sign": lambda n, seed: normal(n, seed).sign() * 3,
    "constant": lambda n, seed: torch.full((n,), -2.5),
    "zero": lambda n, seed: torch.zeros(n),
    "mostly zero": lambda n, seed: normal(n, seed) * (normal(n, seed + 1) > 2.7),
    "denormal": lambda n, seed: normal(n, seed) * 1e-42,
    "huge range": lambda n, seed: normal(n, seed) ** 31,
    "ascending": lambda n, seed: torch.arange(n).float(),
    "large where no sample is": lambda n, seed: (
        normal(n, seed) * 1e-3 + 5.0 * (torch.arange(n) % ((n // 2**15) | 1) == 1)
    ),
    "large where samples are": lambda n, seed: (
        normal(n, seed) * 1e-3 + 5.0 * (torch.arange(n) % ((n // 2**15) | 1) == 0)
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_every_small_size_equals_a_sort(kind, error_feedback):
    for n in range(1, 65):
        values = KINDS[kind](n, n)
        for ratio in (0.01, 0.3, 1.0):
            k = max(1, -int(-n * ratio // 1))
            codec = load("top_k", ratio=ratio, error_feedback=error_feedback)
            sent, at = pairs(codec.compress(values, "w"))
            assert at.tolist() == by_sorting(values, k)
            assert np.array_equal(sent, values.numpy()[at])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2**15 + 1, 300_007])
def test_large_tensors_equal_a_sort_whatever_the_sample_says(kind, n):
    codec, residual = load("top_k"), torch.zeros(n)
    for step in range(2):
        gradient = KINDS[kind](n, 3 * step)
        residual += gradient
        sent, at = pairs(codec.compress(gradient, "w"))
        assert at.tolist() == by_sorting(residual, -(-n // 100))
        assert np.array_equal(sent, residual.numpy()[at])
        residual[at.tolist()] = 0
        assert torch.equal(codec.state["w"]["residual"], residual)


@pytest.mark.parametrize("guess", [0.0, 1e-45, 0.5, 2.0, 100.0, float("inf")])
def test_any_guess_gives_the_same_selection(guess):
    for values in (normal(5_000), KINDS["mostly zero"](5_000, 0), torch.zeros(5_000)):
        assert sampling.largest(values, 50, guess).tolist() == by_sorting(values, 50)
    assert sampling.largest(normal(0), 0, guess).tolist() == []


def test_result_does_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    try:
        bodies = set()
        for count in (1, 2):
            torch.set_num_threads(count)
            bodies.add(load("top_k").compress(normal(300_007), "w").body)
    finally:
        torch.set_num_threads(threads)
    assert len(bodies) == 1


def test_bytes_by_hand_and_merge():
    codec = load("top_k", ratio=0.5)
    a = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    assert (a.form, a.dtype) == ("pairs", "")
    assert a.body == struct.pack("<2f2i", 4, -3, 0, 2)  # indices of 32 bits
    b = load("top_k", ratio=0.5).compress(torch.tensor([0.0, 1.0, 5.0, 0.0]), "w")
    assert codec.merge([a, b]).body == struct.pack("<3f3i", 4, 1, 2, 0, 1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_and_the_residual_are_the_input_exactly(kind):
    codec, residual = load("top_k", ratio=0.05), torch.zeros(3_000)
    for step in range(5):
        gradient = KINDS[kind](3_000, step)
        due = residual + gradient
        sent = codec.decompress(codec.compress(gradient, "w"))
        residual = codec.state["w"]["residual"].clone()
        assert torch.equal(sent + residual, due)
        assert not ((sent != 0) & (residual != 0)).any()


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 7, 1_000])
def test_contraction(n, ratio):
    """|g - C(g)|² <= (1 - k/n)·|g|², with equality where all magnitudes are equal."""
    k = -int(-n * ratio // 1)
    for kind in KINDS:
        gradient = KINDS[kind](n, 5).double().float()
        codec = load("top_k", ratio=ratio, error_feedback=False)
        left = (gradient - codec.decompress(codec.compress(gradient, "w"))).double().square().sum()
        bound = (1 - k / n) * gradient.double().square().sum()
        assert left <= bound * (1 + 1e-12)
        if kind in ("constant", "tied but for the sign"):
            assert float(left) == pytest.approx(float(bound))


def descend(error_feedback: bool) -> float:
    """Distance to the optimum 0 of Beznosikov et al. 2020, example 1 (their divergent start).

    Three parties with f_i(x) = ⟨a_i, x⟩² + |x|²/4 each send one coordinate of three.
    """
    directions = torch.tensor([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    codecs = [load("top_k", ratio=0.3, error_feedback=error_feedback) for _ in directions]
    x = torch.ones(3)
    for _ in range(400):
        gradients = [(2 * a * (a @ x) + x / 2) / 3 for a in directions]
        results, _, _ = aggregate(codecs, gradients, "x")
        x -= 0.02 * results[0]
        if x.norm() > 1e6:  # it grows for ever
            break
    return float(x.norm())


def test_error_feedback_converges_where_the_bare_method_diverges():
    assert descend(error_feedback=True) < 1e-3
    assert descend(error_feedback=False) > 1e6


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<2f2i", 1, 2, 0, 4),
        struct.pack("<2f2i", 1, 2, -1, 1),
        struct.pack("<2f2i", 1, 2, 1, 1),
        struct.pack("<2f2i", 1, float("nan"), 0, 1),
        struct.pack("<2f2q", 1, 2, 0, 1)[:-3],
        struct.pack("<fi", 1, 0),
        b"",
    ],
)
def test_malformed_bodies(body):
    with pytest.raises(ValueError, match="top_k pairs: "):
        load("top_k", ratio=0.5).decompress(Payload(body, "top_k", (4,), "pairs"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 0}, r"top_k: ratio must be a number in \(0, 1\]"),
        ({"error_feedback": 1}, "error_feedback must be true or false"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("top_k", **parameters)
