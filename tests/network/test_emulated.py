"""Links of the kernel: their rates, how they are shared, and that nothing of them is left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from slowlink.methods.exchange import Topology
from slowlink.testbed.network import emulated as module
from slowlink.testbed.network.emulated import Emulated, available
from slowlink.testbed.network.fluid import tcp_efficiency
from slowlink.testbed.network.topology import bcube, geo_sites, leaf_spine, star, tree, without

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SERVER, SWITCH = 2, 3  # of a star of two workers
DOUBLED = Topology("abs", [0, 1], [], [0, 2, 0, 2, 1, 2], [2, 0, 2, 0, 2, 1], [1] * 6, [0] * 6)

SINK = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
line, _ = listener.accept()
begin, end = map(float, input().split())
at, got, into = [], 0, bytearray(1 << 22)
while not at or at[-1][0] < end:
    got += line.recv_into(into)
    if (now := time.monotonic()) >= begin:
        at.append((now, got))
print(8 * (at[-1][1] - at[0][1]) / (at[-1][0] - at[0][0]))
"""
SOURCE = """
import socket, sys
line = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
input()
try:
    while True:
        line.send(bytes(1 << 16))
except ConnectionError:
    pass
"""
KNOCK = """
import socket, sys
listener = socket.create_server((sys.argv[1], 0))
print(listener.getsockname()[1], flush=True)
while line := listener.accept()[0]:
    while word := line.recv(4):
        line.send(word)
"""


@pytest.fixture(scope="module")
def emulated():
    if why := available():
        pytest.skip(why)
    return Emulated


def python(links, node, code, *arguments, **options):
    argv = [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) | options
    return subprocess.Popen(links.command(node, argv), **pipes)


def rates(links, pairs, seconds=0.8):
    """TCP payload rate of each of ``pairs``, all sending at once, bit/s."""
    with contextlib.ExitStack() as stack:
        sinks, sources = [], []
        for src, dst in pairs:
            sinks.append(stack.enter_context(python(links, dst, SINK, links.address(dst))))
            port = sinks[-1].stdout.readline()
            source = python(links, src, SOURCE, links.address(dst), port)
            sources.append(stack.enter_context(source))
        begin = time.monotonic() + 0.4
        for process in (*sinks, *sources):
            process.stdin.write(f"{begin} {begin + seconds}\n")
            process.stdin.flush()
        return np.array([float(sink.stdout.readline()) for sink in sinks])


def undisturbed(attempt, holds, tries=8):
    """The first attempt that holds, or the last: a busy processor makes links and readers late, for
    seconds at times."""
    for _ in range(tries):
        if holds(result := attempt()):
            break
    return result


@pytest.mark.parametrize("rate", [10e6, 155e6])
def test_rate(emulated, rate):
    with emulated(star(2, rate)) as links:
        for pair in [(0, SERVER), (SERVER, 1)]:
            (got,) = undisturbed(
                lambda pair=pair: links.measure([pair], seconds=0.5),
                lambda got: abs(got[0].rate / got[0].expected - 1) < 0.02,
            )
            assert (got.src, got.dst) == pair
            assert got.expected == pytest.approx(rate * tcp_efficiency())
            assert got.rate == pytest.approx(got.expected, rel=0.03)
            assert 0 < got.rtt_s < 0.05


def test_gigabit_is_not_exceeded(emulated):
    with emulated(star(2, 1e9)) as links:
        (got,) = links.measure([(0, SERVER)])
    assert got.expected / 10 < got.rate < 1.03 * got.expected


def test_both_ways_at_once(emulated):
    with emulated(star(2, 50e6)) as links:
        got = undisturbed(
            lambda: rates(links, [(0, SERVER), (SERVER, 0)]),
            lambda got: got.min() > 0.97 * 50e6 * tcp_efficiency(),
        )
    assert got == pytest.approx(50e6 * tcp_efficiency(), rel=0.05)


def test_one_queue_carries_the_rate(emulated):
    """Losses included: what TCP leaves unused is little."""
    whole = 50e6 * tcp_efficiency()
    with emulated(star(4, 50e6), fair=False) as links:
        shown = subprocess.run(
            links.command(0, ["tc", "qdisc"]), capture_output=True, text=True
        ).stdout
        route = subprocess.run(links.command(0, ["ip", "route"]), capture_output=True, text=True)
        got = undisturbed(
            lambda: rates(links, [(node, 4) for node in range(4)]),
            lambda got: 0.95 * whole < got.sum() < 1.05 * whole,
        )
    assert shown.count("bfifo") == 1 and "cwnd" not in route.stdout
    assert 0.85 * whole < got.sum() < 1.05 * whole


@pytest.mark.parametrize("into", [True, False], ids=["12 to 1", "1 to 12"])
def test_fair_shares(emulated, into):
    topology = geo_sites(lan=100e6, wan=40e6)
    server = int(topology.servers[0])
    pairs = [(int(w), server) if into else (server, int(w)) for w in topology.workers]
    whole = 40e6 * tcp_efficiency()

    def jain(got):
        return got.sum() ** 2 / len(got) / (got**2).sum()  # 1 if all are equal

    with emulated(topology) as links:
        got = undisturbed(
            lambda: rates(links, pairs),
            lambda got: jain(got) > 0.98 and abs(got.sum() / whole - 1) < 0.02,
        )
    assert jain(got) > 0.97
    assert got.sum() == pytest.approx(whole, rel=0.1)  # readers may be late


