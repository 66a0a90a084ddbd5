"""The latest model on disk, as the message that is published; replaced as a whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from torch import Tensor

from slowlink.methods import compression
from slowlink.methods.compression import Frame
from slowlink.testbed import files
from slowlink.testbed.live.dds.federated import messages
from slowlink.testbed.live.dds.federated.messages import Model
from slowlink.testbed.live.dds.federated.settings import Task

DIGEST = 16
"""Bytes at the end of a file, of all before them."""


def message(number: int, task: Task, weights: Tensor, hello: int = 0) -> tuple[Model, bytes]:
    """Head and body of the message that holds the model after round ``number``, to the client that
    said ``hello`` or to the disk."""
    payload = compression.load("identity").compress(weights, "model")
    return Model(number, task.fingerprint, hello), Frame(payload).to_bytes()


def decode(data: bytes | memoryview, task: Task, other_task: bool = False) -> tuple[int, Tensor]:
    """Round and (n,) weights.

    Parameters
    ----------
    other_task: whether the model may come from a training with another task.

    Raises
    ------
    ValueError
        Damaged, not a model, of another size, or of another task.
    """
    head, frame = messages.unpack("model", data)
    if head.task != task.fingerprint and not other_task:
        raise ValueError("model of another task: controller and clients need the same settings")
    got = Frame.from_bytes(frame, limit=messages.longest(task.values, 0))
    if got.payload.shape != (task.values,):
        raise ValueError(f"model of shape {got.payload.shape}, the task's has {task.values} values")
    weights = compression.load("identity").decompress(got.payload)
    if not np.isfinite(weights.numpy()).all():
        raise ValueError("model with values that are not finite")
    return head.round, weights


def digest(number: int, weights: Tensor) -> str:
    """The same for the same (n,) ``weights`` after the same round, and hardly ever for others."""
    text = f"{number} ".encode() + weights.numpy().tobytes()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def save(path: Path, data: bytes, keep: int = 0) -> None:
    """Replace the file at once: whoever reads it finds old or new, and new once this returns, even
    if the machine stops.

    Parameters
    ----------
    keep: so many stay beside it, the latest, each named by the round that made it.

    Raises
    ------
    OSError
        See :func:`testbed.files.whole`.
    """
    with files.whole(path, lasting=True) as part:
        part.write_bytes(data + _seal(data))
    if keep:
        number = messages.unpack("model", data)[0].round
        own = path.with_name(f"{path.name}.{number}")
        own.unlink(missing_ok=True)
        os.link(path, own)
        for one in sorted(kept(path))[:-keep]:
            path.with_name(f"{path.name}.{one}").unlink()


def kept(path: Path) -> list[int]:
    """The rounds whose states are beside ``path``."""
    found = path.parent.glob(f"{path.name}.*")
    return [int(one.suffix[1:]) for one in found if one.suffix[1:].isdecimal()]


def load(path: Path, task: Task, other_task: bool = False) -> tuple[int, Tensor]:
    """As :func:`decode`, from a file. Raises OSError, too, if there is none."""
    data = path.read_bytes()
    try:
        if _seal(data[:-DIGEST]) != data[-DIGEST:]:
            raise ValueError("damaged, or no state")
        return decode(data[:-DIGEST], task, other_task)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _seal(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST).digest()
