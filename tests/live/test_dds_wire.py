"""The engine's messages over DDS: whole, once and in order; who is gone is told, what is lost is
named, and strangers get nowhere."""

import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from slowlink.testbed.live import identity
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.wire import Received, Unreadable
from tests.live import dds_domains
from tests.live.dds_domains import meet
from tests.live.said import data, numbers, receive, strike_off
from tests.live.waiting import until

NAMES = ("a", "b", "site1/c")


@pytest.fixture
def wires(tmp_path, monkeypatch):
    with dds_domains.wires(NAMES, tmp_path, monkeypatch) as make:
        yield make


@pytest.mark.parametrize("keys", [True, False])
def test_messages_arrive_whole_once_and_in_order_on_each_line(wires, keys):
    options = {} if keys else dict(keys=None)
    a, b, c = (wires(name, **options) for name in NAMES)
    meet(a, b)
    meet(a, c)
    body = bytes(n % 251 for n in range(400_000))
    for number in range(20):
        a.send("b", data(number), body[: 20_000 * number])
        a.send("site1/c", data(100 + number))
        b.send("a", data(number))
    found = receive(b, 20)
    assert numbers(found) == list(range(20))
    assert found[-1] == Received("a", data(19), body[:380_000])
    assert numbers(receive(c, 20)) == list(range(100, 120))
    assert numbers(receive(a, 20)) == list(range(20))
    assert b.receive(0.2) is None and "a" in b.heard


def test_the_same_body_goes_to_several_in_the_order_of_all_else(wires):
    """Be it published or sent to each; of whom nothing is known, nothing becomes."""
    a, b, c = (wires(name) for name in NAMES)
    meet(a, b)
    for number in range(9):
        if number == 4:
            meet(a, c)
        body = bytes([number]) * 10 ** (number % 4 + 2)
        a.send("b", data(100 + number))
        a.send_all({"b": data(number), "site1/c": dict(data(number), t=7)}, body)
    found = receive(b, 18)
    assert numbers(found) == [n for number in range(9) for n in (100 + number, number)]
    assert [len(one.body) for one in found[1::2]] == [10 ** (n % 4 + 2) for n in range(9)]
    sent = [Received("a", dict(data(n), t=7), bytes([n]) * 10 ** (n % 4 + 2)) for n in range(4, 9)]
    assert receive(c, 5) == sent


def test_messages_wait_for_a_member_that_comes_later(wires):
    a = wires("a")
    a.connect({"b": a.address})
    a.send("b", data(0))
    assert a.receive(0.3) is None
    b = wires("b", watches=True)  # who watches is there for all
    assert numbers(receive(b, 1)) == [0]


def test_connecting_anew_drops_what_was_under_way_and_forgetting_what_comes(wires):
    a = wires("a")
    a.connect({"b": a.address})
    a.send("b", data(0))
    a.forget(["b"])
    a.send("b", data(1))
    a.connect({"b": a.address})
    a.send("b", data(2))
    b = wires("b", watches=True)
    assert numbers(receive(b, 1)) == [2] and b.receive(0.3) is None


def test_another_process_takes_the_place_of_one_that_left(wires):
    a, b = wires("a", watches=True), wires("b", above="a")
    meet(a, b)
    a.send("b", data(0))
    receive(b, 1)
    b.close()
    assert receive(a, 1)[0].kind == "left"
    again = wires("b", above="a")
    again.connect({"a": a.address})
    again.send("a", data(1))
    assert numbers(receive(a, 1)) == [1]
    a.send("b", data(2))
    assert numbers(receive(again, 1)) == [2]


def test_what_is_lost_on_the_way_is_named(wires, monkeypatch):
    """As where a member is out of reach for longer than the lease."""
    a, b = wires("a"), wires("b")
    meet(a, b)
    a.send("b", data(0))
    assert numbers(receive(b, 1)) == [0]
    channel = a._lines["b"].channel
    with monkeypatch.context() as patch:
        lost = []
        patch.setattr(channel, "send", lambda *message, **_: lost.append(message))
        a.send("b", data(1))
        until(lambda: lost, 10)
    a.send("b", data(2))
    a.send("b", data(3))
    with pytest.raises(Unreadable, match="of a refused: messages 1 to 1 before it are lost"):
        receive(b, 1)
    assert numbers(receive(b, 1)) == [3]


