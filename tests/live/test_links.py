"""Rate and latency between hosts: on shaped links, and what a listener makes of strangers."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zmq

from slowlink.methods.exchange import Topology
from slowlink.testbed.live import links as module
from slowlink.testbed.live.links import Listener, Path, charged, measure
from slowlink.testbed.network.cluster import Cluster, Quartiles
from slowlink.testbed.network.fluid import tcp_efficiency

pytestmark = [pytest.mark.alone, pytest.mark.slow]

LISTEN = [sys.executable, "-m", "slowlink", "links", "--listen"]
MEASURE = """
import sys
from slowlink.testbed.live.links import measure
for _ in range(int(sys.argv[3])):
    path = measure(sys.argv[1], 5000, repeats=3, seconds=float(sys.argv[2]))
    print(*path.up.values, *path.down.values, *path.rtt.values)
"""


@contextlib.contextmanager
def listening():
    listener = Listener(0, "127.0.0.1")
    thread = threading.Thread(target=listener.serve, kwargs=dict(once=True), daemon=True)
    thread.start()
    yield listener.port
    thread.join(timeout=10)
    assert not thread.is_alive()
    listener.close()


def pair(up, down):
    """Two hosts and a switch; the first's card has these rates, the other's is fast."""
    rates = [up, down, 10e9, 10e9]
    return Topology(("a", "b", "switch"), [0, 1], [], [0, 2, 1, 2], [2, 0, 2, 1], rates, [0] * 4)


# A message begins in the debt of the one before, which left in pieces of up to 64 KiB: 26 ms at 20
# Mbit/s, of which little is left in a message that takes longer. A host that gives its processor to
# others slows a gigabit link down, and nothing passes the shaper faster than it lets: of that link
# the fastest of three measurements counts.
@pytest.mark.parametrize(
    "up, down, seconds, times",
    [(155e6, 155e6, 0.3, 1), (20e6, 100e6, 1.0, 1), (1e9, 300e6, 0.3, 3)],
)
def test_what_was_shaped_is_measured(shaped, up, down, seconds, times):
    with shaped(pair(up, down)) as links:
        command = links.command(1, [*LISTEN, "5000"])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
            assert "listening on port 5000" in listener.stdout.readline()
            asked = [sys.executable, "-c", MEASURE, links.address(1), str(seconds), str(times)]
            done = subprocess.run(links.command(0, asked), capture_output=True, text=True)
            listener.terminate()
            assert done.returncode == 0, done.stderr
    measured = np.array([line.split() for line in done.stdout.splitlines()], float)
    quartiles = measured.reshape(times, 3, 3)  # measurement; up, down, round trip; low to high
    assert np.all(np.diff(quartiles) >= 0)
    # The kernel's rate counts headers, what is measured is payload; 4 % of either side are for the
    # shaper's bursts.
    up_got, down_got, _ = quartiles[:, :, 1].max(axis=0)
    assert up_got == pytest.approx(up * tcp_efficiency(), rel=0.04)
    assert down_got == pytest.approx(down * tcp_efficiency(), rel=0.04)
    assert np.all((quartiles[:, 2, 1] > 0) & (quartiles[:, 2, 1] < 0.05))


def test_who_listens_once_ends_after_the_first():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*LISTEN, str(port), "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert f"listening on port {port}" in listener.stdout.readline()
        assert measure("127.0.0.1", port, repeats=1, seconds=0.01).rtt.median > 0
        assert listener.wait(timeout=30) == 0


def test_messages_of_several_sizes_are_timed_each_way():
    with listening() as port:
        path = measure("127.0.0.1", port, repeats=3, seconds=0.02)
    for way in ("up", "down"):
        sizes = [size for size in path.sizes if size.way == way]
        assert len(sizes) == len(module.SIZES)
        assert sizes[0].nbytes < sizes[1].nbytes < sizes[2].nbytes
        assert all(size.rate > 0 for size in sizes)
    assert path.up.median > 1e8 and path.down.median > 1e8  # loopback


def test_who_comes_second_is_told_to_come_back():
    with listening() as port:
        first = module._Speaker("127.0.0.1", port)
        first.ask(module.GREETING, b"first")
        with pytest.raises(ConnectionError, match="measuring with another host; try again"):
            measure("127.0.0.1", port)
        first._send(b"bye", b"")
        first.socket.setsockopt(zmq.LINGER, 1000)
        first.close()


def test_nobody_there_is_said_with_the_remedy(monkeypatch):
    monkeypatch.setattr(module, "ANSWER_S", 0.2)
    with pytest.raises(ConnectionError, match=r"no answer from 127.0.0.1:9; run slowlink links"):
        measure("127.0.0.1", 9)


def test_strangers_do_no_harm():
    with listening() as port:
        context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"tcp://127.0.0.1:{port}")
        for parts in ([b"x"], [b"get", b"1" * 40], [b"put"], [b"", b"", b""], [b"data", b"y"]):
            stranger.send_multipart(parts)
        stranger.send_multipart([module.GREETING, b"stranger"])
        for parts in ([b"put"], [b"get", b"-1"], [b"get", b"9" * 30], [b"data"], [b"\0" * 99]):
            stranger.send_multipart(parts)
        time.sleep(0.3)
        context.destroy(linger=0)
        time.sleep(module.BUSY_S)
        path = measure("127.0.0.1", port, repeats=1, seconds=0.01)
    assert path.rtt.median > 0


# Into a cluster file ------------------------------------------------------------------------------


def flat(value):
    return Quartiles(low=0.9 * value, median=value, high=1.1 * value)


def path(up, down, rtt):
    return Path(flat(up), flat(down), flat(rtt), ())


def test_a_path_is_charged_to_its_far_end():
    made = charged(None, "here", {"b": path(50e6, 20e6, 0.02), "c": path(80e6, 90e6, 0.1)}, 7)
    sites = {site.name: site for site in made.sites}
    assert made.efficiency == 1 and made.measured.repeats == 7
    # To b: its downlink; from it: its uplink.
    assert (sites["b"].wan.down.median, sites["b"].wan.up.median) == (50e6, 20e6)
    assert (sites["here"].wan.up.median, sites["here"].wan.down.median) == (80e6, 90e6)
    for name, rtt in (("b", 0.02), ("c", 0.1)):
        one_way = sites["here"].wan.latency.median + sites[name].wan.latency.median
        assert one_way == pytest.approx(rtt / 2)
    network = made.topology
    assert len(network.workers) == 3 and network.layers == ("site",)


def test_a_file_keeps_what_was_not_measured():
    known = Cluster(
        title="ours",
        efficiency=0.5,
        sites=[
            {"name": "here", "workers": 4, "card": 1e10, "wan": 1e9},
            {"name": "b", "workers": 2, "card": 1e9, "wan": 1e9, "speeds": 0.5},
            {"name": "d", "workers": 1, "card": 1e9, "wan": 3e8},
        ],
    )
    made = charged(known, "here", {"b": path(50e6, 20e6, 0.02)}, 3)
    assert made.title == "ours" and [site.name for site in made.sites] == ["here", "b", "d"]
    assert [site.racks for site in made.sites] == [site.racks for site in known.sites]
    assert made.sites[2] == known.sites[2]
    # Payload is what the file's share of its rates is.
    assert made.efficiency * made.sites[1].wan.down.median == pytest.approx(50e6)


def test_hosts_around_one_switch_are_workers():
    made = charged(None, "a", {"b": path(1e9, 9e8, 1e-4)}, 3, flat=True)
    assert made.layers == () and made.workers == 2
    with pytest.raises(ValueError, match="--flat makes a new cluster file"):
        charged(made, "a", {"b": path(1e9, 9e8, 1e-4)}, 3, flat=True)