def test_shares_are_max_min(emulated):
    """Three share the server's card; the first worker has what is left of its own besides."""
    pairs, most = [(0, 4), (1, 4), (2, 4), (0, 3)], 60e6 * tcp_efficiency()
    expected = np.array([1, 1, 1, 2]) * most / 3
    with emulated(star(4, 60e6)) as links:
        got = undisturbed(
            lambda: rates(links, pairs), lambda got: np.allclose(got, expected, rtol=0.05)
        )
    assert got == pytest.approx(expected, rel=0.08)


def test_two_levels_of_switches(emulated):
    """Each of eight workers reaches the next, at the rate of the slowest link on the way."""
    topology = tree((2, 2, 2), 40e6, rates=(30e6, 20e6))
    with emulated(topology) as links:
        assert len({links.address(node) for node in range(8)}) == 8
        got = links.measure(seconds=0.15)
    assert [(m.src, m.dst) for m in got] == [(i, (i + 1) % 8) for i in range(8)]
    slowest = [40e6, 30e6, 40e6, 20e6, 40e6, 30e6, 40e6, 20e6]
    assert [m.expected for m in got] == pytest.approx([x * tcp_efficiency() for x in slowest])
    assert all(0.5 * m.expected < m.rate < 1.1 * m.expected for m in got)


def test_cut_and_mend(emulated):
    reach = "import socket, sys; line = socket.create_connection(sys.argv[1:], 0.3)"
    say = reach + "\nline.settimeout(8)\n" + "for word in sys.stdin:\n"
    say += "    line.send(word[:4].encode()); print(line.recv(4).decode(), flush=True)"
    with emulated(star(2, 100e6)) as links, contextlib.ExitStack() as stack:
        listener = stack.enter_context(python(links, SERVER, KNOCK, links.address(SERVER)))
        stack.callback(listener.kill)
        where = links.address(SERVER), listener.stdout.readline().strip()

        def reached(node):
            return python(links, node, reach, *where, stderr=subprocess.DEVNULL).wait() == 0

        talker = stack.enter_context(python(links, 0, say, *where))
        print("one1", file=talker.stdin, flush=True)
        assert talker.stdout.readline() == "one1\n"
        links.cut(0, SWITCH)
        print("two2", file=talker.stdin, flush=True)
        assert not reached(0)
        links.mend(SWITCH, 0)
        assert talker.stdout.readline() == "two2\n"  # TCP tried again
        links.cut(SWITCH, SERVER)
        assert not reached(1)
        links.mend(SWITCH, SERVER)
        links.cut(0, SWITCH)
        talker.stdin.close()
        with pytest.raises(ValueError, match="no cable between nodes 0 and 1"):
            links.cut(0, 1)


def test_cable_without_a_switch(emulated):
    pair = Topology(("a", "b"), [0, 1], [], [0, 1], [1, 0], [20e6, np.inf], [0, 0])
    with emulated(pair) as links:
        links.cut(0, 1)
        with pytest.raises(RuntimeError, match="measure: node 0 to node 1: .*unreachable"):
            links.measure([(0, 1)])
        links.mend(1, 0)
        there, back = links.measure(seconds=0.3)
    assert there.rate < 1.1 * 20e6 < back.rate
    assert back.expected == np.inf


def test_command_becomes_its_arguments(emulated, tmp_path):
    tell = "import os, sys; print(os.getpid(), os.getcwd(), os.environ['X'], *sys.argv[1:])"
    arguments = ["$HOME", "two words", "-x"]
    with emulated(star(2, 1e6)) as links:
        argv = links.command(1, [sys.executable, "-c", tell, *arguments])
        options = dict(cwd=tmp_path, env=os.environ | {"X": "here"}, stdout=subprocess.PIPE)
        with subprocess.Popen(argv, text=True, **options) as process:
            assert process.stdout.read().strip() == f"{process.pid} {tmp_path} here " + " ".join(
                arguments
            )
        names = subprocess.run(
            links.command(1, ["ip", "-o", "-4", "address"]), capture_output=True, text=True
        ).stdout
        assert links.address(1) in names and links.address(0) not in names
        assert subprocess.run(links.command(0, ["sh", "-c", "exit 7"])).returncode == 7
        with pytest.raises(ValueError, match="node 3 is no worker and no server"):
            links.command(SWITCH, ["true"])
    with pytest.raises(RuntimeError, match="use them in a with"):
        links.command(1, ["true"])


def test_sixty_four_workers(emulated):
    with emulated(star(64, 100e6)) as links:
        assert links.measure([(63, 64)], seconds=0.1)[0].rate > 0


