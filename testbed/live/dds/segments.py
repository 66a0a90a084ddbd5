"""Messages cut into segments that can be checked one by one.

A segment is one DDS sample. Its tag, of AES-256-GCM (NIST SP 800-38D), covers all its other fields,
under a key derived (RFC 5869) from the shared secret and the name of the run: a segment of a
stranger, of another run or damaged is refused before anything is done for it. Without a secret the
key is no secret either, and the tag keeps out damage and other runs but nobody who means harm.
Nothing that is sent is encrypted, and DDS discovery itself is open to everybody on the network: DDS
Security would close it, but the Cyclone DDS that Python installs comes without its plugins.

Cyclone DDS's Python layer handles a ``sequence[uint8]`` element by element, seconds for a few
megabytes; :class:`Segment` writes and reads the same bytes (CDR, OMG XTypes 1.3 §7.4.1) with one
copy or none. Where the two should ever differ, the stock layer is used.
"""

import hmac
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cyclonedds.idl import IdlStruct, annotations
from cyclonedds.idl.types import array, sequence, uint8, uint32, uint64

VERSION = 2
CUT = 1 << 20
"""Bytes of a message in one segment."""

HEADS = 1 << 12
"""More bytes than a segment has besides those."""

LIMIT = 1 << 30
"""Longest message that a receiver takes, in bytes, unless told otherwise."""

MAX_LABEL = 255
TAG = 16
LITTLE_ENDIAN = b"\0\1\0"  # plain CDR; the fourth byte of the encapsulation may tell the padding
FIELDS = struct.Struct("<IIQQQQ")
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
    life: when the sender started, ns since 1970: a restarted one has a higher life.
    number: of the message, counted by the sender within its life.
    start: of the body within the message, bytes.
    total: length of the whole message, bytes.
    tag: see the module.
    label: what the message is, at most 255 bytes of UTF-8.
    body: bytes ``start`` to ``start + len(body)`` of the message.
    """

    version: uint32
    sender: uint32
    life: uint64
    number: uint64
    start: uint64
    total: uint64
    tag: array[uint8, TAG]
    label: str
    body: sequence[uint8]

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without those of DDS and UDP."""
        return _overhead(self.label) + len(self.body)

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
            return cls(0, 0, 0, 0, 0, 0, bytes(TAG), "", b"")
        segment.tag, segment.body = bytes(segment.tag), bytes(segment.body)
        return segment


