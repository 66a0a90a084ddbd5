"""Count-sketch with HEAVYMIX: worked examples, conservation, contraction, convergence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from slowlink.methods.compression import Payload, aggregate, load
from slowlink.methods.compression.count_sketch import heavymix
from slowlink.methods.compression.pieces import sketch as sketching

SELECTIONS = ["heavymix", "top_pk"]


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def codec(**parameters):
    return load("count_sketch", **{"lower_bound": 0} | parameters)


def one(made, tensor: torch.Tensor, key="w") -> torch.Tensor:
    return aggregate([made], [tensor], key)[0][0]


# HEAVYMIX by hand, from exact estimates.


def test_heavymix_by_hand():
    # Squares 36, 25, 1, ..., their sum 70: heavy from 70/4 = 17.5 on, so positions 1 and 4.
    estimates = torch.tensor([1.0, -6, 1, 1, 5, 1, -1, 1, 1, 1, 1, 0])
    assert float(estimates @ estimates) == 70
    chosen = [heavymix(estimates, 70**0.5, 4, draws(seed)).tolist() for seed in range(200)]
    for positions in chosen:
        assert len(positions) == 4 == len(set(positions)) and positions == sorted(positions)
        assert {1, 4} < set(positions) <= set(range(12))
    filled = np.bincount([p for positions in chosen for p in positions], minlength=12)
    assert filled[[1, 4]].tolist() == [200, 200] and (np.delete(filled, [1, 4]) > 0).all()


def test_heavymix_keeps_the_largest_where_too_many_are_heavy():
    estimates = torch.tensor([3.0, -4, 0, 5, -3, 2])
    # An underestimated norm: from 2/√2 on, all but the zero are heavy.
    assert heavymix(estimates, 2.0, 2, draws()).tolist() == [1, 3]
    assert heavymix(estimates, 2.0, 3, draws()).tolist() == [0, 1, 3]  # of equals, the first


def test_the_threshold_is_met_by_equality():
    # Squares 4, 4, 4, 4: each is a quarter of the sum.
    assert heavymix(torch.full((4,), -2.0), 4.0, 4, draws()).tolist() == [0, 1, 2, 3]


def test_of_zeros_none_is_heavy_and_all_are_filled():
    chosen = {tuple(heavymix(torch.zeros(6), 0.0, 2, draws(seed)).tolist()) for seed in range(50)}
    assert len(chosen) > 3 and all(len(set(positions)) == 2 for positions in chosen)


def test_every_other_position_fills_with_the_same_chance():
    estimates = torch.zeros(23)
    estimates[[0, 7, 8, 22]] = torch.tensor([9.0, -9, 9, -9])
    times = np.zeros(23, int)
    for seed in range(3000):
        positions = heavymix(estimates, 18.0, 7, draws(seed)).numpy()
        assert len(np.unique(positions)) == 7
        times[positions] += 1
    assert (times[[0, 7, 8, 22]] == 3000).all()
    others = np.delete(times, [0, 7, 8, 22])
    for count in others:  # 3 of 19 each
        assert stats.binomtest(int(count), 3000, 3 / 19).pvalue > 1e-5


@pytest.mark.parametrize("spikes", [0, 5, 40])
def test_heavymix_contracts(spikes):
    """E‖g - C(g)‖² ≤ (1 - k/n)‖g‖² (Ivkin et al. 2019, Lemma 1), here from exact estimates."""
    n, k = 400, 20
    values = normal(n)
    values[:spikes] *= 10
    total = float(values @ values)
    lost = []
    for seed in range(400):
        positions = heavymix(values, total**0.5, k, draws(seed))
        lost.append(total - float((values[positions] ** 2).sum()))
    error = np.std(lost) / 20
    assert np.mean(lost) <= (1 - k / n) * total + 4 * error
    if spikes == 0:  # random-k, whose expectation is known
        assert abs(np.mean(lost) - (1 - k / n) * total) <= 4 * error


# The codec.


@pytest.mark.parametrize("selection", SELECTIONS)
def test_it_contracts_with_a_real_sketch(selection):
    n, k, trials = 2000, 20, 150
    values = normal(n)
    values[torch.randperm(n, generator=draws(1))[:30]] *= 12
    total = float(values @ values)
    made = codec(selection=selection, width=16)
    lost = []
    for _ in range(trials):
        result = one(made, values)
        assert torch.equal(result[result != 0], values[result != 0])
        assert int(result.count_nonzero()) == k
        lost.append(float(((values - result) ** 2).sum()))
    assert np.mean(lost) <= (1 - k / n) * total + 4 * np.std(lost) / trials**0.5


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("parties", [1, 3])
def test_the_result_is_the_exact_sum_at_k_positions(selection, parties):
    n = 5000
    made = [codec(selection=selection) for _ in range(parties)]
    for step in range(3):
        tensors = [torch.round(100 * normal(n, 10 * step + party)) for party in range(parties)]
        total = sum(tensors)
        results, up, down = aggregate(made, tensors, "w")
        assert all(torch.equal(result, results[0]) for result in results)
        sent = results[0] != 0
        assert torch.equal(results[0][sent], total[sent])
        assert int(sent.sum()) <= 50
        fetched = 200 if selection == "top_pk" else 50
        assert up == [[4 * 5 * 200, 4 * fetched]] * parties and down == up[0]


def test_top_pk_finds_the_largest_of_the_sum_that_no_party_has_largest():
    """Large parts that cancel are not sent, small ones that add up are."""
    n = 20_000
    a, b = 0.01 * normal(n, 1), 0.01 * normal(n, 2)
    opposite, common = torch.arange(0, 10_000, 100), torch.arange(10_000, 20_000, 50)
    a[opposite] += 8
    b[opposite] -= 8
    a[common] -= 3
    b[common] -= 3
    (result, _), _, _ = aggregate([codec(selection="top_pk") for _ in range(2)], [a, b], "w")
    assert (result != 0).nonzero().view(-1).tolist() == common.tolist()
    assert torch.equal(result[common], (a + b)[common])


def test_heavymix_finds_heavy_values_of_both_signs():
    n = 20_000
    values = 0.01 * normal(n)
    heavy = torch.arange(100, n, 1000)
    values[heavy] = torch.where(torch.arange(len(heavy)) % 2 == 0, 5.0, -5.0)
    result = one(codec(), values)
    assert torch.equal(result[heavy], values[heavy])
    assert int(result.count_nonzero()) == 200  # the rest filled at random


@pytest.mark.parametrize("selection", SELECTIONS)
def test_one_round_returns_the_estimates(selection):
    n = 3000
    values = torch.round(100 * normal(n))
    made = codec(selection=selection, exact=False, seed=4)
    encoding = made.encode(values, "w")
    payload, _ = next(encoding)
    with pytest.raises(StopIteration) as stop:
        encoding.send(payload)
    result = stop.value.value
    draw = int(payload.form.removeprefix("sketch_"), 16)
    hashing = sketching.draw(n, 5, 120, draw)
    table = torch.tensor(np.frombuffer(payload.body, "<f4")).view(5, 120)
    assert torch.equal(table, sketching.sketch(values, hashing))
    read = sketching.estimates(table, hashing, n)
    sent = result != 0
    assert torch.equal(result[sent], read[sent]) and int(sent.sum()) <= 30
    if selection == "top_pk":
        assert float(read[sent].abs().min()) >= float(read[~sent].abs().max())


@pytest.mark.parametrize("selection", SELECTIONS)
def test_value_and_residual_conserve_the_input(selection):
    n = 4000
    made = [codec(selection=selection, error_feedback=True) for _ in range(2)]
    given, received = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for step in range(20):
        tensors = [normal(n, 2 * step + party) for party in range(2)]
        received += aggregate(made, tensors, "w")[0][0].double()
        given += sum(tensors).double()
        left = sum(codec_.state["w"]["residual"] for codec_ in made).double()
        torch.testing.assert_close(received + left, given, rtol=0, atol=1e-4)
        for codec_ in made:  # only what arrived is forgotten
            gone = codec_.state["w"]["residual"] == 0
            assert int(gone.sum()) == 40


@pytest.mark.parametrize("selection", SELECTIONS)
def test_momentum_is_corrected_and_masked(selection):
    n, m = 4000, 0.5
    made = codec(selection=selection, error_feedback=True, momentum=m)
    velocity, residual = torch.zeros(n), torch.zeros(n)
    for step in range(5):
        gradient = normal(n, step)
        result = one(made, gradient)
        velocity = m * velocity + gradient
        residual = residual + velocity
        sent = result != 0
        torch.testing.assert_close(result[sent], residual[sent])
        velocity[sent] = residual[sent] = 0
        torch.testing.assert_close(made.state["w"]["velocity"], velocity)
        torch.testing.assert_close(made.state["w"]["residual"], residual)


def test_dense_tensors_send_their_velocity():
    made = load("count_sketch", error_feedback=True, momentum=0.5)
    assert one(made, torch.tensor([1.0, -2.0])).tolist() == [1, -2]
    assert one(made, torch.tensor([1.0, 0.0])).tolist() == [1.5, -1]


@pytest.mark.parametrize(
    ("parameters", "n", "expected"),
    [
        ({}, 999, (4 * 999,)),  # below the lower bound
        ({}, 1000, (4 * 5 * 40, 4 * 10)),
        ({}, 1001, (4 * 5 * 44, 4 * 11)),
        ({"lower_bound": 0}, 21, (4 * 21,)),  # 5·4 + 1 values are no fewer
        ({"lower_bound": 0}, 22, (4 * 20, 4)),
        ({"lower_bound": 0}, 0, (0,)),
        ({"exact": False, "rows": 3}, 10_000, (4 * 3 * 400,)),
        ({"selection": "top_pk", "pool": 3, "columns": 1000}, 10_000, (4 * 5000, 4 * 300)),
        ({"columns": 2000}, 10_000, (4 * 10_000,)),  # the sketch is as large as the tensor
        ({"ratio": 0.0001}, 5000, (4 * 5 * 4, 4)),
    ],
)
def test_bytes_by_hand(parameters, n, expected):
    made = load("count_sketch", **parameters)
    assert made.payload_bytes((n,)) == expected
    (_,), (up,), _ = aggregate([made], [normal(n)], "w")
    assert tuple(up) == expected


def test_hashing_and_filling_differ_between_steps_keys_and_seeds_only():
    values, forms = normal(2000), []
    for seed, key in ((0, "a"), (0, "b"), (1, "a")):
        made = codec(seed=seed)
        for _ in range(2):
            payload, _ = next(made.encode(values, key))
            forms.append(payload.form)
    assert len(set(forms)) == 6
    again, _ = next(codec().encode(values, "a"))
    assert again.form == forms[0]


def test_sketches_of_different_hashings_do_not_add():
    with pytest.raises(ValueError, match="one configuration"):
        aggregate([codec(seed=0), codec(seed=1)], [normal(500)] * 2, "w")


@pytest.mark.parametrize("damage", ["short", "nan", "form"])
@pytest.mark.parametrize("at", [0, 1])
def test_damaged_answers_are_refused(at, damage):
    encoding = codec().encode(normal(500), "w")
    payload, _ = next(encoding)
    if at:
        payload, _ = encoding.send(payload)
    body = payload.body[:-4]
    if damage == "nan":
        body += np.float32("nan").tobytes()
    form = "sketch_0" if damage == "form" else payload.form
    with pytest.raises(ValueError, match="count_sketch"):
        encoding.send(Payload(body, payload.codec, payload.shape, form, "float32"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rows": 4}, "rows must be an odd number >= 1 .*biased.*not 4"),
        ({"ratio": 0}, "ratio must be a number in"),
        ({"selection": "best"}, "selection must be heavymix or top_pk, not 'best'"),
        ({"width": 0}, "width must be a whole number >= 1, not 0"),
        ({"pool": 1.5}, "pool must be a whole number >= 1"),
        ({"exact": False, "error_feedback": True}, "error_feedback needs exact=true"),
        ({"momentum": 0.9}, "momentum needs error_feedback=true"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=f"count_sketch: {message}"):
        load("count_sketch", **parameters)


@pytest.mark.slow
@pytest.mark.parametrize("selection", SELECTIONS)
def test_error_feedback_converges_where_one_pass_does_not(selection):
    """½‖x - x*‖² where k values of each gradient are noise that hides the others.

    The noise is ±5 at 20 positions whose optimum is 0, of opposite signs in turn; at 5 others x* is
    1. One pass sends the noise, and another value only by chance (filled in, or three rows of
    collisions); with error feedback what is left adds up until it is larger.
    """
    n, k, rate, steps = 2000, 20, 0.05, 600
    noisy, wanted = torch.arange(0, n, n // k), torch.arange(50, n, n // 5)
    optimum = torch.zeros(n)
    optimum[wanted] = 1

    def distance(**parameters) -> float:
        made = codec(selection=selection, width=16, **parameters)
        x = torch.zeros(n)
        for step in range(steps):
            gradient = x - optimum
            gradient[noisy] += 5 * (-1) ** step
            x -= rate * one(made, gradient)
        return float(((x - optimum)[wanted] ** 2).sum())

    assert distance() > 3 and distance(exact=False) > 3  # of 5; sending all leaves 1e-26
    # What waits, the noise and a step more, is about 6: rate times that off the optimum.
    assert distance(error_feedback=True) < 5 * (rate * 6) ** 2
