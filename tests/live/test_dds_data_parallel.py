"""Training over DDS: the virtual-time trainer's parameters, on real processes that may die."""

import copy
import dataclasses
import json
import os
import random
import subprocess
import sys

import dds_domains
import launch_peers
import numpy as np
import pytest
import torch
import yaml

from slowlink.methods import compression
from slowlink.testbed.live import data_parallel, identity
from slowlink.testbed.live.data_parallel import LiveRun
from slowlink.testbed.live.dds import DomainConfig, launch
from slowlink.testbed.live.dds.data_parallel import measure_all
from slowlink.testbed.live.dds.segments import wire_bytes
from slowlink.torch.messenger import Aggregation

pytestmark = pytest.mark.slow

STEPS = 4
CODECS = {
    "identity": {},
    "int8_blocks": {"chunk": 401_408},
    "dgc": {"ratio": 0.05, "lower_bound": 100, "warmup": 1, "steps_per_epoch": 2, "clip": 1.0},
    "power_sgd": {},
}
"""A sum, a gather, a merge, and several rounds."""

TRAINING = {
    "model": {"name": "strided_cnn", "hidden": 20},
    "dataset": "noise",
    "levels": [{"up": {"name": "dgc", **CODECS["dgc"]}}],
    "batch": 8,
    "lr": 0.05,
    "momentum": 0.5,
    "rounds": STEPS,
    "evaluate_every": 2,
}
RUN, PATHS = "import launch_peers; launch_peers.main()", os.pathsep.join(sys.path)
SETTINGS = {"run": "test", "domain": 1, "training": TRAINING}


def case(codec, ranks, **changes) -> LiveRun:
    levels = [{"up": {"name": codec, **CODECS[codec]}}]
    training = TRAINING | {"levels": levels} | changes
    return launch.Settings(run="test", domain=1, training=training).case(ranks)


def simulated(spec: LiveRun):
    """The trainer's learner, all workers in this process: parameters, and accuracies by step."""
    recipe, data = spec.recipe, launch_peers.noise()
    torch.set_num_threads(recipe.torch_threads)
    workers = data_parallel.make_learner(recipe, data)
    ranks = range(len(workers.nodes))
    tests = {}
    for step in range(1, spec.steps + 1):
        total, _ = workers.aggregate(ranks, {rank: workers.gradient(rank) for rank in ranks})
        workers.replicas = [workers.update(workers.replicas[0], total)] * len(ranks)
        if step % recipe.evaluate_every == 0 or step == spec.steps:
            tests[step] = workers.evaluate(workers.replicas[0])[0]
    return workers.replicas[0].parameters, tests


TWO = {codec: case(codec, 2) for codec in CODECS} | {"mlp": case("dgc", 2, model={"name": "mlp"})}
FOUR = {"dgc of four": case("dgc", 4)}
ALL = TWO | FOUR


@pytest.fixture(scope="module")
def expected():
    """Before the runs, which then find compiled kernels."""
    return {name: simulated(spec) for name, spec in ALL.items()}


@pytest.fixture(scope="module")
def runs(expected, tmp_path_factory):
    found, keys = {}, tmp_path_factory.mktemp("keys")
    identity.make(keys, [f"rank-{rank}" for rank in range(4)])
    options = dict(dataset=launch_peers.noise(), network=DomainConfig(), keys=keys)
    for named in (TWO, FOUR):
        found |= zip(named, measure_all(list(named.values()), **options), strict=True)
    return found


@pytest.mark.parametrize("name", ALL)
def test_parameters_are_those_of_the_virtual_time_trainer(runs, expected, name):
    wanted, _ = expected[name]
    for got, value in zip(runs[name].parameters.values(), wanted, strict=True):
        assert torch.equal(got, value)


