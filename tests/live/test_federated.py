"""Federated training by real processes, which are killed, late and rude; and by none."""

import dataclasses
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path

import dds_domains
import federated_peers
import pytest
import torch
from federated_peers import process

from slowlink.methods import compression
from slowlink.testbed.live import identity
from slowlink.testbed.live.dds import Delivery, connect, domain
from slowlink.testbed.live.dds.federated import (
    Failed,
    checkpoint,
    controller,
    live,
    messages,
    run_live,
    simulate,
    training,
)
from slowlink.testbed.live.dds.federated import __main__ as commands
from slowlink.testbed.live.dds.federated import client as client_module
from slowlink.testbed.live.dds.federated.client import Client
from slowlink.testbed.live.dds.federated.controller import read_log
from slowlink.testbed.live.dds.federated.live import SHARED
from slowlink.testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, parse
from slowlink.testbed.training import models

pytestmark = pytest.mark.slow

WAIT_S = 90.0


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federated") / "images"
    federated_peers.write_images(folder)
    return folder


@pytest.fixture
def make(images, tmp_path):
    """Controller settings with some values replaced."""

    def make(task=(), **values):
        task = dict(
            model={"name": "lenet5", "hidden": [20, 10]},
            data={"name": "mnist", "directory": str(images)},
            clients=2,
            batch=16,
            momentum=0.5,
        ) | dict(task)
        controller = dict(
            task=task,
            domain=dds_domains.fresh(),
            run="test",
            lease_s=3.0,
            wait_s=60.0,
            rounds=3,
            lr=0.05,
            min_clients=2,
            state=str(tmp_path / "state"),
            log=str(tmp_path / "log"),
        )
        return parse(json.dumps(controller | values), ControllerSettings)

    return make


def client_settings(settings, client, **values):
    shared = {name: getattr(settings, name) for name in SHARED} | {"wait_s": 60.0}
    return ClientSettings(client=client, **shared, **values)


def identities(folder, clients=2):
    """A folder of keys for a controller and its clients."""
    identity.make(folder, messages.members(clients))
    return str(folder)


def until(happens, why):
    deadline = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def same_bytes(rounds, others):
    """Whether the same clients sent the same numbers of bytes in all rounds."""
    names = ("samples", "payload_bytes", "message_bytes", "frame_bytes", "link_bytes")

    def counts(its):
        return {
            (r.number, client, name): getattr(sent, name)
            for r in its
            for client, sent in r.sent.items()
            for name in names
        }

    return counts(rounds) == counts(others)


