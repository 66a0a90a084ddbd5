"""Arithmetic over claims and results: ``{GEO-T2-M1-h} * 3600 / {figure6/MXNET/1e9/rounds}``.

What stands in braces is a name; ``reports.claims`` says which names there are. Alternatives in
parentheses make several names, and an argument of ``min``, ``max``, ``mean`` or ``median`` is
repeated for each: ``max({t/(a|b)/m} / {t/(c|d)/m})`` is ``max({t/a/m} / {t/c/m}, {t/b/m} /
{t/d/m})``.

One expression is evaluated twice: over what a document prints (intervals as wide as its rounding)
and over what was measured (numbers, or one number a seed).
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

_NAME = re.compile(r"\{([^{}]*)\}")
_ALTERNATIVES = re.compile(r"\(([^()|]+(?:\|[^()|]+)+)\)")
_PICKS: dict[str, Callable[..., Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "median": np.median,
}
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Interval:
    """A closed interval ``[low, high]`` with the arithmetic of intervals."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise ValueError(f"interval [{self.low}, {self.high}] is empty")

    @classmethod
    def of(cls, value: Interval | float) -> Interval:
        return value if isinstance(value, Interval) else cls(float(value), float(value))

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    def within(self, other: Interval) -> bool:
        return other.low <= self.low and self.high <= other.high

    def __add__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(corners), max(corners))

    def __truediv__(self, other: Interval | float) -> Interval:
        other = Interval.of(other)
        if other.low <= 0 <= other.high:
            raise ValueError(f"division by [{other.low}, {other.high}], which contains zero")
        return self * Interval(1 / other.high, 1 / other.low)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Interval:
        return Interval.of(other) - self

    def __rtruediv__(self, other: float) -> Interval:
        return Interval.of(other) / self


def printed(text: str) -> Interval:
    """What a printed number can stand for: ``9.90`` is anything in [9.895, 9.905].

    Raises
    ------
    ValueError
        Not a plain decimal number.
    """
    try:
        number = Decimal(text)
        half = Decimal(1).scaleb(number.as_tuple().exponent) / 2
    except (InvalidOperation, TypeError) as error:
        raise ValueError(f"{text!r} is not a printed number such as 9.90") from error
    return Interval(float(number - half), float(number + half))


def names(text: str) -> list[str]:
    """Names an expression refers to, each once, in order."""
    return list(dict.fromkeys(_NAME.findall(text)))


def check(text: str) -> str:
    """Return ``text`` with its alternatives written out when it is an expression.

    Raises
    ------
    ValueError
        It is none, or its alternatives do not go together.
    """
    tree, known = _parse(text)
    if not any(map(_ALTERNATIVES.search, known.values())):
        return text
    spread = ast.unparse(_Spread(known).visit(tree))
    if _ALTERNATIVES.search("".join(names(spread))):
        raise ValueError(f"{text!r}: alternatives stand in arguments of {', '.join(_PICKS)}")
    return spread


class _Spread(ast.NodeTransformer):
    """Writes alternatives out, with names in braces where symbols stood."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(f"{{{self._known[node.id]}}}" if node.id in self._known else node.id)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.args = [one for argument in node.args for one in _each(argument)]
        return node


def _each(argument: ast.expr) -> list[ast.expr]:
    """An argument once for every alternative of the names in it, which go in step."""
    found = [node for node in ast.walk(argument) if isinstance(node, ast.Name)]
    every = {node.id: _alternatives(node.id) for node in found if _ALTERNATIVES.search(node.id)}
    numbers = {len(several) for several in every.values()}
    if len(numbers) > 1:
        raise ValueError(f"as many alternatives each, not {', '.join(map(str, sorted(numbers)))}")
    made = []
    for index in range(*numbers) if numbers else ():
        one = copy.deepcopy(argument)
        for node in ast.walk(one):
            if isinstance(node, ast.Name) and node.id in every:
                node.id = every[node.id][index]
        made.append(one)
    return made or [argument]


def _alternatives(text: str) -> list[str]:
    """``{t/(a|b)/(1|2)}`` as ``{t/a/1}``, ``{t/a/2}``, ``{t/b/1}`` and ``{t/b/2}``."""
    parts = _ALTERNATIVES.split(text)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Value of an expression; ``values`` maps its names to floats, to arrays of equal length (by
    seed), or to Intervals."""
    tree, known = _parse(text)
    return _walk(tree, {symbol: values[name] for symbol, name in known.items()})


@functools.cache
def _parse(text: str) -> tuple[ast.expr, dict[str, str]]:
    symbols = {name: f"name_{index}" for index, name in enumerate(names(text))}
    try:
        source = _NAME.sub(lambda match: symbols[match.group(1)], text)
        tree = ast.parse(source.strip(), mode="eval").body
        _walk(tree, dict.fromkeys(symbols.values()), dry=True)
    except (SyntaxError, TypeError, KeyError) as error:
        raise ValueError(
            f"{text!r} is not an expression; write {{ID}}, numbers, + - * / ( ), min(), max(), "
            "mean() and median()"
        ) from error
    return tree, {symbol: name for name, symbol in symbols.items()}


def _walk(node: ast.expr, values: Mapping[str, Any], dry: bool = False) -> Any:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return float(node.value)
        case ast.Name():
            return values[node.id]
        case ast.UnaryOp(op=ast.USub()):
            inner = _walk(node.operand, values, dry)
            return None if dry else 0.0 - inner
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _walk(node.left, values, dry), _walk(node.right, values, dry)
            return None if dry else _OPERATORS[type(node.op)](left, right)
        case ast.Call(func=ast.Name(id=name), args=[_, *_], keywords=[]) if name in _PICKS:
            arguments = [_walk(argument, values, dry) for argument in node.args]
            return None if dry else _pick(_PICKS[name], arguments)
    raise TypeError(ast.dump(node))


def _pick(pick: Callable[..., Any], values: list[Any]) -> Any:
    """One of several values, or the middle of two: of intervals end by end, of arrays by seed."""
    if any(isinstance(value, Interval) for value in values):
        spans = [Interval.of(value) for value in values]
        return Interval(pick([span.low for span in spans]), pick([span.high for span in spans]))
    if any(isinstance(value, np.ndarray) for value in values):
        return pick(np.broadcast_arrays(*values), axis=0)
    return float(pick(values))
