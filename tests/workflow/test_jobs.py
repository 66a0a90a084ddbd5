"""Inputs of jobs are what their functions import, and nothing that they do not use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slowlink.workflow import closure, settings
from slowlink.workflow.jobs import TRAINER, Jobs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def jobs():
    return Jobs(settings.load({"scale": "smoke"}), settings.wings())


def functions(jobs):
    """Module and name of the function behind every job that does not train, and of every summary,
    figure and table, once, with the sources that are its inputs."""
    made = {}
    for job in jobs.all.values():
        one = job.experiment
        if job.summary:
            key = one.summarise.__module__, one.summarise.__qualname__
        else:
            key = one.module, one.name
        if not job.runs:
            made.setdefault(key, job.inputs["sources"])
    for wing in jobs.wings.values():
        for name, module in wing.places.items():
            made[module, name] = wing.code(name)[0]
    return made


# Every set of modules is imported in a fork of a process that has loaded no file of this
# repository, only the packages that take long.
IMPORTS = """
import importlib, json, os, sys
import numba, numpy, pandas, pyarrow.parquet, pydantic, scipy.sparse, torch
for names in json.load(sys.stdin):
    read, write = os.pipe()
    if not os.fork():
        for name in names:
            importlib.import_module(name)
        files = [getattr(one, "__file__", None) for one in list(sys.modules.values())]
        with open(write, "w") as pipe:
            json.dump([file for file in files if file], pipe)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        print(pipe.read())
    if os.wait()[1]:
        sys.exit(1)
"""


def loaded(sets):
    """The files of this repository that are loaded where only those of a set are imported."""
    names = [
        [
            file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for file in files
            if file.endswith(".py") and not file.startswith(closure.FRAME)
        ]
        for files in sets
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        input=json.dumps(names), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        paths = [Path(path) for path in json.loads(line)]
        found = {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT)}
        yield {file for file in found if file.partition("/")[0] in closure.PACKAGES}


@pytest.mark.slow
def test_what_importing_loads_is_among_the_inputs(jobs):
    made = functions(jobs)
    # What trains imports the trainer, and the function that names its runs is not its code.
    trains = [job for job in jobs.all.values() if job.runs and not job.recorded]
    expected = [(tuple(sorted(closure.used_by(*key)[1])), key, made[key]) for key in made]
    expected += [((TRAINER,), (job.wing.name, job.name), job.inputs["sources"]) for job in trains]
    sets = sorted({direct for direct, _, _ in expected})
    assert len(sets) > 10 and trains
    seen = dict(zip(sets, loaded(sets), strict=True))
    for direct, name, sources in expected:
        missing = seen[direct] - set(sources)
        assert not missing, f"{name} loads {sorted(missing)}"


@pytest.mark.slow
def test_of_files_of_its_own_folder_a_function_uses_definitions_and_no_whole_file(jobs):
    """Workflow files are no inputs, so that a whole one would be in no digest, either."""
    for wing in jobs.wings.values():
        own = {str(file.relative_to(ROOT)) for file in wing.folder.glob("*.py")}
        experiments = {(one.module, one.name) for one in wing.experiments.values()}
        shown = {(module, name) for name, module in wing.places.items()}
        assert experiments and shown
        for module, name in experiments | shown | set(functions(jobs)):
            whole = closure.used_by(module, name)[1] & own
            assert not whole, f"{module}.{name} uses {sorted(whole)}"


def test_shown_items_use_files_but_not_those_of_their_experiments(jobs):
    matrix = jobs.wings["matrix"]
    using = {name for name in matrix.shown if "testbed/units.py" in matrix.code(name)[0]}
    assert {"ranking", "pareto", "fastest"} <= using and "trained" not in using
    for wing in jobs.wings.values():
        for name in wing.shown:
            assert "testbed/training/trainer.py" not in wing.code(name)[0], name


def test_inputs_are_files_and_named_in_one_way(jobs):
    """Two slashes in a row would be another file to Snakemake, which nothing makes."""
    for (wing, name), job in jobs.all.items():
        for file in job.inputs["sources"]:
            assert Path(file).is_file() and file == str(Path(file)), (wing, name, file)


def test_methods_that_settings_name_are_inputs_and_no_others(jobs):
    def exchanges(name):
        return {
            Path(file).stem
            for file in jobs.all["rat", name].inputs["sources"]
            if file.startswith("methods/exchange/") and "/_" not in file
        }

    assert exchanges("figure7/RAT") == {"rat"}
    assert exchanges("figure6") == {"parameter_server", "ring", "rat"}
    assert "plink" in exchanges("table1")


def test_what_runs_in_processes_of_its_own_is_an_input(jobs):
    sources = set(jobs.all["dds", "federated"].inputs["sources"])
    launched = {f"testbed/live/engine/{name}.py" for name in ("__main__", "node")}
    assert sources >= launched | {"methods/synchronization/fedavg.py"}
    assert "methods/synchronization/fedavg.py" not in jobs.all["dds", "ddp"].inputs["sources"]


def test_code_that_a_job_does_not_use_is_not_in_its_digest(jobs):
    codes = {job.params["code"] for (wing, _), job in jobs.all.items() if wing == "rat"}
    names = {job.experiment.name for (wing, _), job in jobs.all.items() if wing == "rat"}
    assert len(codes) == len(names)


def test_jobs_of_one_method_are_not_told_of_the_others(jobs):
    assert set(jobs.all["rat", "figure7/PS"].settings["methods"]) == {"PS"}
    assert set(jobs.all["rat", "latency"].settings["methods"]) == {"Ring", "RAT"}
    assert "packet" not in jobs.all["rat", "latency"].settings


def test_results_that_come_before_are_inputs(jobs):
    rows = jobs.all["rat", "joint"].inputs["rows"]
    assert [Path(file).stem for file in rows] == ["PS", "Ring", "RAT", "RAT_barrier"]


def test_a_name_is_followed_through_helpers_constants_and_methods(tmp_path, monkeypatch):
    (tmp_path / "testbed").mkdir()
    (tmp_path / "methods" / "exchange").mkdir(parents=True)
    for file in ("testbed/__init__.py", "testbed/b.py", "testbed/c.py", "testbed/d.py"):
        (tmp_path / file).write_text("")
    (tmp_path / "methods/exchange/ring.py").write_text("from slowlink.testbed import d\n")
    (tmp_path / "testbed/a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from slowlink.testbed import b\n"
        "from slowlink.testbed.c import thing\n"
        "if TYPE_CHECKING:\n    from slowlink.testbed import d\n"
        "def helper():\n    return b\n"
        "def uses():\n    return helper()\n"
        "def loads(exchange):\n    return exchange.load('ring')\n"
        "def other():\n    return thing\n"
    )
    monkeypatch.setattr(closure, "ROOT", tmp_path)
    for cached in (closure._parsed, closure._imported, closure._methods, closure._data):
        cached.cache_clear()
    base = {"testbed/__init__.py"}
    assert closure.of_function("slowlink.testbed.a", "uses")[0] == base | {"testbed/b.py"}
    assert closure.of_function("slowlink.testbed.a", "other")[0] == base | {"testbed/c.py"}
    assert closure.of_function("slowlink.testbed.a", "loads")[0] == base | {
        "methods/exchange/ring.py",
        "testbed/d.py",
    }
    for cached in (closure._parsed, closure._imported, closure._methods, closure._data):
        cached.cache_clear()


def test_what_a_file_of_the_same_document_defines_is_in_the_digest(tmp_path, monkeypatch):
    folder = tmp_path / "workflow" / "documents" / "one"
    (tmp_path / "testbed").mkdir()
    folder.mkdir(parents=True)
    (tmp_path / "testbed" / "b.py").write_text("")
    (folder / "first.py").write_text(
        "from slowlink.testbed import b\ndef helper():\n    return b\ndef other():\n    return 1\n"
    )
    (folder / "second.py").write_text(
        "from slowlink.workflow.documents.one.first import helper, other\n"
        "def uses():\n    return helper()\n"
    )
    monkeypatch.setattr(closure, "ROOT", tmp_path)
    caches = closure._parsed, closure._imported, closure._Source.of, closure.of_function
    for cached in caches:
        cached.cache_clear()

    def used():
        return closure.of_function("slowlink.workflow.documents.one.second", "uses")

    files, before = used()
    assert files == {"testbed/b.py"}
    for line, same in (("def other():\n    return 2\n", True), ("def helper():\n    1\n", False)):
        with (folder / "first.py").open("a") as file:
            file.write(line)
        for cached in caches:
            cached.cache_clear()
        assert (used()[1] == before) == same
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


MODULES = {
    "parts.py": """
