"""What test ranks do over DDS; a module of its own, because ranks import it by name."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from said import strike_off
from waiting import until

from slowlink.testbed.live.dds import Access, Channel, DomainConfig, Group, Keys, RankLost, connect
from slowlink.testbed.live.dds import domain as domain_module
from slowlink.testbed.live.dds.collectives import TOPIC
from slowlink.testbed.live.dds.domain import configuration, qos
from slowlink.testbed.live.dds.segments import Segment
from slowlink.testbed.live.dds.sessions import CARD
from slowlink.testbed.live.dds.wire import DdsWire
from slowlink.testbed.live.fork_server import environment

NETWORK = DomainConfig(lease_s=3.0)
RUN = "test"
WAIT_S = 60.0
wait_until = partial(until, within_s=WAIT_S)


def access(rank, size=2, keys=None):
    """To a topic of so many ranks."""
    names = {other: f"rank-{other}" for other in range(size)}
    return Access(RUN, names, Keys(keys, names[rank]) if keys else None)


def payload(rank, number, length):
    """Different for every rank and number, and anywhere within."""
    return np.random.default_rng([rank, number]).bytes(length)


def join(domain, size, rank, **options):
    return Group(rank, size, RUN, domain, network=NETWORK, timeout_s=WAIT_S, **options)


def gather(domain, size, lengths, rank, tell):
    """All of ``lengths`` in flight at once; whether each arrived as sent, and the statistics."""
    with join(domain, size, rank) as group:
        handles = [
            group.all_gather(payload(rank, number, length + rank), f"tensor {number}")
            for number, length in enumerate(lengths)
        ]
        answers = []
        for number, handle in reversed(list(enumerate(handles))):
            handle.wait(WAIT_S)
            expected = [payload(other, number, lengths[number] + other) for other in range(size)]
            same = handle.collect() == expected
            statistics = (handle.payload_bytes, handle.sent_bytes, handle.received_bytes)
            answers.insert(0, (same, *statistics, handle.wait_s))
        values = np.arange(6, dtype=np.float32).reshape(2, 3) * (rank + 1)
        total = group.all_reduce(values)
        total.wait(WAIT_S)
        return answers, total.collect(), dict(group.refused)


def gather_as_told(domain, size, lengths, rank, tell):
    """:func:`gather` on the network that the environment names."""
    global NETWORK
    NETWORK = DomainConfig.from_environment()
    return gather(domain, size, lengths, rank, tell)


def disagree(domain, size, rank, tell):
    with join(domain, size, rank) as group:
        handle = group.all_gather(b"", f"of rank {rank}")
        try:
            handle.wait(WAIT_S)
        except RankLost as error:
            group.barrier(WAIT_S)
            return error.ranks, str(error)


def many(domain, size, times, rank, tell):
    """Peak memory in KiB a third of the way and at the end of many small all-gathers."""
    with join(domain, size, rank) as group:
        for number in range(times):
            handle = group.all_gather(number.to_bytes(8, "little") * 16, "step")
            handle.wait(WAIT_S)
            assert handle.collect() == [number.to_bytes(8, "little") * 16] * size
            if number == times // 3:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def ahead(domain, size, times, rank, tell):
    """Rank 0 starts them all before the others start one."""
    with join(domain, size, rank) as group:
        if rank:
            time.sleep(0.5)
        handles = [group.all_gather(bytes([rank]), str(number)) for number in range(times)]
        for handle in handles:
            handle.wait(WAIT_S)
        return {tuple(map(bytes, handle.collect())) for handle in handles}


def half(domain, size, rank):
    """Joins, sends one segment of three of its second message, says so and hangs."""
    group = join(domain, size, rank)
    group.all_gather(bytes(1000), "first").wait(WAIT_S)
    group._sender.submit(int).result()  # once it is on its way
    channel = group._channel
    _, seal = channel._sessions.seal()
    channel._write(next(seal.cut(channel._number, bytes(3 << 20), "second")))
    print("ready", flush=True)
    time.sleep(600)


def kill_half(domain, size, rank):
    """A process in the place of this rank, killed amid an all-gather."""
    call = f"import dds_peers; dds_peers.half({domain}, {size}, {rank})"
    options = dict(stdout=subprocess.PIPE, env=environment())
    with subprocess.Popen([sys.executable, "-c", call], **options) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()


def lose(domain, size, end, rank, tell):
    """The last rank ends like ``end`` amid an all-gather; what the others hear, and how soon."""
    if end == "kill" and rank == size - 1:
        return kill_half(domain, size, rank)
    group = join(domain, size, rank)
    group.all_gather(bytes(1000), "first").wait(WAIT_S)
    if rank == size - 1:
        if end == "close":
            group.close()
            return None
        if end == "pause":
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
    start = time.monotonic()
    handle = group.all_gather(bytes(3 << 20), "second")
    try:
        handle.wait(WAIT_S)
    except RankLost as error:
        return error.ranks, str(error), time.monotonic() - start
    group.close()
    return [], "", time.monotonic() - start


def late(domain, size, absent, rank, tell):
    """Rank ``absent`` comes to no barrier; the others wait 1 s for it."""
    with join(domain, size, rank) as group:
        group.barrier(WAIT_S)
        if rank == absent:
            time.sleep(2.0)
            return None
        try:
            group.barrier(1.0)
        except RankLost as error:
            return error.ranks, str(error)


def strangers(domain, keys, rank, tell):
    """Ranks with identities of different lists, or none, wait 2 s for each other."""
    try:
        Group(rank, len(keys), RUN, domain, network=NETWORK, keys=keys[rank], timeout_s=2.0)
    except RankLost as error:
        time.sleep(0.5)  # so that the other has its say too
        return error.ranks, str(error)
    return None


def again(domain, times, rank, tell):
    """Groups one after the other in one process; threads left after each."""
    left = []
    for number in range(times):
        with Group(rank, 2, f"run {number}", domain, network=NETWORK) as group:
            group.barrier(WAIT_S)
        left.append(threading.active_count())
    return left


def gather_between_hosts(domain, rank):
    """Whether all arrived; ``SLOWLINK_KEYS`` names the identities."""
    answers, _, refused = gather_as_told(domain, 2, [0, (5 << 20) + 1, 17], rank, print)
    return all(answer[0] for answer in answers) and not refused


def talk(domain, rank):
    """All-gathers for some seconds; the ranks that got lost meanwhile."""
    with Group(rank, 2, RUN, domain, timeout_s=WAIT_S) as group:
        for number in range(60):
            if number == 5:
                print("talking", flush=True)
            handle = group.all_gather(payload(rank, number, 10_000), str(number))
            try:
                handle.wait(WAIT_S)
            except RankLost as error:
                return error.ranks
            assert handle.collect()[1 - rank] == payload(1 - rank, number, 10_000)
            time.sleep(0.05)
    return []


def overheard(domain, keys, rank, tell):
    """Ranks 0 and 1 gather; rank 2 is a stranger who sends again whatever it hears."""
    if rank == 2:
        participant = connect(domain, NETWORK, RUN)
        topic = Topic(participant, "slowlink_group", Segment)
        reader = DataReader(participant, topic, qos(b""))
        writer = DataWriter(participant, topic, qos(b""))
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            for segment in reader.take(32):
                if isinstance(segment, Segment):
                    writer.write(segment)
            time.sleep(0.01)
        return None
    time.sleep(1.0)
    with join(domain, 2, rank, keys=keys) as group:
        for number in range(100):
            handle = group.all_gather(payload(rank, number, 1000), str(number))
            handle.wait(WAIT_S)
            assert handle.collect() == [payload(other, number, 1000) for other in range(2)]
            time.sleep(0.01)
        return dict(group.refused)


def oversize(domain, rank, tell):
    """Rank 0 listens with a small limit while rank 1, without the key, writes one huge sample.

    Rank 0 says by how many MiB its peak memory grew.
    """
    if rank:
        uncapped = re.sub("<MaxSampleSize>.*?</MaxSampleSize>", "", configuration(DomainConfig()))
        entered, participant = Domain(domain, uncapped), DomainParticipant(domain)
        writer = DataWriter(participant, Topic(participant, "t", Segment), qos(b""))
        time.sleep(2.0)
        huge = 150 << 20
        writer.write(Segment(1, 1, 1, 1, 0, 0, huge, b"", "", bytes(huge)))
        time.sleep(3.0)
        del entered
        return None
    entered = connect(domain, DomainConfig())
    channel = Channel(entered, "t", 0, access(0), lambda m: None, limit=1000)
    time.sleep(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    time.sleep(5.0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    channel.close()
    return grown


def small(size):
    """Endpoints of this process hold ``size`` segments and take no more until these are read."""
    domain_module.UNREAD = size


def unread(domain, folder, kind, rank, tell):
    """Rank 0 sends to rank 1, who never takes: a stranger, or a member whose hands are full.

    Rank 0 says what it gets told and after how long, and how long it takes to close.
    """
    participant = connect(domain, NETWORK, RUN)
    ended = folder / "ended"
    if rank == 0:
        channel = Channel(participant, "t", 0, access(0), lambda message: None)
        wait_until(lambda: channel.members() or kind == "stranger")
        wait_until(lambda: channel._readers)
        start = time.monotonic()
        try:
            while True:
                start = time.monotonic()
                channel.send(bytes(1 << 20), "model", timeout_s=1.0)
        except TimeoutError as error:
            took, start = time.monotonic() - start, time.monotonic()
            channel.close(0.5)
            ended.touch()
            return str(error), took, time.monotonic() - start
    small(4)
    if kind == "member":
        hung = Channel(participant, "t", 1, access(1), lambda message: wait_until(ended.exists))
    else:
        hung = DataReader(participant, Topic(participant, "t", Segment), qos(b""))
    wait_until(ended.exists)
    del hung
    return None


def unread_group(domain, folder, rank, tell):
    """Ranks 0 and 1 gather while rank 2 is a stranger who reads their topic and never takes."""
    ended = folder / f"{rank} ended"
    if rank == 2:
        small(4)
        participant = connect(domain, NETWORK, RUN)
        reader = DataReader(participant, Topic(participant, TOPIC, Segment), qos(b""))
        wait_until(lambda: all((folder / f"{r} ended").exists() for r in range(2)))
        del reader
        return None
    group = join(domain, 2, rank)
    group.timeout_s = 2.0
    wait_until(lambda: None in group._channel._readers.values())
    start = time.monotonic()
    try:
        while True:
            group.all_gather(bytes(1 << 20)).wait(WAIT_S)
    except (TimeoutError, RankLost) as error:
        took = time.monotonic() - start
        group.close(0.5)
        ended.touch()
        return type(error), str(error), took


def apart(domain, folder, rank, tell):
    """Rank 0 writes, and says how many readers it found: rank 1's, of its run, who is there after
    rank 2's, of another."""
    participant = connect(domain, NETWORK, "another" if rank == 2 else RUN)
    topic = Topic(participant, TOPIC, Segment)
    if rank == 0:
        writer = DataWriter(participant, topic, qos(b""))
        wait_until((folder / "1").exists)
        wait_until(writer.get_matched_subscriptions)
        time.sleep(0.5)
        (folder / "0").touch()
        return len(writer.get_matched_subscriptions())
    if rank == 1:
        wait_until((folder / "2").exists)
        time.sleep(0.5)
    reader = DataReader(participant, topic, qos(b""))
    (folder / str(rank)).touch()
    wait_until((folder / "0").exists)
    del reader
    return None


