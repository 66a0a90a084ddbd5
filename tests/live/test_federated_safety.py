"""What a federated controller does about clients that send poison, nothing, or what is not theirs;
without processes but for the last test."""

import errno
import json
import math
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import dds_domains
import federated_peers
import pytest
import torch
from federated_peers import process

from slowlink.methods import aggregation
from slowlink.methods.compression import Frame
from slowlink.testbed.live import identity
from slowlink.testbed.live.dds import Delivery, connect
from slowlink.testbed.live.dds.federated import checkpoint, controller, messages, simulate, training
from slowlink.testbed.live.dds.federated.client import Client
from slowlink.testbed.live.dds.federated.controller import read_log
from slowlink.testbed.live.dds.federated.live import SHARED
from slowlink.testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, parse
from slowlink.testbed.live.dds.segments import Refused

LIMIT_S = 100.0
"""Longest that anything may take on the controller's clock, see the settings below."""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federated") / "images"
    federated_peers.write_images(folder)
    return folder


@pytest.fixture
def make(images, tmp_path):
    def make(task=(), **values):
        task = dict(
            model={"name": "mlp", "hidden": 2},
            data={"name": "mnist", "directory": str(images)},
            clients=3,
            batch=16,
        ) | dict(task)
        wanted = dict(
            task=task,
            domain=dds_domains.fresh(),
            run="test",
            lease_s=3.0,
            wait_s=20.0,
            late_s=30.0,
            rounds=3,
            lr=0.05,
            min_clients=2,
            state=str(tmp_path / "state"),
            log=str(tmp_path / "log"),
        )
        return parse(json.dumps(wanted | values), ControllerSettings)

    return make


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Driven(controller._Controller):
    """A controller whose network, clock and evaluation are the test's."""

    def _connect(self):
        self.told, self.numbers = [], Counter()
        self.board = federated_peers.Board(None, 0)

    def _send(self, client, head, body=b"", timeout_s=None):
        self.told.append((client, head))

    def _say(self, what):
        """Nothing."""

    def begin(self):
        self.begun, self.start, self.round_start = True, controller.time.monotonic(), 0.0
        self._carry_out(self.policy.begin([0] * self.task.clients))
        for client in range(self.task.clients):
            self._tell(controller.Left(client, self._now()))

    def says(self, client, head, body=b""):
        self.numbers[client] += 1
        data = messages.pack(head, body)
        self.unseen[client] += 1
        message = Delivery(client + 1, 1, self.numbers[client], messages.label(head), data, 0)
        self._take(client, message, 0.0)

    def greets(self, client, hello):
        whose = (hello, self.session, self.task.fingerprint)
        self.says(client, messages.Hello(client, *whose, ""))

    def answers(self, client, values=None, samples=None, **change):
        asked = self.asked[client]
        values = torch.zeros(self.task.values) if values is None else values
        samples = self.shares[client] if samples is None else samples
        frame = Frame(self.task.make_codec(0).compress(values, "model")).to_bytes()
        head = messages.Update(client, asked.hello, asked.round, 0, True, samples, 0.0, 0.0)
        for name, value in change.items():
            setattr(head, name, value)
        self.says(client, head, frame)


class Blind(training.Examiner):
    """Sees at once that values of 9 and more are bad."""

    def examine(self, weights):
        return 10.0, 1.0 if float(weights.abs().max()) < 9 else 1e9


