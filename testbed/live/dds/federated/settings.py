"""Configuration of a federated training: JSON files, checked before anything else is done.

A controller's file is a :class:`ControllerSettings`, a client's a :class:`ClientSettings`. Both
hold the same :class:`Task`; a client whose task differs from the controller's says so and ends.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

import torch
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from slowlink.methods import aggregation, compression
from slowlink.methods.aggregation import Aggregation
from slowlink.methods.compression import MAX_VALUES, Compressor
from slowlink.testbed.live import documents
from slowlink.testbed.live.dds import domain
from slowlink.testbed.live.dds.domain import LAST_DOMAIN, LOOPBACK, DomainConfig
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.training import datasets, models, splits
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Part

READERS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": datasets.read_mnist,
    "fashion_mnist": datasets.read_mnist,
    "cifar10": datasets.read_cifar10,
}
"""Data sets of images, and what reads their files."""

ANEW = "anew"
"""The split that deals all samples out again each round, as DDS's clients do."""

MAX_WHOLE = 2**32 - 1
Whole = Annotated[int, Field(ge=1, le=MAX_WHOLE)]


def _path(text: object) -> object:
    if text in ("", "."):
        raise ValueError("must name a file or folder; null for none")
    return text


File = Annotated[Path, Field(strict=False), BeforeValidator(_path)]
Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
FromZero = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]


class _Settings(BaseModel):
    """Settings refuse unknown keys and convert no types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(_Settings):
    """Images to learn from.

    Attributes
    ----------
    name: a data set of :data:`READERS`.
    directory: of its files, in the format of ``name``; null fetches them.
    limit, test_limit: at most so many images, evenly of every class.
    """

    name: str
    directory: File | None = None
    limit: PositiveInt | None = None
    test_limit: PositiveInt | None = None

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in READERS:
            raise ValueError(f"no data set {name!r}; there are: {', '.join(READERS)}")
        return name

    def load(self) -> Dataset:
        """Load the data; raises as :func:`testbed.training.datasets.load_dataset`."""
        if self.directory is None:
            return datasets.load_dataset(self.name, limit=self.limit, test_limit=self.test_limit)
        found = READERS[self.name](self.directory)
        train = datasets.balanced_subset(found.train_y, self.limit or len(found.train_y))
        test = datasets.balanced_subset(found.test_y, self.test_limit or len(found.test_y))
        return replace(
            found,
            train_x=found.train_x[train],
            train_y=found.train_y[train],
            test_x=found.test_x[test],
            test_y=found.test_y[test],
        )


class Task(_Settings):
    """What is trained, which controller and clients must agree on.

    Attributes
    ----------
    model: one of :mod:`testbed.training.models`, with its parameters.
    data: see :class:`Data`.
    clients: how many there are, numbered from 0.
    split: which samples are whose: ``anew`` or one of :mod:`testbed.training.splits`, with its
        parameters.
    seed: of the initial model, of the split and of each round's draws.
    batch, momentum: of the clients' SGD, which starts afresh each round. Of an epoch's last,
        smaller batch nothing is left out.
    codec: what an update is compressed with: a method of :mod:`methods.compression`, as one vector.
    codecs: by their number, clients with another one, such as those with a slower link.
    sends: a client's ``weights``, as DDS's dense modes, or their change in the round (``delta``),
        as its sparse ones. Without loss the two are the same; what rounding loses is smaller where
        values are, so deltas are what to choose.
    first_baseline: what changes of round 1 are changes from: the initial ``model``, which all
        know, or ``zero``, as in DDS, whose model then starts with the few weights that are sent.
    packets: in how many updates a client sends a round's change, one after so many steps.
    torch_threads: of each process. With another number sums may be rounded otherwise.
    """

    model: Part
    data: Data
    clients: Annotated[int, Field(ge=1, le=1024)]
    split: Part = Part(name=ANEW)
    seed: NonNegativeInt = 12345
    batch: PositiveInt
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    codec: Part = Part(name="identity")
    codecs: dict[int, Part] = {}
    sends: Literal["weights", "delta"] = "delta"
    first_baseline: Literal["model", "zero"] = "model"
    packets: Annotated[int, Field(ge=1, le=1000)] = 1
    torch_threads: Annotated[int, Field(ge=1, le=1024)] = 1

    @field_validator("model")
    @classmethod
    def _can_be_trained(cls, model: Part) -> Part:
        _values(model.model_dump_json())
        return model

    @field_validator("codec")
    @classmethod
    def _can_compress(cls, part: Part) -> Part:
        codec = _constructed(lambda: compression.load(part.name, **part.parameters), part.name)
        if not codec.one_shot or not codec.adds:
            why = "gives a vote, not a sum" if codec.one_shot else "needs several exchanges"
            raise ValueError(f"{part.name} {why}: a client sends its update once")
        return part

    @field_validator("codecs")
    @classmethod
    def _all_can_compress(cls, codecs: dict[int, Part]) -> dict[int, Part]:
        return {client: cls._can_compress(part) for client, part in codecs.items()}

    @field_validator("split")
    @classmethod
    def _can_be_split(cls, split: Part) -> Part:
        if split.name != ANEW:
            splits.check(split.name, split.parameters)
        elif split.parameters:
            raise ValueError(f"{ANEW} takes no parameters, not {', '.join(split.parameters)}")
        return split

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.sends == "weights" and self.packets > 1:
            raise ValueError("packets: packets of a round are added up, which weights cannot be")
        if unknown := set(self.codecs) - set(range(self.clients)):
            raise ValueError(f"codecs: {min(unknown)}, the last client is {self.clients - 1}")
        if self.sends == "weights" and self.first_baseline == "zero":
            raise ValueError("first_baseline: weights are not changes, leave it at 'model'")
        return self

    @property
    def values(self) -> int:
        """Number of the model's values, all in one vector."""
        return _values(self.model.model_dump_json())

    @property
    def fingerprint(self) -> str:
        """The same for tasks with the same results, wherever the data are."""
        text = self.model_dump_json(exclude={"data": {"directory"}, "torch_threads": True})
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def codec_of(self, client: int) -> Part:
        return self.codecs.get(client, self.codec)

    def make_codec(self, client: int) -> Compressor:
        part = self.codec_of(client)
        return compression.load(part.name, **part.parameters)

    def make_model(self) -> torch.nn.Module:
        """The model with its initial weights."""
        return models.make(self.model.name, self.seed, **self.model.parameters)


