"""Beyond one machine: resources of every rule, profiles of schedulers, and estimated costs."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed.training import device, models
from workflow import cost
from workflow.recipes.matrix import Matrix
from workflow.settings import load

ROOT = Path(__file__).parents[2]
PROFILES = {path.parent.name: path for path in ROOT.glob("workflow/profiles/*/config.yaml")}
RULES = {
    name: body
    for file in sorted(ROOT.glob("workflow/rules/*.smk"))
    for name, body in re.findall(r"^rule (\w+):\n((?:[ \n].*\n?)*)", file.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("rule", [name for name, body in RULES.items() if "output:" in body])
def test_rules_say_what_they_need(rule):
    for needed in ("threads: ", "mem_mb=", "runtime="):
        assert needed in RULES[rule], f"{rule} does not say {needed}"


def test_rules_that_train_ask_for_the_gpu():
    assert all("gpu=" in RULES[rule] for rule in ("train", "matrix_job"))


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_plan_the_whole_run(name, tmp_path):
    profile = yaml.safe_load(PROFILES[name].read_text())
    needed = [profile["executor"], *({"fs"} if "default-storage-provider" in profile else ())]
    for kind, plugin in zip(("executor", "storage"), needed, strict=False):
        if importlib.util.find_spec(f"snakemake_{kind}_plugin_{plugin}") is None:
            pytest.skip(f"the {kind} plugin {plugin!r} is not installed: pip install '.[cluster]'")
    ignore = shutil.ignore_patterns(
        ".git", ".venv", ".snakemake", "results", "logs", "cache", "html"
    )
    shutil.copytree(ROOT, tmp_path / "tree", ignore=ignore)
    options = {"kubernetes": ["--default-storage-prefix", str(tmp_path / "tree")]}.get(name, [])
    command = [Path(sys.executable).parent / "snakemake", "-n", "--workflow-profile"]
    command += [PROFILES[name].parent.relative_to(ROOT), *options, "--config", "scale=paper"]
    done = subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^matrix_job +\d+$", done.stdout, re.MULTILINE)


def recipe(**changes):
    matrix = load({"scale": "smoke"}, names=False).recipes["matrix"]
    run = matrix.run("ring", 0.1, 1, 100, "smoke", "training")
    return run.model_copy(update=dict(batch=4096, evaluate_every=10, test_limit=1000) | changes)


def test_training_costs_the_operations_of_its_gradients_and_evaluations():
    run = recipe()
    flops = models.flops_per_sample(models.make("lenet5"), (1, 28, 28))
    rate = device.profile(cost.DEVICE).flops
    samples = 100 * sum(run.workers) * 4096
    slow = samples * flops / rate, 100 * sum(run.workers) * cost.ITERATION_S
    assert cost.gpu_s(run) == pytest.approx(max(slow) + 10 * 1000 * flops / 3 / rate)
    assert cost.gpu_s(recipe(rounds=200)) == pytest.approx(2 * cost.gpu_s(run))


def test_estimates_add_up_and_are_called_estimates(tmp_path):
    matrix = load({"scale": "smoke"}, names=False).recipes["matrix"]
    assert isinstance(matrix, Matrix)
    benchmarks = tmp_path / "jobs" / "geomx_rounds" / "table1.tsv"
    benchmarks.parent.mkdir(parents=True)
    benchmarks.write_text("s\tcpu_time\n70.0\t90.0\n")
    timed = cost.timed(tmp_path / "jobs", ["geomx", "rat"])
    assert timed == {"geomx": 90.0}
    lines = cost.estimate({"lpsp": {"a": [recipe()]}}, matrix, {"geomx": 4, "rat": 1}, timed)
    *parts, total = lines
    for name in ("jobs", "gpu_hours", "core_hours", "result_bytes"):
        assert getattr(total, name) == pytest.approx(sum(getattr(line, name) for line in parts))
    by_name = {line.what: line for line in parts}
    assert by_name["geomx: other jobs"].core_hours == pytest.approx(4 * 90 / 3600)
    assert "guess" in by_name["rat: other jobs"].basis
    said = cost.said(lines).splitlines()
    assert len(said) == len(lines) + 1 and said[-1].endswith("an estimate")
    cost.write(lines, tmp_path / "costs.csv")
    assert len((tmp_path / "costs.csv").read_text().splitlines()) == len(lines) + 1
