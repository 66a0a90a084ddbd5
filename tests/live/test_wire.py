"""The wire: messages arrive whole, once and in order, whatever happens to connections; members
know each other's keys, and strangers get nowhere."""

import contextlib
import itertools
import json
import resource
import socket
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import zmq

from slowlink.testbed.live import identity
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import MAX_HEAD, VERSION, WAITING, Received, ZmqWire
from tests.live.mutants import mutants
from tests.live.said import data, numbers, receive, strike_off
from tests.live.waiting import until

ANY = "tcp://127.0.0.1:0"
NAMES = ("a", "b", "site1/c")


@pytest.fixture
def wires(tmp_path):
    """Makes wires whose keys are known to each other; closed at the end."""
    with making(tmp_path) as make:
        yield make


@contextlib.contextmanager
def making(folder):
    identity.make(folder, NAMES)
    with contextlib.ExitStack() as stack:

        def make(name, bind=ANY, **options):
            usual = dict(keys=Keys(folder, name), timeout_s=1.0, heartbeat_s=0.1)
            wire = ZmqWire(name, bind, NAMES, **usual | options)
            stack.callback(wire.close, 0.0)
            return wire

        yield make


def stranger(context, wire, server_key, secret, public):
    """A socket that speaks the protocol to ``wire``."""
    its = context.socket(zmq.DEALER)
    its.setsockopt(zmq.LINGER, 0)
    if server_key:
        its.curve_publickey, its.curve_secretkey = public, secret
        its.curve_serverkey = server_key
    its.connect(wire.address)
    return its


def piece(**changes):
    fields = dict(v=VERSION, sender="a", stream=1, dial=1, number=0, at=0, size=0, kind="hello")
    return [json.dumps(fields | changes).encode(), b""]


def test_members_with_keys_hear_each_other(wires):
    a, c = wires("a", slice_bytes=1024), wires("site1/c")
    a.connect({"site1/c": c.address})
    a.send("site1/c", dict(kind="data", number_of_mine=3), b"x" * 10_000)
    assert c.receive(10) == Received("a", dict(kind="data", number_of_mine=3), b"x" * 10_000)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_stranger_is_refused_and_named_and_members_go_on(wires, caplog, encrypted):
    b = wires("b")
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context:
        its = stranger(context, b, b.keys.curve()[0] if encrypted else b"", secret, public)
        its.send_multipart(piece())
        assert b.receive(0.5) is None
        if encrypted:
            said = f"refused a stranger from 127.0.0.1: no member has the key {public.decode()}"
            assert said in caplog.text
        its.close()
    a = wires("a")
    a.connect({"b": b.address})
    a.send("b", dict(kind="hello"))
    assert b.receive(10).sender == "a"


def test_a_member_cannot_speak_as_another(wires, caplog):
    b, own = wires("b"), wires("site1/c").keys
    with zmq.Context() as context:
        public, secret = own.curve()
        its = stranger(context, b, b.keys.curve()[0], secret, public)
        its.send_multipart(piece(sender="a"))
        its.send_multipart(piece(sender="site1/c"))
        assert b.receive(10) == Received("site1/c", {"kind": "hello"})
        its.close()
    assert "site1/c has spoken as 'a'" in caplog.text


def test_a_member_that_is_somebody_else_is_not_spoken_to(wires):
    """Who listens at an address proves that it holds the key of the one who is meant."""
    a, b = wires("a"), wires("b")
    a.connect({"site1/c": b.address})
    a.send("site1/c", dict(kind="hello"))
    assert b.receive(0.5) is None


def test_who_is_struck_off_the_list_is_neither_heard_nor_spoken_to(wires, tmp_path, caplog):
    a, b = wires("a"), wires("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    a.send("b", dict(kind="hello"))
    assert b.receive(10).sender == "a"
    strike_off(tmp_path, "a")
    a.send("b", dict(kind="hello"))
    b.send("a", dict(kind="hello"))
    assert b.receive(1.0) is None
    assert "a is no longer allowed to take part" in caplog.text
    assert "a: no longer allowed to take part" in caplog.text


@pytest.mark.parametrize("where", ["head", "body"])
def test_who_sends_more_than_may_wait_is_barred(wires, where):
    a, b = wires("a"), wires("b", queue_bytes=100_000)
    a.connect({"b": b.address})
    head, body = ({}, bytes(10_000)) if where == "body" else ({"more": "x" * 10_000}, b"")
    for _ in range(4 * WAITING):
        a.send("b", dict(kind="data") | head, body)
    time.sleep(0.5)
    kept = 0
    with pytest.raises(ValueError, match="message of a refused: .* at most 100000"):
        while b.receive(5.0):
            kept += 1
    assert 0 < kept * 10_000 < 100_000 + 2 * WAITING * 1024
    a.send("b", dict(kind="data"))
    assert b.receive(0.5) is None


def test_fields_of_the_wire_cannot_be_given(wires):
    with pytest.raises(ValueError, match="data to b: the wire itself fills in size"):
        wires("a").send("b", dict(kind="data", size=3))


# Whole, once and in order -------------------------------------------------------------------------


@pytest.fixture
def plain(wires):
    """Makes wires without keys."""

    def make(name, bind=ANY, **options):
        return wires(name, bind, keys=None, **options)

    return make


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 400_000])
def test_a_message_arrives_as_it_was_sent(plain, size):
    a, b = plain("a", slice_bytes=1024), plain("b")
    a.connect({"b": b.address})
    body = bytes(n % 251 for n in range(size))
    a.send("b", data(3), body)
    assert receive(b, 1) == [Received("a", data(3), body)]


