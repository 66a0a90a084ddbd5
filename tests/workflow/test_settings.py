"""Every wrong setting stops with the file, the key and what is allowed."""

import shutil

import pytest
import yaml

from workflow import settings
from workflow.settings import SettingsError, load, merge


@pytest.mark.parametrize("scale", settings.SCALES)
def test_every_scale_is_valid(scale):
    loaded = load({"scale": scale})
    assert loaded.scale == scale
    assert len(loaded.recipes["geomx"].seeds) >= (2 if scale == "smoke" else 3)
    assert loaded.recipes["geomx"].runs(scale)


def test_paper_scale_trains_what_the_document_trained():
    recipe = load({"scale": "paper"}).recipes["geomx"]
    runs = recipe.runs("paper").values()
    assert {run.model.name for run in runs} == {"resnet50_v1"}
    assert {run.limit for run in runs} == {None}
    bisparse = [run for run in runs if run.system == "GeoMX BiSparse"][0].levels[-1].up.parameters
    assert (bisparse["ratio"], bisparse["sample_rate"], bisparse["momentum"]) == (0.01, 0.005, 0.9)


@pytest.mark.parametrize(
    ("command_line", "said"),
    [
        ({"scale": "huge"}, "--config: scale='huge'; allowed: smoke, desk, paper"),
        ({"scael": "desk"}, "--config: unknown key 'scael'; allowed: scale"),
    ],
)
def test_wrong_command_line(command_line, said):
    with pytest.raises(SettingsError, match="^--config") as error:
        load(command_line)
    assert said in str(error.value)


@pytest.fixture
def config(tmp_path):
    copy = tmp_path / "config"
    shutil.copytree(settings.CONFIG, copy)

    def change(file, *keys, value):
        path = copy / file
        tree = yaml.safe_load(path.read_text())
        node = tree
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        path.write_text(yaml.safe_dump(tree))
        return copy

    return change


RECIPE, RAT = "papers/geomx.yaml", "papers/rat.yaml"
SKF, DDS = "papers/sketch_fusion.yaml", "papers/dds.yaml"


