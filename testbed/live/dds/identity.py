"""Who may take part: an Ed25519 identity (RFC 8032) for each member, and the list of those allowed.

A folder of keys holds ``members``, a line for each member that is allowed, its name and its public
key, and on a member's own machine ``NAME.key``, its private key. The lines are public, the key is
nobody else's. Members are ``rank-0``, ``rank-1``, ... of a group, ``controller`` and ``client-0``,
``client-1``, ... of a federated training. To revoke a member, delete its line on all machines:
running processes read the list again within seconds, refuse the member from then on, and send what
follows under keys that it does not have.

``python -m slowlink.testbed.live.dds.identity FOLDER NAME [NAME ...]`` makes identities.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from slowlink.testbed.live.dds.domain import LOOPBACK, DomainConfig

MEMBERS = "members"
NAME = re.compile(r"[a-z]+(-[0-9]+)?")
OFF = "none"
"""What to give for a folder where members of several hosts shall do without identities."""

COMMAND = "python -m slowlink.testbed.live.dds.identity"


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
        file = folder / f"{name}.key"
        try:
            self._own = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(file.read_text()))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{file}: no private key of {name}: {error}; make one: {COMMAND} {folder} {name}"
            ) from None
        if self.allowed().get(name) != self._own.public_key().public_bytes_raw():
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
        return self._own.sign(text)


def proven(public: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the holder of the identity ``public`` has signed ``text``."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
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
    return found


def make(folder: Path, names: Sequence[str]) -> None:
    """New identities: a private key for each of ``names`` and its line among the members.

    Raises
    ------
    ValueError
        A name that cannot be, or that has an identity already.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = read_members(folder / MEMBERS) if (folder / MEMBERS).exists() else {}
    for name in names:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r}: must be as rank-0, controller or client-0")
        if name in known or (folder / f"{name}.key").exists():
            raise ValueError(f"{folder}: {name} has an identity already; delete its line and key")
    for name in names:
        key = Ed25519PrivateKey.generate()
        file = os.open(folder / f"{name}.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as private:
            private.write(key.private_bytes_raw().hex() + "\n")
        with (folder / MEMBERS).open("a") as members:
            members.write(f"{name} {key.public_key().public_bytes_raw().hex()}\n")


def given(folder: str | Path | None, network: DomainConfig) -> Path | None:
    """The folder of keys to use: ``folder``, else ``SLOWLINK_KEYS``; None for no identities.

    Raises
    ------
    ValueError
        No folder where members of other hosts may come; :data:`OFF` says that this is meant.
    """
    folder = folder or os.environ.get("SLOWLINK_KEYS")
    if folder is not None:
        return None if str(folder) == OFF else Path(folder)
    here = network.interface in (LOOPBACK, "127.0.0.1", "::1")
    if here and all(peer == "localhost" or peer.startswith("127.") for peer in network.peers):
        return None
    raise ValueError(
        f"keys: needs a folder of identities, as interface {network.interface!r} and peers "
        f"{list(network.peers)} reach other hosts; make one with {COMMAND}, or give "
        f"{OFF!r} to do without: anybody on the network can then take part"
    )


def main(arguments: Sequence[str]) -> int:
    """Make identities; the exit status."""
    if len(arguments) < 2:
        print(f"usage: {COMMAND} FOLDER NAME [NAME ...]", file=sys.stderr)
        return 2
    folder, *names = arguments
    try:
        make(Path(folder), names)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{folder}: keep each .key on its member's machine only; {MEMBERS} goes to all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
