"""Messages over real sockets: whole, once, in order, whatever happens to connections."""

import contextlib
import json
import socket
import threading
import time

import pytest
import torch
import zmq

from slowlink.methods import compression
from slowlink.testbed.live.hips.messages import Message
from slowlink.testbed.live.hips.zmq_transport import ZmqTransport
from slowlink.testbed.live.wire import MAX_HEAD, VERSION

ANY = "tcp://127.0.0.1:0"
NAMES = ("a", "b")
FAST = dict(heartbeat_s=0.1, timeout_s=1.0)


@pytest.fixture
def transports():
    """Makes transports, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(name, bind=ANY, **options):
            transport = ZmqTransport(name, bind, NAMES, **(FAST | options))
            stack.callback(transport.close, 0.0)
            return transport

        yield make


def payload(values):
    return compression.load("identity").compress(torch.arange(float(values)), 0)


def receive(transport, count, timeout_s=10.0):
    """The next ``count`` messages but heartbeats."""
    found, end = [], time.monotonic() + timeout_s
    while len(found) < count:
        message = transport.receive(max(0.0, end - time.monotonic()))
        assert message is not None, f"only {len(found)} of {count} messages came"
        if message.kind != "heartbeat":
            found.append(message)
    return found


@pytest.mark.parametrize("values", [0, 1, 255, 256, 257, 100_000])
def test_a_message_arrives_as_it_was_sent(transports, values):
    a, b = transports("a", slice_bytes=1024), transports("b")
    a.connect({"b": b.address})
    sent = Message("push", "a", 3, 4, 5, 1, payload(values), {"weight": 0.1})
    a.send("b", sent)
    assert receive(b, 1) == [sent]


def test_messages_arrive_once_and_in_order(transports):
    a, b = transports("a", slice_bytes=4096), transports("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    big = payload(20_000)
    for number in range(50):
        a.send("b", Message("push", round=number, payload=big if number % 3 else None))
        b.send("a", Message("pull", round=number))
    assert [message.round for message in receive(b, 50)] == list(range(50))
    assert [message.round for message in receive(a, 50)] == list(range(50))


class Wire:
    """Passes bytes on between two ends, until it is torn."""

    def __init__(self, target):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.target, self.lines, self.most, self.torn = target, [], None, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                here = self.listener.accept()[0]
                host, port = self.target.removeprefix("tcp://").split(":")
                there = socket.create_connection((host, int(port)))
                self.lines += [here, there]
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


def test_nothing_is_lost_when_connections_break_in_the_middle(transports):
    a, b = transports("a", slice_bytes=4096), transports("b")
    wire = Wire(b.address)
    wire.most = 400_000  # then each connection breaks; a message has 200 000 bytes
    a.connect({"b": wire.address})
    for number in range(6):
        a.send("b", Message("push", round=number, payload=payload(50_000)))
    assert [message.round for message in receive(b, 6)] == list(range(6))
    assert wire.torn >= 3
    assert b.receive(0.3) is None or b.receive(0.3).kind == "heartbeat"
    wire.listener.close()


def test_messages_wait_for_a_node_that_comes_later(transports):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    a = transports("a")
    a.connect({"b": address})
    a.send("b", Message("register"))
    time.sleep(0.3)
    b = transports("b", address)
    assert [message.kind for message in receive(b, 1)] == ["register"]


def test_a_restarted_node_gets_what_has_no_receipt_and_goes_on(transports):
    a, b = transports("a"), transports("b")
    a.connect({"b": b.address})
    a.send("b", Message("push", round=0))
    assert receive(b, 1)[0].round == 0
    time.sleep(0.1)
    b.close(0.0)
    again = transports("b", b.address)
    a.send("b", Message("push", round=1))
    assert [message.round for message in receive(again, 1)] == [1]


def test_connecting_anew_drops_what_was_under_way(transports):
    a, b = transports("a"), transports("b")
    a.connect({"b": "tcp://127.0.0.1:1"})  # nobody is there
    a.send("b", Message("push", round=0))
    a.connect({"b": b.address})
    a.send("b", Message("push", round=1))
    assert [message.round for message in receive(b, 1)] == [1]


def test_heartbeats_go_on_while_the_node_is_busy(transports):
    a, b = transports("a", above="b"), transports("b")
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        sum(range(1000))
    beats = 0
    while (message := b.receive(0)) is not None:
        assert message == Message("heartbeat", "a", body={"address": a.address})
        beats += 1
    assert beats >= 3
    assert time.monotonic() - b.heard["a"] < 0.5
    assert "b" not in a.heard


def test_heartbeats_pause_while_the_nodes_thread_does_not_come_back(transports):
    """It may hang though the transport's thread goes on."""
    a, b = transports("a", above="b", stall_s=0.5), transports("b")
    a.connect({"b": b.address})
    end = time.monotonic() + 20
    while b.receive(1.0):  # a heartbeat comes ten times as often
        assert time.monotonic() < end, "heartbeats go on"
    a.receive(0)
    assert b.receive(20).kind == "heartbeat"


