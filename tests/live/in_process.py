"""A live run in one process: its members are threads, and queues between them the wire."""

import contextlib
import itertools
import queue
import threading
import time

from slowlink.testbed.live.engine.coordinator import Coordinator
from slowlink.testbed.live.engine.node import Node, Stopped
from slowlink.testbed.live.engine.settings import COORDINATOR
from slowlink.testbed.live.wire import Received


class Gone(Exception):
    """The process of a member ends here."""


class Queues:
    """The wire of one member; ``dies(head)`` says that it ends instead of sending this, what it
    brings leaves as ``spoils(body)``, when first it has finished an iteration it says the
    coordinator what ``lie`` is, too, and ``sent(head)`` hears of all that has left."""

    def __init__(
        self, name, boxes, dies=lambda head: False, spoils=bytes, lie=None, sent=lambda head: None
    ):
        self.name, self.boxes, self.dies, self.spoils = name, boxes, dies, spoils
        self.lie, self.sent = lie, sent
        self.members, self.heard, self.address = frozenset(boxes), {}, f"queue of {name}"

    def connect(self, addresses):
        pass

    forget = connect

    def receive(self, timeout_s):
        try:
            received = self.boxes[self.name].get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return None
        self.heard[received.sender] = time.monotonic()
        return received

    def send(self, to, head, body=b""):
        if self.dies(head):
            self.boxes[COORDINATOR].put(Received(self.name, dict(kind="left", reason="it died")))
            raise Gone
        if self.lie and head["kind"] == "finished":
            lie, self.lie = self.lie, None
            self.boxes[COORDINATOR].put(Received(self.name, lie))
        brings = head.get("tag", [""])[0] in ("push", "all")
        body = self.spoils(body) if brings else bytes(body)
        self.boxes[to].put(Received(self.name, dict(head), body))
        self.sent(head)

    def send_all(self, to, body):
        for name, head in to.items():
            self.send(name, head, body)


def run(given, deaths=None, rogues=None, late=None, here=True, recorded=False, lies=None):
    """What a run came to.

    deaths: by member, whether its process ends instead of sending a message of this head; it does
        so once, and another one follows where the settings let it.
    rogues: by member, what it makes of the bytes that it brings to a meeting.
    late: by member, how many iterations the others have finished when it comes.
    here: what the coordinator is told of where the members are.
    recorded: whether the record is wanted.
    lies: by member, a message that is none of what it does, once.
    """
    boxes, threads, deaths = {name: queue.Queue() for name in given.members}, [], dict(deaths or {})

    def live(node):
        with contextlib.suppress(Gone, Stopped):
            node.run()

    def start(name):
        boxes[name] = queue.Queue()
        never = deaths.pop(name, lambda head: False)
        # Made here, one after the other: threads would import a file while another one does.
        spoils = (rogues or {}).get(name, bytes)
        lie = (lies or {}).get(name)
        node = Node(given, name, Queues(name, boxes, never, spoils, lie, sent))
        threads.append(threading.Thread(target=live, args=[node], daemon=True))
        threads[-1].start()

    late, iterations = late or {}, itertools.count(1)

    def sent(head):
        if head["kind"] == "finished":
            done = next(iterations)
            for name in [name for name, after in late.items() if after == done]:
                start(name)

    for name in given.members[1:]:
        if name not in late:
            start(name)
    given.output.mkdir(parents=True, exist_ok=True)
    try:
        options = dict(restart=start, here=here, recorded=recorded)
        return Coordinator(given, Queues(COORDINATOR, boxes), **options).run()
    finally:
        for thread in threads:
            thread.join(30)
