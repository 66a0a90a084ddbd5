"""What RAT's experiments must show, on the smallest settings, against closed forms."""

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import brentq

from slowlink.testbed import results
from slowlink.testbed.network import packet
from slowlink.workflow.documents.rat import experiments
from slowlink.workflow.experiment import Bench
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.scripts import experiment as script
from slowlink.workflow.settings import load, wings


@pytest.fixture(scope="module")
def jobs():
    return Jobs(load({"scale": "smoke"}, names=False), wings())


@pytest.fixture(scope="module")
def recipe(jobs):
    return jobs.settings.recipes["rat"]


def run(jobs, name, say=lambda message: None):
    """The rows of a job, of what a job gets, a column a coordinate."""
    made = script.rows(jobs.all["rat", name].params, [], say)
    return results.coordinates(results.frame(made))


def value(table, metric, **fields):
    chosen = table[table["metric"] == metric]
    for name, wanted in fields.items():
        chosen = chosen[chosen[name] == wanted]
    (found,) = chosen["value"]
    return found


def test_an_experiment_of_several_methods_has_a_job_for_each(jobs, recipe):
    names = {name for wing, name in jobs.all if wing == "rat"}
    assert {"figure7/RAT_barrier", "figure7/PS", "packet/Ring"} <= names
    assert set(recipe.packet.methods) <= set(recipe.methods)


def test_a_blocked_node_stops_half_of_a_ring(jobs, recipe):
    """RAT, section 2.2: node j has j - 1 chains that have not met the blocked first node."""
    table = run(jobs, "chain_blocking")
    n = recipe.chain_blocking.workers[0]
    for j in range(1, n + 1):
        share = value(table, "sent_share", workers=n, node=j)
        assert share == pytest.approx((j - 1) / n)
    assert value(table, "utilisation_loss", workers=n) == pytest.approx(1 / 2)


def test_of_two_racks_of_four_16_flows_cross_and_7_use_a_card(jobs):
    """RAT, section 2.1, Figure 3a."""
    table = run(jobs, "cross_load")
    assert value(table, "cross_flows") == 16 and value(table, "in_rack_flows") == 7
    assert value(table, "extra_load") == pytest.approx(9 / 7)


def test_counts_of_table_1_are_those_of_the_formulas(jobs):
    table = run(jobs, "table1")
    good = table[table["status"] == "ok"]
    wide = good.pivot(index=["method", "shape"], columns="metric", values="value")
    wide = wide.drop(index="Ring oblivious")  # its formula is the mean over orders
    formulas = [name for name in wide if name.endswith("_formula")]
    assert len(formulas) >= 5
    for name in formulas:
        known = wide[name].notna()
        counted = wide.loc[known, name.removesuffix("_formula")]
        assert np.allclose(counted, wide.loc[known, name])


def test_ring_needs_the_latency_of_its_closed_form(jobs, recipe):
    """A step of a ring takes a = M / (n B) and, if none of it is hidden, a latency L.

    If pieces hide all they can, it takes a, or a piece's time and L if that is longer, and only
    the last step a + L. RAT takes 2(n - 1) a and what its levels add: no less than nothing (all of
    it hidden) and no more than a latency for each of the four levels up and down.
    """
    table = run(jobs, "latency")
    for row in table[table["metric"] == "needed_latency"].itertuples():
        a = 8 * recipe.nbytes / row.bandwidth / row.workers
        steps, pieces = 2 * (row.workers - 1), math.ceil(recipe.pieces / row.workers)

        def bare(hop, a=a, steps=steps):
            return steps * (a + hop) - recipe.latency_needed.ratio * steps * a

        def hidden(hop, a=a, steps=steps, pieces=pieces):
            ring = (steps - 1) * max(a, a / pieces + hop) + a + hop
            return ring - recipe.latency_needed.ratio * (steps * a + 4 * hop)

        least, most = (brentq(excess, 0, 9 * a) for excess in (bare, hidden))
        assert least <= row.value <= most