# Without processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torch(momentum):
    ours, theirs = (models.make("mlp", 3, hidden=16) for _ in range(2))
    for model in (ours, theirs):  # with a parameter that gets no gradient
        model[0].unused = torch.nn.Parameter(torch.ones(3))
    optimizer, velocity = torch.optim.SGD(theirs.parameters(), 0.1, momentum), {}
    for seed in range(4):
        images = torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
        for model in (ours, theirs):
            model.zero_grad()
            model(images).square().mean().backward()
        optimizer.step()
        training.descend(ours, velocity, 0.1, momentum)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_first_step_imports_nothing_that_takes_long():
    """Torch's compiler takes two seconds, and the first call of numba half of one."""
    script = """
import sys
from slowlink.testbed.live.dds.federated import __main__, training, warm
from slowlink.testbed.training import models, pooling
assert pooling._pool.signatures
model = models.make("mnist_cnn")
model(training.torch.zeros(1, 1, 28, 28)).sum().backward()
training.descend(model, {}, 0.1, 0.9)
assert "torch._dynamo" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        ({"name": "identity"}, lambda n: 4 * n),
        ({"name": "int8_blocks"}, lambda n: 20 + n + 4 * -(-n // 1024)),
        ({"name": "sparse_fp32"}, lambda n: 12 + 8 * (n // 10)),
        ({"name": "sparse_int8"}, lambda n: 20 + 5 * (n // 10) + 4 * -(-(n // 10) // 1024)),
    ],
)
def test_payloads_have_the_printed_bytes(make, codec, expected):
    settings = make(task={"codec": codec}, rounds=1)
    [first], _ = simulate(settings)
    n = settings.task.values
    for sent in first.sent.values():
        assert sent.payload_bytes == expected(n)
        assert sent.payload_bytes < sent.message_bytes < sent.frame_bytes < sent.link_bytes
        assert sent.link_bytes < 1.02 * sent.payload_bytes + 1000
        assert sent.samples == 120
    assert first.downlink_bytes == 4 * n


def test_printed_bytes_of_the_documents_model(make):
    modes = {
        4_799_528: {"name": "identity"},
        1_204_590: {"name": "int8_blocks", "chunk": 1024},
        1_200_490: {"name": "int8_blocks", "chunk": 8192},
        959_916: {"name": "sparse_fp32"},
        600_432: {"name": "sparse_int8"},
    }
    for nbytes, codec in modes.items():
        task = make(task={"model": {"name": "mnist_cnn"}, "codec": codec}).task
        contribution = training.Contribution(task, 0, 60)
        values = torch.sin(torch.arange(task.values, dtype=torch.float32))
        frame = training.Frame(task.make_codec(0).compress(values, "model"))
        head = training.Update(0, 0, 1, 0, True, 60, 0.0, 0.0)
        asked = training.Command(1, 0, 60, 1, 0.1, 0, zero=False, end=False)
        contribution.add(head, frame.to_bytes(), asked, 0.0)
        assert contribution.sent.payload_bytes == nbytes


def test_rounds_are_federated_averaging(make):
    """Against a loop that knows nothing of codecs and messages."""
    settings = make(rounds=2, subset=40, epochs=2)
    task, data = settings.task, settings.task.data.load()
    weights = training.initial(settings)
    for number in (1, 2):
        asked = training.command(settings, number)
        brought = []
        for client in (0, 1):
            model = task.make_model()
            torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), settings.lr, task.momentum)
            index = training.samples(task, data.train_y, client, asked)
            assert len(index) == 40
            draw = training._generator(asked.seed, f"order {client}")
            for _ in range(2):
                for some in index[torch.randperm(40, generator=draw)].split(16):
                    optimizer.zero_grad()
                    scores = model(data.prepare(data.train_x[some]))
                    torch.nn.functional.cross_entropy(scores, data.train_y[some]).backward()
                    optimizer.step()
            brought.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
        weights = (brought[0] + brought[1]) / 2
    for sends in ("delta", "weights"):
        again = settings.model_copy(update={"task": task.model_copy(update={"sends": sends})})
        torch.testing.assert_close(simulate(again, data)[1], weights, rtol=1e-5, atol=1e-6)


def test_clients_have_other_samples_each_round(make):
    settings = make()
    labels = torch.arange(240) % 10
    rounds = []
    for number in (1, 2):
        asked = training.command(settings, number)
        shares = [training.samples(settings.task, labels, client, asked) for client in (0, 1)]
        assert torch.cat(shares).sort().values.tolist() == list(range(240))
        rounds.append(shares[0])
    assert not torch.equal(*rounds)
    by_label = make(task={"split": {"name": "by_label", "shards_each": 5}}, subset=50)
    for number in (1, 2):
        asked = training.command(by_label, number)
        shares = [training.samples(by_label.task, labels, client, asked) for client in (0, 1)]
        assert [len(labels[share].unique()) for share in shares] == [5, 5]


def test_packets_add_up(make):
    _, whole = simulate(make())
    _, parts = simulate(make(task={"packets": 3}))
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_zero_baseline_keeps_what_was_sent(make):
    sparse = {"codec": {"name": "sparse_fp32"}, "first_baseline": "zero", "clients": 1}
    settings = make(task=sparse, min_clients=1, rounds=1)
    _, weights = simulate(settings)
    assert int((weights != 0).sum()) == settings.task.values // 10
    _, dense = simulate(make(task={"clients": 1}, min_clients=1, rounds=1))
    kept = weights != 0
    torch.testing.assert_close(weights[kept], dense[kept])
    assert dense.abs()[~kept].max() <= weights.abs()[kept].min()


def test_weighted_by_samples(make):
    task = make().task
    brought = {}
    for client, (samples, value) in enumerate([(10, 1.0), (30, 5.0)]):
        brought[client] = training.Contribution(task, 0, 240)
        brought[client].values.fill_(value)
        brought[client].sent = training.Sent(samples, 0, 0, 0, 0)
    start = torch.full((task.values,), 2.0)
    new = training.aggregate(task, start, brought, zero=False)
    torch.testing.assert_close(new, torch.full_like(new, 2 + (10 * 1 + 30 * 5) / 40))


@pytest.mark.parametrize(("subset", "most"), [(0, 240), (40, 40), (1000, 240)])
def test_nobody_trained_on_more_samples_than_there_are(make, subset, most):
    task = make().task
    asked = training.Command(1, 0, subset, 1, 0.1, 0, zero=False, end=False)
    frame = training.Frame(task.make_codec(0).compress(torch.ones(task.values), "model")).to_bytes()
    for samples in (most + 1, 2**32 - 1):
        head = training.Update(0, 0, 1, 0, True, samples, 0.0, 0.0)
        with pytest.raises(ValueError, match=f"{samples} samples, of at most {most}"):
            training.Contribution(task, 0, 240).add(head, frame, asked, 0.0)
    honest = training.Contribution(task, 0, 240)
    honest.add(training.Update(0, 0, 1, 0, True, most, 0.0, 0.0), frame, asked, 0.0)
    assert honest.complete and honest.sent.samples == most


def test_who_has_no_samples_has_no_weight(make, monkeypatch):
    """The round goes on as if it was not there; without any samples at all, nothing changes."""
    settings = make(task={"clients": 3, "packets": 2}, rounds=2)
    deal = training.samples
    empty = {1}

    def samples(task, labels, client, asked):
        return deal(task, labels, client, asked)[: 0 if client in empty else None]

    monkeypatch.setattr(training, "samples", samples)
    rounds, weights = simulate(settings)
    assert [r.sent[1].samples for r in rounds] == [0, 0]
    data, expected = settings.task.data.load(), training.initial(settings)
    participants = [training.Participant(settings.task, client, data) for client in (0, 2)]
    for number in (1, 2):
        asked = training.command(settings, number)
        moved = torch.zeros_like(expected)
        for participant in participants:
            for _, frame in participant.updates(asked, expected):
                moved += settings.task.make_codec(0).decompress(frame.payload) / 2
        expected = expected + moved
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    empty.update((0, 2))
    assert torch.equal(simulate(settings)[1], training.initial(settings))
    from_zero = make(task={"first_baseline": "zero"})
    assert torch.equal(simulate(from_zero)[1], training.initial(from_zero))


def test_error_feedback_is_what_is_asked_again(make):
    """A round that is asked for twice gives the same bytes, whatever the codec remembers."""
    settings = make(task={"codec": {"name": "sparse_int8", "error_feedback": True}})
    data, start = settings.task.data.load(), training.initial(settings)
    participant = training.Participant(settings.task, 0, data)

    def sent(number):
        asked = training.command(settings, number)
        return [frame.to_bytes() for _, frame in participant.updates(asked, start)]

    first, second = sent(1), sent(2)
    assert sent(2) == second
    assert sent(1) == first
    assert sent(2) == second


def test_mutated_messages_are_refused_or_still_messages():
    heads = [
        messages.Announcement(4, 5, "task"),
        messages.Command(1, 5, 60, 1, 0.1, 7, zero=False, end=True),
        messages.Hello(1, 2, 4, "task", "digest"),
        messages.Model(3, "task", 5),
        messages.Posted(3, 5, "key", "digest"),
        messages.Wanted(1, 5, 3),
        messages.Update(0, 5, 1, 0, True, 60, 0.0, 0.0),
    ]
    draw = random.Random(0)
    for head in heads:
        kind, whole = messages.label(head), messages.pack(head, b"body")
        assert messages.unpack(kind, whole) == (head, b"body")
        for _ in range(5000):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 3)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            del data[draw.choice([len(data), draw.randrange(len(data))]) :]
            try:
                found, body = messages.unpack(kind, bytes(data))
            except ValueError:
                continue
            assert messages.pack(found, body) == data


class Wire:
    """Stands for the channel of a controller or client to the other, which the test plays."""

    def __init__(self, participant, topic, member, key, deliver, left, *failed, **limits):
        self.hand, self.gone, self.sent = deliver, left, queue.Queue()
        self.other = int(topic.rsplit("_", 1)[1]) + 1 if member == 0 else 0
        self.last, self.lingered_s, self.takes = -1, None, threading.Event()
        self.takes.set()
        self.full = False

    def send(self, payload, label, timeout_s):
        self.takes.wait(WAIT_S)
        if self.full:
            raise TimeoutError("nothing went out, held up by member 1")
        self.sent.put((label, bytes(payload)))

    def members(self):
        return {self.other}

    def close(self, linger_s):
        self.lingered_s = linger_s
        self.takes.set()

    def say(self, head, body=b""):
        self.last += 1
        what = messages.label(head), messages.pack(head, body)
        self.hand(Delivery(self.other, 1, self.last, *what, 0))
        return what

    def hear(self, *labels):
        """The heads of what comes next, which should be this."""
        came = [self.sent.get(timeout=WAIT_S) for _ in labels]
        assert [label for label, _ in came] == list(labels)
        return [messages.unpack(*one)[0] for one in came]


@pytest.fixture
def start(monkeypatch):
    """A controller without a network: its wires, one a client, and what its thread ends with."""

    def start(settings):
        wires = queue.Queue()

        def channel(*arguments, **limits):
            wire = Wire(*arguments, **limits)
            wires.put(wire)
            return wire

        monkeypatch.setattr(controller, "Channel", channel)
        monkeypatch.setattr(controller, "Board", federated_peers.Board)
        monkeypatch.setattr(controller, "connect", lambda domain, network: None)
        pool = ThreadPoolExecutor(1)
        ends = pool.submit(controller.run, settings)
        pool.shutdown(wait=False)
        return *(wires.get(timeout=WAIT_S) for _ in range(settings.task.clients)), ends

    return start


@pytest.fixture
def join(make, monkeypatch):
    """A client without a network: its wire, whose other end the test plays."""
    monkeypatch.setattr(client_module, "Channel", Wire)
    monkeypatch.setattr(client_module, "Reading", federated_peers.Reading)

    def join(settings, data, **own):
        its = client_settings(settings, 0, **own)
        one = Client(its, training.Participant(settings.task, 0, data), None)
        pool = ThreadPoolExecutor(1)
        ends = pool.submit(one.serve)
        pool.shutdown(wait=False)
        return one, one.channel, ends

    return join


def test_what_was_recorded_of_a_controller_is_nothing_to_a_restarted_client(make, join):
    """Its model and its command; what answers the client's own greeting counts, be it older."""
    settings = make(task={"clients": 1}, min_clients=1)
    task, data = settings.task, settings.task.data.load()
    start = training.initial(settings)

    def model(number, hello):
        return checkpoint.message(number, task, start + number, hello)

    first, wire, ends = join(settings, data)
    [hello] = wire.hear("hello")
    recorded = [wire.say(*model(2, hello.hello))]
    recorded.append(wire.say(training.command(settings, 3, hello.hello)))
    [update] = wire.hear("update")
    assert update.round == 3 and first.round == 2
    wire.say(messages.Command(3, hello.hello, 0, 0, 0.0, 0, zero=False, end=True))
    ends.result(WAIT_S)

    again, wire, ends = join(settings, data)
    [anew] = wire.hear("hello")
    assert anew.hello != hello.hello
    for number, (label, payload) in enumerate(recorded):
        wire.hand(Delivery(0, 1, number, label, payload, 0))
    wire.say(*model(1, anew.hello))
    wire.say(training.command(settings, 2, anew.hello))
    [update] = wire.hear("update")
    assert (update.round, again.round) == (2, 1)
    assert torch.equal(again.weights, start + 1)
    wire.say(messages.Command(2, anew.hello, 0, 0, 0.0, 0, zero=False, end=True))
    ends.result(WAIT_S)
    assert wire.sent.empty()


