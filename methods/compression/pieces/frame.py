"""Payloads and the frame that carries one over a wire.

A frame is, little-endian::

    magic "SLNK" | version u8 | keyed u8 | dimensions u8 | lengths of codec, form, dtype u8 each
    | body length u64 | codec, form, dtype (ASCII) | each dimension u64 | body | digest

The 16-byte BLAKE2b digest covers everything before it. With a key (of 16 to 64 bytes that both
ends share) it authenticates the frame; without one it only detects damage.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import struct
from dataclasses import dataclass

import numpy as np
import torch

ADDABLE = ("float16", "float32", "float64", "int8", "int16", "int32", "int64")
"""Element types whose payloads may be added elementwise."""


class _Body:
    """The field ``body`` of a payload: bytes, made of a tensor when somebody asks for them."""

    def __get__(self, payload: Payload | None, owner: type) -> bytes:
        if payload is None:
            raise AttributeError("a field without a default")
        if isinstance(payload.content, torch.Tensor):
            array = payload.content.cpu().numpy()
            body = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            payload.__dict__["body"] = body
        return payload.content

    def __set__(self, payload: Payload, body: bytes | torch.Tensor) -> None:
        payload.__dict__["body"] = body.view(-1) if isinstance(body, torch.Tensor) else body


@dataclass(frozen=True)
class Payload:
    """One encoded tensor: exactly the bytes of the published format, and how to read them.

    Attributes
    ----------
    body: the bytes. A payload made of a tensor, whose memory it takes over, has them as soon as
        somebody asks; until then its values stay where they are.
    codec: name of the compressor that can decode them.
    shape: shape of the tensor they stand for.
    form: which of the codec's formats this is (a codec may answer in another than it asked in).
    dtype: element type of ``body`` where bodies add elementwise, else empty.
    """

    body: bytes = _Body()
    codec: str
    shape: tuple[int, ...]
    form: str = ""
    dtype: str = ""

    @property
    def content(self) -> bytes | torch.Tensor:
        """The bytes, or the (n,) tensor that they have not been made of yet, on its device."""
        return self.__dict__["body"]

    @property
    def elements(self) -> np.ndarray:
        """The (n,) elements of the body, to be read only, without a copy where they are near."""
        dtype = np.dtype(self.dtype or "uint8")
        if isinstance(self.content, torch.Tensor):
            return self.content.cpu().numpy().view(dtype)
        wire = np.frombuffer(self.content, dtype.newbyteorder("<"))
        return wire.astype(dtype, copy=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the body: the number that papers print."""
        content = self.content
        return content.nbytes if isinstance(content, torch.Tensor) else len(content)

    @property
    def numel(self) -> int:
        """Values of the tensor this stands for."""
        return math.prod(self.shape)


MAGIC = b"SLNK"
VERSION = 1
MAX_DIMENSIONS = 8
MAX_NAME = 32
DIGEST = 16
HEAD = struct.Struct("<4sBBBBBBQ")
NAME = re.compile(rb"[a-z0-9_]*\Z")


