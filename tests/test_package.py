"""The wheel: all of the house in one package, and it works away from the checkout."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import slowlink

ROOT = Path(__file__).parents[1]
ROOMS = ("methods", "testbed", "reports", "workflow")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without a network and without a compiler."""
    pytest.importorskip("hatchling", reason="`make env` installs what builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--quiet", "--wheel-dir", folder, ROOT], check=True, env=without_compiler()
    )
    (made,) = folder.glob("slowlink-*.whl")
    return made


def without_compiler():
    return os.environ | {"CC": "/bin/false", "CXX": "/bin/false"}


def tracked(*places):
    """Files of these places that git knows, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *places]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {file for file in done.stdout.split("\n") if file and (ROOT / file).is_file()}


@pytest.mark.slow
def test_the_wheel_has_every_file_of_every_room_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {n for n in archive.namelist() if not re.match(r"slowlink-[^/]+\.dist-info/", n)}
    wanted = {f"slowlink/{file}" for file in tracked(*ROOMS, "data")}
    assert inside == wanted | tracked("slowlink")


@pytest.mark.slow
def test_the_wheel_says_its_version_bounds_and_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        told = archive.read(f"{folder}/METADATA").decode()
        points = archive.read(f"{folder}/entry_points.txt").decode()
    assert f"\nVersion: {slowlink.__version__}\n" in told
    needs = re.findall(r"^Requires-Dist: (.*)$", told, re.MULTILINE)
    assert sorted(n.split("<")[0].split(">")[0] for n in needs if "extra" not in n) == [
        "numba",
        "numpy",
        "torch",
    ]
    assert "slowlink = slowlink.cli:main" in points


def test_the_citation_has_the_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == slowlink.__version__


@pytest.mark.slow
def test_the_installed_wheel_works_elsewhere_without_a_compiler(wheel, tmp_path):
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*command, "--target", target, wheel], check=True)
    program = """
import sys, pathlib, torch, slowlink
here = pathlib.Path(sys.argv[1])
assert here in pathlib.Path(slowlink.__file__).parents, slowlink.__file__
codec = slowlink.compression.load("bisparse", ratio=0.01, lower_bound=0)
payload = codec.compress(torch.arange(1000.0), key="w")
assert payload.nbytes == 80, payload.nbytes
assert "ring" in slowlink.exchange.names() and "lpsp" in slowlink.synchronization.names()
assert slowlink.torch.comm_hook
from slowlink.testbed.training import device, fetch
from slowlink.workflow import settings
assert device.PROFILES.is_file() and (fetch.DATA / "sources.yaml").is_file()
assert all(here in pathlib.Path(place).parents for place in (device.PROFILES, settings.ROOT))
assert (settings.ROOT / "workflow/documents/geomx/claims.yaml").is_file()
"""
    environment = without_compiler() | {"PYTHONPATH": str(target)}
    subprocess.run(
        [sys.executable, "-c", program, target], cwd=tmp_path, check=True, env=environment
    )


LIVE = {"pooch", "pydantic", "yaml", "zmq", "nacl"}
"""What the extra for live systems brings, directly."""
SUITE = {"pandas", "scipy", "snakemake", "seaborn", "matplotlib", "jinja2", "torchvision"}
SUITE |= {"pyarrow", "rich", "psutil", "pygments", "pypi_simple", "cyclonedds", "cryptography"}

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(missing, folder, *command):
    """Run Python in ``folder``, and all processes that it starts, as if packages were not there."""
    (folder / "sitecustomize.py").write_text(MISSING.format(missing=missing))
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, *command], check=True, cwd=folder, env=environment)


@pytest.mark.slow
def test_the_core_needs_nothing_of_the_extras(tmp_path):
    """Torch, numpy and numba are enough for methods, plans and hooks."""
    program = """
import torch, slowlink, slowlink.torch
from slowlink.testbed.network import leaf_spine
for room in (slowlink.compression, slowlink.fusion, slowlink.synchronization):
    for name in room.names():
        room.load(name)
codec = slowlink.compression.load("top_k")
slowlink.compression.aggregate([codec], [torch.randn(100)], "w")
racks = leaf_spine(racks=2, per_rack=2, rate=1e9, spines=1, latency=1e-6)
assert slowlink.exchange.load("ring")(racks)
"""
    run_without(LIVE | SUITE, tmp_path, "-c", program)


@pytest.mark.slow
def test_live_runs_need_nothing_of_the_suite(tmp_path):
    """The extra ``live`` is enough for a training over TCP, a known model and its data included."""
    recipe = dict(
        exchange=dict(name="parameter_server"),
        levels=[dict(up=dict(name="top_k", ratio=0.1))],
        synchronization=dict(name="bsp"),
        model=dict(name="mlp", hidden=8),
        dataset="fashion_mnist",
        limit=64,
        test_limit=16,
        workers=[2],
        batch=8,
        lr=0.05,
        rounds=4,
        evaluate_every=2,
    )
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(dict(training=recipe, output="out")))
    command = "from slowlink.cli import main; raise SystemExit(main(['train', 'recipe.yaml']))"
    run_without(SUITE, tmp_path, "-c", command)
    assert (tmp_path / "out" / "model.pt").is_file()
