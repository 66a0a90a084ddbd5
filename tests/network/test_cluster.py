"""Cluster files: what they say, what is wrong with them, and the networks that they become."""

import itertools

import numpy as np
import pytest

from slowlink.methods import exchange
from slowlink.testbed.network import cluster, geo_sites, simulate, star, verify
from slowlink.testbed.network.cluster import Cluster, Quartiles, from_topo
from slowlink.testbed.network.routing import routes

UNEVEN = """
title: a hospital and its branch
sites:
  - {name: hospital, workers: 4, card: 10G, wan: {up: 1G, down: 1G, latency: 5ms}}
  - name: branch
    workers: 2
    card: [1G, 100M]
    speeds: [1, 0.5]
    wan: {up: 20M, down: {low: 90M, median: 100M, high: 101M}, latency: 12ms}
"""
RACKED = """
sites:
  - name: one
    wan: 1G
    racks:
      - {workers: 2, card: 10G, uplink: 5G}
      - {workers: 2, card: 10G, oversubscription: 4}
  - {name: two, wan: 2G, workers: 2, card: 10G}
"""


def read(tmp_path, text):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    return cluster.load(file)


def same(one, other):
    arrays = ("workers", "servers", "link_src", "link_dst", "link_rate", "link_latency")
    assert all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)
    assert np.array_equal(one.regions, other.regions) and one.layers == other.layers


def test_alike_workers_and_sites_are_the_networks_that_are_built_in(tmp_path):
    site = "{workers: 3, card: {rate: 10G, latency: 10us}, wan: {rate: 155M, latency: 5ms}}"
    same(
        read(tmp_path, f"sites: [{site}, {site}]").topology,
        geo_sites([3, 3], 10e9, 155e6, site_wan=155e6, lan_latency=1e-5, wan_latency=5e-3),
    )
    flat = read(tmp_path, "sites: [{workers: 5, card: {rate: 1G, latency: 10us}}]")
    same(flat.topology, star(5, 1e9, latency=1e-5))
    assert flat.workers == 5 and flat.slow == "workers" and flat.slow_rate == 1e9


def test_one_site_with_a_center_elsewhere_is_the_network_that_is_built_in(tmp_path):
    link = "{rate: 1M, latency: 5ms}"
    site = f"{{workers: 3, card: {{rate: 10G, latency: 10us}}, wan: {link}}}"
    center = f"center: {{card: {{rate: 10G, latency: 10us}}, wan: {link}}}"
    found = read(tmp_path, f"sites: [{site}]\n{center}")
    same(
        found.topology,
        geo_sites([3], 10e9, 1e6, site_wan=1e6, lan_latency=1e-5, wan_latency=5e-3),
    )
    assert str(found) == "a site of 3 workers, 10 Gbit/s inside, 1 Mbit/s to the center"
    # Links a thousand times as fast, the center's too, take a thousandth of the time to it.
    plan = exchange.load("parameter_server")(found.topology)
    fast = found.with_slow(1e9)
    assert found.slow == "sites" and (found.slow_rate, fast.slow_rate) == (1e6, 1e9)
    assert fast.center.wan.up.median == 1e9 and fast.sites[0].cards == found.sites[0].cards
    slow_s, fast_s = (simulate(plan, c.topology, 1e9).completion_s for c in (found, fast))
    assert slow_s == pytest.approx(1000 * fast_s, rel=0.01)


def test_every_direction_has_its_own_rate(tmp_path):
    found = read(tmp_path, UNEVEN)
    network = found.topology
    names = network.node_names

    def slowest(a, b):
        _, links = routes(network, [(names.index(a), names.index(b))])
        return network.link_rate[links].min(), network.link_latency[links].sum()

    assert slowest("site1/worker0", "site2/worker0") == (100e6, pytest.approx(0.017))
    assert slowest("site2/worker0", "site1/worker0") == (20e6, pytest.approx(0.017))
    assert slowest("site2/worker0", "site2/worker1")[0] == 100e6
    assert found.seconds(3.0) == (3, 3, 3, 3, 3, 6)
    assert str(found) == (
        "sites of 4 and 2 workers, 100 Mbit/s to 10 Gbit/s inside, 20 Mbit/s to 1 Gbit/s between"
    )
    # The central server is as well joined as the best site.
    assert slowest("central/server", "site1/worker0")[0] == 1e9


def test_racks_in_sites_are_two_layers(tmp_path):
    found = read(tmp_path, RACKED)
    network = found.topology
    assert network.layers == ("rack", "site")
    assert network.regions[0][network.workers].tolist() == [1, 1, 2, 2, 3, 3]
    assert network.regions[1][network.workers].tolist() == [1, 1, 1, 1, 2, 2]
    names = network.node_names

    def slowest(a, b):
        _, links = routes(network, [(names.index(a), names.index(b))])
        return network.link_rate[links].min()

    assert slowest("site1/rack1/worker0", "site1/rack2/worker0") == 5e9
    assert slowest("site1/rack2/worker0", "site1/rack1/worker0") == 5e9  # 2 × 10 over 4, in bit/s
    assert slowest("site1/rack1/worker0", "site2/rack1/worker0") == 1e9