@pytest.fixture
def drive(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(controller, "time", clock)
    monkeypatch.setattr(training, "Examiner", Blind)

    def drive(settings):
        made = Driven(settings, settings.task.data.load())
        made.clock = clock
        return made

    return drive


def poison(kind, of):
    """What a client sends that the controller refuses, as arguments of :meth:`Driven.answers`."""
    whole = of.task.values
    return {
        "large": dict(values=torch.full((whole,), 1e30)),
        "samples": dict(samples=of.shares[0] + 1),
        "times": dict(train_s=math.nan),
        "packet": dict(packet=1),
        "shape": dict(values=torch.zeros(whole + 1)),
    }[kind]


# Liveness -------------------------------------------------------------------------------------


def alive(one):
    """Somebody is asked and has a limit, or too few are here and that has one."""
    return bool(one.asked) or len(one.present) < one.settings.min_clients or one.timers


@pytest.mark.parametrize("seed", range(60))
def test_somebody_is_asked_or_a_timer_runs_or_the_run_ends(make, drive, seed):
    """In every state that clients which come, go, hang, lie and restart bring a controller to; and
    left alone in it, it ends within its limits."""
    draw = random.Random(seed)
    clients = draw.randint(1, 4)
    settings = make(
        task=dict(clients=clients),
        min_clients=draw.randint(1, clients),
        timeout_s=draw.choice([None, 0.0, 5.0]),
        late=draw.choice(["drop", "next"]),
        quarantine=draw.choice([0, 0, 1, 5]),
        rounds=10,
        kept=0,
        log=None,
    )
    one, hello = drive(settings), 0
    one.begin()
    last = draw.randrange(150)
    kinds = ["large", "samples", "times", "packet", "shape"]
    steps = ["greet", "answer", "answer", "lie", "lie", "bad", "leave", "wait", "old", "busy"]
    for _ in range(last):
        what, client = draw.choice(steps), draw.randrange(clients)
        try:
            if what == "greet":
                hello += 1
                one.greets(client, hello)
            elif what == "leave":
                one._leave(client)
            elif what == "wait":
                one.clock.now += draw.choice([0.1, 1.0, 7.0])
            elif client in one.asked:
                if what == "answer":
                    one.answers(client)
                elif what == "lie":
                    one.answers(client, **poison(draw.choice(kinds), one))
                elif what == "bad":  # which only a look at the model shows
                    one.answers(client, values=torch.full((one.task.values,), 10.0))
                elif what == "old":
                    one.answers(client, round=0)
            one._go_on()
        except ConnectionError as error:
            assert "missing:" in str(error)
            return
        if one.done == settings.rounds:
            return
        assert alive(one), (what, client)
        assert one.barred.keys() & one.asked.keys() == set()
        assert one.asked.keys() == one.since.keys() <= one.present.keys()
    # Nobody says anything any more.
    start, done = one.clock.now, one.done
    with pytest.raises(ConnectionError, match="missing: .*asked 30 s ago|missing:"):
        while one.clock.now < start + LIMIT_S * (1 + one.done - done):
            one.clock.now += 0.5
            one._go_on()
            if one.done == settings.rounds:
                raise ConnectionError("missing: nothing")


def test_who_is_late_is_named(make, drive):
    one = drive(make(min_clients=3))
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    one.answers(0), one.answers(2)
    one.clock.now += 29.0
    one._go_on()
    assert 1 in one.present
    one.clock.now += 2.0
    one._go_on()
    assert 1 not in one.present
    one.clock.now += 21.0
    with pytest.raises(ConnectionError) as ended:
        one._go_on()
    assert str(ended.value) == (
        "2 clients for 20 s, needs 3; missing: 1 (counts as gone: it was asked 30 s ago)"
    )


def test_all_refused_in_a_round_are_asked_again_and_then_it_ends(make, drive):
    """They once counted as present for ever, and nobody was asked."""
    one = drive(make(min_clients=2))
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    asked = Counter()
    for _ in range(controller.TRIES):
        for client in sorted(one.asked):
            asked[client] += 1
            one.answers(client, **poison("large", one))
            one._go_on()
    while one.asked:
        one.answers(min(one.asked), **poison("large", one))
        one._go_on()
    assert len(one.lost) >= 2 and min(asked.values()) >= 1
    one.clock.now += 21.0
    with pytest.raises(ConnectionError, match="refused 3 times"):
        one._go_on()


def test_a_flood_fills_no_memory(make, drive):
    one = drive(make())
    one.begin()
    message = Delivery(1, 1, 0, "update", bytes(100), 0)
    for _ in range(one.task.packets + controller.UNTOLD):
        one._hand(0, message)
    with pytest.raises(Refused, match="messages of client 0 wait"):
        one._hand(0, message)
    while not one.events.empty():
        one._hear(0)
    one._hand(0, message)  # again room
    for _ in range(3 * controller.TOLD):
        one._refuse(0, "rubbish")
    assert len(one.refused) == controller.TOLD + 1


# Poison -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, why",
    [
        ("large", "values up to 1e+30, at most 1e+06 are taken"),
        ("samples", "81 samples, of at most 80"),
        ("times", "times of nan and 0.0 s"),
        ("packet", "packet 1 where 0 is due"),
        ("shape", "needs identity of"),
    ],
)
def test_poison_is_refused_by_name_and_the_round_goes_on(make, drive, kind, why):
    one = drive(make(rounds=1))
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    one.answers(1, **poison(kind, one))
    one.answers(0), one.answers(2)
    assert one.done == 1
    [done] = read_log(one.settings.log)
    assert sorted(done.sent) == [0, 2]
    [refused] = done.refused
    assert refused.startswith("client 1: ") and why in refused


