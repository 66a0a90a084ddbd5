"""The fluid simulator against an independent one, on random networks and plans."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from fluid_reference import Job, lexicographic, run, water_filling
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, Topology
from slowlink.testbed.network import Faults, Network, route

pytestmark = pytest.mark.slow

FUZZ = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
quarters = st.integers(0, 12).map(lambda n: n / 4)


@st.composite
def topologies(draw):
    """Hosts on a random tree of switches, with some cables doubled and some without limit."""
    hosts, switches = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    cables = [(host, hosts + draw(st.integers(0, switches - 1))) for host in range(hosts)]
    cables += [(hosts + s, hosts + draw(st.integers(0, s - 1))) for s in range(1, switches)]
    ends, rates, latencies = [], [], []
    for a, b in cables:
        for pair in ((a, b), (b, a)):
            ends.append(pair)
            rates.append(draw(st.sampled_from([8.0, 16.0, 24.0, 40.0, 56.0, np.inf])))
            latencies.append(draw(st.sampled_from([0.0, 0.0, 0.25, 0.5])))
    src, dst = np.array(ends).T
    names = tuple(f"n{i}" for i in range(hosts + switches))
    return Topology(names, np.arange(hosts), [], src, dst, rates, latencies)


@st.composite
def jobs(draw, topology, simple=False):
    hosts = st.sampled_from(topology.workers.tolist())
    n = draw(st.integers(1, 9))
    builder = PlanBuilder("random", draw(st.integers(1, 3)), ("a", "b"))
    arrivals: dict[int, list[int]] = {}
    phases: list[int] = []
    for t in range(n):
        src, dst = draw(hosts), draw(hosts)
        known = arrivals.get(src, [])
        after = draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        op = COPY if src == dst else draw(st.sampled_from([REDUCE, COPY]))
        lo = draw(st.integers(0, builder.units - 1))
        parts = lo, draw(st.integers(lo + 1, builder.units))
        slot = draw(st.sampled_from("ab"))
        phases.append(draw(st.integers(max((phases[d] for d in after), default=0), 2)))
        builder.add(src, dst, slot, op, after, parts, phases[t])
        arrivals.setdefault(dst, []).append(t)
    options = {}
    if not simple:
        options = dict(
            chunks=draw(st.integers(1, 3)),
            window=draw(st.integers(0, 2)),
            overlap=draw(st.booleans()),
        )
    contributors = draw(st.lists(hosts, unique=True, min_size=1))
    plan = builder.build(contributors, [], **options)
    sizes = {slot: draw(st.integers(0, 24)) for slot in "ab"}
    nbytes = [
        sizes["ab"[plan.slot[t]]] * float(plan.hi[t] - plan.lo[t]) / plan.units
        for t in range(len(plan))
    ]
    ready = {node: draw(quarters) for node in contributors if draw(st.booleans())}
    return Job(plan, nbytes, draw(quarters), ready), sizes


@st.composite
def spans(draw, items, most):
    """Up to ``most`` entries ``(item, begin, end)``; they may overlap."""
    n = draw(st.integers(0, most)) if items else 0
    found = []
    for _ in range(n):
        begin = draw(quarters)
        item, quarters_long = draw(st.sampled_from(items)), draw(st.integers(1, 12))
        found.append((item, begin, begin + quarters_long / 4))
    return found


@st.composite
def scenes(draw, simple=False):
    topology = draw(topologies())
    plans = draw(st.lists(jobs(topology, simple), min_size=1, max_size=3))
    limited = np.flatnonzero(np.isfinite(topology.link_rate)).tolist()
    pauses = draw(spans(topology.workers.tolist(), 2))
    rates, bursts = draw(spans(limited, 3)), draw(spans(limited, 3))
    faults = Faults(
        pauses,
        [(*span, draw(st.sampled_from([0, 0, 4, 12, 100]))) for span in rates],
        [(*span, draw(st.integers(1, 3))) for span in bursts],
    )
    cap = draw(st.sampled_from([None, None, 1, 3]))
    if cap is None and np.isinf(topology.link_rate).all():
        cap = 2
    return topology, plans, faults, cap


def check(scene, rates_of, tolerance=1e-6, message=0, sums=None):
    topology, plans, faults, cap = scene
    hosts = topology.workers.tolist()
    paths = {(a, b): route(topology, a, b) for a in hosts for b in hosts}
    expected = run(
        *(topology, paths, [job for job, _ in plans], faults),
        cap=None if cap is None else Fraction(cap),
        rates_of=rates_of,
        message=Fraction(message),
        sums=sums,
    )
    network = Network(
        topology,
        faults,
        flow_cap=np.inf if cap is None else 8 * cap,
        message_s=message,
        sum_rate=np.inf if sums is None else sums,
    )
    results = [network.start(job.plan, sizes, job.at, job.ready) for job, sizes in plans]
    order = []
    while batch := network.advance():
        order += batch
    assert set(order) == set(results)
    assert [r.completion_s for r in order] == sorted(r.completion_s for r in order)
    for result, ends in zip(results, expected, strict=True):
        wanted = np.array([float(end) for end in ends])
        assert result.transfers["end_s"] == pytest.approx(wanted, rel=tolerance, abs=tolerance)
        assert result.completion_s == pytest.approx(wanted.max(), rel=tolerance, abs=tolerance)
    moved = sum(result.link_bytes for result in results)
    assert network.link_bytes == pytest.approx(moved, rel=1e-12, abs=1e-9)


@settings(FUZZ, max_examples=200)
@given(scenes())
def test_agrees_with_an_exact_event_by_event_simulator(scene):
    check(scene, water_filling)


@settings(FUZZ, max_examples=100)
@given(scenes(), st.sampled_from([0, 0.25, 0.5]), st.sampled_from([None, 1, 2, 5]))
def test_agrees_where_messages_and_sums_take_time(scene, message, sums):
    check(scene, water_filling, message=message, sums=sums)


@settings(FUZZ, max_examples=15)
@given(scenes(simple=True))
def test_agrees_with_lexicographic_linear_programs(scene):
    check(scene, lexicographic)


@settings(FUZZ, max_examples=30)
@given(scenes())
def test_stopping_on_the_way_changes_nothing(scene):
    topology, plans, faults, cap = scene
    cap = np.inf if cap is None else 8 * cap

    def ends(stops):
        network = Network(topology, faults, flow_cap=cap)
        results = [network.start(job.plan, sizes, job.at, job.ready) for job, sizes in plans]
        for stop in stops:
            network.advance(stop)
            assert network.now == stop
        while network.advance():
            pass
        return np.concatenate([result.transfers["end_s"] for result in results])

    whole = ends([])
    assert np.array_equal(whole, ends([]))  # to the bit
    assert ends(np.linspace(0, whole.max(), 7)[1:]) == pytest.approx(whole, rel=1e-9, abs=1e-12)
