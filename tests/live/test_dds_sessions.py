"""The handshake of members and who may speak for whom, in this process and without DDS."""

import contextlib
import json
import random
import resource
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from meetings import cut, hear, introduce, members, place, refused
from said import strike_off
from test_dds_segments import mutants

from slowlink.testbed.live.dds import domain, segments, sessions
from slowlink.testbed.live.dds.channel import Assembly
from slowlink.testbed.live.dds.domain import DomainConfig
from slowlink.testbed.live.dds.segments import Refused, Segment
from slowlink.testbed.live.dds.sessions import Access, Sessions


@pytest.fixture(params=[False, True], ids=["open", "identities"])
def folder(request, tmp_path):
    return tmp_path / "keys" if request.param else None


@pytest.mark.parametrize("count", [2, 3, 5])
def test_everybody_hears_everybody(folder, count):
    met = members(count, folder)
    introduce(*met)
    for one in met:
        assert not one.waiting()
        for other in met:
            if one is not other:
                assert hear(one, other)
                (segment,) = cut(other, 0, b"from %d" % other.member)
                assert Assembly(one).add(segment).payload == b"from %d" % other.member


@pytest.mark.parametrize("seed", range(20))
def test_what_is_lost_is_said_again(folder, seed):
    """However many messages of the handshake are lost, both sides agree in the end."""
    draw, (one, other) = random.Random(seed), members(2, folder)
    one.meet(other.card)
    while not (hear(one, other) and not one.waiting() and not other.waiting()):
        if draw.random() < 0.2:
            other.meet(one.card)
        heard = one.waiting() + other.waiting()
        while heard:
            segment = heard.pop(0)
            if draw.random() < 0.5:
                answer = (other if segment.sender == one.member else one).hear(segment)
                heard += [answer] if answer is not None else []


def test_a_body_is_not_in_the_clear(folder):
    one, other = members(2, folder)
    introduce(one, other)
    data = cut(other, 0, b"weights" * 20)[0].serialize()
    assert b"weights" not in data and b"weigh" not in data


def test_a_segment_that_is_still_held_is_in_nobodys_way(folder):
    """As an error's traceback holds the last one, before a larger message."""
    one, other = members(2, folder)
    introduce(one, other)
    _, seal = other.seal()
    held = next(seal.cut(0, b"small"))
    (large,) = (replace(s, body=bytes(s.body)) for s in seal.cut(1, b"larger" * 1000))
    assert len(held.body) == len(b"small") + sessions.TAG
    assert Assembly(one).add(large).payload == b"larger" * 1000


def test_nobody_speaks_for_another(folder):
    """Not even a member who knows the body key, as all do who hear: the tag is the pair's own."""
    one, two, three = members(3, folder)
    introduce(one, two, three)
    (segment,) = cut(three, 0, b"as member 2")
    forged = replace(segment, sender=1, life=two.life)
    assert refused(Assembly(one).add, forged) == "tag"
    body = one._pairs[1].theirs.seal  # what member 2 knows of member 1 as well
    head = (segments.VERSION, 1, two.life, 1, 5, 0, 4)
    insider = Segment(*head, b"", "", b"")
    insider.body = body.encrypt(segments.nonce(5, 0), b"fake", segments.head(insider))
    insider.tags = segment.tags
    assert refused(Assembly(one).add, insider) == "tag"
    insider.tags = b""
    assert refused(Assembly(one).add, insider) == "tag"


def test_reflected_segments_are_nothing(folder):
    """The eight packets that once hung a federation: a stranger sends a member its own again."""
    one, other = members(2, folder)
    said = introduce(one, other)
    (segment,) = cut(one, 0, b"mine")
    assert refused(Assembly(one).add, segment) == "reflection"
    turned = replace(segment, sender=other.member, life=other.life)
    assert refused(Assembly(one).add, turned) == "tag"
    for segment in said:
        whose = one if segment.sender == one.member else other
        assert refused(whose.hear, segment) == "reflection"
        try:
            assert (other if whose is one else one).hear(segment) is None
        except Refused as refusal:
            assert refusal.kind == "replay"
    assert hear(one, other)


def test_a_recorded_handshake_is_nothing_to_another_process(tmp_path):
    """Of the same identities and run: each proof answers what the other has just drawn."""
    folder = tmp_path / "keys"
    one, other = members(2, folder)
    recorded = introduce(one, other)
    (spoken,) = cut(other, 0, b"then")
    again = members(2, folder)[0]
    assert again.read_card(other.card, place(1)) == (1, other.life)
    again.meet(other.card)
    assert all(again.hear(segment) is None for segment in recorded if segment.sender == 1)
    assert not again.hears(1, other.life)
    assert refused(Assembly(again).add, spoken) == "key"