@pytest.mark.parametrize("quarantine", [0, 2])
def test_whose_update_alone_spoils_the_model_is_named_and_left_out(make, drive, quarantine):
    one = drive(make(rounds=5, quarantine=quarantine))
    before = one.weights
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    small = torch.full((one.task.values,), 0.25)
    one.answers(0, values=small)
    one.answers(1, values=torch.full((one.task.values,), 100.0))
    one.answers(2, values=3 * small)
    torch.testing.assert_close(one.weights, before + 2 * small)
    for _ in range(3):
        for client in sorted(one.asked):
            one.answers(client)
    rounds = read_log(one.settings.log)
    assert rounds[0].refused == (
        "client 1: its update alone makes a model that is too bad to take",
    )
    took_part = [sorted(r.sent) for r in rounds]
    everyone, others = [0, 1, 2], [0, 2]
    assert took_part == [others] * (1 + quarantine) + [everyone] * (3 - quarantine)


def test_a_model_that_nobody_alone_spoils_is_refused_all_the_same(make, drive, monkeypatch):
    one = drive(make(rounds=1))
    before = one.weights.clone()
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    monkeypatch.setattr(
        one.examiner, "examine", lambda w: (0.0, 1.0 if (w - before).abs().max() < 0.1 else 1e9)
    )
    monkeypatch.setattr(
        one, "rule", lambda updates, weights, origin: updates.sum(dim=0), raising=False
    )
    one.rule.__dict__["least"] = 1
    for client in range(3):
        one.answers(client, values=torch.full((one.task.values,), 0.05))
    assert torch.equal(one.weights, before) and one.done == 1
    [done] = read_log(one.settings.log)
    assert done.sent == {} and "the old one stays" in done.refused[0]


def test_a_model_that_is_worse_by_less_is_taken(make, monkeypatch):
    """Of honest clients, with the real evaluation."""
    settings = make(worst=1.0, rounds=2)
    rounds, weights = simulate(settings)
    examiner = training.Examiner(settings.task, settings.task.data.load())
    accuracy, loss = examiner.examine(weights)
    assert accuracy == rounds[-1].accuracy and loss < examiner.clueless
    model = settings.task.make_model().eval()
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    data = settings.task.data.load()
    scores = model(data.prepare(data.test_x))
    expected = torch.nn.functional.cross_entropy(scores, data.test_y).detach()
    assert loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("split", [{"name": "anew"}, {"name": "dirichlet", "alpha": 0.3}])
def test_shares_are_what_clients_train_on(make, split):
    settings = make(task=dict(split=split))
    labels = settings.task.data.load().train_y
    asked = training.command(settings, 1)
    dealt = [len(training.samples(settings.task, labels, n, asked)) for n in range(3)]
    assert training.shares(settings.task, labels) == dealt and sum(dealt) == len(labels)


# Rules ------------------------------------------------------------------------------------------


