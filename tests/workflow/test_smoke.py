"""The whole workflow at smoke scale, killed twice, then completed."""

import os
import random
import re
import signal
import subprocess
import time

import pandas as pd
import pytest

from slowlink.testbed import results
from slowlink.workflow import documents, settings
from slowlink.workflow.jobs import Jobs
from tests.workflow.checkout import SNAKEMAKE, Checkout

TARGETS = [*documents.names(), "matrix"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout in which the workflow was killed as a result took its name, and once more some
    time after it began again, and then ran to its end."""
    checkout = Checkout(tmp_path_factory.mktemp("smoke") / "slowlink")
    output = "results/smoke/rat/table1.parquet"
    code, said = checkout.run(output, kill_at=output)
    assert code == -signal.SIGKILL, f"it was not killed:\n{said[-3000:]}"
    assert not (checkout.path / output).exists()
    process = checkout.start()
    time.sleep(random.Random(20).uniform(10, 20))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    code, said = checkout.run(*TARGETS, "all")
    assert code == 0, said[-3000:]
    return checkout


@pytest.mark.timeout(1500)
def test_killed_twice_it_completes(checkout):
    assert (checkout.path / "reports/html/smoke/index.html").stat().st_size > 50_000


def test_what_every_rule_writes_takes_its_name_when_it_is_whole(checkout):
    """So that one kill shows for all rules that nothing is left of what was not finished."""
    made = [*checkout.path.glob("results/*/**/*"), *checkout.path.glob("reports/html/**/*")]
    shown = [path for path in made if path.is_file() and path.name[0] != "."]
    files = {path.relative_to(checkout.path) for path in shown}
    assert {file.suffix for file in files} >= {".json", ".parquet", ".svg", ".csv", ".html"}
    named = checkout.named()
    assert not {file for file in files if named.isdisjoint([file, *file.parents])}


def test_no_half_written_file_is_left_under_a_result_name(checkout):
    found = checkout.path.glob("results/smoke/*/**/*.parquet")
    files = [file for file in found if file.name[0] != "." and file.name != "verdicts.parquet"]
    assert len(files) > 35
    assert set(results.read(files)["scale"]) == {"smoke"}


def test_every_claim_has_its_row(checkout):
    table = pd.read_csv(checkout.path / "results/smoke/verdicts.csv", keep_default_na=False)
    columns = "id,document,where,kind,setting,printed,ours,unit,evidence,verdict,reason"
    assert ",".join(table.columns) == columns
    assert table["id"].is_unique
    counts = {"geomx": 123, "sketch_fusion": 84, "dds": 64, "lpsp": 59, "rat": 39}
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


METHODS = {
    "exchange/plink": {"rat: exchanges", "rat: granularity", "rat: survival", "rat: table1"},
    "compression/bisparse": {
        "geomx: figure6/all",
        "matrix: cells/GeoMX",
        "sketch_fusion: compression",
    },
    "synchronization/gssp": {
        "lpsp: cifar10/all",
        "lpsp: waiting/8",
        "matrix: residual/recorded",
    },
}
"""Some of the jobs that use a method; of the first, all."""


@pytest.fixture(scope="module")
def users():
    """By method, the jobs that use its file, and those that come after them."""
    jobs = Jobs(settings.load({"scale": "smoke"}), settings.wings()).all.values()
    found = {}
    for method in METHODS:
        files, size = {f"methods/{method}.py"}, 0
        while len(files) > size:
            size = len(files)
            files |= {job.output for job in jobs if files & {*sum(job.inputs.values(), [])}}
        used = [job for job in jobs if job.output in files and not job.experiment.optional]
        found[method] = {f"{job.wing.name}: {job.name}" for job in used}
    return found


def wings_of(jobs):
    return {job.partition(":")[0] for job in jobs}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_jobs_that_use_a_method_are_those_of_documents_that_name_it(users, method):
    jobs, some = users[method], METHODS[method]
    assert some <= jobs and wings_of(jobs) == wings_of(some)
    if method == "exchange/plink":
        assert jobs == some


def test_editing_methods_redoes_what_used_them_and_nothing_else(checkout, users):
    sources = [checkout.path / f"methods/{method}.py" for method in METHODS]
    before = [(source, source.stat(), source.read_text()) for source in sources]
    try:
        for source, _, content in before:
            source.write_text(content + "\n# edited\n")
        plan = checkout.planned("all", *TARGETS)
    finally:
        for source, times, content in before:
            source.write_text(content)
            os.utime(source, (times.st_atime, times.st_mtime))
    jobs = set(re.findall(r"^Job \d+: (\w+: [\w/-]+)$", plan, flags=re.MULTILINE))
    assert jobs == set.union(*users.values())


def test_nothing_is_to_be_done_then_and_named_targets_are_there(checkout):
    wings = {name: documents.load(name) for name in documents.names()}
    targets = [f"{name}_{target}" for name, wing in wings.items() for target in wing.targets]
    assert "Nothing to be done" in checkout.planned("all", *TARGETS, *targets)


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