def test_a_card_is_worth_something_at_its_place_only(folder):
    one, other = members(2, folder)
    assert one.read_card(other.card, place(1)) == (1, other.life)
    assert one.read_card(other.card, place(2)) is None
    assert one.read_card(one.card, place(0)) is None  # its own number
    assert one.claimed(other.card) == one.access.names[1] and not one.claimed(one.card)
    assert one.read_card(bytes(len(other.card)), place(1)) is None
    assert one.read_card(other.card[:-1], place(1)) is None


def test_strangers_prove_nothing(tmp_path):
    """Without a key, with a key that is not listed, with the key of another member."""
    names = {0: "rank-0", 1: "rank-1"}
    one, other = members(2, tmp_path / "ours")
    _, theirs = members(2, tmp_path / "theirs")
    plain = Sessions(Access("run", names), "t", 1, place(1))
    mine = one.access.keys
    own = Sessions(Access("run", names, mine), "t", 1, place(1))  # rank-0 says that it is rank-1
    for stranger in (theirs, plain, own):
        assert one.read_card(stranger.card, place(1)) is None
        one.meet(other.card)
        assert not introduce(one, stranger)[0].body[sessions.MEETING.size :]
        assert not one.hears(1, stranger.life)
    beyond = Sessions(Access("run", {0: "rank-0", 7: "rank-7"}), "t", 7, place(7))
    assert members(2)[0].read_card(beyond.card, place(7)) is None  # nobody of that number


def test_who_takes_the_card_of_another_gets_no_keys(folder):
    """A stranger in the middle, who replaces the X25519 key on a card, cannot sign it; with the
    card as it is he cannot answer."""
    one, other = members(2, folder)
    mark, core, signature = sessions.CARD.unpack(other.card)
    draws = Sessions(Access("run", {0: "rank-0", 1: "rank-1"}), "t", 1, place(1))
    mixed = sessions.CARD.pack(mark, sessions.CARD.unpack(draws.card)[1], signature)
    assert one.read_card(mixed, place(1)) is None
    one.meet(other.card)
    (said,) = one.waiting()
    forged = replace(said, sender=1, life=other.life)
    receiver = sessions.MEETING.pack(0, one.life, bytes(64), 0)
    assert refused(one.hear, replace(forged, body=receiver)) == "proof"
    assert not one._pairs[1].proof and not one._grants


def test_a_key_of_small_order_is_no_member():
    one, _ = members(2)
    core = sessions.CORE.pack(1, 5, bytes(32))
    one.meet(sessions.CARD.pack(sessions.MARK, core, bytes(64)))
    assert not one.waiting() and not one._pairs


def test_keys_are_drawn_anew(folder, monkeypatch):
    """After so many messages, without a gap; the old ones are of no use then."""
    monkeypatch.setattr(sessions, "ROTATE", 3)
    one, two, three = members(3, folder)
    introduce(one, two, three)
    assembly, epochs, keys = Assembly(one), [], set()
    for number in range(10):
        grants, seal = two.seal()
        for grant in grants:
            assert one.hear(grant) is None and three.hear(grant) is None
        (segment,) = (replace(s, body=bytes(s.body)) for s in seal.cut(number, b"x"))
        assert assembly.add(segment).payload == b"x"
        epochs.append(segment.epoch)
        keys.add(one._pairs[1].theirs.body)
    assert epochs == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4] and len(keys) == 4
    assert refused(assembly.add, replace(segment, epoch=3)) == "key"


@pytest.mark.parametrize("lost", ["by neither", "by one", "by both"])
def test_who_was_out_of_reach_goes_on(folder, monkeypatch, lost):
    """Keys that were drawn meanwhile are granted; no number of a grant comes twice."""
    monkeypatch.setattr(sessions, "ROTATE", 1)
    one, two = members(2, folder)
    introduce(one, two)
    one.seal(), one.seal()  # what it sends now arrives nowhere
    if lost != "by neither":
        one._pairs.clear()
    if lost == "by both":
        two._pairs.clear()
    assert introduce(one, two) and hear(one, two) and not one.waiting() and not two.waiting()
    if lost == "by neither":
        assert two._pairs[0].theirs.epoch == one._epoch
    said = [sessions.MEETING.unpack_from(segment.body)[3] for segment in introduce(one, two)]
    assert min(said) > 1


def test_who_is_struck_off_the_list_is_out(tmp_path):
    """At once for those who hear of it: neither heard, nor granted the keys that follow."""
    folder = tmp_path / "keys"
    one, two, three = members(3, folder)
    introduce(one, two, three)
    assert one.revoked() is None
    listed = strike_off(folder, "rank-2")
    assert one.revoked() == [2] and two.revoked() == [2]
    assert refused(Assembly(one).add, cut(three, 0, b"x")[0]) == "stranger"
    assert one.read_card(three.card, place(2)) is None
    grants, seal = one.seal()
    assert [sessions.MEETING.unpack_from(grant.body)[0] for grant in grants] == [1]
    (segment,) = seal.cut(0, b"for one")
    assert two.hear(grants[0]) is None
    assert Assembly(two).add(segment).payload == b"for one"
    assert refused(Assembly(three).add, segment) == "key"
    (folder / "members").write_text(listed)  # and back
    assert one.revoked() == [] and one.read_card(three.card, place(2)) == (2, three.life)
    (folder / "members").unlink()
    assert one.revoked() == [1]


