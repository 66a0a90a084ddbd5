"""The trainer on uneven workers and local iterations, against torch's optimizer a worker."""

import copy

import pytest
import torch
from torch import nn

from slowlink.methods import exchange, synchronization
from slowlink.methods.synchronization import Continue, Policy, Sync, Synced, Wait
from slowlink.testbed.network import Network, star
from slowlink.testbed.results import frame
from slowlink.testbed.training import models, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.learner import Learner
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe, Uneven
from slowlink.testbed.training.stragglers import uniform
from slowlink.testbed.training.virtual_time import (
    Applied,
    Begun,
    Computed,
    Decided,
    OnNetwork,
    Received,
    happenings,
    play,
)
from tests import small

pytestmark = pytest.mark.slow

LINK = Link(lan=1e7, wan=1e7, lan_latency=1e-3)
POLICIES = {
    "bsp": dict(local_iterations=3),
    "asp": dict(local_iterations=2),
    "ssp": dict(local_iterations=3, staleness=1),
    "gssp": dict(local_iterations=2, group_size=2),
    "mll_sgd": dict(local_iterations=2, hub_rounds=2, group_size=2),
    "lpsp": {},
}
COMPUTING_ON = {
    "lpsp": dict(computes_on=True),
    "mll_sgd": dict(local_iterations=2, hub_rounds=2, group_size=2, rounds="slots"),
}


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    data = small.prototypes(240, 60)
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: data)
    return data


def recipe(name, **changes) -> Recipe:
    fields = dict(
        synchronization=Part(name=name, **POLICIES.get(name, {})),
        fusion=Part(name="whole_model"),
        workers=(4,),
        cluster="star",
        uneven=Uneven(highest=2.5),
        momentum=0.9,
        rounds=15,
        evaluate_every=5,
        device="this_cpu",
        compute_s=0.25,
        networks={"one": LINK},
    )
    return small.recipe(**fields | changes)


class Naively:
    """Local SGD with a torch optimizer a worker, one tensor of all parameters at the server."""

    def __init__(self, spec: Recipe, data: Dataset) -> None:
        self.spec, self.data, (count,) = spec, data, spec.workers
        first = models.make(spec.model.name, spec.seed, **spec.model.parameters)
        ps = exchange.load("parameter_server")
        self.streams = Learner(spec, first, data, ps, star(count, 1e9))._streams
        self.workers = [copy.deepcopy(first) for _ in range(count)]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=spec.lr, momentum=spec.momentum)
            for model in self.workers
        ]
        self.server = self.flat(first)
        self.pulled = [self.server] * count
        self.joint = [self.server] * count
        self.sums, self.answers, self.met = {}, {}, {}
        # Iterations of each worker that no global meeting has taken, and those on their way.
        self.own, self.coming, self.brought = [0] * count, {}, 0

    @staticmethod
    def flat(model):
        return nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def begin(self, worker):
        """The gradient is that of the model with which the iteration begins."""
        index, model = next(self.streams[worker]), self.workers[worker]
        self.optimizers[worker].zero_grad()
        images = self.data.prepare(self.data.train_x[index])
        nn.functional.cross_entropy(model(images), self.data.train_y[index]).backward()

    def iterate(self, worker):
        self.own[worker] += 1
        self.optimizers[worker].step()

    def push(self, meeting):
        self.met[meeting.number] = {w: self.flat(self.workers[w]) for w in meeting.sync.members}
        since = self.joint if meeting.sync.level == -1 else self.pulled
        members = meeting.sync.members
        if meeting.sync.weights == (0.0,):  # it only pulls
            assert self.own[members[0]] == 0
            return
        if meeting.sync.level == -1:
            self.coming[meeting.number] = sum(self.own[w] for w in members)
            for w in members:
                self.own[w] = 0
        changes = [self.flat(self.workers[w]) - since[w] for w in members]
        whole = meeting.sync.level == -1 and self.spec.averaged_over == "all"
        share = 1 / (len(self.workers) if whole else len(members))
        self.sums[meeting.number] = sum(changes) * share

    def apply(self, meeting):
        change = self.sums.pop(meeting.number, 0.0)
        if meeting.sync.level == -1:
            self.server = self.server + change
            self.brought += self.coming.pop(meeting.number, 0)
            self.answers[meeting.number] = self.server
        else:
            self.answers[meeting.number] = self.pulled[meeting.sync.members[0]] + change

    def pull(self, meeting):
        for worker in meeting.sync.members:
            self.pulled[worker] = self.answers[meeting.number]
            if meeting.sync.level == -1:
                self.joint[worker] = self.pulled[worker]
            since = self.flat(self.workers[worker]) - self.met[meeting.number][worker]
            own = self.pulled[worker] + since
            nn.utils.vector_to_parameters(own, self.workers[worker].parameters())

    def loss(self):
        model = copy.deepcopy(self.workers[0])
        nn.utils.vector_to_parameters(self.server, model.parameters())
        return small.loss(model, self.data)


