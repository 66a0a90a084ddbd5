"""ns-3 runs of plans: frames on a wire counted by hand, and the fluid simulator."""

from __future__ import annotations

import dataclasses
import subprocess

import numpy as np
import pytest

from slowlink.methods.exchange import COPY, REDUCE, PlanBuilder, load
from slowlink.testbed.network import (
    Faults,
    bound,
    failed_links,
    leaf_spine,
    packet,
    simulate,
    tcp_efficiency,
)
from slowlink.testbed.network.packet import Tcp, available, packet_simulate

pytestmark = pytest.mark.slow

RATE = 1e10
LATENCY = 5e-6
FRAME_S = 8 * 9038 / RATE
SEGMENT = 8948
ACK_S = 8 * 90 / RATE
AFTER_S = 8 * 36 / RATE
"""The part of a frame that is time after it, which its receiver need not wait for."""

needs_ns3 = pytest.mark.skipif(bool(available()), reason=available() or "ns-3 is here")


def rack(workers, latency=LATENCY):
    """Workers around one switch."""
    return leaf_spine(1, workers, RATE, spines=1, latency=latency)


def plan_of(moves, **options):
    """A plan of ``(source, destination, after)``."""
    builder = PlanBuilder("moves", 1, ("s",))
    for t, (src, dst, after) in enumerate(moves):
        builder.add(src, dst, "s", COPY if src == dst else REDUCE, after, phase=t)
    return builder.build(sorted({src for src, _, _ in moves}), [], **options)


def times(plan, topology, nbytes, *args, **kwargs):
    transfers = packet_simulate(plan, topology, nbytes, *args, **kwargs).transfers
    return transfers["start_s"], transfers["end_s"]


@needs_ns3
def test_messages_take_their_frames_in_order_and_share_links():
    frames = 1000
    moves = [(0, 1, ()), (1, 2, (0,)), (1, 1, (0,)), (3, 4, ()), (5, 4, ()), (6, 7, ()), (6, 7, ())]
    plan = plan_of([*moves, (8, 9, ()), (9, 8, ())], window=1)
    start, end = times(plan, rack(10), frames * SEGMENT)
    # Both cards in turn send every frame: the second the last one, once the first has sent it.
    one = (frames + 1) * FRAME_S + 2 * (LATENCY - AFTER_S)
    assert (start[0], end[0]) == (0, pytest.approx(one, rel=1e-6))
    assert start[1] == pytest.approx(end[0], abs=1e-9)
    # Node 1's card is still sending the last acknowledgement of what it received.
    assert end[1] - start[1] == pytest.approx(one + ACK_S, rel=1e-6)
    assert start[2] == end[2] == end[0]
    # Into one card: each has half of it, so both end when all frames are through.
    assert end[3:5].max() == pytest.approx((2 * frames + 1) * FRAME_S + 2 * LATENCY, rel=1e-3)
    assert end[3:5].min() > 0.9 * end[3:5].max()
    # A connection carries its messages one after the other; nothing is between them.
    assert end[5] == pytest.approx(one, rel=1e-6)
    assert end[6] - end[5] == pytest.approx(frames * FRAME_S, rel=1e-6)
    # Both ways at once, every frame goes with one that acknowledges another.
    assert Tcp().efficiency == pytest.approx(SEGMENT * 8 / (FRAME_S + ACK_S) / RATE)
    assert end[7:] == pytest.approx(frames * SEGMENT * 8 / (RATE * Tcp().efficiency), rel=5e-3)


@needs_ns3
def test_chunks_phases_and_windows():
    frames, hop = 800, 2 * LATENCY + FRAME_S
    nbytes, whole = frames * SEGMENT, frames * FRAME_S
    relay, shared = [(0, 1, ()), (1, 2, (0,))], [(3, 4, ())] * 3
    start, end = times(plan_of(relay + shared, chunks=8, window=1), rack(5), nbytes)
    # In 8 pieces, the second hop ends one piece after the first. While it still receives, the
    # card in between also acknowledges every frame.
    both = frames * 7 / 8 * ACK_S
    assert end[1] == pytest.approx(whole * 9 / 8 + both + 2 * hop, rel=2e-3)
    # One piece at a time, the first of each message, then the second; the next is written when no
    # more than this of one is unsent or in the window, which slow start doubles before it sees
    # marks.
    ahead = 8 * (Tcp().unsent_bytes + 2 * Tcp().mark_bytes) / (RATE * Tcp().efficiency)
    assert end[2:] == pytest.approx(whole / 8 * np.array([22, 23, 24]) + hop, rel=2e-3)
    before = whole / 8 * np.array([1, 2]) + hop
    assert np.all((start[3:] < before) & (start[3:] > before - ahead))
    # Without a window, messages share the link.
    apart = plan_of([*relay, (3, 4, ()), (3, 4, ())], chunks=8, window=0)
    _, end = times(apart, rack(5), nbytes)
    assert end[2:].min() > 0.9 * end[2:].max()
    assert end[2:].max() == pytest.approx(2 * whole + hop, rel=5e-3)
    # With phases, the second hop waits for all of the first.
    _, barred = times(plan_of(relay, chunks=8, overlap=False), rack(3), nbytes)
    assert barred[1] == pytest.approx(2 * (whole + hop), rel=2e-3)


