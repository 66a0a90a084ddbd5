"""The live driver and the virtual-time engine agree, ties and deaths included; without Ray."""

import copy
import dataclasses
import math
import random
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Finished, Left, Policy, SetTimer, Sync, Synced
from slowlink.testbed.live import actors
from slowlink.testbed.live.driver import Server, drive
from slowlink.testbed.live.replay import TICK_S, Record, again, replayed, summary
from slowlink.testbed.live.worker import Worker
from slowlink.testbed.training.sampling import batches
from slowlink.testbed.training.virtual_time import Told

load = synchronization.load


class Dice:
    """A team whose calls take 1 to 3 ticks, so that much happens together; workers die on time."""

    def __init__(self, seed, deaths=()):
        self.draw, self.now, self.deaths = random.Random(seed), 0, dict(deaths)
        self.due = {}

    def call(self, ranks, method, *arguments):
        for rank in ranks:
            assert rank not in self.due
            value = np.ones(1, np.float32) if method == "give" else None
            if self.deaths.get(rank, math.inf) > self.now:
                self.due[rank] = self.now + self.draw.randint(1, 3), value

    def wait(self, until):
        ticks = [at for at, _ in self.due.values()]
        ticks += [at for at in self.deaths.values() if at > self.now]
        timeout = max(self.now, math.floor(until / TICK_S))
        self.now = max(self.now + 1, min([*ticks, timeout]))
        done = {rank: value for rank, (at, value) in self.due.items() if at <= self.now}
        gone = [rank for rank, at in self.deaths.items() if at == self.now]
        # Who dies may still have given its result.
        self.due = {r: d for r, d in self.due.items() if r not in done and r not in gone}
        return self.now * TICK_S, done, gone[::-1]


