"""The fluid simulator against arithmetic that fits on a line, within 0.1 % or better."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, Topology, load
from slowlink.testbed.network import (
    Faults,
    Network,
    bound,
    geo_sites,
    simulate,
    star,
    tcp_efficiency,
)
from slowlink.testbed.network.counting import between_regions

S = 94e6  # bytes
LAN, WAN = 1e9 / 8, 155e6 / 8  # bytes/s
CLOSE = dict(rel=1e-3)
EXACT = dict(rel=1e-8)


def seconds(plan, topology, nbytes=S, *args, **options):
    return simulate(plan, topology, nbytes, *args, **options).completion_s


@pytest.mark.parametrize("workers", [1, 3, 12])
@pytest.mark.parametrize("overlap", [False, True])
def test_flat_parameter_server(workers, overlap):
    topology = star(workers, 1e9)
    exchange = load("parameter_server", overlap=overlap)
    one_way = workers * S / LAN
    assert seconds(exchange(topology, part="push"), topology) == pytest.approx(one_way, **EXACT)
    assert seconds(exchange(topology, part="pull"), topology) == pytest.approx(one_way, **EXACT)
    # A message that must be whole before it is summed does not overlap with its answer.
    assert seconds(exchange(topology), topology) == pytest.approx(2 * one_way, **EXACT)


@pytest.mark.parametrize("chunks", [1, 2, 10, 100])
def test_pipelined_parameter_server(chunks):
    topology = star(6, 1e9)
    plan = load("parameter_server", chunks=chunks)(topology)
    expected = 6 * S / LAN * (1 + 1 / chunks)
    assert seconds(plan, topology) == pytest.approx(expected, **EXACT)
    serial = dataclasses.replace(plan, overlap=False)
    assert seconds(serial, topology) == pytest.approx(2 * 6 * S / LAN, **EXACT)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_sharded_parameter_server(n):
    topology = star(n, 1e9)
    plan = load("parameter_server", shards="colocated")(topology)
    assert seconds(plan, topology) == pytest.approx(2 * (n - 1) / n * S / LAN, **EXACT)


@pytest.mark.parametrize("sites", [[6, 6], [4, 4], [1], [5] * 5])
@pytest.mark.parametrize("colocated", [0, 1])
def test_hips_without_overlap(sites, colocated):
    """Of sites of one size; tests/test_prices.py has uneven ones."""
    topology = geo_sites(sites, colocated=colocated)
    plan = load("hips", overlap=False)(topology)
    near, far = (max(sites) - colocated) * S / LAN, len(sites) * S / WAN
    assert seconds(plan, topology) == pytest.approx(2 * near + 2 * far, **EXACT)
    push = load("hips", overlap=False)(topology, part="push")
    assert seconds(push, topology) == pytest.approx(near + far, **EXACT)


def test_hips_in_many_chunks_nears_its_bound():
    topology = geo_sites([6, 6])
    for chunks in (10, 100, 1000):
        plan = load("hips", chunks=chunks)(topology)
        time, limit = seconds(plan, topology), bound(plan, topology, S)
        phases = [12 * S / LAN / 2, 2 * S / WAN, 2 * S / WAN, 12 * S / LAN / 2]
        assert limit <= time <= limit + sum(phases) / chunks
    assert limit == pytest.approx(2 * S / WAN)


def test_uneven_sites_share_the_central_interface():
    # Site 1's worker is done first and has the central link alone until site 2's sum is ready.
    topology = geo_sites([1, 5])
    plan = load("hips")(topology, part="push")
    first, second = S / LAN, 5 * S / LAN
    sent = (second - first) * WAN
    assert sent < S  # so both share from then on
    expected = second + 2 * (S - sent) / WAN + (S - (S - sent)) / WAN
    assert seconds(plan, topology) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("window", [0, 1, 2])
def test_latency_is_paid_once_a_hop_and_once_a_message(chunks, window):
    builder = PlanBuilder("message", 1, ["x"])
    builder.add(0, 1, "x", REDUCE)
    plan = builder.build([0], [], chunks=chunks, window=window)
    topology = star(2, 1e9, latency=0.25)
    assert seconds(plan, topology) == pytest.approx(0.5 + S / LAN, **EXACT)


def test_latency_adds_along_a_chain():
    topology = geo_sites([2, 2], lan_latency=1e-3, wan_latency=50e-3)
    without = geo_sites([2, 2])
    for name, extra in [("hips", 4 * 2e-3 + 2 * 0.1), ("parameter_server", 2 * (2e-3 + 0.1))]:
        plan = load(name, overlap=False)(topology)
        expected = seconds(plan, without) + extra
        assert seconds(plan, topology) == pytest.approx(expected, **EXACT)


def test_messages_to_one_receiver_go_in_order_as_the_window_says():
    builder = PlanBuilder("order", 1, ["x"])
    for _ in range(4):
        builder.add(0, 1, "x", REDUCE)
    topology = star(2, 1e9, latency=0.1)
    base = builder.build([0], [])
    each = S / LAN
    for window, ends in {
        0: [4, 4, 4, 4],
        1: [1, 2, 3, 4],
        2: [2, 2, 4, 4],
        3: [3, 3, 3, 4],
    }.items():
        result = simulate(dataclasses.replace(base, window=window), topology, S)
        assert result.transfers["end_s"] == pytest.approx(0.2 + each * np.array(ends), **EXACT)


def test_a_window_is_one_receivers():
    builder = PlanBuilder("fan", 1, ["x"])
    for target in (1, 1, 2):
        builder.add(0, target, "x", REDUCE)
    result = simulate(builder.build([0], [], window=1), star(3, 8.0), 1.0)
    # The first and the third share the card, then the second has it alone.
    assert result.transfers["end_s"].tolist() == pytest.approx([2.0, 3.0, 2.0])


def test_window_starts_the_lowest_number_that_may_start():
    builder = PlanBuilder("order", 1, ["x", "late"])
    late = builder.add(1, 0, "late", REDUCE)
    builder.add(0, 2, "x", REDUCE, [late])  # may start at 1.5 s, while the next is on its way
    builder.add(0, 2, "x", REDUCE)
    builder.add(0, 2, "x", REDUCE)
    builder.add(0, 2, "x", REDUCE)
    plan = builder.build([0, 1], [], window=1)
    result = simulate(plan, star(3, 8.0), {"x": 1.0, "late": 1.5})
    assert result.transfers["end_s"].tolist() == pytest.approx([1.5, 3.0, 1.0, 2.0, 4.0])
    assert result.transfers["start_s"].tolist() == pytest.approx([0.0, 2.0, 0.0, 1.0, 3.0])


def test_full_duplex_and_max_min_shares():
    # 0 → 2 and 1 → 2 share 2's downlink; 2 → 0 has everything to itself; 1 → 3 takes what the
    # first two leave of 1's uplink.
    builder = PlanBuilder("duplex", 1, ["x"])
    for src, dst in [(0, 2), (1, 2), (2, 0), (1, 3)]:
        builder.add(src, dst, "x", REDUCE)
    topology = star(4, 8e6)
    result = simulate(builder.build([0, 1, 2], []), topology, 1e6)
    assert result.transfers["end_s"].tolist() == pytest.approx([2.0, 2.0, 1.0, 2.0])


def test_cap_and_efficiency():
    topology = star(4, 1e9)
    plan = load("parameter_server", overlap=False)(topology)
    share = tcp_efficiency()
    assert seconds(plan, topology, efficiency=share) == pytest.approx(8 * S / LAN / share)
    assert seconds(plan, topology, flow_cap=0.125e9) == pytest.approx(2 * S / LAN * 8)
    assert seconds(plan, topology, flow_cap=0.25e9) == pytest.approx(2 * S / LAN * 4)
    # The last worker's cap binds although it has the server alone.
    capped = simulate(plan, topology, {"push/0": S, "pull/0": 0.0}, flow_cap=0.5e9)
    assert capped.completion_s == pytest.approx(4 * S / LAN)
    free = star(3, math.inf)
    one = load("parameter_server")(free, part="push")
    assert seconds(one, free) == 0.0
    assert seconds(one, free, flow_cap=8e6) == pytest.approx(S / 1e6)


def test_tcp_efficiency():
    assert tcp_efficiency() == 1448 / 1514
    assert tcp_efficiency(framing="wire") == 1448 / 1538
    assert tcp_efficiency(9000) == 8948 / 9014
    assert round(tcp_efficiency(), 3) == 0.956
    with pytest.raises(ValueError, match="mtu must exceed 52"):
        tcp_efficiency(52)
    with pytest.raises(ValueError, match="shaper or wire"):
        tcp_efficiency(framing="air")


def test_paused_node_sends_nothing_but_receives():
    builder = PlanBuilder("pause", 1, ["x"])
    for src, dst in [(0, 1), (2, 0), (1, 2), (1, 3)]:
        builder.add(src, dst, "x", REDUCE)
    plan = builder.build([0, 1, 2], [])
    faults = Faults([(0, 0.5, 2.0), (1, 0.0, 1.0)])
    result = simulate(plan, star(4, 8e6), 1e6, faults)
    assert result.transfers["end_s"].tolist() == pytest.approx([2.5, 1.0, 3.0, 3.0])
    assert result.transfers["start_s"].tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0])


def test_what_a_paused_node_leaves_others_take():
    builder = PlanBuilder("share", 1, ["x"])
    builder.add(0, 2, "x", REDUCE)
    builder.add(1, 2, "x", REDUCE)
    result = simulate(builder.build([0, 1], []), star(3, 8e6), 1e6, Faults([(0, 0.0, 1.5)]))
    assert result.transfers["end_s"].tolist() == pytest.approx([2.5, 1.0])


def test_plans_that_run_together_share():
    topology = star(4, 8e6)
    push = load("parameter_server")
    a, b = (push(topology, topology.workers[k : k + 2], part="push") for k in (0, 2))
    network = Network(topology)
    first = network.start(a, 1e6)
    second = network.start(b, 1e6, at=1.0)
    # 1 s alone (1 MB of 2 in), then half the server's card each: 2 s for the rest of the first.
    assert network.advance() == [first]
    assert first.completion_s == network.now == pytest.approx(3.0)
    # A third one, started now, shares with the second's last MB.
    third = network.start(push(topology, topology.workers[:1], part="push"), 2e6)
    assert network.advance() == [second]
    assert second.completion_s == pytest.approx(3.0 + 1.0 * 3 / 2)
    assert network.advance() == [third]
    assert third.completion_s == pytest.approx(6.0)
    assert network.link_bytes.max() == pytest.approx(6e6)


def test_equal_plans_complete_at_once():
    topology = star(3, 8e6)
    plan = load("parameter_server")(topology)
    network = Network(topology)
    handles = [network.start(plan, 1e6) for _ in range(5)]
    assert set(network.advance()) == set(handles)
    assert network.now == pytest.approx(2 * 5 * 3)
    assert network.running == []


def test_own_values_that_come_late():
    topology = star(3, 8e6)
    exchange = load("parameter_server")
    workers = topology.workers.tolist()
    network = Network(topology)
    handle = network.start(
        exchange(topology, part="push"), 1e6, ready={workers[1]: 4.0, workers[2]: 0.5}
    )
    network.advance()
    # 0: 0.5 alone, then shared until 1.5 and 2.0; the late one has the card alone.
    assert handle.transfers["end_s"].tolist() == pytest.approx([1.5, 5.0, 2.0])
    assert handle.transfers["start_s"].tolist() == pytest.approx([0.0, 4.0, 0.5])
    # A relay's own value does not hold up what it passes on: only the server's join waits.
    whole = network.start(exchange(topology), 1e6, ready={workers[0]: network.now + 10})
    network.advance()
    assert whole.completion_s == pytest.approx(5.0 + 10 + 1 + 3)


def test_receivers_finish_at_their_own_times():
    topology = geo_sites([1, 3], lan=8e6, wan=8e9)
    plan = load("hips", overlap=True)(topology)
    result = simulate(plan, topology, 1e6)
    workers = topology.workers.tolist()
    # Up 3 s in the large site; across 0.001 s and, for the first site, its own card 1 s.
    ends = result.transfers["end_s"]
    near, far = (ends[plan.dst == workers[rank]].max() for rank in (0, 3))
    assert near < far == result.completion_s
    assert far - near == pytest.approx(2.0)  # three pulls share a card against one
    alone = load("parameter_server")(topology, workers[:1], part="push")
    handle = simulate(alone, topology, 0.0)
    assert handle.completion_s == 0.0


def out_of_sites(result):
    columns = (result.transfers[key] for key in ("src", "dst", "nbytes"))
    return between_regions(result.topology, *columns)["site"].egress


def test_sizes_by_slot_and_by_sender():
    topology = geo_sites([2, 2])
    plan = load("hips", overlap=False)(topology)
    servers = topology.servers.tolist()
    sizes = {
        "push/0": S,
        "push/1": {servers[1]: S / 10, servers[2]: S / 5},
        "pull/1": {servers[0]: S / 4},
        "pull/0": S / 2,
    }
    expected = 2 * S / LAN + 0.3 * S / WAN + 0.5 * S / WAN + S / LAN
    result = simulate(plan, topology, sizes)
    assert result.completion_s == pytest.approx(expected)
    assert out_of_sites(result) == pytest.approx([S / 2, S / 10, S / 5])


def test_bytes_are_conserved():
    topology = geo_sites([2, 3], colocated=1)
    plan = load("hips", chunks=3)(topology)
    efficiency = tcp_efficiency()
    result = simulate(plan, topology, S, efficiency=efficiency)
    moved = result.transfers["nbytes"]
    assert moved.sum() == pytest.approx((5 * 2 + 2 * 2) * S / efficiency)
    for node in [*topology.workers, *topology.servers]:
        out, into = topology.link_src == node, topology.link_dst == node
        sends, gets = plan.src == node, (plan.dst == node) & (plan.src != node)
        assert result.link_bytes[out].sum() == pytest.approx(moved[sends].sum())
        assert result.link_bytes[into].sum() == pytest.approx(moved[gets].sum())
    switches = sorted(set(topology.link_dst) - set(topology.workers) - set(topology.servers))
    for switch in switches:
        into = result.link_bytes[topology.link_dst == switch].sum()
        assert result.link_bytes[topology.link_src == switch].sum() == pytest.approx(into)
    core = topology.node_names.index("core")
    assert result.link_bytes[topology.link_dst == core].sum() == pytest.approx(4 * S / efficiency)
    assert out_of_sites(result) == pytest.approx(np.array([2, 1, 1]) * S / efficiency)


def test_phases_wait_for_each_other_only_where_they_must():
    builder = PlanBuilder("phases", 1, ["x"])
    builder.add(0, 1, "x", REDUCE, phase=3)
    builder.add(2, 3, "x", REDUCE, phase=7)
    plan = builder.build([0, 2], [])
    topology = star(4, 8e6)
    assert seconds(plan, topology, 1e6) == pytest.approx(1.0)
    assert seconds(dataclasses.replace(plan, overlap=False), topology, 1e6) == pytest.approx(2.0)


def test_a_plan_of_nothing_completes_at_its_start():
    topology = star(1, 1e9)
    plan = load("parameter_server", shards="colocated")(topology)
    assert seconds(plan, topology) == 0.0
    empty = PlanBuilder("empty", 1, ["x"]).build([0], [0])
    network = Network(topology)
    handle = network.start(empty, 1.0, at=2.0, ready={0: 3.0})
    assert network.advance(until=2.5) == []
    assert network.advance() == [handle]
    assert handle.completion_s == 3.0


def test_advance_to_a_time_or_to_the_first_completion():
    topology = star(2, 8e6)
    push = load("parameter_server")(topology, topology.workers[:1], part="push")
    network = Network(topology)
    assert network.advance() == []
    a, b = network.start(push, 1e6), network.start(push, 2e6)
    assert network.advance(until=5.0, first=True) == [a]
    assert network.now == a.completion_s == pytest.approx(2.0)
    assert network.advance(until=2.5, first=True) == []
    assert network.now == 2.5
    assert not b.done and math.isnan(b.completion_s)
    assert network.advance(until=5.0) == [b]
    assert (network.now, b.completion_s) == (5.0, pytest.approx(3.0))
    both = [network.start(push, 1e6), network.start(push, 2e6)]
    assert network.advance(until=50.0) == both
    with pytest.raises(ValueError, match="cannot advance to 1.0 s"):
        network.advance(until=1.0)
    with pytest.raises(ValueError, match="cannot start at 49.0 s"):
        network.start(push, 1e6, at=49.0)


def test_a_network_used_for_long_stays_small_and_exact():
    topology = geo_sites([2, 2])
    network = Network(topology)
    rng = np.random.default_rng(0)
    for _ in range(300):
        members = rng.choice(topology.workers, rng.integers(1, 5), replace=False)
        plan = load("hips", overlap=False)(topology, members)
        begin = network.now
        handle = network.start(plan, S)
        network.advance()
        alone = simulate(plan, topology, S).completion_s
        assert handle.completion_s - begin == pytest.approx(alone, rel=1e-7)
    assert len(network._state.transfers) < 100


def test_late_in_a_long_run_time_is_as_exact():
    topology = geo_sites([3, 2], lan_latency=1e-4)
    plan = load("hips", chunks=5)(topology)
    alone = simulate(plan, topology, 1e6).completion_s  # a fraction of a second
    network = Network(topology)
    network.advance(until=1e6)
    late = network.start(plan, 1e6)
    network.advance()
    assert late.completion_s - 1e6 == pytest.approx(alone, rel=1e-6)


def test_same_run_same_bits():
    topology = geo_sites([3, 4], lan_latency=1e-4, wan_latency=3e-3, colocated=1)
    plan = load("hips", chunks=7)(topology)
    faults = Faults([(int(topology.workers[2]), 0.3, 0.9)])
    runs = [simulate(plan, topology, 1.234e7, faults).transfers.tobytes() for _ in range(3)]
    assert len(set(runs)) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net, plan: net.start(plan, {"push/0": 1.0}), "slot 'pull/0' has no size"),
        (lambda net, plan: net.start(plan, {"push": 1.0}), "no slot 'push'"),
        (lambda net, plan: net.start(plan, -1.0), "finite and >= 0"),
        (lambda net, plan: net.start(plan, math.nan), "finite and >= 0"),
        (lambda net, plan: net.start(plan, {"push/0": {0: 1}, "pull/0": 1}), "sender 1"),
        (lambda net, plan: net.start(plan, 1.0, ready={2: 1.0}), "node 2, no contributor"),
        (lambda net, plan: net.start(plan, 1.0, ready={0: math.inf}), "ready times"),
        (lambda net, plan: net.start(load("hips")(geo_sites()), 1.0), "there is no node"),
        (lambda net, plan: Network(net.topology, efficiency=1.1), "efficiency must be"),
        (lambda net, plan: Network(net.topology, flow_cap=0), "flow_cap must be"),
        (lambda net, plan: Network(star(2, 1e9, latency=math.inf)), "latencies must be finite"),
    ],
)
def test_clear_errors(call, message):
    topology = star(2, 1e9)
    with pytest.raises(ValueError, match=message):
        call(Network(topology), load("parameter_server")(topology))


def test_two_copies_of_a_cable_are_two_links():
    # A pair of nodes has one path, so the second cable is idle: no message is split silently.
    src, dst = [0, 1, 0, 1, 1, 2], [1, 0, 1, 0, 2, 1]
    topology = Topology("abc", [0, 2], [], src, dst, [8.0] * 6, [0] * 6)
    builder = PlanBuilder("one", 1, ["x"])
    builder.add(0, 2, "x", COPY)
    result = simulate(builder.build([0], [2]), topology, 3.0)
    assert result.link_bytes.tolist() == [3.0, 0, 0, 0, 3.0, 0]
    assert result.completion_s == pytest.approx(3.0)


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("efficiency", [1.0, 0.5])
def test_a_server_adds_up_as_fast_as_it_can(chunks, efficiency):
    """w pushes of S into a fast card take w S / sum_rate; the pulls, which are copies, the card's
    time. What links carry counts headers, what is added does not."""
    workers, push_s = 6, 6 * S / 2.0
    topology = star(workers, 8.0 * 40, server_rate=8.0 * 400)
    plan = load("parameter_server", chunks=chunks, overlap=False)(topology)
    options = dict(efficiency=efficiency)
    free = simulate(plan, topology, S, **options).completion_s
    result = simulate(plan, topology, S, sum_rate=2.0, **options)
    pull_s = S / efficiency / 40
    assert free == pytest.approx(2 * pull_s)
    assert result.completion_s == pytest.approx(push_s + pull_s)
    plain = simulate(plan, topology, S, **options)
    assert result.link_bytes == pytest.approx(plain.link_bytes)


@pytest.mark.parametrize("chunks", [1, 5])
@pytest.mark.parametrize("latency", [0.0, 0.25])
@pytest.mark.parametrize("message", [0.01, 0.5, 4.0])
def test_pieces_are_written_while_those_before_leave_and_wait_for_the_route_once(
    chunks, latency, message
):
    """Along one connection software and card are a line of two machines, through which all pieces
    go one after the other: the slower has no gap, and the route's latency comes once."""
    topology = star(2, 8.0, latency=latency / 2)
    builder = PlanBuilder("two", 1, ("s",))
    builder.add(0, 1, "s", REDUCE)
    builder.add(0, 1, "s", REDUCE)
    plan = builder.build([0], [], chunks=chunks, window=1)
    nbytes = 3.0
    took = simulate(plan, topology, nbytes, message_s=message).completion_s
    piece = nbytes / chunks
    busy = message + piece + (2 * chunks - 1) * max(message, piece)
    assert took == pytest.approx(busy + latency)


