"""What a live run's server makes of what comes, against a weight on paper; no processes."""

import numpy as np
import pytest
import torch

from slowlink.methods.synchronization import (
    Continue,
    Finished,
    Joined,
    Left,
    Policy,
    Sync,
    Synced,
    Wait,
)
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.settings import LiveSettings, parse
from slowlink.testbed.live.replay import Iterations, Meetings, replayed
from slowlink.testbed.training.virtual_time import (
    Applied,
    Changed,
    Computed,
    Decided,
    Received,
    happenings,
)
from tests.live import closed_form, in_process
from tests.live.closed_form import LR, Weight
from tests.live.run_documents import document, functions, part


def described(folder, policy, workers=4, rounds=12, **changes):
    names = dict(data="batches", model="make_model", evaluate="weight")
    own = functions(closed_form, **names, loss="loss", optimizer="optimizer")
    training = dict(synchronization=part(policy), workers=[workers], rounds=rounds)
    return parse(document(folder, own, training | dict(evaluate_every=3), **changes))


def on_paper(given, record, policy=None):
    """The server's weight for what happened, and when it changed: every worker has one of its own,
    steps by its gradient, and brings its change or its weight to meetings."""
    over_all, sends = given.training.averaged_over == "all", given.training.sends
    workers, server = [Weight() for _ in given.workers], Weight()
    first, models = True, {}
    brought, answers, curve = {}, {}, []
    times = Iterations(record), Meetings(record)
    changes = [told.event for told in record.told if hasattr(told.event, "worker")]
    changes = [event for event in changes if not isinstance(event, Finished)]
    for happening in happenings(
        policy or given.policy(), *times, groups=record.groups, changes=changes
    ):
        if happening.t > record.end:
            return server.value, curve
        match happening:
            case Computed(worker=rank):
                workers[rank].step(rank + 1)
            case Decided(meeting=meeting):
                own = {rank: workers[rank] for rank in meeting.sync.bringing}
                inner = meeting.sync.level == 0
                whole = sends == "weights" or (sends == "weights_first" and first)
                models[meeting.number] = whole
                brought[meeting.number] = [
                    w.value if inner or whole else w.value - w.base for w in own.values()
                ]
            case Applied(meeting=meeting):
                values, sync = brought.pop(meeting.number), meeting.sync
                equal = [1 / max(1, len(values))] * len(values)
                weights = [w for w in sync.weights or () if w] or equal
                mean = sum(w * value for w, value in zip(weights, values, strict=True))
                answers[meeting.number] = mean
                if sync.level == -1:
                    first = first and not values
                    scale = len(sync.members) / len(workers) if over_all and not sync.weights else 1
                    if models.pop(meeting.number) and values:
                        server.value = mean
                    else:
                        server.value += scale * mean
                    answers[meeting.number] = server.value
                    curve.append((meeting.applied, server.value))
            case Received(meeting=meeting, members=members):
                for rank in members:
                    workers[rank].value = answers[meeting.number]
                    if meeting.sync.level == -1:
                        workers[rank].base = workers[rank].value
            case Changed(event=Joined(worker=rank)):
                workers[rank] = Weight()
                workers[rank].value = workers[rank].base = server.value


def final(given):
    return torch.load(given.output / "model.pt", weights_only=True)["weight"].item()


@pytest.mark.slow
@pytest.mark.parametrize("over", ["members", "all"])
@pytest.mark.parametrize(
    "policy",
    [
        "asp",
        dict(name="ssp", local_iterations=3, staleness=1),
        "lpsp",
        dict(name="gssp", group_size=2),
        dict(name="mll_sgd", local_iterations=2, hub_rounds=2, group_size=2),
        dict(name="fedavg", samples=[3, 1, 2, 1], fraction=0.7),
    ],
    ids=lambda its: its if isinstance(its, str) else its["name"],
)
def test_the_server_averages_over_members_or_all(tmp_path, policy, over):
    given = described(tmp_path, policy, training=dict(averaged_over=over))
    ended = in_process.run(given)
    assert replayed(ended.record) == 100
    value, curve = on_paper(given, ended.record)
    assert final(given) == pytest.approx(value, rel=1e-5)
    # Evaluated in the middle of the run, as it was when the server had it.
    rows = [row for row in ended.rows if row.metric == "weight"]
    assert len(rows) >= 4 and rows[0].value == 0
    for row in rows[1:]:
        assert row.value == pytest.approx(dict(curve)[row.time_s], rel=1e-5)


