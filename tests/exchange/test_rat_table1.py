"""Table 1 of RAT: what is counted on the plans is what the formulas say, for every scheme."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from slowlink.methods.exchange import load
from slowlink.testbed.network import bcube, longest_chain, node_traffic, region_traffic, tree
from slowlink.testbed.network.closed_forms import table1
from slowlink.testbed.network.counting import least_egress

SCHEMES = {
    "parameter_server": ("parameter_server", dict(shards="colocated")),
    "ring": ("ring", {}),
    "k_nomial_tree": ("k_nomial_tree", dict(k=2)),
    "k_nomial_tree 3": ("k_nomial_tree", dict(k=3)),
    "k_nomial_tree 4": ("k_nomial_tree", dict(k=4)),
    "butterfly": ("butterfly", {}),
    "halving_doubling far": ("halving_doubling", dict(first="far")),
    "halving_doubling near": ("halving_doubling", dict(first="near")),
    "blue_connect": ("blue_connect", {}),
    "geng_hips ps": ("geng_hips", dict(mode="ps")),
    "geng_hips ring": ("geng_hips", dict(mode="ring")),
    "parameter_hub": ("parameter_hub", {}),
    "plink": ("plink", {}),
    "rat": ("rat", {}),
}
SHAPES = [
    *[(4, 2), (4, 4), (2, 8), (3, 5), (6, 4), (1, 5), (5, 1)],
    *[(2, 2, 2), (4, 2, 4), (3, 2, 3), (2, 3, 2), (3, 3, 3)],
    *[(2, 2, 2, 2), (4, 2, 2, 2), (2, 3, 2, 2), (3, 2, 1, 3)],
]


def counted(plan, network):
    egress = {k: traffic.egress.max() for k, traffic in region_traffic(plan, network).items()}
    return {f"egress_{layer}": value for layer, value in egress.items()} | dict(
        chain=longest_chain(plan, "push"),
        chain_whole=longest_chain(plan),
        node_egress=node_traffic(plan, network).egress[network.workers].max(),
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_counts_are_the_formulas(scheme):
    name, options = SCHEMES[scheme]
    for shape in SHAPES:
        network = tree(shape, 1e9, helpers=True)
        if prod(shape) & (prod(shape) - 1) and name == "butterfly":
            with pytest.raises(ValueError, match="power of 2"):
                load(name, **options)(network)
            with pytest.raises(ValueError, match="power of 2"):
                table1(name, options, shape)
            continue
        count = counted(load(name, **options)(network), network)
        formula = table1(name, options, shape)
        binary = not prod(shape) & (prod(shape) - 1)
        if name != "k_nomial_tree" and (binary or name != "halving_doubling"):
            assert set(formula) == set(count)
        assert {k: count[k] for k in formula} == pytest.approx(formula), shape


def test_an_oblivious_ring_crosses_as_often_as_direct_sends_do_on_average():
    network = tree((4, 2, 3), 1e9)
    formula = table1("ring", dict(order="oblivious"), (4, 2, 3))
    traffic = [
        region_traffic(load("ring", order="oblivious", seed=seed)(network), network)
        for seed in range(100)
    ]
    for layer in network.layers:
        means = np.array([one[layer].egress.mean() for one in traffic])
        error = means.std(ddof=1) / len(means) ** 0.5
        assert abs(means.mean() - formula[f"egress_{layer}"]) < 4 * error
        assert formula[f"egress_{layer}"] == table1(
            "parameter_server", dict(shards="colocated"), (4, 2, 3)
        ).get(f"egress_{layer}")


def test_worked_examples():
    """16 workers in each of 4 racks; and racks of 8, 4 of them in each of 4 pods."""
    rack = {
        scheme: table1(*SCHEMES[scheme], (16, 4))["egress_rack"]
        for scheme in SCHEMES
        if "k_nomial" not in scheme
    }
    most = dict.fromkeys(["parameter_server", "halving_doubling far"], 24.0)
    assert rack == dict.fromkeys(rack, 1.5) | most | {"ring": 126 / 64, "butterfly": 32.0}
    for scheme, pod in {"rat": 1.5, "plink": 6.0, "parameter_server": 48.0}.items():
        assert table1(*SCHEMES[scheme], (8, 4, 4))["egress_pod"] == pod


def test_who_attains_the_least_traffic_at_every_layer():
    """The text grants it to Ring, BlueConnect and RAT; the count also to aligned stages."""

    def attaining(shape):
        network = tree(shape, 1e9, helpers=True)
        least = {f"egress_{layer}": value for layer, value in least_egress(network).items()}
        for scheme, (name, options) in SCHEMES.items():
            count = counted(load(name, **options)(network), network)
            assert all(count[key] >= value * (1 - 1e-9) for key, value in least.items())
            if {key: count[key] for key in least} == pytest.approx(least):
                yield scheme

    always = ["halving_doubling near", "blue_connect", "geng_hips ps", "geng_hips ring", "rat"]
    assert sorted(attaining((4, 2, 2))) == sorted(always)
    assert sorted(attaining((4, 4))) == sorted([*always, "parameter_hub", "plink"])
    # Of two racks each sends its sum and gets the other's: so does a binomial tree's.
    assert "k_nomial_tree" in set(attaining((8, 2)))


@pytest.mark.parametrize(("ports", "levels"), [(2, 1), (2, 2), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("mode", ["ps", "ring"])
def test_hips_on_bcube(ports, levels, mode):
    """Each of ``levels`` parts of the vector has one stage that stays inside a region, and for each
    part it is another one: all but one in ``levels`` of what ``ports`` workers send goes out."""
    network = bcube(ports, levels, 1e9)
    plan = load("geng_hips", mode=mode)(network)
    sent = 2 * (1 - 1 / ports**levels)  # vectors of a worker
    outside = ports * sent * (levels - 1) / levels
    for traffic in region_traffic(plan, network).values():
        assert traffic.egress == pytest.approx(outside)
    assert longest_chain(plan, "push") == levels * (1 if mode == "ps" else ports - 1)


def test_formulas_that_do_not_exist():
    with pytest.raises(ValueError, match="none for parameter_server"):
        table1("parameter_server", dict(shards="central"), (4, 4))
    with pytest.raises(ValueError, match="none for rat"):
        table1("rat", dict(weights=[1, 2]), (2, 1))
    with pytest.raises(ValueError, match="unknown parameter"):
        table1("ring", dict(orders="rack"), (4, 4))
    assert "egress_rack" not in table1("k_nomial_tree", {}, (6, 4))
