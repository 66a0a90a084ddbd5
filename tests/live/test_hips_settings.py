"""The file of a cluster: what it fills in, what it refuses and how it says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slowlink.testbed.live.hips import __main__ as command
from slowlink.testbed.live.hips import settings
from slowlink.testbed.live.hips.settings import parse, read
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.training.recipe import Link


def document(**changes):
    training = dict(
        exchange={"name": "hips"},
        levels=[{"up": {"name": "identity"}}, {"up": {"name": "bisparse"}}],
        synchronization={"name": "bsp"},
        model={"name": "lenet5"},
        dataset="fashion_mnist",
        workers=[2, 1],
        batch=8,
        lr=0.05,
        rounds=3,
        evaluate_every=1,
    )
    training |= changes.pop("training", {})
    return dict(training=training, output="out") | changes


def test_the_example_of_the_module_is_a_cluster():
    example = settings.__doc__.split("::", 1)[1]
    cluster = parse(yaml.safe_load(example))
    assert cluster.on_loss == "continue"
    assert cluster.training.workers == (2, 2)


def test_names_of_nodes():
    cluster = parse(document())
    assert cluster.nodes == (
        "central/server",
        "central/master",
        "site1/server",
        "site1/worker0",
        "site1/worker1",
        "site2/server",
        "site2/worker0",
    )
    assert cluster.schedulers == (
        "global/scheduler",
        "central/scheduler",
        "site1/scheduler",
        "site2/scheduler",
    )
    levels = [{"up": {"name": "fp16"}}]
    flat = parse(document(training=dict(exchange={"name": "parameter_server"}, levels=levels)))
    assert flat.servers == ("central/server",)


def test_the_network_is_that_of_the_recipe():
    cluster = parse(document(network=dict(lan=1e9, wan=155e6)))
    assert cluster.training.networks == {"emulated": Link(lan=1e9, wan=155e6)}


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_json_and_yaml_say_the_same(tmp_path, form):
    file = tmp_path / "cluster"
    file.write_text(form(document(state="s", late=["site1/worker1"])))
    cluster = read(file)
    assert cluster == parse(document(state="s", late=["site1/worker1"]))
    assert cluster.state == Path("s")


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(output=None), "output: Input is not a valid path"),
        (dict(rejoin=3), "rejoin: no such key; there are: training, network, late"),
        (dict(training={"rate": 3}), "training.rate: no such key; there are: document"),
        (dict(training={"lr": "fast"}), "training.lr: Input should be a valid number"),
        (dict(training={"networks": {}}), "training.networks: leave it out, `network` says"),
        (dict(training={"rounds": None}), "training: give either rounds or seconds"),
        (dict(on_loss="ignore"), "on_loss: Input should be 'stop', 'continue' or 'wait'"),
        (dict(on_loss="wait"), "state: name a folder"),
        (dict(heartbeat_timeout_s=0), "heartbeat_timeout_s: Input should be greater than"),
        (dict(rejoin_s=float("inf")), "rejoin_s: Input should be a finite number"),
        (dict(slice_bytes=1), "slice_bytes: Input should be greater than"),
        (dict(network={"lan": 1e9}), "wan: Field required"),
        (dict(late=["site3/worker0"]), "late: no node 'site3/worker0'; there are: global/"),
        (dict(late=["central/master"]), "late: central/master must be there from the start"),
        (dict(late=["site1/scheduler"]), "late: site1/scheduler comes with its nodes"),
        (dict(addresses={"a": "tcp://a:1"}), "addresses: no node 'a'; there are: global/"),
        (dict(addresses={"site1/server": "a:1"}), "site1/server must be at tcp://host:port"),
        (
            dict(training={"synchronization": {"name": "mixed"}}),
            "training.optimizer_at: must be server for mixed",
        ),
        (dict(training={"levels": [{"up": {"name": "fp16"}}]}), "training.levels: must be a list"),
        (
            dict(training={"levels": [{"up": {"name": "fp16"}}, {"up": {"name": "tow_bit"}}]}),
            "training.levels.1.up: no compression method 'tow_bit'",
        ),
        (
            dict(training={"levels": [{"up": {"name": "dgc", "rate": 1}}] * 2}),
            "training.levels.0.up: ",
        ),
    ],
)
def test_what_is_refused_is_named_with_the_remedy(tmp_path, changes, said):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document(**changes)))
    with pytest.raises(ValueError) as refusal:
        read(file)
    assert all(line.startswith(f"{file}: ") for line in str(refusal.value).split("\n"))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ("output: a\noutput: b\n", "key 'output' is given twice"),
        ("output: [\n", "neither JSON nor YAML"),
        ("[]", "valid dictionary"),
        ("training: 3\noutput: out\n", "training: "),
        ("", "valid dictionary"),
    ],
)
def test_files_that_are_none(tmp_path, text, said):
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        read(file)


def test_the_command_ends_with_2_where_the_configuration_is_refused(tmp_path, capsys):
    assert command.main([str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document(training={"exchange": {"name": "ring"}})))
    assert command.main([str(file)]) == 2
    said = f"{file}: training.exchange: must be hips or parameter_server"
    assert said in capsys.readouterr().err


def test_help_and_schedulers_do_not_wait_for_torch(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document()))
    for arguments in (["--help"], [str(file), "--node", "site1/scheduler"]):
        argv = [sys.executable, "-X", "importtime", "-m", "slowlink.testbed.live.hips", *arguments]
        imports = subprocess.run(argv, capture_output=True, text=True).stderr
        assert "slowlink.testbed.live.hips.zmq_transport" in imports
        assert "torch" not in imports


def test_a_node_needs_the_address_of_its_scheduler(tmp_path, capsys):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document()))
    assert command.main([str(file), "--node", "site1/scheduler"]) == 1
    said = "addresses: give that of global/scheduler, as global/scheduler: tcp://host:port"
    assert said in capsys.readouterr().err
    assert command.main([str(file), "--node", "site9/worker0"]) == 1
    assert "no node 'site9/worker0'; there are: global/scheduler" in capsys.readouterr().err


def test_several_hosts_need_keys_which_a_command_makes(tmp_path, capsys):
    addresses = {
        "global/scheduler": "tcp://10.0.0.1:5570",
        "site1/scheduler": "tcp://10.0.0.2:5570",
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(document(addresses=addresses)))
    assert command.main([str(file)]) == 2
    assert "keys: name a folder, since addresses are of several hosts" in capsys.readouterr().err
    keys = tmp_path / "keys"
    file.write_text(yaml.safe_dump(document(addresses=addresses, keys=str(keys))))
    assert command.main([str(file), "--make-keys"]) == 0
    assert set(Keys(keys, "site1/worker0").allowed()) == set(settings.read(file, False).everybody)
