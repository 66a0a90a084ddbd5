"""The live engine as real processes: the trainer's model to the bit, and what rounds take."""

from concurrent.futures import ThreadPoolExecutor
from statistics import fmean

import pytest
import torch

from slowlink.methods.synchronization import Sync
from slowlink.testbed.live import replay
from slowlink.testbed.live.engine import settings, tasks
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.launch import run_all
from slowlink.testbed.live.identity import key_file, make
from slowlink.testbed.live.replay import Iterations, Meetings, replayed
from slowlink.testbed.network.fluid import tcp_efficiency
from slowlink.testbed.training import trainer
from slowlink.testbed.training.recipe import Link
from slowlink.testbed.training.virtual_time import (
    Applied,
    Begun,
    Computed,
    Decided,
    Received,
    happenings,
)
from tests import small
from tests.live.run_documents import part

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fashion_mnist")]

BISPARSE = dict(name="bisparse", ratio=0.05, lower_bound=100, format="tight")


def document(folder, exchange="ring", codec="identity", policy="bsp", **changes):
    between = part(exchange)
    inner = [{"up": {"name": "identity"}}] * (between["name"] in ("hips", "rat", "parameter_hub"))
    training = dict(
        exchange=between,
        synchronization=part(policy),
        levels=[*inner, {"up": part(codec)}],
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
    """The parameters at the trainer's server, for the times of ``record`` if there is one; and the
    trainer's rows, of runs whose rounds are one gradient of all."""
    monkeypatch.setattr(trainer, "profile", lambda name: small.DEVICE)
    networks = {"one": Link(lan=1e9, wan=1e9)}
    recipe = given.training.model_copy(update=dict(networks=networks, compute_s=1.0))
    torch.set_num_threads(recipe.torch_threads)  # as the trainer does
    session = trainer._Session(recipe, lambda line: None, trainer.load_dataset)
    rows = []
    if given.stepwise:
        rows = list(trainer._lockstep(session, given.policy()))
    else:
        again(session, given, record)
    return session.learner.server.parameters, rows


def again(session, given, record):
    """The trainer's event-driven half with recorded durations, until the model is complete."""
    server, times = trainer._Server(session, given.policy()), (Iterations(record), Meetings(record))
    iterations = 0
    for happening in happenings(given.policy(), *times, groups=given.groups):
        if happening.t > record.end:
            return
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
        rounds = given.training.rounds
        if rounds and iterations // len(given.workers) >= rounds:
            return


def final(given):
    return list(torch.load(given.output / "model.pt", weights_only=True).values())


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def curve(rows, metric):
    return {row.round: row.value for row in rows if row.metric == metric}


def rounds_alone(record):
    """Seconds of rounds 2 and 4, before which nothing is evaluated, by when meetings were over."""
    met = [told.t for told in record.told if any(isinstance(d, Sync) for d in told.decisions)]
    over = [t + push for t, (push, _) in zip(met, record.meetings, strict=True)]
    return over[1] - over[0], over[3] - over[2]


AT_SERVER = dict(
    levels=[{"up": {"name": "fp16"}, "down": {"name": "fp16"}}] * 2, optimizer_at="server"
)
COMBINED = {
    "ring": ("ring", "identity", {}),
    "rat": ("rat", "identity", {}),
    "parameter_hub": ("parameter_hub", "identity", {}),
    "parameter_hub, one a site": ("parameter_hub", "identity", dict(workers=[1, 1])),
    "hips": ("hips", BISPARSE, {}),
    "images held out": ("ring", "identity", dict(validation=40, judged_on="validation")),
    "hips, payloads passed on": ("hips", "", dict(levels=[{"up": {"name": "fp16"}}] * 2)),
    "hips, payloads side by side": ("hips", "qsgd", {}),
    "hips, model at the server": ("hips", "", AT_SERVER),
    "halving_doubling": ("halving_doubling", "fp16", {}),
    "parameter_server": ("parameter_server", dict(name="power_sgd", rank=2), {}),
    "parameter_server, median": (
        "parameter_server",
        "fp16",
        dict(aggregation=dict(name="median")),
    ),
    "allgather": ("allgather", dict(name="top_k", ratio=0.05), {}),
    "allgather, DGC": ("allgather", dict(name="dgc", ratio=0.05, lower_bound=100), {}),
    "double_tree": ("double_tree", "count_sketch", {}),
}


ON_DDS = ("hips", "allgather, DGC", "parameter_server, median")


@pytest.mark.parametrize(
    "name, dds", [*((name, None) for name in COMBINED), *((name, {}) for name in ON_DDS)]
)
def test_real_processes_come_to_the_trainers_model(tmp_path, monkeypatch, name, dds):
    exchange, codec, training = COMBINED[name]
    more = dict(keys=str(tmp_path / "keys"), training=training, dds=dds)
    given = settings.parse(document(tmp_path, exchange, codec, **more))
    make(given.keys, given.members)
    ended = run_all(given)
    parameters, rows = in_virtual_time(given, monkeypatch)
    assert same(final(given), parameters)
    for metric in ("test_accuracy", "test_loss"):
        assert curve(ended.rows, metric) == curve(rows, metric)
    assert curve(rows, "test_loss").keys() == {0, 2, 4}
    if given.servers and not given.exchange.whole:
        assert curve(ended.rows, "bytes_sent") == pytest.approx(curve(rows, "bytes_sent"))
    assert {row.exchange for row in ended.rows} == {exchange}
    assert {row.at.get("wire") for row in ended.rows} == {None if dds is None else "dds"}
    (mean,) = curve(ended.rows, "mean_round_time").values()
    assert mean == pytest.approx(fmean(rounds_alone(ended.record)))


def test_a_server_evaluates_models_one_after_the_other(tmp_path):
    """It looks at new ones, for ``worst``, while others are evaluated, with one network."""
    given = settings.parse(document(tmp_path, "parameter_server"))
    task, later = tasks.make(given, None), []
    for _ in range(3):
        task.step([torch.full(shape, 0.1) for shape in task.shapes])
        later.append(task.evaluation())
    alone = [evaluate() for evaluate in later]
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(lambda number: later[number % 3](), range(60)))
    assert beside == alone * 20 and len({its["test_loss"] for its in alone}) == 3


