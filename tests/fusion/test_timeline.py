"""The timeline of one iteration against a worked example and a scheduler of tasks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from slowlink.methods.fusion import Costs, checked, every_message, timeline


def nothing(begin, end):
    return 0.0


def test_worked_example():
    # Forward 1 s; backward 1, 2, 3 s; a value takes 1 s to encode, 2 s to send, 0.5 s to decode.
    sizes, each = [1, 3, 2], (lambda v: v, lambda v: 2 * v, lambda v: v / 2)
    costs = Costs.by_values(sizes, [1.0, 2.0, 3.0], *each, forward_s=1.0)
    line = timeline(sizes, [[0], [1, 2]], costs)
    assert line.encode.tolist() == [[2, 3], [8, 13]]
    assert line.communicate.tolist() == [[3, 5], [13, 23]]
    assert line.decode.tolist() == [[13, 13.5], [23, 25.5]]
    assert line.iteration_s == 25.5
    assert line.exposed_communication_s == pytest.approx(25.5 - 7 - 6 - 3)


def test_no_tensors_and_no_costs():
    assert timeline([], [], Costs([], nothing, nothing, nothing, 2.0)).iteration_s == 2.0
    line = timeline([4, 5], [[0], [1]], Costs([1.0, 2.0], nothing, nothing, nothing))
    assert (line.iteration_s, line.exposed_communication_s) == (3.0, 0.0)


def scheduled(tasks):
    """Ends of tasks ``(stream, seconds, after)``: streams take theirs in order, one at a time."""
    ends, free = [], {}
    for stream, seconds, after in tasks:
        start = max([free.get(stream, 0.0), *(ends[i] for i in after)])
        ends.append(start + seconds)
        free[stream] = ends[-1]
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_equals_a_scheduler_of_tasks(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    sizes, backward = rng.integers(1, 50, n).tolist(), rng.exponential(1, n).tolist()
    cut = np.flatnonzero(rng.integers(0, 2, n - 1)) + 1
    groups = [list(range(a, b)) for a, b in itertools.pairwise([0, *cut.tolist(), n])]
    scale = rng.exponential(0.1, 3)
    encode, communicate, decode = (lambda v, k=k: float(k * v**0.9) for k in scale)
    costs = Costs.by_values(sizes, backward, encode, communicate, decode, forward_s=0.7)

    tasks, encoded = [("compute", 0.7, [])], []
    values = [sum(sizes[i] for i in group) for group in groups]
    for group, size in zip(groups, values, strict=True):
        tasks += [("compute", backward[i], []) for i in group]
        encoded.append(len(tasks))
        tasks.append(("compute", encode(size), []))
    arrived = len(tasks)
    sends = zip(values, encoded, strict=True)
    tasks += [("network", communicate(size), [after]) for size, after in sends]
    decodes = len(tasks)
    tasks += [("compute", decode(size), [arrived + g]) for g, size in enumerate(values)]
    ends = scheduled(tasks)

    line = timeline(sizes, groups, costs)
    assert line.encode[:, 1] == pytest.approx([ends[i] for i in encoded])
    assert line.communicate[:, 1] == pytest.approx(ends[arrived:decodes])
    assert line.decode[:, 1] == pytest.approx(ends[decodes:])
    assert line.iteration_s == pytest.approx(ends[-1])
    busy = sum(seconds for stream, seconds, _ in tasks if stream == "compute")
    assert line.exposed_communication_s == pytest.approx(ends[-1] - busy)
    for spans in (line.encode, line.communicate, line.decode):
        assert np.all(spans[:, 0] <= spans[:, 1])
        assert np.all(spans[1:, 0] >= spans[:-1, 1])


@pytest.mark.parametrize("groups", [[[0], [2]], [[1], [0, 2]], [[0, 1, 2], []], [[0, 1], [1, 2]]])
def test_groups_that_are_no_partition_are_refused(groups):
    costs = Costs([1.0] * 3, nothing, nothing, nothing)
    with pytest.raises(ValueError, match="groups must hold tensors 0 … 2 once, in order"):
        timeline([1, 1, 1], groups, costs)


def test_costs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="timeline: costs have 1 backward times, there are 2"):
        timeline([1, 1], [[0, 1]], Costs([1.0], nothing, nothing, nothing))
    with pytest.raises(ValueError, match=r"timeline: decode\(0, 2\) must be finite seconds"):
        timeline([1, 1], [[0, 1]], Costs([1.0, 1.0], nothing, nothing, lambda begin, end: -1.0))
    late = Costs([1.0] * 3, nothing, lambda begin, end: 2.0 - end, nothing, at_once=True)
    with pytest.raises(ValueError, match=r"test: communicate\(0, 3\) must be finite .* not -1"):
        every_message(checked("test", [1] * 3, late))


def test_messages_asked_for_at_once_cost_what_each_does():
    sent = np.array([[0.0, 1.0, 5.0], [0.0, 0.0, 3.0]])
    one = Costs([1.0] * 2, nothing, lambda begin, end: sent[begin, end], nothing)
    tables = [every_message(costs) for costs in (one, replace(one, at_once=True))]
    none = np.nan
    assert np.array_equal(tables[0][1], [[none, 1, 5], [none, none, 3], [none] * 3], True)
    assert np.array_equal(*tables, equal_nan=True)
