"""Training over DDS: the virtual-time trainer's parameters, on real processes that may die."""

import dataclasses

import numpy as np
import pytest
import torch

from slowlink.methods import compression
from slowlink.testbed.live import data_parallel, documents, identity
from slowlink.testbed.live.data_parallel import LiveRun
from slowlink.testbed.live.dds import DomainConfig
from slowlink.testbed.live.dds.data_parallel import measure_all
from slowlink.testbed.live.dds.segments import wire_bytes
from slowlink.testbed.training.recipe import Recipe
from slowlink.torch.messenger import Aggregation
from tests import small

pytestmark = pytest.mark.slow

STEPS = 4
CODECS = {
    "identity": {},
    "int8_blocks": {"chunk": 401_408},
    "dgc": {"ratio": 0.05, "lower_bound": 100, "warmup": 1, "steps_per_epoch": 2, "clip": 1.0},
    "power_sgd": {},
}
"""A sum, a gather, a merge, and several rounds."""

TRAINING = documents.USUAL | {
    "experiment": "test",
    "system": "dds",
    "exchange": {"name": "allgather"},
    "synchronization": {"name": "bsp"},
    "networks": {"this": {"lan": 1.0, "wan": 1.0}},
    "model": {"name": "strided_cnn", "hidden": 20},
    "dataset": "tiny",
    "levels": [{"up": {"name": "dgc", **CODECS["dgc"]}}],
    "batch": 8,
    "lr": 0.05,
    "momentum": 0.5,
    "rounds": STEPS,
    "evaluate_every": 2,
}


def case(codec, ranks, **changes) -> LiveRun:
    levels = [{"up": {"name": codec, **CODECS[codec]}}]
    recipe = Recipe(**TRAINING | {"levels": levels, "workers": [ranks]} | changes)
    return LiveRun(recipe, STEPS, ordered=True, evaluate=True)


NOISE = small.noise(240, 23)


def simulated(spec: LiveRun):
    """The trainer's learner, all workers in this process: parameters, and accuracies by step."""
    recipe, data = spec.recipe, NOISE
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
    options = dict(dataset=NOISE, network=DomainConfig(), keys=keys)
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
    one = dataclasses.replace(NOISE, test_y=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="tiny: 1 test samples for 2 ranks"):
        measure_all([spec], dataset=one)