@pytest.mark.parametrize("text", [UNEVEN, RACKED, "sites: [{workers: 4, card: 1G}]"])
@pytest.mark.parametrize("name", exchange.names())
def test_every_exchange_sums_on_it_or_says_why_not(tmp_path, name, text):
    topology = read(tmp_path, text).topology
    try:
        plan = exchange.load(name)(topology)
    except ValueError as error:
        assert str(error).startswith(name)
        # Three of the rooms' exchanges need alike regions or a power of two of workers.
        assert name in ("blue_connect", "butterfly", "halving_doubling", "geng_hips", "hips")
        return
    verify(plan)


@pytest.mark.parametrize("text", [UNEVEN, RACKED, "sites: [{workers: 4, card: [1G, 2G, 3G, 4G]}]"])
def test_a_cluster_comes_back_from_its_file(tmp_path, text):
    found = read(tmp_path, text)
    cluster.save(found, tmp_path / "again.yaml")
    assert cluster.load(tmp_path / "again.yaml") == found


def test_equal_clusters_are_equal_whatever_was_asked_of_them():
    one, other = (cluster.Cluster(sites=[dict(workers=2, card="1G")]) for _ in range(2))
    assert len(one.topology.workers) == len(other.topology.workers) == 2
    assert one == other and {one: 1}[other] == 1 and one != other.with_slow(1e6)


def test_ends_and_rates_change_the_links_that_they_are_of(tmp_path):
    found = read(tmp_path, UNEVEN)
    down = [site.wan.down.median for site in found.at("slow").sites]
    assert down == [1e9, 90e6] and found.at("fast").sites[1].wan.down.median == 101e6
    changed = found.with_slow(40e6)
    assert changed.slow_rate == 40e6
    assert [site.wan.up.median for site in changed.sites] == [2e9, 40e6]
    assert [site.cards for site in changed.sites] == [site.cards for site in found.sites]
    racks = from_topo(TOPO)
    assert racks.slow == "racks" and racks.with_slow(1e9).slow_rate == 1e9
    cards = [rack.card for rack in racks.racks]
    assert [rack.card for rack in racks.with_slow(1e9).racks] == cards


def test_where_no_rack_has_an_uplink_the_cards_are_the_slow_links(tmp_path):
    rack = "{workers: 4, card: 10G}"
    found = read(tmp_path, f"sites: [{{racks: [{rack}, {rack}]}}]")
    assert str(found) == "racks of 4 and 4 workers, cards of 10 Gbit/s"
    assert found.layers == ("rack",) and found.slow == "workers" and found.slow_rate == 1e10
    changed = found.with_slow(1e6)
    assert {card.up.median for rack in changed.racks for card in rack.cards} == {1e6}
    plan = exchange.load("ring")(found.topology)
    # Links a thousand times as slow take a thousand times as long.
    slow, fast = (
        simulate(plan, c.topology, 1e9).completion_s for c in (found.with_slow(1e7), found)
    )
    assert slow == pytest.approx(1000 * fast)
    one = rack.replace("}", ", uplink: 4G}")
    found = read(tmp_path, f"sites: [{{racks: [{rack}, {one}]}}]")
    assert str(found).endswith("cards of 10 Gbit/s, uplinks of 4 Gbit/s")
    assert found.slow == "racks" and found.slow_rate == 4e9
    assert found.with_slow(1e6).sites[0].cards == found.sites[0].cards