def test_a_process_that_starts_anew_replaces_the_old_whatever_the_clock_says(folder):
    """No life is higher than another: a clock that was stepped back keeps nobody out."""
    one, old = members(2, folder)
    introduce(one, old)
    assembly = Assembly(one)
    assert assembly.add(cut(old, 0, b"old")[0]).payload == b"old"
    for life in (old.life + 1 & 2**64 - 1, old.life - 1 & 2**64 - 1):
        new = members(2, folder)[1]
        new.life = life
        core = new._core
        new._core = sessions.CORE.pack(1, life, core[-32:])
        new.card = sessions.CARD.pack(
            sessions.MARK, new._core, new._sign(sessions.MARK + place(1) + new._core)
        )
        introduce(one, new)
        assert assembly.add(cut(new, 0, b"new")[0]).payload == b"new"
        assert refused(assembly.add, cut(old, 1, b"old")[0]) == "stranger"
        assert hear(one, new)


def test_mutated_handshakes_are_refused(folder):
    """A card or message that was changed proves nothing, whoever changed it."""
    count = 2_000 if folder else 10_000
    assert fuzz(members(2, folder), count, 0) == 0


def fuzz(both, count, seed):
    """How many of so many mutated cards, messages of the handshake and segments of messages were
    accepted."""
    one, other = both
    accepted, card = 0, other.card
    for mutant in mutants(b"\0\1\0\0" + card, count // 4, seed):
        accepted += mutant[4:] != card and one.read_card(mutant[4:], place(1)) is not None
    one.meet(card)
    other.meet(one.card)
    (proof,) = other.waiting()
    first = proof.serialize()
    for mutant in mutants(first, count // 4, seed + 1):
        accepted += took(one, mutant)
    assert not one._pairs[1].proof
    granted = other.hear(one.hear(proof)).serialize()
    for mutant in mutants(granted, count // 4, seed + 2):
        accepted += took(one, mutant)
    assert one._pairs[1].theirs is None
    introduce(one, other)
    assert hear(one, other)
    (segment,) = cut(other, 0, bytes(range(100)), "label")
    assembly = Assembly(one)
    for mutant in mutants(segment.serialize(), count // 4, seed + 3):
        found = Segment.deserialize(mutant)
        if found.version == segments.VERSION and not found.epoch:
            accepted += took(one, mutant)
            continue
        with contextlib.suppress(Refused):
            accepted += assembly.add(found) is not None
    assert assembly.add(segment).payload == bytes(range(100))
    return accepted


def took(one, data):
    """Whether a changed message of the handshake changed what its receiver knows."""
    segment, pair = Segment.deserialize(data), one._pairs[1]
    if segment.version != segments.VERSION or segment.epoch:
        return False
    before = pair.proof, pair.theirs, pair.answered, pair.heard
    try:
        one.hear(segment)
    except Refused:
        return False
    return (pair.proof, pair.theirs, pair.answered, pair.heard) != before


def test_several_hosts_need_identities(monkeypatch):
    monkeypatch.delenv("SLOWLINK_KEYS", raising=False)
    here, there = DomainConfig(), DomainConfig("eth0")
    assert domain.keys_folder(None, here) is None
    assert domain.keys_folder(None, DomainConfig(peers=("127.0.0.1",))) is None
    for network in (there, DomainConfig(peers=("10.0.0.2",))):
        with pytest.raises(ValueError, match="keys: needs a folder of identities.*'none'"):
            domain.keys_folder(None, network)
        assert domain.keys_folder("none", network) is None
    assert domain.keys_folder("folder", here) == Path("folder")
    monkeypatch.setenv("SLOWLINK_KEYS", "other")
    assert domain.keys_folder(None, there) == Path("other")


if __name__ == "__main__":  # a long run by hand: python tests/live/test_dds_sessions.py COUNT
    import tempfile

    total = int(sys.argv[1])
    found, peaks = 0, []
    for seed in range(total // 20_000):
        with tempfile.TemporaryDirectory() as name:
            keys = Path(name) / "keys" if seed % 2 else None
            found += fuzz(members(2, keys), 20_000, 10 * seed)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    print(
        json.dumps(dict(mutants=20_000 * len(peaks), accepted=found, kib=peaks[:: len(peaks) - 1]))
    )
