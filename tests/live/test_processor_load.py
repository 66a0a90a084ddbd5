"""How busy processors are, from counters that are written by the test, and from the kernel's."""

import os
import time

import numpy as np
import pytest

from slowlink.testbed.live import processor_load
from slowlink.testbed.live.processor_load import LoadMonitor

pytestmark = pytest.mark.alone


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Two processors, of which we may use the second one; no control groups."""
    monkeypatch.setattr(processor_load, "STAT", tmp_path / "stat")
    monkeypatch.setattr(processor_load, "CGROUPS", tmp_path)
    monkeypatch.setattr(processor_load, "EVERY_S", 60)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1})

    def tick(*counts):
        lines = ["cpu 9 9 9 9 9 9 9 9 9 9", "cpu0 9 9 9 9 9 9 9 9 0 0"]
        lines.append("cpu1 " + " ".join(map(str, counts)) + " 7 7")
        (tmp_path / "stat").write_text("\n".join([*lines, "intr 1 2 3"]) + "\n")

    return tick


def shares(before, change):
    """What a monitor says of the whole of its time."""
    before()
    with LoadMonitor() as monitor:
        time.sleep(0.01)
        change()
    return monitor.over(monitor._samples[0][0], monitor._samples[-1][0])


def test_all_but_idle_and_waiting_is_busy(kernel):
    share, held = shares(
        lambda: kernel(100, 0, 50, 1000, 5, 0, 10, 0),
        lambda: kernel(110, 1, 52, 1060, 15, 3, 20, 4),
    )
    assert share == pytest.approx((10 + 1 + 2 + 3 + 10 + 4) / 100)
    assert np.isnan(held)


def test_half_of_the_time_has_half_of_the_ticks(kernel):
    kernel(0, 0, 0, 0, 0, 0, 0, 0)
    with LoadMonitor() as monitor:
        pass
    monitor._samples = [(0.0, 0, 0, 0.0), (1.0, 10, 100, 0.0), (2.0, 100, 200, 0.5)]
    assert monitor.over(0.5, 1.5) == (pytest.approx(0.5), pytest.approx(0.25))


@pytest.mark.parametrize(
    ("line", "file", "name"),
    [("0::/", "cpu.stat", "throttled_usec"), ("1:cpu,cpuacct:/", "cpu,cpuacct/cpu.stat", "")],
)
def test_time_that_a_quota_withheld(kernel, tmp_path, monkeypatch, line, file, name):
    own = processor_load.Path("/proc/self/cgroup")
    (tmp_path / "own").write_text(f"4:memory:/x\n{line}\n")
    path = processor_load.Path
    monkeypatch.setattr(
        processor_load, "Path", lambda p: path(tmp_path / "own" if p == str(own) else p)
    )
    (tmp_path / file).parent.mkdir(exist_ok=True)

    def held(micros):
        kernel(1, 1, 1, 1, 1, 1, 1, 1)
        value = f"{name} {micros}" if name else f"throttled_time {1000 * micros}"
        (tmp_path / file).write_text(f"nr_throttled 3\n{value}\n")

    before = time.monotonic()
    share, withheld = shares(lambda: held(50_000), lambda: held(51_000))
    assert np.isnan(share), "not one tick"
    assert 0.001 / (time.monotonic() - before) <= withheld <= 0.001 / 0.01


def test_the_kernel_tells_of_a_busy_processor():
    with LoadMonitor() as monitor:
        begin = time.monotonic()
        while time.process_time_ns() >= 0 and time.monotonic() < begin + 0.3:
            pass
        end = time.monotonic()
    share, _ = monitor.over(begin, end)
    assert np.isnan(share) or 0 < share <= 1