def test_who_leaves_is_looked_at(make, start, join):
    """Some other member of the topic that leaves is not the client, nor the controller."""
    settings = make(task={"clients": 1}, min_clients=1, rounds=1)
    task, data = settings.task, settings.task.data.load()
    wire, ends = start(settings)
    [announced] = wire.hear("announcement")
    has = checkpoint.digest(0, training.initial(settings))
    wire.say(messages.Hello(0, 7, announced.session, task.fingerprint, has))
    [asked] = wire.hear("command")
    wire.gone(5)
    participant = training.Participant(task, 0, data)
    [(head, frame)] = participant.updates(asked, training.initial(settings))
    wire.say(head, frame.to_bytes())
    wire.hear("model", "command")  # and no announcement before
    ends.result(WAIT_S)

    _, wire, ends = join(settings, data)
    [hello] = wire.hear("hello")
    wire.gone(5)
    wire.gone(0)
    [again] = wire.hear("hello")
    assert again.hello != hello.hello
    wire.say(messages.Command(0, again.hello, 0, 0, 0.0, 0, zero=False, end=True))
    ends.result(WAIT_S)
    assert wire.sent.empty()


def test_who_greets_once_more_is_told_of_the_end_once_more(make, start):
    """A client that starts anew while the controller tells the others that there is no more."""
    settings = make(task={"clients": 2}, min_clients=1, rounds=1, wait_s=0.5)
    task, data = settings.task, settings.task.data.load()
    one, two, ends = start(settings)
    [announced] = one.hear("announcement")
    two.hear("announcement")  # and does not greet, so that the controller waits for it at the end
    weights = training.initial(settings)
    has = checkpoint.digest(0, weights)
    one.say(messages.Hello(0, 7, announced.session, task.fingerprint, has))
    [asked] = one.hear("command")
    [(head, frame)] = training.Participant(task, 0, data).updates(asked, weights)
    one.say(head, frame.to_bytes())
    _, end = one.hear("model", "command")
    assert (end.end, end.hello) == (True, 7)
    one.say(messages.Hello(0, 8, announced.session, task.fingerprint, ""))
    model, end = one.hear("model", "command")
    assert (end.end, end.hello, model.hello) == (True, 8, 8)
    ends.result(WAIT_S)


