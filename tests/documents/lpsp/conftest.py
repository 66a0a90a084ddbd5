from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import lpsp_results

from slowlink.reports import claims
from slowlink.workflow import documents


@pytest.fixture(scope="session")
def lpsp_claims():
    return claims.load(documents.load("lpsp").claims)


@pytest.fixture(scope="session")
def lpsp_rows():
    """Results of LPSP at all sizes, in a world in which the document is right about training;
    without the points of curves."""
    return lpsp_results.results("paper").query("round == -1")


@pytest.fixture(scope="session")
def lpsp_desk():
    """The same at the sizes of desk scale, with the points of curves."""
    return lpsp_results.results("desk")
