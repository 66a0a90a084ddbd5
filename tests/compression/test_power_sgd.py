"""PowerSGD against torch's own hook, against the best low-rank approximation, and by identities."""

from __future__ import annotations

import math
import struct
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from slowlink.methods.compression import aggregate, load
from slowlink.methods.compression.pieces import sampling
from slowlink.testbed.live.processes import run_ranks

sys.path.insert(0, str(Path(__file__).parent))  # for processes that import the peer by its name
import power_sgd_peer  # noqa: E402


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def low_rank(rows: int, columns: int, rank: int, seed: int = 0) -> torch.Tensor:
    return normal(rows, rank, seed=seed) @ normal(rank, columns, seed=seed + 1)


def step(codec, tensor, key="w") -> torch.Tensor:
    (result,), _, _ = aggregate([codec], [tensor], key)
    return result


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.slow
def test_equals_torchs_hook_step_by_step():
    """From the same Q, with warm start and error feedback; biases and tiny matrices go dense."""
    shapes = [(16, 3, 3, 3), (16,), (40, 30), (40,), (2, 2)]
    steps = [
        [normal(*shape, seed=100 * number + k) for k, shape in enumerate(shapes)]
        for number in range(6)
    ]
    cases = []
    for rank, epsilon in product([1, 2, 4], [0, 1e-8]):
        first = [
            torch.randn(rank, columns, generator=sampling.generator(7, key, 0))
            for key, columns in ((0, 27), (2, 30))
        ]
        q = torch.cat([part.T.reshape(-1) for part in first])
        cases.append((rank, epsilon, torch.empty(rank * (16 + 40)), q))
    (every,) = run_ranks(power_sgd_peer.hooked, 1, steps, cases, timeout_s=60)
    assert len(every) == len(cases)
    for (rank, *_), results in zip(cases, every, strict=True):
        codec = load("power_sgd", rank=rank, seed=7)
        for gradients, expected in zip(steps, results, strict=True):
            for key, (gradient, whole) in enumerate(zip(gradients, expected, strict=True)):
                torch.testing.assert_close(step(codec, gradient, key), whole, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (20, 6, 5, 2)])
def test_steps_on_one_matrix_reach_its_best_approximation(shape):
    u, _, v = torch.linalg.svd(normal(*shape).view(shape[0], -1), full_matrices=False)
    singular = 0.7 ** torch.arange(len(v)).float()
    matrix = (u * singular) @ v
    best = (u[:, :3] * singular[:3]) @ v[:3]
    codec = load("power_sgd", rank=3)
    for _ in range(20):
        result = step(codec, matrix.view(shape)).view_as(matrix)
        # Never better than the best, and P·Pᵀ is a projection: never worse than nothing.
        error = float((matrix - result).norm())
        assert float(singular[3:].norm()) * (1 - 1e-5) <= error <= float(singular.norm())
        codec.state["w"]["residual"].zero_()  # the matrix alone, without what is left of it
    assert distance(result, best) < 1e-4


def test_a_matrix_of_that_rank_arrives_whole_at_once():
    matrix = low_rank(60, 40, 4)
    assert distance(step(load("power_sgd"), matrix), matrix) < 1e-5


@pytest.mark.parametrize("shape", [(40, 50), (1_201,)])
def test_what_is_sent_and_the_residual_are_the_input(shape):
    codec, n = load("power_sgd", square_from=100), math.prod(shape)
    residual = torch.zeros(n)
    for number in range(5):
        due = residual + normal(n, seed=number)
        sent = step(codec, normal(n, seed=number).view(shape)).view(-1)
        kept = codec.state["w"]["residual"].view(-1)
        residual = kept[:n].clone()
        torch.testing.assert_close(sent + residual, due, rtol=0, atol=1e-5)
        assert not kept[n:].any()


def test_error_feedback_delivers_a_constant_gradient_in_the_mean():
    """Σ sent = T·g - residual: as the residual stays bounded, the mean's error falls as 1/T."""
    matrix = normal(40, 50)
    codec, total, errors = load("power_sgd"), torch.zeros(40, 50), {}
    for number in range(1, 101):
        total += step(codec, matrix)
        errors[number] = distance(total / number, matrix)
    # Without memory it would stay at that of the best approximation or above.
    singular = torch.linalg.svdvals(matrix)
    assert errors[1] > float(singular[4:].norm() / singular.norm())
    assert errors[100] < 0.6 * errors[50] < 0.6 * 0.6 * errors[25]