def test_a_scheduler_sees_at_once_that_a_process_is_gone(transports):
    a, b = transports("a", watches=True, timeout_s=60), transports("b")
    a.connect({"b": b.address})
    a.send("b", Message("members"))
    receive(b, 1)
    b.close(0.0)
    assert receive(a, 1) == [Message("left", "b", body={"reason": "its process is gone"})]


def test_nodes_unknown_here_are_dropped(transports, caplog):
    a, b = transports("a"), transports("b")
    a.send("b", Message("push"))  # it knows no address
    a.connect({"b": b.address})
    b.nodes = frozenset({"b"})
    a.send("b", Message("push"))
    assert b.receive(0.3) is None
    assert "'a', who is no node of this cluster" in caplog.text


def head(**changes):
    fields = dict(v=VERSION, sender="a", stream=1, dial=1, number=0, at=0, size=0)
    fields |= dict(kind="push", epoch=0, round=0, key=0, step=0, body={})
    return fields | changes


@pytest.mark.parametrize(
    "parts, why",
    [
        ([b"{"], "1 parts"),
        ([b"{", b""], "not JSON"),
        ([b"[" * 5000, b""], "not JSON"),
        ([b"[]", b""], "version"),
        ([json.dumps(head(v=2)).encode(), b""], "version"),
        ([json.dumps(head(sender=3)).encode(), b""], "no sender"),
        ([json.dumps(head(sender="c")).encode(), b""], "'c'"),
        ([json.dumps(head(stream="x")).encode(), b""], "stream must be"),
        ([json.dumps(head(number=-1)).encode(), b""], "number must be"),
        ([json.dumps(head(stream=2**62)).encode(), b""], "begins in the future"),
        ([b" " * (MAX_HEAD + 1), b""], None),  # ZeroMQ itself closes the connection
    ],
)
def test_what_is_malformed_is_dropped_and_the_next_message_read(transports, caplog, parts, why):
    b = transports("b", limit_bytes=4096, slice_bytes=1024)
    with zmq.Context() as context:
        for message in (parts, [json.dumps(head(number=1, stream=2, round=7)).encode(), b""]):
            with context.socket(zmq.DEALER) as stranger:
                stranger.connect(b.address)
                stranger.send_multipart(message)
                time.sleep(0.1)
                stranger.setsockopt(zmq.LINGER, 1000)
        assert [message.round for message in receive(b, 1)] == [7]
    assert why is None or why in caplog.text


def test_slices_that_do_not_follow_on_each_other_are_dropped(transports):
    b = transports("b")
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(b.address)
        for fields in (
            head(at=5, size=9),  # no beginning
            head(number=0, round=1),
            head(number=2, round=2),  # 1 is missing
            head(number=1, round=3),
            head(number=0, round=4),  # had that
            head(stream=0, number=2, round=5),  # of an earlier channel
            head(stream=2, number=9, round=6),
            head(number=2, round=7),
        ):
            stranger.send_multipart([json.dumps(fields).encode(), b""])
        assert [message.round for message in receive(b, 3)] == [1, 3, 6]
        receipts = [stranger.recv() for _ in range(4)]
    assert receipts == [b"1 0", b"1 1", b"1 1", b"2 9"]


