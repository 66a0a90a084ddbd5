"""The fluid simulator on real exchanges and uneven networks, against independent solutions."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from fluid_reference import Job, run

from slowlink.methods.exchange import COPY, PlanBuilder, load
from slowlink.testbed.network import (
    Faults,
    Network,
    fluid,
    leaf_spine,
    random_pauses,
    route,
    routes,
    simulate,
    star,
)
from slowlink.testbed.network._engine import ACTIVE, empty_state
from slowlink.testbed.network.routing import Paths

PLANS = ["ring", "rat", "parameter_server", "halving_doubling", "blue_connect"]


def planned(name, topology, **options):
    if name == "parameter_server":
        options |= dict(shards="colocated")
    return load(name, **options)(topology)


def uneven(rng, racks, per_rack, spines=2, rate=64.0):
    """A leaf-spine network whose racks have uplinks of different rates, in small numbers."""
    uplink = rng.integers(1, 12, racks) * rate / 8
    return leaf_spine(racks, per_rack, rate, spines=spines, uplink=uplink.tolist())


def some_faults(rng, topology, span):
    """Two links that lose capacity, two bursts, and a node that pauses, within ``span`` s."""

    def times():
        begin, length = rng.integers(0, 8), rng.integers(1, 8)
        return span * begin / 16, span * (begin + length) / 16

    links = rng.choice(topology.n_links, 4, replace=False).tolist()
    return Faults(
        [(int(rng.choice(topology.workers)), *times())],
        [(link, *times(), topology.link_rate[link] * rng.integers(0, 4) / 4) for link in links[:2]],
        [(link, *times(), int(rng.integers(1, 4))) for link in links[2:]],
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_uneven_racks_agree_with_exact_arithmetic(name, seed):
    rng = np.random.default_rng(seed)
    topology = uneven(rng, 2, 4 if seed == 0 else 2)
    plan = planned(name, topology, chunks=1 + seed % 2, overlap=seed != 3)
    plan = dataclasses.replace(plan, window=2 * (seed == 2))
    ready = {node: int(rng.integers(0, 16)) / 16 for node in topology.workers.tolist()}
    paths = Paths("ecmp", seed)
    faults = some_faults(rng, topology, 8.0) if seed else Faults()
    nbytes = np.where(plan.src != plan.dst, (plan.hi - plan.lo) / plan.units * 24.0, 0.0)
    pairs = sorted(set(zip(plan.src.tolist(), plan.dst.tolist(), strict=True)))
    ptr, links = routes(topology, pairs, paths)
    between = {pair: links[ptr[i] : ptr[i + 1]].tolist() for i, pair in enumerate(pairs)}
    (expected,) = run(topology, between, [Job(plan, nbytes.tolist(), 0.0, ready)], faults)

    network = Network(topology, faults, paths=paths)
    result = network.start(plan, 24.0, ready=ready)
    network.advance()
    assert result.transfers["end_s"] == pytest.approx([float(end) for end in expected], rel=1e-9)


def messages(topology, flows, faults=None):
    """Arrivals of single messages ``(source, destination, bytes, start)``: ours, and exact."""
    faults = faults or Faults()
    network, results, jobs, between = Network(topology, faults), [], [], {}
    for src, dst, nbytes, at in flows:
        builder = PlanBuilder("message", 1, ["x"])
        builder.add(src, dst, "x", COPY)
        plan = builder.build([src], [dst])
        results.append(network.start(plan, nbytes, at=at))
        jobs.append(Job(plan, [nbytes], at))
        between[src, dst] = route(topology, src, dst)
    while network.advance():
        pass
    expected = [float(ends[0]) for ends in run(topology, between, jobs, faults)]
    return [result.completion_s for result in results], expected


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_messages_that_come_and_go_agree_with_exact_arithmetic(seed):
    rng = np.random.default_rng(seed)
    topology = uneven(rng, 3, 3)
    flows = []
    for _ in range(80):
        src, dst = rng.choice(topology.workers, 2, replace=False).tolist()
        flows.append((src, dst, int(rng.integers(1, 32)) / 4, int(rng.integers(0, 128)) / 16))
    faults = some_faults(rng, topology, 8.0) if seed % 2 else Faults()
    ours, expected = messages(topology, flows, faults=faults)
    assert ours == pytest.approx(expected, rel=1e-9)


def test_what_was_once_shared_does_not_bind_later():
    # The second message joins 0's card to 2's. When it is gone, 4's messages share 2's card with
    # the third; what ends at 0's card after that must not touch their shares.
    flows = [(0, 1, 8.0, 0.0), (0, 2, 0.5, 0.0), (3, 2, 8.0, 0.0), (0, 1, 2.0, 0.0)]
    flows += [(4, dst, 6.0, 3.0) for dst in (2, 5, 6, 7)]
    ours, expected = messages(star(8, 8.0), flows)
    assert ours == pytest.approx(expected, rel=1e-9)


def capacities(topology, faults, now):
    """Bytes/s of each link now, and how many background flows it carries."""
    rate, foreign = topology.link_rate / 8, np.zeros(topology.n_links)
    for link, begin, end, left in faults.rates:
        if begin <= now < end:
            rate[link] = min(rate[link], left / 8)
    for link, begin, end, flows in faults.bursts:
        foreign[link] += flows * (begin <= now < end)
    return rate, foreign


def check_shares(network, faults, cap):
    """The shares of this moment are max-min fair.

    They are if, and only if, every flow has a bottleneck: a full link on which none is faster, or
    the cap (Bertsekas and Gallager, Data Networks, section 6.5.2). Background flows on a link take
    what is left of it in equal parts, and if it is full no more than the fastest other flow.
    """
    state = network._state
    active = state.active[: state.count[ACTIVE]]
    flows = active[state.flows["group"][active] >= 0]
    rates = state.groups["rate"][state.flows["group"][flows]]
    ends = np.stack([state.transfers["src"][flows], state.transfers["dst"][flows]], axis=1)
    ptr, links = routes(network.topology, ends, network.paths)
    flow = np.repeat(np.arange(len(flows)), np.diff(ptr))
    capacity, foreign = capacities(network.topology, faults, network.now)
    load = np.bincount(links, rates[flow], minlength=len(capacity))
    fastest = np.zeros(len(capacity))
    np.maximum.at(fastest, links, rates[flow])
    assert (load <= capacity * (1 + 1e-9)).all()
    assert (rates <= cap * (1 + 1e-9)).all()
    background = (capacity - load) / np.maximum(foreign, 1)
    full = np.where(foreign > 0, background <= fastest * (1 + 1e-8), background <= 1e-8 * capacity)
    held = full[links] & (rates[flow] >= fastest[links] * (1 - 1e-8))
    held = np.bincount(flow, held, minlength=len(flows)) > 0
    assert (held | (rates >= cap * (1 - 1e-9))).all()
    # Where background flows share a full link they are no slower than the others.
    tight = (foreign > 0) & (fastest > 0)
    assert (background[tight] >= fastest[tight] * (1 - 1e-8)).all()
    return len(flows)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(4))
def test_shares_are_max_min_fair_at_any_moment(name, seed):
    rng = np.random.default_rng(seed)
    topology = uneven(rng, 4, 8, int(rng.integers(1, 4)), 40e9)
    plan = planned(name, topology, chunks=int(rng.integers(1, 5)))
    ready = {node: rng.uniform(0, 2e-3) for node in topology.workers.tolist()}
    cap = np.inf if seed % 2 else float(rng.uniform(0.1, 4)) * 1e9
    faults = some_faults(rng, topology, 0.05)
    faults |= random_pauses(topology.workers.tolist(), seed % 3, 3e-3, 1.0, seed)
    options = dict(paths=Paths("ecmp", seed), flow_cap=8 * cap)
    network = Network(topology, faults, **options)
    whole = network.start(plan, 97e6, ready=ready)
    network.advance()

    again = Network(topology, faults, **options)
    result = again.start(plan, 97e6, ready=ready)
    seen = 0
    for time in np.sort(rng.uniform(0, whole.completion_s, 30)):
        again.advance(until=time)
        seen += check_shares(again, faults, cap)
    again.advance()
    assert seen > 30
    assert result.completion_s == whole.completion_s  # to the bit: looking changes nothing
    assert again.link_bytes == pytest.approx(result.link_bytes)


def test_a_network_and_its_copy_go_on_apart():
    topology = star(4, rate=1e9)
    network, plan = Network(topology), planned("ring", topology)
    network.start(plan, 1e6)
    twin = copy.deepcopy(network)
    twin.start(plan, 1e6)
    (alone,) = network.advance()
    shared = twin.advance() + twin.advance()
    assert min(one.completion_s for one in shared) > alone.completion_s == network.now


def test_the_engine_takes_no_array_of_another_kind():
    state = empty_state(nodes=2, links=1, events=0, changes=0)
    for wrong in (state.finish.astype(np.float32), np.zeros(4)[::2]):
        with pytest.raises(TypeError, match="finish must be a contiguous array of float64"):
            state.put(finish=wrong)
    with pytest.raises(AttributeError, match="set by put"):
        state.finish = np.zeros(2)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_what_is_kept_of_a_plan_on_other_links_changes_nothing(name, alike):
    rng = np.random.default_rng(5)
    known = star(8, 64.0) if alike else uneven(rng, racks=3, per_rack=3)
    factor = rng.integers(2, 9, known.n_links)
    later = rng.integers(0, 4, known.n_links) / 64
    plan = planned(name, known)

    def times(**changes):
        """Played beside another plan and alone, on links of which nothing is known by their id."""
        topology = dataclasses.replace(known, **changes)
        network = Network(topology)
        for at in (0.0, 1.0):
            network.start(plan, 64.0, at=at)
        beside = [one.completion_s for _ in range(2) for one in network.advance()]
        return [*beside, simulate(plan, topology, 64.0).completion_s]

    fluid._small_plans.clear()
    every = [{}, dict(link_rate=known.link_rate * factor), dict(link_latency=later)]
    kept = [times(**changes) for changes in every]
    assert len(fluid._small_plans) == 2  # other latencies are other networks
    for changes, told in zip(every, kept, strict=True):
        fluid._small_plans.clear()
        assert times(**changes) == told
    assert kept[0] != kept[1] != kept[2]


def test_what_is_kept_of_sizes_is_of_these_sizes():
    topology = star(4, 64.0)
    plan, sizes = load("parameter_server")(topology), {}
    for efficiency in (1.0, 0.5):
        for push, pull in ((64.0, 32.0), (64.0, 16.0), (64.0, 32.0)):
            sizes |= {"push/0": push, "pull/0": pull}  # in place: who asks may keep its mapping
            result = Network(topology, efficiency=efficiency).start(plan, sizes)
            whole = np.array([sizes[plan.slots[slot]] for slot in plan.slot])
            expected = whole * (plan.src != plan.dst) / efficiency
            assert (result.transfers["nbytes"] == expected).all()