@pytest.mark.parametrize("shape", [(40, 50), (30_011,)])
def test_parties_agree_bit_for_bit_and_get_the_sum(shape):
    """The factors are linear in what is summed: two parties are one that holds the sum."""
    parties = [load("power_sgd", seed=3) for _ in range(2)]
    alone = load("power_sgd", seed=3)
    for number in range(4):
        tensors = [normal(*shape, seed=10 * number + party) for party in range(2)]
        results, up, down = aggregate(parties, tensors, "w")
        assert torch.equal(*results)
        rows, columns, rank = alone.factors(shape)
        assert up == [[4 * rank * rows, 4 * rank * columns]] * 2 and down == up[0]
        torch.testing.assert_close(results[0], step(alone, sum(tensors)), rtol=1e-3, atol=1e-3)


def test_zeros_are_not_nan_and_do_not_stick():
    codec, matrix = load("power_sgd"), low_rank(30, 40, 2)
    for _ in range(3):
        assert not step(codec, torch.zeros(30, 40)).any()
    received = step(codec, matrix) + step(codec, torch.zeros(30, 40))
    received += step(codec, torch.zeros(30, 40))
    assert distance(received, matrix) < 1e-4


def test_matrices_of_lower_rank_than_the_factors():
    codec = load("power_sgd")
    for number in range(4):  # P has dependent columns
        matrix = low_rank(50, 60, 1, seed=number)
        assert distance(step(codec, matrix), matrix) < 1e-4


@pytest.mark.parametrize(
    ("shape", "factors"),
    [
        ((512, 512, 3, 3), (512, 4608, 4)),
        ((64, 64), (64, 64, 4)),
        ((3, 1000), None),  # rank 3: 3·1003 values are more than 3·1000
        ((9, 7), None),  # 16·4 = 64 values are not fewer than 63
        ((9, 8), (9, 8, 4)),
        ((2048,), None),
        ((2**14,), (128, 128, 4)),
        ((2**14 + 1,), (128, 129, 4)),
        ((129 * 128 + 1,), (129, 129, 4)),
        ((), None),
        ((0, 5), None),
        ((5, 0), None),
    ],
)
def test_which_tensors_have_factors(shape, factors):
    codec = load("power_sgd")
    assert codec.factors(shape) == factors
    rows, columns, rank = factors or (0, 0, 0)
    expected = (4 * rank * rows, 4 * rank * columns) if factors else (4 * math.prod(shape),)
    assert codec.payload_bytes(shape) == expected
    _, (sent,), _ = aggregate([codec], [normal(*shape)], "w")
    assert sent == list(expected)


def test_dense_tensors_are_exact_and_keep_no_state():
    codec = load("power_sgd")
    assert torch.equal(step(codec, normal(100)), normal(100))
    assert not codec.state


def test_the_first_q_is_shared_and_has_a_seed():
    def first(seed, key="w"):
        payload, how = next(load("power_sgd", seed=seed).encode(normal(30, 40), key))
        assert how == "sum" and payload.form == "p"
        return payload.body

    assert first(0) == first(0)
    assert len({first(0), first(1), first(0, "v")}) == 3


def test_bytes_are_the_transposed_factors():
    rounds = load("power_sgd", rank=1).encode(torch.diag(torch.tensor([0.0, 0.0, 2.0])), "w")
    p, _ = next(rounds)
    assert struct.unpack("<3f", p.body)[:2] == (0, 0)
    q, _ = rounds.send(p)
    assert [abs(x) for x in struct.unpack("<3f", q.body)] == [0, 0, 2]
    with pytest.raises(StopIteration) as stop:
        rounds.send(q)
    assert stop.value.value.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 2]]


@pytest.mark.parametrize("damage", ["short", "nan", "round"])
def test_malformed_answers(damage):
    rounds = load("power_sgd").encode(normal(30, 40), "w")
    p, _ = next(rounds)
    changes, message = {
        "short": ({"body": p.body[:-4]}, "power_sgd p: body has 476 bytes, its shape needs 480"),
        "nan": ({"body": b"\xff" * 480}, "power_sgd p: 120 of 120 values are NaN"),
        "round": ({"form": "q"}, "power_sgd: form 'q'"),
    }[damage]
    with pytest.raises(ValueError, match=message):
        rounds.send(type(p)(**{**vars(p), **changes}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "power_sgd: rank must be a whole number >= 1"),
        ({"square_from": -1}, "square_from must be a whole number >= 0"),
        ({"seed": "x"}, "seed must be a whole number"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("power_sgd", **parameters)


def test_a_key_is_one_matrix():
    codec = load("power_sgd")
    aggregate([codec], [torch.ones(40, 50)], "w")
    saved = codec.state_dict()
    with pytest.raises(ValueError, match="'w' is a matrix of 50 x 40, was 40 x 50 before"):
        aggregate([codec], [torch.ones(50, 40)], "w")
    assert torch.equal(codec.state["w"]["residual"], saved["w"]["residual"])