@pytest.mark.parametrize("name", ALL)
def test_shares_of_the_test_samples_add_up_to_all_of_them(runs, expected, name):
    run, (_, wanted) = runs[name], expected[name]
    assert {step: accuracy for step, _, accuracy in run.tests} == pytest.approx(wanted)
    for step, seconds, _ in run.tests:
        assert seconds == pytest.approx(run.step_s[0, :step].sum())


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_those_of_the_published_formula(runs, name):
    run, up = runs[name], ALL[name].recipe.levels[0].up
    codec = compression.load(up.name, **up.parameters)
    shapes = [parameter.shape for parameter in run.parameters.values()]
    each = np.array([np.resize([*codec.payload_bytes(s), 0], 2) for s in shapes])
    wanted = each.sum(0)
    sent = run.payload_bytes
    assert sent.shape[:2] == (sum(ALL[name].recipe.workers), STEPS)
    assert (sent <= wanted[: sent.shape[2]]).all() and (sent > 0).all()
    if codec.exact_bytes:
        assert (sent == wanted[: sent.shape[2]]).all()
    # Messages are short: one segment each, whose label names the tensor.
    messages, others = np.count_nonzero(each), len(sent) - 1
    around = run.frame_bytes - sent.sum(2)
    assert (around >= messages * wire_bytes(0, "", others)).all()
    assert (around <= messages * wire_bytes(0, 60 * "x", others)).all()
    # Every rank receives what the others send.
    assert (run.received_bytes == run.frame_bytes.sum(0) - run.frame_bytes).all()


def test_the_documents_messages(runs):
    """407,050 values; 402 + 1 + 6 + 1 of them travel, at most, at one in a thousand."""
    shapes = [parameter.shape for parameter in runs["mlp"].parameters.values()]
    assert sum(map(torch.Size.numel, shapes)) == 407_050
    dgc = compression.load("dgc", ratio=0.001, lower_bound=0)
    assert sum(sum(dgc.payload_bytes(shape)) for shape in shapes) == 8 * (402 + 1 + 6 + 1)


@pytest.mark.parametrize("name", ALL)
def test_times_add_up(runs, name):
    run = runs[name]
    ranks = sum(ALL[name].recipe.workers)
    for seconds in (run.compute_s, run.compress_s, run.wait_s, run.busy_s, run.exposed_s):
        assert seconds.shape == run.step_s.shape == (ranks, STEPS)
        assert (seconds >= 0).all() and (seconds < run.step_s).all()
    assert (run.compute_s + run.compress_s + run.wait_s <= run.step_s).all()


def test_waiting_that_computing_hides_does_not_count():
    message = Aggregation(waits=[(1.0, 2.0), (3.0, 6.0), (7.0, 7.5)])
    assert [message.waited_s(t) for t in (0.0, 2.0, 4.0, 7.25, 9.0)] == [4.5, 3.5, 2.5, 0.25, 0.0]
    assert [message.waited_s(1.5, t) for t in (1.0, 1.75, 5.0)] == [0.0, 0.25, 2.5]


def test_torch_ddp_does_not_run_over_dds():
    spec = case("dgc", 2, fusion={"name": "whole_model"})
    with pytest.raises(ValueError, match="ddp: .* over gloo"):
        measure_all([LiveRun(spec.recipe, 1, ddp=True)])


def test_a_rank_without_test_samples_is_refused():
    spec = case("identity", 2)
    one = dataclasses.replace(launch_peers.noise(), test_y=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="noise: 1 test samples for 2 ranks"):
        measure_all([spec], dataset=one)


# Commands -------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        domain = dds_domains.fresh()
        path = tmp_path / "config.json"
        settings = SETTINGS | {"domain": domain, "output": str(tmp_path / "out")} | changes
        path.write_text(json.dumps(settings))
        return path

    return write