@pytest.mark.parametrize(
    "topology, reason",
    [
        (leaf_spine(2, 2, 1e9, spines=2), "loops.*bridges need a tree"),
        (bcube(2, 2, 1e9), "loops"),
        (DOUBLED, "parallel cables, as a to s"),
        (star(2, 1e9, latency=2e-3), r"latencies above 0.001 s; link 0 has 0.002 s"),
        (without(star(2, 1e9), [1]), "both ways.*switch to worker0"),
        (without(star(2, 1e9), [0, 1]), "no path"),
        (Topology("abc", [0, 1, 2], [], [0, 1, 1, 2], [1, 0, 2, 1], [1] * 4, [0] * 4), "b with 2"),
        (star(300, 1e9), "254 workers and servers, not 301"),
    ],
    ids=["spines", "bcube", "parallel", "latency", "one way", "apart", "two cards", "many"],
)
def test_refused(topology, reason):
    with pytest.raises(ValueError, match=reason):
        Emulated(topology)


def test_measure_refuses_itself(emulated):
    with emulated(star(2, 1e6)) as links, pytest.raises(ValueError, match="node 1 and itself"):
        links.measure([(1, 1)])


def test_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(RuntimeError, match="no command ip, tc, .*install iproute2"),
        Emulated(star(1, 1e6)),
    ):
        pass


def test_links_that_fail_are_told_from_none_at_all(emulated, monkeypatch):
    monkeypatch.setattr(module, "CONGESTION_CONTROL", "no_such_one")
    with (
        pytest.raises(RuntimeError, match=r"^links of star failed: .*; the kernel needs veth"),
        emulated(star(1, 1e6)),
    ):
        pass
    assert available.__wrapped__().startswith("cannot emulate links: links of ")


def test_says_what_is_not_allowed(tmp_path, monkeypatch):
    refuses = tmp_path / "unshare"
    refuses.write_text("#!/bin/sh\necho Operation not permitted >&2\nexit 1\n")
    refuses.chmod(0o755)
    for tool in ("ip", "tc", "nsenter", "mount"):
        (tmp_path / tool).symlink_to(refuses)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    reason = r"no network namespaces \(Operation not permitted\); run it as root .* user namespaces"
    with pytest.raises(RuntimeError, match=reason), Emulated(star(1, 1e6)):
        pass


def forked(work):
    """``work()`` in a child process, faster than a new interpreter: its pid."""
    if not (child := os.fork()):
        try:
            work()
        finally:
            os._exit(1)
    return child


def busy(links, mark):
    """Processes of the links that go on sending, with children; ``mark`` is in what they run."""
    sink = "import socket; s = socket.create_server(('', 7000)).accept()[0]\nwhile s.recv(9999): 0"
    source = "import socket, time; time.sleep(0.3); s = socket.create_connection((%r, 7000))\n"
    source += "while True: s.send(bytes(9999))"
    python(links, SERVER, sink, mark)
    python(links, 0, source % links.address(SERVER), mark)
    family = "trap '' TERM INT HUP; (while :; do sleep 1; done) & sleep 1000"
    subprocess.Popen(links.command(1, ["sh", "-c", family, mark]))
    time.sleep(0.5)


def visible():
    """Namespaces, cards and bridges of the host that are named like ours."""
    shown = [["ip", "netns"], ["ip", "-o", "link"], ["tc", "qdisc"]]
    words = [subprocess.run(s, capture_output=True, text=True).stdout for s in shown]
    return set(re.findall(r"\b[nlb]\d+\b", " ".join(words)))


def marked(mark):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("end", ["succeed", "fail", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(emulated, end):
    mark, before = f"links-of-{os.getpid()}-{end}", visible()
    reader, writer = os.pipe()

    def user():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with emulated(star(2, 50e6)) as links:
            busy(links, mark)
            os.write(writer, str(links._holder.pid).encode())
            if end == "fail":
                raise RuntimeError("on purpose")
            if end != "succeed":
                time.sleep(1000)

    child = forked(user)
    os.close(writer)
    with open(reader) as pipe:
        holder = os.read(pipe.fileno(), 99).decode()
    if not isinstance(end, str):
        assert len(marked(mark)) >= 4
        assert visible() == before  # not even meanwhile
        os.kill(child, end)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 10
    while (marked(mark) or Path(f"/proc/{holder}").exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not marked(mark) and visible() == before
    assert not Path(f"/proc/{holder}").exists()


def test_without_privilege(emulated):
    """The same for another user: the links are then in a user namespace."""
    if os.geteuid():
        pytest.skip("the other tests already run without privilege")
    nobody, links = 65534, Emulated(star(2, 1e6))
    reader, writer = os.pipe()

    def user():
        os.setgroups([])
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)
        try:
            with links:
                for node in (0, SERVER):
                    show = links.command(node, ["ip", "-o", "-4", "address"])
                    os.write(writer, subprocess.run(show, capture_output=True, check=True).stdout)
                links.cut(0, SWITCH)
                links.mend(0, SWITCH)
            os.write(writer, b"done")
        except Exception as error:
            os.write(writer, str(error).encode())

    child = forked(user)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if "no network namespaces" in said:
        pytest.skip(said)
    assert links.address(0) in said and links.address(SERVER) in said and said.endswith("done")
