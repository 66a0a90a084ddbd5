from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import dds_results
import geomx_results
import lpsp_results
import rat_results
import sketch_fusion_results

from reports import claims

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def geomx_claims():
    return claims.load(ROOT / "data" / "claims" / "geomx.yaml")


@pytest.fixture
def recipe():
    """The recipe exactly as GeoMX prints it."""
    return copy.deepcopy(geomx_results.RECIPE)


@pytest.fixture(scope="session")
def paper_results():
    """Results with the document's own model trained."""
    return geomx_results.results(scale="paper", model="resnet50_v1")


@pytest.fixture(scope="session")
def desk_results():
    """Results with a stand-in model trained."""
    return geomx_results.results(scale="desk", model="small_resnet")


@pytest.fixture(scope="session")
def rat_claims():
    return claims.load(ROOT / "data" / "claims" / "rat.yaml")


@pytest.fixture(scope="session")
def rat_rows():
    """Results of RAT, about as the simulators give them."""
    return rat_results.results()


@pytest.fixture(scope="session")
def skf_claims():
    return claims.load(ROOT / "data" / "claims" / "sketch_fusion.yaml")


@pytest.fixture(scope="session")
def skf_rows():
    """Results of Sketch-Fusion, of about the right size."""
    return sketch_fusion_results.results()


@pytest.fixture(scope="session")
def lpsp_claims():
    return claims.load(ROOT / "data" / "claims" / "lpsp.yaml")


@pytest.fixture(scope="session")
def lpsp_rows():
    """Results of LPSP at all sizes, in a world in which the document is right about training;
    without the points of curves."""
    return lpsp_results.results("paper").query("round == -1")


@pytest.fixture(scope="session")
def lpsp_desk():
    """The same at the sizes of desk scale, with the points of curves."""
    return lpsp_results.results("desk")


@pytest.fixture(scope="session")
def dds_claims():
    return claims.load(ROOT / "data" / "claims" / "dds.yaml")


@pytest.fixture(scope="session")
def dds_rows():
    """Results of DDS in a world in which the document is right, with three live runs of each."""
    return dds_results.results()
