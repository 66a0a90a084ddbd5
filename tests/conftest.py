"""Which tests run beside others, which want the machine to themselves, and which come first."""

import gc
import os
import re
import shutil
import signal
from collections import Counter

import pytest
from xdist.scheduler import LoadFileScheduling

if "PYTEST_XDIST_WORKER" in os.environ:
    # Beside other tests one thread is enough: torch's would wait for each other on cores that all
    # workers, and the processes that tests start, share.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    # What imports and collecting make stays to the end: the collector, which would look at all of
    # it again and again, waits until it is set aside.
    gc.disable()

# A shell's background jobs ignore interrupts, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ALONE = re.compile(r"mark\.alone\b|\bbenchmark\b")
"""In the text of every file with a test that is marked so or takes pytest-benchmark's fixture."""

BY_FIXTURE = {"benchmark": "alone", "checkout": "slow", "pages": "slow", "built_site": "slow"}
BY_FIXTURE |= {"shell": "slow", "docs_site": "slow"}
"""Marks of tests that take such a fixture, themselves or through another."""

COPIES, SLOWEST = {"checkout", "shell"}, 10
"""Tests that run commands in a copy of the repository take as long as so many other slow ones."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs to look for where the environment's ``CHROMIUM`` names none."""

OFFLINE = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

DDS = re.compile(r"test_dds")
"""Files that draw DDS domains at random: two of them at a time might meet in one."""

SITE = re.compile(r"test_report_(page|browser)")
"""Files that read one report, which takes most of a minute to build."""

APART = re.compile(r"test_the_blocks_of_a_page_run_in_their_order")
"""Tests of a file that different workers may take."""


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium; tests are skipped without it or the extra ``browser``."""
    reason = "the extra browser is not installed"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium on the path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=OFFLINE)
        yield started
        started.close()


def pytest_ignore_collect(collection_path, config):
    """Of ``-m alone``, only files that have such tests are imported."""
    if config.option.markexpr == "alone" and collection_path.suffix == ".py":
        return None if ALONE.search(collection_path.read_text(encoding="utf-8")) else True


def pytest_collection_modifyitems(items):
    """Files with many slow tests come first, so that no core waits for one of them at the end."""
    slow = Counter()
    for item in items:
        for fixture in BY_FIXTURE.keys() & set(item.fixturenames):
            item.add_marker(BY_FIXTURE[fixture])
        if item.get_closest_marker("slow"):
            slow[item.path] += SLOWEST if COPIES & set(item.fixturenames) else 1
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


class Scheduling(LoadFileScheduling):
    """A file's tests share a worker, which builds its fixtures once, and so do all files on DDS and
    those on the report; tests that share nothing and take long are on their own."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        if APART.search(nodeid):
            return nodeid
        shared = (name for name, files in (("DDS", DDS), ("site", SITE)) if files.search(file))
        return next(shared, file)


def pytest_xdist_make_scheduler(config, log):
    return Scheduling(config, log)


def pytest_xdist_auto_num_workers():
    """Two more than cores, for many tests wait for processes, links and deadlines."""
    return min(os.cpu_count() or 1, 8) + 2