def test_end_waits_for_a_slow_link(make, start):
    """Longer than a lease, and then for what is on its way; not for who is not there."""
    settings = make(task={"clients": 2}, min_clients=1, rounds=1, lease_s=0.1, wait_s=0.5)
    task, weights = settings.task, training.initial(settings)
    absent, slow, ends = start(settings)
    [announced] = slow.hear("announcement")
    absent.hear("announcement")
    absent.takes.clear()
    absent.say(messages.Hello(0, 7, 0, task.fingerprint, ""))  # whose answer it never takes
    has = checkpoint.digest(0, weights)
    slow.say(messages.Hello(1, 7, announced.session, task.fingerprint, has))
    [asked] = slow.hear("command")
    slow.takes.clear()
    participant = training.Participant(task, 1, settings.task.data.load())
    [(head, frame)] = participant.updates(asked, weights)
    slow.say(head, frame.to_bytes())
    with pytest.raises(TimeoutError):
        ends.result(2.0)
    slow.takes.set()
    _, end = slow.hear("model", "command")
    assert end.end
    ends.result(WAIT_S)
    assert (slow.lingered_s, absent.lingered_s) == (settings.wait_s, 0.0)


def test_rubbish_of_who_is_needed_has_a_bound(make, start):
    """It is asked a few times, and then not before others have ended the round."""
    settings = make(task={"clients": 3}, min_clients=2, rounds=1)
    task, data = settings.task, settings.task.data.load()
    weights = training.initial(settings)
    *wires, ends = start(settings)
    honest, rude, _ = wires
    session = [wire.hear("announcement") for wire in wires][0][0].session

    def greet(client, hello):
        has = checkpoint.digest(0, weights)
        wires[client].say(messages.Hello(client, hello, session, task.fingerprint, has))

    def answer(client):
        [asked] = wires[client].hear("command")
        [(head, frame)] = training.Participant(task, client, data).updates(asked, weights)
        wires[client].say(head, frame.to_bytes())

    for client in range(3):
        greet(client, 1)
    wires[2].hear("command")
    wires[2].gone(3)
    wires[2].hear("announcement")
    for _ in range(controller.TRIES):
        rude.hear("command")
        rude.last += 1
        rude.hand(Delivery(2, 1, rude.last, "update", bytes(9), 0))
    greet(1, 2)
    answer(0)
    with pytest.raises(queue.Empty):
        rude.sent.get(timeout=0.5)
    greet(2, 2)
    answer(2)
    [announced] = rude.hear("announcement")
    assert announced.hello == 2
    greet(1, 3)
    _, end = rude.hear("model", "command")
    assert end.end
    ends.result(WAIT_S)
    [done] = read_log(settings.log)
    assert sorted(done.sent) == [0, 2]
    assert len(done.refused) == controller.TRIES


def test_what_was_recorded_of_one_controller_is_nothing_to_the_next(make, start, capfd):
    """Recorded greetings get an announcement for an answer, and nobody is waited for."""
    settings = make(task={"clients": 1}, min_clients=1, rounds=1)
    task, data = settings.task, settings.task.data.load()
    participant = training.Participant(task, 0, data)
    wire, ends = start(settings)
    [announced] = wire.hear("announcement")
    recorded = [wire.say(messages.Hello(0, 7, 0, task.fingerprint, ""))]
    [again] = wire.hear("announcement")
    assert (again.session, again.hello) == (announced.session, 7)
    recorded.append(wire.say(messages.Hello(0, 8, announced.session, task.fingerprint, "")))
    _, asked = wire.hear("model", "command")
    assert (asked.round, asked.hello) == (1, 8)
    [(head, frame)] = participant.updates(asked, training.initial(settings))
    recorded.append(wire.say(head, frame.to_bytes()))
    _, end = wire.hear("model", "command")
    assert end.end
    learned = ends.result(WAIT_S)
    assert capfd.readouterr().err.count("client 0 is here") == 1

    wire, ends = start(settings.model_copy(update={"rounds": 2, "wait_s": 0.5}))
    [restarted] = wire.hear("announcement")
    assert restarted.session != announced.session
    for number, (label, payload) in enumerate(recorded):
        wire.hand(Delivery(1, 1, number, label, payload, 0))
    with pytest.raises(ConnectionError, match="0 clients for 0.5 s, needs 1; missing: 0"):
        ends.result(WAIT_S)
    assert "client 0 is here" not in (said := capfd.readouterr().err)
    assert "update of round 1, not asked for (now)" in said
    assert [head.hello for head in wire.hear("announcement", "announcement")] == [7, 8]
    assert wire.sent.empty()
    assert torch.equal(checkpoint.load(settings.state, task)[1], learned)


