"""Segments and their reassembly, in this process and without DDS."""

import hmac
import random
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cyclonedds.idl import IdlStruct

from slowlink.testbed.live.dds import channel, segments
from slowlink.testbed.live.dds.channel import Assembly, _Memory
from slowlink.testbed.live.dds.segments import Refused, Segment, check, cut, load_secret, run_key

SECRET = b"sixteen bytes and more"
KEY = run_key("run", SECRET)
PLAIN = run_key("run")


def read(data: bytes, key=KEY) -> Segment:
    """As a receiver does it."""
    segment = Segment.deserialize(data)
    check(segment, key)
    return segment


def stock(segment: Segment) -> bytes:
    return IdlStruct.serialize(segment, use_version_2=False)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 1000, 4097])
@pytest.mark.parametrize("label", ["", "a", "abc", "layer1.conv", "größer", "x" * 255])
def test_fast_bytes_are_the_stock_ones(label, length):
    body = np.random.default_rng(length).bytes(length)
    (segment,) = cut(KEY, 2**32 - 1, 2**63, 2**40 + 1, body, label)
    assert segments.FAST
    assert segment.serialize() == stock(segment)
    assert len(stock(segment)) == segment.nbytes == segments.wire_bytes(length, label)
    padded = stock(segment) + bytes(-segment.nbytes % 4)
    for data in (stock(segment), padded):  # Cyclone hands over whole words
        slow = Segment.__idl__.deserialize(data)
        fast = Segment.deserialize(data)
        assert (bytes(fast.body), list(fast.tag)) == (body, list(slow.tag))
        assert (fast.sender, fast.life, fast.number) == (slow.sender, slow.life, slow.number)
        assert (fast.start, fast.total, fast.label) == (slow.start, slow.total, slow.label)
        assert list(slow.body) == list(body)
    read(padded)


def test_falls_back_to_the_stock_layer(monkeypatch):
    (segment,) = cut(KEY, 1, 2, 3, b"body", "label")
    data = segment.serialize()
    monkeypatch.setattr(segments, "_encode", lambda segment: b"changed")
    assert not segments._agrees()
    monkeypatch.setattr(segments, "FAST", False)
    assert segment.serialize() == data
    assert read(data) == segment
    with pytest.raises(Refused, match="version 0") as refused:
        read(b"\0\1\0\0rubbish")
    assert refused.value.kind == "form"


@pytest.mark.parametrize("key", [KEY, PLAIN])
def test_mutated_segments_are_refused(key):
    (segment,) = cut(key, 1, 2, 3, bytes(range(64)), "layer1.conv")
    whole = segment.serialize()
    assert len(whole) % 4 == 0  # no padding, so that each byte counts
    read(whole, key)
    random_ = random.Random(0)
    mutants = set()
    while len(mutants) < 50_000:
        data = bytearray(whole)
        kind = random_.randrange(4)
        for _ in range(random_.randint(1, 4)):
            if kind == 0:
                data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
            elif kind == 1:
                data[random_.randrange(len(data))] = random_.randrange(256)
            elif kind == 2:
                at = random_.randrange(len(data))
                del data[at : at + random_.randint(1, 8)]
            else:
                at = random_.randrange(len(data) + 1)
                data[at:at] = random_.randbytes(random_.randint(1, 8))
            if not data:
                break
        # The last byte of the encapsulation is Cyclone's own, 0 to 3, and means nothing.
        if bytes(data[:3] + data[4:]) != whole[:3] + whole[4:] or data[3] > 3:
            mutants.add(bytes(data))
    for mutant in mutants:
        with pytest.raises(Refused):
            read(mutant, key)


def test_other_secrets_runs_and_versions_are_refused():
    data = next(cut(KEY, 1, 2, 3, b"body")).serialize()
    others = [PLAIN, run_key("run", SECRET + b"!"), run_key("another", SECRET)]
    for other in others:
        with pytest.raises(Refused, match="tag"):
            read(data, other)
        with pytest.raises(Refused, match="tag"):
            read(next(cut(other, 1, 2, 3, b"body")).serialize())
    segment = read(data)
    segment.version = 1
    with pytest.raises(Refused, match="version 1, this program reads 2"):
        check(segment, KEY)


