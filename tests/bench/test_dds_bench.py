"""All-gather over DDS beside raw Cyclone writes of as many bytes and beside gloo, in one run.

``SLOWLINK_BENCH_MIB`` sets the payload of each of four processes. Ratios of medians go into
``extra_info``; nothing is asserted of them, since they depend on how many cores are free.
"""

from __future__ import annotations

import os
from functools import cache
from statistics import median

import pytest

from slowlink.testbed.live.dds import throughput

RANKS, ROUNDS = 4, 5
MIB = int(os.environ.get("SLOWLINK_BENCH_MIB", 16))


@cache
def seconds() -> dict[str, float]:
    return {way: median(s) for way, s in throughput.measure(RANKS, MIB << 20, ROUNDS).items()}


@pytest.mark.parametrize("way", throughput.WAYS)
def test_throughput(benchmark, way):
    benchmark.group = f"{MIB} MiB from each of {RANKS} to all"
    took = seconds()
    benchmark.extra_info |= {
        "mib_per_s": RANKS * MIB / took[way],
        "of_raw": took[throughput.RAW] / took[way],
        "times_gloo": took[throughput.GLOO] / took[way],
    }
    benchmark.pedantic(lambda: None, rounds=1)  # what was measured is in extra_info
    assert min(took.values()) > 0