@pytest.mark.parametrize("left", ["nothing", "torn", "all"])
def test_log_of_a_controller_killed_after_it_saved(make, start, left):
    """The round that it saved is in the log, once, and what comes is no part of a torn line."""
    settings = make(task={"clients": 1}, min_clients=1, rounds=2)
    expected, weights = simulate(settings)
    data = settings.task.data.load()
    _, before = simulate(settings.model_copy(update={"rounds": 1}), data)
    checkpoint.save(settings.state, messages.pack(*checkpoint.message(1, settings.task, before)))
    line = json.dumps(dataclasses.asdict(expected[0])) + "\n"
    settings.log.write_text({"nothing": "", "torn": line[:-9], "all": line}[left])
    wire, ends = start(settings)
    [announced] = wire.hear("announcement")
    whose = (announced.session, settings.task.fingerprint, checkpoint.digest(1, before))
    wire.say(messages.Hello(0, 7, *whose))
    [asked] = wire.hear("command")
    [(head, frame)] = training.Participant(settings.task, 0, data).updates(asked, before)
    wire.say(head, frame.to_bytes())
    assert torch.equal(ends.result(WAIT_S), weights)
    rounds = read_log(settings.log)
    assert [r.number for r in rounds] == [1, 2] and settings.log.read_text().count("\n") == 2
    assert [r.accuracy for r in rounds] == [r.accuracy for r in expected]
    assert same_bytes(rounds[left != "all" :], expected[left != "all" :])
    assert (rounds[0].sent == {}) == (left != "all")


def test_who_has_the_model_is_not_sent_it(make, start):
    settings = make(task={"clients": 1}, min_clients=1, rounds=1, wait_s=0.5)
    wire, ends = start(settings)
    [announced] = wire.hear("announcement")
    has = checkpoint.digest(0, training.initial(settings))
    greeting = (announced.session, settings.task.fingerprint)
    wire.say(messages.Hello(0, 1, *greeting, has))
    wire.hear("command")
    wire.say(messages.Hello(0, 2, *greeting, checkpoint.digest(1, training.initial(settings))))
    [_, asked] = wire.hear("model", "command")
    assert asked.hello == 2
    data = settings.task.data.load()
    [(head, frame)] = training.Participant(settings.task, 0, data).updates(
        asked, training.initial(settings)
    )
    wire.say(head, frame.to_bytes())
    ends.result(WAIT_S)


def joined(wire, settings, hello=7):
    """Greet as a client that has the initial model; what it is asked."""
    [announced] = wire.hear("announcement")
    has = checkpoint.digest(0, training.initial(settings))
    task = settings.task.fingerprint
    wire.say(messages.Hello(0, hello, announced.session, task, has))
    [asked] = wire.hear("command")
    return asked


def answer(wire, settings, asked, start=None):
    participant = training.Participant(settings.task, 0, settings.task.data.load())
    start = training.initial(settings) if start is None else start
    [(head, frame)] = participant.updates(asked, start)
    wire.say(head, frame.to_bytes())


def test_who_misses_what_is_posted_is_sent_it_once(make, start):
    settings = make(task={"clients": 1}, min_clients=1, rounds=2, wait_s=0.5)
    wire, ends = start(settings)
    answer(wire, settings, joined(wire, settings))
    posted, asked = wire.hear("posted", "command")
    assert (posted.round, posted.hello) == (1, 7)
    wire.say(messages.Wanted(0, 6, 1))  # of an earlier process
    wire.say(messages.Wanted(0, 7, 0))  # of a round before
    wire.say(messages.Wanted(0, 7, 1))
    label, message = wire.sent.get(timeout=WAIT_S)
    assert label == "model" and messages.unpack(label, message)[0].hello == 7
    number, weights = checkpoint.decode(message, settings.task)
    assert number == 1
    wire.say(messages.Wanted(0, 7, 1))
    [again] = wire.hear("command")  # for that it is refused, and is needed
    answer(wire, settings, again, weights)
    model, end = wire.hear("model", "command")  # the last goes out with the end behind it
    assert (model.round, end.end) == (2, True)
    ends.result(WAIT_S)
    assert read_log(settings.log)[1].refused == ("client 0: asks more than once for a model",)
    assert torch.equal(checkpoint.load(settings.state, settings.task)[1], simulate(settings)[1])


def test_who_takes_nothing_is_named(make, start):
    settings = make(task={"clients": 1}, min_clients=1, rounds=2, wait_s=0.5)
    wire, ends = start(settings)
    asked = joined(wire, settings)
    wire.full = True
    answer(wire, settings, asked)
    with pytest.raises(ConnectionError, match=r"missing: 0 \(counts as gone: .*by member 1"):
        ends.result(WAIT_S)


