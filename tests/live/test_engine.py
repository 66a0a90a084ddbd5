"""The live engine as real processes: the trainer's model to the bit, and what goes wrong."""

import contextlib

import pytest
import torch

from slowlink.testbed.live.engine import launch, settings
from slowlink.testbed.live.engine.launch import run_all
from slowlink.testbed.live.identity import make
from slowlink.testbed.live.replay import _Recorded, replayed
from slowlink.testbed.training import trainer
from slowlink.testbed.training.device import FREE, Device
from slowlink.testbed.training.fetch import DataUnavailable, fetch
from slowlink.testbed.training.recipe import Link
from slowlink.testbed.training.stragglers import Trace
from slowlink.testbed.training.virtual_time import (
    Applied,
    Begun,
    Computed,
    Decided,
    Received,
    happenings,
)

pytestmark = pytest.mark.slow

BISPARSE = dict(name="bisparse", ratio=0.05, lower_bound=100, format="tight")


@pytest.fixture(scope="module")
def server():
    """The process that starts all nodes of this file."""
    try:
        fetch("fashion_mnist")
    except DataUnavailable as error:
        pytest.skip(f"needs Fashion-MNIST: {error}")
    with contextlib.closing(launch.fork_server()) as its:
        yield its


def document(folder, exchange="ring", codec="identity", policy="bsp", **changes):
    named = {"exchange": exchange, "synchronization": policy}
    parts = {key: it if isinstance(it, dict) else {"name": it} for key, it in named.items()}
    last = [{"up": codec if isinstance(codec, dict) else {"name": codec}}]
    inner = [{"up": {"name": "identity"}}] * (parts["exchange"]["name"] in ("hips", "rat"))
    training = parts | dict(
        levels=inner + last,
        model={"name": "lenet5", "hidden": [20, 16]},
        dataset="fashion_mnist",
        limit=200,
        test_limit=100,
        workers=[2, 1],
        batch=4,
        lr=0.05,
        momentum=0.9,
        rounds=4,
        evaluate_every=2,
        seed=7,
    )
    training |= changes.pop("training", {})
    return dict(training=training, output=str(folder / "out"), order="rank") | changes


def in_virtual_time(given, monkeypatch, record=None):
    """The parameters at the trainer's server, for the times of ``record`` if there is one."""
    device = Device(title="test", source="", flops=1e9, round_overhead_s=0.0, work=FREE)
    monkeypatch.setattr(trainer, "profile", lambda name: device)
    networks = {"one": Link(lan=1e9, wan=1e9)}
    recipe = given.training.model_copy(update=dict(networks=networks, compute_s=1.0))
    torch.set_num_threads(recipe.torch_threads)  # as the trainer does
    session = trainer._Session(recipe, lambda line: None, trainer.load_dataset)
    if given.stepwise:
        list(trainer._lockstep(session, given.policy()))
    else:
        again(session, given, record)
    return session.learner.server.parameters


def again(session, given, record):
    """The trainer's event-driven half with recorded durations, until the model is complete."""
    server, never = trainer._Server(session, given.policy()), record.end + 1.0
    communication = _Recorded(record.meetings, never)
    speeds = Trace(tuple((*seconds, never) for seconds in record.iterations))
    iterations = 0
    for happening in happenings(given.policy(), speeds, communication, groups=given.groups):
        match happening:
            case Begun(worker=worker):
                server.begun.append(worker)
            case Computed(worker=worker):
                server.computed(worker)
            case Decided(meeting=meeting):
                server.collect(meeting)
            case Applied(meeting=meeting):
                server.answer(meeting)
                iterations += server.arrived(meeting)
            case Received(meeting=meeting, members=members):
                server.release(meeting, members)
        if iterations // len(given.workers) >= given.training.rounds:
            return


def final(given):
    return list(torch.load(given.output / "model.pt", weights_only=True).values())


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


COMBINED = [
    ("ring", "identity"),
    ("rat", "identity"),
    ("hips", BISPARSE),
    ("halving_doubling", "fp16"),
    ("parameter_server", dict(name="power_sgd", rank=2)),
    ("allgather", dict(name="top_k", ratio=0.05)),
    ("double_tree", "count_sketch"),
]


@pytest.mark.parametrize("exchange, codec", COMBINED, ids=[name for name, _ in COMBINED])
def test_real_processes_come_to_the_trainers_model(server, tmp_path, monkeypatch, exchange, codec):
    given = settings.parse(document(tmp_path, exchange, codec, keys=str(tmp_path / "keys")))
    make(given.keys, given.members)
    ended = run_all(given, server=server)
    assert same(final(given), in_virtual_time(given, monkeypatch))
    assert [row.round for row in ended.rows if row.metric == "test_accuracy"] == [0, 2, 4]
    assert {row.exchange for row in ended.rows} == {exchange}


@pytest.mark.parametrize("exchange", ["ring", "parameter_server"])
def test_changes_of_several_iterations(server, tmp_path, monkeypatch, exchange):
    given = settings.parse(
        document(tmp_path, exchange, policy=dict(name="bsp", local_iterations=3))
    )
    ended = run_all(given, server=server)
    assert same(final(given), in_virtual_time(given, monkeypatch, ended.record))


POLICIES = {
    "asp": ("parameter_server", "identity", "asp", {}),
    "ssp": ("parameter_server", dict(name="top_k", ratio=0.05), dict(name="ssp", staleness=1), {}),
    "ssp over sites": ("hips", "fp16", dict(name="ssp", staleness=0), {}),
    "lpsp": ("parameter_server", "fp16", dict(name="lpsp", decision="arrival"), {}),
    "gssp": ("parameter_server", "identity", dict(name="gssp", group_size=2), {}),
    "mixed": ("hips", BISPARSE, "mixed", dict(optimizer_at="server")),
    "mll_sgd": (
        "hips",
        "identity",
        dict(name="mll_sgd", local_iterations=2, hub_rounds=2, group_size=None),
        {},
    ),
    "fedavg with a time-out": (
        "parameter_server",
        "identity",
        dict(name="fedavg", min_clients=2, timeout_s=0.25, fraction=0.7),
        {},
    ),
    "fedavg by samples": (
        "parameter_server",
        "qsgd",
        dict(name="fedavg", samples=[3, 1, 2]),
        {},
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_any_policy_decides_and_virtual_time_repeats_it(server, tmp_path, monkeypatch, name):
    """The virtual-time engine repeats every event, and the trainer comes to the same model."""
    exchange, codec, policy, training = POLICIES[name]
    given = settings.parse(document(tmp_path, exchange, codec, policy, training=training))
    ended = run_all(given, server=server)
    assert replayed(ended.record) == 100
    assert same(final(given), in_virtual_time(given, monkeypatch, ended.record))