def test_messages_arrive_once_and_in_order(plain):
    a, b = plain("a", slice_bytes=4096), plain("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    for number in range(50):
        a.send("b", data(number), bytes(80_000 * (number % 3 > 0)))
        b.send("a", data(number))
    assert numbers(receive(b, 50)) == numbers(receive(a, 50)) == list(range(50))


def test_the_same_body_goes_to_several_each_with_a_head_of_its_own(plain):
    a, b, c = (plain(name, slice_bytes=4096) for name in NAMES)
    a.connect({"b": b.address, "site1/c": c.address})
    body = bytes(n % 251 for n in range(100_000))
    a.send("b", data(0))
    a.send_all({"b": data(1), "site1/c": data(2)}, body)
    a.send_all({}, body)
    a.send_all({"b": data(3)}, b"")
    assert receive(b, 3) == [
        Received("a", data(0)),
        Received("a", data(1), body),
        Received("a", data(3)),
    ]
    assert receive(c, 1) == [Received("a", data(2), body)]


class Cable:
    """Passes bytes on between two ends, until it is torn."""

    def __init__(self, target):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.target, self.most, self.torn = target, None, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                here = self.listener.accept()[0]
                host, port = self.target.removeprefix("tcp://").split(":")
                there = socket.create_connection((host, int(port)))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, source, sink):
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(10_000):
                carried += len(data)
                if self.most is not None and carried > self.most:
                    self.torn += 1
                    break
                sink.sendall(data)
        for line in (source, sink):
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def test_nothing_is_lost_when_connections_break_in_the_middle(plain):
    a, b = plain("a", slice_bytes=4096), plain("b")
    cable = Cable(b.address)
    cable.most = 400_000  # then each connection breaks; a message has 200 000 bytes
    a.connect({"b": cable.address})
    for number in range(6):
        a.send("b", data(number), bytes(200_000))
    assert numbers(receive(b, 6)) == list(range(6))
    assert cable.torn >= 3
    assert b.receive(0.3) is None
    cable.listener.close()


def test_messages_wait_for_a_member_that_comes_later(plain):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    a = plain("a")
    a.connect({"b": address})
    a.send("b", data(0))
    assert a.receive(0.3) is None
    assert numbers(receive(plain("b", address), 1)) == [0]


def test_a_restarted_member_gets_what_has_no_receipt(plain):
    a, b = plain("a"), plain("b")
    a.connect({"b": b.address})
    a.send("b", data(0))
    assert numbers(receive(b, 1)) == [0]
    until(lambda: "b" in a.heard, 10)  # its receipt is there
    b.close(0.0)
    again = plain("b", b.address)
    a.send("b", data(1))
    assert numbers(receive(again, 1)) == [1]


def test_connecting_anew_drops_what_was_under_way(plain):
    a, b = plain("a"), plain("b")
    a.connect({"b": "tcp://127.0.0.1:1"})  # nobody is there
    a.send("b", data(0))
    a.connect({"b": b.address})
    a.send("b", data(1))
    assert numbers(receive(b, 1)) == [1]


