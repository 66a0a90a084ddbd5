"""A plan on real processes beside its simulation: what is measured, and what is told of it."""

import numpy as np
import pytest

from slowlink.methods import exchange
from slowlink.testbed import rounds
from slowlink.testbed.live import agreement
from slowlink.testbed.live.agreement import Comparison
from slowlink.testbed.network import geo_sites, tcp_efficiency
from slowlink.testbed.network.emulated import Measured

pytestmark = pytest.mark.slow

SITES = geo_sites([2, 2], lan=2e8, wan=5e7)


def test_one_pair_of_nodes_a_slot_is_measured():
    plan = exchange.load("hips")(SITES)
    names = [[SITES.node_names[node] for node in pair] for pair in agreement.pairs(plan)]
    assert names == [
        ["site2/worker1", "site2/server"],
        ["site2/server", "central/server"],
        ["central/server", "site2/server"],
        ["site2/server", "site2/worker1"],
    ]


@pytest.mark.parametrize(
    ("emulated_s", "busy", "held", "rate", "uneven", "said"),
    [
        (1.09, 0.99, 0.5, 0.5, 2.0, ""),
        (0.91, 0.99, 0.5, 0.5, 2.0, ""),
        (1.2, 0.9, 0, 0.99, 1.1, "processors 90 % busy (30 % with the exchange)"),
        (1.2, 0.3, 0, 0.5, 1.1, "before the round links carried 50 % of their rate"),
        (1.2, 0.3, 0.05, 0.99, 1.1, "a quota held threads back for 5 % of the time"),
        (1.2, 0.3, 0, 0.99, 1.25, "against simulation, the slowest of the first messages took "
         "1.25 times as long as the fastest"),
        (1.2, 0.9, np.nan, 0.5, 1.1, "processors 90 % busy (30 % with the exchange), before the "
         "round links carried 50 % of their rate"),
        (1.2, np.nan, np.nan, 0.99, 1.15, "processors 30 % busy (30 % with the exchange), links "
         "carried their rate: not explained"),
    ],
)  # fmt: skip
def test_what_was_measured_is_told_where_times_differ(emulated_s, busy, held, rate, uneven, said):
    links = [Measured(0, 1, 1e8, 1e8, 0), Measured(1, 0, rate, 1, 0)]
    both = Comparison(1.0, emulated_s, 0.3, links, uneven, busy, held)
    assert both.why == (f"measured: {said}" if said else "")


def test_the_same_plan_runs_for_real_and_in_simulation(monkeypatch):
    """On loopback, which has no limit: real processes, shared by all that this file needs."""

    class Loopback:
        def __init__(self, topology, fair):
            assert fair
            self.topology = topology

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def address(self, node):
            return "127.0.0.1"

        def namespaces(self, node):
            return ()

        def measure(self, pairs, seconds):
            return [Measured(*pair, 1e9, 1e9, 1e-5) for pair in pairs]

    monkeypatch.setattr(agreement, "Emulated", Loopback)
    sites = geo_sites([1, 1])
    plan = exchange.load("hips", overlap=False)(sites)
    sent = {slot: dict.fromkeys(range(5), bytes(5_000)) for slot in plan.slots}
    bodies = rounds.bound(plan, sent)
    sizes = dict.fromkeys(plan.slots, 5_000)
    said = []
    both = agreement.compare(
        plan, sites, sizes, efficiency=tcp_efficiency(), bodies=bodies, repeats=3, say=said.append
    )
    # Messages of 5 kB up and down: each site's one at 1 Gbit/s, both sites' two at 155 Mbit/s.
    expected = (2 * 4e4 / 1e9 + 2 * 8e4 / 155e6) / tcp_efficiency()
    assert both.simulated_s == pytest.approx(expected)
    assert 0 < both.emulated_s < 2 and both.cpu_share > 0 and both.uneven >= 1
    assert np.isnan(both.busy_share) or 0 <= both.busy_share <= 1
    assert len(both.links) == 4 and "site2/server to central/server: 1000.0 of" in " ".join(said)
