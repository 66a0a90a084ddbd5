"""Who may take part: files of keys, and what is derived from an identity."""

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from zmq.utils import z85

from slowlink.testbed.live import identity
from slowlink.testbed.live.identity import Keys
from tests.live.said import strike_off

PRIME = 2**255 - 19


def test_keys_are_files_that_their_owner_alone_reads(tmp_path, capsys):
    folder = tmp_path / "keys"
    assert identity.main([str(folder), "controller", "client-0", "site1/worker0"]) == 0
    for name in ("client-0", "site1-worker0"):
        assert (folder / f"{name}.key").stat().st_mode & 0o777 == 0o600
    before = (folder / "client-0.key").read_text(), (folder / "members").read_text()
    assert identity.main([str(folder), "client-0"]) == 0
    assert "client-0 has an identity already" in capsys.readouterr().out
    assert ((folder / "client-0.key").read_text(), (folder / "members").read_text()) == before
    assert identity.main([str(folder), "../x"]) == 1 and identity.main([str(folder)]) == 2
    assert Keys(folder, "client-0").allowed().keys() == {"controller", "client-0", "site1/worker0"}
    with pytest.raises(ValueError, match="no private key of client-1.*make one"):
        Keys(folder, "client-1")
    (folder / "client-0.key").write_text("00" * 32)
    with pytest.raises(ValueError, match="no line of client-0 with the key of"):
        Keys(folder, "client-0")


def test_who_was_revoked_does_not_come_back_unasked(tmp_path):
    identity.make(tmp_path, ["rank-0", "rank-1"])
    keys = Keys(tmp_path, "rank-0")
    strike_off(tmp_path, "rank-1")
    assert keys.allowed().keys() == {"rank-0"}
    with pytest.raises(ValueError, match="rank-1 has a key and no line"):
        identity.make(tmp_path, ["rank-1"])


def test_lines_that_say_nothing_sensible_are_named(tmp_path):
    identity.make(tmp_path, ["rank-0"])
    members = tmp_path / identity.MEMBERS
    line = members.read_text()
    for text, why in (
        ("rank-0 abc\n", "line 1: needs a name and a public key"),
        ("# nobody\n" + line + line, "line 3: rank-0 has a line"),
        ("rank-0 " + "0" * 64, "line 1: what rank-0 has is no public key"),
    ):
        members.write_text(text)
        with pytest.raises(ValueError, match=why):
            identity.read_members(members)


def test_keys_of_curve_follow_from_the_identity(tmp_path):
    """Held against another library: the secret key has the public key that the birational map
    u = (1 + y) / (1 - y) of RFC 7748 takes the identity to."""
    identity.make(tmp_path, ["a", "b"])
    a, b = Keys(tmp_path, "a"), Keys(tmp_path, "b")
    public, secret = a.curve()
    assert b.curve_of("a") == public == z85.decode(zmq.curve_public(z85.encode(secret)))
    x25519 = X25519PrivateKey.from_private_bytes(secret).public_key()
    assert x25519.public_bytes_raw() == public
    y = int.from_bytes(a.allowed()["a"], "little") % 2**255
    u = (1 + y) * pow(1 - y, -1, PRIME) % PRIME
    assert public == u.to_bytes(32, "little")
    assert b.owner(public) == "a" and b.owner(bytes(32)) is None


def test_signatures_are_those_of_rfc_8032(tmp_path):
    """Held against another library, both ways."""
    identity.make(tmp_path, ["a"])
    keys, text = Keys(tmp_path, "a"), b"what is signed"
    public = keys.allowed()["a"]
    Ed25519PublicKey.from_public_bytes(public).verify(keys.sign(text), text)
    other = Ed25519PrivateKey.from_private_bytes(bytes.fromhex((tmp_path / "a.key").read_text()))
    assert identity.proven(public, other.sign(text), text)
    assert not identity.proven(public, other.sign(text), text + b"!")
    assert not identity.proven(bytes(31), other.sign(text), text)