def rolled(policy, workers, seed=0, deaths=(), ticks=110, groups=None):
    server = Server(nn.Linear(1, 1, bias=False), workers, "delta", "members", 0.1, 0.0)
    groups = groups or [rank // 2 for rank in range(workers)]
    return drive(policy, Dice(seed, deaths), server, groups, seconds=ticks * TICK_S)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(synchronization.names()),
    workers=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_virtual_time_repeats_a_run_with_ties_and_deaths(name, workers, seed, data):
    died = data.draw(st.sets(st.integers(0, workers - 1), max_size=workers - 1))
    deaths = {rank: data.draw(st.integers(1, 80)) for rank in sorted(died)}
    policy = load(name)
    if policy.continues_after_upload:
        return
    record = rolled(policy, workers, seed, deaths)
    log = again(record)
    assert log.told == record.told
    assert log.iterations == [len(seconds) for seconds in record.iterations]
    left = {told.event.worker for told in record.told if isinstance(told.event, Left)}
    assert left == died
    last = {rank for told in record.told[-workers * 8 :] for rank in [_who(told.event)]}
    assert last & set(range(workers)) - died  # the others went on to the end


def _who(event):
    return event.members[0] if isinstance(event, Synced) and event.members else _rank(event)


def _rank(event):
    return getattr(event, "worker", None)


def test_what_is_ready_together_is_told_in_the_engines_order():
    record = rolled(load("asp"), 6, ticks=400)
    together = {}
    for told in record.told[1:]:
        together.setdefault(told.t, []).append(told.event)
    assert max(map(len, together.values())) > 2
    for events in together.values():
        kinds = [isinstance(event, Finished) for event in events]
        assert kinds == sorted(kinds)  # arrivals come first
        ranks = [event.worker for event in events if isinstance(event, Finished)]
        assert ranks == sorted(ranks)


def test_bsp_on_paper():
    class Two(Dice):  # iterations of 1 and 3 ticks, pushes of 2, pulls of 1
        def call(self, ranks, method, *arguments):
            for rank in ranks:
                took = {"compute": (1, 3)[rank], "give": 2, "take": 1}[method]
                self.due[rank] = self.now + took, np.ones(1, np.float32)

    server = Server(nn.Linear(1, 1, bias=False), 2, "delta", "members", 0.1, 0.0)
    before = server.model.item()
    record = drive(load("bsp"), Two(0), server, [0, 0], iterations=4)
    t = [tick * TICK_S for tick in range(10)]
    assert [(told.event, told.t) for told in record.told] == [
        (None, 0.0),
        (Finished(0, 1, t[1]), t[1]),
        (Finished(1, 1, t[3]), t[3]),
        (Synced((0, 1), t[6]), t[6]),
        (Finished(0, 2, t[7]), t[7]),
        (Finished(1, 2, t[9]), t[9]),
    ]
    assert record.meetings[0] == (t[2], t[1]) and np.isnan(record.meetings[1]).all()
    assert record.iterations == [[t[1], t[1]], [t[3], t[3]]] and record.end == t[9]
    assert server.model.item() == pytest.approx(before + 1)  # the mean of two ones, once
    told = summary(record)
    # 2 ticks of waiting in the first round and 2 in the second, of 2 workers' 9.
    assert told["waited_share"] == pytest.approx(4 / 18)
    assert told["iterations_per_s"] == pytest.approx(4 / t[9]) and told["staleness"] == 0


def test_the_round_trip_through_json_is_exact(tmp_path):
    record = rolled(load("lpsp", s=math.inf), 4, deaths={2: 30})
    record.save(tmp_path / "a.json")
    loaded = Record.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    assert loaded.told == record.told and loaded.parameters == record.parameters
    assert loaded.iterations == record.iterations and loaded.end == record.end
    assert replayed(loaded) == 100
    (tmp_path / "c.json").write_text('{"policy": "bsp"}')
    with pytest.raises(ValueError, match="c.json: not a recorded run"):
        Record.load(tmp_path / "c.json")


def test_a_changed_record_is_found_out():
    record = rolled(load("ssp", staleness=1), 4)
    assert replayed(record) == 100
    assert replayed(dataclasses.replace(record, parameters=dict(staleness=0))) < 100
    number, told = next((n, t) for n, t in enumerate(record.told) if isinstance(t.event, Finished))
    event = Finished(told.event.worker, 1, told.t + TICK_S)
    record.told[number] = Told(event, told.decisions, told.t)
    assert replayed(record) == 100 * number / len(record.told)


def test_the_server_averages_over_members_or_all():
    brought = {0: np.float32([1]), 2: np.float32([4])}
    for over, change in [("members", 2.5), ("all", 5 / 4)]:
        server = Server(nn.Linear(1, 1, bias=False), 4, "delta", over, 0.1, 0.9)
        start = server.model.item()
        assert server.apply(Sync((0, 2)), brought) == pytest.approx(start + change)
        assert server.apply(Sync((0, 2), level=0), brought) == pytest.approx(2.5)  # no change
        assert server.apply(Sync((1,)), {}) == pytest.approx(start + change)  # it has died
        weighted = server.apply(Sync((0, 2), weights=(3.0, 1.0)), brought)
        assert weighted == pytest.approx(start + change + 7 / 4)  # as the weights say


def test_the_server_steps_by_gradients_with_momentum():
    torch.manual_seed(0)
    server = Server(nn.Linear(1, 1, bias=False), 2, "gradient", "members", 0.1, 0.5)
    model, velocity = server.model.item(), 0.0
    for gradients in [(1.0, 3.0), (2.0, -1.0), (0.5, 0.0)]:
        velocity = 0.5 * velocity + sum(gradients) / 2
        model -= 0.1 * velocity
        brought = {rank: np.float32([g]) for rank, g in enumerate(gradients)}
        assert server.apply(Sync((0, 1)), brought) == pytest.approx(model)


class Here(Dice):
    """Real workers in this process: they compute when called and answer some ticks later."""

    def __init__(self, seed, workers):
        super().__init__(seed)
        self.workers = workers

    def call(self, ranks, method, *arguments):
        super().call(ranks, method)
        for rank in ranks:
            result = getattr(self.workers[rank], method)(*arguments)
            self.due[rank] = self.due[rank][0], result


def small_run(policy, workers, iterations, momentum=0.9):
    """A live run of a line through grey pictures; the model, the batches and the steps' rates."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (workers, 40, 1, 2, 3), generator=generator).to(torch.uint8)
    labels = torch.randint(0, 4, (workers, 40), generator=generator)
    mean, std = torch.tensor([0.5]), torch.tensor([0.25])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
    team = [
        Worker(
            copy.deepcopy(model),
            images[rank],
            labels[rank],
            mean,
            std,
            travels=policy.travels,
            lr=0.2,
            momentum=momentum,
            batch=8,
            slow=1.0,
            seed=rank,
        )
        for rank in range(workers)
    ]
    server = Server(model, workers, policy.travels, "members", 0.2, momentum)
    record = drive(policy, Here(1, team), server, [0] * workers, iterations=iterations)
    assert replayed(record) == 100

    def draws(rank):
        order = torch.Generator().manual_seed(rank)
        for index in batches(torch.arange(40), 8, "random", order):
            yield (images[rank][index] / 255 - 0.5) / 0.25, labels[rank][index]

    return server.model.detach(), model, [draws(rank) for rank in range(workers)]


def step(model, velocity, samples, labels, momentum=0.9):
    """One step of momentum SGD by its definition, in place."""
    loss = nn.functional.cross_entropy(model(samples), labels)
    for value, gradient, speed in zip(
        model.parameters(), torch.autograd.grad(loss, model.parameters()), velocity, strict=True
    ):
        speed.mul_(momentum).add_(gradient)
        value.data -= 0.2 * speed


def standing(model):
    return [torch.zeros_like(p) for p in model.parameters()]


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def test_bsp_with_one_local_iteration_is_data_parallel_sgd():
    """Equal batches: the mean of the workers' gradients is that of all their samples."""
    found, model, streams = small_run(load("bsp"), 3, iterations=36)
    velocity = standing(model)
    for draws in islice(zip(*streams, strict=True), 11):  # the twelfth ends the run
        samples, labels = zip(*draws, strict=True)
        step(model, velocity, torch.cat(samples), torch.cat(labels))
    torch.testing.assert_close(found, flat(model), rtol=1e-4, atol=1e-6)


def test_multi_level_local_sgd_averages_in_hubs_and_then_over_all():
    policy = load("mll_sgd", local_iterations=2, hub_rounds=2, group_size=2)
    # Whole rounds of 16 iterations, two of them applied; the third ends the run.
    found, model, streams = small_run(policy, 4, iterations=48)
    replicas = [copy.deepcopy(model) for _ in range(4)]
    velocities = [standing(model) for _ in range(4)]
    for number in range(4):
        for rank in range(4):
            for _ in range(2):
                step(replicas[rank], velocities[rank], *next(streams[rank]))
        for hub in [(0, 1), (2, 3)] if number % 2 == 0 else [(0, 1, 2, 3)]:
            mean = torch.stack([flat(replicas[rank]) for rank in hub]).mean(0)
            for rank in hub:
                nn.utils.vector_to_parameters(mean.clone(), replicas[rank].parameters())
    torch.testing.assert_close(found, flat(replicas[0]), rtol=1e-4, atol=1e-6)


class Answers(Policy):
    summary = source = "this test"

    def __init__(self, *first):
        self.first = list(first)

    def begin(self, groups):
        return self.first

    def on(self, event):
        return []


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([SetTimer("x", 1.0)], "no timers here"),
        ([Sync((0, 1)), Sync((1,))], "but worker 1 is meeting"),
        ([Sync((0, 9))], "but worker 9 is unknown"),
        ([], "nobody computes and nobody meets"),
    ],
)
def test_decisions_that_cannot_be_carried_out(decisions, message):
    with pytest.raises(RuntimeError, match=message):
        rolled(Answers(*decisions), 2)


