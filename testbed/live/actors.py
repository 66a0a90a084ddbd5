"""Policies on a real engine: every worker is a process of its own, a Ray actor.

The driver is the server. It keeps the global model, tells the policy what happens, by its own
clock, and carries out what it decides. Ray is an optional dependency (group ``ray``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Policy
from slowlink.testbed.live.driver import AveragedOver, Server, drive, name_of
from slowlink.testbed.live.replay import TICK_S, Record
from slowlink.testbed.live.worker import Worker
from slowlink.testbed.training import models
from slowlink.testbed.training.datasets import Dataset, load_dataset
from slowlink.testbed.training.learner import IMAGE_BATCH, fan_out
from slowlink.testbed.training.sampling import split


def run(
    policy: Policy,
    model: nn.Module,
    dataset: Dataset,
    *,
    slow: Sequence[float],
    lr: float,
    batch: int,
    momentum: float = 0.0,
    iterations: int | None = None,
    seconds: float | None = None,
    averaged_over: AveragedOver = "members",
    groups: Sequence[int] | None = None,
    address: str | None = None,
    seed: int = 0,
) -> Record:
    """Train ``model``, in place, under ``policy`` on one Ray actor a worker.

    Each worker does SGD with momentum on its own share of the data and keeps its velocity when it
    takes a new model. Where gradients travel, it takes no steps: the server does, by the mean of
    the members' gradients. A worker that dies leaves, and the others go on.

    Parameters
    ----------
    model: without buffers (no BatchNorm): only parameters are averaged.
    dataset: images, in memory.
    slow: a factor of at least 1 for each worker: after an iteration of c seconds it sleeps
        (factor - 1) c. As many workers as factors.
    batch: samples of an iteration.
    iterations, seconds: the end, as in :func:`testbed.training.virtual_time.play`.
    averaged_over: the global model changes by the mean over the ``members`` of a meeting, or by
        their sum over the number of ``all`` workers. Inner levels average over their members.
    groups: the group (site) of each worker; one for all if None.
    address: of a Ray cluster, ``auto`` for the one that this machine is in; None starts one here.
        Its nodes need this package installed, and a free processor for each worker.

    Raises
    ------
    ModuleNotFoundError: Ray is not installed.
    ValueError: an argument outside what is said above.
    RuntimeError: a decision that cannot be carried out, no worker left, a deadlock, or silence.
    """
    _check(policy, model, slow, iterations, seconds, averaged_over)
    ray = _ray(address)
    groups = tuple(groups or [0] * len(slow))
    if len(groups) != len(slow):
        raise ValueError(f"{len(groups)} groups for {len(slow)} workers")
    if dataset.mean is None:
        raise ValueError(f"{dataset.name} is text; workers here take images")
    generator = torch.Generator().manual_seed(fan_out(seed, "split"))
    shards = split(len(dataset.train_y), len(slow), generator)
    server = Server(model, len(slow), policy.travels, averaged_over, lr, momentum)
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, len(slow))
    team = None
    try:
        _check_room(ray, len(slow))
        team = Actors(ray)
        for rank, (factor, shard) in enumerate(zip(slow, shards, strict=True)):
            team.add(
                model,
                dataset.train_x[shard],
                dataset.train_y[shard],
                dataset.mean,
                dataset.std,
                travels=policy.travels,
                lr=lr,
                momentum=momentum,
                batch=batch,
                slow=factor,
                seed=fan_out(seed, f"sampler {rank}"),
            )
        team.begin()
        record = drive(policy, team, server, groups, iterations=iterations, seconds=seconds)
    finally:
        if team is not None:
            team.kill()
        if ours:
            ray.shutdown()
    vector_to_parameters(server.model.detach().clone(), model.parameters())
    return replace(
        record,
        accuracy=accuracy(model, dataset),
        digest=hashlib.blake2b(server.model.detach().numpy().tobytes(), digest_size=16).hexdigest(),
        about=dict(
            dataset=dataset.name,
            samples=len(dataset.train_y),
            slow=list(slow),
            lr=lr,
            momentum=momentum,
            batch=batch,
            averaged_over=averaged_over,
            seed=seed,
            ray=ray.__version__,
            torch=str(torch.__version__),
        ),
    )


def _check(policy, model, slow, iterations, seconds, averaged_over) -> None:
    if iterations is None and seconds is None:
        raise ValueError("run needs an end: iterations or seconds")
    if not len(slow) or not all(1 <= factor < math.inf for factor in slow):
        raise ValueError(f"slow: one finite factor of at least 1 for each worker, not {slow}")
    if averaged_over not in ("members", "all"):
        raise ValueError(f"averaged_over must be members or all, not {averaged_over!r}")
    if policy.continues_after_upload:
        raise ValueError(f"{name_of(policy)}: here workers idle while their upload is on its way")
    if next(model.buffers(), None) is not None:
        raise ValueError(f"{type(model).__name__} has buffers; only parameters are averaged")


def _ray(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:  # a single machine needs no authentication
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "workers as Ray actors need Ray: python .ci/install.py ray, or make reproduce-ray"
        ) from error
    return ray


def _start(ray: Any, address: str | None, workers: int) -> None:
    where = dict(address=address)
    if address is None:  # without "local", Ray would join a cluster that is already running
        where = dict(address="local", num_cpus=workers, include_dashboard=False)
        where["_node_ip_address"] = "127.0.0.1"
    ray.init(**where, log_to_driver=False, logging_level="ERROR")


def _check_room(ray: Any, workers: int) -> None:
    # Ray would start only as many as there are processors.
    processors = ray.cluster_resources().get("CPU", 0)
    if processors < workers:
        raise ValueError(f"{workers} workers need as many processors; Ray has {processors:g}")


class Actors:
    """A :class:`testbed.live.driver.Team` of Ray actors."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        # One of the two threads watches, the other one works.
        options = dict(num_cpus=1, max_concurrency=2, scheduling_strategy="SPREAD")
        self.actor = ray.remote(Worker).options(**options)
        self.handles: list[Any] = []
        self.watches: dict[Any, int] = {}
        self.calls: dict[Any, int] = {}

    def add(self, *arguments: Any, **options: Any) -> None:
        """One more :class:`Worker`, of these arguments."""
        handle = self.actor.remote(*arguments, **options)
        self.watches[handle.watch.remote()] = len(self.handles)
        self.handles.append(handle)

    def begin(self) -> None:
        """Wait until all are built; the clock starts."""
        for rank, handle in enumerate(self.handles):
            try:
                self._result(handle.ready.remote(), rank)
            except self.ray.exceptions.RayActorError as error:
                raise RuntimeError(f"worker {rank} died before it began: {error}") from error
        self.began, self.ticks = time.monotonic(), 0

    def call(self, ranks, method, *arguments):
        shared = [self.ray.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
        for rank in ranks:
            self.calls[getattr(self.handles[rank], method).remote(*shared)] = rank

    def wait(self, until):
        awaited = [*self.calls, *self.watches]
        timeout = max(0.0, until - (time.monotonic() - self.began))
        if self.ray.wait(awaited, timeout=timeout)[0]:
            ready = self.ray.wait(awaited, num_returns=len(awaited), timeout=0)[0]
        else:
            ready = []
        results = {}
        for ref in ready:
            if ref in self.calls:
                rank = self.calls.pop(ref)
                # A call that its worker's death ended has no result; the watch reports the death.
                with suppress(self.ray.exceptions.RayActorError):
                    results[rank] = self._result(ref, rank)
        gone = [self.watches.pop(ref) for ref in ready if ref in self.watches]
        now = math.floor((time.monotonic() - self.began) / TICK_S)
        self.ticks = max(self.ticks + 1, now)
        return self.ticks * TICK_S, results, gone

    def _result(self, ref: Any, rank: int) -> Any:
        try:
            return self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            error.cause.add_note(f"raised by worker {rank}")
            raise error.cause from None

    def kill(self) -> None:
        """End every worker."""
        for handle in self.handles:
            self.ray.kill(handle)


@torch.no_grad()
def accuracy(model: nn.Module, dataset: Dataset) -> float:
    """Test accuracy (%)."""
    model.eval()
    parts = zip(dataset.test_x.split(IMAGE_BATCH), dataset.test_y.split(IMAGE_BATCH), strict=True)
    correct = sum(int((model(dataset.prepare(x)).argmax(1) == y.flatten()).sum()) for x, y in parts)
    return 100 * correct / dataset.test_y.numel()


def main(arguments: Sequence[str]) -> None:
    """Record a run of LeNet-5 on MNIST."""
    parser = argparse.ArgumentParser(
        prog="python -m slowlink.testbed.live.actors", description=main.__doc__
    )
    parser.add_argument("policy", choices=list(synchronization.names()))
    parser.add_argument("record", help="the file to write")
    parser.add_argument("--parameters", type=json.loads, default={}, help="of the policy, as JSON")
    parser.add_argument("--slow", type=float, nargs="+", default=[2.0, 2.6, 3.6, 5.0])
    parser.add_argument("--iterations", type=int, default=600, help="of all workers together")
    parser.add_argument("--averaged-over", default="all", choices=get_args(AveragedOver))
    given = parser.parse_args(arguments)
    record = run(
        synchronization.load(given.policy, **given.parameters),
        models.make("lenet5", 1),
        load_dataset("mnist"),
        slow=given.slow,
        lr=0.03,
        momentum=0.5,
        batch=64,
        iterations=given.iterations,
        averaged_over=given.averaged_over,
        seed=1,
    )
    command = shlex.join([*parser.prog.split(), *arguments])
    replace(record, about=record.about | dict(model="lenet5", command=command)).save(given.record)


if __name__ == "__main__":
    main(sys.argv[1:])
