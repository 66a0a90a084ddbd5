"""The live coordinator and the virtual-time engine agree, deaths and new workers included.

Its members are dice, on a clock of their own: they answer after so many ticks, and train nothing.
"""

import dataclasses
import heapq
import math
import random
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import synchronization
from slowlink.methods.synchronization import (
    Finished,
    Joined,
    Left,
    Policy,
    SetTimer,
    Sync,
    Synced,
    Timer,
)
from slowlink.testbed.live.engine import coordinator
from slowlink.testbed.live.engine.coordinator import Coordinator, Failed
from slowlink.testbed.live.engine.settings import LiveSettings, parse
from slowlink.testbed.live.replay import TICK_S, Record, again, replayed, summary
from slowlink.testbed.live.wire import Received
from slowlink.testbed.training.virtual_time import Told

load = synchronization.load

JOIN = 10
"""Ticks until another process has taken the part of a worker that died."""


class Dice:
    """The wire of a coordinator, and all whom it reaches; one server keeps the model.

    Iterations, pushes and pulls take 1 to 3 ticks. Workers die on time, and those that the
    coordinator asks for come again.
    """

    def __init__(self, given, seed=0, deaths=(), took=None, anew=()):
        self.given, self.draw, self.took = given, random.Random(seed), took
        self.now, self.order, self.queue = 0, count(), []
        self.name, self.members, self.heard = "coordinator", frozenset(given.members), {}
        self.names = [given.topology.node_names[node] for node in given.workers]
        self.server = given.topology.node_names[given.servers[0]]
        self.dead, self.applied, self.version = set(), set(), 0
        self.sent = []
        for name in (self.server, *self.names):
            self._later(0, self._hello, name)
        for rank, at in dict(deaths).items():
            self._later(at, self._die, self.names[rank])
        for rank, at in dict(anew).items():
            self._later(at, self._hello, self.names[rank])

    # As a clock and a wire ------------------------------------------------------------------------

    def monotonic(self):
        return self.now * TICK_S

    def connect(self, addresses):
        pass

    forget = connect

    def receive(self, timeout_s):
        until = self.now + math.floor(timeout_s / TICK_S)
        while self.queue and self.queue[0][0] <= until:
            at, _, act, arguments = heapq.heappop(self.queue)
            self.now = max(self.now, at)
            if (received := act(*arguments)) is not None:
                return received
        self.now = max(until, self.now + 1)
        return None

    def send(self, name, head):
        self.sent.append((name, head))
        rank = self.names.index(name) if name in self.names else None
        match head["kind"]:
            case "stop":
                if not head["reason"]:
                    self._later(1, self._say, name, "done", digest="", sent_bytes=0)
            case "compute":
                self._later(self._ticks("compute", rank), self._say, name, "finished")
            case "drop" if rank is None and head["meeting"] not in self.applied:
                self.applied.add(head["meeting"])
                place = dict(meeting=head["meeting"], attempt=self.attempt[head["meeting"]])
                self._later(1, self._say, name, "dropped", **place)
            case "meet" if rank is None:
                self._meet(head)

    # What members do ------------------------------------------------------------------------------

    attempt: dict

    def _meet(self, head):
        place = dict(meeting=head["meeting"], attempt=head["attempt"])
        self.attempt = vars(self).setdefault("attempt", {}) | {head["meeting"]: head["attempt"]}
        self.applied.discard(head["meeting"])
        if head["weights"] is not None and not any(head["weights"]):
            self._pull(head, place)
        else:
            self._later(self._ticks("push"), self._apply, head, place)

    def _apply(self, head, place):
        stale = self.attempt[head["meeting"]] != head["attempt"]
        if stale or head["meeting"] in self.applied:
            return None
        if any(self.names[rank] in self.dead for rank in head["members"]):
            return None  # who died did not push
        self.applied.add(head["meeting"])
        self.version += head["level"] == -1
        self._pull(head, place)
        pushed = [[rank, self.draw.random()] for rank in head["members"]]
        return self._say(self.server, "applied", **place, version=self.version, uploads=pushed)

    def _pull(self, head, place):
        for rank in head["members"]:
            self._later(self._ticks("pull", rank), self._say, self.names[rank], "synced", **place)

    def _hello(self, name):
        self.dead.discard(name)
        return self._say(name, "hello", run=self.given.run, address="", rounds=[], model="")

    def _die(self, name):
        self.dead.add(name)
        return Received(name, dict(kind="left", reason="it died"))

    def restart(self, name):
        self._later(JOIN, self._hello, name)

    def _say(self, name, kind, **fields):
        return None if name in self.dead else Received(name, dict(kind=kind, **fields))

    def _ticks(self, what, rank=None):
        return self.took[what][rank or 0] if self.took else self.draw.randint(1, 3)

    def _later(self, ticks, act, *arguments, **fields):
        run = (lambda *them: act(*them, **fields)) if fields else act
        heapq.heappush(self.queue, (self.now + ticks, next(self.order), run, arguments))


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    """Makes the settings of so many workers around a server."""
    output = tmp_path_factory.mktemp("out")

    def make(part, workers, ticks=None, on_loss="continue", rounds=None, sends="change"):
        training = dict(
            exchange={"name": "parameter_server"},
            levels=[{"up": {"name": "identity"}}],
            synchronization=part,
            optimizer_at="server",
            sends=sends,
            model={"name": "lenet5"},
            dataset="fashion_mnist",
            workers=[workers],
            batch=1,
            lr=0.1,
            rounds=rounds,
            seconds=ticks and ticks * TICK_S,
            evaluate_every=10**6,
        )
        limits = dict(meeting_s=1, join_s=1, compute_s=1, silence_s=1, replacements=9)
        return parse(dict(training=training, output=str(output), on_loss=on_loss, limits=limits))

    return make


