"""The command ``slowlink``: what it prints, what it writes, and how it says what is wrong."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from slowlink import cli
from slowlink.methods import compression, exchange, fusion, synchronization
from slowlink.testbed.live.links import Listener
from slowlink.testbed.network import cluster
from slowlink.testbed.training import device, own

ROOT = Path(__file__).parents[1]

CODE = """
import torch
from torch import nn

def build():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 3))
    return model, (torch.randn(4, 3, 4, 4), torch.zeros(4, dtype=torch.int64))

def net():
    return build()[0]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_own.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_own", None)


def run(capsys, *arguments):
    assert cli.main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


READ = ("advise", "train")
"""Commands whose help tells of what recipes may say, and so reads it."""


def test_help_imports_nothing_that_takes_time():
    code = (
        "import sys\nfrom slowlink.cli import COMMANDS, main\n"
        f"for arguments in (['--help'], *([c, '--help'] for c in COMMANDS if c not in {READ})):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'numpy', 'pandas', 'numba', 'yaml'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in cli.COMMANDS:
        assert f"    {name} " in done.stdout
    assert done.stdout.count("examples:") == len(cli.COMMANDS) + 1 - len(READ)


def test_train_refuses_what_its_recipe_lacks(folder, capsys):
    (folder / "recipe.yaml").write_text("training: {workers: [2]}")
    assert cli.main(["train", "recipe.yaml"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "slowlink train: recipe.yaml: training.exchange: Field required" in said
    assert all(line.startswith("slowlink train: recipe.yaml: ") for line in said)


@pytest.mark.slow
def test_the_module_is_the_command(folder):
    command = [sys.executable, "-m", "slowlink", "methods", "fusion/nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("slowlink methods: no fusion method")


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["methods", "rooms"], "slowlink methods: no room 'rooms'; there are: exchange, compr"),
        (["methods", "compression/topk"], "did you mean 'top_k'?"),
        (["measure", "my_own:missing"], "my_own has no function 'missing'; say module:function"),
        (["measure", "my_own:net"], "give the shape of a sample (--input 3x32x32)"),
        (["measure", "my_own:build", "--batch", "3"], "leave --batch out"),
        (["measure", "my_own:build", "--codecs", "zip"], "--codecs: 'zip' is none of bisparse"),
        (["measure", "my_own:build", "--device", "tpu"], "say cpu, cuda or cuda:1"),
        (["links"], "give hosts to measure to, --listen PORT or --topo FILE"),
        (["links", "somewhere"], "'somewhere' is no host with a port; say HOST:PORT"),
        (["links", "a=h:1", "a=h:2"], "two hosts have one name"),
        (["links", "--listen", "70000"], "a port is below 65536"),
        (["links", "--topo", "none.txt"], "name it with --cluster-file"),
        (["links", "--topo", "none.txt", "--cluster-file", "c.yaml"], "links: none.txt: No such f"),
        (["train", "none.yaml"], "train: none.yaml: No such file"),
        (["train", "bytes"], "train: bytes: 'utf-8' codec can't decode"),
        (["train", "bad.yaml"], "train: bad.yaml: cannot be read as JSON or YAML: line "),
        (["links", "h:1", "--flat", "--cluster-file", "my_own.py"], "my_own.py: "),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line(folder, capsys, arguments, says):
    (folder / "bad.yaml").write_text("training: [")
    (folder / "bytes").write_bytes(b"\xff\xfe")
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert says in said.err and said.err.startswith(f"slowlink {arguments[0]}: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["nothing"], "invalid choice: 'nothing'"),
        ([], "required: COMMAND"),
        (["measure", "m:f", "--input", "3xx2"], "'3xx2' is no shape; say 3x224x224"),
        (["measure", "m:f", "--repeats", "0"], "'0' is no number of them; at least 1"),
        (["links", "h:1", "--seconds", "-1"], "'-1' is no number of seconds"),
        (["report", "--scale", "large"], "invalid choice: 'large'"),
    ],
)
def test_options_that_do_not_parse_name_what_is_allowed(capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_a_package_that_is_not_installed_is_named_with_its_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "slowlink.testbed.live.links", raising=False)
    assert cli.main(["links", "host:1"]) == 2
    said = capsys.readouterr().err
    assert said == 'slowlink links: needs zmq; install it with: pip install "slowlink[live]"\n'


@pytest.mark.parametrize(
    "package, more, options", [("cyclonedds", {"dds": {}}, []), ("ray", {}, ["--ray", "local"])]
)
def test_what_only_some_runs_need_has_an_extra_of_its_own(
    capsys, monkeypatch, tmp_path, package, more, options
):
    for name in [*sys.modules]:
        if name.startswith((f"{package}.", "slowlink.testbed.live.dds")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    training = dict(
        exchange=dict(name="allgather"),
        levels=[dict(up=dict(name="identity"))],
        synchronization=dict(name="bsp"),
        model=dict(name="mlp"),
        dataset="fashion_mnist",
        workers=[2],
        batch=8,
        lr=0.1,
        rounds=2,
        evaluate_every=2,
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(dict(training=training, output=str(tmp_path / "out")) | more))
    assert cli.main(["train", str(file), *options]) == 2
    extra = "dds" if more else "ray"
    needs = f'needs {package}; install it with: pip install "slowlink[{extra}]"'
    assert capsys.readouterr().err == f"slowlink train: {needs}\n"


# Methods ------------------------------------------------------------------------------------------


def test_methods_lists_every_room(capsys):
    said = run(capsys, "methods")
    for room in (exchange, compression, synchronization, fusion):
        for name in room.names():
            assert f"  {name}" in said and room.load(name).summary in said
    assert "top_k [80,000 bytes]" in said and "identity [4,000,000 bytes]" in said
    only = run(capsys, "methods", "fusion")
    assert "mg_wfbp" in only and "top_k" not in only


def test_a_methods_card_has_its_parameters_and_its_bytes(capsys):
    said = run(capsys, "methods", "compression/power_sgd", "--shape", "200x100")
    codec = compression.load("power_sgd")
    assert "rank: int = 4" in said and "combines: sum, in several rounds" in said
    sent = ", ".join(f"{n:,}" for n in codec.payload_bytes((200, 100)))
    assert f"bytes a round for 200 × 100: {sent} (plain float32: 80,000)" in said
    assert 'slowlink.compression.load("power_sgd")' in said
    assert "on the wire: dense of float16, 2,000 bytes" in run(
        capsys, "methods", "compression/fp16", "--shape", "1000"
    )
    large = run(capsys, "methods", "compression/power_sgd", "--shape", "1000000x1000000")
    assert "plain float32: 4,000,000,000,000)" in large
    assert "on the wire: not tried with more than 100,000,000 values" in large
    for room in (exchange, compression, synchronization, fusion):
        label = room.__name__.rpartition(".")[2]
        for name in room.names():
            assert room.load(name).summary in run(capsys, "methods", f"{label}/{name}")


# Measure ------------------------------------------------------------------------------------------


def test_what_is_measured_is_what_advice_reads(folder, capsys):
    arguments = ["--codecs", "top_k|power_sgd", "--repeats", "2", "--out", "mine"]
    said = run(capsys, "measure", "my_own:build", *arguments)
    assert "4 tensors, 835 values" in said and "top_k:" in said
    model = own.load(folder / "mine.model.yaml")
    name, profile = device.load(folder / "mine.device.yaml")
    assert (model.model, model.batch, name) == ("my_own:build", 4, "mine")
    # PowerSGD has two ranks in the matrix, which cost differently.
    assert set(profile.known) == {"top_k", "power_sgd", "power_sgd_2"}
    assert (
        "made by: slowlink measure my_own:build --codecs"
        in (folder / "mine.device.yaml").read_text()
    )
    advised = run(
        capsys,
        *("advise", "--model-file", "mine.model.yaml", "--device-file", "mine.device.yaml"),
        *("--workers", "4", "--lan", "10M", "--only", "codec=power_sgd|identity,exchange=ring"),
    )
    first, *rest = advised.splitlines()
    # The answer comes first; torch DDP is a ring, in buckets, which may win on a busy machine.
    assert re.match("(ring|power_sgd|torch DDP)[ ,].*is first: ", first)  # or tied with another
    assert any(one.startswith("my_own:build, 16 samples a round, 4 workers (mine)") for one in rest)
    assert "within" in advised and "worth it" in advised


def test_a_model_alone_is_timed_with_a_shape_and_the_projects_own_by_name(folder, capsys):
    said = run(
        capsys, "measure", "my_own:net", "--input", "3x4x4", "--codecs", "none", "--repeats", "1"
    )
    assert "Wrote my_own_net.model.yaml and my_own_net.device.yaml" in said
    run(capsys, "measure", "lenet5", "--codecs", "none", "--repeats", "1", "--batch", "2")
    assert own.load(folder / "lenet5.model.yaml").batch == 2


def test_without_a_gpu_the_processor_is_measured_and_that_is_said(folder, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["--codecs", "none", "--repeats", "1", "--device", "cuda"]
    assert cli.main(["measure", "my_own:build", *arguments]) == 0
    assert "there is no cuda here (0 GPUs); measuring the processor" in capsys.readouterr().err


# Links --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_links_are_measured_into_a_cluster_file(folder, capsys):
    for number in range(2):
        listener = Listener(0, "127.0.0.1")
        thread = threading.Thread(target=listener.serve, kwargs=dict(once=True), daemon=True)
        thread.start()
        said = run(
            capsys,
            *("links", f"branch=127.0.0.1:{listener.port}", "--here", "main", "--seconds", "0.02"),
            *("--repeats", "2", "--cluster-file", "cluster.yaml"),
        )
        thread.join(timeout=10)
        listener.close()
        assert "main to branch: " in said and "round trip: " in said
        assert ("Every site has one worker" in said) == (number == 0)
        found = cluster.load(folder / "cluster.yaml")
        assert [site.name for site in found.sites] == ["main", "branch"]
        assert found.measured.repeats == 2 and found.efficiency == 1
        if number == 0:
            text = (folder / "cluster.yaml").read_text().replace("workers: 1", "workers: 3")
            (folder / "cluster.yaml").write_text(text)
        else:  # what its owner wrote is still there
            assert found.workers == 6


def test_a_table_of_nvidia_smi_becomes_a_cluster_file(folder, capsys):
    (folder / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n")
    said = run(capsys, "links", "--topo", "topo.txt", "--cluster-file", "host.yaml")
    assert "2 GPUs of one host: 2 workers with cards of 800 Gbit/s" in said
    assert cluster.load(folder / "host.yaml").workers == 2


# Report -------------------------------------------------------------------------------------------


def test_a_report_is_made_in_a_checkout_and_refused_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert cli.main(["report"]) == 2
    assert "made in a checkout of the repository, which this is not" in capsys.readouterr().err
    (tmp_path / "Snakefile").write_text("")
    assert cli.main(["report", "--no-run"]) == 2
    assert "run slowlink report --scale desk" in capsys.readouterr().err
    asked, status = [], 1

    def snakemake(command, cwd):
        asked.append((command[1:], cwd))
        index = tmp_path / "reports" / "html" / "smoke" / "index.html"
        index.parent.mkdir(parents=True, exist_ok=True)
        index.touch()
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(cli.subprocess, "run", snakemake)
    assert cli.main(["report", "matrix", "--scale", "smoke", "--cores", "3"]) == 2
    assert "snakemake ended with 1" in capsys.readouterr().err
    status = 0
    said = run(capsys, "report", "matrix", "--scale", "smoke", "--cores", "3")
    assert said.startswith("report: ") and "smoke" in said
    expected = ["-m", "snakemake", "--cores", "3", "matrix", "--config", "scale=smoke"]
    assert asked[-1] == (expected, tmp_path)
