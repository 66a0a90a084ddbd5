"""Data-parallel training over DDS: the step of :mod:`testbed.live.data_parallel` on a group.

Every tensor's payload leaves in an all-gather of its own while backward goes on, several of them
under way; payloads combine in the order of ranks, so the parameters are bit-equal to the
virtual-time trainer's. Source: DDS document, the part on data-parallel training.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from slowlink.methods.compression import Combine, Compressor, Key, Payload
from slowlink.testbed.live import data_parallel
from slowlink.testbed.live.data_parallel import LiveRun, Run
from slowlink.testbed.live.dds.collectives import Group
from slowlink.testbed.live.dds.domain import DomainConfig, draw
from slowlink.testbed.live.dds.segments import wire_bytes
from slowlink.testbed.training.datasets import Dataset
from slowlink.torch.wire import Arrived, Flight


class Dds:
    """A :class:`slowlink.torch.wire.Wire` over a group of ranks; it gathers everything."""

    def __init__(self, group: Group, timeout_s: float) -> None:
        self.rank, self.size = group.rank, group.size
        self.group, self.timeout_s = group, timeout_s

    def early(self, codec: Compressor) -> bool:
        """Second rounds start on the messenger's thread: first ones beside them would mix up."""
        return codec.one_shot

    def begin(
        self,
        payloads: Sequence[Payload],
        ways: Sequence[Combine],
        keys: Sequence[Key],
        *,
        early: bool = False,
        ordered: bool = False,
        exact: bool = False,
    ) -> Flight:
        """Send the payloads at once, each on its own."""
        labels = [_label(payload, key) for payload, key in zip(payloads, keys, strict=True)]
        handles = [
            self.group.all_gather(payload.body, label)
            for payload, label in zip(payloads, labels, strict=True)
        ]

        def wait() -> tuple[list[Arrived], int]:
            arrived, received = [], 0
            for payload, handle in zip(payloads, handles, strict=True):
                handle.wait(self.timeout_s)
                received += handle.received_bytes
                arrived.append([replace(payload, body=bytes(body)) for body in handle.collect()])
            return arrived, received

        pairs, others = zip(payloads, labels, strict=True), self.size - 1
        sent = sum(wire_bytes(payload.nbytes, label, others) for payload, label in pairs)
        return Flight(sent, wait)

    def barrier(self) -> None:
        self.group.barrier(self.timeout_s)


def _label(payload: Payload, key: Key) -> str:
    """Everything about a payload but its bytes, so that ranks which differ are refused."""
    shape = "x".join(map(str, payload.shape))
    return f"{key} {payload.codec} {shape} {payload.form} {payload.dtype}".rstrip()


@contextmanager
def join(
    run: str,
    domain: int,
    keys: str | Path | None,
    network: DomainConfig | None,
    timeout_s: float,
    rank: int,
    ranks: int,
) -> Iterator[Dds]:
    """Be ``rank`` of so many in a run; raises as :class:`testbed.live.dds.Group`."""
    options = dict(keys=keys, network=network, timeout_s=timeout_s)
    with Group(rank, ranks, run, domain, **options) as group:
        yield Dds(group, timeout_s)


def measure_all(
    cases: Sequence[LiveRun],
    *,
    keys: str | Path | None = None,
    network: DomainConfig | None = None,
    dataset: Dataset | None = None,
    timeout_s: float = 120.0,
) -> list[Run]:
    """As :func:`testbed.live.data_parallel.measure_all`, over DDS on this machine.

    Parameters
    ----------
    keys, network: see :class:`testbed.live.dds.Group`.
    """
    if any(case.ddp for case in cases):
        raise ValueError("ddp: torch's DistributedDataParallel runs over gloo, not over DDS")
    entrance = partial(join, secrets.token_hex(), draw(), keys, network, timeout_s)
    return data_parallel.measure_all(cases, dataset=dataset, join=entrance, timeout_s=timeout_s)
