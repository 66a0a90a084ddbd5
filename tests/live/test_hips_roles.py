"""Roles of HiPS in one process: the same bits as the virtual-time trainer, whatever comes when."""

import random
from collections import deque
from dataclasses import replace

import pytest
import torch

from slowlink.methods import synchronization
from slowlink.testbed.live.hips import party
from slowlink.testbed.live.hips.messages import GLOBAL_SERVER, MASTER, Message, site_of
from slowlink.testbed.live.hips.roles import UNLIKE, GlobalServer, Master, SiteServer, Worker
from slowlink.testbed.live.hips.scheduler import where_to_begin, who_begins_anew
from slowlink.testbed.live.snapshots import Snapshots
from slowlink.testbed.results import frame
from slowlink.testbed.training import trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.device import FREE, Device
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe

pytestmark = pytest.mark.slow

SITES = {"site1": 2, "site2": 2}


def part(name, **parameters):
    return Part(name=name, **parameters)


IDENTITY, FP16 = part("identity"), part("fp16")
BISPARSE = part("bisparse", ratio=0.05, sample_rate=0.5, lower_bound=100, format="tight")
DGC = part("dgc", ratio=0.05, lower_bound=100, parties=2)


@pytest.fixture(scope="module")
def data():
    """Images that a small network can tell apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(480) % 10
    prototypes = torch.randint(0, 256, (10, 1, 28, 28), generator=generator)
    noise = torch.randint(-40, 41, (480, 1, 28, 28), generator=generator)
    images = (prototypes[labels] + noise).clamp(0, 255).to(torch.uint8)
    train, test = (images[:360], labels[:360]), (images[360:], labels[360:])
    standard = torch.tensor([0.5]), torch.tensor([0.25])
    return Dataset("tiny", *train, *test, 10, (1, 28, 28), *standard)


def recipe(**changes) -> Recipe:
    fields = dict(
        document="test",
        experiment="unit",
        system="unit",
        exchange=part("hips"),
        levels=(Level(up=IDENTITY), Level(up=IDENTITY)),
        synchronization=part("bsp"),
        model=part("lenet5", hidden=[20, 16]),
        dataset="tiny",
        workers=tuple(SITES.values()),
        batch=8,
        lr=0.05,
        momentum=0.9,
        rounds=4,
        evaluate_every=3,
        seed=7,
        scale="smoke",
        device="reference",
        compute_s=0.25,
        networks={"one": Link(lan=1e9, wan=1e8)},
        accelerator="cpu",
    )
    return Recipe(**(fields | changes))


class Cluster:
    """Roles by name, and channels between them of which any may deliver next."""

    def __init__(self, spec, data, seed=0, state=None):
        self.spec, self.data, self.state = spec, data, state
        self.random, self.epoch = random.Random(seed), 0
        self.channels: dict[tuple[str, str], deque[Message]] = {}
        self.applied = []
        self.roles = {}
        flat = spec.exchange.name == "parameter_server"
        names = [GLOBAL_SERVER, MASTER]
        for site, count in SITES.items():
            names += [] if flat else [f"{site}/server"]
            names += [f"{site}/worker{rank}" for rank in range(count)]
        for name in names:
            self.start(name)

    def build(self, spec):
        return party.make(spec, lambda *args, **kwargs: self.data)

    def start(self, name):
        """A fresh process of this name."""
        snapshots = Snapshots(self.state, "run", name) if self.state else None
        if name == MASTER:
            role = Master(name, self.spec, self.build, snapshots)
        elif name == GLOBAL_SERVER:
            role = GlobalServer(name, MASTER, self.build, snapshots)
        elif name.endswith("/server"):
            role = SiteServer(name, GLOBAL_SERVER, self.build, snapshots)
        else:
            own = f"{site_of(name)}/server"
            role = Worker(name, own if own in self.roles else GLOBAL_SERVER, self.build, snapshots)
        self.roles[name] = role

    def kill(self, *names):
        for name in names:
            del self.roles[name]
        self.channels = {ends: c for ends, c in self.channels.items() if not {*ends} & {*names}}

    def begin(self, without=()):
        """A new epoch of all who are there but these sites; returns its rounds, by site."""
        self.epoch += 1
        sites = {}
        for name in self.roles:
            if site_of(name) in without:
                continue
            sites.setdefault(site_of(name), []).append(name)
        mixed = self.spec.synchronization.name == "mixed"
        rounds, lineages, anew = {}, {}, []
        for group in sites.values() if mixed else [sum(sites.values(), [])]:
            can = {name: self.roles[name].rounds for name in group}
            servers = [name for name in group if name.endswith("/server")]
            begin, lineage = where_to_begin(can, servers)
            rounds |= dict.fromkeys(map(site_of, group), begin)
            lineages |= dict.fromkeys(map(site_of, group), lineage)
            anew += who_begins_anew(can, begin, lineage)
        for name in self.roles:
            body = dict(members=sites, rounds=rounds, lineages=lineages, anew=anew)
            site = site_of(name)
            body |= dict(round=rounds.get(site, 0), lineage=lineages.get(site, ""))
            self.put("scheduler", name, Message("epoch", epoch=self.epoch, body=body))
        return rounds

    def put(self, source, target, message):
        ends = source, target
        self.channels.setdefault(ends, deque()).append(replace(message, sender=source))

    def step(self):
        """Deliver the first message of any channel; whether there was one."""
        ready = sorted(ends for ends, channel in self.channels.items() if channel)
        if not ready:
            return False
        ends = self.random.choice(ready)
        message = self.channels[ends].popleft()
        role, counts = self.roles.get(ends[1]), None
        if role is None:
            return True
        counts = dict(getattr(role, "applied", {}))
        for target, sent in role.on(message):
            self.put(ends[1], target, sent)
        if self.spec.synchronization.name == "mixed" and ends[1] == GLOBAL_SERVER:
            now = getattr(role, "applied", {})
            self.applied += [site_of(s) for s in now if now[s] > counts.get(s, 0)]
        return True

    def run(self, until=lambda: False):
        while not until() and self.step():
            pass

    def finish(self):
        self.run()
        assert self.roles[GLOBAL_SERVER].finished and self.roles[MASTER].finished
        return self

    @property
    def workers(self):
        return {n: role.replica for n, role in self.roles.items() if "/worker" in n}


def same(one, other):
    return all(map(torch.equal, one.parameters, other.parameters))


def rows(cluster, metric):
    found = frame(cluster.roles[MASTER].rows).query("metric == @metric")
    return dict(zip(found["round"], found["value"], strict=True))


def trained(spec, data, monkeypatch):
    """The virtual-time trainer's session after its run, and its rows."""
    device = Device(title="test", source="", flops=1e9, round_overhead_s=0.0, work=FREE)
    monkeypatch.setattr(trainer, "profile", lambda name: device)
    torch.set_num_threads(spec.torch_threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    session = trainer._Session(spec, lambda message: None, lambda *args, **kwargs: data)
    policy = synchronization.load(spec.synchronization.name)
    return session, frame(trainer._lockstep(session, policy))


HIPS = {
    "identity": dict(),
    "fp16": dict(levels=(Level(up=FP16), Level(up=FP16))),
    "two_bit": dict(levels=(Level(up=IDENTITY), Level(up=part("two_bit", threshold=0.01)))),
    "two_bit below": dict(levels=(Level(up=part("two_bit", threshold=0.01)), Level(up=FP16))),
    "dgc": dict(levels=(Level(up=IDENTITY), Level(up=DGC)), momentum=0.0),
    "bisparse": dict(levels=(Level(up=FP16), Level(up=BISPARSE)), momentum=0.0),
    "qsgd": dict(levels=(Level(up=IDENTITY), Level(up=part("qsgd")))),
    "random_k": dict(levels=(Level(up=IDENTITY), Level(up=part("random_k", ratio=0.1)))),
    "power_sgd": dict(levels=(Level(up=IDENTITY), Level(up=part("power_sgd", rank=2)))),
    "fused": dict(
        levels=(Level(up=FP16), Level(up=part("count_sketch", ratio=0.05))),
        fusion=part("whole_model"),
    ),
    "augmented": dict(augment=True, weight_decay=1e-3, clip_norm=1.0),
}
FLAT = {
    "flat identity": dict(),
    "flat bisparse": dict(levels=(Level(up=BISPARSE),), momentum=0.0),
    "flat power_sgd": dict(levels=(Level(up=part("power_sgd", rank=2)),)),
}
DOWN = Level(up=FP16, down=FP16)
AT_SERVER = {
    "server": dict(),
    "server fp16": dict(levels=(DOWN, DOWN)),
    "server bisparse": dict(levels=(Level(up=FP16), Level(up=BISPARSE))),
    "server flat": dict(exchange=part("parameter_server"), levels=(DOWN,)),
}
CASES = {
    **HIPS,
    **{
        name: dict(exchange=part("parameter_server"), levels=(Level(up=IDENTITY),)) | changes
        for name, changes in FLAT.items()
    },
    **{name: dict(optimizer_at="server") | changes for name, changes in AT_SERVER.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_full_synchronous_training_has_the_bits_of_the_trainer(case, data, monkeypatch):
    spec = recipe(**CASES[case])
    session, expected = trained(spec, data, monkeypatch)
    cluster = Cluster(spec, data, seed=len(case))
    cluster.begin()
    cluster.finish()

    assert same(cluster.roles[MASTER].model, session.learner.server)
    for replica in cluster.workers.values():
        assert same(replica, session.learner.replicas[0])
    assert not same(session.learner.server, cluster.roles[MASTER].party.initial)
    for metric in ("test_loss", "test_accuracy", "bytes_sent"):
        wanted = expected.query("metric == @metric")
        wanted = dict(zip(wanted["round"], wanted["value"], strict=True))
        tolerance = 1e-12 if metric == "bytes_sent" else 0
        assert rows(cluster, metric) == pytest.approx(wanted, rel=tolerance, abs=0)


def reference(spec, data, presence, fresh=None):
    """The replica after rounds with these workers each; ``fresh``: by round, nodes whose codecs
    begin anew."""
    learner = party.make(spec, lambda *args, **kwargs: data)
    held = learner.initial
    for number, names in enumerate(presence):
        ranks = [learner.worker_names.index(name) for name in names]
        for node in (fresh or {}).get(number, ()):
            node = learner.numbers[node]
            learner.codec.made = {k: c for k, c in learner.codec.made.items() if k[2] != node}
        learner.replicas = [held] * len(learner.nodes)
        gradients = learner.gradients(range(len(learner.nodes)))
        total, _ = learner.aggregate(ranks, {rank: gradients[rank] for rank in ranks})
        held = learner.update(held, total)
    return held


ALL = [f"{site}/worker{rank}" for site, count in SITES.items() for rank in range(count)]
SPARSE = dict(levels=(Level(up=FP16), Level(up=BISPARSE)), momentum=0.9, rounds=7)


def reach(cluster, number):
    """Run until somebody is in this round."""
    cluster.run(lambda: any(number in role.rounds for role in cluster.roles.values()))


@pytest.mark.parametrize("seed", range(3))
def test_the_others_go_on_without_a_lost_worker_and_with_it_again(data, seed):
    spec = recipe(**SPARSE)
    cluster = Cluster(spec, data, seed)
    cluster.begin()
    reach(cluster, 3)
    cluster.kill("site1/worker0")
    first = cluster.begin()["site1"]
    assert first in (2, 3)
    reach(cluster, 5)
    cluster.start("site1/worker0")
    second = cluster.begin()["site1"]
    assert second in (4, 5)
    cluster.finish()
    fewer = [name for name in ALL if name != "site1/worker0"]
    presence = [ALL] * first + [fewer] * (second - first) + [ALL] * (7 - second)
    expected = reference(spec, data, presence)
    assert all(same(replica, expected) for replica in cluster.workers.values())
    assert same(cluster.roles[MASTER].model, expected)
    assert list(rows(cluster, "test_loss")) == [0, 3, 6, 7]


@pytest.mark.parametrize("seed", range(2))
def test_a_lost_site_is_left_out_and_comes_back_with_the_model_of_the_others(data, seed):
    spec = recipe(**SPARSE)
    cluster = Cluster(spec, data, seed)
    cluster.begin()
    reach(cluster, 2)
    site2 = [name for name in cluster.roles if name.startswith("site2/")]
    cluster.kill(*site2)
    first = cluster.begin()["site1"]
    reach(cluster, 4)
    for name in site2:
        cluster.start(name)
    second = cluster.begin()["site1"]
    cluster.finish()
    presence = [ALL] * first + [ALL[:2]] * (second - first) + [ALL] * (7 - second)
    expected = reference(spec, data, presence, {second: ["site2/server"]})
    assert all(same(replica, expected) for replica in cluster.workers.values())
    note = f"site2/server began anew at round {second}"
    assert all(note in row.reason for row in cluster.roles[MASTER].rows)


@pytest.mark.parametrize("whole_site", [False, True])
def test_a_state_of_another_history_is_not_gone_on_from(data, tmp_path, whole_site):
    """Somebody completes a round that the others then repeat without it, and comes back."""
    spec = recipe(**SPARSE)
    lost, ahead = ("site2/server",) * 2 if whole_site else ("site1/worker0",) * 2
    if whole_site:
        ahead = "site2/worker0"  # stays, with its state in memory, but takes no part
    site1 = ["site1/worker1"] + ["site1/worker0"] * whole_site
    for seed in range(30):
        state = None if whole_site else tmp_path / str(seed)
        cluster = Cluster(spec, data, seed, state)
        cluster.begin()
        cluster.run(lambda c=cluster: 3 in c.roles[ahead].rounds)
        if any(3 not in cluster.roles[name].rounds for name in site1):
            break
    cluster.kill(lost)
    first = cluster.begin(["site2"] if whole_site else [])["site1"]
    assert first == 2
    others = [name for name in ALL if name in cluster.roles and (not whole_site or "site1" in name)]
    cluster.run(lambda: all(3 in cluster.roles[n].rounds for n in [GLOBAL_SERVER, *others]))
    cluster.start(lost)
    second = cluster.begin()["site1"]
    assert second in (2, 3)
    cluster.finish()
    presence = [ALL] * first + [others] * (second - first) + [ALL] * (7 - second)
    fresh = {second: ["site2/server"]} if whole_site else {}
    expected = reference(spec, data, presence, fresh)
    assert all(same(replica, expected) for replica in cluster.workers.values())
    assert same(cluster.roles[MASTER].model, expected)


@pytest.mark.parametrize(
    ("levels", "lost"),
    [("power_sgd", ["site1/server"]), ("bisparse", ["site2/worker1"]), ("bisparse", None)],
)
def test_what_comes_back_with_its_state_changes_nothing(data, tmp_path, levels, lost):
    spec = recipe(**HIPS[levels] | dict(rounds=5, augment=True))
    cluster = Cluster(spec, data, state=tmp_path)
    cluster.begin()
    reach(cluster, 3)
    lost = lost or list(cluster.roles)  # None: everything
    cluster.kill(*lost)
    for name in lost:
        cluster.start(name)
    assert cluster.begin()["site1"] in (2, 3)
    cluster.finish()
    expected = reference(spec, data, [ALL] * 5)
    assert all(same(replica, expected) for replica in cluster.workers.values())
    assert list(rows(cluster, "test_loss")) == [0, 3, 5]
    assert {row.reason for row in cluster.roles[MASTER].rows} == {""}


def test_a_codec_that_cannot_go_on_without_its_state_says_so(data):
    cluster = Cluster(recipe(**HIPS["power_sgd"]), data)
    cluster.begin()
    reach(cluster, 2)
    cluster.kill("site1/server")
    cluster.start("site1/server")
    cluster.begin()
    with pytest.raises(ValueError, match="site1/server has no state of round .*power_sgd"):
        cluster.run()


def test_results_say_where_they_are_not_those_of_the_trainer(data, caplog):
    spec = recipe(model=part("resnet8"), rounds=1, evaluate_every=1)
    colours = [part[:40, :, :16, :16].expand(-1, 3, -1, -1) for part in (data.train_x, data.test_x)]
    labels = data.train_y[:40], data.test_y[:40]
    standard = torch.full((3,), 0.5), torch.full((3,), 0.25)
    train, test = zip(colours, labels, strict=True)
    cluster = Cluster(spec, Dataset("tiny", *train, *test, 10, (3, 16, 16), *standard))
    assert UNLIKE in caplog.text
    cluster.begin()
    cluster.finish()
    assert {row.reason for row in cluster.roles[MASTER].rows} == {UNLIKE}


MIXED = dict(synchronization=part("mixed"), optimizer_at="server", rounds=5, evaluate_every=2)


def in_turn(spec, data, turns):
    """The server's model, and each site's, after sites had their turns in this order."""
    learner = party.make(spec, lambda *args, **kwargs: data)
    server, ranks = learner.initial, {"site1": [0, 1], "site2": [2, 3]}
    for site in turns:
        members = ranks[site]
        total, _ = learner.aggregate(members, learner.gradients(members))
        server = learner.update(server, [part * 0.5 for part in total])
        for rank in members:
            learner.replicas[rank] = learner.broadcast(server)[0]
    return server, learner.replicas


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("levels", [(DOWN, DOWN), (Level(up=IDENTITY), Level(up=BISPARSE))])
def test_mixed_mode_applies_what_sites_bring_in_the_order_in_which_it_comes(data, seed, levels):
    spec = recipe(**MIXED, levels=levels)
    cluster = Cluster(spec, data, seed)
    cluster.begin()
    cluster.finish()
    assert len(cluster.applied) == 2 * 5 and {*cluster.applied} == {*SITES}
    server, replicas = in_turn(spec, data, cluster.applied)
    assert same(cluster.roles[MASTER].model, server)
    for site, rank in (("site1", 0), ("site2", 2)):
        assert same(cluster.workers[f"{site}/worker0"], replicas[rank])
    assert list(rows(cluster, "test_loss")) == [0, 2, 4, 5]


@pytest.mark.parametrize("seed", range(3))
def test_mixed_mode_counts_no_push_twice_when_a_round_is_repeated(data, tmp_path, seed):
    spec = recipe(**MIXED, levels=(Level(up=FP16), Level(up=BISPARSE)))
    cluster = Cluster(spec, data, seed, tmp_path)
    cluster.begin()
    cluster.run(lambda: len(cluster.applied) == 4)
    for _ in range(3 * seed):
        cluster.step()
    cluster.kill("site1/worker1")
    cluster.start("site1/worker1")
    cluster.begin()
    cluster.finish()
    assert len(cluster.applied) == 2 * 5
    assert same(cluster.roles[MASTER].model, in_turn(spec, data, cluster.applied)[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(exchange=part("ring")), "exchange: must be hips or parameter_server"),
        (dict(levels=(Level(up=IDENTITY),)), "levels: must be a list of 2 for hips"),
        (dict(synchronization=part("ssp")), "synchronization: must be bsp or mixed"),
        (dict(synchronization=part("mixed")), "optimizer_at: must be server for mixed"),
        (dict(levels=(Level(up=part("random_k")),) * 2), "levels: must be in different codecs, or"),
        (dict(rounds=None, seconds=5.0), "rounds: must be a number"),
        (
            dict(HIPS["power_sgd"], optimizer_at="server"),
            "optimizer_at: must be worker for power_sgd",
        ),
    ],
)
def test_what_cannot_run_is_refused(data, changes, said):
    with pytest.raises(ValueError, match=said):
        party.make(recipe(**changes), lambda *args, **kwargs: data)


def test_the_mean_round_is_over_all_but_the_first(data):
    cluster = Cluster(recipe(), data)
    seconds = iter(range(1000))
    cluster.roles[GLOBAL_SERVER].clock = lambda: next(seconds)
    cluster.begin()
    cluster.finish()
    found = frame(cluster.roles[MASTER].rows).query("metric == 'test_loss'")
    times = dict(zip(found["round"], found["time_s"], strict=True))
    point = cluster.roles[MASTER].results[4]
    assert point["time_s"] == times[4] > times[3] > point["first_s"] > times[0]
    mean = rows(cluster, "mean_round_time")[-1]
    assert mean == (times[4] - point["first_s"]) / 3


def test_snapshots_of_another_run_and_damaged_ones_are_refused(tmp_path):
    Snapshots(tmp_path, "one", "site1/server").save(3, {"round": 3})
    assert Snapshots(tmp_path, "one", "site1/server").load() == {3: {"round": 3}}
    assert Snapshots(tmp_path, "one", "site1/server0").load() == {}
    with pytest.raises(ValueError, match="of another configuration"):
        Snapshots(tmp_path, "two", "site1/server").load()
    next(tmp_path.iterdir()).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a snapshot"):
        Snapshots(tmp_path, "one", "site1/server").load()


def test_only_the_last_two_snapshots_stay_and_none_of_undone_rounds(tmp_path):
    snapshots = Snapshots(tmp_path, "one", "node")
    for number in (0, 1, 2, 3, 2):
        snapshots.save(number, {"round": number})
    assert sorted(snapshots.load()) == [2]
    snapshots.save(3, {"round": 3})
    assert sorted(snapshots.load()) == [2, 3]