def recorded(domain, folder, keys, rank, tell):
    """Ranks 0 and 1 are a group twice, under one name; rank 2, a stranger, records the first and
    plays it to the second, whose rank 0 is there before its rank 1."""
    if rank == 2:
        participant = connect(domain, NETWORK, RUN)
        topic = Topic(participant, TOPIC, Segment)
        reader, taken = DataReader(participant, topic, qos(b"")), []
        (folder / "listening").touch()
        while not all((folder / f"{r} left").exists() for r in range(2)):
            taken += [s for s in reader.take(32) if isinstance(s, Segment)]
            time.sleep(0.01)
        writer = DataWriter(participant, topic, qos(b""))
        (folder / "playing").touch()
        while not all((folder / f"{r} done").exists() for r in range(2)):
            for sample in taken:
                writer.write(sample)
            time.sleep(0.1)
        return len(taken)
    wait_until((folder / "listening").exists)
    options = dict(network=NETWORK, keys=keys, timeout_s=WAIT_S)
    for turn in range(2):
        if turn:
            (folder / f"{rank} left").touch()
            wait_until((folder / "playing").exists)
            time.sleep(1.5 * rank)
        with Group(rank, 2, RUN, domain, **options) as group:
            for number in range(20):
                handle = group.all_gather(payload(rank, turn, 1000), str(number))
                handle.wait(WAIT_S)
                assert handle.collect() == [payload(other, turn, 1000) for other in range(2)]
                time.sleep(0.02)
            refused = dict(group.refused)
    (folder / f"{rank} done").touch()
    return refused


