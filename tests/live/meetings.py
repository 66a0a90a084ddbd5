"""Members of a topic that meet in this process, without DDS."""

from dataclasses import replace

import pytest

from slowlink.testbed.live.dds.segments import Refused
from slowlink.testbed.live.dds.sessions import Access, Sessions
from slowlink.testbed.live.identity import Keys, make


def members(count=2, folder=None, run="run", topic="t", names=None):
    """``count`` members of a topic, with identities in ``folder`` or none."""
    named = dict(enumerate(names or [f"rank-{rank}" for rank in range(count)]))
    if folder is not None and not (folder / "members").exists():
        make(folder, list(named.values()))
    made = []
    for rank in range(count):
        keys = Keys(folder, named[rank]) if folder is not None else None
        made.append(Sessions(Access(run, named, keys), topic, rank, place(rank)))
    return made


def place(rank):
    return bytes([rank]) * 16


def introduce(*sessions):
    """Everybody reads everybody's card, and they talk until nothing is left to be said; returns
    all that was said."""
    for one in sessions:
        for other in sessions:
            if one is not other and one.read_card(other.card, place(other.member)):
                one.meet(other.card)
    said = []
    for _ in range(10):
        heard = [segment for one in sessions for segment in one.waiting()]
        while heard:
            segment = heard.pop(0)
            said.append(segment)
            answers = [one.hear(segment) for one in sessions if one.member != segment.sender]
            heard += [answer for answer in answers if answer is not None]
    return said


def hear(one, other):
    """Whether they hear each other."""
    return one.hears(other.member, other.life) and other.hears(one.member, one.life)


def cut(sender, number, payload, label="", size=1 << 20):
    """All segments of a message, each with a body of its own, and no grants before."""
    grants, seal = sender.seal()
    assert not grants
    parts = seal.cut(number, payload, label, size)
    return [replace(part, body=bytes(part.body)) for part in parts]


def refused(do, *arguments):
    """The kind of the refusal that ``do`` ends with."""
    with pytest.raises(Refused) as refusal:
        do(*arguments)
    return refusal.value.kind