def test_a_client_reads_the_board_and_asks_for_what_is_not_there(make, join):
    """As soon as nothing new of it comes, whatever else does."""
    settings = make(task={"clients": 1}, min_clients=1, lease_s=1.0)
    task, data = settings.task, settings.task.data.load()
    weights = training.initial(settings)
    one, wire, ends = join(settings, data)
    [hello] = wire.hear("hello")
    poster = federated_peers.Board(None, 0)

    def ask(number):
        wire.say(training.command(settings, number + 1, hello.hello))

    def post(number):
        head, body = checkpoint.message(number, task, weights + number)
        posted = poster.post(number, messages.pack(head, body))
        wire.say(dataclasses.replace(posted, hello=hello.hello))
        return poster.messages[number]

    one.board.put(1, 1, post(1))
    ask(1)
    [update] = wire.hear("update")
    assert update.round == 2 and torch.equal(one.weights, weights + 1)
    post(2)
    ask(2)
    for parts in (1, 1, 1, 2, 2, 2):
        time.sleep(0.2)
        one.board.put(2, parts, None)
    assert wire.sent.empty()  # the second part came in time
    [wanted] = wire.hear("wanted")
    assert (wanted.client, wanted.hello, wanted.round) == (0, hello.hello, 2)
    one.board.put(2, 3, None)
    time.sleep(1.2)
    assert wire.sent.empty()
    wire.say(*checkpoint.message(2, task, weights - 2, hello.hello))
    [update] = wire.hear("update")
    assert update.round == 3 and torch.equal(one.weights, weights - 2)
    wire.say(messages.Command(3, hello.hello, 0, 0, 0.0, 0, zero=False, end=True))
    ends.result(WAIT_S)
    assert wire.sent.empty()


def test_model_is_kept_before_its_name_is(make, tmp_path, monkeypatch):
    """Its bytes, then its name, and then the folder that keeps the name."""
    done = []
    replace, fsync = os.replace, os.fsync

    def note(what, do, *arguments):
        done.append(what)
        return do(*arguments)

    monkeypatch.setattr(os, "replace", lambda *names: note("replace", replace, *names))
    monkeypatch.setattr(
        os, "fsync", lambda file: note(Path(f"/dev/fd/{file}").resolve(), fsync, file)
    )
    checkpoint.save(tmp_path / "model", b"model")
    assert done == [tmp_path / ".model.part", "replace", tmp_path]
    digest = blake2b(b"model", digest_size=16).digest()
    assert (tmp_path / "model").read_bytes() == b"model" + digest


# With processes -----------------------------------------------------------------------------------


def test_live_is_what_is_simulated(make, tmp_path):
    codec = {"name": "sparse_int8", "error_feedback": True}
    task = {"codec": codec, "first_baseline": "zero", "packets": 2}
    settings = make(task=task, keys=identities(tmp_path / "keys"))
    rounds, weights = run_live(settings, WAIT_S)
    expected, simulated = simulate(settings)
    assert torch.equal(weights, simulated)
    assert [r.accuracy for r in rounds] == [r.accuracy for r in expected]
    assert same_bytes(rounds, expected)
    for done in rounds:
        assert done.refused == ()
        for sent in done.sent.values():
            assert 0 < sent.communication_s < done.round_s
            assert 0 < sent.train_s < done.round_s


FORMATS = {
    0: {"name": "identity"},
    1: {"name": "int8_blocks", "chunk": 64},
    2: {"name": "sparse_fp32", "ratio": 0.1},
    3: {"name": "sparse_int8", "ratio": 0.1, "chunk": 64},
}


def test_a_round_has_packets_of_several_formats(make, tmp_path):
    codec, *others = FORMATS.values()
    mixed = {"clients": 4, "codec": codec, "codecs": dict(enumerate(others, 1))}
    settings = make(task=mixed, min_clients=4, rounds=2, keys=identities(tmp_path / "keys", 4))
    rounds, weights = run_live(settings, WAIT_S)
    expected, simulated = simulate(settings)
    assert torch.equal(weights, simulated) and same_bytes(rounds, expected)
    for client, codec in FORMATS.items():
        (alone, _), _ = simulate(make(task={"clients": 4, "codec": codec}, rounds=2))
        sent, same = rounds[0].sent[client], alone.sent[client]
        assert sent.payload_bytes == same.payload_bytes  # what its own format takes
    assert len({sent.payload_bytes for sent in rounds[0].sent.values()}) == 4


def test_the_new_model_is_the_mean_of_what_each_format_says(make):
    codec, *others = FORMATS.values()
    mixed = {"clients": 4, "codec": codec, "codecs": dict(enumerate(others, 1))}
    settings = make(task=mixed, rounds=1)
    asked, start = training.command(settings, 1), training.initial(settings)
    data, moved = settings.task.data.load(), torch.zeros(settings.task.values)
    for client, one in FORMATS.items():
        alone = make(task={"clients": 4, "codec": one}).task
        ((head, frame),) = training.Participant(alone, client, data).updates(asked, start)
        part = alone.codec
        moved += compression.load(part.name, **part.parameters).decompress(frame.payload) / 4
        # Another client's format is refused, and says whose.
        other = training.Contribution(settings.task, (client + 1) % 4, 240)
        with pytest.raises(ValueError, match=f"^{part.name} of shape"):
            other.add(head, frame.to_bytes(), asked, 0.0)
    torch.testing.assert_close(simulate(settings)[1], start + moved, rtol=1e-5, atol=1e-6)


def serve_until_closed(client):
    """What a test that is over has closed, or left without a controller, ends silently."""
    with suppress(ConnectionError):
        client.serve()


def serve(settings, stack, scripts, kind=Client):
    """Clients on threads of this process, one a script; the last is of this ``kind``."""
    entered, data = connect(settings.domain, settings.network), settings.task.data.load()
    scripts = scripts if isinstance(scripts, dict) else dict(enumerate(scripts))
    for client, script in scripts.items():
        participant = training.Participant(settings.task, client, data, script)
        make_client = kind if client == max(scripts) else Client
        one = make_client(client_settings(settings, client), participant, entered)
        stack.callback(one.close)
        threading.Thread(target=serve_until_closed, args=(one,), daemon=True).start()


