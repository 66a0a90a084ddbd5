"""Segments and their reassembly, in this process and without DDS."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cyclonedds.idl import IdlStruct
from meetings import cut, introduce, members, refused

from slowlink.testbed.live.dds import channel, segments
from slowlink.testbed.live.dds.channel import Assembly, _Memory
from slowlink.testbed.live.dds.segments import Refused, Segment, check
from tests.live.mutants import mutants


@pytest.fixture(params=[2, 3], ids=["pair", "three"])
def met(request):
    """Members that hear each other; of two, the body's own tag is all there is."""
    made = members(request.param)
    introduce(*made)
    return made


@pytest.fixture
def receive(met):
    """What makes a new assembly of member 0, for parts of so many bytes."""
    return lambda size=segments.CUT, **limits: Assembly(met[0], size=size, **limits)


def stock(segment: Segment) -> bytes:
    return IdlStruct.serialize(segment, use_version_2=False)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 1000, 4097])
@pytest.mark.parametrize("label", ["", "a", "abc", "layer1.conv", "größer", "x" * 255])
def test_fast_bytes_are_the_stock_ones(met, length, label):
    body = np.random.default_rng(length).bytes(length)
    (segment,) = cut(met[1], 2**40 + 1, body, label)
    assert segments.FAST
    assert segment.serialize() == stock(segment)
    receivers = len(met) - 1
    assert len(stock(segment)) == segment.nbytes == segments.wire_bytes(length, label, receivers)
    padded = stock(segment) + bytes(-segment.nbytes % 4)
    for data in (stock(segment), padded):  # Cyclone hands over whole words
        slow = Segment.__idl__.deserialize(data)
        fast = Segment.deserialize(data)
        assert (bytes(fast.body), list(fast.tags)) == (segment.body, list(slow.tags))
        assert (fast.sender, fast.life, fast.number) == (slow.sender, slow.life, slow.number)
        assert (fast.epoch, fast.version) == (slow.epoch, slow.version)
        assert (fast.start, fast.total, fast.label) == (slow.start, slow.total, slow.label)
        assert list(slow.body) == list(segment.body)
    assert Assembly(met[0]).add(Segment.deserialize(padded)).payload == body


def test_falls_back_to_the_stock_layer(met, monkeypatch):
    (segment,) = cut(met[1], 3, b"body", "label")
    data = segment.serialize()
    monkeypatch.setattr(segments, "_encode", lambda segment: b"changed")
    assert not segments._agrees()
    monkeypatch.setattr(segments, "FAST", False)
    assert segment.serialize() == data
    assert Segment.deserialize(data) == segment
    with pytest.raises(Refused, match="version 0") as refusal:
        check(Segment.deserialize(b"\0\1\0\0rubbish"))
    assert refusal.value.kind == "form"


def same(data: bytes, whole: bytes) -> bool:
    """The last byte of the encapsulation is Cyclone's own, 0 to 3, and means nothing."""
    return data[:3] + data[4:] == whole[:3] + whole[4:] and data[3] <= 3


mutants = partial(mutants, same=same)


def own_tag(segment: Segment) -> bytes:
    """What the segment says to member 0; what it says to others is nothing to it."""
    tags = [segment.tags[at : at + 20] for at in range(0, len(segment.tags), 20)]
    return next((tag for tag in tags if tag[:4] == bytes(4)), b"")


def test_mutated_segments_are_refused(met, receive):
    (segment,) = cut(met[1], 3, bytes(range(64)), "layer1.conv")
    whole = segment.serialize()
    assert len(whole) % 4 == 0  # no padding, so that each byte counts
    assembly, kinds = receive(), set()
    for mutant in mutants(whole, 25_000):
        found = Segment.deserialize(mutant)
        if found.version == segments.VERSION and not found.epoch:
            continue  # a message of the handshake, see test_dds_sessions
        if own_tag(found) == own_tag(segment) and replace(found, tags=segment.tags) == segment:
            continue
        kinds.add(refused(assembly.add, found))
    assert kinds == {"form", "version", "length", "reflection", "stranger", "key", "tag"}
    assert not assembly._senders
    assert assembly.add(Segment.deserialize(whole)).payload == bytes(range(64))


def test_other_runs_topics_and_versions_are_refused(met, receive):
    for other in (dict(run="another"), dict(topic="another"), {}):
        strangers = members(len(met), **other)
        introduce(*strangers)
        (segment,) = cut(strangers[1], 0, b"body")
        with pytest.raises(Refused, match="no process that proved to be member 1"):
            receive().add(segment)
        with pytest.raises(Refused, match="tag|changed"):
            receive().add(replace(segment, life=met[1].life))
    (segment,) = cut(met[1], 0, b"body")
    segment.version = 1
    with pytest.raises(Refused, match="version 1, this program reads 3"):
        receive().add(segment)


