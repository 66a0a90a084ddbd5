"""Which tests run beside others, and which want the machine to themselves."""

from pathlib import Path

import pytest

ALONE = ("bench", "live", "network/test_emulated.py", "workflow/test_smoke.py")
"""What times, starts many processes or fills all cores."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix()
        if place.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