@needs_ns3
def test_a_pause_stops_what_a_node_sends_and_not_what_it_receives():
    frames = 2000
    plan = plan_of([(0, 1, ()), (2, 0, ())])
    faults = Faults(pauses=((0, 0.004, 0.009), (0, 0.030, 0.040)))
    _, end = times(plan, rack(3), frames * SEGMENT, faults)
    through = frames * FRAME_S + 2 * LATENCY
    # What was written but not sent at the pause still leaves: up to 64 KiB and a window.
    assert end[0] == pytest.approx(through + 0.005, rel=0.02)
    assert end[1] == pytest.approx(through, rel=0.02)


@needs_ns3
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("exchange", ["parameter_server", "ring", "rat", "blue_connect"])
def test_exchanges_agree_with_the_fluid_simulator(exchange, paused):
    options = {"shards": "colocated"} if exchange == "parameter_server" else {}
    topology = leaf_spine(4, 2, RATE, spines=2, uplink=RATE / 4, latency=1e-6)
    plan = load(exchange, chunks=4, **options)(topology)
    faults = Faults(pauses=((1, 0.002, 0.012),)) if paused else None
    fluid = simulate(plan, topology, 16e6, faults, efficiency=Tcp().efficiency)
    result = packet_simulate(plan, topology, 16e6, faults)
    assert result.completion_s == pytest.approx(fluid.completion_s, rel=0.1)
    assert (result.drops, result.timeouts) == (0, 0)
    assert result.events > 0 and result.wall_s > 0


@needs_ns3
@pytest.mark.parametrize(
    ("exchange", "chunks", "options"),
    [("parameter_server", 8, {"shards": "colocated"}), ("rat", 32, {}), ("ring", 8, {})],
)
def test_pieces_that_a_socket_takes_at_once_are_sent_once(exchange, chunks, options):
    """Every piece is written as soon as it is ready, while others are still looked for."""
    topology = leaf_spine(4, 4, RATE, spines=2, uplink=RATE)
    plan = load(exchange, chunks=chunks, **options)(topology)
    nbytes = 0.25e6
    assert nbytes / len(topology.workers) < Tcp().unsent_bytes
    result = packet_simulate(plan, topology, nbytes)
    assert result.drops == 0
    end = result.transfers["end_s"]
    waiter = np.repeat(np.arange(len(plan)), np.diff(plan.dep_ptr))
    assert np.all(end[waiter] >= end[plan.dep_idx])
    # No piece is waited for that was not sent, and a first window leaves little over the bound.
    least = bound(plan, topology, nbytes)
    assert least < result.completion_s < 1.5 * least


@needs_ns3
def test_what_never_arrives_is_an_error(monkeypatch, tmp_path):
    ends = tmp_path / "ends"
    ends.write_text("#!/bin/sh\nprintf '0 0 0 9 0.1\\n0 0.5\\n0.25 0\\n0.5 0.5\\n'")
    ends.chmod(0o755)
    monkeypatch.setattr(packet, "_program", lambda: ends)
    with pytest.raises(RuntimeError, match="moves: ns-3 ended before 1 of 2 had arrived"):
        packet_simulate(plan_of([(0, 1, ()), (2, 3, ()), (1, 1, (0,))]), rack(4), 1e6)


@needs_ns3
def test_incast_needs_no_timeouts_unless_buffers_are_too_small():
    plan = plan_of([(src, 0, ()) for src in range(1, 16)])
    result = packet_simulate(plan, rack(16, 0.0), 1e6)
    busy = 15 * 1e6 * 8 / (RATE * tcp_efficiency(9000, "wire"))
    assert result.completion_s == pytest.approx(busy, rel=0.02)
    assert result.drops == result.timeouts == result.recoveries == 0
    small = packet_simulate(plan, rack(16, 0.0), 1e6, tcp=Tcp(queue_bytes=100_000))
    assert small.drops > 0 and small.completion_s > result.completion_s


