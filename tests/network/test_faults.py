"""Faults: what they mean on a line of arithmetic, and that draws are repeatable."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder
from slowlink.testbed.network import (
    Faults,
    Network,
    failed_links,
    geo_sites,
    priority,
    random_pauses,
    route,
    simulate,
    star,
)


def ends(faults, pairs=((0, 2), (1, 2)), nbytes=1e6, topology=None):
    """Arrivals of messages that start at 0, by default two that share a card of 1 MB/s."""
    topology = topology or star(4, 8e6)
    builder = PlanBuilder("messages", 1, ["x"])
    for src, dst in pairs:
        builder.add(src, dst, "x", REDUCE)
    plan = builder.build(sorted({src for src, _ in pairs}), [])
    return simulate(plan, topology, nbytes, faults).transfers["end_s"].tolist()


def link(src, dst, hop, topology=None):
    return route(topology or star(4, 8e6), src, dst)[hop]


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(), [2.0, 2.0]),
        # The first sender's card fails for 1 s: the other has the receiver's card alone.
        (failed_links([link(0, 2, 0)], 0.0, 1.0), [2.0, 1.0]),
        (failed_links([link(0, 2, 0)], 0.5, 1.5), [2.25, 1.25]),
        (failed_links([link(0, 2, 1)], 0.5, 1.5), [3.0, 3.0]),
        (failed_links([link(2, 0, 0)], 0.5, 1.5), [2.0, 2.0]),  # the way back
        # A quarter of the receiver's card left, from 1 s to 3 s.
        (Faults(rates=[(link(0, 2, 1), 1.0, 3.0, 2e6)]), [3.5, 3.5]),
        (priority(star(4, 8e6), [link(0, 2, 1)], 6e6, 1.0, 3.0), [3.5, 3.5]),
        (priority(star(4, 8e6), [link(0, 2, 1)], 9e6, 1.0, 3.0), [4.0, 4.0]),
        # Of several the smallest holds, and never more than the link has.
        (Faults(rates=[(link(0, 2, 1), 1, 3, 2e6), (link(0, 2, 1), 0, 2, 9e9)]), [3.5, 3.5]),
        (Faults(rates=[(link(0, 2, 1), 1, 3, 2e6), (link(0, 2, 1), 1, 2, 0)]), [3.75, 3.75]),
        # Two background flows on the receiver's card: a quarter each until 2 s.
        (Faults(bursts=[(link(0, 2, 1), 0.0, 2.0, 2)]), [3.0, 3.0]),
        (Faults(bursts=[(link(0, 2, 1), 0.0, 2.0, 1)] * 2), [3.0, 3.0]),
        # On the first one's own card they leave a quarter, so the other has three quarters.
        (Faults(bursts=[(link(0, 2, 0), 0.0, 2.0, 3)]), [2.5, 4 / 3]),
        (Faults(bursts=[(link(0, 2, 0), 0.0, 9.0, 1)]), [2.0, 2.0]),
        # A burst shares what a rate leaves.
        (Faults(rates=[(link(0, 2, 1), 0, 9, 4e6)], bursts=[(link(0, 2, 1), 0, 9, 2)]), [8.0, 8.0]),
        (Faults([(0, 0.0, 1.0)]) | failed_links([link(1, 2, 0)], 0.0, 1.0), [3.0, 3.0]),
    ],
)
def test_closed_forms(faults, expected):
    assert ends(faults) == pytest.approx(expected, rel=1e-9)


def test_a_burst_that_finds_nobody_changes_nothing():
    faults = Faults(bursts=[(link(3, 0, 0), 0.0, 1.0, 5)], rates=[(link(3, 0, 0), 0.0, 1.0, 1.0)])
    assert ends(faults) == ends(Faults())


def test_a_failure_before_the_start_and_after_the_end():
    card = link(0, 2, 1)
    network = Network(star(4, 8e6), failed_links([card], 0.0, 2.0) | failed_links([card], 5, 6))
    builder = PlanBuilder("late", 1, ["x"])
    builder.add(0, 2, "x", COPY)
    result = network.start(builder.build([0], [2]), 1e6, at=1.0)
    network.advance()
    assert result.completion_s == pytest.approx(3.0)
    network.advance(until=5.5)
    again = network.start(builder.build([0], [2]), 1e6)
    network.advance()
    assert again.completion_s == pytest.approx(7.0)


def test_faults_are_sorted_and_pauses_that_touch_are_one():
    a = Faults([(1, 2, 3), (0, 1, 2), (0, 0, 1)], bursts=[(4, 1, 2, 1), (3, 1, 2, 1)])
    assert a.pauses == ((0, 0.0, 2.0), (1, 2.0, 3.0))
    assert a.bursts == ((3, 1.0, 2.0, 1), (4, 1.0, 2.0, 1))
    b = Faults([(0, 2, 4)], rates=[(7, 0, 1, 5)])
    assert a | b == b | a == Faults([*a.pauses, (0, 2, 4)], b.rates, a.bursts)
    assert (a | b).pauses == ((0, 0.0, 4.0), (1, 2.0, 3.0))
    assert a | Faults() == a


def paused_at(faults, time):
    return {node for node, begin, end in faults.pauses if begin <= time < end}


def test_random_pauses_hold_k_nodes_and_repeat():
    nodes = range(100, 132)
    faults = random_pauses(nodes, 5, 0.01, 1.0, seed=3, begin_s=0.2)
    assert faults == random_pauses(nodes, 5, 0.01, 1.0, seed=3, begin_s=0.2)
    assert faults != random_pauses(nodes, 5, 0.01, 1.0, seed=4, begin_s=0.2)
    middles = 0.2 + 0.01 * (np.arange(80) + 0.5)
    sets = [paused_at(faults, time) for time in middles]
    assert all(len(chosen) == 5 and chosen <= set(nodes) for chosen in sets)
    assert len(set(map(frozenset, sets))) > 70
    assert paused_at(faults, 0.19) == paused_at(faults, 1.0) == set()
    # Every node has its turn: 400 places over 32 nodes, 12.5 each, deviation below 3.3.
    turns = [sum(node in chosen for chosen in sets) for node in nodes]
    assert min(turns) > 0 and max(turns) < 12.5 + 5 * 3.3


def test_longer_or_heavier_random_pauses_keep_the_draws():
    short, long, more = (
        random_pauses(range(9), k, 0.25, until, seed=1) for k, until in [(2, 1.1), (2, 9), (4, 9)]
    )
    for time in np.arange(0.05, 1.1, 0.1):
        assert paused_at(short, time) == paused_at(long, time) < paused_at(more, time)
    assert max(end for _, _, end in short.pauses) == 1.1


def test_random_pauses_of_none_and_of_all():
    assert random_pauses(range(4), 0, 1.0, 10.0, seed=0) == Faults()
    assert random_pauses(range(4), 3, 1.0, 0.0, seed=0) == Faults()
    everyone = random_pauses(range(3), 3, 0.5, 2.0, seed=0)
    assert everyone.pauses == tuple((node, 0.0, 2.0) for node in range(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Faults([(0, 1, 1)]), "pause of node 0 from 1 s to 1 s"),
        (lambda: Faults(rates=[(0, 0, math.inf, 1)]), "rate of link 0 .* finite"),
        (lambda: Faults(bursts=[(0, -1, 2, 1)]), "burst on link 0 from -1 s"),
        (lambda: Faults(rates=[(3, 0, 1, -1.0)]), "rate of link 3: needs 0 <= bit/s"),
        (lambda: Faults(rates=[(3, 0, 1, math.nan)]), "rate of link 3"),
        (lambda: Faults(bursts=[(3, 0, 1, 0.5)]), "burst on link 3: needs a number of flows"),
        (lambda: Faults(bursts=[(3, 0, 1, 0)]), "burst on link 3: needs a number of flows"),
        (lambda: random_pauses(range(3), 4, 1, 1, 0), "k must be 0 to 3 nodes, not 4"),
        (lambda: random_pauses(range(3), 1, 0, 1, 0), "every_s > 0"),
        (lambda: random_pauses(range(3), 1, 1, 1, 0, begin_s=2), "begin_s <= until_s"),
        (lambda: Network(star(2, 1e9), Faults([(4, 0, 1)])), "no node 4"),
        (lambda: Network(star(2, 1e9), failed_links([6], 0, 1)), "star has no link 6"),
        (lambda: Network(star(2, 1e9), Faults(bursts=[(-1, 0, 1, 1)])), "no link -1"),
        (lambda: Network(star(2, math.inf), failed_links([0], 0, 1)), "link 0 .*never constrains"),
    ],
)
def test_clear_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_failed_uplink_delays_only_what_crosses_it():
    topology = geo_sites([1, 1], lan=8e6, wan=8e6, site_wan=8e6)
    a, b = topology.workers.tolist()
    near, far = (int(topology.servers[i]) for i in (2, 0))
    up = route(topology, a, far)[1]
    pairs = [(a, far), (b, near)]
    assert ends(failed_links([up], 0.5, 1.0), pairs, topology=topology) == pytest.approx([1.5, 1])
