"""The wire between members who know each other's keys, and what strangers get."""

import contextlib
import json
import stat
import time

import pytest
import zmq

from slowlink.testbed.live.wire import VERSION, WAITING, Keys, Received, ZmqWire, make_keys

ANY = "tcp://127.0.0.1:0"
NAMES = ("a", "b", "site1/c")


@pytest.fixture
def wires(tmp_path):
    """Makes wires whose keys are known to each other; closed at the end."""
    make_keys(NAMES, tmp_path)
    with contextlib.ExitStack() as stack:

        def make(name, **options):
            options = dict(keys=Keys.read(name, tmp_path), timeout_s=1.0) | options
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
        its.curve_serverkey = server_key.encode()
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
        its = stranger(context, b, b.keys.public if encrypted else "", secret, public)
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
        pair = dict(secret=own.secret.encode(), public=own.public.encode())
        its = stranger(context, b, b.keys.public, **pair)
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


def test_key_files_are_private_and_kept(tmp_path):
    make_keys(["a"], tmp_path)
    before = Keys.read("a", tmp_path)
    make_keys(["a", "b"], tmp_path)
    assert stat.S_IMODE((tmp_path / "a.secret").stat().st_mode) == 0o600
    assert Keys.read("a", tmp_path).secret == before.secret
    assert set(Keys.read("b", tmp_path).members) == {"a", "b"}


def test_key_files_that_are_none_are_refused(tmp_path):
    make_keys(["a", "b"], tmp_path)
    with pytest.raises(ValueError, match=r"c\.secret: no key file"):
        Keys.read("c", tmp_path)
    (tmp_path / "b.secret").write_text((tmp_path / "a.secret").read_text())
    with pytest.raises(ValueError, match=r"the key of b is not that of .*b\.secret"):
        Keys.read("b", tmp_path)
    (tmp_path / "a.secret").write_text("no key\n")
    with pytest.raises(ValueError, match="keys of a cannot be read"):
        Keys.read("a", tmp_path)


def test_fields_of_the_wire_cannot_be_given(wires):
    with pytest.raises(ValueError, match="data to b: the wire itself fills in size"):
        wires("a").send("b", dict(kind="data", size=3))