@pytest.mark.parametrize("label, body", [("", b""), ("größer", bytes(range(256)) * 5)])
def test_bodies_are_aes_gcm(met, label, body):
    """Against another interface of the library, from the keys of the grant."""
    *_, last = cut(met[1], 2**48 - 1, body, label, size=100)
    place = (2**48 - 1).to_bytes(6, "big") + last.start.to_bytes(6, "big")
    theirs = met[0]._pairs[1].theirs

    def gcm(key, data, text):
        made = Cipher(algorithms.AES(key), modes.GCM(place)).encryptor()
        made.authenticate_additional_data(data)
        return made.update(text) + made.finalize(), made.tag

    head = segments.head(last)
    sealed, tag = gcm(theirs.body, head, body[last.start :])
    assert last.body == sealed + tag
    if len(met) == 2:
        assert last.tags == b""
    else:
        _, tag = gcm(theirs.tag, last.body, head)
        mine = dict(zip(last.tags[0::20], range(0, len(last.tags), 20), strict=True))[0]
        assert last.tags[mine + 4 : mine + 20] == tag


@pytest.mark.parametrize("field", ["number", "start"])
def test_numbers_too_large_for_a_nonce_are_refused(met, receive, field):
    (segment,) = cut(met[1], 3, b"body")
    setattr(segment, field, 2**48)
    assert refused(receive().add, segment) == "length"


def test_lengths_are_checked_before_anything_is_kept(met, receive):
    (whole,) = cut(met[1], 0, b"abc")
    assembly = receive(size=100, limit=1000)
    for change, why in (
        (dict(total=2**60), "at most 1000"),
        (dict(total=10), "3 bytes at 0 of 10"),
        (dict(total=0), "3 bytes at 0 of 0"),
        (dict(start=100, total=100), "3 bytes at 100 of 100"),
        (dict(start=97, total=100), "3 bytes at 97 of 100"),
        (dict(body=b""), "-16 bytes"),
        (dict(start=100, total=100, body=bytes(16)), "0 bytes at 100"),
    ):
        with pytest.raises(Refused, match=why) as refusal:
            assembly.add(replace(whole, **change))
        assert refusal.value.kind == "length"
    assert not assembly._senders
    with pytest.raises(ValueError, match="at most 255 bytes"):
        cut(met[1], 1, b"", "x" * 256)


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 1000])
def test_messages_survive_any_order_and_duplicates(met, receive, length):
    payload = np.random.default_rng(length).bytes(length)
    parts = cut(met[1], 7, payload, "label", size=100)
    receivers = len(met) - 1
    assert len(parts) == max(1, -(-length // 100))
    assert sum(part.nbytes for part in parts) == segments.wire_bytes(
        length, "label", receivers, 100
    )
    for seed in range(20):
        assembly = receive(size=100)
        *early, last = random.Random(seed).sample(parts, len(parts))
        for part in early + early:
            assert assembly.add(part) is None
        message = assembly.add(last)
        assert bytes(message.payload) == payload
        assert (message.sender, message.life, message.number) == (1, met[1].life, 7)
        assert message.label == "label"
        assert message.frame_bytes == segments.wire_bytes(length, "label", receivers, 100)


def test_messages_of_several_senders_mix():
    made = members(5)
    introduce(*made)
    payloads = {sender: np.random.default_rng(sender).bytes(500) for sender in range(1, 5)}
    parts = [part for who, data in payloads.items() for part in cut(made[who], 0, data, "", 64)]
    random.Random(0).shuffle(parts)
    assembly = Assembly(made[0], size=64)
    messages = [message for part in parts if (message := assembly.add(part))]
    assert {message.sender: bytes(message.payload) for message in messages} == payloads


def test_small_parts_cannot_make_anybody_hold_much(met, receive):
    """512 parts of one byte once cost 1 GiB, and their number squared in time."""
    _, seal = met[1].seal()
    assembly = receive()
    for start in range(512):
        head = segments.VERSION, 1, met[1].life, seal.epoch, start, 0, 1 << 30
        crumb = Segment(*head, b"", "", b"")
        crumb.body = seal.body.encrypt(segments.nonce(start, 0), b"x", segments.head(crumb))
        with pytest.raises(Refused, match="1 bytes at 0 of 1073741824"):
            assembly.add(crumb)
    assert not assembly._senders


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
    met = members()
    introduce(*met)
    assembly, draw, held, used = Assembly(met[0], size=100), random.Random(0), {}, 0
    for number in range(300):
        payload = draw.randbytes(draw.randint(150, 500))
        reused = len(memory._idle)
        for part in cut(met[1], number, payload, size=100):
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


def test_replays_are_refused(met, receive):
    assembly = receive()

    def send(number, **change):
        return assembly.add(replace(cut(met[1], number, b"x")[0], **change))

    assert send(0) and send(1) and send(5)  # a late joiner misses some
    for again in (5, 1):
        assert refused(send, again) == "replay"
    for life in (0, 2**64 - 1):  # nobody is muted by a life that he never had
        assert refused(partial(send, 9, life=life)) == "stranger"
    assert send(6)


def test_parts_that_contradict_each_other_are_refused(met, receive):
    assembly, (_, seal) = receive(size=100), met[1].seal()

    def parts(length, label):
        made = seal.cut(3, bytes(length), label, size=100)
        return [replace(part, body=bytes(part.body)) for part in made]

    first, second = parts(200, "a")
    assert assembly.add(first) is None
    for wrong in (parts(300, "a")[1], parts(200, "b")[1]):
        assert refused(assembly.add, wrong) == "parts"
    assert assembly.add(second).payload == bytes(200)
