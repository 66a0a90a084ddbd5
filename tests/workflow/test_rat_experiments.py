"""What RAT's experiments must show, on the smallest settings, against closed forms."""

import math

import numpy as np
import pandas as pd
import pytest

from testbed import results
from testbed.network import packet
from workflow.experiments import rat, rows
from workflow.settings import load


@pytest.fixture(scope="module")
def recipe():
    return load({"scale": "smoke"}, names=False).recipes["rat"]


def run(recipe, experiment):
    data = recipe.only(experiment)  # as a job gets it
    return results.frame(rows("rat", data, "smoke", experiment, lambda message: None))


def value(table, metric, **fields):
    chosen = table[table["metric"] == metric]
    for name, wanted in fields.items():
        chosen = chosen[chosen[name] == wanted]
    (found,) = chosen["value"]
    return found


def test_every_job_of_the_recipe_is_known(recipe):
    assert recipe.parts("figure7")["figure7-RAT_barrier"] == "RAT barrier"
    assert set(recipe.parts("packet").values()) <= set(recipe.methods)
    with pytest.raises(KeyError, match="figure9"):
        list(rows("rat", recipe.only("figure7"), "smoke", "figure9"))


def test_a_blocked_node_stops_half_of_a_ring(recipe):
    """RAT, section 2.2: node j has j - 1 chains that have not met the blocked first node."""
    table = run(recipe, "table1")
    n = recipe.chain_blocking.workers[0]
    for j in range(1, n + 1):
        assert value(table, "sent_share", case=f"n={n} node {j}") == pytest.approx((j - 1) / n)
    assert value(table, "utilisation_loss", case=f"n={n}") == pytest.approx(1 / 2)


def test_counts_of_table_1_are_those_of_the_formulas(recipe):
    """And the loads of figure 3a: 16 flows cross, 7 use a card."""
    table = run(recipe, "table1")
    assert value(table, "cross_flows") == 16 and value(table, "in_rack_flows") == 7
    assert value(table, "extra_load") == pytest.approx(9 / 7)
    good = table[(table["experiment"] == "table1") & (table["status"] == "ok")]
    wide = good.pivot(index=["case", "variant"], columns="metric", values="value")
    wide = wide.drop(index="Ring oblivious")  # its formula is the mean over orders
    formulas = [name for name in wide if name.endswith("_formula")]
    assert len(formulas) >= 5
    for name in formulas:
        known = wide[name].notna()
        counted = wide.loc[known, name.removesuffix("_formula")]
        assert np.allclose(counted, wide.loc[known, name])


def test_ring_needs_the_latency_of_its_closed_form(recipe):
    """2(n - 1) steps of a + L, a = M / (n B), against 2(n - 1) a and what RAT's levels add.

    That is no less than nothing (all of it hidden) and no more than a latency for each of the four
    levels up and down.
    """
    table = run(recipe, "latency")
    wanted = recipe.latency_needed.ratio
    for row in table[table["metric"] == "needed_latency"].itertuples():
        a = 8 * recipe.nbytes / row.bandwidth / row.workers
        steps = 2 * (row.workers - 1)
        least, most = ((wanted - 1) * steps * a / (steps - c * wanted) for c in (0, 4))
        assert least <= row.value <= most


def test_pausing_nodes_only_delay_and_draws_are_shared(recipe):
    tables = {m: run(recipe, j) for j, m in recipe.parts("figure7").items()}
    for method, table in tables.items():
        slow = table[table["metric"] == "slowdown"]
        cells = len(recipe.figure7.paused) * len(recipe.figure7.periods)
        assert len(slow) == cells * len(recipe.figure7.draws)
        assert (slow["value"] > 1).all(), method
        assert set(slow["seed"]) == set(recipe.figure7.draws)


def test_joint_finds_the_cell_that_fits_and_the_share_that_does(recipe):
    figure = recipe.figure7
    records = []
    truth = (figure.paused[-1], figure.periods[0])
    for method in figure.methods:
        records.append({"case": f"{method} k=0", "seed": -1, "value": 1.0})
        for paused in figure.paused:
            for period in figure.periods:
                ring, other = (12.0, 12 / 5.7) if (paused, period) == truth else (100.0, 1.5)
                for draw in figure.draws:
                    case = f"{method} k={paused} d={period * 1e3:g}ms"
                    seconds = (ring if method == "Ring" else other) * (1 + draw / 1e6)
                    records.append({"case": case, "seed": draw, "value": seconds})
    table = pd.DataFrame(records).assign(metric="completion_time")
    found = results.frame(rat.joint(recipe, "smoke", table))
    assert value(found, "paused_nodes") == truth[0]
    assert value(found, "redraw_period") == truth[1]
    seeds = found[(found["case"] == "joint") & (found["metric"] == "ring_over_rat")]
    assert list(seeds["seed"]) == figure.draws and np.allclose(seeds["value"], 5.7)
    cells = len(figure.paused) * len(figure.periods)
    assert value(found, "share_joint") == pytest.approx(100 / cells)


def test_weights_never_raise_the_bound(recipe):
    table = run(recipe, "asymmetric")
    for name in recipe.asymmetric.scenarios:
        even, weighted = (
            value(table, "bound_time", case=f"{kind} {name}") for kind in ("even", "weighted")
        )
        assert weighted <= even * 1.03  # shares are rounded to parts of the vector


def test_without_ns3_the_cells_say_why(recipe, monkeypatch):
    monkeypatch.setattr(packet, "available", lambda: "ns3 is not installed; pip install ns3")
    table = run(recipe, "packet-Ring")
    assert set(table["status"]) == {"failed"} and set(table["evidence"]) == {"packet"}
    assert set(table["reason"]) == {"ns3 is not installed; pip install ns3"}
    assert table["value"].map(math.isnan).all()
