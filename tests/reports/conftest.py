from __future__ import annotations

import copy
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import dds_results
import geomx_results
import lpsp_results
import rat_results
import report_site
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


@pytest.fixture(scope="session")
def built_site(geomx_claims, desk_results, rat_claims, rat_rows, tmp_path_factory):
    """The folder of a report of two documents and a small matrix, and their verdicts."""
    import matrix_results as made_up

    from reports import advise, html, matrix, verdicts
    from testbed.results import Row, frame

    condensed = matrix.condense(made_up.made(), *made_up.PLACES)
    judged = [
        verdicts.detail(geomx_claims, desk_results, geomx_results.RECIPE, "desk", {}),
        verdicts.detail(rat_claims, rat_rows, rat_results.RECIPE, "desk", {}),
    ]
    recipes = {"geomx": geomx_results.RECIPE, "rat": rat_results.RECIPE}
    advice = [
        Row(paper="matrix", experiment="advice", case=label, variant="flat/even", model="resnet50",
            workers=16, bandwidth=bandwidth, scale="desk", evidence="simulated", unit="s",
            metric=f"{part}_time", value=index / bandwidth * 1e9)
        for index, label in enumerate(("ring", "top_k"), 1)
        for bandwidth in (1e7, 1e9, 1e10)
        for part in advise.SHOWN
    ]  # fmt: skip
    results = pd.concat([desk_results, rat_rows, frame([*condensed, *advice])], ignore_index=True)
    folder = tmp_path_factory.mktemp("site") / "desk"
    verdict_table = pd.concat(judged, ignore_index=True)
    html.build(results, verdict_table, recipes, report_site.PROVENANCE, folder)
    return folder, verdict_table
