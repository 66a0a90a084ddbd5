"""Beyond one machine: resources of every rule, profiles of schedulers, and estimated costs."""

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from slowlink.methods import compression
from slowlink.testbed.training import device, models
from slowlink.testbed.training.recipe import Level, Part
from slowlink.workflow import cost
from slowlink.workflow.experiment import Bench
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.matrix import experiments as matrix
from slowlink.workflow.settings import load, wings

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


@pytest.fixture(scope="module")
def jobs():
    return Jobs(load({"scale": "smoke"}, names=False), wings())


def test_jobs_that_train_ask_for_the_gpu_at_paper_scale(jobs):
    assert "gpu=" in RULES["experiment"] and not any(job.gpu for job in jobs.all.values())
    asking = {key for key, job in jobs.all.items() if replace(job, scale="paper").gpu}
    trained = {key for key, job in jobs.all.items() if job.runs and not job.recorded}
    training = trained | {key for key in jobs.all if key[1].startswith("training/")}
    assert training and training <= asking
    assert ("matrix", "condensed") not in asking


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_plan_the_whole_run(name, tmp_path):
    profile = yaml.safe_load(PROFILES[name].read_text())
    needed = [profile["executor"], *({"fs"} if "default-storage-provider" in profile else ())]
    for kind, plugin in zip(("executor", "storage"), needed, strict=False):
        if importlib.util.find_spec(f"snakemake_{kind}_plugin_{plugin}") is None:
            pytest.skip(f"no {kind} plugin {plugin!r}: python .ci/install.py cluster")
    ignore = shutil.ignore_patterns(
        ".git", ".venv", ".snakemake", "results", "logs", "cache", "html"
    )
    shutil.copytree(ROOT, tmp_path / "tree", ignore=ignore)
    options = {"kubernetes": ["--default-storage-prefix", str(tmp_path / "tree")]}.get(name, [])
    command = [Path(sys.executable).parent / "snakemake", "-n", "--workflow-profile"]
    command += [PROFILES[name].parent.relative_to(ROOT), *options, "--config", "scale=paper"]
    done = subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert re.search(r"^experiment +\d+$", done.stdout, re.MULTILINE)


def recipe(**changes):
    settings = load({"scale": "smoke"}, names=False).recipes["matrix"]
    bench = Bench("matrix", "training", settings, "smoke")
    run = matrix.run(bench, settings.training, "ring", 0.1, 1, 100, "training")
    return run.model_copy(update=dict(batch=4096, evaluate_every=10, test_limit=1000) | changes)


def test_training_costs_the_operations_of_its_gradients_and_evaluations():
    run = recipe()
    flops = models.flops_per_sample(models.make("lenet5"), (1, 28, 28))
    rate = device.profile(cost.DEVICE).flops
    samples = 100 * sum(run.workers) * 4096
    slow = samples * flops / rate, 100 * sum(run.workers) * cost.ITERATION_S
    assert cost.gpu_s(run) == pytest.approx(max(slow) + 10 * 1000 * flops / 3 / rate)
    assert cost.gpu_s(recipe(rounds=200)) == pytest.approx(2 * cost.gpu_s(run))


def test_training_costs_the_coding_of_its_payloads():
    halves = Part(name="fp16")
    run = recipe(levels=(Level(up=halves),))
    size = 4 * 61706  # bytes of LeNet-5's values
    work = device.work(compression.load("fp16"))
    host = device.profile(cost.HOST).work
    kernels = host.kernel_s * sum(one.kernels for one in work) * 10  # tensors
    passes = sum(one.passes for one in work) * size / host.passes.rate
    once = 100 * (kernels + passes)
    assert cost.coding_s(run) == pytest.approx(8 * once)
    assert cost.coding_s(recipe()) == 0  # plain values are sent from where they lie
    sites = recipe(workers=(3, 5), levels=(Level(up=Part(name="identity")), Level(up=halves)))
    assert cost.coding_s(sites) == pytest.approx(2 * once)
    both = recipe(workers=(3, 5), levels=(Level(up=halves, down=halves), Level(up=halves)))
    assert cost.coding_s(both) == pytest.approx((2 * 8 + 2) * once)


def whole_s(run):
    return cost.gpu_s(run) + cost.coding_s(run)


def test_estimates_add_up_and_are_called_estimates(jobs, tmp_path):
    for name, cpu_s in (("rat/latency", 90), ("rat/exchanges", 30), ("matrix/cells/ring", 5000)):
        file = tmp_path / "jobs" / f"{name}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"s\tcpu_s\n70.0\t{cpu_s}\n")
    timed = cost.timed(tmp_path / "jobs", jobs.all.values())
    assert timed == {"rat": 60.0}  # cells are counted by themselves
    lines = cost.estimate(jobs, timed)
    *parts, total = lines
    for name in ("jobs", "gpu_hours", "core_hours", "result_bytes"):
        assert getattr(total, name) == pytest.approx(sum(getattr(line, name) for line in parts))
    asked = [job for job in jobs.all.values() if not job.experiment.optional]
    assert total.jobs == len(asked)
    by_name = {line.what: line for line in parts}
    rat = by_name["rat: other jobs"]
    assert rat.core_hours == pytest.approx(rat.jobs * 60 / 3600)
    assert "guess" in by_name["matrix: other jobs"].basis
    said = cost.said(lines).splitlines()
    assert len(said) == len(lines) + 1 and said[-1].endswith("an estimate")
    cost.write(lines, tmp_path / "costs.csv")
    assert len((tmp_path / "costs.csv").read_text().splitlines()) == len(lines) + 1


def test_the_matrix_costs_every_run_of_its_search(jobs):
    lines = {line.what: line for line in cost.estimate(jobs, {})}
    settings = jobs.settings.recipes["matrix"]
    how, trained = settings.training, sorted(set(settings.trained_as().values()))
    runs = list(cost.searched(settings, "smoke", trained))
    # LPSP looks at the clock, and is trained at every ratio.
    places = {label: len(how.ratios) if label == "LPSP" else 1 for label in trained}
    assert len(runs) == sum(len(how.grid) + len(how.seeds) * places[one] for one in trained)
    assert lines["matrix: training"].gpu_hours == pytest.approx(sum(map(whole_s, runs)) / 3600)
    cells = 2 * len(settings.speeds) * len(settings.workers) * len(settings.bandwidths)
    cells *= len(settings.models) * len(settings.found())
    assert lines["matrix: cells"].core_hours == pytest.approx(cells * cost.CELL_S / 3600)


def test_documents_cost_their_runs(jobs):
    lines = {line.what: line for line in cost.estimate(jobs, {})}
    mine = [job for (wing, _), job in jobs.all.items() if wing == "lpsp" and job.runs]
    mine = [job for job in mine if not job.recorded]  # which cost nothing
    runs = [run for job in mine for run in job.runs]
    assert runs and lines["lpsp: training"].jobs == len(mine)
    assert lines["lpsp: training"].gpu_hours == pytest.approx(sum(map(whole_s, runs)) / 3600)