def network(spec):
    """Meetings of the spec's policy on its network, by the engine's own carrier."""
    nodes = star(4, LINK.lan, latency=LINK.lan_latency)
    ps = exchange.load("parameter_server")
    size = 4.0 * sum(p.numel() for p in models.make("lenet5", hidden=[20, 16]).parameters())
    return OnNetwork(
        Network(nodes),
        lambda members, phase: ps(nodes, [nodes.workers[m] for m in members], phase),
        lambda sync, phase: size,
    )


@pytest.mark.parametrize("average", ["members", "all"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [*POLICIES.items(), *COMPUTING_ON.items()],
    ids=[*POLICIES, *(f"{name}-computing-on" for name in COMPUTING_ON)],
)
@pytest.mark.parametrize("how", ["one_by_one", "vmap"])
def test_local_sgd_equals_an_optimizer_a_worker(small_data, name, parameters, average, how):
    part = Part(name=name, **parameters)
    spec = recipe(name, synchronization=part, averaged_over=average, gradients=how)
    rows = frame(trainer.train(spec)).query("metric == 'test_loss'")
    naive = Naively(spec, small_data)
    policy = synchronization.load(name, **spec.synchronization.parameters)
    speeds = uniform(4, spec.compute_s, 2.5, seed=spec.seed)
    for happening in happenings(policy, speeds, network(spec), groups=[0] * 4):
        match happening:
            case Begun(worker=worker):
                naive.begin(worker)
            case Computed(worker=worker):
                naive.iterate(worker)
            case Decided(meeting=meeting):
                naive.push(meeting)
            case Applied(meeting=meeting):
                naive.apply(meeting)
            case Received(meeting=meeting):
                naive.pull(meeting)
        if naive.brought >= spec.rounds * 4:
            break
    last = rows.iloc[-1]
    assert last["value"] == pytest.approx(naive.loss(), rel=1e-4)
    assert last["time_s"] == pytest.approx(happening.t, rel=1e-12)
    assert last["round"] == naive.brought // 4


@pytest.mark.parametrize("name", ["bsp", "mll_sgd"])
@pytest.mark.parametrize("weight_decay", [0.0, 1e-3])
def test_one_local_iteration_for_all_is_plain_data_parallel_sgd(small_data, name, weight_decay):
    """As gradients, to which the server's optimizer answers, and as changes of workers that each
    have their own: the mean of momenta is the momentum of the mean."""
    policy = Part(name=name, local_iterations=1)
    spec = recipe(name, synchronization=policy, averaged_over="members", weight_decay=weight_decay)
    rows = frame(trainer.train(spec)).query("metric == 'test_loss'")
    model = small.plainly_trained(spec, small_data, Naively(spec, small_data).streams)
    assert rows.iloc[-1]["value"] == pytest.approx(small.loss(model, small_data), rel=1e-4)


def test_all_members_are_all_workers(small_data):
    """Where everybody meets, both averages are one."""
    of_members, of_all = (
        frame(trainer.train(recipe("bsp", averaged_over=average))) for average in ("members", "all")
    )
    assert of_members.equals(of_all)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("how", ["channels_last", "vmap"])
def test_gradients_together_train_as_gradients_one_by_one(name, how):
    one_by_one, other = (
        frame(trainer.train(recipe(name, gradients=way, momentum=0.0)))
        for way in ("one_by_one", how)
    )
    for metric, tolerance in (("test_loss", 1e-4), ("bytes_sent", 0)):
        ours, theirs = (f.query(f"metric == '{metric}'") for f in (one_by_one, other))
        assert ours["value"].to_list() == pytest.approx(theirs["value"].to_list(), rel=tolerance)
        assert ours["time_s"].to_list() == theirs["time_s"].to_list()


def test_a_run_ends_at_its_time_with_what_had_arrived(small_data):
    spec = recipe("ssp", rounds=None, seconds=9.0, evaluate_every=1000)
    rows = frame(trainer.train(spec)).query("metric == 'test_accuracy'")
    policy = synchronization.load("ssp", **spec.synchronization.parameters)
    speeds = uniform(4, spec.compute_s, 2.5, seed=spec.seed)
    log = play(policy, speeds, network(spec), groups=[0] * 4, seconds=9.0)
    arrived = sum(sum(map(len, m.work)) for m in log.meetings if m.applied <= 9.0)
    assert rows["round"].to_list() == [0, arrived // 4]
    assert rows["time_s"].to_list() == [0.0, 9.0]


def test_jitter_changes_the_times_and_not_the_work():
    steady, jittery = (
        frame(trainer.train(recipe("bsp", uneven=Uneven(highest=2.0, jitter=jitter))))
        for jitter in (0.0, 0.3)
    )
    last = [rows.query("metric == 'test_loss'").iloc[-1] for rows in (steady, jittery)]
    assert last[0]["value"] == last[1]["value"] and last[0]["time_s"] != last[1]["time_s"]


def test_inner_levels_take_no_codec_with_a_memory():
    with pytest.raises(ValueError, match="mll_sgd averages at several levels"):
        list(trainer.train(recipe("mll_sgd", levels=(Level(up=Part(name="top_k", ratio=0.1)),))))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(seconds=1.0), "either rounds or seconds"),
        (dict(rounds=None), "either rounds or seconds"),
        (dict(uneven=Uneven(sites=[1, 2])), "a factor for each of 1 sites"),
        (dict(workers=(2, 2)), "star takes workers of one site"),
        (dict(gradients="by_magic"), "gradients"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        recipe("bsp", **changes)


def test_codecs_carry_changes(small_data):
    """LPSP with a sparsifier: what no paper tried comes for free, and learns."""
    spec = recipe("lpsp", levels=(Level(up=Part(name="top_k", ratio=0.1)),), rounds=60)
    rows = frame(trainer.train(spec)).query("metric == 'test_accuracy'")
    assert rows.iloc[-1]["value"] > 50


def test_hub_rounds_count_as_work():
    """MLL-SGD that always meets at the top and BSP come to the same; with hubs, whose rounds reach
    the server together, no iteration is lost."""
    rows = {
        hub_rounds: frame(
            trainer.train(
                recipe(
                    "mll_sgd",
                    synchronization=Part(
                        name="mll_sgd", local_iterations=2, hub_rounds=hub_rounds, group_size=2
                    ),
                    rounds=12,
                )
            )
        ).query("metric == 'test_accuracy'")
        for hub_rounds in (1, 3)
    }
    assert rows[1].iloc[-1]["round"] == rows[3].iloc[-1]["round"] == 12
    # Without a barrier over all after each round, the same work takes no longer.
    assert rows[3].iloc[-1]["time_s"] <= rows[1].iloc[-1]["time_s"]


class Averaged:
    """Local SGD as torch's users write it: every worker an optimizer, and the mean of all models
    after so many steps of each."""

    def __init__(self, spec: Recipe, data: Dataset, steps: int) -> None:
        first = models.make(spec.model.name, spec.seed, **spec.model.parameters)
        ring = exchange.load("ring")
        streams = Learner(spec, first, data, ring, star(4, 1e9))._streams
        self.model, workers = first, [copy.deepcopy(first) for _ in streams]
        for round_ in range(1, spec.rounds + 1):
            for model, stream in zip(workers, streams, strict=True):
                if round_ == 1:
                    model.optimizer = torch.optim.SGD(model.parameters(), spec.lr, spec.momentum)
                index = next(stream)
                model.optimizer.zero_grad()
                scores = model(data.prepare(data.train_x[index]))
                nn.functional.cross_entropy(scores, data.train_y[index]).backward()
                model.optimizer.step()
            if round_ % steps == 0:
                self.average(workers)

    @torch.no_grad()
    def average(self, workers) -> None:
        for own, *every in zip(
            self.model.parameters(), *(w.parameters() for w in workers), strict=True
        ):
            own.copy_(torch.stack(every).mean(0))
            for parameter in every:
                parameter.copy_(own)


@pytest.mark.parametrize("how", ["ring", "rat", "allgather", "parameter_server"])
def test_local_sgd_on_any_exchange_averages_models(small_data, how):
    spec = recipe("bsp", exchange=Part(name=how), rounds=15)
    rows = frame(trainer.train(spec)).query("metric == 'test_loss'")
    model = Averaged(spec, small_data, steps=3).model
    assert rows.iloc[-1]["value"] == pytest.approx(small.loss(model, small_data), rel=1e-4)


def test_hubs_that_never_meet_all_are_evaluated_by_their_mean(small_data):
    """Two hubs of two: each is BSP of its own, and the end is the mean of their models."""
    part = Part(name="mll_sgd", local_iterations=2, hub_rounds=10**6, group_size=2)
    spec = recipe("mll_sgd", synchronization=part, rounds=12, uneven=None)
    rows = frame(trainer.train(spec)).query("metric == 'test_loss'")
    naive = Naively(spec, small_data)
    for round_ in range(1, 13):
        for worker in range(4):
            naive.begin(worker)
            naive.iterate(worker)
        if round_ % 2 == 0:
            for hub in ((0, 1), (2, 3)):
                mean = sum(naive.flat(naive.workers[w]) for w in hub) / 2
                for w in hub:
                    nn.utils.vector_to_parameters(mean.clone(), naive.workers[w].parameters())
    naive.server = sum(map(naive.flat, naive.workers)) / 4
    assert rows["round"].tolist() == [0, 12]
    assert rows.iloc[-1]["value"] == pytest.approx(naive.loss(), rel=1e-4)


class Pairs(Policy):
    """Gossip: after every iteration worker 0 or 2 meets its neighbour, in turns another one."""

    travels = "delta"
    asynchronous = True
    averages_inside = True

    def begin(self, groups):
        self.turn, self.waiting = [0] * len(groups), set()
        return super().begin(groups)

    def on(self, event):
        if isinstance(event, Synced):
            return [Continue(worker) for worker in event.members]
        self.turn[event.worker] += 1
        self.waiting.add(event.worker)
        odd = self.turn[event.worker] % 2
        other = (event.worker + (1 if event.worker % 2 == 0 else -1) * (1 if odd else -1)) % 4
        if other in self.waiting and self.turn[other] == self.turn[event.worker]:
            self.waiting -= {event.worker, other}
            return [Sync(tuple(sorted((event.worker, other))), level=0)]
        return [Wait(event.worker)]


def test_pairs_that_met_others_before_end_at_the_mean_of_their_models(small_data, monkeypatch):
    """The run ends, and is judged by the mean of all models."""
    monkeypatch.setattr(synchronization, "load", lambda name, **options: Pairs())
    spec = recipe("pairs", rounds=5, evaluate_every=5, uneven=None, momentum=0.0)
    rows = frame(trainer.train(spec)).query("metric == 'test_loss'")
    naive = Naively(spec, small_data)
    for round_ in range(1, 6):
        for worker in range(4):
            naive.begin(worker)
            naive.iterate(worker)
        for pair in ((0, 1), (2, 3)) if round_ % 2 else ((1, 2), (0, 3)):
            mean = sum(naive.flat(naive.workers[w]) for w in pair) / 2
            for w in pair:
                nn.utils.vector_to_parameters(mean.clone(), naive.workers[w].parameters())
    naive.server = sum(map(naive.flat, naive.workers)) / 4
    assert rows["round"].tolist() == [0, 5]
    assert rows.iloc[-1]["value"] == pytest.approx(naive.loss(), rel=1e-4)


def test_a_policy_that_averages_inside_must_say_so(monkeypatch):
    monkeypatch.setattr(Pairs, "averages_inside", False)
    monkeypatch.setattr(synchronization, "load", lambda name, **options: Pairs())
    with pytest.raises(RuntimeError, match="but its averages_inside says that all meetings reach"):
        list(trainer.train(recipe("pairs", rounds=5, uneven=None)))
