"""The whole workflow at smoke scale, killed inside every rule and at random, then completed."""

import os
import random
import re
import signal
import subprocess
import time

import pandas as pd
import pytest

from testbed import results
from tests.workflow.checkout import SNAKEMAKE, Checkout
from workflow import documents

# For every rule, and for every kind of job of the rule for experiments: what it writes, soon.
WRITTEN = {
    "dataset": "results/data/fashion_mnist.json",
    "experiment": "results/smoke/rat/table1.parquet",
    "training": "results/smoke/dds/ddp_seeds/all.parquet",
    "summary": "results/smoke/dds/ddp_seeds/summary.parquet",
    "figure": "results/smoke/rat/figures/figure7.svg",
    "table": "results/smoke/rat/tables/table1.csv",
    "verdicts": "results/smoke/verdicts.csv",
    "html": "reports/html/smoke",
}


TARGETS = [*documents.names(), "matrix"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which the workflow was killed inside every rule, then ran to its end."""
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / "slowlink")
    chance = random.Random(20)
    for rule, output in WRITTEN.items():
        targets = [] if rule == "html" else [output]  # what ran beside it would be lost, too
        written = checkout.path / output
        if written.is_file():  # made while another rule's turn to be killed came
            written.unlink()
        code, said = checkout.run(*targets, kill_at=output)
        assert code == -signal.SIGKILL, f"{rule} was not killed:\n{said[-3000:]}"
        assert not written.exists(), f"{rule} left a result when it was killed"
        if rule in ("experiment", "training"):
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
    columns = "id,document,where,kind,setting,printed,ours,unit,evidence,verdict,reason"
    assert ",".join(table.columns) == columns
    assert table["id"].is_unique
    counts = {"geomx": 123, "sketch_fusion": 84, "dds": 58, "lpsp": 49, "rat": 39}
    assert table["document"].value_counts().to_dict() == counts
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
    ("method", "redone"),
    [
        ("exchange/plink", {"rat: exchanges", "rat: survival", "rat: table1"}),
        (
            "compression/bisparse",
            {"geomx: figure6/all", "matrix: cells/GeoMX", "sketch_fusion: compression"},
        ),
        ("synchronization/gssp", {"lpsp: mnist/all", "lpsp: cifar10/all", "lpsp: waiting/8"}),
    ],
)
def test_editing_a_method_redoes_what_used_it_and_nothing_else(checkout, method, redone):
    source = checkout.path / f"methods/{method}.py"
    before, content = source.stat(), source.read_text()
    try:
        source.write_text(content + "\n# edited\n")
        plan = checkout.planned()
    finally:
        source.write_text(content)
        os.utime(source, (before.st_atime, before.st_mtime))
    jobs = set(re.findall(r"^Job \d+: (\w+: [\w/-]+)$", plan, flags=re.MULTILINE))
    wings = {job.partition(":")[0] for job in redone}
    assert redone <= jobs and {job.partition(":")[0] for job in jobs} == wings
    if method == "exchange/plink":
        assert jobs == redone
    assert "Nothing to be done" in checkout.planned()


def test_named_targets_are_there(checkout):
    wings = {name: documents.load(name) for name in documents.names()}
    targets = [f"{name}_{target}" for name, wing in wings.items() for target in wing.targets]
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