def _encode(segment: Segment) -> bytes:
    label = segment.label.encode() + b"\0"
    return b"".join(
        (
            LITTLE_ENDIAN + b"\0",
            _fields(segment),
            segment.tag,
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
    if len(view) < at + TAG + 4 or view[:3] != LITTLE_ENDIAN or view[3] > 3:
        raise Refused("form", f"{len(view)} bytes that are none of ours")
    fields = FIELDS.unpack_from(view, 4)
    tag = bytes(view[at : at + TAG])
    at += TAG
    (length,) = LENGTH.unpack_from(view, at)
    at += 4
    if not 0 < length <= MAX_LABEL + 1 or at + length + -length % 4 + 4 > len(view):
        raise Refused("form", f"label of {length} bytes; at most {MAX_LABEL}, all of them there")
    label, end = (
        bytes(view[at : at + length - 1]),
        bytes(view[at + length - 1 :][: 1 + -length % 4]),
    )
    at += length + -length % 4
    (length,) = LENGTH.unpack_from(view, at)
    body, padding = view[at + 4 : at + 4 + length], view[at + 4 + length :]
    if len(body) != length or len(padding) not in (0, -length % 4) or any(padding) or any(end):
        raise Refused("form", f"body of {length} bytes in a sample of {len(view)}")
    return Segment(*fields, tag, label.decode(), body)


def load_secret(path: str | Path | None = None, environment: Mapping[str, str] = os.environ):
    """The shared secret, bytes: the file at ``path``, or the text of ``SLOWLINK_KEY``, or None.

    It should be random, such as ``secrets.token_hex()``: who records a run can try words.

    Raises
    ------
    ValueError
        Fewer than 16 bytes, once white space around them is taken off.
    OSError
        No such file.
    """
    if path is None and "SLOWLINK_KEY" not in environment:
        return None
    where = "SLOWLINK_KEY" if path is None else str(path)
    text = environment["SLOWLINK_KEY"].encode() if path is None else Path(path).read_bytes()
    if len(text.strip()) < 16:
        raise ValueError(f"{where}: secret of {len(text.strip())} bytes, needs at least 16")
    return text.strip()


@dataclass(frozen=True)
class Key:
    """What the tags of one run are made with: 32 bytes; see :func:`run_key`."""

    material: bytes = field(repr=False)

    def derive(self, parts: Iterable[bytes]) -> "Key":
        """The key of a session that all of ``parts``, of one length, went into."""
        return Key(hmac.digest(self.material, b"slowlink session\0" + b"".join(parts), "sha256"))

    def sign(self, text: bytes) -> bytes:
        """HMAC-SHA-256 (RFC 2104) of what a member says of itself while it is discovered."""
        return hmac.digest(self.material, b"slowlink member\0" + text, "sha256")


def run_key(run: str, secret: bytes | None = None) -> Key:
    """Key of one run's tags; what was recorded of a run means nothing in the next.

    Raises
    ------
    ValueError
        A run without a name.
    """
    if not run:
        raise ValueError("run: needs a name that no other run has, such as secrets.token_hex()")
    name = b"slowlink segments\0" + run.encode()
    return Key(hmac.digest(secret or b"", name, "sha256"))


def cut(
    key: Key,
    sender: int,
    life: int,
    number: int,
    payload: bytes | bytearray | memoryview,
    label: str = "",
    size: int = CUT,
) -> Iterator[Segment]:
    """The segments of a message; one at least.

    Raises
    ------
    ValueError
        A label that does not fit.
    """
    check_label(label)
    view = memoryview(payload).cast("B")
    for start in range(0, len(view) or 1, size):
        body = view[start : start + size]
        part = Segment(VERSION, sender, life, number, start, len(view), b"", label, body)
        part.tag = _tag(part, key)
        yield part


def wire_bytes(length: int, label: str = "", size: int = CUT) -> int:
    """Bytes of all segments of a message of ``length`` bytes, without those of DDS and UDP."""
    return max(1, -(-length // size)) * _overhead(label) + length


def check_label(label: str) -> None:
    """Raises ValueError for a label that no segment can carry."""
    if len(label.encode()) > MAX_LABEL or "\0" in label:
        raise ValueError(f"label: {label[:50]!r} must be at most {MAX_LABEL} bytes, none of them 0")


def check(segment: Segment, key: Key, limit: int = LIMIT) -> None:
    """Look at a received segment before anything is done with it.

    Raises
    ------
    Refused
        Another version, a tag that does not match, a message longer than ``limit`` bytes, a part
        that lies outside of it.
    """
    if segment.version != VERSION:
        kind = "version" if segment.version else "form"  # see Segment.deserialize
        raise Refused(kind, f"version {segment.version}, this program reads {VERSION}")
    if not hmac.compare_digest(segment.tag, _tag(segment, key)):
        raise Refused("tag", "tag does not match; damaged, another run or another secret")
    length, total = len(segment.body), segment.total
    if total > limit:
        raise Refused("length", f"of a message of {total} bytes, at most {limit} are taken")
    if segment.start + length > total or bool(length) != bool(total):
        raise Refused("length", f"{length} bytes at {segment.start} of {total}")


def _overhead(label: str) -> int:
    length = len(label.encode()) + 1
    return 4 + FIELDS.size + TAG + 4 + length + -length % 4 + 4


def _fields(segment: Segment) -> bytes:
    return FIELDS.pack(
        segment.version,
        segment.sender,
        segment.life,
        segment.number,
        segment.start,
        segment.total,
    )


def _tag(segment: Segment, key: Key) -> bytes:
    """Empty where numbers are too large for a nonce, so that nothing matches it."""
    if max(segment.number, segment.start) >> HALF_NONCE:
        return b""
    nonce = (segment.number << HALF_NONCE | segment.start).to_bytes(2 * HALF_NONCE // 8, "big")
    label = segment.label.encode()
    head = _fields(segment) + LENGTH.pack(len(label)) + label
    # Only the tag is kept. With the body as associated data neither is copied to join the two.
    cipher = _cipher(key, segment.sender, segment.life)
    return cipher.encrypt(nonce, head, segment.body)[-TAG:]


@lru_cache(256)
def _cipher(key: Key, sender: int, life: int) -> AESGCM:
    """A key for each sender's life, within which no nonce comes twice."""
    info = b"slowlink segments\0" + struct.pack("<IQ", sender, life)
    return AESGCM(HKDFExpand(hashes.SHA256(), 32, info).derive(key.material))


def _agrees() -> bool:
    """Whether this module writes the same bytes as Cyclone's own layer."""
    for label, body in (("", b""), ("abc", b"1"), ("four", b"12345")):
        ours = Segment(VERSION, 2, 3, 4, 5, 6, bytes(range(TAG)), label, body)
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
