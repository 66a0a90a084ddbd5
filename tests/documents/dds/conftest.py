from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import dds_results

from slowlink.reports import claims
from slowlink.workflow import documents


@pytest.fixture(scope="session")
def wing():
    return documents.load("dds")


@pytest.fixture(scope="session")
def dds_claims(wing):
    return claims.load(wing.claims)


@pytest.fixture(scope="session")
def dds_rows():
    """Results of DDS in a world in which the document is right, with three live runs of each."""
    return dds_results.results()


@pytest.fixture(scope="session")
def one_run():
    """One live run of each mode and method, as at desk scale."""
    return dds_results.results(live=(1,))