@pytest.mark.parametrize("label, body", [("", b""), ("größer", bytes(range(256)) * 5)])
def test_tag_is_that_of_aes_gcm_under_a_key_of_hkdf(label, body):
    sender, life, number = 7, 2**63 + 1, 2**48 - 1
    *_, last = cut(KEY, sender, life, number, body, label, size=100)
    info = b"slowlink segments\0" + struct.pack("<IQ", sender, life)
    key = hmac.digest(KEY.material, info + b"\1", "sha256")  # RFC 5869 §2.3, one block
    nonce = number.to_bytes(6, "big") + last.start.to_bytes(6, "big")
    gcm = Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()
    gcm.authenticate_additional_data(bytes(last.body))
    text = label.encode()
    gcm.update(struct.pack("<IIQQQQ", 2, sender, life, number, last.start, len(body)))
    gcm.update(struct.pack("<I", len(text)) + text)
    gcm.finalize()
    assert last.tag == gcm.tag


@pytest.mark.parametrize("field", ["number", "start"])
def test_numbers_too_large_for_a_nonce_are_refused(field):
    segment = next(cut(KEY, 1, 2, 3, b"body"))
    setattr(segment, field, 2**48)
    with pytest.raises(Refused, match="tag"):
        check(segment, KEY)


def test_sessions_have_keys_of_their_own():
    nonces = [bytes([rank]) * 32 for rank in range(3)]
    sessions = [nonces, nonces[::-1], nonces[:2], [*nonces[:2], bytes(32)]]
    keys = {KEY.derive(session) for session in sessions} | {KEY, PLAIN.derive(nonces)}
    assert len(keys) == 6
    assert KEY.derive(iter(nonces)) == KEY.derive(nonces)
    assert len({key.sign(b"member 1") for key in keys} | {KEY.sign(b"member 2")}) == 7


