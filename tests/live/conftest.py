"""What tests of several live systems share."""

import os
import subprocess

import pytest

from slowlink.testbed.live import processes


@pytest.fixture
def started(monkeypatch):
    """Processes that a test started; none of them is alive afterwards."""
    found = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            found.append(self)

    monkeypatch.setattr(processes.subprocess, "Popen", Recorded)
    yield found
    assert found
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
