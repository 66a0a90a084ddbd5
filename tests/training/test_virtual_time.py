"""The engine of virtual time: exact schedules, its order of ties, the network under it, refusals.

What policies do with it is tested with the policies.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

from slowlink.methods import exchange, synchronization
from slowlink.methods.synchronization import (
    Continue,
    Finished,
    Joined,
    Left,
    Policy,
    SetTimer,
    Sync,
    Synced,
    Timer,
    Wait,
)
from slowlink.testbed.network import Network, star
from slowlink.testbed.training.stragglers import Fixed, Trace, uniform
from slowlink.testbed.training.virtual_time import (
    Applied,
    Computed,
    Decided,
    OnNetwork,
    Received,
    Scripted,
    Span,
    happenings,
    play,
)

load = synchronization.load


@dataclass
class Answers(Policy):
    """Answers each kind of event with fixed decisions."""

    summary = source = "this test"
    first: list = field(default_factory=list)
    then: dict = field(default_factory=dict)

    def begin(self, groups):
        return self.first

    def on(self, event):
        return self.then.get(type(event), [])


def test_a_schedule_that_fits_on_paper():
    log = play(load("bsp"), Fixed((1.0, 3.0)), 2.0, groups=[0, 0], seconds=5.5)
    assert log.spans == [
        Span(0, "compute", 0.0, 1.0),
        Span(1, "compute", 0.0, 3.0),
        Span(0, "wait", 1.0, 3.0),
        Span(0, "push", 3.0, 4.0),
        Span(1, "push", 3.0, 4.0),
        Span(0, "pull", 4.0, 5.0),
        Span(1, "pull", 4.0, 5.0),
        Span(0, "compute", 5.0, 5.5),
        Span(1, "compute", 5.0, 5.5),
    ]
    (meeting,) = log.meetings
    assert (meeting.decided, meeting.applied, meeting.received) == (3.0, 4.0, 5.0)
    assert meeting.arrived == (1.0, 3.0) and meeting.work == (range(1, 2), range(1, 2))
    assert meeting.waits == meeting.delays == (2.0, 0.0)
    assert (log.waited(), log.waited(0), log.waited(1)) == (2.0, 2.0, 0.0)
    assert log.iterations == [1, 1] and log.iterations_per_s == 2 / 5.5
    assert log.staleness() == [0, 0]


def test_the_end_by_iterations_includes_all_that_happens_then():
    log = play(load("bsp"), Fixed((1.0, 3.0)), groups=[0, 0], iterations=4)
    assert log.end == 6.0 and log.iterations == [2, 2]
    assert [m.received for m in log.meetings] == [3.0, 6.0]
    both = play(load("bsp"), Fixed((1.0,)), groups=[0], iterations=4, seconds=2.5)
    assert both.end == 2.5 and both.iterations == [2]


def test_staleness_counts_what_others_applied_between_pull_and_push():
    # The fast worker's updates of times 1, 2 and 3 (at a tie, the lower rank goes first) come
    # between the slow one's pull at 0 and push at 3; then those of 4, 5 and 6.
    log = play(load("asp"), Fixed((1.0, 3.0)), groups=[0, 0], seconds=6.0)
    stale = {m.sync.members[0]: [] for m in log.meetings}
    for meeting in log.meetings:
        stale[meeting.sync.members[0]] += meeting.staleness
    assert stale == {0: [0, 0, 0, 1, 0, 0], 1: [3, 3]}
    # The model pulled is that of the moment of applying: what is applied during a pull counts.
    log = play(load("asp"), Fixed((1.0, 1.5)), 1.0, groups=[0, 0], seconds=3.0)
    assert [(m.applied, m.staleness) for m in log.meetings[:2]] == [(1.5, (0,)), (2.0, (1,))]
    assert [m.received for m in log.meetings[:2]] == [2.0, 2.5]


def test_ties_go_by_kind_and_then_by_rank():
    policy = Answers(
        [SetTimer(name, 2.0) for name in "ba"]
        + [SetTimer("after the end", 3.0), Continue(2), Continue(1), Sync((0,)), Wait(3)]
    )
    log = play(
        policy,
        Fixed((2.0,) * 4),
        2.0,
        groups=[0] * 4,
        changes=[Left(3, 2.0), Joined(3, 2.0)],
        seconds=2.0,
    )
    assert [told.event for told in log.told] == [
        None,
        Synced((0,), 2.0),
        Finished(1, 1, 2.0),
        Finished(2, 1, 2.0),
        Left(3, 2.0),
        Joined(3, 2.0),
        Timer("b", 2.0),
        Timer("a", 2.0),
    ]


def test_communication_may_depend_on_members_and_time():
    def seconds(members, t):
        return len(members) * (1.0 if t < 3 else 3.0)

    log = play(load("bsp"), Fixed((2.0, 2.0)), seconds, groups=[0, 0], seconds=20.0)
    # Push 2–3 at the old rate, pull 3–6 at the new one; then 6 s a meeting.
    assert [(m.decided, m.applied, m.received) for m in log.meetings] == [
        (2.0, 3.0, 6.0),
        (8.0, 11.0, 14.0),
        (16.0, 19.0, pytest.approx(22.0, nan_ok=True)),
    ]
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="communication must take at least 0 s"):
            play(load("asp"), Fixed((1.0,)), bad, groups=[0], seconds=2.0)


RATE, LATENCY, SIZE = 8e6, 0.01, 1e6  # 1 s a transfer on an idle link


def on_star(n):
    topology = star(n, RATE, latency=LATENCY)
    server = exchange.load("parameter_server")
    nodes = topology.workers.tolist()

    def plan(members, phase):
        return server(topology, [nodes[rank] for rank in members], phase)

    return OnNetwork(Network(topology), plan, lambda sync, phase: SIZE)


def test_meetings_share_the_servers_link():
    hop = play(load("asp"), Fixed((1.0,)), on_star(1), groups=[0], seconds=9.0).meetings[0]
    alone = hop.applied - hop.decided
    assert alone == pytest.approx(1.0, rel=0.1)
    # Both push from 1 on, at half the rate each; then both pull.
    log = play(load("asp"), Fixed((1.0, 1.0)), on_star(2), groups=[0, 0], seconds=5.5)
    for meeting in log.meetings[:2]:
        assert meeting.applied == pytest.approx(1 + alone + 1.0, rel=1e-6)
        assert meeting.received == pytest.approx(1 + 2 * alone + 2.0, rel=1e-6)
    # The second comes 0.5 s later: it has half the rate until the first is through at 2.5, a
    # whole one afterwards.
    log = play(load("asp"), Fixed((1.0, 1.5)), on_star(2), groups=[0, 0], seconds=3.0)
    assert [m.applied for m in log.meetings[:2]] == pytest.approx(
        [2.5 + alone - 1, 3.0 + alone - 1], rel=1e-6
    )
    # The server's link carries a push a second, however many workers there are.
    for n in (4, 12):
        log = play(load("asp"), uniform(n, 0.1), on_star(n), groups=[0] * n, seconds=60.0)
        assert sum(log.iterations) <= 60 / (SIZE * 8 / RATE) + n
        alone = play(load("asp"), uniform(n, 0.1), 2.0, groups=[0] * n, seconds=60.0)
        assert sum(alone.iterations) > 1.5 * sum(log.iterations)


def test_constant_seconds_are_a_network_without_sharing():
    # One worker is never in its own way.
    network = play(load("asp"), Fixed((1.0,)), on_star(1), groups=[0], seconds=20.0)
    first = network.meetings[0]
    constant = play(
        load("asp"), Fixed((1.0,)), first.received - first.decided, groups=[0], seconds=20.0
    )
    assert [m.received for m in constant.meetings[:5]] == pytest.approx(
        [m.received for m in network.meetings[:5]]
    )


def test_a_caller_hangs_gradients_to_it_and_bsp_is_plain_data_parallel_sgd():
    """f_i(x) = |x - a_i|² / 2, as real work: what each delta brings, meeting by meeting."""
    rng = np.random.default_rng(0)
    targets, lr = rng.normal(size=(4, 3)), 0.1
    server, models, pulled = np.zeros(3), np.zeros((4, 3)), {}
    bases = models.copy()
    run = happenings(load("bsp"), uniform(4, seed=1), 0.3, groups=[0] * 4)
    for happening in itertools.takewhile(lambda happening: happening.t < 60, run):
        match happening:
            case Computed(worker=w):
                models[w] -= lr * (models[w] - targets[w])
            case Decided(meeting=meeting):
                deltas = [models[w] - bases[w] for w in meeting.sync.members]
                pulled[meeting.number] = np.mean(deltas, axis=0)
            case Applied(meeting=meeting):
                server = server + pulled[meeting.number]
                pulled[meeting.number] = server
            case Received(meeting=meeting, members=members):
                models[list(members)] = bases[list(members)] = pulled[meeting.number]
                applied = meeting.number + 1
    x = np.zeros(3)
    for _ in range(applied):
        x -= lr * np.mean([x - a for a in targets], axis=0)
    assert applied > 10
    assert bases[0] == pytest.approx(x)


def test_who_leaves_loses_what_was_not_pushed_and_returns_with_the_model():
    changes = [Left(1, 3.5), Joined(1, 4.0)]
    policy = load("asp", local_iterations=2)
    log = play(policy, Fixed((10.0, 1.0)), groups=[0, 0], changes=changes, seconds=6.5)
    mine = [m for m in log.meetings if m.sync.members == (1,)]
    # The third iteration was computed and lost, the fourth cut off and begun again.
    assert [(m.decided, list(m.work[0])) for m in mine] == [(2.0, [1, 2]), (6.0, [4, 5])]
    assert log.iterations == [0, 5]
    assert [span for span in log.spans if span.worker == 1 and 3 <= span.start < 5] == [
        Span(1, "compute", 3.0, 3.5),
        Span(1, "compute", 4.0, 5.0),
    ]


def test_the_iteration_and_its_start_are_told_to_the_stragglers():
    asked = []

    def stragglers(worker, iteration, t):
        asked.append((worker, iteration, t))
        return Trace(((1.0, 2.0), (2.0,)))(worker, iteration, t)

    play(load("asp"), stragglers, groups=[0, 0], seconds=3.5)
    assert sorted(asked) == [
        (0, 1, 0.0),
        (0, 2, 1.0),
        (0, 3, 3.0),
        (1, 1, 0.0),
        (1, 2, 2.0),
    ]


def test_a_script_lets_compute_whom_it_does_not_name():
    log = play(Scripted(meetings=[{0: 2}]), Fixed((1.0, 1.0)), groups=[0, 0], seconds=5.0)
    assert log.iterations == [5, 5]
    assert [(m.decided, m.sync.members) for m in log.meetings] == [(2.0, (0,))]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Answers([Continue(0)]), "nobody computes and nobody meets"),
        (Answers([]), "nobody computes and nobody meets"),
        (Answers([Continue(2)]), "Continue.worker=2.*worker 2 is unknown"),
        (Answers([Continue(0), Continue(0)]), "worker 0 is computing"),
        (Answers([Continue(0), Sync((0, 1))]), "worker 0 is computing"),
        (Answers([Sync((0,)), Continue(0)]), "worker 0 is meeting"),
        (Answers([Continue(0)], {Finished: [Continue(1), Wait(1)]}), "worker 1 is computing"),
    ],
)
def test_decisions_that_cannot_be_carried_out_are_refused(policy, said):
    with pytest.raises(RuntimeError, match=said):
        play(policy, Fixed((1.0, 1.0)), groups=[0, 0], seconds=5.0)


@dataclass
class Overlapping(Policy):
    """Everyone computes on; what each has finished is taken along whenever it is free to meet."""

    summary = source = "this test"
    travels = "delta"
    asynchronous = True
    continues_after_upload = True
    patient: bool = True
    _meeting: set = field(default_factory=set)

    def on(self, event):
        if isinstance(event, Synced):
            self._meeting -= set(event.members)
        if not isinstance(event, Finished):
            return []
        if event.worker in self._meeting and self.patient:
            return [Continue(event.worker)]
        self._meeting.add(event.worker)
        return [Continue(event.worker), Sync((event.worker,))]


def test_who_computes_on_meets_without_a_break():
    log = play(Overlapping(), Fixed((1.0,)), 1.2, groups=[0], seconds=6.5)
    assert [(m.decided, m.received) for m in log.meetings[:2]] == [(1.0, 2.2), (3.0, 4.2)]
    # What was under way counts for the next: 2 and 3 for the second.
    assert [m.work for m in log.meetings] == [(range(1, 2),), (range(2, 4),), (range(4, 6),)]
    assert [m.arrived for m in log.meetings] == [(1.0,), (3.0,), (5.0,)]
    assert [(m.computing, m.waits, m.delays) for m in log.meetings[:1]] == [
        ((True,), (0.0,), (0.0,))
    ]
    assert {span.kind for span in log.spans} == {"compute"} and len(log.spans) == 7
    # Two workers: the model has one update more than either has pulled.
    log = play(Overlapping(), Fixed((1.0, 1.0)), 0.5, groups=[0, 0], seconds=3.5)
    assert [m.staleness for m in log.meetings] == [(0,), (1,), (1,), (1,), (1,), (1,)]


def test_nobody_is_in_two_meetings_at_once():
    with pytest.raises(RuntimeError, match="worker 0 is meeting"):
        play(Overlapping(patient=False), Fixed((1.0,)), 1.2, groups=[0], seconds=6.5)


def test_who_leaves_while_it_computes_on_is_not_sent_the_answer():
    changes = [Left(0, 1.5), Joined(0, 1.6)]
    happened = happenings(Overlapping(), Fixed((1.0, 9.0)), 1.2, groups=[0, 0], changes=changes)
    happened = list(itertools.takewhile(lambda happening: happening.t < 2.5, happened))
    assert [h.members for h in happened if isinstance(h, Received)] == [()]


def test_other_refusals():
    with pytest.raises(ValueError, match="needs an end: iterations or seconds"):
        play(load("asp"), Fixed((1.0,)), groups=[0])
    with pytest.raises(RuntimeError, match="worker 0 is computing"):
        play(load("asp"), Fixed((1.0,)), groups=[0], changes=[Joined(0, 0.5)], seconds=1.0)
