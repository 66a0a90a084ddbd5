"""Sessions between members: a signed handshake a pair, and keys a direction; no DDS in here.

A member draws an X25519 key (RFC 7748) and a number (``life``) when it starts, and publishes both
on a card that it signs. Of each pair, both members then sign the two cards together, so that each
proof answers what the other has just drawn and no recording is one. From the pair's shared secret
both derive (HKDF, RFC 5869) a key a direction that seals nothing but *grants*: the keys, drawn
anew, of what the granting member sends:

- its body key, the same for all who may hear it, with which a message is encrypted once;
- where more than two are on the topic, a tag key, known to the pair only, with which each segment
  is authenticated for this receiver: a third member knows the body key and can still not speak for
  the sender.

Both are AES-128-GCM (NIST SP 800-38D), the nonce is the place in the message and its number. After
:data:`ROTATE` messages, and when a member is revoked, the sender draws keys anew and grants them to
those who remain.

What is not encrypted: who sends, how long messages are, and their labels. Without identities the
same is done and proves nothing about who it is: it keeps out damage, other runs, recordings and
whoever only repeats what is sent, but nobody who takes part in the handshake himself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from slowlink.testbed.live.dds import segments
from slowlink.testbed.live.dds.segments import CUT, TAG, TAGGED, VERSION, Refused, Segment, nonce
from slowlink.testbed.live.identity import Keys, proven

ROTATE = 1 << 16
"""Messages after which a sender draws keys anew."""

KEY = 16
"""Bytes of a key."""

CORE = struct.Struct("<IQ32s")
"""Of a card what a pair signs: member, life, X25519 key."""

SIGNATURE = 64
CARD = struct.Struct(f"<16s{CORE.size}s{SIGNATURE}s")
MARK = b"slowlink card 3\0"
MEETING_MARK = b"slowlink proof 3"

MEETING = struct.Struct(f"<IQ{SIGNATURE}sQ")
"""Whom a meeting's message is for and the life of his, the proof, and the grant's number."""

GRANT = struct.Struct(f"<I{KEY}s{KEY}s??")
"""Epoch, body key, tag key; whether who sends the grant has one of the receiver, and whether he
knows that the receiver has one of his, so that nothing is left to be said."""


@dataclass(frozen=True)
class Access:
    """Who may be on a topic.

    Attributes
    ----------
    run: name that no other run has meanwhile; it goes into every key.
    names: of all members, by number, this one included.
    keys: of this member; None does without identities.
    """

    run: str
    names: Mapping[int, str]
    keys: Keys | None = None

    def __post_init__(self) -> None:
        if not self.run:
            raise ValueError("run: needs a name that no other run has, such as secrets.token_hex()")


@dataclass(frozen=True)
class _Granted:
    """What a member sends one other under, from one grant to the next."""

    epoch: int
    body: bytes = field(repr=False)
    tag: bytes = field(repr=False)
    seal: AESGCM = field(init=False, repr=False)
    sign: AESGCM = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seal", AESGCM(self.body))
        object.__setattr__(self, "sign", AESGCM(self.tag))


@dataclass
class _Pair:
    """What is known of one other member.

    ``public`` is the identity that its card was signed with, ``proof`` what it has proved itself
    with, ``answered`` whether it has a grant of this one, ``heard`` the number of the latest grant
    of it, and ``owed`` whether it may lack one of this one's.
    """

    member: int
    life: int
    core: bytes
    public: bytes
    sealing: AESGCM
    opening: AESGCM
    proof: bytes = b""
    answered: bool = False
    owed: bool = False
    heard: int = 0
    ours: _Granted | None = None
    theirs: _Granted | None = None

    @property
    def done(self) -> bool:
        """Whether both hear each other."""
        return self.theirs is not None and self.answered


class Sessions:
    """What one member shares with each other member of a topic; any thread may call anything.

    Parameters
    ----------
    topic, member: the topic and this member of it.
    place: what names this process in the network; its card is worth nothing elsewhere.
    """

    def __init__(self, access: Access, topic: str, member: int, place: bytes) -> None:
        self.member, self.access, self.life = member, access, secrets.randbits(64)
        run = access.run.encode()
        context = b"slowlink dds 3\0" + struct.pack("<I", len(run)) + run + topic.encode()
        self._context = hashlib.sha256(context).digest()
        self._secret = X25519PrivateKey.generate()
        self._core = CORE.pack(member, self.life, self._secret.public_key().public_bytes_raw())
        self.card = CARD.pack(MARK, self._core, self._sign(MARK + place + self._core))
        self._pairs: dict[int, _Pair] = {}
        self._listed = access.keys.allowed() if access.keys else None
        self._lock = threading.RLock()
        self._epoch, self._sent, self._body = 1, 0, secrets.token_bytes(KEY)
        self._grants = 0  # of all pairs, so that no number comes twice under any key
        self._many = len(access.names) > 2
        self._buffer = bytearray()

    # Who is there -------------------------------------------------------------------------------

    def claimed(self, card: bytes) -> str:
        """Name of the other member that ``card`` says it is of, proven or not; empty of none."""
        if len(card) != CARD.size:
            return ""
        mark, core, _ = CARD.unpack(card)
        member = CORE.unpack(core)[0]
        other = mark == MARK and member != self.member
        return self.access.names.get(member, "") if other else ""

    def read_card(self, card: bytes, place: bytes) -> tuple[int, int] | None:
        """Member and life of who publishes ``card`` at ``place`` and proves to be it; or None."""
        if not self.claimed(card):
            return None
        _, core, signature = CARD.unpack(card)
        member, life, _ = CORE.unpack(core)
        return (member, life) if self._proven(member, signature, MARK + place + core) else None

    def meet(self, card: bytes) -> None:
        """Begin with who published ``card``, which :meth:`read_card` has taken, in the place of any
        earlier process that was this member; or go on with who was out of reach."""
        core = CARD.unpack(card)[1]
        member, life, public = CORE.unpack(core)
        with self._lock:
            before = self._pairs.get(member)
            if before is not None and before.life == life:
                before.owed = True
                return
            try:
                shared = self._secret.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError:  # a key of small order, which gives no secret
                return
            one, other = (
                self._derive(shared, both) for both in (self._core + core, core + self._core)
            )
            self._pairs[member] = _Pair(member, life, core, self._identity(member), one, other)

    def hears(self, member: int, life: int) -> bool:
        """Whether this process and that one hear each other."""
        with self._lock:
            pair = self._pairs.get(member)
            return pair is not None and pair.life == life and pair.done

    def waiting(self) -> list[Segment]:
        """What to say to those with whom the handshake is not over."""
        with self._lock:
            pairs = self._pairs.values()
            return [self._say(pair) for pair in pairs if pair.owed or not pair.done]

    def revoked(self) -> list[int] | None:
        """Who was there and is not on the list of members any more; None if the list is the same.

        Nothing of them is taken from here on, and nothing that is sent from the next message on is
        for them.
        """
        listed = self.access.keys.allowed() if self.access.keys else None
        with self._lock:
            if listed is self._listed:
                return None
            self._listed, pairs = listed, self._pairs.values()
            gone = [pair.member for pair in pairs if pair.public != self._identity(pair.member)]
            for member in gone:
                del self._pairs[member]
                self._sent = ROTATE
            return gone

    # The handshake ------------------------------------------------------------------------------

    def hear(self, segment: Segment) -> Segment | None:
        """Take a message of the handshake; returns what to answer, if anything.

        Raises
        ------
        Refused
            A reflection; a proof that is none; a grant that is damaged or came before.
        """
        unused = segment.number, segment.start, segment.total, segment.tags, segment.label
        if len(segment.body) < MEETING.size or any(unused):
            raise Refused("form", f"handshake of {len(segment.body)} bytes")
        receiver, life, proof, number = MEETING.unpack_from(segment.body)
        sealed = bytes(segment.body[MEETING.size :])
        if bool(sealed) != bool(number):
            raise Refused("form", f"grant {number} of {len(sealed)} bytes")
        with self._lock:
            if segment.sender == self.member:
                raise Refused("reflection", "this member's own handshake, from another")
            pair = self._pairs.get(segment.sender)
            if pair is None or pair.life != segment.life:
                return None  # whose card is not read yet, or never will be
            if (receiver, life) != (self.member, self.life):
                return None  # for another, or for an earlier process
            text = MEETING_MARK + self._context + pair.core + self._core
            # A proof that was looked at is not looked at again: that takes longer than to send it.
            if pair.proof != proof and not self._proven(pair.member, proof, text):
                raise Refused("proof", f"member {pair.member} does not prove who it is")
            pair.proof = proof
            if not sealed:
                pair.owed = True
                return None if pair.done else self._say(pair)
            if number <= pair.heard:
                raise Refused("replay", f"grant {number} of member {pair.member} comes again")
            try:
                opened = pair.opening.decrypt(nonce(0, number), sealed, None)
                epoch, body, tag, answered, over = GRANT.unpack(opened)
            except (InvalidTag, struct.error):
                raise Refused("tag", f"grant of member {pair.member} does not match") from None
            if pair.theirs is None or epoch > pair.theirs.epoch:
                pair.theirs = _Granted(epoch, body, tag)
            pair.heard, pair.answered = number, pair.answered or answered
            return None if over else self._say(pair)

    def _say(self, pair: _Pair) -> Segment:
        sealed, number = b"", 0
        pair.owed = False
        if pair.proof:
            if pair.ours is None or pair.ours.epoch != self._epoch:
                pair.ours = _Granted(self._epoch, self._body, secrets.token_bytes(KEY))
            number = self._grants = self._grants + 1
            ours = pair.ours
            here = pair.theirs is not None, pair.done
            grant = GRANT.pack(ours.epoch, ours.body, ours.tag, *here)
            sealed = pair.sealing.encrypt(nonce(0, number), grant, None)
        proof = self._sign(MEETING_MARK + self._context + self._core + pair.core)
        head = MEETING.pack(pair.member, pair.life, proof, number)
        return Segment(VERSION, self.member, self.life, 0, 0, 0, 0, b"", "", head + sealed)

    # Messages -----------------------------------------------------------------------------------

    def seal(self) -> tuple[list[Segment], Seal]:
        """For one message: what has to be sent before it, and what its segments are made with."""
        with self._lock:
            if self._sent >= ROTATE:
                self._epoch, self._sent = self._epoch + 1, 0
                self._body = secrets.token_bytes(KEY)
            self._sent += 1
            pairs = [pair for pair in self._pairs.values() if pair.done]
            grants = []
            for pair in pairs:
                if pair.ours.epoch != self._epoch:
                    grants.append(self._say(pair))
                    pair.owed = True  # and once more, as this one may not find room at a reader
            signs = [(pair.member, pair.ours.sign) for pair in pairs] if self._many else []
            body = AESGCM(self._body)
            return grants, Seal(self.member, self.life, self._epoch, body, signs, self._buffer)

    def authenticate(self, segment: Segment) -> AESGCM:
        """What the body of ``segment``, of a message, is opened with; of no other segment, nor was
        it changed on its way, if that succeeds.

        Raises
        ------
        Refused
            Of nobody that is known, under keys that are not the sender's, not for this member, or
            changed on its way.
        """
        if segment.sender == self.member:
            raise Refused("reflection", "this member's own number, from another")
        pair = self._pairs.get(segment.sender)
        if pair is None or pair.life != segment.life:
            raise Refused("stranger", f"of no process that proved to be member {segment.sender}")
        theirs = pair.theirs
        if theirs is None or theirs.epoch != segment.epoch:
            raise Refused("key", f"of keys {segment.epoch} of member {segment.sender}")
        if self._many:
            own, tags = struct.pack("<I", self.member), bytes(segment.tags)
            places = range(0, len(tags), TAGGED)
            mine = [tags[at + 4 : at + TAGGED] for at in places if tags[at : at + 4] == own]
            if not mine or not hmac.compare_digest(mine[0], segments.tag(segment, theirs.sign)):
                raise Refused("tag", f"of member {segment.sender}: changed, or not for this one")
        elif segment.tags:
            raise Refused("form", "tags where there is one receiver")
        return theirs.seal

    # Keys ---------------------------------------------------------------------------------------

    def _identity(self, member: int) -> bytes:
        if self.access.keys is None:
            return b""
        return self.access.keys.allowed().get(self.access.names[member], b"nobody")

    def _sign(self, text: bytes) -> bytes:
        if self.access.keys is None:
            return hmac.digest(self._context, text, "sha512")
        return self.access.keys.sign(self._context + text)

    def _proven(self, member: int, signature: bytes, text: bytes) -> bool:
        if self.access.keys is None:
            return hmac.compare_digest(signature, self._sign(text))
        return proven(self._identity(member), signature, self._context + text)

    def _derive(self, shared: bytes, cards: bytes) -> AESGCM:
        info = b"slowlink grants\0" + cards
        return AESGCM(HKDF(hashes.SHA256(), KEY, self._context, info).derive(shared))


@dataclass(frozen=True)
class Seal:
    """What makes the segments of one message: its sender, and whom it is for."""

    sender: int
    life: int
    epoch: int
    body: AESGCM
    signs: list[tuple[int, AESGCM]]
    buffer: bytearray
    """Where bodies are sealed: fresh memory for each takes longer than all else."""

    def cut(
        self, number: int, payload: bytes | bytearray | memoryview, label: str = "", size: int = CUT
    ) -> Iterator[Segment]:
        """The segments of message ``number``; one at least. Each is to be written before the next
        is made, in whose memory it is. Raises ValueError for a label that does not fit."""
        segments.check_label(label)
        view, buffer = memoryview(payload).cast("B"), self.buffer
        if (need := min(size, len(view)) + TAG) > len(buffer):
            try:
                buffer.extend(bytes(need - len(buffer)))
            except BufferError:  # an earlier segment is still held, say by an error's traceback
                buffer = bytearray(need)
        for start in range(0, len(view) or 1, size):
            part = view[start : start + size]
            body = memoryview(buffer)[: len(part) + TAG]
            head = VERSION, self.sender, self.life, self.epoch, number, start, len(view)
            segment = Segment(*head, b"", label, body)
            place = segments.nonce(number, start)
            self.body.encrypt_into(place, part, segments.head(segment), body)
            segment.tags = b"".join(
                struct.pack("<I", member) + segments.tag(segment, sign)
                for member, sign in self.signs
            )
            yield segment