@pytest.fixture(scope="module")
def rolled(described):
    """Lets a policy run so many dice."""

    def roll(part, workers, *dealt, ticks=110, policy=None, took=None, anew=(), sent=None, **more):
        its = described(part, workers, None if "rounds" in more else ticks, **more)
        dice = Dice(its, *dealt, took=took, anew=anew)
        dice.sent = dice.sent if sent is None else sent
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coordinator, "time", dice)
            if policy is not None:
                patch.setattr(LiveSettings, "policy", lambda self: policy)
            ran = Coordinator(its, dice, restart=dice.restart, here=True)
            patch.setattr(ran, "_evaluate", lambda round_: None)
            return ran.run().record

    return roll


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(synchronization.names()),
    workers=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    on_loss=st.sampled_from(["continue", "replace"]),
    data=st.data(),
)
def test_virtual_time_repeats_a_run_with_deaths(rolled, name, workers, seed, on_loss, data):
    least = workers - (on_loss == "continue")
    died = data.draw(st.sets(st.integers(0, workers - 1), max_size=least))
    deaths = {rank: data.draw(st.integers(1, 80)) for rank in sorted(died)}
    record = rolled(dict(name=name), workers, seed, deaths, on_loss=on_loss)
    log = again(record)
    assert log.told == record.told
    assert log.iterations == [len(seconds) for seconds in record.iterations]
    came = {told.event.worker for told in record.told if isinstance(told.event, Joined)}
    left = {told.event.worker for told in record.told if isinstance(told.event, Left)}
    assert left == died and came == (died if on_loss == "replace" else set())
    last = {rank for told in record.told[-workers * 8 :] for rank in [_who(told.event)]}
    assert last & (set(range(workers)) - died | came)  # the others went on to the end


