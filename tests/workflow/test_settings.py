"""Every wrong setting stops with the file, the key and what is allowed."""

import shutil

import pytest
import yaml

from slowlink.workflow import settings
from slowlink.workflow.settings import SettingsError, at_scale, load, make_all, merge


@pytest.mark.slow
@pytest.mark.parametrize("scale", settings.SCALES)
def test_every_scale_is_valid_and_can_be_made(scale):
    loaded = load({"scale": scale})
    assert loaded.scale == scale
    assert set(loaded.recipes) == set(settings.wings())
    make_all(loaded)


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
def changed(tmp_path):
    """Makes a copy of a wing's recipe with another value at a key; a folder by the wing."""

    def change(wing, *keys, value):
        path = tmp_path / wing / settings.RECIPE
        path.parent.mkdir()
        shutil.copyfile(settings.wing_of(wing).folder / settings.RECIPE, path)
        tree = yaml.safe_load(path.read_text())
        node = tree
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = value
        path.write_text(yaml.safe_dump(tree))
        return {wing: path.parent}

    return change


_HIPS = ("agreement", "cases", "HiPS, WAN 155M")
WRONG = [
    ("geomx", ("training", "desk", "rounds"), 0, "greater than 0"),
    ("geomx", ("training", "desk", "rounds"), "1e3x", "rounds"),
    ("geomx", ("training", "desk", "round"), 10, "allowed here: "),
    ("geomx", ("cluster", "wan"), "155Mbit", "cluster.wan"),
    ("geomx", ("cluster", "wam"), 1.0, "allowed here: device, gpus_per_server, lan"),
    ("geomx", ("bisparse", "ratio"), 1.5, "less than or equal to 1"),
    ("geomx", ("cluster", "device"), "k80", "allowed: a100, geomx_k40m"),
    ("geomx", ("training", "desk", "model"), {"name": "lenet6"}, "resnet18_v1, resnet20"),
    ("geomx", ("training", "desk", "model"), {"name": "strided_cnn", "hiden": 3}, "hiden"),
    ("geomx", ("training", "desk", "stands_for"), {"name": "lenet6"}, "resnet18_v1, resnet20"),
    ("geomx", ("systems", "GeoMX", "exchange"), "hpis", "parameter_server"),
    ("geomx", ("table1", "cases", "GeoMX-1G", "system"), "GeoMXX", "allowed: GeoMX,"),
    ("geomx", ("mixed", "cases", "mixed", "synchronization"), "bps", "asp, bsp"),
    ("geomx", ("emulated", "desk", "table1", "models"), ["resnet19"], "resnet101_v1"),
    ("geomx", ("emulated", "desk", "table2", "cases"), ["GeoMX-2G"], "GeoMX-10M BiSparse"),
    ("geomx", ("live", "systems"), ["GeoMY"], "allowed: GeoMX"),
    ("geomx", (*_HIPS, "exchange", "name"), "rung", "allowed: allgather"),
    ("geomx", (*_HIPS, "network", "name"), "leaf_spine", "'star', 'tree' or 'geo_sites'"),
    ("geomx", ("seeds",), [], "at least 1"),
    ("geomx", ("seeds",), [1, 1], "must differ from each other"),
    ("rat", ("figure7", "paused"), [64], "of 64 workers at least one must go on"),
    ("rat", ("methods", "RAT", "exchange"), "rats", "allowed: allgather"),
    ("rat", ("methods", "RAT", "chunk"), 8, "it takes: "),
    ("rat", ("scale", "methods"), ["Rings"], "allowed: BlueConnect"),
    ("rat", ("packet", "paused_oversubscription"), [3], "3 is not in oversubscription"),
    ("rat", ("paths",), "spray", "'first', 'ecmp' or 'balanced'"),
    ("rat", ("asymmetric",), None, "asymmetric"),
    ("sketch_fusion", ("methods", "DGC", "codec"), {"name": "dcg"}, "dgc, dgt"),
    ("sketch_fusion", ("figure6", "cases", "DGC", "method"), "DCG", "allowed: Baseline, DGC"),
    ("sketch_fusion", ("figure6", "cases", "DGC", "options"), {"k": 1}, "it takes: "),
    ("sketch_fusion", ("searches", "exchanges"), ["rings"], "allgather"),
    ("sketch_fusion", ("sizes", "powers"), [4, 12], "20 is needed"),
    ("sketch_fusion", ("live", "steps"), 1, "greater than or equal to 2"),
    ("dds", ("federated", "modes", "fp32_sparse", "codec", "name"), "sparse_fp23", "sparse_fp32"),
    ("dds", ("federated", "modes", "fp32_dense", "sends"), "zero", "'weights_first'"),
    ("dds", ("federated", "live"), ["int8"], "allowed: fp32_dense"),
    ("dds", ("federated", "min_clients"), 3, "there are 2 clients"),
    ("dds", ("federated", "model", "name"), "cnn", "mnist_cnn"),
    ("dds", ("federated_seeds", "modes"), ["int8"], "allowed: fp32_dense"),
    ("dds", ("non_iid", "splits", "by label"), {"name": "by_labels"}, "'by_label'"),
    ("dds", ("ddp", "checked_steps"), 3000, "there are 372 steps"),
    ("dds", ("ddp_recorded", "judged_steps"), 2750, "every 100th is tested"),
    ("dds", ("transport", "ranks"), [1], "greater than or equal to 2"),
    ("matrix", ("training", "speeds"), "odd", "allowed: even, uneven"),
    ("matrix", ("training", "dataset"), "mnits", "allowed: cifar10"),
    ("matrix", ("carriers", "dgt"), "hisp", "allowed: allgather"),
]


