"""What test ranks do over DDS; a module of its own, because ranks import it by name."""

import os
import queue
import re
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from testbed.live.dds import Channel, Group, Network, RankLost, connect, run_key
from testbed.live.dds.domain import configuration, qos
from testbed.live.dds.segments import Segment, cut

NETWORK = Network(lease_s=3.0)
RUN = "test"
WAIT_S = 60.0


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
    NETWORK = Network.from_environment()
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
    channel = group._channel
    parts = cut(channel._key, rank, channel._life, channel._number, bytes(3 << 20), "second")
    channel._write(next(parts))
    print("ready", flush=True)
    time.sleep(600)


def kill_half(domain, size, rank):
    """A process in the place of this rank, killed amid an all-gather."""
    call = f"import dds_peers; dds_peers.half({domain}, {size}, {rank})"
    with subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE) as process:
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


def strangers(domain, secrets, rank, tell):
    """Ranks with different secrets wait 2 s for each other."""
    try:
        Group(rank, len(secrets), RUN, domain, network=NETWORK, secret=secrets[rank], timeout_s=2.0)
    except RankLost as error:
        time.sleep(0.5)  # so that the other has its say too
        return error.ranks, str(error)
    return None


def publish(domain, rank, tell):
    """Member 0 sends, then member 1 comes; the latest message is three segments."""
    participant = connect(domain, NETWORK)
    received = queue.Queue()
    if rank:
        time.sleep(1.0)
    channel = Channel(participant, "model", rank, run_key(RUN), received.put, kept=3)
    if rank == 0:
        for number in range(3):
            channel.send(payload(0, number, 3 << 20), f"model {number}")
    else:
        labels = {}
        while "model 2" not in labels:
            message = received.get(timeout=WAIT_S)
            labels[message.label] = message.payload == payload(0, message.number, 3 << 20)
        channel.send(b"", "thanks")
    thanks = received.get(timeout=WAIT_S).label if rank == 0 else None
    channel.close()
    return labels if rank else thanks


def again(domain, times, rank, tell):
    """Groups one after the other in one process; threads left after each."""
    left = []
    for number in range(times):
        with Group(rank, 2, f"run {number}", domain, network=NETWORK) as group:
            group.barrier(WAIT_S)
        left.append(threading.active_count())
    return left


def gather_between_hosts(domain, rank):
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


def overheard(domain, rank, tell):
    """Ranks 0 and 1 gather; rank 2 is a stranger who sends again whatever it hears."""
    if rank == 2:
        participant = connect(domain, NETWORK)
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
    with join(domain, 2, rank, secret=bytes(32)) as group:
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
        uncapped = re.sub("<MaxSampleSize>.*?</MaxSampleSize>", "", configuration(Network()))
        entered, participant = Domain(domain, uncapped), DomainParticipant(domain)
        writer = DataWriter(participant, Topic(participant, "t", Segment), qos(b""))
        time.sleep(2.0)
        huge = 150 << 20
        writer.write(Segment(1, 1, 1, 0, 0, huge, bytes(16), "", bytes(huge)))
        time.sleep(3.0)
        del entered
        return None
    channel = Channel(
        connect(domain, Network()), "t", 0, run_key("r", bytes(16)), lambda m: None, limit=1000
    )
    time.sleep(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    time.sleep(5.0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    channel.close()
    return grown