def test_the_server_steps_by_gradients_with_momentum(tmp_path):
    given = described(tmp_path, "bsp", 3, rounds=5, training=dict(optimizer_at="server"))
    in_process.run(given)
    server = Weight()
    for _ in range(5):
        server.step((1 + 2 + 3) / 3)
    assert final(given) == pytest.approx(server.value, rel=1e-6)


class Pairs(Policy):
    """After every iteration 0 and 1, then 1 and 2 average; all meet after every sixth."""

    summary = source = "this test"
    travels = "delta"
    asynchronous = averages_inside = True

    def begin(self, groups):
        self.turn, self.waiting = 0, set()
        return super().begin(groups)

    def on(self, event):
        if isinstance(event, Synced):
            self.waiting -= set(event.members)
            ahead = [w for w in (0, 1, 2) if w not in event.members]
            self.waiting -= set(ahead)
            return [Continue(worker) for worker in (*event.members, *ahead)]
        self.waiting.add(event.worker)
        if len(self.waiting) < 3:
            return [Wait(event.worker)]
        self.turn += 1
        if self.turn % 6 == 0:
            return [Sync((0, 1, 2))]
        return [Sync((0, 1) if self.turn % 2 else (1, 2), level=0)]


def test_pairs_that_met_others_before_get_the_mean_of_their_models(tmp_path, monkeypatch):
    monkeypatch.setattr(LiveSettings, "policy", lambda self: Pairs())
    given = described(tmp_path, "asp", 3)
    ended = in_process.run(given)
    value, _ = on_paper(given, ended.record, Pairs())
    assert final(given) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("over, share", [("members", 1 / 2), ("all", 1 / 3)])
def test_who_dies_before_its_push_brings_nothing(tmp_path, over, share):
    """Nor does its work count: 2 of 3 workers bring 2 iterations each, and so 1 round is over."""
    policy = dict(name="bsp", local_iterations=2)
    training = dict(averaged_over=over)
    given = described(tmp_path, policy, 3, 1, on_loss="continue", training=training)
    in_process.run(given, {"site1/worker2": lambda head: head["kind"] == "data"})
    brought = [Weight(), Weight()]
    for rank, worker in enumerate(brought):
        worker.step(rank + 1)
        worker.step(rank + 1)
    assert final(given) == pytest.approx(share * sum(w.value for w in brought), rel=1e-6)


def test_a_new_worker_takes_the_servers_present_model(tmp_path):
    """And begins with its velocity at rest; what the other had not brought is lost."""
    given = described(tmp_path, "asp", 3, rounds=30, on_loss="replace")
    count = iter(range(100))

    def dies(head):
        return head["kind"] == "finished" and next(count) == 5

    ended = in_process.run(given, {"site1/worker1": dies})
    (joined,) = [told.event for told in ended.record.told if isinstance(told.event, Joined)]
    after = [t.t for t in ended.record.told if t.event == Finished(1, 6, t.t)]
    assert joined.worker == 1 and after and after[0] > joined.t
    assert replayed(ended.record) == 100
    assert final(given) == pytest.approx(on_paper(given, ended.record)[0], rel=1e-5)


@pytest.mark.parametrize("policy", ["bsp", "asp", dict(name="fedavg", samples=[1, 2, 3])])
def test_a_run_begins_with_some_and_others_join(tmp_path, policy):
    """They begin with the model that the server has then."""
    changes = dict(on_loss="replace", begin_with=2, iteration_s=[[0.02]] * 3)
    changes |= dict(training=dict(optimizer_at="server")) if policy == "bsp" else {}
    given = described(tmp_path, policy, 3, rounds=60, **changes)
    record = in_process.run(given, late={"site1/worker1": 20}).record
    told = [told.event for told in record.told]
    left, joined = [event for event in told if isinstance(event, Left | Joined)]
    assert (left.worker, joined.worker) == (1, 1)
    before = [event for event in told if isinstance(event, Finished) and event.t < joined.t]
    assert len(before) >= 20 and all(event.t > left.t for event in before)
    assert len(record.iterations[1]) > 5
    assert replayed(record) == 100
    if policy != "bsp":
        assert final(given) == pytest.approx(on_paper(given, record)[0], rel=1e-5)
        return
    server = Weight()
    for told in record.told:
        for its in told.decisions:
            if isinstance(its, Sync):
                server.step(sum(rank + 1 for rank in its.members) / len(its.members))
    assert final(given) == pytest.approx(server.value, rel=1e-5)