@settings(max_examples=60, deadline=None)
@given(
    workers=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    on_loss=st.sampled_from(["continue", "replace"]),
    timeout=st.sampled_from([0.0, 5.3, 40.0, math.inf]),
    late=st.sampled_from(["drop", "next"]),
    fraction=st.sampled_from([0.4, 1.0]),
    data=st.data(),
)
def test_a_federated_round_ends_or_the_run_does(
    rolled, workers, seed, on_loss, timeout, late, fraction, data
):
    """Whoever dies, is late, or comes again: it waits for nobody who cannot come, and says who is
    missing where too few are left."""
    least = data.draw(st.integers(1, workers))
    part = dict(name="fedavg", min_clients=least, timeout_s=timeout * TICK_S, late=late)
    died = data.draw(st.sets(st.integers(0, workers - 1), max_size=workers))
    deaths = {rank: data.draw(st.integers(1, 80)) for rank in sorted(died)}
    too_few = on_loss == "continue" and workers - len(died) < least
    try:
        record = rolled(part | dict(fraction=fraction), workers, seed, deaths, on_loss=on_loss)
    except Failed as failed:
        assert too_few
        gone = str(failed).rpartition("; gone: ")[2]
        assert "fedavg: nob" in str(failed) or "fedavg: no worker is left" in str(failed)
        assert 0 < gone.count("it died") <= len(died) and workers - gone.count("it died") < least
        return
    if too_few:  # the end came before it was noticed
        return
    log = again(record)
    assert log.told == record.told
    syncs = [d for told in record.told for d in told.decisions if isinstance(d, Sync)]
    assert len(syncs) > 3 and min(len(sync.bringing) for sync in syncs) >= least


def _who(event):
    return event.members[0] if isinstance(event, Synced) and event.members else _rank(event)


def _rank(event):
    return getattr(event, "worker", None)


def test_everything_that_happens_has_a_time_of_its_own(rolled):
    """What is ready together is told one after the other, and so it is repeated."""
    record = rolled(dict(name="asp"), 6, ticks=400)
    assert len(record.told) > 300 and record.told[0].t == 0.0
    assert all(before.t < after.t for before, after in pairwise(record.told))


def test_bsp_on_paper(rolled):
    """Iterations of 1 and 3 ticks, pushes of 2, pulls of 1; every event takes a tick of its own."""
    took = dict(compute=(10, 30), push=(20,), pull=(10, 10))
    record = rolled(dict(name="bsp"), 2, took=took, rounds=2)
    t = [tick * TICK_S for tick in range(130)]
    assert [(told.event, told.t) for told in record.told] == [
        (None, 0.0),
        (Finished(0, 1, t[10]), t[10]),
        (Finished(1, 1, t[30]), t[30]),
        (Synced((0, 1), t[60]), t[60]),
        (Finished(0, 2, t[70]), t[70]),
        (Finished(1, 2, t[90]), t[90]),
    ]
    assert record.meetings[0] == (t[20], t[10])
    assert record.meetings[1][0] == t[20] and np.isnan(record.meetings[1][1])
    assert record.iterations == [[t[10], t[10]], [t[30], t[30]]] and record.end == t[111]
    told = summary(record)
    # 20 ticks of waiting in the first round and 20 in the second, of 2 workers' 111.
    assert told["waited_share"] == pytest.approx(40 / 222)
    assert told["iterations_per_s"] == pytest.approx(4 / t[111]) and told["staleness"] == 0
    # Iterations of 10 and of 30 ticks.
    assert told["capacity"] == pytest.approx(1 / t[10] + 1 / t[30])


FEDAVG = dict(name="fedavg", min_clients=2, timeout_s=7.3 * TICK_S, fraction=0.7)


@pytest.mark.parametrize("part", [dict(name="lpsp", s=math.inf), FEDAVG], ids=["lpsp", "fedavg"])
def test_the_round_trip_through_json_is_exact(rolled, tmp_path, part):
    """Timers, too, which go off between ticks; a death, and a new worker."""
    record = rolled(part, 4, 0, {2: 30}, on_loss="replace")
    kinds = {type(told.event) for told in record.told}
    assert {Left, Joined} <= kinds and (Timer in kinds) == (part is FEDAVG)
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