@pytest.mark.parametrize(
    "text, says",
    [
        ("sites: [{workers: 2, card: fast}]", r"card.*'fast' is no rate; say 155M or 1G"),
        ("sites: [{workers: 2, card: 1G, speed: 1}]", r"sites\.0\.speed: no such field"),
        ("sites: [{workers: 2, card: -5}]", r"-5 is no rate in bit/s"),
        ("sites: [{workers: 0, card: 1G}]", r"yaml: sites\.0\.workers: .*greater than 0"),
        ("sites: [{racks: [{workers: 0, card: 1G}]}]", r"sites\.0\.racks\.0\.workers: .*than 0"),
        ("sites: [{card: 1G}]", r"yaml: sites\.0\.workers: is missing"),
        ("sites: [{workers: 2, card: {up: 1G}}]", r"down: is missing"),
        ("sites: [{workers: 2, card: [1G, 2G, 3G]}]", "card has 3 entries for 2 workers"),
        ("sites: [{workers: 2, card: 1G, speeds: [1, 0]}]", "speeds.1"),
        ("sites: [{workers: 1, card: 1G}, {workers: 1, card: 1G}]", r"sites\.0\.wan: is missing"),
        ("sites: [{workers: 1, card: 1G, wan: {rate: 1G, latency: soon}}]", "'soon' is no time"),
        ("sites: [{name: a, workers: 1, card: 1G, wan: 1G}, {name: a, workers: 1, card: 1G, "
         "wan: 1G}]", "two are called 'a'"),
        ("sites: [{racks: [{workers: 1, card: 1G, uplink: 1G, oversubscription: 2}]}]", "not both"),
        ("sites: [{workers: 1, card: {low: 2, median: 1, high: 3}}]", "must ascend"),
        ("sites: []", "sites"),
        ("sites: [", r"no YAML: line [12]: "),  # where it breaks off, with and without libyaml
        ("3", r"yaml: should be a mapping"),
        ("sites: [3]", r"yaml: sites\.0: should be a mapping"),
        ("", r"yaml: is empty"),
        ("sites: [{workers: 1, card: 1G}]\nefficiency: 2", "efficiency"),
        ("sites: [{workers: 1, card: 1G}]\noverhead_s: .inf", "overhead_s: .*finite"),
        ("sites: [{workers: 1, card: 1G, speeds: .inf}]", r"speeds\.0: .*finite"),
        ("sites: [{workers: 1, card: 1G, speeds: 1.0e-300}]", r"speeds\.0: .*0\.001"),
        ("sites: [{workers: 2, card: 1G, speeds: [1, 1001]}]", r"speeds\.1: .*1000"),
        ("sites: [{workers: 1, card: {rate: 1G, up: 2G}}]", r"card\.0: give rate, or up and down"),
        ("sites: [{workers: 4, card: 1G, wan: 1M}]", r"sites\.0\.wan: leads nowhere"),
        ("sites: [{workers: 4, card: 1G}]\ncenter: {card: 1G, wan: 1M}", r"give sites\.0\.wan"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_line_with_file_field_and_remedy(tmp_path, text, says):
    with pytest.raises(ValueError, match=says) as raised:
        read(tmp_path, text)
    said = str(raised.value)
    assert said.startswith(str(tmp_path / "cluster.yaml")) and "\n" not in said
    assert said.endswith("docs/measuring.md shows a cluster file")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.yaml: No such file"):
        cluster.load(tmp_path / "none.yaml")


TOPO = """
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV2\tSYS\tSYS\tPIX\t0-9\t0
GPU1\tNV2\t X \tSYS\tSYS\tPIX\t0-9\t0
GPU2\tSYS\tSYS\t X \tPXB\tSYS\t10-19\t1
GPU3\tSYS\tSYS\tPXB\t X \tSYS\t10-19\t1
mlx5_0\tPIX\tPIX\tSYS\tSYS\t X

Legend:
  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_what_nvidia_smi_prints_becomes_racks_of_its_sockets():
    found = from_topo(TOPO)
    (site,) = found.sites
    assert [rack.workers for rack in site.racks] == [2, 2]
    cards = [rack.card[0].up.median for rack in site.racks]
    assert cards == [2 * 25e9 * 8, 31.5e9 * 8]  # two NVLinks; PCI Express
    assert {rack.uplink.up.median for rack in site.racks} == {20.8e9 * 8}
    assert "not measured" in found.source
    verify(exchange.load("ring")(found.topology))


def test_one_switch_of_nvlinks_is_flat():
    words = [["X" if a == b else "NV18" for b in range(8)] for a in range(8)]
    lines = ["\t".join(f"GPU{i}" for i in range(8))]
    lines += [f"GPU{i}\t" + "\t".join(row) for i, row in enumerate(words)]
    found = from_topo("\n".join(lines))
    assert found.layers == () and found.workers == 8 and found.slow_rate == 18 * 25e9 * 8
    assert found.title == "8 GPUs of one host"


def test_one_of_a_kind_is_told_so(tmp_path):
    alone = from_topo("GPU0\nGPU0 X\n")
    assert alone.title == "1 GPU of one host"
    assert str(alone) == "1 worker with cards of 252 Gbit/s"
    found = read(tmp_path, "sites: [{racks: [{workers: 1, card: 1G, uplink: 2G}]}]")
    assert str(found) == "a rack of 1 worker, cards of 1 Gbit/s, uplinks of 2 Gbit/s"


@pytest.mark.parametrize(
    "text, says",
    [("", "no table of nvidia-smi"), (TOPO.replace("PXB", "???"), r"GPU2 to GPU3: '\?\?\?' is no")],
)
def test_no_topology_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        from_topo(text)


def test_quartiles_are_in_order():
    for values in itertools.permutations((1.0, 2.0, 3.0)):
        if list(values) != sorted(values):
            with pytest.raises(ValueError, match="ascend"):
                Quartiles(low=values[0], median=values[1], high=values[2])
    assert Cluster(sites=[{"workers": 1, "card": 1e9}]).efficiency == pytest.approx(
        0.9564, rel=1e-3
    )
