"""The board: what is for several goes out once, whoever misses it is sent it, and the member's own
thread notices nothing of it but that it comes."""

import threading
import time
from collections import Counter
from contextlib import suppress

import dds_peers
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from slowlink.testbed.live.dds import board, segments
from slowlink.testbed.live.dds.board import Board, Posted, Reading
from slowlink.testbed.live.dds.domain import draw, qos
from slowlink.testbed.live.dds.segments import CUT, TAG, Segment
from slowlink.testbed.live.dds.wire import PAYS
from slowlink.testbed.live.processes import run_ranks
from slowlink.testbed.live.wire import Received, Unreadable
from tests.live import dds_domains
from tests.live.dds_domains import meet
from tests.live.said import data, numbers, receive
from tests.live.waiting import until

NAMES = ("server", "one", "two", "three")
WORKERS = NAMES[1:]
MODEL = bytes(range(256)) * (2 * CUT // 256) + b"the end"
"""Of three parts."""
WHOLE = len(MODEL)


@pytest.fixture
def make(tmp_path, monkeypatch):
    with dds_domains.wires(NAMES, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def star(make):
    """A server and its workers, who may have had a first post."""

    def star(posted=False, **options):
        server, *workers = (make(name, **options) for name in NAMES)
        for worker in workers:
            meet(server, worker)
        until(lambda: all(server._lines[worker.name].present for worker in workers))
        if posted:
            post(server, 0)
            all_get(workers, 0)
        return server, workers

    return star


@pytest.fixture
def written(monkeypatch):
    """Bytes of all bodies that members write, by what the names of the topics begin with."""
    counted, write = Counter(), DataWriter.write

    def count(writer, segment):
        # Before it is written: who reads it may be done before the write returns.
        counted[writer.topic.name.rpartition("/")[0]] += len(segment.body)
        return write(writer, segment)

    monkeypatch.setattr(DataWriter, "write", count)
    return counted


def pairs(counted):
    return sum(nbytes for name, nbytes in counted.items() if name != board.TOPIC)


def post(server, number, body=MODEL, to=WORKERS):
    server.send_all({name: dict(data(number), mine=[number, name]) for name in to}, body)


def had(worker, number, body=MODEL):
    return [Received("server", dict(data(number), mine=[number, worker.name]), body)]


def all_get(workers, number, body=MODEL):
    """Each of these gets that next."""
    for worker in workers:
        assert receive(worker, 1) == had(worker, number, body)


def writes(participant, server):
    """A writer on the server's board."""
    topic = Topic(participant, f"{board.TOPIC}/{server.board.board}", Segment)
    return DataWriter(participant, topic, board._written())


def part(key, number, start, body, total=WHOLE):
    its = Segment(segments.VERSION, 0, 0, 1, number, start, total, b"", "", b"")
    its.body = AESGCM(key).encrypt(segments.nonce(number, start), body, segments.head(its))
    return its


@pytest.fixture
def deaf(monkeypatch):
    """Tells a member to miss some parts of what is posted: those that ``misses``."""
    take, missing = Reading._take, {}

    class Some:
        def __init__(self, reader, misses):
            self.reader, self.misses = reader, misses

        def take(self, most):
            taken = self.reader.take(most)
            return [s for s in taken if not (isinstance(s, Segment) and self.misses(s))]

        def __getattr__(self, name):
            return getattr(self.reader, name)

    def some(reading, its):
        if reading in missing and not isinstance(its.reader, Some):
            its.reader = Some(its.reader, missing[reading])
        take(reading, its)

    monkeypatch.setattr(Reading, "_take", some)
    return lambda member, misses: missing.update({member.reading(): misses})


# What goes where ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [True, False])
def test_all_get_what_is_posted_once(star, written, keys):
    server, workers = star(**({} if keys else dict(keys=None)))
    bodies = [MODEL, bytes(PAYS), MODEL[::-1], bytes(CUT)]
    for number, body in enumerate(bodies):
        post(server, number, body)
        all_get(workers, number, body)
    parts = sum(-(-len(body) // CUT) for body in bodies)
    assert written[board.TOPIC] == sum(map(len, bodies)) + parts * TAG
    assert pairs(written) < PAYS


@pytest.mark.parametrize("to, size", [(WORKERS[:1], WHOLE), (WORKERS, PAYS - 1)])
def test_what_is_for_one_or_small_is_sent(star, written, to, size):
    server, workers = star()
    post(server, 0, MODEL[:size], to)
    for worker in workers[: len(to)]:
        assert receive(worker, 1) == had(worker, 0, MODEL[:size])
    assert not written[board.TOPIC] and pairs(written) > size * len(to)
    assert server.board is None
    assert not any("board" in thread.name for thread in threading.enumerate())


def test_a_body_of_any_number_of_parts(star):
    server, workers = star()
    sizes = [PAYS, CUT - 1, CUT, CUT + 1, 2 * CUT, 3 * CUT + 7]
    for number, size in enumerate(sizes):
        post(server, number, MODEL[:1] * size)
    for worker in workers:
        assert [len(one.body) for one in receive(worker, len(sizes))] == sizes


def test_many_posts_at_once_come_in_order_with_all_else(star, written):
    server, workers = star()
    for number in range(0, 120, 3):
        post(server, number, bytes([number]) * PAYS)
        server.send(WORKERS[number % 3], data([number + 1, "alone"]))
        post(server, number + 2, b"small")
    for place, worker in enumerate(workers):
        rounds = range(0, 120, 3)
        alone = [n + 1 for n in rounds if n % 3 == place]
        expected = sorted([*rounds, *(n + 2 for n in rounds), *alone])
        found = receive(worker, len(expected))
        assert [one.head["mine"][0] for one in found] == expected
        assert [one.body[:1] for one in found if len(one.body) == PAYS] == [
            bytes([n]) for n in rounds
        ]
    assert written[board.TOPIC] == 40 * (PAYS + TAG)


def test_every_member_has_a_board_and_reads_those_that_are_for_it(make, written):
    wires = [make(name) for name in NAMES]
    for n, wire in enumerate(wires):
        for other in wires[:n]:
            meet(wire, other)
    until(lambda: all(line.present for wire in wires for line in wire._lines.values()))
    for number in range(10):
        for n, wire in enumerate(wires):
            others = [NAMES[(n + 1) % 4], NAMES[(n + 2) % 4]]
            wire.send_all({name: data(number) for name in others}, bytes([n]) * PAYS)
    for n, wire in enumerate(wires):
        by_sender = {NAMES[(n + 3) % 4]: [], NAMES[(n + 2) % 4]: []}
        for received in receive(wire, 20):
            assert received.body == bytes([NAMES.index(received.sender)]) * PAYS
            by_sender[received.sender].append(received.head["mine"])
        assert all(found == list(range(10)) for found in by_sender.values())
        assert wire.reading()._followed.keys() == by_sender.keys()
    assert written[board.TOPIC] == 40 * (PAYS + TAG)


def test_who_is_not_there_yet_holds_nobody_up_and_is_sent_it(make, written):
    server, one, two = (make(name) for name in NAMES[:3])
    meet(server, one)
    meet(server, two)
    server.connect({"three": server.address})
    until(lambda: server._lines["one"].present and server._lines["two"].present)
    post(server, 0)
    all_get((one, two), 0)
    three = make("three")
    three.connect({"server": server.address})
    assert receive(three, 1) == had(three, 0)
    sent = pairs(written)
    assert WHOLE < sent < WHOLE + PAYS
    post(server, 1)
    all_get((one, two, three), 1)
    assert pairs(written) < sent + PAYS
    assert written[board.TOPIC] == 2 * (WHOLE + 3 * TAG)


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_processes_are_sent_once_what_is_for_all(together):
    lengths = [PAYS, 3 * CUT + 5, CUT, 9 * CUT]
    domain, size = draw(), 4
    answers = run_ranks(dds_peers.post, size, domain, size, lengths, together, timeout_s=120.0)
    nbytes = sum(lengths) * (1 if together else size - 1)
    assert nbytes < answers[0][1] < nbytes + PAYS
    assert all(written < PAYS for _, written in answers[1:])


# What is missed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, CUT, 2 * CUT, None])
def test_who_misses_a_part_is_sent_it(star, deaf, written, start):
    """Alone; and what comes later waits for it."""
    server, (one, two, three) = star()
    deaf(two, lambda its: its.number == 0 and start in (its.start, None))
    post(server, 0)
    server.send("two", data(1))
    all_get((one, three), 0)
    assert receive(two, 2) == [*had(two, 0), Received("server", data(1))]
    assert WHOLE < pairs(written) < WHOLE + PAYS
    post(server, 2)
    assert receive(two, 1) == had(two, 2)
    assert pairs(written) < WHOLE + PAYS
    until(lambda: not server.board._kept)


def test_what_is_kept_no_more_is_refused_by_its_senders_name(star, deaf):
    server, (one, two, three) = star()
    deaf(two, lambda its: its.number == 0)
    post(server, 0)
    server.send("two", data(1))
    until(lambda: server.board._kept and server.board._kept[0].owed == {"two"})
    server.board.has(0, "two")
    with pytest.raises(Unreadable, match="of server refused: what it had posted for all is lost"):
        two.receive(20)
    assert receive(two, 1) == [Received("server", data(1))]
    assert not two.inbox._waiting["server"]


def test_who_answers_nothing_is_refused(star, deaf, monkeypatch):
    monkeypatch.setattr(board, "ANSWER_S", 0.5)
    monkeypatch.setattr(board, "SLOWEST", 1e9)
    monkeypatch.setattr(Board, "asked", lambda *_: time.sleep(3))
    server, (one, two, three) = star()
    deaf(two, lambda its: its.start == 0)
    post(server, 0)
    with pytest.raises(Unreadable, match="did not come, nor an answer"):
        two.receive(20)


def test_it_is_kept_until_all_have_it_and_then_no_more(star, deaf):
    server, workers = star()
    for number in range(5):
        post(server, number)
    for worker in workers:
        receive(worker, 5)
    until(lambda: not server.board._kept)
    server.board._room = 2 * WHOLE
    for worker in workers:
        deaf(worker, lambda its: True)
    for number in range(5):
        post(server, number)
    until(lambda: len(server.board._kept) == 2)
    sent, lost = [], 0
    while len(sent) < 2:
        try:
            sent += receive(workers[0], 1)
        except Unreadable:
            lost += 1
    assert lost + len(sent) <= 5
    assert all(len(one.body) == WHOLE for one in sent)


def test_who_asks_twice_is_sent_it_once(star):
    server, (one, *_) = star()
    asked = []
    server._lines["one"].say = lambda *what, **fields: asked.append(what[0])
    kept = server.board = Board(server.participant, 10**9, 1.0, lambda _: True, lambda _: None)
    its = kept.post(["one", "two"], MODEL)
    until(lambda: its.settled)
    assert kept.posted(its, "one") is None
    fields = dict(what="wants", board=kept.board, number=0)
    for _ in range(2):
        server._lines["one"]._hear(fields, {}, 0, b"")
    assert asked == ["gone", "gone"]
    again = kept.post(["one", "two"], MODEL)
    fields["number"] = 1
    for _ in range(2):
        server._lines["one"]._hear(fields, {}, 0, b"")
    assert asked[2:] == ["gives", "gone"] and again.owed <= {"two"}


def test_some_reader_that_takes_nothing_holds_nobody_up_for_long(star, monkeypatch):
    """As one whose process hangs does."""
    monkeypatch.setattr(Board, "_tries", lambda its, part: time.sleep(0.1))
    server, workers = star()
    begun = time.monotonic()
    for number in range(3):
        post(server, number)
    for worker in workers:
        assert receive(worker, 3) == [had(worker, number)[0] for number in range(3)]
    assert time.monotonic() - begun < 15
    post(server, 3)
    assert server.board._count == 3, "for some time nothing more is published"


def test_a_member_that_does_nothing_with_it_holds_nobody_up(star):
    server, (one, two, three) = star(posted=True)
    stuck = threading.Event()
    three.reading()._do(lambda: stuck.wait(60))
    for number in range(1, 30):
        post(server, number)
        all_get((one, two), number)
    stuck.set()
    assert [one.head["mine"][0] for one in receive(three, 29)] == list(range(1, 30))


# What others do -----------------------------------------------------------------------------------


def test_what_others_put_there_is_no_model(make, star, monkeypatch, written):
    """Of a stranger, who has no key; of another member, who has it; damaged; beside and again."""
    server, workers = star(posted=True)
    its = writes(make.participant(), server)
    until(lambda: len(its.get_matched_subscriptions()) == 3)
    keys, posted = [], Board.posted
    monkeypatch.setattr(board.secrets, "token_bytes", lambda n: keys.append(bytes(n)) or keys[-1])
    monkeypatch.setattr(Board, "posted", lambda *its: time.sleep(0.5) or posted(*its))
    before = pairs(written)
    for start in range(0, WHOLE, CUT):  # with the key that will be drawn
        its.write(part(bytes(16), 1, start, bytes(min(CUT, WHOLE - start))))
        its.write(part(bytes([7] * 16), 1, start, MODEL[start : start + CUT]))
    its.write(part(bytes(16), 1, 0, b"x", total=1))
    its.write(part(bytes(16), 1, 2 * CUT, MODEL[:9], total=2 * CUT + 9))
    its.write(Segment(segments.VERSION, 0, 0, 1, 1, 7, 9, b"", "", bytes(99)))
    its.write(Segment(0, 0, 0, 1, 1, 0, 9, b"", "", bytes(25)))
    until(lambda: all(w.reading()._unknown_bytes > 4 * CUT for w in workers))
    post(server, 1)
    all_get(workers, 1)
    assert len(keys) == 1
    assert pairs(written) - before > 3 * WHOLE  # each was sent it
    monkeypatch.undo()
    post(server, 2)
    all_get(workers, 2)


def test_a_stranger_who_says_again_all_he_hears_changes_nothing(make, star):
    server, workers = star(posted=True)
    stranger, over, said = make.participant(), threading.Event(), []
    its = writes(stranger, server)
    reader = DataReader(stranger, its.topic, qos(b""))

    def reflect():
        while not over.wait(0.01):
            for sample in reader.take(32):
                its.write(sample)
                said.append(sample.number)

    thread = threading.Thread(target=reflect)
    thread.start()
    for number in range(1, 20):
        post(server, number, MODEL[number:])
        all_get(workers, number, MODEL[number:])
    over.set()
    thread.join()
    assert len(said) > 20
    assert all(worker.receive(0.1) is None for worker in workers)


def test_what_nobody_knows_fills_no_memory(make, star):
    server, (one, *_) = star(posted=True, limit_bytes=3 * CUT)
    its = writes(make.participant(), server)
    until(lambda: len(its.get_matched_subscriptions()) == 3)
    reading = one.reading()
    reading._patience_s = 60.0
    assert reading._room == 2 * (3 * CUT + 2**20)

    def newest():
        return max((number for _, number in reading._unknown.copy()), default=0)

    for number in range(1, 30):
        its.write(part(bytes(16), number, 0, bytes(CUT), total=CUT))
    until(lambda: newest() == 29)
    assert reading._unknown_bytes <= reading._room and len(reading._unknown) == 7
    for _ in range(2000):
        its.write(part(bytes(16), 30, 0, b"x", total=1))
    its.write(part(bytes(16), 31, 0, b"x", total=1))
    until(lambda: newest() == 31)
    kept = sum(its.nbytes for its in reading._unknown.values())
    assert kept == reading._unknown_bytes <= reading._room
    post(server, 1)
    assert receive(one, 1) == had(one, 1)
    its.write(part(bytes(16), 1, 0, b"x", total=1))  # this one knows to be late
    its.write(part(bytes(16), 32, 0, b"x", total=1))
    until(lambda: newest() == 32)
    assert min(number for _, number in reading._unknown) > 1


def test_what_is_for_others_is_kept_for_a_while_only(star):
    server, (one, two, three) = star(posted=True)
    for number in range(1, 4):
        post(server, number, MODEL, WORKERS[:2])
    until(lambda: three.reading()._unknown_bytes > 3 * WHOLE)
    until(lambda: not three.reading()._unknown)
    assert three.reading()._unknown_bytes == 0
    post(server, 4)
    assert receive(three, 1) == had(three, 4)


def test_what_waits_for_its_body_counts_as_waiting(star, deaf):
    server, (one, *_) = star(queue_bytes=8 * CUT)
    deaf(one, lambda its: True)
    for number in range(6):
        post(server, number)
    with pytest.raises(Unreadable, match="bytes wait to be received, at most"):
        while True:
            assert one.receive(20)
    assert not one._lines["server"]._held


@pytest.mark.parametrize(
    "fields, why",
    [
        (3, "board must be an object"),
        (dict(what="post"), "board must be 8 bytes as hexadecimal digits"),
        (dict(what="post", board="/" * 16), "board must be 8 bytes"),
        (dict(what="post", board="0" * 16), "number must be"),
        (dict(what="post", board="0" * 16, number=1, size=3, key="0"), "key must be 16"),
        (dict(what="huge", board="0" * 16), "at most 4096 fit"),
        (dict(what="again", board="0" * 16), "post 3 comes after 3"),
        (dict(what="x" * 999, board="mine"), "nothing is called 'xxx"),
        (dict(what="reads", board="mine", place="?"), "non-hexadecimal"),
        (dict(what="has", board="mine", number=-1), "number must be"),
    ],
)
def test_what_a_member_says_of_boards_and_cannot_be_is_refused_by_its_name(make, fields, why):
    server, one = make("server"), make("one", limit_bytes=4096)
    meet(server, one)
    if isinstance(fields, dict) and fields.get("board") == "mine":
        one.board = Board(one.participant, 1, 1.0, one._present, one._settled)
        fields["board"] = one.board.board
    if isinstance(fields, dict) and fields["what"] in ("huge", "again"):
        size = 2**40 if fields["what"] == "huge" else 9
        whole = dict(number=3, size=size, key="0" * 32, digest="0" * 64)
        fields = fields | dict(what="post") | whole
        one._lines["server"]._posted = "0" * 16, 3
    line = server._lines["one"]
    line.say("has", "0" * 16)
    line._own[-1].head["board"] = fields
    with pytest.raises(Unreadable, match="message of server refused: of a board: .*" + why):
        one.receive(20)
    server.send("one", data(1))
    assert numbers(receive(one, 1)) == [1]


# Coming, going and closing ------------------------------------------------------------------------


def test_another_process_takes_the_place_of_one_that_reads(make, star, written):
    server, (one, two, three) = star(posted=True)
    two.close()
    until(lambda: not server._lines["two"].present)
    again = make("two")
    again.connect({"server": server.address})
    server.connect({"two": again.address})
    until(lambda: server._lines["two"].present)
    written.clear()
    post(server, 1)
    all_get((one, again, three), 1)
    assert written[board.TOPIC] == WHOLE + 3 * TAG and pairs(written) < PAYS


def test_another_process_takes_the_place_of_one_that_posts(make, star, written, deaf):
    server, workers = star()
    for worker in workers:
        deaf(worker, lambda its: its.number == 1)
    post(server, 0)
    all_get(workers, 0)
    post(server, 1)
    until(lambda: all(worker._lines["server"]._held for worker in workers))
    server.close(0.0)
    again = make("server")
    for worker in workers:
        meet(worker, again)
    until(lambda: all(again._lines[name].present for name in WORKERS))
    written.clear()
    post(again, 2)
    for worker in workers:  # what it had of the other before is no more awaited
        assert receive(worker, 1) == had(worker, 2)
        assert worker.inbox._waiting["server"] == 0
        assert len(worker.reading()._followed) == 1
    assert written[board.TOPIC] == WHOLE + 3 * TAG and pairs(written) < PAYS


@pytest.mark.parametrize("who", ["sender", "receiver"])
def test_forgetting_and_connecting_anew_drop_what_was_under_way(star, deaf, who):
    server, (one, two, three) = star()
    deaf(two, lambda its: its.number == 0)
    post(server, 0)
    until(lambda: two._lines["server"]._held)
    if who == "sender":
        server.connect({"two": two.address})
        until(lambda: "two" not in server.board._readers)
    else:
        two.forget(["server"])
        assert not two._lines["server"]._held
        two.connect({"server": server.address})
    post(server, 1)
    assert receive(two, 1) == had(two, 1)
    for worker in (one, three):
        assert receive(worker, 2) == [*had(worker, 0), *had(worker, 1)]


def test_who_is_forgotten_is_sent_nothing_that_is_posted(star):
    server, (one, two, three) = star()
    server.forget(["two"])
    post(server, 0)
    all_get((one, three), 0)
    assert two.receive(0.5) is None
    until(lambda: not server.board._kept)


def test_closing_waits_until_all_have_what_was_posted(star, deaf):
    server, (one, two, three) = star()
    deaf(two, lambda its: its.start == 0)
    for number in range(3):
        post(server, number)
    server.close(20)
    for worker in (one, two, three):
        assert [its.head["mine"][0] for its in receive(worker, 3)] == [0, 1, 2]


def test_closing_leaves_nothing_behind(star):
    before = set(threading.enumerate())
    server, workers = star()
    post(server, 0)
    receive(workers[0], 1)
    begun = time.monotonic()
    for wire in (*workers, server):
        post(server, 1)
        wire.close(0.5)
    assert time.monotonic() - begun < 15
    assert set(threading.enumerate()) <= before


def test_who_waits_for_nothing_looks_at_nothing(star):
    server, workers = star(posted=True)
    until(lambda: all(w.reading()._pause_s() == board.WAKE_S for w in workers))
    looks = []
    for worker in workers:
        worker.reading()._look = lambda: looks.append(1)
    time.sleep(1.0)
    assert len(looks) <= 3  # each may have been about to


def test_an_error_in_the_reader_meets_the_members_own_thread(star, monkeypatch):
    server, (one, *_) = star()

    def stumble(*_):
        raise KeyError("a mistake")

    monkeypatch.setattr(Reading, "_follow", stumble)
    post(server, 0)
    with pytest.raises(KeyError, match="a mistake"), suppress(Unreadable):
        one.receive(20)


def test_a_posted_body_is_said_as_it_is_read():
    its = Posted("0123456789abcdef", 3, 10**9, "ab" * 16, board.digest(MODEL))
    assert Posted.of(vars(its)) == its
    assert len(its.digest) == 64