def test_pausing_nodes_only_delay_and_draws_are_shared(jobs, recipe):
    for method in recipe.figure7.methods:
        table = run(jobs, f"figure7/{method.replace(' ', '_')}")
        slow = table[table["metric"] == "slowdown"]
        cells = len(recipe.figure7.paused) * len(recipe.figure7.periods)
        assert len(slow) == cells * len(recipe.figure7.draws)
        assert (slow["value"] > 1).all(), method
        assert set(slow["seed"]) == set(recipe.figure7.draws)


def grid_rows(figure, bench, ratio):
    """Rows of Figure 7 in which Ring takes ``ratio(k, d, draw)`` and all others 1 s."""
    made = []
    for method in figure.methods:
        fields = dict(evidence="simulated", seed=-1)
        made.append(bench.row("completion_time", 1.0, "s", at=dict(method=method, k=0), **fields))
        for k, d, draw in itertools.product(figure.paused, figure.periods, figure.draws):
            seconds = ratio(k, d, draw) if method == "Ring" else 1.0
            at = dict(method=method, k=k, d=d)
            fields = dict(evidence="simulated", seed=draw)
            made.append(bench.row("completion_time", seconds, "s", at=at, **fields))
    return results.frame(made)


def test_the_grid_is_told_by_its_mean_and_its_worst_cell_draw_by_draw(recipe):
    figure, bench = recipe.figure7, Bench("rat", "joint", recipe, "smoke")
    truth = (figure.paused[-1], figure.periods[0])

    def ratio(k, d, draw):
        return (10.0 if (k, d) == truth else 2.0) + draw / 100

    rows = experiments.joint(bench, rows=grid_rows(figure, bench, ratio), figure7=figure)
    found = results.coordinates(results.frame(rows))
    cells = len(figure.paused) * len(figure.periods)
    for against in ("PS", "RAT", "itself"):
        for draw in figure.draws:
            here = dict(against=against, seed=draw)
            worst, mean = (value(found, "ring_over", over=o, **here) for o in ("worst", "mean"))
            assert worst == pytest.approx(10 + draw / 100)
            assert mean == pytest.approx((10 + 2 * (cells - 1)) / cells + draw / 100)
            few = value(found, "ring_over", over="mean of few paused", **here)
            many = value(found, "ring_over", over="mean of many paused", **here)
            assert few == pytest.approx(2 + draw / 100) and many > mean
        place = dict(against=against, over="worst")
        assert value(found, "ring_over_paused", **place) == truth[0]
        assert value(found, "ring_over_period", **place) == truth[1]
    assert set(found[found["metric"] == "rat_over"]["value"]) == {1.0}


def test_the_cell_nearest_to_the_printed_numbers_is_noted_and_how_many_are_near(recipe):
    figure, bench = recipe.figure7, Bench("rat", "joint", recipe, "smoke")
    truth = (figure.paused[0], figure.periods[-1])

    def ratio(k, d, draw):
        return 8.0 if (k, d) == truth else 100.0  # nearest to 12 and to 5.7, and near to neither

    rows = experiments.joint(bench, rows=grid_rows(figure, bench, ratio), figure7=figure)
    found = results.coordinates(results.frame(rows))
    assert value(found, "paused_nodes") == truth[0]
    assert value(found, "redraw_period") == truth[1]
    assert set(found[found["metric"] == "near"]["value"]) == {0.0}


def test_gains_are_averaged_in_the_three_ways_that_the_text_can_be_read(recipe):
    bench, made = Bench("rat", "gains", recipe, "smoke"), []
    for oversubscription, bandwidth, variant in itertools.product((2, 32), (10e9, 40e9), "xb"):
        for method in ("PS", "RAT"):
            slow = {2: 1.0, 32: 24.0}[oversubscription] + (bandwidth > 2e10)
            at = dict(method=method, oversubscription=oversubscription)
            seconds = (slow if method == "PS" else 1.0) * (1 if variant == "b" else 7)
            fields = dict(variant={"b": "balanced", "x": "ecmp"}[variant], bandwidth=bandwidth)
            row = bench.row("completion_time", seconds, "s", at=at, evidence="simulated", **fields)
            made.append(row)
    rows = experiments.gains(bench, rows=results.frame(made), figure6=recipe.figure6)
    found = results.coordinates(results.frame(rows)).set_index("over")["value"]
    assert found["all settings"] == pytest.approx((1 + 2 + 24 + 25) / 4)
    assert found["bandwidths, at the highest oversubscription"] == pytest.approx(24.5)
    assert found["the largest"] == 25.0