@pytest.mark.parametrize(
    ("file", "keys", "value", "said"),
    [
        ("desk.yaml", ("geomx", "rounds"), 0, "greater than 0"),
        ("desk.yaml", ("geomx", "rounds"), "1e3x", "rounds"),
        ("desk.yaml", ("geomx", "round"), 10, "allowed here: "),
        ("desk.yaml", ("geo",), {}, "allowed: dds, geomx, lpsp, matrix, rat"),
        (RECIPE, ("cluster", "wan"), "155Mbit", "cluster.wan"),
        (RECIPE, ("cluster", "wam"), 1.0, "allowed here: device, gpus_per_server, lan"),
        (RECIPE, ("bisparse", "ratio"), 1.5, "less than or equal to 1"),
        (RECIPE, ("sampler",), "shuffled", "'random' or 'sequential'"),
        (RECIPE, ("cluster", "device"), "k80", "allowed: geomx_k40m"),
        ("desk.yaml", ("geomx", "model"), {"name": "lenet6"}, "resnet18_v1, resnet20"),
        ("desk.yaml", ("geomx", "model"), {"name": "strided_cnn", "hiden": 3}, "hiden"),
        ("desk.yaml", ("geomx", "stands_for", "name"), "resnet51_v1", "resnet50_v1"),
        (RECIPE, ("systems", "GeoMX", "levels"), [{"up": {"name": "fp16"}}], "hips has 2 levels"),
        (RECIPE, ("variants", "serial", "exchange"), {"overlp": False}, "it takes: overlap"),
        (RECIPE, ("table2", "model", "name"), "resnet5", "resnet18_v1, resnet20"),
        (RECIPE, ("systems", "GeoMX", "exchange"), "hpis", "parameter_server"),
        (RECIPE, ("table1", "cases", "GeoMX-1G", "system"), "GeoMXX", "allowed: GeoMX,"),
        (RECIPE, ("mixed", "cases", "mixed", "synchronization"), "bps", "asp, bsp"),
        (RECIPE, ("seeds",), [], "at least 1"),
        (RAT, ("figure7", "paused"), [64], "of 64 workers at least one must go on"),
        (RAT, ("methods", "RAT", "exchange"), "rats", "allowed: allgather"),
        (RAT, ("scale", "methods"), ["Rings"], "allowed: BlueConnect"),
        (RAT, ("packet", "tcp", "mtu"), -1, "mtu must be above 0"),
        (RAT, ("packet", "paused_oversubscription"), [3], "3 is not in oversubscription"),
        (RAT, ("paths",), "spray", "'first', 'ecmp' or 'balanced'"),
        (RAT, ("asymmetric",), None, "is missing"),
        (RECIPE, ("seeds",), [1, 1], "must differ from each other"),
        (SKF, ("methods", "DGC", "codec"), {"name": "dcg"}, "dgc, dgt"),
        (SKF, ("methods", "QSGD", "codec"), {"name": "qsgd", "bits": 1}, "bits must be"),
        (SKF, ("fusion", "layer_fusion"), {"name": "layer_fusion", "epsilon": 2}, "epsilon must"),
        (SKF, ("figure6", "cases", "DGC", "method"), "DCG", "allowed: Baseline, DGC"),
        (SKF, ("measured", "sizes"), [4, 12], "20 is needed"),
        (SKF, ("exchanges",), ["rings"], "allgather"),
        (SKF, ("live", "steps"), 1, "greater than or equal to 2"),
        (DDS, ("federated", "modes", "fp32_sparse"), {"name": "sparse_fp23"}, "sparse_fp32"),
        (DDS, ("federated", "modes", "int8_dense"), {"name": "int8_blocks", "chunk": 0}, "chunk"),
        (DDS, ("federated", "live"), ["int8"], "allowed: fp32_dense"),
        (DDS, ("federated", "min_clients"), 3, "there are 2 clients"),
        (DDS, ("federated", "model", "name"), "cnn", "mnist_cnn"),
        (DDS, ("non_iid", "splits", "by label"), {"name": "by_labels"}, "by_label"),
        (DDS, ("ddp", "cases", "DGC", "codec"), {"name": "dgc", "momentum": 1}, "momentum"),
        (DDS, ("ddp", "checked_steps"), 3000, "there are 2810 steps"),
        (DDS, ("ddp", "judged_steps"), 2750, "every 100th is tested"),
        (DDS, ("federated", "from_zero"), ["fp32_dense"], "fp32_dense sends weights"),
        (DDS, ("ddp", "centralised"), "alone", "allowed: DGC"),
        (DDS, ("transport", "ranks"), [1], "greater than or equal to 2"),
    ],
)
def test_wrong_value_names_file_key_and_what_is_allowed(config, file, keys, value, said):
    changed = config(file, *keys, value=value)
    with pytest.raises(SettingsError) as error:
        load({"scale": "desk"}, changed)
    message = str(error.value)
    assert file.rpartition("/")[2] in message
    assert keys[-1] in message
    assert said in message


def test_missing_and_broken_files_are_said(config):
    changed = config("desk.yaml", "geomx", "rounds", value=5)
    (changed / RECIPE).write_text("a: [1,")
    with pytest.raises(SettingsError, match=r"geomx\.yaml: not valid YAML"):
        load({"scale": "desk"}, changed)
    (changed / RECIPE).unlink()
    with pytest.raises(SettingsError, match=r"geomx\.yaml: file is missing"):
        load({"scale": "desk"}, changed)


def test_merge_goes_key_by_key_but_replaces_named_parts():
    base = {"a": {"x": 1, "y": 2}, "model": {"name": "big", "depth": 50}}
    override = {"a": {"y": 3}, "model": {"name": "small"}}
    assert merge(base, override) == {"a": {"x": 1, "y": 3}, "model": {"name": "small"}}
    assert base["a"]["y"] == 2


def test_cases_that_train_alike_share_a_run():
    recipe = load({"scale": "desk"}).recipes["geomx"]
    runs = [r for r in recipe.runs("desk").values() if r.experiment == "figure6" and r.seed == 1]
    shared = {run.system: set(run.networks) for run in runs}
    assert shared["GeoMX BiSparse+FP16"] == {
        f"GeoMX-{wan}M BiSparse+FP16" for wan in (155, 100, 50, 10)
    }
    assert sorted(case for cases in shared.values() for case in cases) == sorted(
        recipe.table2.cases
    )
