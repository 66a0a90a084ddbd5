"""Compressors' speed in GB/s of float32 input, beside a plain copy of the same tensors.

``SLOWLINK_BENCH_VALUES`` sets how many values (25600000 are about ResNet-50's), cut into tensors
of the size of its largest; torch's own settings set the threads. Speeds go into ``extra_info``;
only ratios to the copy of the same run are asserted.
"""

from __future__ import annotations

import itertools
import os
import time
from functools import partial

import numpy as np
import pytest
import torch

from slowlink.methods.compression import aggregate, load, names

VALUES = int(os.environ.get("SLOWLINK_BENCH_VALUES", 2_000_000))
LARGEST = 512 * 512 * 9
ROUNDS = 5
SLOWEST = 400
"""Plain copies that a pass of the slowest codec may take: catches a loop over values in Python."""

PEERS = {
    "bisparse": ({"format": "tight"}, None),
    "fp16": ({}, lambda x: x.clamp(-65504, 65504).half()),
    "top_k": ({"error_feedback": False}, lambda x: x[torch.topk(x.abs(), len(x) // 100).indices]),
    "sign_sgd": ({}, lambda x: np.packbits(x.numpy() < 0)),
    "qsgd": ({"bucket": 0}, lambda x: torch.bernoulli(x.abs() / x.norm()).mul_(x.sign()).char()),
    "terngrad": ({"clip": 0.0}, lambda x: torch.bernoulli(x.abs() / x.abs().max()).mul_(x.sign())),
}
"""Parameters, and the same kind of work in torch or numpy, of those codecs that have such."""


@pytest.fixture(scope="module")
def gradients() -> list[list[torch.Tensor]]:
    """Two steps' (or two parties') tensors."""
    generator = torch.Generator().manual_seed(0)
    sizes = [LARGEST] * (VALUES // LARGEST) + [VALUES % LARGEST]
    return [[torch.randn(n, generator=generator) for n in sizes if n] for _ in range(2)]


def copy_seconds(tensors: list[torch.Tensor]) -> float:
    targets = [tensor.clone() for tensor in tensors]
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for target, tensor in zip(targets, tensors, strict=True):
            target.copy_(tensor)
        times.append(time.perf_counter() - start)
    return min(times)


def report(benchmark, tensors: list[torch.Tensor], nbytes: int, passes: int = 1) -> None:
    best, copied = benchmark.stats.stats.min, copy_seconds(tensors)
    gigabytes = 4 * VALUES / 1e9
    benchmark.extra_info |= {
        "values": VALUES,
        "threads": torch.get_num_threads(),
        "payload_bytes": nbytes,
        "gb_per_s": gigabytes / best,
        "copy_gb_per_s": gigabytes / copied,
        "times_a_copy": best / copied,
    }
    assert best < SLOWEST * passes * copied


@pytest.mark.parametrize("name", names())
def test_compress(benchmark, gradients, name):
    """One party's whole upload: momentum, residual, selection and packing included."""
    codec, step = load(name), itertools.count()

    def once() -> int:
        tensors = gradients[next(step) % 2]
        return sum(next(codec.encode(t, key))[0].nbytes for key, t in enumerate(tensors))

    nbytes = benchmark.pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    report(benchmark, gradients[0], nbytes)


@pytest.mark.parametrize("name", names())
def test_decompress(benchmark, gradients, name):
    codec = load(name)
    if not codec.one_shot:
        pytest.skip("several rounds: see test_aggregate")
    sent = [codec.compress(tensor, key) for key, tensor in enumerate(gradients[0])]

    def once() -> None:
        for payload in sent:
            codec.decompress(payload)

    benchmark.pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    report(benchmark, gradients[0], sum(payload.nbytes for payload in sent))


@pytest.mark.parametrize("name", names())
def test_aggregate(benchmark, gradients, name):
    """Two parties' compression, the merge and both decodings."""
    codecs = [load(name) for _ in gradients]

    def once() -> int:
        runs = [
            aggregate(codecs, pair, key) for key, pair in enumerate(zip(*gradients, strict=True))
        ]
        return sum(sum(up[0]) for _, up, _ in runs)

    nbytes = benchmark.pedantic(once, rounds=ROUNDS, warmup_rounds=1)
    report(benchmark, gradients[0], nbytes, passes=5)


@pytest.mark.alone
def test_times_a_copy(capsys):
    """Compressing and decompressing on one thread beside a copy and beside peers, by turns.

    The clock is this thread's processor time, of which the least counts. Codecs must not be slower
    than their peers, which for the most part do less: torch packs nothing and checks nothing.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tensor = torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
    target, rows, late = tensor.clone(), [], []
    try:
        for name in names():
            parameters, peer = PEERS.get(name, ({}, None))
            codec, least = load(name, **parameters), {}
            for _ in range(2 * ROUNDS):
                once = {"copy": lambda: target.copy_(tensor)}
                if peer:
                    once["peer"] = partial(peer, tensor)
                if codec.one_shot:
                    once["compress"] = partial(codec.compress, tensor, 0)
                    payload = codec.compress(tensor, 0)
                    once["decompress"] = partial(codec.decompress, payload)
                else:
                    once["compress"] = partial(aggregate, [codec], [tensor], 0)
                for what, work in once.items():
                    start = time.thread_time()
                    work()
                    spent = time.thread_time() - start
                    least[what] = min(spent, least.get(what, spent))
            ratios = {what: spent / least["copy"] for what, spent in least.items()}
            cells = (ratios.get(what) for what in ("compress", "decompress", "peer"))
            rows.append([name, *("-" if cell is None else f"{cell:.2f}" for cell in cells)])
            if peer and ratios["compress"] > 1.25 * ratios["peer"]:
                late.append(rows[-1])
    finally:
        torch.set_num_threads(threads)
    with capsys.disabled():
        print(f"\n{VALUES} float32, one thread, copies of the tensor")
        for row in [["codec", "compress", "decompress", "peer's compress"], *rows]:
            print("{:16}{:>10}{:>12}{:>17}".format(*row))
    assert not late