def test_heartbeats_go_to_who_is_above_and_pause_while_the_members_thread_hangs(wires):
    a, b = wires("a", above="b", stall_s=0.5), wires("b")
    meet(a, b)
    assert b.receive(20) == Received("a", dict(kind="heartbeat", address=a.address))
    end = time.monotonic() + 20
    while b.receive(1.0):  # a heartbeat comes ten times as often
        assert time.monotonic() < end, "heartbeats go on"
    a.receive(0)
    assert b.receive(20).kind == "heartbeat"
    assert "a" in b.heard and "b" not in a.heard


def test_a_stranger_and_another_run_are_not_heard_and_named_once(wires, tmp_path, caplog):
    """On both sides, since to whoever is refused the others are strangers, too."""
    folder = tmp_path / "others"
    identity.make(folder, NAMES)
    a, b = wires("a"), wires("b")
    stranger, other = wires("a", keys=Keys(folder, "a")), wires("a", run="two")
    for one in (a, stranger, other):
        meet(one, b)
        one.send("b", data(NAMES.index("a") if one is a else 7))
    assert numbers(receive(b, 1)) == [0] and b.receive(1.0) is None
    said = [one.getMessage() for one in caplog.records if "refused a stranger" in one.msg]
    for name in ("a", "b"):  # by b, of each of the two; by each of the two, of b
        assert sum(f"on slowlink/0/1: it says that it is {name}," in one for one in said) == 2
    assert len(said) == 4


def test_who_is_struck_off_the_list_is_neither_heard_nor_spoken_to(wires, tmp_path):
    a, b = wires("a", watches=True), wires("b")
    meet(a, b)
    b.send("a", data(0))
    assert numbers(receive(a, 1)) == [0]
    strike_off(tmp_path, "b")
    assert receive(a, 1)[0].kind == "left"
    b.send("a", data(1))
    a.send("b", data(2))
    for one in (a, b):
        while (received := one.receive(0.5)) is not None:  # heartbeats of before
            assert received.kind == "heartbeat"


@pytest.mark.parametrize("where", ["head", "body"])
def test_who_sends_more_than_may_wait_is_barred(wires, where):
    a, b = wires("a"), wires("b", queue_bytes=10_000)
    meet(a, b)
    head, body = ({}, bytes(10_000)) if where == "body" else ({"more": "x" * 10_000}, b"")
    for number in range(12):
        a.send("b", data(number) | head, body)
    found = []
    until(lambda: "a" in b.inbox.barred)  # nobody reads meanwhile
    with pytest.raises(Unreadable, match="bytes wait to be received, at most 10000"):
        while True:
            found += receive(b, 1)
    assert len(found) < 12


def test_what_cannot_be(wires):
    a = wires("a", limit_bytes=1000)
    with pytest.raises(ValueError, match="at most 1000 fit; raise limit_bytes"):
        a.send("b", data(0), bytes(2**21))
    with pytest.raises(ValueError, match="the wire itself fills in stream"):
        a.send("b", dict(kind="data", stream=3))
    with pytest.raises(ValueError, match="the wire itself fills in board"):
        a.send_all({"b": data(0), "site1/c": dict(kind="data", board=3)}, b"")


def test_closing_waits_until_all_has_arrived_but_not_for_ever(wires):
    a, b = wires("a"), wires("b")
    meet(a, b)
    for number in range(20):
        a.send("b", data(number), bytes(100_000))
    a.close(20)
    assert numbers(receive(b, 20)) == list(range(20))
    alone = wires("a")
    alone.connect({"site1/c": alone.address})
    alone.send("site1/c", data(0))
    begun = time.monotonic()
    alone.close(0.5)
    assert 0.4 < time.monotonic() - begun < 5


def first_topics(number):
    """How many topics threads of a new process make, each beginning a little later, where writing
    the description of a type, as the first one does, takes a while."""
    from cyclonedds.idl._main import IDL
    from cyclonedds.topic import Topic

    from slowlink.testbed.live.dds.domain import DomainConfig, connect, draw
    from slowlink.testbed.live.dds.segments import Segment

    participant, serialize = connect(draw(), DomainConfig()), IDL.serialize

    def slowly(*given, **named):
        time.sleep(0.3)
        return serialize(*given, **named)

    def one(after):
        time.sleep(0.25 * after)
        return Topic(participant, f"topic{after}", Segment)

    IDL.serialize = slowly
    with ThreadPoolExecutor(number) as pool:
        return len(list(pool.map(one, range(number))))


def test_threads_make_their_first_topics_at_once():
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        assert alone.submit(first_topics, 5).result() == 5
