"""The wire frame: worked bytes, and nothing but a ValueError for what is not one."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods.compression import Frame, Payload

PAYLOAD = Payload(bytes(range(12)), "identity", (1, 3), "dense", "float32")
KEY = b"a key of sixteen"

shapes = st.lists(st.integers(0, 50), max_size=8).filter(lambda s: len(s) < 4 or max(s) < 10)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", max_size=32)
payloads = st.builds(
    Payload,
    body=st.binary(max_size=200),
    codec=names,
    shape=shapes.map(tuple),
    form=names,
    dtype=st.sampled_from(["", "float16", "float32", "int64"]),
)
keys = st.none() | st.binary(min_size=16, max_size=64)


def seal(content: bytes, key: bytes = b"") -> bytes:
    """``content`` with its right digest, for frames that are wrong in another way."""
    return content + hashlib.blake2b(content, digest_size=16, key=key).digest()


def header(**changes) -> bytes:
    fields = {"magic": b"SLNK", "version": 1, "keyed": 0, "dimensions": 2}
    fields |= {"codec": 8, "form": 5, "dtype": 7, "body": 12} | changes
    return struct.pack("<4sBBBBBBQ", *fields.values())


REST = b"identitydensefloat32" + struct.pack("<2Q", 1, 3) + bytes(range(12))


def test_bytes_by_hand():
    content = bytes.fromhex("534c4e4b 01 00 02 08 05 07 0c00000000000000")
    content += b"identitydensefloat32"
    content += bytes.fromhex("0100000000000000 0300000000000000 000102030405060708090a0b")
    assert Frame(PAYLOAD).to_bytes() == seal(content)
    assert len(seal(content)) == Frame(PAYLOAD).nbytes == 12 + 18 + 20 + 16 + 16
    keyed = content[:5] + b"\x01" + content[6:]
    assert Frame(PAYLOAD).to_bytes(KEY) == seal(keyed, KEY)


@given(payload=payloads, key=keys)
@settings(max_examples=150, deadline=None)
def test_round_trip(payload, key):
    frame = Frame(payload)
    wire = frame.to_bytes(key)
    assert len(wire) == frame.nbytes
    for data in (wire, bytearray(wire), memoryview(wire)):
        assert Frame.from_bytes(data, key, limit=2**40) == frame


@given(payload=payloads, key=keys, data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_damage_is_a_value_error(payload, key, data):
    wire = bytearray(Frame(payload).to_bytes(key))
    good = bytes(wire)
    at = data.draw(st.integers(0, len(wire) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "tail", "insert", "double"])):
        case "flip":
            wire[at] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del wire[at:]
        case "tail":
            wire += data.draw(st.binary(min_size=1, max_size=40))
        case "insert":
            wire[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        case "double":
            wire += good
    if bytes(wire) == good:
        return
    with pytest.raises(ValueError, match="^frame: "):
        Frame.from_bytes(bytes(wire), key, limit=2**40)


@given(noise=st.binary(max_size=300), key=keys)
@settings(max_examples=200, deadline=None)
def test_noise_is_a_value_error(noise, key):
    for data in (noise, b"SLNK\x01" + bytes([key is not None]) + noise):
        with pytest.raises(ValueError, match="^frame: "):
            Frame.from_bytes(data, key)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(magic=b"HTTP") + REST, "begins with b'HTTP'"),
        (header(version=2) + REST, "version 2, this program reads 1"),
        (header(keyed=2) + REST, "flag is 2"),
        (header(dimensions=9) + REST, "9 dimensions"),
        (header(codec=200) + REST, "names of 200 characters"),
        (header(body=2**63) + REST, "body of 9223372036854775808 bytes exceeds the limit"),
        (header(body=13) + REST, "truncated: says 83 bytes, has 82"),
        (header(body=11) + REST, "trailing bytes: says 81 bytes, has 82"),
        (header() + REST.replace(b"dense", b"DENSE"), "name b'DENSE' must be"),
        (header() + REST.replace(b"dense", b"den\0e"), "name b'den"),
        (header() + REST.replace(b"float32", b"object_"), "dtype 'object_' must be empty or one"),
        (
            header() + b"identitydensefloat32" + struct.pack("<2Q", 2**32, 2**32) + bytes(12),
            "limit",
        ),
        (header() + b"identitydensefloat32" + struct.pack("<2Q", 2**63, 2) + bytes(12), "limit"),
    ],
)
def test_what_is_wrong_is_said(content, message):
    with pytest.raises(ValueError, match=f"^frame: .*{message}"):
        Frame.from_bytes(seal(content))


def test_limit_bounds_body_and_tensor():
    wire = Frame(PAYLOAD).to_bytes()
    assert Frame.from_bytes(wire, limit=12).payload == PAYLOAD
    with pytest.raises(ValueError, match="body of 12 bytes exceeds the limit of 11"):
        Frame.from_bytes(wire, limit=11)
    sparse = Frame(Payload(b"", "dgc", (1_000, 1_000), "pairs")).to_bytes()
    with pytest.raises(ValueError, match=r"\(1000, 1000\) exceeds the limit of 3999999 bytes"):
        Frame.from_bytes(sparse, limit=3_999_999)


def test_authentication():
    keyed, plain = Frame(PAYLOAD).to_bytes(KEY), Frame(PAYLOAD).to_bytes()
    with pytest.raises(ValueError, match="forged or wrong key"):
        Frame.from_bytes(keyed, b"another key of 16")
    with pytest.raises(ValueError, match="no key was given"):
        Frame.from_bytes(keyed)
    with pytest.raises(ValueError, match="not authenticated, but a key was given"):
        Frame.from_bytes(plain, KEY)
    # Who does not know the key cannot change the flag or the body and seal it again.
    stripped = bytearray(keyed[:-16])
    stripped[-1] ^= 1
    with pytest.raises(ValueError, match="forged"):
        Frame.from_bytes(seal(bytes(stripped)), KEY)
    for key in (b"", b"short", b"x" * 65):
        with pytest.raises(ValueError, match="must have 16 to 64"):
            Frame(PAYLOAD).to_bytes(key)


def test_lengths_allocate_nothing_before_they_are_checked():
    bombs = [
        header(body=2**29) + REST,
        header(body=2**62) + REST,
        header() + b"identitydensefloat32" + struct.pack("<2Q", 2**40, 2**40) + bytes(12),
    ]
    tracemalloc.start()
    for bomb in bombs:
        with pytest.raises(ValueError, match="^frame: "):
            Frame.from_bytes(seal(bomb))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Payload(b"", "Upper", ()), "name b'Upper'"),
        (Payload(b"", "x" * 33, ()), "at most 32"),
        (Payload(b"", "naïve", ()), "name b'na"),
        (Payload(b"", "identity", (1,) * 9), "9 dimensions, at most 8 fit"),
        (Payload(b"", "identity", (-1,)), "not of sizes >= 0"),
        (Payload(b"", "identity", (1,), "dense", "object"), "dtype 'object'"),
    ],
)
def test_what_no_frame_can_carry(payload, message):
    with pytest.raises(ValueError, match=f"^frame: .*{message}"):
        Frame(payload).to_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_a_payload_of_a_tensor_has_its_bytes_when_asked(dtype):
    values = torch.arange(6).to(getattr(torch, dtype)).view(2, 3)
    wanted = values.numpy().tobytes()
    payload = Payload(values, "identity", (2, 3), "dense", dtype)
    assert payload.content.data_ptr() == values.data_ptr() and payload.nbytes == len(wanted)
    assert payload.elements.tolist() == list(range(6))
    assert payload == Payload(wanted, "identity", (2, 3), "dense", dtype)
    assert payload.body == payload.content == wanted
    assert payload.elements.tolist() == list(range(6))
