"""What tests of several live systems share."""

import os
import sys
from pathlib import Path

import pytest

from slowlink.testbed.cache import VARIABLE
from slowlink.testbed.live.fork_server import ForkServer
from slowlink.testbed.network import emulated
from slowlink.testbed.training.fetch import DataUnavailable, fetch

# For modules that processes import by their names.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def _facts(tmp_path_factory):
    return tmp_path_factory.mktemp("facts") / "cache.sqlite"


@pytest.fixture(scope="module", autouse=True)
def _known(_facts):
    """Processes need not each hash the files of a data set and look through it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(_facts))
        yield


@pytest.fixture(scope="session")
def shaped():
    """Where links can be shaped: the class that does it."""
    if why := emulated.available():
        pytest.skip(why)
    return emulated.Emulated


@pytest.fixture(scope="session")
def fashion_mnist():
    """Skips where the data set is not there."""
    try:
        fetch("fashion_mnist")
    except DataUnavailable as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")


@pytest.fixture
def started(monkeypatch):
    """Processes that a test started; none of them is alive afterwards."""
    found, start = [], ForkServer.start

    def recorded(*arguments, **options):
        found.append(start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(ForkServer, "start", recorded)
    yield found
    assert found
    for process in found:
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)