class _Connection(_Settings):
    """How a process reaches the others.

    Attributes
    ----------
    task: see :class:`Task`.
    domain: DDS domain.
    run: name that no other training has had; it goes into every key.
    keys: folder of identities, or "none"; see :func:`testbed.live.dds.domain.keys_folder`.
    interface, peers, lease_s: see :class:`testbed.live.dds.domain.DomainConfig`.
    wait_s: how long to wait for others when too few are there, and for a client that takes nothing
        of what is sent to it, before it counts as gone.
    """

    task: Task
    domain: Annotated[int, Field(ge=0, le=LAST_DOMAIN)]
    run: Annotated[str, Field(min_length=1, max_length=200)]
    keys: File | None = None
    interface: Annotated[str, Field(min_length=1)] = LOOPBACK
    peers: tuple[str, ...] = ()
    lease_s: Finite = 5.0
    wait_s: Finite = 60.0

    @property
    def network(self) -> DomainConfig:
        return DomainConfig(self.interface, self.peers, self.lease_s)

    @model_validator(mode="after")
    def _safe(self) -> Self:
        domain.keys_folder(self.keys, self.network)
        return self

    def identity(self, name: str) -> Keys | None:
        """Of the member ``name``; raises as :class:`testbed.live.identity.Keys`."""
        folder = domain.keys_folder(self.keys, self.network)
        return Keys(folder, name) if folder else None


