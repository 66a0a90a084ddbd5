"""Made-up images, and clients that do not behave; scripts are imported by name."""

import os
import struct
import time
from pathlib import Path

import numpy as np
import torch

from testbed.live.dds.federated import messages
from testbed.live.dds.federated.client import Client
from testbed.live.dds.federated.training import sgd

GATE = "FEDERATED_TEST_GATE"
calls = 0


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


def gated(model, data, index, **how):
    """SGD whose second round says that it is half way, and waits for the gate to open."""
    global calls
    calls += 1
    gate = Path(os.environ[GATE])
    for step, _ in enumerate(sgd(model, data, index, **how)):
        if calls == 2 and step == 0:
            gate.with_name(f"half-{os.getpid()}").touch()
            while not gate.exists():
                time.sleep(0.02)
        yield


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
            self.updates.send(message, "update")
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