@pytest.mark.parametrize("receivers", [1, 63])
def test_what_messages_take_a_sender_adds_up_whoever_they_are_for(receivers):
    topology, message, piece = star(64, 8.0), 0.5, 1e-6
    builder = PlanBuilder("many", 63, ("s",))
    for part in range(63):
        builder.add(0, 1 + part % receivers, "s", REDUCE, (), (part, part + 1))
    plan = builder.build([0], [])
    result = simulate(plan, topology, 63 * piece, message_s=message)
    # Each leaves when it is written, in the order of the plan, and long before the next one is.
    expected = message * np.arange(1, 64) + piece
    assert result.transfers["end_s"] == pytest.approx(expected, rel=1e-12)


def test_a_chain_pays_for_every_message_and_different_senders_pay_at_once():
    """0 sends to 1 and 2, which send on to 3: of its two the second is written later, and the node
    in between writes only what has arrived."""
    topology, message, nbytes = star(4, 8.0), 0.5, 2.0
    builder = PlanBuilder("chain", 1, ("s",))
    near, far = (builder.add(0, node, "s", COPY) for node in (1, 2))
    builder.add(1, 3, "s", REDUCE, (near,))
    builder.add(2, 3, "s", REDUCE, (far,))
    plan = builder.build([0], [])
    end = simulate(plan, topology, nbytes, message_s=message).transfers["end_s"]
    # The first leaves at 0.5, alone for half a second; then both share 0's card: it has 1.5 to go,
    # which takes 3 s, and what then is left of the second has the card for itself.
    assert end[:2] == pytest.approx([4.0, 4.5])
    # From 4.5 on the one and from 5 on the other goes into 3's card: they share it likewise.
    assert end[2:] == pytest.approx([8.0, 8.5])