def test_rules_need_clients_enough(make):
    with pytest.raises(ValueError, match="min_clients: krum needs 5 clients"):
        make(aggregation={"name": "krum"})
    with pytest.raises(ValueError, match="no aggregation method 'medain'.*did you mean"):
        make(aggregation={"name": "medain"})
    make(task=dict(clients=5), min_clients=5, aggregation={"name": "krum"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [dict(name="median"), dict(name="trimmed_mean", trim=0.3), dict(name="norm_bound")]
    + [dict(name="krum", byzantine=2), dict(name="krum", byzantine=2, keep=5)]
)  # fmt: skip
@pytest.mark.parametrize("sends", ["delta", "weights"])
def test_a_training_by_another_rule(make, rule, sends):
    """Two clients of seven that turn their changes around spoil the mean and no other rule."""
    task = dict(clients=7, sends=sends, model={"name": "mlp", "hidden": 8}, momentum=0.9)
    liars = dict.fromkeys((1, 4), federated_peers.turned)

    def end(rule, scripts):
        settings = make(task=task, min_clients=7, rounds=12, lr=0.1, aggregation=rule)
        return simulate(settings, scripts=scripts)[0][-1].accuracy

    assert end(dict(name="mean"), liars) < 30
    assert end(rule, liars) > 50 and end(rule, {}) > 50


def test_changes_and_weights_are_combined_alike(make):
    for name in aggregation.names():
        settings = make(task=dict(clients=5), min_clients=5, aggregation={"name": name})
        other = make(
            task=dict(clients=5, sends="weights"), min_clients=5, aggregation={"name": name}
        )
        ours, theirs = simulate(settings)[1], simulate(other)[1]
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# Disks ------------------------------------------------------------------------------------------


def test_the_latest_states_are_kept(make, drive):
    one = drive(make(rounds=6, kept=2))
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    for _ in range(6):
        for client in sorted(one.asked):
            one.answers(client, values=torch.full((one.task.values,), 0.1))
    state, task = one.settings.state, one.task
    assert sorted(checkpoint.kept(state)) == [5, 6]
    fifth, sixth = (state.with_name(f"state.{n}") for n in (5, 6))
    assert torch.equal(checkpoint.load(sixth, task)[1], checkpoint.load(state, task)[1])
    assert checkpoint.load(fifth, task)[0] == 5
    sixth.unlink()
    state.write_bytes(fifth.read_bytes())  # as the settings say, to go back
    assert drive(one.settings).done == 5


def test_every_changed_bit_of_a_state_is_found(make, tmp_path):
    settings = make()
    data = messages.pack(*checkpoint.message(1, settings.task, training.initial(settings)))
    checkpoint.save(settings.state, data)
    whole = settings.state.read_bytes()
    head = len(data) - len(checkpoint.message(1, settings.task, training.initial(settings))[1])
    for at in [*range(head + 40), len(whole) - 1]:
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            settings.state.write_bytes(damaged)
            with pytest.raises(ValueError, match="state: damaged, or no state"):
                checkpoint.load(settings.state, settings.task)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("what", ["state", "log"])
def test_a_full_disk_ends_in_an_error_that_names_the_file(make, drive, monkeypatch, what):
    settings = make() if what == "state" else make(log="/dev/full")
    one = drive(settings)
    one.begin()
    for client in range(3):
        one.greets(client, 5)
    if what == "state":
        monkeypatch.setattr(Path, "write_bytes", full)
    one.answers(0), one.answers(1)
    with pytest.raises(OSError, match="cannot be written.*No space left on device") as error:
        one.answers(2)
    assert error.value.filename == str(getattr(settings, what))
    if what == "log":
        assert checkpoint.load(settings.state, settings.task)[0] == 1


# With processes ---------------------------------------------------------------------------------


def met(client, early):
    """Serve, once the controller is there; what the client refused until then goes to ``early``."""
    assert not client.channel.wait_for({messages.CONTROLLER}, 60)
    early.update(client.channel.refused)
    with suppress(ConnectionError):  # the controller leaves before the client has heard of the end
        client.serve()


@pytest.mark.slow
@pytest.mark.parametrize("with_keys", [True, False])
def test_a_stranger_who_reflects_what_he_hears_changes_nothing(make, tmp_path, with_keys):
    """Eight packets of the controller, sent to it again, once barred the honest clients and hung
    the training for ever."""
    keys = None
    if with_keys:
        keys = tmp_path / "keys"
        identity.make(keys, messages.members(2))
    settings = make(
        task=dict(clients=2), min_clients=2, rounds=40, keys=str(keys) if keys else None, worst=None
    )
    reflected, made = tmp_path / "reflected", []
    early = Counter()  # refused before a client met the controller, as of nobody that it knew
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        stranger = federated_peers.SERVER.Process(
            target=federated_peers.reflect,
            args=(settings.domain, settings.network, 2, reflected),
            daemon=True,
        )
        stranger.start()
        stack.callback(stranger.kill)
        deadline = time.monotonic() + 60
        while not reflected.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        shared = {name: getattr(settings, name) for name in SHARED}
        entered, data = connect(settings.domain, settings.network), settings.task.data.load()
        for client in range(2):
            its = ClientSettings(client=client, **shared)
            participant = training.Participant(settings.task, client, data)
            made.append(Client(its, participant, entered))
            stack.callback(made[-1].close)
            threading.Thread(target=met, args=(made[-1], early), daemon=True).start()
        assert serving.wait(90) == 0
        refused = sum((one.channel.refused for one in made), Counter())
    rounds = read_log(settings.log)
    assert [sorted(r.sent) for r in rounds] == [[0, 1]] * 40
    assert all(r.refused == () for r in rounds)
    assert int(reflected.read_text()) > 8
    assert refused["replay"] + refused["reflection"] > 8
    assert (refused - early).keys() <= {"replay", "reflection"}
    assert torch.equal(checkpoint.load(settings.state, settings.task)[1], simulate(settings)[1])
