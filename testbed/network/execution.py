"""Run a plan on real arrays, and prove that it is the exchange it claims to be.

What a transfer carries follows from the plan's dependencies alone, so neither timing, chunks nor
the order of arrivals can change a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from slowlink.methods.exchange import COPY, REDUCE, Plan


def execute(
    plan: Plan, arrays: Mapping[int, np.ndarray] | Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    """Run ``plan``, once it is verified, on arrays; return what every receiver ends with.

    Parameters
    ----------
    arrays: each contributor's own array, by node id or in the order of ``plan.contributors``;
        equal shapes and dtypes. Not changed.

    Returns
    -------
    A new array a receiver, by node id.

    Raises
    ------
    ValueError
        The arrays do not fit the plan, or the plan is not valid.
    """
    own = _by_node(plan, arrays)
    verify(plan)
    first = next(iter(own.values()))
    cuts = np.arange(plan.units + 1) * first.size // plan.units
    flat = {node: array.reshape(-1) for node, array in own.items()}
    held = _Holdings(plan, flat, cuts, np.zeros(first.size, first.dtype))
    for transfer, value in _flow(plan, flat, cuts):
        held.arrive(transfer, value)
    return {node: held.final(node).reshape(first.shape) for node in held.nodes}


def verify(plan: Plan) -> None:
    """Prove symbolically that every receiver ends with every contribution exactly once.

    Contributions are counted instead of added: one pass with unit vectors as the arrays.

    Raises
    ------
    ValueError
        Naming the first transfer that breaks the rules of :class:`methods.exchange.Plan`, or the
        first receiver and part with a missing or doubled contribution.
    """
    check_structure(plan)
    k = len(plan.contributors)
    own = {}
    for column, node in enumerate(plan.contributors.tolist()):
        own[node] = np.zeros((plan.units, k), dtype=np.int16)
        own[node][:, column] = 1
    cuts = np.arange(plan.units + 1)
    held = _Holdings(plan, own, cuts, np.zeros((plan.units, k), np.int16))
    for transfer, value in _flow(plan, own, cuts, exact=True):
        if held.contradicts(transfer, value):
            raise ValueError(
                f"{plan.name}: transfer {transfer} copies another value to node "
                f"{plan.dst[transfer]} than an earlier copy of the same parts did"
            )
        held.arrive(transfer, value)
    for node in held.nodes:
        counts = held.final(node)
        if np.any(counts != 1):
            part, column = np.argwhere(counts != 1)[0]
            raise ValueError(
                f"{plan.name}: receiver {node} has {counts[part, column]} times the contribution "
                f"of node {plan.contributors[column]} in part {part}, not once"
            )


def _by_node(
    plan: Plan, arrays: Mapping[int, np.ndarray] | Sequence[np.ndarray]
) -> dict[int, np.ndarray]:
    contributors = plan.contributors.tolist()
    if not isinstance(arrays, Mapping):
        if len(arrays) != len(contributors):
            raise ValueError(
                f"{plan.name}: {len(arrays)} arrays for {len(contributors)} contributors"
            )
        arrays = dict(zip(contributors, arrays, strict=True))
    if set(arrays) != set(contributors):
        odd = sorted(set(arrays) ^ set(contributors))
        raise ValueError(
            f"{plan.name}: needs one array for each of the contributors {contributors}; "
            f"node {odd[0]} is {'not one' if odd[0] in arrays else 'missing'}"
        )
    own = {node: np.asarray(arrays[node]) for node in contributors}
    kinds = {(array.shape, array.dtype) for array in own.values()}
    if len(kinds) > 1:
        raise ValueError(f"{plan.name}: arrays differ in shape or dtype: {sorted(map(str, kinds))}")
    return own


def check_structure(plan: Plan) -> None:
    """Raise ValueError for the first transfer that no plan may contain."""

    def refuse(bad: np.ndarray, what: str) -> None:
        if bad.any():
            raise ValueError(f"{plan.name}: transfer {int(np.argmax(bad))} {what}")

    n = len(plan)
    if not len(plan.contributors):
        raise ValueError(f"{plan.name}: has no contributors")
    lengths = {len(getattr(plan, a)) for a in ("dst", "lo", "hi", "slot", "op", "phase")}
    if lengths - {n} or len(plan.dep_ptr) != n + 1 or plan.dep_ptr[-1] != len(plan.dep_idx):
        raise ValueError(f"{plan.name}: its arrays differ in length")
    refuse((plan.lo < 0) | (plan.lo >= plan.hi) | (plan.hi > plan.units), "has no valid parts")
    refuse((plan.slot < 0) | (plan.slot >= len(plan.slots)), "names no slot")
    refuse((plan.op != REDUCE) & (plan.op != COPY), "neither reduces nor copies")
    refuse((plan.op == REDUCE) & (plan.src == plan.dst), "reduces a node into itself")
    transfer = np.repeat(np.arange(n), np.diff(plan.dep_ptr))
    bad = np.zeros(n, dtype=bool)
    bad[transfer[(plan.dep_idx < 0) | (plan.dep_idx >= transfer)]] = True
    refuse(bad, "depends on a transfer that is not before it")
    bad[transfer[plan.dst[plan.dep_idx] != plan.src[transfer]]] = True
    refuse(bad, "depends on one that arrives elsewhere than at its sender")
    if not plan.overlap:
        bad[transfer[plan.phase[plan.dep_idx] > plan.phase[transfer]]] = True
        refuse(bad, "depends on a later phase, but phases do not overlap")


def _flow(
    plan: Plan, own: Mapping[int, np.ndarray], cuts: np.ndarray, exact: bool = False
) -> Iterator[tuple[int, np.ndarray]]:
    """The value that each transfer carries, in plan order; values may be views.

    ``cuts[u]`` is where part ``u`` begins along the first axis of the arrays. Where arithmetic is
    exact, copies that a transfer depends on are compared.
    """
    values: list[np.ndarray] = []
    zero = np.zeros_like(next(iter(own.values())))
    src, lo, hi, op = plan.src.tolist(), plan.lo.tolist(), plan.hi.tolist(), plan.op.tolist()
    cut = cuts.tolist()
    for t in range(len(plan)):
        begin, end = cut[lo[t]], cut[hi[t]]
        value, fresh, copied, reduced = own.get(src[t], zero)[begin:end], False, [], []
        for d in plan.dependencies(t).tolist():
            a, b = max(lo[t], lo[d]), min(hi[t], hi[d])
            if a < b:
                (copied if op[d] == COPY else reduced).append((d, a, b))
        if any(x < b and a < y for _, a, b in copied for _, x, y in reduced):
            raise ValueError(
                f"{plan.name}: transfer {t} depends on a copy and a reduction of the same parts"
            )
        if exact and len(copied) > 1:
            _compare_copies(plan, t, copied, values)
        for d, a, b in copied + reduced:
            piece = values[d][cut[a] - cut[lo[d]] : cut[b] - cut[lo[d]]]
            if op[d] == COPY and (a, b) == (lo[t], hi[t]):
                value, fresh = piece, False
                continue
            if not fresh:
                value, fresh = value.copy(), True
            target = slice(cut[a] - begin, cut[b] - begin)
            if op[d] == COPY:
                value[target] = piece
            else:
                value[target] += piece
        values.append(value)
        yield t, value


def _compare_copies(
    plan: Plan, transfer: int, copies: list[tuple[int, int, int]], values: list[np.ndarray]
) -> None:
    seen: dict[int, np.ndarray] = {}
    for d, begin, end in copies:
        for part in range(begin, end):
            value = values[d][part - plan.lo[d]]
            if np.any(seen.setdefault(part, value) != value):
                raise ValueError(
                    f"{plan.name}: transfer {transfer} depends on two copies of part {part} "
                    f"with different values"
                )


class _Holdings:
    """The values that receivers of a plan hold: sums of arrivals, until a copy replaces them."""

    def __init__(
        self, plan: Plan, own: Mapping[int, np.ndarray], cuts: np.ndarray, zero: np.ndarray
    ) -> None:
        self.plan, self.cuts = plan, cuts
        self.nodes = plan.receivers.tolist()
        self._sum = {node: own.get(node, zero).copy() for node in self.nodes}
        self._copy = {node: zero.copy() for node in self.nodes}
        self._is_copied = {node: np.zeros(len(zero), dtype=bool) for node in self.nodes}

    def _where(self, transfer: int) -> tuple[int, slice]:
        plan = self.plan
        begin, end = self.cuts[plan.lo[transfer]], self.cuts[plan.hi[transfer]]
        return int(plan.dst[transfer]), slice(begin, end)

    def contradicts(self, transfer: int, value: np.ndarray) -> bool:
        """Whether ``transfer`` copies parts that an earlier copy brought with another value."""
        node, parts = self._where(transfer)
        if self.plan.op[transfer] != COPY or node not in self._copy:
            return False
        before = self._is_copied[node][parts]
        return bool(np.any(self._copy[node][parts][before] != value[before]))

    def arrive(self, transfer: int, value: np.ndarray) -> None:
        node, parts = self._where(transfer)
        if node not in self._sum:
            return
        if self.plan.op[transfer] == COPY:
            self._copy[node][parts] = value
            self._is_copied[node][parts] = True
        else:
            self._sum[node][parts] += value

    def final(self, node: int) -> np.ndarray:
        copied = self._is_copied[node]
        shape = (-1,) + (1,) * (self._sum[node].ndim - 1)
        return np.where(copied.reshape(shape), self._copy[node], self._sum[node])
