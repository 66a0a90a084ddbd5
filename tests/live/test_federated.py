"""Federated training by real processes, which are killed, late and rude; and by none."""

import json
import random
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import federated_peers  # noqa: E402

from testbed.live.dds import connect
from testbed.live.dds.federated import Failed, messages, run_live, simulate, store, training
from testbed.live.dds.federated.client import Client
from testbed.live.dds.federated.controller import read_log
from testbed.live.dds.federated.live import SHARED, process
from testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, parse

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
            domain=random.SystemRandom().randrange(1, 233),
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
    shared = {name: getattr(settings, name) for name in SHARED}
    return ClientSettings(client=client, **shared, **values)


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
        contribution = training.Contribution(task)
        values = torch.sin(torch.arange(task.values, dtype=torch.float32))
        frame = training.Frame(task.make_codec().compress(values, "model"))
        head = training.Update(0, 0, 1, 0, True, 60, 0.0, 0.0)
        asked = training.Command(1, [0], [0], 60, 1, 0.1, 0, zero=False, end=False)
        contribution.add(head, frame.to_bytes(), asked, 0.0)
        assert contribution.sent.payload_bytes == nbytes


def test_rounds_are_federated_averaging(make):
    """Against a loop that knows nothing of codecs and messages."""
    settings = make(rounds=2, subset=40, epochs=2)
    task, data = settings.task, settings.task.data.load()
    weights = training.initial(settings)
    for number in (1, 2):
        asked = training.command(settings, number, {0: 0, 1: 0})
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
        asked = training.command(settings, number, {})
        shares = [training.samples(settings.task, labels, client, asked) for client in (0, 1)]
        assert torch.cat(shares).sort().values.tolist() == list(range(240))
        rounds.append(shares[0])
    assert not torch.equal(*rounds)
    by_label = make(task={"split": {"name": "by_label", "shards_each": 5}}, subset=50)
    for number in (1, 2):
        asked = training.command(by_label, number, {})
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
        brought[client] = training.Contribution(task)
        brought[client].values.fill_(value)
        brought[client].sent = training.Sent(samples, 0, 0, 0, 0)
    start = torch.full((task.values,), 2.0)
    new = training.aggregate(task, start, brought, zero=False)
    torch.testing.assert_close(new, torch.full_like(new, 2 + (10 * 1 + 30 * 5) / 40))


def test_error_feedback_is_what_is_asked_again(make):
    """A round that is asked for twice gives the same bytes, whatever the codec remembers."""
    settings = make(task={"codec": {"name": "sparse_int8", "error_feedback": True}})
    data, start = settings.task.data.load(), training.initial(settings)
    participant = training.Participant(settings.task, 0, data)

    def sent(number):
        asked = training.command(settings, number, {0: 0})
        return [frame.to_bytes() for _, frame in participant.updates(asked, start)]

    first, second = sent(1), sent(2)
    assert sent(2) == second
    assert sent(1) == first
    assert sent(2) == second


def test_mutated_messages_are_refused_or_still_messages():
    command = training.Command(1, [0, 1], [5, 6], 60, 1, 0.1, 7, zero=False, end=True)
    update = training.Update(0, 5, 1, 0, True, 60, 0.0, 0.0)
    draw = random.Random(0)
    for head in (command, update, messages.Hello(1, 2, "task"), messages.Model(3, "task")):
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


# With processes -----------------------------------------------------------------------------------


def test_live_is_what_is_simulated(make, tmp_path):
    (tmp_path / "secret").write_bytes(b"of at least 16 bytes")
    codec = {"name": "sparse_int8", "error_feedback": True}
    task = {"codec": codec, "first_baseline": "zero", "packets": 2}
    settings = make(task=task, secret_file=str(tmp_path / "secret"))
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


def serve(settings, stack, scripts, kind=Client):
    """Clients on threads of this process, one a script, the last of this ``kind``."""
    entered, data = connect(settings.domain, settings.network), settings.task.data.load()
    for client, script in enumerate(scripts):
        participant = training.Participant(settings.task, client, data, script)
        make_client = kind if client == len(scripts) - 1 else Client
        one = make_client(client_settings(settings, client), participant, entered)
        stack.callback(one.close)
        threading.Thread(target=one.serve, daemon=True).start()


def test_controller_killed_and_restarted(make, tmp_path):
    """Killed while its clients are half way through round 2; nothing is lost."""
    codec = {"name": "sparse_fp32", "error_feedback": True}
    settings = make(task={"codec": codec, "first_baseline": "zero"}, rounds=4)
    reached, go = threading.Semaphore(0), threading.Event()
    with ExitStack() as stack:
        controller = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(2, go, reached) for _ in range(2)])
        assert reached.acquire(timeout=WAIT_S) and reached.acquire(timeout=WAIT_S)
        controller.kill()
        controller.wait()
        assert store.load(settings.state, settings.task)[0] == 1
        again = stack.enter_context(process(settings, tmp_path))
        go.set()
        assert again.wait(WAIT_S) == 0
    expected, simulated = simulate(settings)
    done, weights = store.load(settings.state, settings.task)
    assert done == 4
    assert torch.equal(weights, simulated)
    rounds = read_log(settings.log)
    assert [r.accuracy for r in rounds] == [r.accuracy for r in expected]
    assert same_bytes(rounds, expected)


