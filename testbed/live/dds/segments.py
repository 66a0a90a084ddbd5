"""Messages cut into segments that can be checked one by one.

A segment is one DDS sample. What it says and whom it is for is sealed and checked by
:mod:`testbed.live.dds.sessions`: a segment of a stranger, of another run or damaged is refused
before anything is kept of it. DDS discovery itself is open to everybody on the network: DDS
Security would close it, but the Cyclone DDS that Python installs comes without its plugins.

Cyclone DDS's Python layer handles a ``sequence[uint8]`` element by element, seconds for a few
megabytes; :class:`Segment` writes and reads the same bytes (CDR, OMG XTypes 1.3 §7.4.1) with one
copy or none. Where the two should ever differ, the stock layer is used.
"""

import struct
from dataclasses import dataclass
from typing import Self

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cyclonedds.idl import IdlStruct, annotations
from cyclonedds.idl.types import sequence, uint8, uint32, uint64

VERSION = 3
CUT = 1 << 20
"""Bytes of a message in one segment; all but the last have as many."""

FRAGMENT = 64_000
"""Bytes of a segment in one datagram on the loopback, see :mod:`testbed.live.dds.domain`."""

HEADS = 1 << 15
"""More bytes than a segment has besides those."""

LIMIT = 1 << 30
"""Longest message that a receiver takes, in bytes, unless told otherwise."""

MAX_LABEL = 255
TAG = 16
TAGGED = 4 + TAG
"""Bytes of a receiver's number and its tag."""

MAX_TAGS = 1024
"""Receivers of one segment."""

LITTLE_ENDIAN = b"\0\1\0"  # plain CDR; the fourth byte of the encapsulation may tell the padding
FIELDS = struct.Struct("<IIQIxxxxQQQ")
LENGTH = struct.Struct("<I")
HALF_NONCE = 48  # bits of a message's number, and of a segment's start


class Refused(ValueError):
    """A segment that nothing is done with; ``kind`` is one word for statistics."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"segment: {why}")
        self.kind = kind


@dataclass
@annotations.final
class Segment(IdlStruct, typename="slowlink.Segment"):
    """A part of a message.

    Attributes
    ----------
    version: of this format.
    sender: number of the process in its group.
    life: that the sender drew when it started.
    epoch: of the keys; 0 for a message of the handshake, which has no others of what follows but
        a body.
    number: of the message, counted by the sender within its life.
    start: of the part within the message, bytes.
    total: length of the whole message, bytes.
    tags: each receiver's number (uint32) and its tag; none where there is one receiver, for whom
        the body's own is enough.
    label: what the message is, at most 255 bytes of UTF-8.
    body: bytes ``start`` and following of the message, encrypted, and 16 more.
    """

    version: uint32
    sender: uint32
    life: uint64
    epoch: uint32
    number: uint64
    start: uint64
    total: uint64
    tags: sequence[uint8]
    label: str
    body: sequence[uint8]

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without those of DDS and UDP."""
        return _overhead(self.label, len(self.tags)) + len(self.body)

    # What Cyclone's writers and readers call.
    def serialize(self, buffer=None, endianness=None, use_version_2=None) -> bytes:
        if FAST and buffer is None and endianness is None and not use_version_2:
            return _encode(self)
        return super().serialize(buffer, endianness, use_version_2)

    @classmethod
    def deserialize(cls, data, has_header=True, use_version_2=None) -> Self:
        """As Cyclone's, except that a sample that cannot be read has version 0."""
        try:
            if FAST and has_header and use_version_2 is None:
                return _decode(data)
            segment = super().deserialize(data, has_header, use_version_2)
        except (ValueError, IndexError, struct.error):
            return cls(0, 0, 0, 0, 0, 0, 0, b"", "", b"")
        segment.tags, segment.body = bytes(segment.tags), bytes(segment.body)
        return segment


# Cyclone's Python layer describes a type when its first topic is made. A thread that makes another
# one meanwhile finds half of that, and fails: so it is done here, once and before all threads.
Segment.__idl__.fill_type_data()


def _encode(segment: Segment) -> bytes:
    label = segment.label.encode() + b"\0"
    tags = segment.tags
    return b"".join(
        (
            LITTLE_ENDIAN + b"\0",
            _fields(segment),
            LENGTH.pack(len(tags)),
            tags,
            bytes(-len(tags) % 4),
            LENGTH.pack(len(label)),
            label,
            bytes(-len(label) % 4),
            LENGTH.pack(len(segment.body)),
            segment.body,
        )
    )


def _decode(data: bytes) -> Segment:
    view = memoryview(data)
    at = 4 + FIELDS.size
    if len(view) < at + 4 or view[:3] != LITTLE_ENDIAN or view[3] > 3:
        raise Refused("form", f"{len(view)} bytes that are none of ours")
    fields = FIELDS.unpack_from(view, 4)
    if any(view[24:28]):
        raise Refused("form", "bytes that mean nothing")
    tags, at = _part(view, at)
    text, at = _part(view, at)
    (length,) = LENGTH.unpack_from(view, at)
    body, padding = view[at + 4 : at + 4 + length], view[at + 4 + length :]
    if len(body) != length or len(padding) not in (0, -length % 4) or any(padding):
        raise Refused("form", f"body of {length} bytes in a sample of {len(view)}")
    if not text or text[-1] or len(text) > MAX_LABEL + 1:
        raise Refused("form", f"label of {len(text)} bytes; at most {MAX_LABEL} and a 0")
    return Segment(*fields, bytes(tags), bytes(text[:-1]).decode(), body)


