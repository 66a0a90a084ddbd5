"""Which tests run beside others, and which want the machine to themselves."""

import signal
from pathlib import Path

import pytest

# A shell's background jobs ignore interrupts, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

ALONE = (
    "bench",
    "contract/test_work.py",
    "live",
    "network/test_emulated.py",
    "workflow/test_smoke.py",
)
"""What times, starts many processes or fills all cores."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix()
        if place.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
