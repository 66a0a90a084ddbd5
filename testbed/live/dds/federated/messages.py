"""What controller and clients say to each other: typed heads, and tensors behind them.

Client N and the controller talk on a topic of their own, ``slowlink_client_N``, so that a client
that takes nothing holds nobody else up (the DDS document has one topic for the updates of all and
one for commands, on which every client hears the others' too). Every message is sealed and numbered
by :mod:`testbed.live.dds.channel`, and its sender is who it says. Models are published once for all
(:mod:`.board`), but for the last, and to who joins or misses one.

A message may still be older than what it is about. So both sides name a number of their own that
the other repeats: the controller the ``session``, in every :class:`Hello`; a client its ``hello``,
in every :class:`Command`, :class:`Model` and :class:`Update`.

A message is the length of its head (uint32), the head (CDR of an IDL struct), and a body: a
:class:`methods.compression.Frame` or nothing. The channel's label names the kind.
"""

import struct
from dataclasses import dataclass

from cyclonedds.idl import IdlStruct, annotations
from cyclonedds.idl.types import float64, uint32, uint64

from slowlink.methods.compression import Frame
from slowlink.testbed.live.dds.sessions import Access
from slowlink.testbed.live.identity import Keys

TOPIC = "slowlink_client_{}"
CONTROLLER = 0
"""The controller's number on each topic; client N is number N + 1."""

CONTROLLER_NAME, CLIENT_NAME = "controller", "client-{}"
"""Names of the members, see :mod:`testbed.live.identity`."""

LENGTH = struct.Struct("<I")
MAX_HEAD = 1 << 16


@dataclass
@annotations.final
class Announcement(IdlStruct, typename="slowlink.federated.Announcement"):
    """Controller to a client that it does not count on: say hello, in this session.

    Attributes
    ----------
    session: that this process of the controller drew.
    hello: the latest that was heard, which counts no more; 0 for none.
    task: fingerprint of the task.
    """

    session: uint64
    hello: uint64
    task: str


@dataclass
@annotations.final
class Command(IdlStruct, typename="slowlink.federated.Command"):
    """Controller to client: train.

    Attributes
    ----------
    round: counted from 1.
    hello: the client's latest; what an earlier process of it was asked is void.
    subset: samples of each, 0 for its whole share.
    epochs, lr, seed: of this round.
    zero: whether changes are changes from zero, see ``Task.first_baseline``.
    end: there is nothing more to do.
    """

    round: uint32
    hello: uint64
    subset: uint32
    epochs: uint32
    lr: float64
    seed: uint64
    zero: bool
    end: bool


@dataclass
@annotations.final
class Hello(IdlStruct, typename="slowlink.federated.Hello"):
    """Client to controller: here I am, and idle.

    Attributes
    ----------
    client: its number.
    hello: drawn for it; of no earlier one.
    session: of the controller that it answers; 0 before it has heard of one.
    task: fingerprint of its task.
    has: digest of the model that it holds, see :func:`.checkpoint.digest`.
    """

    client: uint32
    hello: uint64
    session: uint64
    task: str
    has: str


@dataclass
@annotations.final
class Update(IdlStruct, typename="slowlink.federated.Update"):
    """Client to controller: (a part of) what it learned; the frame is behind.

    Attributes
    ----------
    client, hello, round: whose, and of which command; a hello counts in one session only.
    packet: counted from 0 within the round.
    last: whether the round's update is complete with it.
    samples: that the client trained on.
    train_s: seconds of training and encoding up to here.
    published: when it was sent, s of the sender's monotonic clock; which is the receiver's, too,
        on one machine only.
    """

    client: uint32
    hello: uint64
    round: uint32
    packet: uint32
    last: bool
    samples: uint32
    train_s: float64
    published: float64


@dataclass
@annotations.final
class Model(IdlStruct, typename="slowlink.federated.Model"):
    """Controller to client: the model, float32, after ``round`` (0: initial); so on disk, too.

    Attributes
    ----------
    round: that made it.
    task: fingerprint of the task.
    hello: the client's latest; 0 on disk.
    """

    round: uint32
    task: str
    hello: uint64 = 0


@dataclass
@annotations.final
class Posted(IdlStruct, typename="slowlink.federated.Posted"):
    """Controller to client: the model after ``round`` is on the board, see :mod:`.board`.

    Attributes
    ----------
    hello: the client's latest.
    key, digest: of the message there, as hexadecimal digits.
    """

    round: uint32
    hello: uint64
    key: str
    digest: str


@dataclass
@annotations.final
class Wanted(IdlStruct, typename="slowlink.federated.Wanted"):
    """Client to controller: what was posted after ``round`` did not come."""

    client: uint32
    hello: uint64
    round: uint32


def access(run: str, client: int, keys: Keys | None) -> Access:
    """To the topic of a client, on which there are it and the controller."""
    names = {CONTROLLER: CONTROLLER_NAME, client + 1: CLIENT_NAME.format(client)}
    return Access(run, names, keys)


def members(clients: int) -> list[str]:
    """The names of all who take part."""
    return [CONTROLLER_NAME, *map(CLIENT_NAME.format, range(clients))]


KINDS: dict[str, type[IdlStruct]] = {
    kind.__name__.lower(): kind
    for kind in (Announcement, Command, Hello, Update, Model, Posted, Wanted)
}


def pack(head: IdlStruct, frame: bytes = b"") -> bytes:
    """The bytes of a message."""
    data = head.serialize(use_version_2=False)
    return b"".join((LENGTH.pack(len(data)), data, frame))


def label(head: IdlStruct) -> str:
    """The name of the message's kind, as the channel's label."""
    return type(head).__name__.lower()


def unpack(kind: str, payload: bytes | memoryview) -> tuple[IdlStruct, memoryview]:
    """Head and body of a message of ``kind``.

    Raises
    ------
    ValueError
        An unknown kind, or bytes that :func:`pack` does not make.
    """
    if kind not in KINDS:
        raise ValueError(f"no message {kind!r}; there are: {', '.join(KINDS)}")
    view = memoryview(payload)
    length = LENGTH.unpack_from(view)[0] if len(view) >= LENGTH.size else 0
    data = bytes(view[LENGTH.size : LENGTH.size + length])
    if not 0 < length <= MAX_HEAD or len(data) != length:
        raise ValueError(f"{kind}: head of {length} bytes in a message of {len(view)}")
    try:
        head = KINDS[kind].deserialize(data)
        same = head.serialize(use_version_2=False) == data
    except Exception as error:  # Cyclone's reader raises whatever it stumbles on
        raise ValueError(f"{kind}: head cannot be read ({type(error).__name__})") from None
    if not same:
        raise ValueError(f"{kind}: head has bytes that mean nothing")
    return head, view[LENGTH.size + length :]


def longest(values: int, payload_bytes: int) -> int:
    """Bytes of the longest message about a model of ``values`` values; more is not taken."""
    return max(4 * values, payload_bytes) + MAX_HEAD


def size(head: IdlStruct, frame: Frame) -> int:
    """Bytes of the message ``pack(head, frame.to_bytes())``."""
    return len(pack(head)) + frame.nbytes