def acting(domain, keys, rank, tell):
    """Ranks 0 and 1 gather; rank 2 is of the group, and says what it can in the name of rank 1."""
    with join(domain, 3, rank, keys=keys) as group:
        group.all_gather(payload(rank, 0, 1000), "first").wait(WAIT_S)
        if rank == 2:
            channel = group._channel
            _, seal = channel._sessions.seal()
            theirs = channel._sessions._pairs[1]
            for number in range(50):
                (segment,) = seal.cut(number, b"of rank 2")
                segment.sender, segment.life = 1, theirs.life
                channel._write(segment)
        handle = group.all_gather(payload(rank, 1, 1000), "second")
        handle.wait(WAIT_S)
        assert handle.collect() == [payload(other, 1, 1000) for other in range(3)]
        return dict(group.refused)


def revoke(domain, keys, rank, tell):
    """Three gather, until rank 2 is struck off the list. Who has lost it waits until the other has,
    who would lose both."""
    with join(domain, 3, rank, keys=keys) as group:
        for number in range(1000):
            handle = group.all_gather(payload(rank, number, 100), str(number))
            if rank == 0 and number == 3:
                strike_off(keys, "rank-2")
            try:
                handle.wait(WAIT_S)
            except RankLost as error:
                (keys.parent / f"lost to {rank}").touch()
                if rank != 2:
                    wait_until((keys.parent / f"lost to {1 - rank}").exists)
                return error.ranks, str(error)
            time.sleep(0.05)