def test_who_comes_later_has_the_learning_rate_of_the_others(tmp_path):
    training = dict(lr=0.5, lr_steps={3: 0.25}, momentum=0.0)
    task = tasks.make(settings.parse(document(tmp_path, training=training)), 0)
    task.begin_at(3)
    before = task.values()
    task.step([torch.ones(shape) for shape in task.shapes])
    assert same(task.values(), [value - 0.125 for value in before])


def test_shaped_links_set_the_pace_and_nothing_else(shaped, tmp_path, monkeypatch):
    """GeoMX's own: HiPS between sites, whose links carry a round's payloads no faster than they
    are; and they are measured before."""
    wan = 4e6
    given = settings.parse(
        document(tmp_path, "hips", network=dict(lan=1e9, wan=wan, efficiency=0.9))
    )
    names = given.topology.node_names
    pair = names.index("site1/server"), names.index("central/server")
    said = []
    ended = run_all(given, said.append, [pair], 0.2)
    parameters, rows = in_virtual_time(given, monkeypatch)
    assert same(final(given), parameters)
    assert curve(ended.rows, "test_loss") == curve(rows, "test_loss")
    (link,) = ended.links
    assert (link.src, link.dst) == pair and link.rtt_s > 0
    assert link.expected == pytest.approx(wan * tcp_efficiency()) and link.rate > 0
    # Both sites' gradients go through the centre's one link, and the answers come after them.
    (mean,) = curve(ended.rows, "mean_round_time").values()
    gradient = 8 * 4 * sum(value.numel() for value in parameters)
    assert mean > 2 * gradient / wan
    assert {(row.evidence, row.bandwidth) for row in ended.rows} == {("emulated", wan)}
    assert any(line.startswith("round 4 of 4: test accuracy") for line in said)


def test_members_with_keys_meet_over_shaped_links(shaped, tmp_path, monkeypatch):
    """Encrypted in namespaces, too, the model is the same; without a member's key nobody begins."""
    keys = tmp_path / "keys"
    network = dict(lan=1e9, wan=4e6)
    given = settings.parse(document(tmp_path, "hips", network=network, keys=str(keys)))
    make(keys, given.members)
    run_all(given)
    assert same(final(given), in_virtual_time(given, monkeypatch)[0])
    key_file(keys, "site1/worker0").unlink()
    lacking = given.model_copy(update={"output": tmp_path / "lacking"})
    with pytest.raises(Failed, match="site1/worker0 ended before the start: .*no private key"):
        run_all(lacking)


@pytest.mark.parametrize("exchange", ["ring", "parameter_server"])
def test_changes_of_several_iterations(tmp_path, monkeypatch, exchange):
    given = settings.parse(
        document(tmp_path, exchange, policy=dict(name="bsp", local_iterations=3))
    )
    ended = run_all(given)
    assert same(final(given), in_virtual_time(given, monkeypatch, ended.record)[0])


LONG = dict(iteration_s=[[0.2], [0.3], [0.7]])
"""Beside any delay of a busy machine: who computes on does so when the others meet."""
POLICIES = {
    "asp": ("parameter_server", "identity", "asp", {}),
    "ssp": ("parameter_server", dict(name="top_k", ratio=0.05), dict(name="ssp", staleness=1), {}),
    "ssp over sites": ("hips", "fp16", dict(name="ssp", staleness=0), {}),
    "lpsp": ("parameter_server", "fp16", dict(name="lpsp", decision="arrival"), {}),
    "lpsp over members, for seconds": (
        "parameter_server",
        "identity",
        "lpsp",
        dict(averaged_over="members", rounds=None, seconds=0.7, uneven=dict(sites=[1.5, 3.0])),
    ),
    "lpsp computing on": (
        "parameter_server",
        "fp16",
        dict(name="lpsp", computes_on=True),
        dict(rounds=8),
        LONG,
    ),
    "gssp": ("parameter_server", "identity", dict(name="gssp", group_size=2), {}),
    "mixed": ("hips", BISPARSE, "mixed", dict(optimizer_at="server")),
    "mll_sgd": (
        "hips",
        "identity",
        dict(name="mll_sgd", local_iterations=2, hub_rounds=2, group_size=None),
        {},
    ),
    "mll_sgd in slots": (
        "hips",
        "identity",
        dict(name="mll_sgd", local_iterations=2, hub_rounds=2, group_size=None, rounds="slots"),
        {},
        LONG,
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
    "fedavg by samples, norms bounded": (
        "parameter_server",
        dict(name="top_k", ratio=0.05),
        dict(name="fedavg", samples=[3, 1, 2]),
        dict(aggregation=dict(name="norm_bound")),
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_any_policy_decides_and_virtual_time_repeats_it(tmp_path, monkeypatch, name):
    """The virtual-time engine repeats every event, and the trainer comes to the same model."""
    exchange, codec, policy, training, *more = POLICIES[name]
    told = document(tmp_path, exchange, codec, policy, training=training)
    given = settings.parse(told | dict(*more))
    ended = run_all(given)
    assert replayed(ended.record) == 100
    assert same(final(given), in_virtual_time(given, monkeypatch, ended.record)[0])
    met = replay.again(ended.record).meetings
    assert any(any(m.computing) for m in met) == given.policy().continues_after_upload