def test_lengths_are_checked_before_anything_is_allocated():
    assembly = Assembly(KEY, limit=1000)
    huge = Segment(2, 0, 1, 0, 0, 2**60, b"", "", b"x")
    outside = Segment(2, 0, 1, 0, 8, 10, b"", "", b"abc")
    empty = Segment(2, 0, 1, 0, 0, 10, b"", "", b"")
    for segment, why in ((huge, "at most 1000"), (outside, "3 bytes at 8"), (empty, "0 bytes")):
        segment.tag = segments._tag(segment, KEY)
        with pytest.raises(Refused, match=why) as refusal:
            assembly.add(segment)
        assert refusal.value.kind == "length"
    with pytest.raises(ValueError, match="at most 255 bytes"):
        next(cut(KEY, 1, 2, 3, b"", "x" * 256))


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 1000])
def test_messages_survive_any_order_and_duplicates(length):
    payload = np.random.default_rng(length).bytes(length)
    parts = list(cut(KEY, 5, 6, 7, payload, "label", size=100))
    assert len(parts) == max(1, -(-length // 100))
    assert sum(part.nbytes for part in parts) == segments.wire_bytes(length, "label", 100)
    for seed in range(20):
        assembly = Assembly(KEY)
        *early, last = random.Random(seed).sample(parts, len(parts))
        for part in early + early:
            assert assembly.add(part) is None
        message = assembly.add(last)
        assert bytes(message.payload) == payload
        assert (message.sender, message.life, message.number) == (5, 6, 7)
        assert message.label == "label"
        assert message.frame_bytes == segments.wire_bytes(length, "label", 100)


def test_messages_of_several_senders_mix():
    payloads = {sender: np.random.default_rng(sender).bytes(500) for sender in range(4)}
    parts = [part for who, data in payloads.items() for part in cut(KEY, who, 1, 0, data, "", 64)]
    random.Random(0).shuffle(parts)
    assembly = Assembly(KEY)
    messages = [message for part in parts if (message := assembly.add(part))]
    assert {message.sender: bytes(message.payload) for message in messages} == payloads


HOLDERS = {
    "payload": lambda payload: payload,
    "part": lambda payload: payload[3:-3],
    "array": lambda payload: np.frombuffer(payload, np.uint8)[5:],
    "array of another type": lambda payload: np.frombuffer(payload[:40], "<f4").reshape(2, 5)[:, 1],
    "exporter": lambda payload: np.asarray(payload.obj)[7:],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_is_never_overwritten(holder, monkeypatch):
    """While other messages come and go, in the memory of those that nobody holds any more."""
    memory = _Memory(10_000)
    monkeypatch.setattr(channel, "_memory", memory)
    assembly, draw, held, used = Assembly(KEY), random.Random(0), {}, 0
    for number in range(300):
        payload = draw.randbytes(draw.randint(150, 500))
        reused = len(memory._idle)
        for part in cut(KEY, 1, 2, number, payload, size=100):
            message = assembly.add(part)
            if part.start == 0:
                used += len(memory._idle) < reused
        assert bytes(message.payload) == payload
        held[draw.randrange(10)] = (
            HOLDERS[holder](message.payload),
            HOLDERS[holder](memoryview(np.frombuffer(payload, np.uint8))),
        )
        del message
        assert all(bytes(ours) == bytes(expected) for ours, expected in held.values())
    assert used > 100


def test_idle_memory_is_used_again_and_bounded():
    memory = _Memory(100)

    def address(view):
        return np.frombuffer(view, np.uint8).ctypes.data

    first, second = memory.take(60), memory.take(50)
    place = address(second)
    del first, second
    assert sum(map(len, memory._idle)) == 50
    short = memory.take(24)  # less than half of it
    assert len(memory._idle) == 1 and len(short) == 24
    again = memory.take(25)
    assert address(again) == place and len(again) == 25 and not memory._idle
    huge = memory.take(101)
    del huge, again, short
    assert sum(map(len, memory._idle)) <= 100
    part = memory.take(80)[10:20]
    assert memory.take(80).obj is not part.obj


def test_replays_are_refused():
    assembly = Assembly(KEY)

    def send(life, number):
        return assembly.add(next(cut(KEY, 1, life, number, b"x")))

    assert send(10, 0) and send(10, 1) and send(10, 5)  # a late joiner misses some
    for again in ((10, 5), (10, 1), (9, 6)):
        with pytest.raises(Refused) as refusal:
            send(*again)
        assert refusal.value.kind == "replay"
    assert send(11, 0)  # started again
    with pytest.raises(Refused):
        send(10, 6)


def test_parts_that_contradict_each_other_are_refused():
    assembly = Assembly(KEY)
    first, second = cut(KEY, 1, 2, 3, bytes(200), "a", size=100)
    assert assembly.add(first) is None
    for change in (dict(total=300), dict(label="b"), dict(start=50)):
        wrong = Segment(**(vars(second) | change))
        wrong.tag = segments._tag(wrong, KEY)
        with pytest.raises(Refused) as refusal:
            assembly.add(wrong)
        assert refusal.value.kind == "parts"
    assert assembly.add(second).payload == bytes(200)


def test_secrets_come_from_a_file_or_the_environment(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert load_secret(path, {}) == SECRET
    assert load_secret(None, {"SLOWLINK_KEY": SECRET.decode()}) == SECRET
    assert load_secret(None, {}) is None
    path.write_bytes(b"short\n")
    with pytest.raises(ValueError, match="secret of 5 bytes, needs at least 16"):
        load_secret(path, {})
    with pytest.raises(ValueError, match="SLOWLINK_KEY: secret of 0 bytes"):
        load_secret(None, {"SLOWLINK_KEY": " "})
    with pytest.raises(ValueError, match="needs a name"):
        run_key("")


def test_a_key_does_not_show_its_material():
    key = segments.run_key("run", b"of at least 16 bytes")
    assert repr(key) == "Key()" == str(key)