def test_five_clients(make, tmp_path):
    task = {"clients": 5, "split": {"name": "dirichlet"}, "codec": {"name": "sparse_fp32"}}
    settings = make(task=task, min_clients=5)
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd] * 5)
        assert serving.wait(WAIT_S) == 0
    expected, simulated = simulate(settings)
    assert torch.equal(checkpoint.load(settings.state, settings.task)[1], simulated)
    rounds = read_log(settings.log)
    assert [sorted(r.sent) for r in rounds] == [[0, 1, 2, 3, 4]] * 3
    assert same_bytes(rounds, expected)


def test_client_that_takes_nothing(make, tmp_path, monkeypatch):
    """The rounds go on without it, it counts as gone, and takes part again when it hears again."""
    settings = make(min_clients=1, timeout_s=1.0, wait_s=3.0, late_s=3.0, rounds=12)
    monkeypatch.setattr(domain, "UNREAD", 1)
    hears, gate, said = threading.Event(), tmp_path / "gate", tmp_path / "controller.txt"
    with ExitStack() as stack:
        other = client_settings(settings, 0, script="federated_peers:gated_later")
        stack.enter_context(process(other, tmp_path, gate=gate))
        serve(settings, stack, {1: training.sgd}, partial(federated_peers.Deaf, hears=hears))
        until((tmp_path / "client 0.txt").read_text, "client 0")
        serving = stack.enter_context(process(settings, tmp_path))
        until(lambda: "client 1 counts as gone" in said.read_text(), "client 1 gone")
        until(lambda: list(tmp_path.glob("half-*")), "round 8, in which client 0 waits")
        hears.set()
        until(lambda: said.read_text().count("client 1 is here") == 2, "client 1")
        gate.touch()
        assert serving.wait(WAIT_S) == 0
    took_part = [sorted(r.sent) for r in read_log(settings.log)]
    assert took_part[0] == [0, 1]
    assert took_part[1:7] == [[0]] * 6
    assert took_part[-1] == [0, 1]


def test_controller_killed_and_restarted(make, tmp_path):
    """Killed while its clients are half way through round 2; nothing is lost."""
    codec = {"name": "sparse_fp32", "error_feedback": True}
    settings = make(task={"codec": codec, "first_baseline": "zero"}, rounds=4)
    reached, go = threading.Semaphore(0), threading.Event()
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(2, go, reached) for _ in range(2)])
        assert reached.acquire(timeout=WAIT_S) and reached.acquire(timeout=WAIT_S)
        serving.kill()
        serving.wait()
        assert checkpoint.load(settings.state, settings.task)[0] == 1
        again = stack.enter_context(process(settings, tmp_path))
        go.set()
        assert again.wait(WAIT_S) == 0
    expected, simulated = simulate(settings)
    done, weights = checkpoint.load(settings.state, settings.task)
    assert done == 4
    assert torch.equal(weights, simulated)
    rounds = read_log(settings.log)
    assert [r.accuracy for r in rounds] == [r.accuracy for r in expected]
    assert same_bytes(rounds, expected)


def test_client_killed_in_mid_round_and_back(make, tmp_path):
    """Round 2 completes without it; it comes back with the latest weights on disk."""
    settings = make(task={"clients": 3}, rounds=4)
    latest, go = tmp_path / "latest", threading.Event()
    with ExitStack() as stack:

        def start(**own):
            its = client_settings(settings, 2, **own)
            return stack.enter_context(process(its, tmp_path, gate=tmp_path / "gate"))

        gated = start(script="federated_peers:gated", model_path=str(latest))
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(3, go) for _ in range(2)])
        until(lambda: list(tmp_path.glob("half-*")), "round 2")
        assert checkpoint.load(latest, settings.task)[0] == 1
        gated.kill()
        said = tmp_path / "controller.txt"
        until(lambda: "round 2:" in said.read_text(), "end of round 2")
        back = start(model_path=str(latest), init_path=str(latest))
        until(lambda: said.read_text().count("client 2 is here") == 2, "client 2")
        go.set()
        assert serving.wait(WAIT_S) == 0
        assert back.wait(WAIT_S) == 0
    took_part = [sorted(r.sent) for r in read_log(settings.log)]
    assert took_part == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert checkpoint.load(latest, settings.task)[0] == 4


RUBBISH = {
    federated_peers.noise: "update: head of 50462976 bytes",
    federated_peers.damaged: "digest does not match",
    federated_peers.endless: "10912 of 10912 values are NaN or infinite",
    federated_peers.wrong_size: "shape (10,), needs identity of",
    federated_peers.heavy: "4294967295 samples, of at most 120",
    federated_peers.impostor: "update that is not of this client",
}


def test_rubbish_is_refused_and_the_round_goes_on(make, tmp_path):
    """Each sort in a round of its own; in the round after, the client takes part again."""
    numbers = range(2, 2 * len(RUBBISH) + 1, 2)
    settings = make(min_clients=1, subset=None, rounds=numbers[-1] + 1)
    rubbish = dict(zip(numbers, RUBBISH, strict=True))
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd] * 2, partial(federated_peers.Rude, rubbish=rubbish))
        assert serving.wait(WAIT_S) == 0
    for done in read_log(settings.log):
        if done.number in rubbish:
            assert sorted(done.sent) == [0]
            [refused] = done.refused
            assert refused.startswith("client 1: ") and RUBBISH[rubbish[done.number]] in refused
        else:
            assert sorted(done.sent) == [0, 1]
            assert done.refused == ()


