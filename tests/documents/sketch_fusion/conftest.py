from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import sketch_fusion_results

from slowlink.reports import claims
from slowlink.workflow import documents


@pytest.fixture(scope="session")
def wing():
    return documents.load("sketch_fusion")


@pytest.fixture(scope="session")
def skf_claims(wing):
    return claims.load(wing.claims)


@pytest.fixture(scope="session")
def skf_rows():
    """Results of Sketch-Fusion, of about the right size."""
    return sketch_fusion_results.results()
