"""What the processes of the DDS benchmark do; a module of its own, because ranks import it."""

import threading
import time
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from cyclonedds.core import ReadCondition, WaitSet
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from testbed.live.dds import Group, Network, connect
from testbed.live.dds.domain import qos
from testbed.live.dds.segments import CUT, Segment

WAIT_S = 120.0
ANY = 127  # of sample, view and instance states


class Raw:
    """Samples as large as a segment, counted on arrival and dropped: what Cyclone itself does."""

    def __init__(self, domain, rank, others):
        self.rank, self.others, self.received = rank, others, 0
        participant = connect(domain, Network())
        topic = Topic(participant, "raw", Segment)
        self.reader = DataReader(participant, topic, qos(b""))
        self.writer = DataWriter(participant, topic, qos(b""))
        self.arrived = WaitSet(participant)
        self.arrived.attach(ReadCondition(self.reader, ANY))
        self.changed = threading.Condition()
        threading.Thread(target=self.drain, daemon=True).start()
        while not (
            len(self.writer.get_matched_subscriptions())
            == len(self.reader.get_matched_publications())
            == others
        ):
            time.sleep(0.01)

    def drain(self):
        while True:
            self.arrived.wait(duration(seconds=1))
            length = sum(len(sample.body) for sample in self.reader.take(32))
            with self.changed:
                self.received += length
                self.changed.notify_all()

    def exchange(self, payload):
        for start in range(0, len(payload), CUT):
            body = payload[start : start + CUT]
            self.writer.write(Segment(1, self.rank, 0, 0, start, len(payload), bytes(16), "", body))
        with self.changed:
            whole = self.others * len(payload)
            assert self.changed.wait_for(lambda: self.received >= whole, WAIT_S)
            self.received -= whole


def gather(group, payload):
    handle = group.all_gather(payload)
    handle.wait(WAIT_S)
    handle.collect()


def compare(domains, size, length, rounds, port, rank, tell):
    """Start and end (s since 1970) of each round of each way."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=WAIT_S))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    payload = memoryview(np.random.default_rng(rank).bytes(length))
    raw = Raw(domains[0], rank, size - 1)
    options = dict(network=Network(), timeout_s=WAIT_S)
    plain = Group(rank, size, "bench", domains[1], **options)
    authentic = Group(rank, size, "bench", domains[2], secret=bytes(32), **options)
    ours = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    theirs = [torch.empty_like(ours) for _ in range(size)]
    ways = {
        "raw": lambda: raw.exchange(payload),
        "all_gather": lambda: gather(plain, payload),
        "all_gather_authentic": lambda: gather(authentic, payload),
        "gloo": lambda: dist.all_gather(theirs, ours),
    }
    took = {way: [] for way in ways}
    for _ in range(rounds):
        for way, exchange in ways.items():
            dist.barrier()
            start = time.time()
            exchange()
            took[way].append((start, time.time()))
    dist.barrier()
    return took
