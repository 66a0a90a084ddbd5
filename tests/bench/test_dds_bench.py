"""All-gather over DDS beside raw Cyclone writes of as many bytes and beside gloo, in one run.

``SLOWLINK_BENCH_MIB`` sets the payload of each of four processes. A round lasts from the first
rank's start to the last one's end; ways take turns. Ratios of medians go into ``extra_info``;
nothing is asserted of them, since they depend on how many cores are free.
"""

from __future__ import annotations

import os
import random
import sys
from functools import cache
from pathlib import Path
from statistics import median

import pytest
import torch.distributed as dist

from testbed.live.processes import run_ranks

sys.path.insert(0, str(Path(__file__).parent))
import dds_bench_peers  # noqa: E402

RANKS, ROUNDS = 4, 5
MIB = int(os.environ.get("SLOWLINK_BENCH_MIB", 16))
WAYS = ("raw", "all_gather", "all_gather_authentic", "gloo")


@cache
def seconds() -> dict[str, list[float]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    reports = run_ranks(
        dds_bench_peers.compare,
        RANKS,
        random.SystemRandom().sample(range(1, 233), 3),
        RANKS,
        MIB << 20,
        ROUNDS,
        store.port,
        timeout_s=300.0,
        environment={"GLOO_SOCKET_IFNAME": "lo"},
    )
    return {
        way: [
            max(report[way][i][1] for report in reports)
            - min(report[way][i][0] for report in reports)
            for i in range(ROUNDS)
        ]
        for way in WAYS
    }


@pytest.mark.parametrize("way", WAYS)
def test_throughput(benchmark, way):
    benchmark.group = f"{MIB} MiB from each of {RANKS} to all"
    took = {name: median(rounds) for name, rounds in seconds().items()}
    benchmark.extra_info |= {
        "mib_per_s": RANKS * MIB / took[way],
        "of_raw": took["raw"] / took[way],
        "times_gloo": took["gloo"] / took[way],
    }
    benchmark.pedantic(lambda: None, rounds=1)  # what was measured is in extra_info
    assert min(took.values()) > 0
