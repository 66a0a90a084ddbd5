from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowlink.reports.expressions import Interval, check, evaluate, names

positive = st.floats(0.01, 100)
NAMES = {"a-1", "b-2"}
FORMULAS = [
    "{a-1} + 2 * {b-2}",
    "100 * ({a-1} / {b-2} - 1)",
    "min({a-1}, {b-2}) - max({a-1} / 2, 3)",
    "-{a-1} / ({b-2} + 1)",
    "median({a-1}, {b-2}, 3 * {a-1})",
    "median({a-1}, 5)",
    "mean({a-1}, {b-2}, 1)",
]


@given(st.sampled_from(FORMULAS), positive, positive, st.floats(0, 0.005), st.floats(-1, 1))
def test_an_interval_holds_every_value_of_its_terms(text, a, b, half, where):
    spans = {"a-1": Interval(a - half, a + half), "b-2": Interval(b - half, b + half)}
    span = Interval.of(evaluate(text, spans))
    value = evaluate(text, {"a-1": a + where * half, "b-2": b - where * half})
    slack = 1e-9 * (1 + abs(value))
    assert span.low - slack <= value <= span.high + slack


def take(of):
    return lambda *values: of(values)


@given(st.sampled_from(FORMULAS), positive, positive)
def test_arrays_numbers_and_python_agree(text, a, b):
    text_by_hand = text.replace("{a-1}", repr(a)).replace("{b-2}", repr(b))
    by_hand = eval(text_by_hand, {"median": take(statistics.median), "mean": take(statistics.mean)})
    assert evaluate(text, {"a-1": a, "b-2": b}) == pytest.approx(by_hand)
    assert evaluate(text, {"a-1": np.array([a, 2.0]), "b-2": b})[0] == pytest.approx(by_hand)


def test_names_are_found_once_in_order():
    assert names("{b} * 3600 / ({a} + {b})") == ["b", "a"]


def test_division_by_what_may_be_zero_is_refused():
    with pytest.raises(ValueError, match="contains zero"):
        evaluate("1 / {a}", {"a": Interval(-1, 1)})


@pytest.mark.parametrize(
    "text", ["", "{a} +", "__import__('os')", "{a} ** 2", "[1]", "'x'", "abs({a})", "a + 1", "True"]
)
def test_only_arithmetic_is_an_expression(text):
    with pytest.raises(ValueError, match="is not an expression"):
        check(text)


@pytest.mark.parametrize(
    ("text", "written_out"),
    [
        ("max({t/(a|b)/m})", "max({t/a/m}, {t/b/m})"),
        ("mean({t/(a|b)/(1|2)/m}, 3)", "mean({t/a/1/m}, {t/a/2/m}, {t/b/1/m}, {t/b/2/m}, 3)"),
        ("min({t/(a|b)/m} / {X-(c|d)}) * {e}", "min({t/a/m} / {X-c}, {t/b/m} / {X-d}) * {e}"),
        ("max(min({(a|b)}), {(c|d)} - 1)", "max(min({a}, {b}), {c} - 1, {d} - 1)"),
    ],
)
def test_alternatives_are_written_out(text, written_out):
    assert check(text) == written_out


def test_alternatives_go_in_step():
    with pytest.raises(ValueError, match="as many alternatives each, not 2, 3"):
        check("max({(a|b)} / {(a|b|c)})")