def test_client_killed_in_mid_round_and_back(make, tmp_path, monkeypatch):
    """Round 2 completes without it; it comes back with the latest weights on disk."""
    monkeypatch.setenv(federated_peers.GATE, str(tmp_path / "gate"))
    settings = make(task={"clients": 3}, rounds=4)
    latest, go = tmp_path / "latest", threading.Event()
    with ExitStack() as stack:

        def start(**own):
            return stack.enter_context(process(client_settings(settings, 2, **own), tmp_path))

        gated = start(script="federated_peers:gated", model_path=str(latest))
        controller = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(3, go) for _ in range(2)])
        until(lambda: list(tmp_path.glob("half-*")), "round 2")
        assert store.load(latest, settings.task)[0] == 1
        gated.kill()
        said = tmp_path / "controller.txt"
        until(lambda: "round 2:" in said.read_text(), "end of round 2")
        back = start(model_path=str(latest), init_path=str(latest))
        until(lambda: said.read_text().count("client 2 is here") == 2, "client 2")
        go.set()
        assert controller.wait(WAIT_S) == 0
        assert back.wait(WAIT_S) == 0
    took_part = [sorted(r.sent) for r in read_log(settings.log)]
    assert took_part == [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert store.load(latest, settings.task)[0] == 4


RUBBISH = {
    federated_peers.noise: "update: head of 50462976 bytes",
    federated_peers.damaged: "digest does not match",
    federated_peers.endless: "10912 of 10912 values are NaN or infinite",
    federated_peers.wrong_size: "shape (10,), needs identity of",
    federated_peers.heavy: "4294967295 samples, of at most 240",
    federated_peers.impostor: "update that is not of this client",
}


def test_rubbish_is_refused_and_the_round_goes_on(make, tmp_path):
    """Each sort in a round of its own; in the round after, the client takes part again."""
    numbers = range(2, 2 * len(RUBBISH) + 1, 2)
    settings = make(min_clients=1, subset=240, rounds=numbers[-1] + 1)
    rubbish = dict(zip(numbers, RUBBISH, strict=True))
    with ExitStack() as stack:
        controller = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd] * 2, partial(federated_peers.Rude, rubbish=rubbish))
        assert controller.wait(WAIT_S) == 0
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
        controller = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [training.sgd] * 2, partial(federated_peers.Rude, rubbish=rubbish))
        assert controller.wait(WAIT_S) == 0
    assert torch.equal(store.load(settings.state, settings.task)[1], simulate(settings)[1])
    rounds = read_log(settings.log)
    assert [len(r.refused) for r in rounds] == [0, 1, 1, 0]
    assert "client 1: frame: digest" in rounds[1].refused[0]
    assert rounds[2].refused == ("client 1: update of round 2, not asked for (now)",)


def test_late_client_misses_its_round(make, tmp_path):
    """Round 2 is held so that the late update of round 1 finds one to be late for."""
    settings = make(min_clients=1, timeout_s=3.0, rounds=3)
    late, second = threading.Event(), threading.Event()
    with ExitStack() as stack:
        controller = stack.enter_context(process(settings, tmp_path))
        serve(settings, stack, [federated_peers.held(2, second), federated_peers.held(1, late)])
        said = tmp_path / "controller.txt"
        until(lambda: "round 1:" in said.read_text(), "round 1")
        late.set()
        time.sleep(1.0)
        second.set()
        assert controller.wait(WAIT_S) == 0
    rounds = read_log(settings.log)
    assert [sorted(r.sent) for r in rounds] == [[0], [0], [0, 1]]
    assert rounds[0].round_s >= 3.0


def test_strangers_and_other_tasks(make, tmp_path):
    """A client with another secret is not heard; one with another task is told."""
    secrets = {name: tmp_path / name for name in ("ours", "theirs")}
    for name, file in secrets.items():
        file.write_bytes(name.encode() * 4)
    settings = make(secret_file=str(secrets["ours"]), wait_s=30.0, min_clients=1)
    data = settings.task.data.load()
    with ExitStack() as stack:
        stack.enter_context(process(settings, tmp_path))
        entered = connect(settings.domain, settings.network)

        def one(client, task, secret):
            its = client_settings(settings, client)
            its = its.model_copy(update={"task": task, "secret_file": secret, "lease_s": 0.1})
            made = Client(its, training.Participant(task, client, data), entered)
            stack.callback(made.close)
            return made

        stranger = one(0, settings.task, secrets["theirs"])
        threading.Thread(target=stranger.serve, daemon=True).start()
        other = one(1, settings.task.model_copy(update={"batch": 8}), secrets["ours"])
        with pytest.raises(ValueError, match="model of another task"):
            other.serve()
        until(lambda: stranger.models.refused["tag"] and stranger.hello == 0, "a refused model")
    said = (tmp_path / "controller.txt").read_text()
    assert "is here" not in said


def test_failure_of_a_client_is_told(make, tmp_path):
    settings = make(task={"clients": 1}, min_clients=1, lr=1e30)
    with pytest.raises(Failed, match=r"client 0 ended with status 1: [\s\S]*lower lr"):
        run_live(settings, WAIT_S)