@pytest.mark.parametrize(("wing", "keys", "value", "said"), WRONG)
def test_wrong_value_names_file_key_and_what_is_allowed(changed, wing, keys, value, said):
    with pytest.raises(SettingsError) as error:
        load({"scale": "desk"}, changed(wing, *keys, value=value))
    message = str(error.value)
    assert f"{wing}/{settings.RECIPE}" in message
    assert keys[-1] in message
    assert said in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wing", "keys", "value", "said"),
    [
        ("sketch_fusion", ("methods", "QSGD", "codec"), {"name": "qsgd", "bits": 1}, "bits must"),
        ("dds", ("federated", "modes", "int8_dense", "codec", "chunk"), 0, "chunk"),
        ("dds", ("ddp", "methods", "DGC", "codec", "momentum"), 1, "momentum"),
        ("rat", ("methods", "PS", "shards"), "nowhere", "shards"),
        ("geomx", ("systems", "GeoMX", "levels"), [{"up": {"name": "fp16"}}], "hips has 2 levels"),
        ("geomx", (*_HIPS, "network", "workers"), [0, 2], "geo_sites: "),
        ("geomx", (*_HIPS, "network"), {"name": "star", "workers": 2, "rate": 1e8}, "has no sites"),
    ],
)
def test_what_only_a_method_can_judge_is_said_before_the_first_job(
    changed, wing, keys, value, said
):
    folders = changed(wing, *keys, value=value)
    loaded = load({"scale": "desk"}, folders)
    with pytest.raises(SettingsError, match=said) as error:
        make_all(loaded)
    assert ".".join(keys[:-1]) in str(error.value)


def test_missing_and_broken_files_are_said(changed):
    folders = changed("geomx", "rounds", value=5)
    (folders["geomx"] / settings.RECIPE).write_text("a: [1,")
    with pytest.raises(SettingsError, match=r"geomx/recipe\.yaml: not valid YAML"):
        load({"scale": "desk"}, folders)
    (folders["geomx"] / settings.RECIPE).unlink()
    with pytest.raises(SettingsError, match=r"geomx/recipe\.yaml: file is missing"):
        load({"scale": "desk"}, folders)


def test_a_mapping_says_what_scales_change_in_it():
    recipe = {
        "rounds": 100,
        "desk": {"rounds": 10},
        "model": {"name": "big", "depth": 50, "smoke": {"name": "small"}},
        "cases": [{"k": 1, "desk": {"k": 2}}],
    }
    model = {"name": "big", "depth": 50}
    assert at_scale(recipe, "desk") == {"rounds": 10, "model": model, "cases": [{"k": 2}]}
    small = {"name": "small"}
    assert at_scale(recipe, "smoke") == {"rounds": 100, "model": small, "cases": [{"k": 1}]}


def test_merge_goes_key_by_key_but_replaces_named_parts():
    base = {"a": {"x": 1, "y": 2}, "model": {"name": "big", "depth": 50}}
    override = {"a": {"y": 3}, "model": {"name": "small"}}
    assert merge(base, override) == {"a": {"x": 1, "y": 3}, "model": {"name": "small"}}
    assert base["a"]["y"] == 2
