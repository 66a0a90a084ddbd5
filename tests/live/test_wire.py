"""The wire between members who know each other's keys, and what strangers get."""

import contextlib
import json
import time

import pytest
import zmq

from slowlink.testbed.live import identity
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import VERSION, WAITING, Received, ZmqWire

ANY = "tcp://127.0.0.1:0"
NAMES = ("a", "b", "site1/c")


@pytest.fixture
def wires(tmp_path):
    """Makes wires whose keys are known to each other; closed at the end."""
    identity.make(tmp_path, NAMES)
    with contextlib.ExitStack() as stack:

        def make(name, **options):
            options = dict(keys=Keys(tmp_path, name), timeout_s=1.0) | options
            wire = ZmqWire(name, ANY, NAMES, **options)
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


def test_a_member_that_is_somebody_else_is_not_spoken_to(wires, tmp_path):
    """Who listens at an address proves that it holds the key of the one who is meant."""
    a, b = wires("a"), wires("b")
    a.connect({"site1/c": b.address})
    a.send("site1/c", dict(kind="hello"))
    assert b.receive(0.5) is None


def test_who_is_struck_off_the_list_is_neither_heard_nor_spoken_to(wires, tmp_path, caplog):
    a, b = wires("a", heartbeat_s=0.1), wires("b", heartbeat_s=0.1)
    a.connect({"b": b.address})
    b.connect({"a": a.address})
    a.send("b", dict(kind="hello"))
    assert b.receive(10).sender == "a"
    members = tmp_path / identity.MEMBERS
    lines = members.read_text().splitlines(keepends=True)
    members.write_text("".join(line for line in lines if not line.startswith("a ")))
    a.send("b", dict(kind="hello"))
    b.send("a", dict(kind="hello"))
    assert b.receive(1.0) is None
    assert "a is no longer allowed to take part" in caplog.text
    assert "a: no longer allowed to take part" in caplog.text


def test_who_sends_more_than_may_wait_is_barred(wires):
    a, b = wires("a"), wires("b", queue_bytes=100_000)
    a.connect({"b": b.address})
    for _ in range(4 * WAITING):
        a.send("b", dict(kind="data"), bytes(10_000))
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
