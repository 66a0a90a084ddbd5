"""The SLURM profile on a SLURM of this machine alone."""

import importlib.util
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow.checkout import SNAKEMAKE, Checkout

ONE_MACHINE = Path(__file__).parents[2] / "workflow/profiles/slurm/one_machine.sh"
TARGET = "results/smoke/rat/table1.parquet"
PROFILE = ["--workflow-profile", "workflow/profiles/slurm"]


def missing():
    """Why a SLURM of this machine cannot run here; empty if it can."""
    programs = [p for p in ("slurmctld", "slurmd", "sbatch", "munged") if not shutil.which(p)]
    if programs:
        return f"no {', '.join(programs)}: apt-get install slurmctld slurmd slurm-client munge"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "no SLURM plugin of Snakemake: python .ci/install.py cluster"
    if Path("/etc/slurm/slurm.conf").exists():
        return "this machine has a SLURM already"
    return "" if os.geteuid() == 0 else "SLURM's daemons want root"


pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "SLURM is here"),
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([ONE_MACHINE, "start", folder / "slurm"], check=True)
    try:
        yield Checkout(folder / "slowlink")
    finally:
        subprocess.run([ONE_MACHINE, "stop", folder / "slurm"], check=True)


def start(checkout, *arguments):
    return subprocess.Popen(
        [SNAKEMAKE, TARGET, *PROFILE, *arguments, "--config", "scale=smoke"],
        cwd=checkout.path,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def jobs():
    """(number, state) of all jobs that SLURM knows, the oldest first."""
    command = ["squeue", "--noheader", "--states=all", "--sort=i", "--format=%i %T"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [tuple(line.split()) for line in told.splitlines()]


def test_a_partition_that_is_not_there_is_named(checkout):
    run = start(checkout, "--retries=0", "--default-resources", "slurm_partition=nowhere")
    said, _ = run.communicate(timeout=300)
    assert run.returncode and re.search("(?i)invalid partition", said), said[-3000:]
    assert not jobs() and not (checkout.path / TARGET).exists()


def test_a_job_that_the_engine_loses_runs_again_with_the_same_rows(checkout):
    run = start(checkout)
    until = time.monotonic() + 120
    while not jobs() and run.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    (first, _), *_ = jobs()
    subprocess.run(["scancel", first], check=True)
    said, _ = run.communicate(timeout=600)
    assert run.returncode == 0, said[-3000:]
    assert [state for _, state in jobs()] == ["CANCELLED", "COMPLETED"]
    rows = pd.read_parquet(checkout.path / TARGET)
    (checkout.path / TARGET).unlink()
    code, said = checkout.run(TARGET)
    assert code == 0, said[-3000:]
    pd.testing.assert_frame_equal(rows, pd.read_parquet(checkout.path / TARGET))