@pytest.mark.parametrize("exchange", ["parameter_server", "ring"])
def test_a_run_ends_after_so_many_seconds(tmp_path, exchange):
    """In the middle of iterations and meetings; the model is the server's, or everybody's."""
    changes = dict(exchange={"name": exchange}, rounds=None, seconds=0.5)
    given = described(tmp_path, dict(name="bsp", local_iterations=3), training=changes)
    ended = in_process.run(given)
    record = ended.record
    assert record.told[-1].t < record.end and record.end >= 0.5
    assert replayed(record) == 100
    value, _ = on_paper(given, record)
    assert final(given) == pytest.approx(value, rel=1e-5) and value < -LR
    rows = [row for row in ended.rows if row.metric == "weight"]
    assert rows[-1].value == final(given)
    assert len({row.round for row in rows}) == len(rows)


def times(factor):
    """Makes of what a member brings so many times as much."""
    return lambda body: (np.frombuffer(body, np.float32) * np.float32(factor)).tobytes()


ATTACK = {"site1/worker4": times(-1000)}
"""The fifth worker, whose gradient is 5, brings -5000."""


@pytest.mark.parametrize(
    "rule, gradient",
    [
        (dict(name="median"), 2),
        (dict(name="trimmed_mean"), (1 + 2 + 3) / 3),
        (dict(name="krum"), 2),
        (dict(name="norm_bound"), (1 + 2 + 3 + 3 - 3) / 5),
    ],
    ids=lambda its: its["name"] if isinstance(its, dict) else "",
)
@pytest.mark.parametrize("optimizer_at", ["worker", "server"])
def test_a_rule_bounds_what_one_worker_can_do(tmp_path, rule, gradient, optimizer_at):
    training = dict(aggregation=rule, optimizer_at=optimizer_at)
    given = described(tmp_path, "bsp", 5, rounds=3, training=training)
    in_process.run(given, rogues=ATTACK)
    server = Weight()
    for _ in range(3):
        server.step(gradient)
    assert final(given) == pytest.approx(server.value, rel=1e-6)


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_who_alone_makes_a_bad_model_is_put_out_by_name(tmp_path, rule):
    """The meeting is held anew among the others; without a look the run is spoiled, or ends."""
    changes = dict(worst=3.0, on_loss="continue", training=dict(aggregation=dict(name=rule)))
    given = described(tmp_path, "bsp", 2, rounds=3, **changes)
    rogues = {"site1/worker0": times(-1000)}
    ended = in_process.run(given, rogues=rogues)
    assert ended.digests.keys() == {"site1/worker1", "central/server"}
    server = Weight()
    for _ in range(6):  # of one worker, where two make a round
        server.step(2)
    assert final(given) == pytest.approx(server.value, rel=1e-6)
    stops = given.model_copy(update=dict(on_loss="stop"))
    with pytest.raises(Failed, match="site1/worker0: .*its change alone makes a model that is too"):
        in_process.run(stops, rogues=rogues)


def test_a_look_at_good_models_changes_nothing(tmp_path):
    for policy in ("bsp", dict(name="bsp", local_iterations=2)):
        plain, looked = (
            described(tmp_path / str(worst), policy, worst=worst) for worst in (None, 1e3)
        )
        in_process.run(plain)
        in_process.run(looked)
        assert final(looked) == final(plain) != 0


@pytest.mark.parametrize("exchange", ["parameter_server", "ring"])
@pytest.mark.parametrize("factor", [1e7, -1e30])
def test_values_that_are_too_large_are_refused(tmp_path, exchange, factor):
    """They are finite, and would destroy the model."""
    training = dict(exchange=dict(name=exchange))
    given = described(tmp_path, "bsp", 2, rounds=2, training=training)
    with pytest.raises(Failed, match=r"site1/worker1: .*of at most 1e\+06"):
        in_process.run(given, rogues={"site1/worker1": times(factor)})


def test_workers_are_as_slow_as_is_said(tmp_path):
    slow = [[0.03, 0.02], [0.01]]
    given = described(tmp_path, "asp", 2, rounds=8, iteration_s=slow)
    took = in_process.run(given).record.iterations
    assert all(s >= (0.03, 0.02)[n % 2] for n, s in enumerate(took[0]))
    assert min(took[1]) >= 0.01