def test_software_begins_no_message_while_its_node_pauses():
    topology, message = star(3, 8.0), 0.5
    builder = PlanBuilder("two", 1, ("s",))
    builder.add(0, 1, "s", REDUCE)
    builder.add(0, 2, "s", REDUCE)
    plan = builder.build([0], [])
    faults = Faults(pauses=((0, 0.25, 2.0),))
    end = simulate(plan, topology, 0.25, faults, message_s=message).transfers["end_s"]
    # The one that it was at is done, and leaves afterwards; the other is begun only then.
    assert end == pytest.approx([2.25, 2.75])


@pytest.mark.parametrize("n", [2, 5, 8])
def test_ring_in_the_usual_cost_model(n):
    """2(n - 1) alpha + 2 (n - 1)/n beta + (n - 1)/n gamma, where sums are slower than cards."""
    alpha, beta, gamma = 1e-3, 1 / 1e9, 1 / 0.5e9
    topology, nbytes = star(n, 8 / beta), 4e8
    plan = load("ring")(topology)
    took = simulate(plan, topology, nbytes, message_s=alpha, sum_rate=1 / gamma).completion_s
    share = nbytes * (n - 1) / n
    # A card's time is hidden behind the sum's, which is streamed.
    assert took == pytest.approx(2 * (n - 1) * alpha + share * (gamma + beta))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(message_s=-1.0), "message_s must be finite and >= 0"),
        (dict(message_s=math.inf), "message_s must be finite"),
        (dict(sum_rate=0.0), "sum_rate must be a rate above 0"),
    ],
)
def test_costs_must_make_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Network(star(2, 8.0), **options)


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("latency", [0.0, 0.01, 0.1])
def test_a_ring_in_pieces_hides_latency_up_to_the_rest_of_a_message(chunks, latency):
    """A step takes its card's time ``a``, or a piece's and the latency, and the last one ``a + L``.

    A sender goes on with what it has: it does not wait for the first piece of the next step.
    """
    n = 4
    a = S / n / 1e9
    plan = load("ring", chunks=chunks)(star(n, 8e9, latency=latency * a / 2))
    took = simulate(plan, star(n, 8e9, latency=latency * a / 2), S).completion_s
    steps = 2 * (n - 1)
    expected = (steps - 1) * max(1, 1 / chunks + latency) + 1 + latency
    assert took / a == pytest.approx(expected)