def test_what_was_not_asked_for_and_asking_again(make, tmp_path):
    """Rubbish of who is needed is asked for once more; an old round changes nothing."""
    settings = make(min_clients=2, rounds=4)
    rubbish = {2: federated_peers.damaged, 3: federated_peers.stale}
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd] * 2, partial(federated_peers.Rude, rubbish=rubbish))
        assert serving.wait(WAIT_S) == 0
    assert torch.equal(checkpoint.load(settings.state, settings.task)[1], simulate(settings)[1])
    rounds = read_log(settings.log)
    assert [len(r.refused) for r in rounds] == [0, 1, 1, 0]
    assert "client 1: frame: digest" in rounds[1].refused[0]
    assert rounds[2].refused == ("client 1: update of round 2, not asked for (now)",)


def test_late_client_misses_its_round(make, tmp_path):
    """Round 2 is held so that the late update of round 1 finds one to be late for."""
    settings = make(min_clients=1, timeout_s=2.0, rounds=3)
    late, second = threading.Event(), threading.Event()
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(2, second), federated_peers.held(1, late)])
        said = tmp_path / "controller.txt"
        until(lambda: "round 1:" in said.read_text(), "round 1")
        late.set()
        time.sleep(1.0)
        second.set()
        assert serving.wait(WAIT_S) == 0
    rounds = read_log(settings.log)
    assert [sorted(r.sent) for r in rounds] == [[0], [0], [0, 1]]
    assert rounds[0].round_s >= 2.0


def test_a_time_out_of_0_waits_for_the_fewest(make, tmp_path):
    """As the document's controller does, whoever else is still asked."""
    settings = make(min_clients=1, timeout_s=0.0, rounds=1)
    late = threading.Event()
    with ExitStack() as stack:
        serving = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd, federated_peers.held(1, late)])
        said = tmp_path / "controller.txt"
        until(lambda: "round 1:" in said.read_text(), "round 1")
        late.set()
        assert serving.wait(WAIT_S) == 0
    assert [sorted(r.sent) for r in read_log(settings.log)] == [[0]]


def test_strangers_and_other_tasks(make, tmp_path):
    """A client of another list is not heard; one with another task is told."""
    ours, theirs = (identities(tmp_path / name) for name in ("ours", "theirs"))
    settings = make(keys=ours, wait_s=30.0, min_clients=1)
    data = settings.task.data.load()
    with ExitStack() as stack:
        stack.enter_context(process(settings, tmp_path))
        entered = connect(settings.domain, settings.network)

        def one(client, task, keys):
            its = client_settings(settings, client)
            its = its.model_copy(update={"task": task, "keys": Path(keys), "lease_s": 0.1})
            made = Client(its, training.Participant(task, client, data), entered)
            stack.callback(made.close)
            return made

        stranger = one(0, settings.task, theirs)
        threading.Thread(target=serve_until_closed, args=(stranger,), daemon=True).start()
        other = one(1, settings.task.model_copy(update={"batch": 8}), ours)
        with pytest.raises(ValueError, match="task is another one"):
            other.serve()
        until(lambda: stranger.channel._writers, "the controller")
        assert set(stranger.channel._writers.values()) == {None} and stranger.hello == 0
    said = (tmp_path / "controller.txt").read_text()
    assert "is here" not in said


def test_a_run_may_last_but_not_be_silent(make, monkeypatch, tmp_path):
    """As long as rounds end it goes on, for longer than the time-out; then that counts."""
    rounds, timeout_s = 4, 0.8
    settings = make(task={"clients": 1}, min_clients=1)
    start = time.monotonic()

    class Slow:
        def poll(self):
            done = settings.log.read_text().count("\n") if settings.log.exists() else 0
            if done < rounds and time.monotonic() - start > timeout_s / 2 * (done + 1):
                settings.log.write_text("{}\n" * (done + 1))

    @contextmanager
    def process(its, folder):
        for role in ("controller", "client 0"):
            (folder / f"{role}.txt").write_text("busy")
        yield Slow()

    monkeypatch.setattr(live, "process", process)
    with pytest.raises(Failed, match="controller is not done, and no round ends: busy"):
        run_live(settings, timeout_s)
    assert settings.log.read_text() == "{}\n" * rounds
    assert time.monotonic() - start > timeout_s / 2 * rounds + timeout_s


def test_failure_of_a_client_is_told(make, monkeypatch):
    monkeypatch.setattr(live, "process", process)
    settings = make(task={"clients": 1}, min_clients=1, lr=1e30)
    with pytest.raises(Failed, match=r"client 0 ended with status 1: [\s\S]*lower lr"):
        run_live(settings, WAIT_S)


def test_commands_end_with_who_started_them(make, tmp_path):
    """A launcher that is killed cannot clean up; the controller that it started ends by itself."""
    launcher = federated_peers.SERVER.Process(
        target=federated_peers.launch, args=(make(), tmp_path)
    )
    launcher.start()
    number, said = tmp_path / "number", tmp_path / "controller.txt"
    until(
        lambda: number.exists() and said.exists() and "round 0 of" in said.read_text(),
        "a controller",
    )
    assert Path("/proc", number.read_text(), "comm").read_text() == "controller\n"
    entry = Path("/proc", number.read_text(), "cmdline")
    launcher.kill()
    launcher.join()
    until(lambda: not entry.exists() or not entry.read_bytes(), "the end of the controller")


def test_run_without_identities_says_so(make, tmp_path, capfd, monkeypatch):
    """One line at the start; none where there are some."""
    monkeypatch.delenv("SLOWLINK_KEYS", raising=False)
    monkeypatch.setattr(controller, "run", lambda settings: None)
    for keys, lines in ((None, 1), (str(tmp_path), 0)):
        (tmp_path / "file").write_text(make(keys=keys).model_dump_json())
        assert commands.main(["controller", str(tmp_path / "file")]) == 0
        said = capfd.readouterr().err
        assert said.count("\n") == said.count("keys: none are set") == lines
