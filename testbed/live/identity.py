"""Who may take part: an Ed25519 identity (RFC 8032) for each member, and the list of those allowed.

A folder of keys holds ``members``, a line for each member that is allowed, its name and its public
key, and on a member's own machine ``NAME.key``, its private key (a slash of the name is a dash
there). The lines are public, the key is nobody else's. To revoke a member, delete its line on all
machines: running processes read the list again within seconds, and refuse the member from then on.

Members are ``rank-0``, ``rank-1``, ... of a group on DDS, ``coordinator``, ``site1/server``,
``site1/worker0``, ... of a run of the engine. DDS's sessions sign with the identity; ZeroMQ's CURVE
gets the X25519 keys that libsodium derives from it.

``python -m slowlink.testbed.live.identity FOLDER NAME [NAME ...]`` makes identities.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nacl.exceptions import BadSignatureError, RuntimeError
from nacl.signing import SigningKey, VerifyKey

MEMBERS = "members"
NAME = re.compile(r"[a-z]+(-?[0-9]+)?(/[a-z]+(-?[0-9]+)?)?")
COMMAND = "python -m slowlink.testbed.live.identity"


class Keys:
    """A folder of keys, as one member sees it.

    Parameters
    ----------
    folder: see the module.
    name: of this member; its private key and its own line must be there.

    Raises
    ------
    ValueError
        A file that is missing or that says nothing sensible, and what to do about it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._read: tuple[int, int, int] | None = None
        self._allowed: dict[str, bytes] = {}
        self._curves: tuple[Mapping[str, bytes], dict[bytes, str]] = ({}, {})
        file = key_file(folder, name)
        try:
            self._own = SigningKey(bytes.fromhex(file.read_text()))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{file}: no private key of {name}: {error}; make one: {COMMAND} {folder} {name}"
            ) from None
        if self.allowed().get(name) != bytes(self._own.verify_key):
            raise ValueError(f"{folder / MEMBERS}: no line of {name} with the key of {file}")

    def allowed(self) -> dict[str, bytes]:
        """The public key of each member that is allowed, as the list says now.

        The same object as long as it is the same list. One that cannot be read any more allows
        nobody.
        """
        file = self.folder / MEMBERS
        try:
            found = file.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            if stamp != self._read:
                self._allowed, self._read = read_members(file), stamp
        except (OSError, ValueError) as error:
            if self._read is None:
                raise ValueError(f"{file}: {error}") from None
            if self._allowed:
                self._allowed = {}
        return self._allowed

    def sign(self, text: bytes) -> bytes:
        """64 bytes."""
        return self._own.sign(text).signature

    def curve(self) -> tuple[bytes, bytes]:
        """The public and the secret key for CURVE, 32 bytes each."""
        secret = self._own.to_curve25519_private_key()
        return bytes(secret.public_key), bytes(secret)

    def curve_of(self, name: str) -> bytes:
        """The public key of another member for CURVE. Raises KeyError if it is revoked."""
        return _curve(self.allowed()[name])

    def owner(self, public: bytes) -> str | None:
        """The member whose public key for CURVE this is; None of a stranger's."""
        allowed = self.allowed()
        if self._curves[0] is not allowed:
            self._curves = allowed, {_curve(key): name for name, key in allowed.items()}
        return self._curves[1].get(public)


def _curve(public: bytes) -> bytes:
    return bytes(VerifyKey(public).to_curve25519_public_key())


def key_file(folder: Path, name: str) -> Path:
    """Where the private key of ``name`` is."""
    return folder / f"{name.replace('/', '-')}.key"


def proven(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the holder of the identity ``public`` has signed ``text``."""
    try:
        VerifyKey(public).verify(text, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def read_members(file: Path) -> dict[str, bytes]:
    """Public keys by name. Raises ValueError for a line that is none, and OSError."""
    found: dict[str, bytes] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        text = line.partition("#")[0].split()
        if not text:
            continue
        if (
            len(text) != 2
            or not NAME.fullmatch(text[0])
            or not re.fullmatch("[0-9a-f]{64}", text[1])
        ):
            raise ValueError(f"line {number}: needs a name and a public key, 64 hexadecimal digits")
        if text[0] in found:
            raise ValueError(f"line {number}: {text[0]} has a line already")
        found[text[0]] = bytes.fromhex(text[1])
        try:
            _curve(found[text[0]])
        except RuntimeError:
            raise ValueError(f"line {number}: what {text[0]} has is no public key") from None
    return found


def make(folder: Path, names: Iterable[str]) -> list[str]:
    """Identities for those of ``names`` that have none: a private key and a line among the members.

    Returns
    -------
    list of str
        Whose identity is new.

    Raises
    ------
    ValueError
        A name that cannot be, or a member that was revoked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = read_members(folder / MEMBERS) if (folder / MEMBERS).exists() else {}
    new = [name for name in names if name not in known]
    for name in new:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r}: must be as rank-0, controller, client-0 or site1/worker0")
        if key_file(folder, name).exists():
            raise ValueError(f"{folder}: {name} has a key and no line; delete the key for another")
    for name in new:
        key = SigningKey.generate()
        file = os.open(key_file(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as private:
            private.write(bytes(key).hex() + "\n")
        with (folder / MEMBERS).open("a") as members:
            members.write(f"{name} {bytes(key.verify_key).hex()}\n")
    return new


def main(arguments: Sequence[str]) -> int:
    """Make identities; the exit status."""
    if len(arguments) < 2:
        print(f"usage: {COMMAND} FOLDER NAME [NAME ...]", file=sys.stderr)
        return 2
    folder, *names = arguments
    try:
        new = make(Path(folder), names)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for name in sorted(set(names) - set(new)):
        print(f"{folder}: {name} has an identity already, and keeps it")
    print(f"{folder}: keep each .key on its member's machine only; {MEMBERS} goes to all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
