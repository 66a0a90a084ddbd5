"""The board: each model goes out once, and who misses it is sent it."""

import queue
import threading
from contextlib import closing

import dds_domains
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cyclonedds.pub import DataWriter
from cyclonedds.topic import Topic

from slowlink.testbed.live.dds import domain, segments
from slowlink.testbed.live.dds.domain import DomainConfig
from slowlink.testbed.live.dds.federated import board
from slowlink.testbed.live.dds.federated.board import Board, Reading
from slowlink.testbed.live.dds.segments import CUT, Segment

LIMIT = 3 * CUT
MODEL = bytes(range(256)) * (2 * CUT // 256) + b"the end"
"""Of three parts."""
WHOLE = len(MODEL)


@pytest.fixture
def entered(monkeypatch):
    """A participant whose own readers hear its writers."""
    monkeypatch.setattr(board.Policy.IgnoreLocal, "Participant", board.Policy.IgnoreLocal.Nothing)
    return domain.connect(dds_domains.fresh(), DomainConfig())


def read(reading, posted, came):
    """The message, once it is there."""
    while (message := reading.find(posted)[1]) is None:
        came.get(timeout=30)
    return message


def test_all_get_what_is_posted_once(entered):
    came = [queue.Queue() for _ in range(3)]
    readings = [Reading(entered, lambda its=its: its.put(1), LIMIT) for its in came]
    poster = Board(entered, LIMIT)
    try:
        for number, message in enumerate((MODEL, b"", MODEL[::-1]), 1):
            posted = poster.post(number, message)
            for reading, its in zip(readings, came, strict=True):
                assert read(reading, posted, its) == message
    finally:
        poster.close()
        for reading in readings:
            reading.close()


def test_a_reader_that_takes_nothing_holds_nobody_up(entered, monkeypatch):
    came, stuck = queue.Queue(), threading.Event()
    deaf = Reading(entered, lambda: stuck.wait(60), LIMIT)
    with closing(Reading(entered, lambda: came.put(1), LIMIT)) as reading:
        poster = Board(entered, LIMIT)
        for number in range(1, 30):
            assert read(reading, poster.post(number, MODEL), came) == MODEL
        assert len(deaf._parts) <= deaf._parts.maxlen == 6
        stuck.set()
        poster.close()
        deaf.close()


def test_what_others_put_there_is_no_model(entered):
    """Of a stranger, who has no key; of another client, who has it; and as much as they like."""
    came = queue.Queue()
    with closing(Reading(entered, lambda: came.put(1), LIMIT)) as reading:
        writer = DataWriter(entered, Topic(entered, board.TOPIC, Segment), board._qos(LIMIT))

        def put(key, start, body, total=WHOLE):
            part = Segment(segments.VERSION, 0, 0, 1, 1, start, total, b"", "model", b"")
            nonce = segments.nonce(1, start)
            part.body = AESGCM(key).encrypt(nonce, body, segments.head(part))
            writer.write(part)
            came.get(timeout=30)

        poster = Board(entered, LIMIT)
        posted = poster.post(1, MODEL)
        assert read(reading, posted, came) == MODEL
        put(bytes(16), 0, MODEL[:CUT])
        assert reading.find(posted) == (0, None)
        for start in range(0, len(MODEL), CUT):
            put(bytes.fromhex(posted.key), start, bytes(min(CUT, len(MODEL) - start)))
        assert reading.find(posted) == (3, None)
        put(bytes(16), 0, b"x", total=1)
        put(bytes(16), 2 * CUT, MODEL[:9], total=2 * CUT + 9)
        writer.write(Segment(segments.VERSION, 0, 0, 1, 1, 7, 9, b"", "", bytes(99)))
        writer.write(Segment(0, 0, 0, 1, 1, 0, 9, b"", "", bytes(25)))
        for _ in range(9):
            put(bytes(16), 0, b"x", total=1)
        assert len(reading._parts) == 6
        poster.close()