def test_every_cable_fails_in_turn(jobs, recipe):
    table = run(jobs, "disturbances")
    slow = table[table["metric"] == "slowdown"]
    figure = recipe.figure6
    for method, kind in itertools.product(recipe.disturbances.methods, recipe.disturbances.kinds):
        places = slow[(slow["method"] == method) & (slow["kind"] == kind)]["seed"]
        cables = figure.racks * (figure.spines if kind == "failed cable" else 1)
        assert sorted(places) == list(range(cables))
    failed = slow[slow["kind"] == "failed cable"].set_index(["method", "seed"])["value"]
    # A ring crosses from a rack to the next by one cable: to fail another costs it nothing.
    assert failed["Ring"].min() == pytest.approx(1) and failed["Ring"].max() > 1.01
    assert failed["RAT"].min() > 1.01


@pytest.mark.slow
def test_weights_never_raise_the_bound(jobs, recipe):
    table = run(jobs, "asymmetric")
    for name in recipe.asymmetric.scenarios:
        even, weighted = (
            value(table, "bound_time", split=split, scenario=name) for split in ("even", "weighted")
        )
        assert weighted <= even * 1.03  # shares are rounded to parts of the vector


def test_without_ns3_the_cells_say_why(jobs, monkeypatch):
    monkeypatch.setattr(packet, "available", lambda: "ns3 is not installed; pip install ns3")
    table = run(jobs, "packet/Ring")
    lacking = table[table["status"] == "failed"]
    assert set(lacking["evidence"]) == {"packet"} and lacking["value"].map(math.isnan).all()
    assert set(lacking["reason"]) == {"ns3 is not installed; pip install ns3"}
    fluid = table[table["status"] == "ok"]
    assert set(fluid["evidence"]) == {"simulated"} and len(fluid) == len(lacking)


def result(seconds, drops=0, timeouts=0):
    empty = np.zeros(0)
    return packet.PacketResult(seconds, empty, drops, timeouts, recoveries=0, events=1, wall_s=1.0)


@pytest.mark.parametrize(
    ("first", "cures", "reason"),
    [
        (
            result(0.7),
            "unsent_bytes",
            "what paused nodes had written still left: with an eighth of",
        ),
        (result(1.09, drops=5, timeouts=5), None, ""),
        (result(0.91), None, ""),
        (
            result(1.03 * 1.08, drops=7),
            "queue_bytes",
            "7 packets dropped: with 16 times the queue it",
        ),
        (result(1.03 * 1.08, drops=7), "a little", "not established: 7 packets dropped"),
        (
            result(2.0, drops=7),
            "queue_bytes",
            "7 packets dropped: with 16 times the queue it takes",
        ),
        (result(2.0, 7, 3), "min_rto_s", "3 timeouts: with a twentieth of the least timeout it"),
        (result(2.0, timeouts=3), "queue_bytes", "not established: 0 packets dropped, 3 timeouts"),
        (
            result(0.5),
            "initial_window",
            "windows that are large at first: with one segment it takes",
        ),
        (result(2.0, 7, 3), "nothing", "not established: 7 packets dropped, 3 timeouts, and no"),
    ],
)
def test_a_reason_stands_only_where_another_run_established_it(first, cures, reason):
    tcp, asked = packet.Tcp(), []

    def run(other):
        asked.append(other)
        cured = cures in vars(tcp) and getattr(other, cures) != getattr(tcp, cures)
        return result(1.02 if cured else 1.09 if cures == "a little" else 2.0)

    why = experiments._difference(first, 1.0, tcp, run, pauses=True)
    assert why.startswith(reason) and bool(why) == bool(reason)
    assert bool(asked) == bool(reason)
    assert ("1.02 times the fluid's time" in why) == (bool(why) and "not established" not in why)