@dataclass(frozen=True)
class Frame:
    """A payload ready for a wire."""

    payload: Payload

    @property
    def nbytes(self) -> int:
        """Bytes of the whole frame: body, header and digest."""
        names = (self.payload.codec, self.payload.form, self.payload.dtype)
        shape = 8 * len(self.payload.shape)
        return HEAD.size + sum(map(len, names)) + shape + self.payload.nbytes + DIGEST

    def to_bytes(self, key: bytes | None = None) -> bytes:
        """The frame's bytes; authenticated if ``key`` is given.

        Raises
        ------
        ValueError
            A name, shape or key that no frame can carry.
        """
        payload = self.payload
        names = [name.encode("ascii", "replace") for name in _names(payload)]
        for name in names:
            _check_name(name)
        _check_dtype(payload.dtype)
        if len(payload.shape) > MAX_DIMENSIONS:
            raise ValueError(
                f"frame: {len(payload.shape)} dimensions, at most {MAX_DIMENSIONS} fit; reshape"
            )
        head = HEAD.pack(
            MAGIC,
            VERSION,
            key is not None,
            len(payload.shape),
            *map(len, names),
            payload.nbytes,
        )
        try:
            shape = struct.pack(f"<{len(payload.shape)}Q", *payload.shape)
        except struct.error as error:
            raise ValueError(f"frame: shape {payload.shape} is not of sizes >= 0") from error
        digest = _digest(key, head, *names, shape, payload.body)
        return b"".join((head, *names, shape, payload.body, digest))

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray | memoryview, key: bytes | None = None, limit: int = 2**30
    ) -> Frame:
        """Read one whole frame; allocates no more than a copy of its body.

        Parameters
        ----------
        data: the frame, all of it and nothing else.
        key: must be given if and only if the sender gave one.
        limit: largest tensor to accept, in bytes of float32; also bounds the body.

        Raises
        ------
        ValueError
            Truncated, damaged, forged or oversized frames, trailing bytes, another version.
        """
        view = memoryview(data).cast("B")
        if len(view) < HEAD.size + DIGEST:
            raise ValueError(
                f"frame: {len(view)} bytes, the shortest frame has {HEAD.size + DIGEST}; truncated?"
            )
        magic, version, keyed, dimensions, *lengths, body_length = HEAD.unpack_from(view)
        if magic != MAGIC:
            raise ValueError(f"frame: begins with {magic!r}, not {MAGIC!r}; not one of our frames")
        if version != VERSION:
            raise ValueError(f"frame: version {version}, this program reads {VERSION}")
        if keyed > 1:
            raise ValueError(f"frame: authentication flag is {keyed}, must be 0 or 1")
        if bool(keyed) != (key is not None):
            raise ValueError(
                "frame: authenticated, but no key was given to check it"
                if keyed
                else "frame: not authenticated, but a key was given; refused"
            )
        if dimensions > MAX_DIMENSIONS or max(lengths) > MAX_NAME:
            raise ValueError(
                f"frame: {dimensions} dimensions and names of {max(lengths)} characters; at most "
                f"{MAX_DIMENSIONS} and {MAX_NAME} are allowed"
            )
        if body_length > limit:
            raise ValueError(f"frame: body of {body_length} bytes exceeds the limit of {limit}")
        whole = HEAD.size + sum(lengths) + 8 * dimensions + body_length + DIGEST
        if whole != len(view):
            what = "truncated" if len(view) < whole else "trailing bytes"
            raise ValueError(f"frame: {what}: says {whole} bytes, has {len(view)}")
        if not hmac.compare_digest(view[-DIGEST:], _digest(key, view[:-DIGEST])):
            raise ValueError(
                "frame: digest does not match; damaged" + (", forged or wrong key" if keyed else "")
            )
        at, names = HEAD.size, []
        for length in lengths:
            names.append(bytes(view[at : at + length]))
            _check_name(names[-1])
            at += length
        shape = struct.unpack_from(f"<{dimensions}Q", view, at)
        if 4 * math.prod(shape) > limit:
            raise ValueError(f"frame: tensor of shape {shape} exceeds the limit of {limit} bytes")
        codec, form, dtype = (name.decode("ascii") for name in names)
        _check_dtype(dtype)
        body = bytes(view[at + 8 * dimensions : -DIGEST])
        return cls(Payload(body, codec, shape, form, dtype))


def _names(payload: Payload) -> tuple[str, str, str]:
    return payload.codec, payload.form, payload.dtype


def _check_name(name: bytes) -> None:
    if len(name) > MAX_NAME or not NAME.match(name):
        raise ValueError(
            f"frame: name {name[:MAX_NAME]!r} must be at most {MAX_NAME} of a-z, 0-9 and _"
        )


def _check_dtype(dtype: str) -> None:
    if dtype and dtype not in ADDABLE:
        raise ValueError(f"frame: dtype {dtype!r} must be empty or one of {', '.join(ADDABLE)}")


def _digest(key: bytes | None, *parts: bytes | memoryview) -> bytes:
    if key is not None and not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ValueError(f"frame: key of {len(key)} bytes, must have 16 to 64")
    digest = hashlib.blake2b(digest_size=DIGEST, key=key or b"")
    for part in parts:
        digest.update(part)
    return digest.digest()
