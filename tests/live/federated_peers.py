"""Made-up images, and clients that do not behave; scripts are imported by name."""

import contextlib
import multiprocessing
import os
import struct
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic

from slowlink.testbed.live.dds import connect
from slowlink.testbed.live.dds.domain import qos
from slowlink.testbed.live.dds.federated import __main__ as commands
from slowlink.testbed.live.dds.federated import board, live, messages
from slowlink.testbed.live.dds.federated.client import Client
from slowlink.testbed.live.dds.federated.settings import ClientSettings
from slowlink.testbed.live.dds.federated.training import sgd
from slowlink.testbed.live.dds.segments import Segment

GATE = "FEDERATED_TEST_GATE"
calls = 0

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
"""Has imported everything; processes that it starts are there at once."""


class Running(SERVER.Process):
    """A command under the names of a :class:`subprocess.Popen`."""

    def poll(self):
        return self.exitcode

    def wait(self, timeout=None):
        self.join(timeout)
        return self.exitcode


@contextlib.contextmanager
def process(settings, folder, gate=""):
    """As :func:`testbed.live.dds.federated.live.process`, started in a tenth of the time."""
    is_client = isinstance(settings, ClientSettings)
    role = "client" if is_client else "controller"
    name = f"client {settings.client}" if is_client else role
    file = folder / f"{name}.json"
    file.write_text(settings.model_dump_json())
    said = folder / f"{name}.txt"
    said.touch()
    arguments = (role, file, said, gate)
    running = Running(target=command, args=arguments, daemon=True)
    running.start()
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def command(role, file, said, gate):
    os.environ[GATE] = str(gate)
    with said.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.exit(commands.main([role, str(file)]))


def launch(settings, folder):
    """Start a controller as :func:`run_live` does, tell its number, and wait to be killed."""
    with live.process(settings, folder) as running:
        (folder / "number.new").write_text(str(running.pid))
        (folder / "number.new").rename(folder / "number")
        time.sleep(600)


def write_images(folder, train=240, test=60):
    """Files in MNIST's format: ten kinds of bright squares in noise."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for split, count in (("train", train), ("t10k", test)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = draw.integers(0, 100, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 4)
            image[9 * row : 9 * row + 7, 7 * column : 7 * column + 6] = 255
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{split}-{kind}-ubyte").write_bytes(head + values.tobytes())


def gated(model, data, index, number=2, **how):
    """SGD whose second round says that it is half way, and waits for the gate to open."""
    global calls
    calls += 1
    gate = Path(os.environ[GATE])
    for step, _ in enumerate(sgd(model, data, index, **how)):
        if calls == number and step == 0:
            gate.with_name(f"half-{os.getpid()}").touch()
            while not gate.exists():
                time.sleep(0.02)
        yield


gated_later = partial(gated, number=8)


def held(number, go, reached=None):
    """SGD whose round ``number`` says after a step that it is there, and goes on when told."""
    rounds = 0

    def train(model, data, index, **how):
        nonlocal rounds
        rounds += 1
        for step, _ in enumerate(sgd(model, data, index, **how)):
            if rounds == number and step == 0:
                if reached is not None:
                    reached.release()
                go.wait(60)
            yield

    return train


class Board:
    """Stands for the controller's end of the board; keeps what is posted, by round."""

    def __init__(self, participant, limit):
        self.messages = {}

    def post(self, number, message):
        self.messages[number] = message
        return messages.Posted(number, 0, "00" * 16, board.digest(message))

    def close(self):
        pass


class Reading:
    """Stands for a client's end, on which there is what the test puts there."""

    def __init__(self, participant, news, limit):
        self.news, self.there = news, {}

    def put(self, number, parts, message):
        self.there[number] = parts, message
        self.news()

    def find(self, posted):
        return self.there.get(posted.round, (0, None))

    def close(self):
        pass


class Deaf(Client):
    """Takes nothing of what comes after the model of round 1, until told."""

    def __init__(self, *arguments, hears):
        super().__init__(*arguments)
        deliver = self.channel._deliver

        def wait_after_round_1(message):
            deliver(message)
            if message.label == "posted":  # the model of round 1 is the first
                hears.wait(60)

        self.channel._deliver = wait_after_round_1


class Rude(Client):
    """Sends rubbish in the rounds given, once in each."""

    def __init__(self, *arguments, rubbish):
        super().__init__(*arguments)
        self.rubbish = dict(rubbish)

    def _train(self):
        make = self.rubbish.pop(self.command.round, None)
        if make is None:
            return super()._train()
        [(head, frame)] = self.participant.updates(self.command, self.weights)
        self.command = None
        made = make(head, frame)
        for message in made if isinstance(made, list) else [made]:
            self.channel.send(message, "update")
        return None


def noise(head, frame):
    return bytes(range(256))


def damaged(head, frame):
    body = bytearray(frame.to_bytes())
    body[len(body) // 2] ^= 1
    return messages.pack(head, bytes(body))


def endless(head, frame):
    """Values that are not finite, in a frame that is in order."""
    body = torch.full((frame.payload.numel,), float("inf")).numpy().tobytes()
    bad = type(frame.payload)(body, "identity", frame.payload.shape, "dense", "float32")
    return messages.pack(head, type(frame)(bad).to_bytes())


def wrong_size(head, frame):
    body = bytes(40)
    bad = type(frame.payload)(body, "identity", (10,), "dense", "float32")
    return messages.pack(head, type(frame)(bad).to_bytes())


def heavy(head, frame):
    head.samples = 2**32 - 1
    return messages.pack(head, frame.to_bytes())


def impostor(head, frame):
    head.client += 1
    return messages.pack(head, frame.to_bytes())


def stale(head, frame):
    """An update of the round before, and then the true one."""
    head.round -= 1
    old = messages.pack(head, frame.to_bytes())
    head.round += 1
    return [old, messages.pack(head, frame.to_bytes())]


def turned(model, data, index, **how):
    """SGD whose change is turned around and ten times as large when it is done."""
    start = [parameter.detach().clone() for parameter in model.parameters()]
    yield from sgd(model, data, index, **how)
    with torch.no_grad():
        for parameter, before in zip(model.parameters(), start, strict=True):
            parameter.copy_(before - 10 * (parameter - before))


def reflect(domain, network, clients, told):
    """Without a key, send again whatever goes over the topics, until killed; ``told`` says how many
    samples that were."""
    participant = connect(domain, network)
    pairs = []
    for client in range(clients):
        topic = Topic(participant, messages.TOPIC.format(client), Segment)
        pairs.append(
            (DataReader(participant, topic, qos(b"")), DataWriter(participant, topic, qos(b"")))
        )
    count = 0
    while True:
        told.with_suffix(".new").write_text(str(count))
        told.with_suffix(".new").rename(told)
        for reader, writer in pairs:
            for sample in reader.take(32):
                if isinstance(sample, Segment):
                    writer.write(sample)
                    count += 1
        time.sleep(0.01)
