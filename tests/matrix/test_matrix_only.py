"""The matrix redoes what changed and no more, and ranks a method for which one file was added."""

import os
import re
import shutil
import subprocess
import sys
import time

import pandas as pd
import pytest

from slowlink.testbed import results
from slowlink.testbed.training.recipe import slug
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.settings import SettingsError, load, wings
from tests.matrix import matrix_results
from tests.workflow.checkout import SNAKEMAKE, Checkout

MATRIX = "results/smoke/matrix"
DATA = "results/data/mnist.json"
OF_SEVERAL = {"condensed", "residual/recorded", "residual/summary"}
"""Jobs about several methods, those that were edited here among them; they only read."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return Checkout(tmp_path_factory.mktemp("matrix") / "slowlink")


def run(checkout, target, *options, only=None, timeout=300):
    chosen = [f"only={only}"] * bool(only)
    chosen = ["--config", "scale=smoke", *chosen]
    done = subprocess.run(
        [str(SNAKEMAKE), "--cores", "2", *options, *chosen, "--", target],
        cwd=checkout.path, env=checkout.environment, text=True, timeout=timeout,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def planned(checkout, only=None):
    """Jobs that a dry run would do for the condensed results, by modification times alone."""
    options = "-n", "--rerun-triggers", "mtime"
    code, said = run(checkout, f"{MATRIX}/condensed.parquet", *options, only=only)
    assert code == 0, said
    return set(re.findall(r"^Job \d+: matrix: (.+)$", said, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def pretended(checkout):
    """The checkout, with results of everything at smoke scale that are newer than all sources."""
    trained = load({"scale": "smoke"}).recipes["matrix"].trained_as()
    files = [f"{MATRIX}/cells/{slug(label)}.parquet" for label in trained]
    files += [f"{MATRIX}/training/{slug(label)}.parquet" for label in set(trained.values())]
    files += [f"{MATRIX}/residual/{part}.parquet" for part in ("recorded", "summary")]
    for file in [DATA, *files, f"{MATRIX}/condensed.parquet"]:
        path = checkout.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("pretended")
    assert planned(checkout) == set()
    return checkout


@pytest.fixture
def edit(pretended):
    """Makes a source file newer than the results until the test ends."""
    before = {}

    def later(file):
        path = pretended.path / file
        before[path] = path.stat().st_mtime
        os.utime(path, (time.time() + 60,) * 2)
        return planned(pretended)

    yield later
    for path, at in before.items():
        os.utime(path, (at, at))


def test_an_edited_codec_is_timed_and_trained_anew_and_nothing_else(edit):
    assert edit("methods/compression/top_k.py") == {
        "cells/top_k",
        "cells/top_k_every_3",
        "training/top_k",
        "training/top_k_every_3",
        *OF_SEVERAL,
    }


def test_an_edited_codec_takes_along_the_systems_that_use_it(edit):
    assert edit("methods/compression/bisparse.py") == {
        "cells/GeoMX",
        "training/GeoMX",
        *OF_SEVERAL,
    }


def test_only_one_method_is_made_and_what_is_there_of_others_stays(edit, pretended):
    gone = [pretended.path / f"{MATRIX}/{name}.parquet" for name in ("condensed", "training/LPSP")]
    for path in gone:
        path.unlink()
    try:
        assert "training/GeoMX" in edit("methods/exchange/hips.py")
        jobs = planned(pretended, only="dgc") - OF_SEVERAL
        assert {"cells/dgc", "training/dgc", "cells/DDS-DGC", "training/DDS-DGC"} <= jobs
        assert all("dgc" in job.lower() for job in jobs)
    finally:
        for path in gone:
            path.write_text("pretended")


def test_only_must_name_a_method():
    with pytest.raises(SettingsError, match="--config: only='topk' is no method.*top_k"):
        load({"scale": "smoke", "only": "topk"})
    assert "dgc" in load({"scale": "smoke", "only": "dgc"}).recipes["matrix"].found()
    assert load({"scale": "desk", "only": "GeoMX"}).only == "GeoMX"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_file_from_the_template_is_ranked_beside_the_others(tmp_path):
    checkout = Checkout(tmp_path / "slowlink")
    methods = checkout.path / "methods"
    shutil.copy(methods / "template.py", methods / "compression" / "block_mean.py")
    made = matrix_results.made()
    ring = made[made["case"] == "dense"].assign(case="ring")
    ring["at"] = ring["at"].str.replace("dense", "ring")
    for experiments, job in ((["cells"], "cells"), (["tuning", "training"], "training")):
        path = checkout.path / MATRIX / job / "ring.parquet"
        path.parent.mkdir(parents=True)
        rows = ring[ring["experiment"].isin(experiments)].to_dict("records")
        results.write(map(results.row_of, rows), path)
    code, said = run(checkout, "matrix_ranking", only="block_mean")
    assert code == 0, said[-3000:]
    ranking = pd.read_csv(checkout.path / MATRIX / "tables" / "ranking.csv").set_index("method")
    ran = ranking[ranking["cells"] > 0]
    steps = [
        f"block_mean every {h}" for h in load({"scale": "smoke"}).recipes["matrix"].local_steps
    ]
    mine = {"block_mean", "block_mean between sites", *steps}
    assert set(ran.index) == {"ring"} | mine
    assert ran.at["block_mean", "accuracy after 6 rounds (%)"] != "not trained"
    card = (
        "from slowlink.reports.methods import card, names; print([card(*n).page for n in names()])"
    )
    told = subprocess.run([sys.executable, "-c", card], cwd=checkout.path, text=True,
                          env=checkout.environment, capture_output=True, timeout=300)  # fmt: skip
    assert "'methods/compression-block_mean.html'" in told.stdout, told.stderr[-2000:]


@pytest.mark.slow
def test_timing_a_round_does_not_depend_on_how_training_is_done():
    jobs = Jobs(load({"scale": "smoke"}), wings()).all
    trainer = "testbed/training/trainer.py"
    assert trainer in jobs["matrix", "training/top_k"].inputs["sources"]
    for name in ("cells/top_k", "condensed", "advice"):
        assert trainer not in jobs["matrix", name].inputs["sources"]
