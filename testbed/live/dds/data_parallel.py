"""Data-parallel training over DDS: the step of :mod:`testbed.live.data_parallel` on a group.

Every tensor's payload leaves in an all-gather of its own while backward goes on, several of them
under way; payloads combine in the order of ranks, so the parameters are bit-equal to the
virtual-time trainer's. Source: DDS document, the part on data-parallel training.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from slowlink.methods.compression import Key, Payload
from slowlink.testbed.live import data_parallel
from slowlink.testbed.live.data_parallel import LiveRun, Run
from slowlink.testbed.live.dds.collectives import Group
from slowlink.testbed.live.dds.domain import LAST_DOMAIN, DomainConfig
from slowlink.testbed.live.dds.segments import wire_bytes
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Recipe


class Dds:
    """A :class:`testbed.live.transport.Wire` over a group of ranks."""

    all_reduce = None

    def __init__(self, group: Group, timeout_s: float) -> None:
        self.rank, self.size = group.rank, group.size
        self.received_bytes = 0
        self.group, self.timeout_s = group, timeout_s

    def gather(self, payload: Payload, key: Key) -> Callable[[], list[Payload]]:
        """Send the payload at once."""
        handle = self.group.all_gather(payload.body, _label(payload, key))

        def finish() -> list[Payload]:
            handle.wait(self.timeout_s)
            self.received_bytes += handle.received_bytes
            return [replace(payload, body=bytes(body)) for body in handle.collect()]

        return finish

    def frame_bytes(self, payload: Payload, key: Key) -> int:
        return wire_bytes(payload.nbytes, _label(payload, key))

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
    secret: bytes | None,
    network: DomainConfig | None,
    timeout_s: float,
    rank: int,
    ranks: int,
) -> Iterator[Dds]:
    """Be ``rank`` of so many in a run; raises as :class:`testbed.live.dds.Group`."""
    options = dict(secret=secret, network=network, timeout_s=timeout_s)
    with Group(rank, ranks, run, domain, **options) as group:
        yield Dds(group, timeout_s)


def measure(recipe: Recipe, steps: int, *, evaluate: bool = False, **options: Any) -> Run:
    """Train ``recipe`` for ``steps`` on one process a worker; one worker is a centralised run.

    Parameters
    ----------
    evaluate: see :func:`testbed.live.data_parallel.measure`.
    options: of :func:`measure_all`.
    """
    (run,) = measure_all([LiveRun(recipe, steps, ordered=True, evaluate=evaluate)], **options)
    return run


def measure_all(
    cases: Sequence[LiveRun],
    *,
    domain: int | None = None,
    secret: bytes | None = None,
    network: DomainConfig | None = None,
    dataset: Dataset | None = None,
    timeout_s: float = 120.0,
    progress: bool = False,
) -> list[Run]:
    """As :func:`testbed.live.data_parallel.measure_all`, over DDS on this machine.

    Parameters
    ----------
    domain: which no other run on this machine uses; drawn at random if None.
    secret, network: see :class:`testbed.live.dds.Group`.
    """
    if any(case.ddp for case in cases):
        raise ValueError("ddp: torch's DistributedDataParallel runs over gloo, not over DDS")
    if domain is None:
        domain = secrets.randbelow(LAST_DOMAIN + 1)
    entrance = partial(join, secrets.token_hex(), domain, secret, network, timeout_s)
    return data_parallel.measure_all(
        cases, dataset=dataset, join=entrance, timeout_s=timeout_s, progress=progress
    )
