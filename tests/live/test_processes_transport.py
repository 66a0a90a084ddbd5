"""Ranks end together and name the cause; payloads combine over gloo as they do in one process."""

import os
import signal
import threading

import numpy as np
import peers
import pytest
import torch.distributed as dist

from slowlink.methods.compression import Payload, combine_payloads, load
from slowlink.testbed.live import processes
from slowlink.testbed.live.processes import RankFailed, run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nothing_left(started, monkeypatch):
    """Whatever a test does, none of its ranks is alive afterwards."""
    monkeypatch.setattr(processes, "GRACE_S", 20.0)  # a busy machine starts ranks unevenly


def test_results_come_in_the_order_of_ranks():
    assert run_ranks(peers.answer, 3, 5, timeout_s=30) == [0, 5, 10]


@pytest.mark.parametrize(
    ("function", "timeout_s", "message"),
    [
        (peers.die, 30, r"rank 1 died with exit code -9 \(about to die\)"),
        (peers.fail_late, 30, r"rank 1 failed \(starting\): OSError: disk full"),
        (peers.lose, 30, "rank . lost contact: nobody there; rank 0 was starting; rank 1 was"),
        (peers.hang, 3, "said anything for 3 s; rank 0 was hanging; rank 1 was hanging"),
    ],
)
def test_the_error_names_the_rank_and_the_cause(function, timeout_s, message):
    with pytest.raises(RankFailed, match=message):
        run_ranks(function, 2, timeout_s=timeout_s)


def test_talk_gains_no_time_once_a_rank_lost_contact(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    with pytest.raises(RankFailed, match="rank 0 lost contact: nobody there"):
        run_ranks(peers.lose_while_another_talks, 2, timeout_s=30)


def test_an_interrupt_ends_the_ranks():
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(peers.hang, 2, timeout_s=30)
    timer.join()


def payload(values, dtype):
    values = np.asarray(values).astype(dtype)
    return Payload(values.tobytes(), "identity", values.shape, "dense", dtype)


def test_payloads_combine_as_in_one_process():
    random = np.random.default_rng(0)
    # float32 on a grid: exact, so that every order of adding gives the same bits.
    sums = [
        [payload(random.integers(-1000, 1000, 1001), dtype) for _ in range(3)]
        for dtype in ("int8", "int16", "int32", "int64", "float32", "float64")
    ]
    # Halves round at every hop unless they are added in float32; large ones saturate.
    sums.append([payload(random.normal(size=101), "float16") for _ in range(3)])
    sums.append([payload([60000.0, -60000.0, 1.0], "float16")] * 3)
    sums.append([payload([], "float32")] * 3)
    any_floats = [payload(random.normal(size=101), "float32") for _ in range(3)]
    odd = [Payload(bytes(range(n)), "two_bit", (9,), "2bit") for n in (0, 7, 3)]
    empty = [Payload(b"", "two_bit", (0,), "2bit")] * 3
    jobs = [(payloads, "sum", ordered) for payloads in sums for ordered in (True, False)]
    jobs += [(any_floats, "sum", True), (odd, "gather", True), (empty, "gather", True)]
    strangers = [*odd[:2], Payload(b"", "two_bit", (10,), "2bit")]

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = run_ranks(
        peers.combine, 3, store.port, [*jobs, (strangers, "gather", True)], timeout_s=60
    )
    for *answers, refused in ranks:
        for (payloads, how, _), answer in zip(jobs, answers, strict=True):
            assert answer == combine_payloads(load(payloads[0].codec), payloads, how)
        assert "sends another codec, shape, form or dtype" in refused
