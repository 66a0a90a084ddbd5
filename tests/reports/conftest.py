from __future__ import annotations

import copy
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import report_site

from slowlink.workflow import documents
from slowlink.workflow.verdicts import claims_of


@pytest.fixture(scope="session")
def geomx_claims():
    return claims_of(documents.load("geomx"))


@pytest.fixture
def recipe():
    """The recipe exactly as GeoMX prints it."""
    return copy.deepcopy(report_site.world("geomx").RECIPE)


@pytest.fixture(scope="session")
def paper_results():
    """Results with the document's own model trained."""
    return report_site.world("geomx").results(scale="paper", model="resnet50_v1")


@pytest.fixture(scope="session")
def desk_results():
    """Results with a stand-in model trained."""
    return report_site.world("geomx").results(scale="desk", model="small_resnet")


@pytest.fixture(scope="session")
def rat_claims():
    return claims_of(documents.load("rat"))


@pytest.fixture(scope="session")
def rat_rows():
    """Results of RAT, about as the simulators give them."""
    return report_site.world("rat").results()


@pytest.fixture(scope="session")
def worlds():
    """The made-up rows of every document and of the matrix by name."""
    matrix = report_site.world("matrix")
    found = {name: report_site.world(name).results() for name in documents.names()}
    return found | {"matrix": pd.concat([matrix.results(), matrix.form()], ignore_index=True)}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder of the files of all figures and tables."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="session")
def built_site(worlds, made, tmp_path_factory):
    """The folder of a report of every document and the matrix, and the verdicts."""
    verdicts = {name: report_site.judged(name, worlds[name]) for name in documents.names()}
    parts = [
        report_site.part(
            report_site.chapter(name, rows, verdicts.get(name), made / name),
            rows,
            verdicts.get(name),
        )
        for name, rows in worlds.items()
    ]
    folder = tmp_path_factory.mktemp("site") / "desk"
    judged = pd.concat(verdicts.values(), ignore_index=True)
    return report_site.write(folder, parts), judged