def command(config, *more, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, "--config", str(config), *more],
        env={**os.environ, "SLOWLINK_LEASE_S": "3", "PYTHONPATH": PATHS, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ranks_by_the_environment(config, expected, tmp_path):
    wanted, tests = expected["dgc"]
    path = config()
    both = [command(path, WORLD="2", RANK=str(rank)) for rank in range(2)]
    (quiet, said), codes = [p.communicate()[1] for p in both[::-1]], [p.returncode for p in both]
    assert (codes, quiet) == ([0, 0], "")
    assert [line.split(":")[0] for line in said.splitlines()] == ["step 2/4", "step 4/4"]
    model = torch.load(tmp_path / "out" / "model.pt")
    assert all(torch.equal(a, b) for a, b in zip(model.values(), wanted, strict=True))
    profile = json.loads((tmp_path / "out" / "rank-1.json").read_text())
    assert [step for step, _, _ in profile["tests"]] == list(tests)
    assert {len(seconds) for seconds in profile["times"].values()} == {STEPS}


def test_the_launcher_trains_in_one_process_too(config, tmp_path):
    spec = case("identity", 1)
    levels = [level.model_dump() for level in spec.recipe.levels]
    with command(config(training=TRAINING | {"levels": levels}), "--workers", "1") as process:
        said = process.communicate()[1]
    assert process.returncode == 0, said
    model = torch.load(tmp_path / "out" / "model.pt")
    wanted, _ = simulated(spec)
    assert all(torch.equal(a, b) for a, b in zip(model.values(), wanted, strict=True))


def test_the_others_stop_and_name_the_rank_that_is_gone(config):
    path = config(training=TRAINING | {"rounds": 10**6, "evaluate_every": 5})
    ranks = [command(path, WORLD="3", RANK=str(rank)) for rank in range(3)]
    try:
        assert "step 5/" in ranks[0].stderr.readline()
        ranks[2].kill()
        for process in ranks[:2]:
            last = process.communicate(timeout=60)[1].splitlines()[-1]
            assert process.returncode == 1
            assert "rank 2: died or left, needed for all-gather" in last
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK: '' in the environment, needs a whole number; or give --workers"),
        ({"RANK": "0"}, "WORLD: ''"),
        ({"RANK": "-1", "WORLD": "2"}, "RANK: '-1'"),
        ({"RANK": "2", "WORLD": "2"}, "RANK: 2 with a WORLD of 2, must be from 0 to 1"),
        ({"RANK": "0", "WORLD": "0"}, "RANK: 0 with a WORLD of 0"),
    ],
)
def test_a_place_that_cannot_be(environment, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        launch.place(environment)


def test_a_place():
    assert launch.place({"RANK": "1", "WORLD": "2"}) == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "neither JSON nor YAML"),
        ("[]", "valid dictionary"),
        ('{"run": "a", "run": "b"}', "key 'run' is given twice"),
        ('{"run": NaN}', "NaN is not a finite number"),
        ('{"run": 1e999}', "1e999 is not a finite number"),
        ('{"run": "a"}', "domain: Field required"),
        ('{"run": "", "domain": 1, "training": {}}', "run: String should have at least 1"),
        ('{"run": "a", "domain": 233, "training": {}}', "domain: .* less than or equal to 232"),
        (
            '{"run": "a", "domain": 1, "training": {}, "key": "0123"}',
            "key: no such key; there are: run",
        ),
    ],
)
def test_a_file_that_cannot_be(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{path}: .*{message}"):
        launch.load_settings(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": [2]}, "training.workers: comes from WORLD"),
        ({"batch": 0}, "training.batch: .* greater than 0"),
        ({"bach": 1}, "training.bach: no such key; there are: document"),
        ({"rounds": None, "seconds": 1.0}, "training.rounds: needs the number of steps"),
        ({"levels": [{"up": {"name": "dcg"}}]}, "training: no compression method 'dcg'"),
        ({"levels": [{"up": {"name": "dgc", "ratio": 2}}]}, r"training: dgc: ratio .* \(0, 1\]"),
        ({"model": {"name": "mpl"}}, "training: no model 'mpl'"),
        ({"model": {"name": "mlp", "hiden": 1}}, "training: .*hiden"),
        ({"model": {"name": "mlp", "hidden": -1}}, "training: "),
        ({"synchronization": {"name": "asp"}}, "training: synchronization: .*'bsp'"),
        ({"clip_norm": 1.0}, "training: clip_norm"),
    ],
)
def test_training_that_cannot_be(changes, message):
    settings = launch.Settings(**(SETTINGS | {"training": TRAINING | changes}))
    with pytest.raises(ValueError, match=f"^{message}"):
        settings.case(2)


def test_mutated_files_are_refused_or_mean_something(tmp_path, times=500):
    """Every value and every byte of a file may be another."""
    pick = random.Random(0)
    path, text = tmp_path / "config.json", json.dumps(SETTINGS)
    values = [None, True, -1, 0, 3, 2.5, "", "x", [], {}, [{}], {"name": "mlp"}, 10**30]
    taken = 0
    for number in range(times):
        document = copy.deepcopy(SETTINGS)
        place = pick.choice([document, document["training"], document["training"]["levels"][0]])
        place[pick.choice([*place, "other"])] = pick.choice(values)
        mutated = json.dumps(document)
        if number % 2:
            at = pick.randrange(len(text))
            mutated = text[:at] + pick.choice('0:,"{}x') + text[at + pick.randrange(2) :]
        path.write_text(mutated)
        try:
            settings = launch.load_settings(path)
            spec = settings.case(2)
        except ValueError as error:
            assert str(error)
            continue
        taken += 1
        assert settings == launch.Settings(**yaml.safe_load(mutated))
        assert spec.steps >= 1 and spec.recipe.workers == (2,)
    assert 0 < taken < times / 2