def forge(domain, folder, keys, rank, tell):
    """Rank 0 is a member and so is rank 1 until it leaves; rank 2, without the key, claims to be
    rank 1, also with its own words. Rank 0 says who is there and who has left: while the forger is
    there, after it left, while it is there again, and after rank 1 left."""
    participant = connect(domain, NETWORK, RUN)

    def told(name):
        (folder / name).touch()

    def wait_for(name):
        wait_until((folder / name).exists)

    if rank == 2:
        topic = Topic(participant, "t", Segment)
        ears = DataReader(participant, topic, qos(b""))
        wait_until(lambda: len(ears.get_matched_publications()) == 2)
        words = [
            ears.get_matched_publication_data(handle).qos[Policy.Userdata].data
            for handle in ears.get_matched_publications()
        ]
        words += [b"slowlink member 1", bytes(CARD.size)]
        for come, go, after in (("forged", "seen", "missed"), ("forged again", "end", "end")):
            both = (DataWriter, DataReader)
            ends = [kind(participant, topic, qos(word)) for word in words for kind in both]
            told(come)
            wait_for(go)
            del ends
            wait_for(after)
        return None
    left = []
    channel = Channel(participant, "t", rank, access(rank, keys=keys), print, left.append)
    if rank == 1:
        wait_for("leave")
        channel.close()
        return None
    assert not channel.wait_for({1}, WAIT_S)
    views = []

    def look(readers):
        wait_until(lambda: len(channel._readers) == len(channel._writers) + 1 == readers)
        time.sleep(0.2)
        views.append((channel.members(), list(left)))

    wait_for("forged")
    look(6)  # of rank 1, four forged, one that only listens
    told("seen")
    look(2)
    told("missed")
    wait_for("forged again")
    look(6)
    told("leave")
    wait_until(lambda: left)
    look(5)
    told("end")
    channel.close()
    return views


def stumble(domain, size, rank, tell):
    """The last rank's receiving thread meets an error amid the all-gathers."""
    group = join(domain, size, rank)
    if rank == size - 1:

        def deliver(message):
            raise KeyError("a mistake")

        group._channel._deliver = deliver
    try:
        for number in range(1000):
            group.all_gather(b"", str(number)).wait(WAIT_S)
    except ConnectionError as error:
        try:
            group._channel.send(b"")
            later = ""
        except ConnectionError as again:
            later = str(again)
        group.close(0.5)
        return str(error), later


def post(domain, size, lengths, together, rank, tell):
    """Rank 0 sends all others bodies of these lengths, one at a time: at once, or each on its own.

    It says how long each took until all others had it, and the bytes of bodies that it wrote.
    """
    names = [f"rank-{other}" for other in range(size)]
    written, write = [], DataWriter.write

    def count(writer, segment):
        written.append(len(segment.body))
        return write(writer, segment)

    DataWriter.write = count
    wire, took = DdsWire(names[rank], domain, NETWORK, RUN, names), []
    others = names[:rank] + names[rank + 1 :]
    wire.connect(dict.fromkeys(others if rank == 0 else names[:1], wire.address))

    def hear(count):
        return [wire.receive(WAIT_S) for _ in range(count)]

    if rank == 0:
        hear(size - 1)
    else:
        wire.send(names[0], dict(kind="here"))
    heads = {name: dict(kind="data", mine=other) for other, name in enumerate(names) if other}
    for number, length in enumerate(lengths):
        body = payload(0, number, length)
        start = time.monotonic()
        if rank:
            [received] = hear(1)
            assert (received.head, received.body) == (heads[names[rank]], body)
            wire.send(names[0], dict(kind="there"))
            continue
        if together:
            wire.send_all(heads, body)
        else:
            for name, head in heads.items():
                wire.send(name, head, body)
        hear(size - 1)
        took.append(time.monotonic() - start)
    wire.close(WAIT_S)
    return took, sum(written)