class ControllerSettings(_Connection):
    """The controller's file.

    Attributes
    ----------
    rounds: after how many it ends.
    subset: samples of each client in a round; null for its whole share.
    epochs, lr: of a client's round.
    min_clients, timeout_s, late: see :class:`methods.synchronization.fedavg.FedAvg`. A time-out of
        null waits for all who are asked, as long as they are there: who dies is gone after
        ``lease_s``, who takes nothing after ``wait_s``, and who goes on training or hangs after
        ``late_s``. Null, because any number would on a slower machine leave clients out, and so
        change the result, without being asked to; where clients may hang, set several times what a
        round takes. 0 ends a round when ``min_clients`` have come, as the DDS document's controller
        does.
    aggregation: how the controller combines what clients bring, a rule of
        :mod:`methods.aggregation`.
    largest: values that are larger, by magnitude, are refused, and who sent them is named.
    worst: a new model is refused if its loss on the test set is more than so many times that of the
        model before, or that of guessing if this is more; null takes any that is finite. Whose
        update alone makes such a model is named and left out. If nobody's does, or the others'
        model is no better, the round changes nothing.
    quarantine: in how many rounds after one in which its update was refused a client is not asked;
        it is, where there are too few others.
    late_s: who was asked and brings nothing for so long counts as gone, and is named.
    state: file of the latest model, replaced whole after every round. Where it exists, training
        goes on from there.
    kept: so many latest states stay, beside it, as ``STATE.ROUND``; copy one there to go back.
    init_path: such a file of an earlier training, to start from in round 1; null for none.
    log: file to which every round is appended, a line of JSON (:class:`.training.Round`).
    """

    rounds: Whole
    subset: Whole | None = None
    epochs: Whole = 1
    lr: Finite
    min_clients: PositiveInt = 1
    timeout_s: FromZero | None = None
    late: Literal["drop", "next"] = "drop"
    aggregation: Part = Part(name="mean")
    largest: Finite = 1e6
    worst: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = 10.0
    quarantine: Annotated[int, Field(ge=0, le=MAX_WHOLE)] = 0
    late_s: Finite = 3600.0
    state: File
    kept: Annotated[int, Field(ge=0, le=1000)] = 3
    init_path: File | None = None
    log: File | None = None

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.min_clients > self.task.clients:
            raise ValueError(f"min_clients: {self.min_clients} of {self.task.clients} clients")
        if self.min_clients < (least := self.rule().least):
            raise ValueError(f"min_clients: {self.aggregation.name} needs {least} clients")
        return self

    def rule(self) -> Aggregation:
        """How what clients bring is combined."""
        part = self.aggregation
        return _constructed(lambda: aggregation.load(part.name, **part.parameters), part.name)


class ClientSettings(_Connection):
    """A client's file.

    Attributes
    ----------
    client: its number, from 0.
    script: ``module:function`` that trains, see :func:`.training.sgd`.
    model_path: file that always holds the latest model that came; null for none.
    init_path: such a file; if it is the controller's latest model, that is not sent again.
    """

    client: NonNegativeInt
    script: str = "slowlink.testbed.live.dds.federated.training:sgd"
    model_path: File | None = None
    init_path: File | None = None

    @field_validator("script")
    @classmethod
    def _is_there(cls, script: str) -> str:
        load_script(script)
        return script

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.client >= self.task.clients:
            raise ValueError(f"client: {self.client}, the last is {self.task.clients - 1}")
        return self


S = TypeVar("S", bound=BaseModel)


def read(path: str | Path, kind: type[S]) -> S:
    """The settings in a file.

    Raises
    ------
    ValueError
        What is wrong, all of it: a line each, with the file, the key and what is allowed.
    OSError
        No such file.
    """
    return parse(Path(path).read_bytes(), kind, str(path))


def parse(text: str | bytes, kind: type[S], name: str = "settings") -> S:
    """The settings in a JSON text; raises as :func:`read`."""
    try:
        documents.loads(text)  # pydantic's reader would take a key twice
        return kind.model_validate_json(text)
    except ValidationError as error:
        lines = (f"{name}: {line}" for line in documents.lines(error, kind))
        raise ValueError("\n".join(lines)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON: {error}") from None


def load_script(script: str) -> Callable:
    """The function that ``module:function`` names. Raises ValueError if there is none."""
    module, _, function = script.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"script {script!r}: must be module:function ({error})") from None
    if not callable(found):
        raise ValueError(f"script {script!r}: {function} is not a function")
    return found


@cache
def _values(model: str) -> int:
    """Values of the model that a :class:`Part` in JSON describes, after a look at it."""
    part = Part.model_validate_json(model)
    with torch.device("meta"):  # a number that is too large would otherwise take all memory
        made = _constructed(lambda: models.make(part.name, **part.parameters), part.name)
    if any(True for _ in made.buffers()):
        raise ValueError(f"{part.name} keeps running statistics (BatchNorm), which do not travel")
    counts = [parameter.numel() for parameter in made.parameters()]
    count = sum(counts)
    if not counts or min(counts) < 1 or count > MAX_VALUES:
        raise ValueError(
            f"{part.name} has {count} values in tensors of {min(counts, default=0)} or more; at "
            f"most {MAX_VALUES} fit, and none may be empty"
        )
    return count


def _constructed(make: Callable[[], S], name: str) -> S:
    """``make()``, whatever it raises a ValueError."""
    try:
        return make()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from None