def test_the_death_of_all_workers_is_an_error():
    with pytest.raises(RuntimeError, match="asp: all workers died"):
        rolled(load("asp"), 2, deaths={0: 5, 1: 9})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(slow=[1.0, 0.5]), "slow: one finite factor of at least 1"),
        (dict(slow=[]), "slow: one finite factor"),
        (dict(iterations=None), "needs an end"),
        (dict(averaged_over="some"), "must be members or all, not 'some'"),
        (dict(model=nn.BatchNorm1d(3)), "BatchNorm1d has buffers"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    good = dict(model=nn.Linear(1, 1), dataset=None, slow=[1.0], lr=0.1, batch=1, iterations=1)
    with pytest.raises(ValueError, match=message):
        actors.run(load("bsp"), **(good | changes))


def test_without_ray_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"\.ci/install\.py ray"):
        actors.run(load("bsp"), nn.Linear(1, 1), None, slow=[1], lr=0.1, batch=1, iterations=1)


RECORDED = Path(__file__).parents[2] / "data" / "recorded"


@pytest.mark.parametrize("name", ["bsp", "gssp", "lpsp", "mll_sgd", "ssp"])
def test_recorded_runs_of_real_workers_replay(name):
    record = Record.load(RECORDED / f"ray_{name}.json")
    assert record.policy == name and f"actors {name} " in record.about["command"]
    log = again(record)
    assert log.told == record.told
    assert sum(log.iterations) >= 400 and len(log.iterations) == 4
    told = summary(record)
    # All but the exact barriers, where nothing is stale, let somebody run ahead.
    assert (told["staleness"] == 0) == (name in ("bsp", "mll_sgd"))
    assert 0 < told["waited_share"] < 1 and record.accuracy > 50  # chance is 10 %