def found():
    return helper()

def helper():
    return 1

def other():
    return 1
""",
    "experiments.py": """
from slowlink.workflow.documents.one import parts as pieces
from slowlink.workflow.documents.one.parts import other as another
from slowlink.workflow.experiment import experiment

@experiment()
def first(bench):
    return pieces.found()

@experiment(after=[first])
def second(bench, rows):
    return pieces.other()

@experiment()
def third(bench):
    return another()
""",
    "page.py": """
from slowlink.reports.charts import Figure
from slowlink.workflow.documents.one import experiments

shown = Figure(of=[experiments.first])
""",
}


@pytest.mark.parametrize(
    ("changed", "using"),
    [("found", {"first"}), ("helper", {"first"}), ("other", {"second", "third"})],
)
def test_what_is_reached_through_a_module_is_in_the_digests_of_what_uses_it(
    changed, using, tmp_path, monkeypatch
):
    """And in no others: what an experiment comes after, and what is shown, counts by its rows."""
    folder = tmp_path / "workflow" / "documents" / "one"
    folder.mkdir(parents=True)
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(closure, "ROOT", tmp_path)
    caches = closure._parsed, closure._imported, closure._Source.of, closure.of_function

    def digests():
        for cached in caches:
            cached.cache_clear()
        places = dict(first="experiments", second="experiments", third="experiments", shown="page")
        module = "slowlink.workflow.documents.one"
        return {
            name: closure.of_function(f"{module}.{file}", name)[1] for name, file in places.items()
        }

    before = digests()
    text = MODULES["parts.py"].replace(f"def {changed}():", f"def {changed}():\n    'changed'")
    (folder / "parts.py").write_text(text)
    after = digests()
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()
    assert {name for name in before if before[name] != after[name]} == using