def test_slices_of_an_earlier_connection_do_not_mix_with_those_that_come_again(transports):
    b, frame = transports("b"), compression.Frame(payload(100)).to_bytes()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(b.address)
        for dial, at in ((1, 0), (2, 0), (2, 100), (1, 0), (1, 100), (2, 200)):
            piece = frame[at : at + 100] if at < 200 else frame[at:]
            fields = head(dial=dial, at=at, size=len(frame))
            stranger.send_multipart([json.dumps(fields).encode(), piece])
        assert receive(b, 1)[0].payload == payload(100)


def test_receipts_that_are_none_are_dropped(transports, caplog):
    a = transports("a")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as stranger:
        port = stranger.bind_to_random_port("tcp://127.0.0.1")
        a.connect({"b": f"tcp://127.0.0.1:{port}"})
        a.send("b", Message("push"))
        identity, text, _ = stranger.recv_multipart()
        for receipt in (b"x", b"1", b"1 2 3", b"[]", b"%d 0" % json.loads(text)["stream"]):
            stranger.send_multipart([identity, receipt])
        a.close(5.0)
    assert caplog.text.count("dropped a receipt of b") == 4


DAMAGED = bytearray(compression.Frame(payload(10)).to_bytes())
DAMAGED[-20] ^= 1


@pytest.mark.parametrize(
    "fields, body, why",
    [
        (dict(kind="pickle"), b"", "'pickle'"),
        (dict(body=[]), b"", "list"),
        (dict(epoch=0.5), b"", "epoch must be"),
        (dict(size=2**40), b"x", "at most 4096 fit"),
        (dict(size=2), b"xyz", "payload of 2 bytes"),
        (dict(size=3), b"xyz", "frame: 3 bytes"),
        (dict(size=len(DAMAGED)), bytes(DAMAGED), "digest does not match"),
    ],
)
def test_what_a_node_sent_and_cannot_be_read_fails_with_its_name(transports, fields, body, why):
    b = transports("b", limit_bytes=4096)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.connect(b.address)
        stranger.send_multipart([json.dumps(head(**fields)).encode(), body])
        with pytest.raises(ValueError, match=f"message of a refused: .*{why}"):
            b.receive(5.0)
        assert stranger.recv() == b"1 0"  # the connection goes on
        stranger.send_multipart([json.dumps(head(number=1, round=7)).encode(), b""])
        assert receive(b, 1)[0].round == 7


def test_what_cannot_be(transports):
    a = transports("a")
    with pytest.raises(OSError, match="b: cannot listen at " + a.address):
        transports("b", a.address)
    with pytest.raises(ValueError, match="register to b: body of over"):
        a.send("b", Message("register", body={"text": "x" * MAX_HEAD}))
    small = transports("a", limit_bytes=4096)
    with pytest.raises(ValueError, match="push to b: payload of 4100 bytes .*raise limit_bytes"):
        small.send("b", Message("push", payload=payload(1025)))
    with pytest.raises(ValueError, match="payload of 0 bytes and shape"):
        small.send("b", Message("push", payload=compression.Payload(b"", "identity", (1025,))))


def test_closing_waits_until_all_has_arrived_but_not_for_ever(transports):
    a, b = transports("a"), transports("b")
    a.connect({"b": b.address})
    a.send("b", Message("push", payload=payload(1_000_000)))
    a.close(5.0)
    assert receive(b, 1)[0].payload.nbytes == 4_000_000
    lonely = transports("a")
    lonely.connect({"b": "tcp://127.0.0.1:1"})
    lonely.send("b", Message("push"))
    begun = time.monotonic()
    lonely.close(0.2)
    assert time.monotonic() - begun < 2