def _part(view: memoryview, at: int) -> tuple[memoryview, int]:
    """Bytes after their length, with padding, and where they end."""
    (length,) = LENGTH.unpack_from(view, at)
    end = at + 4 + length
    if end + -length % 4 + 4 > len(view) or any(view[end : end + -length % 4]):
        raise Refused("form", f"{length} bytes in a sample of {len(view)}")
    return view[at + 4 : end], end + -length % 4


def wire_bytes(length: int, label: str = "", receivers: int = 1, size: int = CUT) -> int:
    """Bytes of all segments of a message of ``length`` bytes to so many ``receivers``, once however
    many these are; without those of DDS and UDP."""
    heads = _overhead(label, TAGGED * receivers if receivers > 1 else 0) + TAG
    return max(1, -(-length // size)) * heads + length


def link_bytes(length: int) -> int:
    """Bytes of a message of ``length`` bytes to one receiver on the loopback's link, counted.

    A segment is one DDS sample; on the loopback it travels in fragments of at most
    :data:`FRAGMENT` bytes, a datagram each. A datagram has heads of RTPS (20), time stamp (12),
    DATA (24) or DATA_FRAG (36), UDP (8), IP (20) and Ethernet (14). Acknowledgements, heartbeats
    and repetitions come on top.
    """
    total, heads = 0, 20 + 12 + 8 + 20 + 14
    for start in range(0, length or 1, CUT):
        sample = wire_bytes(min(CUT, length - start))
        pieces = -(-sample // FRAGMENT)
        total += sample + pieces * (heads + (24 if pieces == 1 else 36))
    return total


def check_label(label: str) -> None:
    """Raises ValueError for a label that no segment can carry."""
    if len(label.encode()) > MAX_LABEL or "\0" in label:
        raise ValueError(f"label: {label[:50]!r} must be at most {MAX_LABEL} bytes, none of them 0")


def check(segment: Segment, limit: int = LIMIT, size: int = CUT) -> None:
    """Look at a received segment before anything is done with it.

    Raises
    ------
    Refused
        Another version, a message longer than ``limit`` bytes, or a part that is not one of those
        that a message of its length is cut into, each of ``size`` bytes.
    """
    if segment.version != VERSION:
        kind = "version" if segment.version else "form"  # see Segment.deserialize
        raise Refused(kind, f"version {segment.version}, this program reads {VERSION}")
    if len(segment.tags) % TAGGED or len(segment.tags) > MAX_TAGS * TAGGED:
        raise Refused("form", f"tags of {len(segment.tags)} bytes")
    start, total = segment.start, segment.total
    if total > limit:
        raise Refused("length", f"of a message of {total} bytes, at most {limit} are taken")
    if max(segment.number, start) >> HALF_NONCE:
        raise Refused("length", f"message {segment.number}, byte {start}")
    due = min(size, max(0, total - start))
    if start % size or len(segment.body) != due + TAG or (start and not due):
        raise Refused("length", f"{len(segment.body) - TAG} bytes at {start} of {total}")


def nonce(number: int, start: int) -> bytes:
    """12 bytes, of no other segment of a sender's life; both below 2**48."""
    return (number << HALF_NONCE | start).to_bytes(2 * HALF_NONCE // 8, "big")


def head(segment: Segment) -> bytes:
    """All of ``segment`` that is not encrypted but its tags."""
    label = segment.label.encode()
    return _fields(segment) + LENGTH.pack(len(label)) + label


def tag(segment: Segment, key: AESGCM) -> bytes:
    """What authenticates ``segment`` for one of its receivers, whose ``key`` it is."""
    # Only the tag is kept. With the body as associated data neither is copied to join the two.
    place = nonce(segment.number, segment.start)
    return key.encrypt(place, head(segment), segment.body)[-TAG:]


def _overhead(label: str, tags: int) -> int:
    length = len(label.encode()) + 1
    return 4 + FIELDS.size + 4 + tags + -tags % 4 + 4 + length + -length % 4 + 4


def _fields(segment: Segment) -> bytes:
    return FIELDS.pack(
        segment.version,
        segment.sender,
        segment.life,
        segment.epoch,
        segment.number,
        segment.start,
        segment.total,
    )


def _agrees() -> bool:
    """Whether this module writes the same bytes as Cyclone's own layer."""
    for tags, label, body in ((b"", "", b""), (bytes(20), "abc", b"1"), (b"123", "four", b"12345")):
        ours = Segment(VERSION, 2, 3, 4, 5, 6, 7, tags, label, body)
        try:
            if IdlStruct.serialize(ours, use_version_2=False) != _encode(ours):
                return False
            if _decode(_encode(ours)) != ours:
                return False
        except Exception:  # another Cyclone, whatever it does now
            return False
    return True


FAST = _agrees()
"""Whether the fast path is in use."""
