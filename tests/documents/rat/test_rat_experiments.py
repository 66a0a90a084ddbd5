"""What RAT's experiments must show, on the smallest settings, against closed forms."""

import math

import numpy as np
import pytest

from testbed import results
from testbed.network import packet
from workflow.documents.rat import experiments
from workflow.experiment import Bench
from workflow.jobs import Jobs
from workflow.scripts import experiment as script
from workflow.settings import load, wings


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
    """2(n - 1) steps of a + L, a = M / (n B), against 2(n - 1) a and what RAT's levels add.

    That is no less than nothing (all of it hidden) and no more than a latency for each of the four
    levels up and down.
    """
    table = run(jobs, "latency")
    wanted = recipe.latency_needed.ratio
    for row in table[table["metric"] == "needed_latency"].itertuples():
        a = 8 * recipe.nbytes / row.bandwidth / row.workers
        steps = 2 * (row.workers - 1)
        least, most = ((wanted - 1) * steps * a / (steps - c * wanted) for c in (0, 4))
        assert least <= row.value <= most


def test_pausing_nodes_only_delay_and_draws_are_shared(jobs, recipe):
    for method in recipe.figure7.methods:
        table = run(jobs, f"figure7/{method.replace(' ', '_')}")
        slow = table[table["metric"] == "slowdown"]
        cells = len(recipe.figure7.paused) * len(recipe.figure7.periods)
        assert len(slow) == cells * len(recipe.figure7.draws)
        assert (slow["value"] > 1).all(), method
        assert set(slow["seed"]) == set(recipe.figure7.draws)


def test_joint_finds_the_cell_that_fits_and_the_share_that_does(recipe):
    figure = recipe.figure7
    bench = Bench("rat", "joint", recipe, "smoke")
    made = []

    def add(method, seconds, seed=-1, **at):
        fields = dict(seed=seed, at=dict(method=method, **at), evidence="simulated")
        made.append(bench.row("completion_time", seconds, "s", **fields))

    truth = (figure.paused[-1], figure.periods[0])
    for method in figure.methods:
        add(method, 1.0, k=0)
        for paused in figure.paused:
            for period in figure.periods:
                ring, other = (12.0, 12 / 5.7) if (paused, period) == truth else (100.0, 1.5)
                for draw in figure.draws:
                    seconds = (ring if method == "Ring" else other) * (1 + draw / 1e6)
                    add(method, seconds, draw, k=paused, d=period)
    rows = experiments.joint(bench, rows=results.frame(made), figure7=figure)
    found = results.coordinates(results.frame(rows))
    assert value(found, "paused_nodes") == truth[0]
    assert value(found, "redraw_period") == truth[1]
    seeds = found[(found["over"] == "joint") & (found["metric"] == "ring_over_rat")]
    assert list(seeds["seed"]) == figure.draws and np.allclose(seeds["value"], 5.7)
    cells = len(figure.paused) * len(figure.periods)
    assert value(found, "share_joint") == pytest.approx(100 / cells)


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