def test_heartbeats_go_on_while_the_member_is_busy(plain):
    a, b = plain("a", above="b"), plain("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    beats, end = 0, time.monotonic() + 20
    while beats < 3:
        assert time.monotonic() < end, "no heartbeats"
        sum(range(10_000))
        while (received := b.receive(0)) is not None:
            assert received == Received("a", dict(kind="heartbeat", address=a.address))
            beats += 1
    assert "a" in b.heard and "b" not in a.heard


def test_heartbeats_pause_while_the_members_thread_does_not_come_back(plain):
    """It may hang though the wire's thread goes on."""
    a, b = plain("a", above="b", stall_s=0.5), plain("b")
    a.connect({"b": b.address})
    end = time.monotonic() + 20
    while b.receive(1.0):  # a heartbeat comes ten times as often
        assert time.monotonic() < end, "heartbeats go on"
    a.receive(0)
    assert b.receive(20).kind == "heartbeat"


def test_who_watches_sees_at_once_that_a_process_is_gone(plain):
    a, b = plain("a", watches=True, timeout_s=60), plain("b")
    a.connect({"b": b.address})
    a.send("b", data(0))
    receive(b, 1)
    b.close(0.0)
    assert receive(a, 1) == [Received("b", dict(kind="left", reason="its process is gone"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts, why",
    [
        ([b"{"], "1 parts"),
        ([b"{", b""], "not JSON"),
        ([b"[" * 5000, b""], "not JSON"),
        ([b"[]", b""], "version"),
        (piece(v=2), "version"),
        (piece(sender=3), "no sender"),
        (piece(sender="d"), "'d', who is no node"),
        (piece(stream="x"), "stream must be"),
        (piece(number=-1), "number must be"),
        (piece(stream=2**62), "begins in the future"),
        ([b" " * (MAX_HEAD + 1), b""], None),  # ZeroMQ itself closes the connection
    ],
)
def test_what_is_malformed_is_dropped_and_the_next_message_read(plain, caplog, parts, why):
    b = plain("b", limit_bytes=4096, slice_bytes=1024)
    with zmq.Context() as context:
        for message in (parts, piece(number=1, stream=2, mine=7)):
            with context.socket(zmq.DEALER) as its:
                its.connect(b.address)
                its.send_multipart(message)
                time.sleep(0.1)
                its.setsockopt(zmq.LINGER, 1000)
        assert numbers(receive(b, 1)) == [7]
    assert why is None or why in caplog.text


def test_slices_that_do_not_follow_on_each_other_are_dropped(plain):
    b = plain("b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as its:
        its.connect(b.address)
        for message in (
            piece(at=5, size=9),  # no beginning
            piece(number=0, mine=1),
            piece(number=2, mine=2),  # 1 is missing
            piece(number=1, mine=3),
            piece(number=0, mine=4),  # had that
            piece(stream=0, number=2, mine=5),  # of an earlier channel
            piece(stream=2, number=9, mine=6),
            piece(number=2, mine=7),
        ):
            its.send_multipart(message)
        assert numbers(receive(b, 3)) == [1, 3, 6]
        receipts = [its.recv() for _ in range(4)]
    assert receipts == [b"1 0", b"1 1", b"1 1", b"2 9"]


def test_who_is_not_heard_because_its_clock_was_set_back_is_named_once(plain, caplog):
    b = plain("b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as its:
        its.connect(b.address)
        for began, mine in ((130, 1), (10, 2), (10, 3), (131, 4)):
            its.send_multipart(piece(stream=began * 10**9, mine=mine))
        assert numbers(receive(b, 2)) == [1, 4]
    said = [one.getMessage() for one in caplog.records if "not heard" in one.getMessage()]
    assert said == [
        "a is not heard: it began 120 s before its last process; was its clock set back?"
    ]


def test_slices_of_an_earlier_connection_do_not_mix_with_those_that_come_again(plain):
    b, body = plain("b"), bytes(range(250))
    with zmq.Context() as context, context.socket(zmq.DEALER) as its:
        its.connect(b.address)
        for dial, at in ((1, 0), (2, 0), (2, 100), (1, 0), (1, 100), (2, 200)):
            head, _ = piece(dial=dial, at=at, size=len(body))
            its.send_multipart([head, body[at : at + 100]])
        assert receive(b, 1)[0].body == body


def test_receipts_that_are_none_are_dropped(plain, caplog):
    a = plain("a")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as its:
        port = its.bind_to_random_port("tcp://127.0.0.1")
        a.connect({"b": f"tcp://127.0.0.1:{port}"})
        a.send("b", data(0))
        identity, text, _ = its.recv_multipart()
        for receipt in (b"x", b"1", b"1 2 3", b"[]", b"%d 0" % json.loads(text)["stream"]):
            its.send_multipart([identity, receipt])
        a.close(5.0)
    assert caplog.text.count("dropped a receipt of b") == 4


@pytest.mark.parametrize(
    "size, body, why", [(2**40, b"x", "at most 4096 fit"), (2, b"xyz", "payload of 2 bytes")]
)
def test_a_body_of_another_size_is_refused_with_its_senders_name(plain, size, body, why):
    b = plain("b", limit_bytes=4096)
    with zmq.Context() as context, context.socket(zmq.DEALER) as its:
        its.connect(b.address)
        its.send_multipart([piece(size=size)[0], body])
        with pytest.raises(ValueError, match=f"message of a refused: .*{why}"):
            b.receive(5.0)
        assert its.recv() == b"1 0"  # the connection goes on
        its.send_multipart(piece(number=1, mine=7))
        assert numbers(receive(b, 1)) == [7]


def test_what_cannot_be(plain):
    a = plain("a", limit_bytes=4096)
    with pytest.raises(OSError, match="b: cannot listen at " + a.address):
        plain("b", a.address)
    with pytest.raises(ValueError, match="hello to b: body of over"):
        a.send("b", dict(kind="hello", text="x" * MAX_HEAD))
    with pytest.raises(ValueError, match="data to b: .* bytes, at most 4096 fit"):
        a.send("b", data(0), bytes(2 * MAX_HEAD))
    b = plain("b")
    a.connect({"b": b.address})
    with pytest.raises(ValueError, match="hello to site1/c: body of over"):
        a.send_all({"b": data(0), "site1/c": dict(kind="hello", text="x" * MAX_HEAD)}, b"")
    a.send("b", data(1))
    assert numbers(receive(b, 1)) == [1]


def test_closing_waits_until_all_has_arrived_but_not_for_ever(plain):
    a, b = plain("a"), plain("b")
    a.connect({"b": b.address})
    a.send("b", data(0), bytes(4_000_000))
    a.close(5.0)
    assert len(receive(b, 1)[0].body) == 4_000_000
    lonely = plain("a")
    lonely.connect({"b": "tcp://127.0.0.1:1"})
    lonely.send("b", data(0))
    lonely.close(0.2)
    assert not lonely._thread.is_alive()


def test_mutated_connections_bring_nothing(wires):
    """Without keys some do, the one that is not changed at least."""
    assert fuzz(wires, 2_000, 0) == 0
    assert fuzz(partial(wires, keys=None), 100, 0) > 0


def fuzz(make, count, seed):
    """How many messages came of so many connections whose bytes are those of a member's, changed,
    and of some where they are not, to who has not heard that member before. Another is heard after.
    """
    answers, recorded = overheard(make("a"), make("site1/c"))
    ends = list(itertools.accumulate(map(len, recorded)))
    server, accepted = make("site1/c"), 0
    whole = b"".join(recorded)
    for several in batched(mutants(whole, count, seed)):
        several.append(whole)
        connections = [connected(server) for _ in several]
        parts, heard = itertools.pairwise((0, *ends[:-1], None)), 0
        for (begin, end), due in zip(parts, answers, strict=True):
            # What waits for an answer must not come before it; the last connection has all of them.
            with contextlib.suppress(OSError):
                while heard < due and (answer := connections[-1].recv(65536)):
                    heard += len(answer)
            for its, mutant in zip(connections, several, strict=True):
                with contextlib.suppress(OSError):  # it hangs up at the first wrong byte
                    its.sendall(mutant[begin:end])
        for its in connections:
            ended(its)
        while server.receive(0):
            accepted += 1
    later = make("b")
    later.connect({"site1/c": server.address})
    later.send("site1/c", dict(kind="data"), b"later")
    assert server.receive(10) == Received("b", dict(kind="data"), b"later")
    return accepted


def batched(every, size=256):
    every = iter(every)
    return iter(lambda: list(itertools.islice(every, size)), [])


def connected(wire):
    host, port = wire.address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), 10)


def overheard(member, server):
    """What a member sends over its connection until its first message is there, in parts; and how
    many bytes of answers it had before each."""
    said, before, answers = [], [], []
    with socket.create_server(("127.0.0.1", 0)) as between:
        member.connect({"site1/c": f"tcp://127.0.0.1:{between.getsockname()[1]}"})
        member.send("site1/c", dict(kind="data"), bytes(range(200)))
        near, _ = between.accept()
    far = connected(server)

    def carry(source, target, kept):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if kept is said:
                    before.append(sum(map(len, answers)))
                kept.append(data)
                target.sendall(data)

    for ends in ((near, far, said), (far, near, answers)):
        threading.Thread(target=carry, args=ends, daemon=True).start()
    assert server.receive(10).body == bytes(range(200))
    member.close(0.0)
    for end in (near, far):
        end.close()
    return before, said


def ended(its):
    """Read a connection until the other side has hung up."""
    its.settimeout(10)
    with contextlib.suppress(OSError), its:
        its.shutdown(socket.SHUT_WR)
        while its.recv(65536):
            pass


if __name__ == "__main__":  # a long run by hand: python -m tests.live.test_wire COUNT
    total, each = int(sys.argv[1]), 20_000
    found, peaks = 0, []
    for round_ in range(total // each):
        with tempfile.TemporaryDirectory() as name, making(Path(name) / "keys") as made:
            found += fuzz(made, each, round_)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(json.dumps(dict(mutants=each * len(peaks), accepted=found, kib=peaks[:: len(peaks) - 1])))
