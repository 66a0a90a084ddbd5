"""The whole workflow at smoke scale, killed inside every rule and at random, then completed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest

from testbed import results
from testbed.training.fetch import fetch

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).parent / "snakemake"

# Kills the whole process group, as a power cut would, just before a file whose path contains
# KILL_AT takes its name.
SITECUSTOMIZE = """
import os, signal
_replace, _at = os.replace, os.environ.get("KILL_AT")

def replace(src, dst, **kwargs):
    if _at and _at in str(dst):
        os.killpg(0, signal.SIGKILL)
    return _replace(src, dst, **kwargs)

os.replace = replace
"""

# For every rule: something that it writes, soon.
RULES = {
    "dataset": "results/data/fashion_mnist.json",
    "matrix_job": "results/smoke/matrix/cells/ring.parquet",
    "matrix_condensed": "results/smoke/matrix/condensed.parquet",
    "matrix_advice": "results/smoke/matrix/advice.parquet",
    "geomx_rounds": "results/smoke/geomx/rounds/table2.parquet",
    "geomx_recorded": "results/smoke/geomx/links/recorded.parquet",
    "geomx_links": "results/smoke/geomx/links/agreement.parquet",
    "train": "results/smoke/dds/train/ddp_seeds.parquet",
    "summary": "results/smoke/geomx/summary/figure6.parquet",
    "rat_experiment": "results/smoke/rat/table1.parquet",
    "rat_cost": "results/smoke/rat/scale.parquet",
    "rat_joint": "results/smoke/rat/figure7_joint.parquet",
    "sketch_fusion_simulate": "results/smoke/sketch_fusion/theory.parquet",
    "sketch_fusion_measure": "results/smoke/sketch_fusion/fusion.parquet",
    "lpsp_simulate": "results/smoke/lpsp/example.parquet",
    "lpsp_measure": "results/smoke/lpsp/batching.parquet",
    "dds_simulate": "results/smoke/dds/non_iid-1.parquet",
    "dds_measure": "results/smoke/dds/transport.parquet",
    "csv": "results/smoke/geomx/tables/table2.csv",
    "svg": "results/smoke/rat/figures/figure7.svg",
    "verdicts": "results/smoke/verdicts.csv",
    "html": "reports/html/smoke",
}


TARGETS = ["geomx", "rat", "sketch_fusion", "lpsp", "dds", "matrix"]


class Checkout:
    """A copy of the repository in which Snakemake runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignore = shutil.ignore_patterns(
            ".git", ".venv", ".snakemake", "results", "logs", "cache", "html.egg-info", "*.egg-info"
        )
        shutil.copytree(ROOT, path, ignore=ignore)
        shutil.rmtree(path / "reports" / "html", ignore_errors=True)
        hooks = path / ".hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(textwrap.dedent(SITECUSTOMIZE))
        data = fetch("fashion_mnist").parent
        self.environment = os.environ | {
            "PYTHONPATH": f"{hooks}{os.pathsep}{path}",
            "SLOWLINK_DATA": str(data),
        }

    def start(self, *arguments: str, kill_at: str = "") -> subprocess.Popen:
        return subprocess.Popen(
            [str(SNAKEMAKE), "--cores", "2", *arguments, "--config", "scale=smoke"],
            cwd=self.path,
            env=self.environment | {"KILL_AT": kill_at},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, kill_at: str = "") -> tuple[int, str]:
        process = self.start(*arguments, kill_at=kill_at)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def planned(self, *targets: str) -> str:
        code, output = self.run("-n", *targets)
        assert code == 0, output
        return output


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which the workflow was killed inside every rule, then ran to its end."""
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / "slowlink")
    chance = random.Random(20)
    for rule, output in RULES.items():
        targets = [] if rule == "html" else [output]  # what ran beside it would be lost, too
        written = checkout.path / output
        if written.is_file():  # made while another rule's turn to be killed came
            written.unlink()
        code, said = checkout.run(*targets, kill_at=output)
        assert code == -signal.SIGKILL, f"{rule} was not killed:\n{said[-3000:]}"
        assert not written.exists(), f"{rule} left a result when it was killed"
        if rule in ("geomx_rounds", "train"):
            process = checkout.start()
            time.sleep(chance.uniform(5, 12))
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    for targets in (TARGETS, []):
        code, said = checkout.run(*targets)
        assert code == 0, said[-3000:]
    return checkout


@pytest.mark.timeout(1500)
def test_killed_in_every_rule_it_completes(checkout):
    assert (checkout.path / "reports/html/smoke/index.html").stat().st_size > 50_000
    assert "Nothing to be done" in checkout.planned()


def test_no_half_written_file_is_left_under_a_result_name(checkout):
    files = [f for f in checkout.path.glob("results/smoke/*/**/*.parquet") if f.name[0] != "."]
    assert len(files) > 35
    assert set(results.read(files)["scale"]) == {"smoke"}


def test_every_claim_has_its_row(checkout):
    table = pd.read_csv(checkout.path / "results/smoke/verdicts.csv", keep_default_na=False)
    columns = "id,paper,where,kind,setting,printed,ours,unit,evidence,verdict,reason"
    assert ",".join(table.columns) == columns
    assert table["id"].is_unique
    counts = {"geomx": 123, "sketch_fusion": 84, "dds": 58, "lpsp": 49, "rat": 39}
    assert table["paper"].value_counts().to_dict() == counts
    unexplained = table[
        table["verdict"].isin(["not run here", "not comparable"]) & (table["reason"] == "")
    ]
    assert unexplained.empty


def test_bytes_come_out_as_printed_even_at_smoke_scale(checkout):
    table = pd.read_csv(checkout.path / "results/smoke/verdicts.csv", index_col="id")
    for claim in ("G155F-up", "G155B-up", "G155B-dn", "G155BF-up", "G155BF-dn", "M1-up0"):
        row = table.loc[f"GEO-T2-{claim}"]
        assert row["verdict"] == "holds" and row["evidence"] == "computed"


@pytest.mark.parametrize(
    ("method", "message", "redone"),
    [
        ("compression/bisparse", ": training ", {"figure6"}),
        ("exchange/plink", ": RAT: ", {"exchanges", "survival", "table1"}),
        ("synchronization/gssp", ": training ", {"mnist", "cifar10", "control", "control_static"}),
        ("compression/two_bit", "timed on this machine: ", {"measured"}),
    ],
)
def test_editing_a_method_redoes_what_used_it_and_nothing_else(checkout, method, message, redone):
    source = checkout.path / f"methods/{method}.py"
    before, content = source.stat(), source.read_text()
    try:
        source.write_text(content + "\n# edited\n")
        plan = checkout.planned()
    finally:
        source.write_text(content)
        os.utime(source, (before.st_atime, before.st_mtime))
    assert {line.split()[-1] for line in plan.splitlines() if message in line} == redone
    assert "Nothing to be done" in checkout.planned()


def test_named_targets_are_there(checkout):
    targets = [f"geomx_{name}" for name in ("table1", "figure4", "mixed", "emulated")]
    targets += [f"rat_{name}" for name in ("table1", "figure6", "figure7", "packet", "scale")]
    targets += [
        f"sketch_fusion_{name}" for name in ("table1", "table4", "figure6", "gains", "live")
    ]
    targets += [f"lpsp_{name}" for name in ("table3", "figure4", "control", "waiting", "actors")]
    targets += [f"dds_{name}" for name in ("federated", "ddp", "bytes", "fl_figure4", "transport")]
    assert "Nothing to be done" in checkout.planned(*targets)


def test_snakemakes_own_report_works(checkout):
    code, said = checkout.run("--report", "run.zip", *TARGETS, "all")
    assert code == 0, said[-3000:]
    assert (checkout.path / "run.zip").stat().st_size > 100_000


def test_a_wrong_scale_stops_before_the_first_job(checkout):
    done = subprocess.run(
        [str(SNAKEMAKE), "--cores", "2", "--config", "scale=tiny"],
        cwd=checkout.path,
        env=checkout.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "scale='tiny'; allowed: smoke, desk, paper" in done.stderr
    assert "Traceback" not in done.stderr
