"""How a role is run: its membership, its end, and what its scheduler hears of it."""

import contextlib
import threading
import time

import pytest

from slowlink.methods.compression import Payload
from slowlink.testbed.live.hips import node
from slowlink.testbed.live.hips.messages import Message
from slowlink.testbed.live.hips.node import Stopped
from slowlink.testbed.live.hips.zmq_transport import ZmqTransport

NAME, ABOVE, OTHER = "site1/worker0", "site1/scheduler", "site1/server"
ANY = "tcp://127.0.0.1:0"


class Echo:
    """Notes what it gets, sends it on, and fails or finishes when told."""

    name, finished, rounds = NAME, False, {4: "x", 5: "y"}

    def __init__(self):
        self.got = []

    def on(self, message):
        self.got.append(message)
        if message.kind == "push":
            return [(OTHER, message)]
        if message.kind == "pull":
            raise ArithmeticError("no number")
        self.finished = message.kind == "done"
        return []

    def tick(self, now):
        return []


class Site:
    """A worker in a thread; its scheduler and its server are what the test says."""

    def __init__(self, stack, timeout_s):
        options = dict(heartbeat_s=0.1, timeout_s=5.0)
        self.scheduler, self.server = (
            ZmqTransport(name, ANY, [NAME], watches=name == ABOVE, **options)
            for name in (ABOVE, OTHER)
        )
        self.transport = ZmqTransport(NAME, ANY, [ABOVE, OTHER], above=ABOVE, **options)
        for transport in (self.scheduler, self.server, self.transport):
            stack.callback(transport.close, 0.0)
        self.transport.connect({ABOVE: self.scheduler.address})
        self.role, self.leaving, self.error = Echo(), threading.Event(), None
        self.thread = threading.Thread(target=self.run, args=(timeout_s,), daemon=True)
        self.thread.start()

    def run(self, timeout_s):
        try:
            node.run(
                self.role, self.transport, start_s=5, timeout_s=timeout_s, leaving=self.leaving
            )
        except Exception as error:
            self.error = error

    def ended(self):
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.error

    def epoch(self, number):
        addresses = {NAME: self.transport.address, OTHER: self.server.address}
        body = dict(members={"site1": [OTHER, NAME]}, rounds={"site1": 5}, round=5)
        self.tell("epoch", epoch=number, body=body | {"addresses": addresses})

    def tell(self, kind, **fields):
        self.scheduler.send(NAME, Message(kind, **fields))

    def heard(self, transport=None):
        """The next message but a heartbeat."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            message = (transport or self.scheduler).receive(0.1)
            if message is not None and message.kind != "heartbeat":
                return message
        pytest.fail("nothing came")


@pytest.fixture
def site():
    with contextlib.ExitStack() as stack:
        yield registered(Site(stack, timeout_s=5.0))


def registered(site):
    message = site.heard()
    assert (message.kind, message.body["node"]) == ("register", NAME)
    site.scheduler.connect({NAME: message.body["address"]})
    site.server.connect({NAME: message.body["address"]})
    return site


def test_members_stand_by_and_begin_with_the_epoch(site):
    site.epoch(1)
    site.tell("members", epoch=2)
    ready = site.heard()
    assert (ready.kind, ready.epoch, ready.body) == ("ready", 2, {"rounds": {"4": "x", "5": "y"}})
    site.server.send(NAME, Message("push", epoch=2, round=5))
    time.sleep(0.2)
    assert [message.epoch for message in site.role.got] == [1]
    site.tell("members", epoch=1)  # an old question
    site.epoch(2)
    assert site.heard(site.server) == Message("push", NAME, epoch=2, round=5)
    assert [message.kind for message in site.role.got] == ["epoch", "epoch", "push"]


def test_who_is_taken_for_lost_registers_again(site):
    site.epoch(3)
    site.tell("left", body={"node": NAME})
    again = site.heard()
    assert (again.kind, again.epoch, again.body["node"]) == ("register", 3, NAME)


def test_done_is_told_once_an_epoch(site):
    site.epoch(1)
    site.server.send(NAME, Message("done", epoch=1))
    assert site.heard().kind == "done"
    site.tell("left")
    assert site.heard().kind == "register"


@pytest.mark.parametrize("reason", ["", "lost site1/worker1"])
def test_stop(site, reason):
    site.tell("stop", body={"reason": reason})
    error = site.ended()
    assert error is None if not reason else isinstance(error, Stopped) and str(error) == reason


def test_leaving(site):
    site.leaving.set()
    assert site.heard().kind == "leave"
    assert site.ended() is None


def test_a_crash_is_told_with_its_reason(site):
    site.epoch(1)
    site.server.send(NAME, Message("pull", epoch=1))
    message = site.heard()
    assert (message.kind, message.body["reason"]) == ("failed", "ArithmeticError: no number")
    assert isinstance(site.ended(), ArithmeticError)


@pytest.mark.parametrize("kind", ["stop", "members", "epoch", "left"])
def test_only_the_own_scheduler_decides(site, kind, caplog):
    site.epoch(1)
    body = dict(reason="x", members={}, rounds={}, round=0, addresses={})
    site.server.send(NAME, Message(kind, epoch=9, body=body))
    site.server.send(NAME, Message("push", epoch=1, round=5))
    assert site.heard(site.server).kind == "push"
    assert f"dropped {kind} of {OTHER}" in caplog.text
    assert [message.epoch for message in site.role.got] == [1, 1]


def test_what_cannot_be_read_fails_with_the_senders_name(site):
    site.epoch(1)
    site.server.limit_bytes = 2**31
    payload = Payload(b"", "identity", (2**29,))  # larger than the node allows
    site.server.send(NAME, Message("push", epoch=1, payload=payload))
    message = site.heard()
    assert message.kind == "failed"
    assert "message of site1/server refused: frame: tensor of shape" in message.body["reason"]
    assert isinstance(site.ended(), ValueError)


def test_a_silent_scheduler_is_lost():
    with contextlib.ExitStack() as stack:
        site = registered(Site(stack, timeout_s=1.0))
        time.sleep(0.3)
        site.scheduler.close(0.0)
        assert str(site.ended()) == "site1/scheduler was silent for 1 s"