def test_a_changed_record_is_found_out(rolled):
    record = rolled(dict(name="ssp", staleness=1), 4)
    assert replayed(record) == 100
    assert replayed(dataclasses.replace(record, parameters=dict(staleness=0))) < 100
    number, told = next((n, t) for n, t in enumerate(record.told) if isinstance(t.event, Finished))
    event = Finished(told.event.worker, 1, told.t + TICK_S)
    record.told[number] = Told(event, told.decisions, told.t)
    assert replayed(record) == 100 * number / len(record.told)


@dataclasses.dataclass
class Answers(Policy):
    summary = source = "this test"
    first: tuple = ()

    def begin(self, groups):
        return list(self.first)

    def on(self, event):
        return []


@pytest.mark.parametrize("sends", ["change", "weights", "weights_first"])
def test_all_attempts_at_a_meeting_bring_models_or_none_does(rolled, sends):
    """Of two first meetings at a time, too: what counts is what the server had when each was
    decided, though it has more when that is held anew."""
    anew = 0
    for seed in range(20):
        sent, policy = [], Answers((Sync((0, 1)), Sync((2, 3))))
        with pytest.raises(Failed, match="nobody computes"):
            rolled(dict(name="lpsp"), 4, seed, {2: 3}, policy=policy, sends=sends, sent=sent)
        attempts = {}
        for name, head in sent:
            if head["kind"] == "meet" and "server" in name:
                attempts.setdefault(head["meeting"], []).append(head)
        assert {head["whole"] for heads in attempts.values() for head in heads} == {
            sends != "change"
        }
        anew += attempts[1][-1]["seen"] > 0
    assert anew > 1


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([Sync((0, 1)), Sync((1,))], "but worker 1 is meeting"),
        ([Sync((0, 9))], "but worker 9 is unknown"),
        ([], "nobody computes, nobody meets and no timer runs"),
        ([SetTimer("x", 5 * TICK_S)], "nobody computes, nobody meets and no timer runs"),
    ],
)
def test_decisions_that_cannot_be_carried_out(rolled, decisions, message):
    with pytest.raises(Failed, match=message):
        rolled(dict(name="bsp"), 2, policy=Answers(tuple(decisions)))


def test_the_death_of_all_workers_is_an_error(rolled):
    with pytest.raises(Failed, match="asp: no worker is left"):
        rolled(dict(name="asp"), 2, 0, {0: 5, 1: 9})


def test_a_process_that_somebody_else_started_anew_replaces_the_old_one(rolled):
    record = rolled(dict(name="ssp"), 3, anew={1: 50}, on_loss="replace")
    events = [t.event for t in record.told if isinstance(t.event, Left | Joined)]
    assert [(type(event), event.worker) for event in events] == [(Left, 1), (Joined, 1)]
    assert replayed(record) == 100
    record = rolled(dict(name="ssp"), 3, anew={1: 50})
    assert not [t for t in record.told if isinstance(t.event, Left | Joined)]


RECORDED = Path(__file__).parents[2] / "data" / "recorded"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("ray_*.json")), ids=lambda path: path.stem)
def test_recorded_runs_of_real_workers_replay(path):
    record = Record.load(path)
    assert record.about["command"]
    log = again(record)
    assert log.told == record.told
    assert sum(log.iterations) >= 400 and len(log.iterations) == 4
    told = summary(record)
    # All but those whose meetings are of all, where nothing is stale, let somebody run ahead; in
    # slots nobody waits.
    assert (told["staleness"] == 0) == (record.policy in ("bsp", "mll_sgd"))
    assert (told["waited_share"] == 0) == (record.parameters.get("rounds") == "slots")
    assert told["waited_share"] < 1 and record.accuracy > 50  # chance is 10 %