@needs_ns3
def test_a_timeout_is_longer_than_what_a_slow_ports_queue_lets_packets_wait():
    """15 first windows of 90 kB fill a queue of 625 Mbit/s for 17 ms: nothing is lost. A sender's
    timer starts anew with each of its packets that leaves the queue, one in 1.7 ms; a timeout that
    is shorter repeats what waits."""
    plan = plan_of([(src, 0, ()) for src in range(1, 16)])
    topology = rack(16, 0.0)
    slow = np.where(topology.link_dst == 0, 625e6, topology.link_rate)
    topology = dataclasses.replace(topology, link_rate=slow)
    patient, hasty = (
        packet_simulate(plan, topology, 2e5, tcp=Tcp(min_rto_s=least)) for least in (0.2, 0.001)
    )
    assert (patient.drops, patient.timeouts, hasty.drops) == (0, 0, 0)
    assert hasty.timeouts > 0 and hasty.completion_s > patient.completion_s
    busy = 15 * 2e5 * 8 / (625e6 * tcp_efficiency(9000, "wire"))
    assert patient.completion_s == pytest.approx(busy, rel=0.02)


@needs_ns3
def test_what_ns3_prints_is_in_the_error(monkeypatch, tmp_path):
    plan = plan_of([(0, 1, ())])
    with pytest.raises(RuntimeError, match="moves: ns-3 took more than 0.01 s"):
        packet_simulate(plan, rack(2), 1e6, timeout_s=0.01)
    aborts = tmp_path / "aborts"
    aborts.write_text("#!/bin/sh\necho assertion failed >&2\nkill -ABRT $$")
    aborts.chmod(0o755)
    monkeypatch.setattr(packet, "_program", lambda: aborts)
    seen = []
    with pytest.raises(RuntimeError, match="(?s)moves: ns-3 was killed by .*assertion failed"):
        packet_simulate(plan, rack(2), 1e6, progress=seen.append)
    assert seen == ["assertion failed"]


@needs_ns3
def test_it_is_compiled_once_and_says_what_the_compiler_did(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packet._program.cache_clear()
    compiled = packet._program()
    assert compiled.is_relative_to(tmp_path)
    packet._program.cache_clear()
    monkeypatch.setattr(packet.subprocess, "run", None)  # so that nothing compiles
    assert packet._program() == compiled
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(packet, "COMPILE", ("--no-such-option",))
    packet._program.cache_clear()
    with pytest.raises(RuntimeError, match="(?s)did not compile it:\n.*no-such-option"):
        packet_simulate(plan_of([(0, 1, ())]), rack(2), 1.0)
    packet._program.cache_clear()


@needs_ns3
@pytest.mark.parametrize(
    "lines, said",
    [
        ("9000 10 0.2", "the settings are not whole"),
        ("9000 10 0.2 1 1 1 1 38 2 1 1 1\nhost 0\nwire 0 1", "begins with wire and does not go on"),
        ("9000 10 0.2 1 1 1 1 38 2 1 1 1\nhost 0\n", "does not end with a line that says so"),
    ],
)
def test_what_is_cut_off_is_refused(lines, said):
    done = subprocess.run([packet._program()], input=lines, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and not done.stdout


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(packet.importlib.util, "find_spec", lambda name: name)
    for compiler in ("/bin/false", "no-such-compiler -pipe"):
        packet._compiles.cache_clear()
        monkeypatch.setenv("CXX", compiler)
        assert available() == f"no C++ compiler: {compiler.split()[0]} (CXX) compiles nothing"
    packet._compiles.cache_clear()
    monkeypatch.setattr(packet.importlib.util, "find_spec", lambda name: None)
    assert available().startswith("no module ns3: `make ns3` installs it")
    with pytest.raises(RuntimeError, match="packet simulation: no module ns3"):
        packet_simulate(plan_of([(0, 1, ())]), rack(2), 1.0)


def test_what_it_cannot_do_is_refused(monkeypatch):
    monkeypatch.setattr(packet, "available", lambda: "")
    plan = plan_of([(0, 1, ())])
    with pytest.raises(ValueError, match="knows pauses only"):
        packet_simulate(plan, rack(2), 1.0, failed_links([0], 0.0, 1.0))
    with pytest.raises(ValueError, match="no node 99 to pause"):
        packet_simulate(plan, rack(2), 1.0, Faults(pauses=((99, 0.0, 1.0),)))
    with pytest.raises(ValueError, match="tcp: min_rto_s must be above 0"):
        Tcp(min_rto_s=0.0)
    with pytest.raises(ValueError, match="mtu must exceed 52"):
        Tcp(mtu=52)
