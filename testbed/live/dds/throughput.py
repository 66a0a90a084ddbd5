"""All-gather over DDS beside raw Cyclone writes of as many bytes and beside gloo, in one run."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from cyclonedds.core import DDSException, ReadCondition, WaitSet
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds.collectives import RANK, Group
from slowlink.testbed.live.dds.domain import ANY, DomainConfig, connect, draw, matched, qos
from slowlink.testbed.live.dds.segments import CUT, Segment
from slowlink.testbed.live.processes import LOOPBACK, Tell, run_ranks

HOST = "127.0.0.1"
RAW, OURS, GLOO = WAYS = ("raw dds", "dds", "gloo")


def measure(ranks: int, nbytes: int, rounds: int, timeout_s: float = 300.0) -> dict[str, list]:
    """Seconds of each round, by way: ``raw dds`` (samples as large as our segments, counted and
    dropped), ``dds`` (with identities; without them the work is the same), ``gloo``.

    In a round each of ``ranks`` processes of this machine sends ``nbytes`` to all; it lasts from
    the first one's start to the last one's end. Ways take turns.

    Raises
    ------
    RankFailed
        A rank failed, or none said anything for ``timeout_s``.
    """
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as keys:
        identity.make(Path(keys), [RANK.format(rank) for rank in range(ranks)])
        reports = run_ranks(
            _rank,
            ranks,
            [draw(), draw()],
            keys,
            ranks,
            nbytes,
            rounds,
            store.port,
            timeout_s,
            timeout_s=timeout_s,
            environment=lambda rank: LOOPBACK,
        )
    spans = {way: np.array([report[way] for report in reports]) for way in WAYS}
    return {
        way: (s[..., 1].max(axis=0) - s[..., 0].min(axis=0)).tolist() for way, s in spans.items()
    }


def _rank(
    domains: Sequence[int],
    keys: str,
    size: int,
    nbytes: int,
    rounds: int,
    port: int,
    timeout_s: float,
    rank: int,
    tell: Tell,
) -> dict[str, list[tuple[float, float]]]:
    """Start and end of each round of each way, on the clock that all processes share."""
    tell("joining")
    patience = timedelta(seconds=timeout_s)
    store = dist.TCPStore(HOST, port, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    payload = memoryview(np.random.default_rng(rank).bytes(nbytes))
    raw = _Raw(domains[0], rank, size - 1, timeout_s)
    options = dict(network=DomainConfig(), timeout_s=timeout_s)
    group = Group(rank, size, "throughput", domains[1], keys=keys, **options)
    ours = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    theirs = [torch.empty_like(ours) for _ in range(size)]

    def gather() -> None:
        handle = group.all_gather(payload)
        handle.wait(timeout_s)
        handle.collect()

    ways: dict[str, Callable[[], object]] = {
        RAW: lambda: raw.exchange(payload),
        OURS: gather,
        GLOO: lambda: dist.all_gather(theirs, ours),
    }
    spans: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, exchange in ways.items():
            tell(f"in round {number} of {way}")
            dist.barrier()
            start = time.monotonic()
            exchange()
            spans[way].append((start, time.monotonic()))
    dist.barrier()
    return spans


class _Raw:
    """Samples as large as a segment, counted on arrival and dropped: what Cyclone itself does."""

    def __init__(self, domain: int, rank: int, others: int, timeout_s: float) -> None:
        self.rank, self.others, self.received, self.timeout_s = rank, others, 0, timeout_s
        participant = connect(domain, DomainConfig())
        topic = Topic(participant, "raw", Segment)
        self.reader = DataReader(participant, topic, qos(b""))
        self.writer = DataWriter(participant, topic, qos(b""))
        self.arrived = WaitSet(participant)
        self.arrived.attach(ReadCondition(self.reader, ANY))
        self.changed = threading.Condition()
        threading.Thread(target=self._drain, daemon=True).start()
        deadline = time.monotonic() + timeout_s
        both = self.writer.get_matched_subscriptions, self.reader.get_matched_publications
        while any(len(matched(handles) or ()) != others for handles in both):
            if time.monotonic() > deadline:
                raise ConnectionError(f"raw writes: not {others} others within {timeout_s:g} s")
            time.sleep(0.01)

    def _drain(self) -> None:
        while True:
            self.arrived.wait(duration(seconds=1))
            length = sum(len(sample.body) for sample in self.reader.take(32))
            with self.changed:
                self.received += length
                self.changed.notify_all()

    def _write(self, segment: Segment) -> None:
        """Write as a channel does, and go on waiting while readers take nothing."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            try:
                return self.writer.write(segment)
            except DDSException as error:
                late = time.monotonic() > deadline
                if late or error.code != DDSException.DDS_RETCODE_TIMEOUT:
                    raise ConnectionError(f"raw writes: {error}") from error

    def exchange(self, payload: memoryview) -> None:
        for start in range(0, len(payload), CUT):
            body = payload[start : start + CUT]
            self._write(Segment(1, self.rank, 0, 1, 0, start, len(payload), b"", "", body))
        whole = self.others * len(payload)
        with self.changed:
            if not self.changed.wait_for(lambda: self.received >= whole, self.timeout_s):
                raise ConnectionError(f"raw writes: {self.received} of {whole} bytes arrived")
            self.received -= whole
