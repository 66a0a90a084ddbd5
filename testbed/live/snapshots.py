"""A node's last snapshots on disk, each replaced as a whole."""

from __future__ import annotations

import io
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from slowlink.testbed import files

DIGEST = 16
"""Bytes at the end of a file that tell whether the others are as they were written."""


class Snapshots:
    """The snapshots of ``node`` in ``folder``, by round.

    Parameters
    ----------
    folder: made if it is not there.
    run: names the configuration; snapshots of another one are refused.
    node: whose.
    """

    def __init__(self, folder: Path, run: str, node: str) -> None:
        self.folder, self.run, self.node = Path(folder), run, node
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, number: int, state: dict[str, Any], kept: int = 2) -> None:
        """Write, and forget all but the latest ``kept``: whoever reads finds old or new files."""
        saved = io.BytesIO()
        torch.save({"run": self.run, "state": state}, saved)
        with files.whole(self._path(number), lasting=True) as part, part.open("wb") as file:
            file.write(saved.getbuffer())
            file.write(_digest(saved.getbuffer()))
        for old in sorted(n for n in self._numbers() if n <= number)[:-kept]:
            self._path(old).unlink(missing_ok=True)
        for undone in (n for n in self._numbers() if n > number):
            self._path(undone).unlink(missing_ok=True)

    def load(self) -> dict[int, dict[str, Any]]:
        """All snapshots in the folder, by round.

        Raises
        ------
        ValueError
            A file that cannot be read, or of another run; says which.
        """
        return {number: self._read(self._path(number)) for number in sorted(self._numbers())}

    def _read(self, path: Path) -> dict[str, Any]:
        written = path.read_bytes()
        try:
            if _digest(written[:-DIGEST]) != written[-DIGEST:]:
                raise ValueError("damaged")
            found = torch.load(io.BytesIO(written[:-DIGEST]), weights_only=True)
        except Exception as error:  # torch raises whatever it stumbles on
            raise ValueError(f"{path}: not a snapshot ({error}); delete it to begin anew") from None
        if found["run"] != self.run:
            raise ValueError(f"{path}: of another configuration; delete it, or name another state")
        return found["state"]

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.node.replace('/', '-')}.{number}.pt"

    def _numbers(self) -> list[int]:
        prefix = self._path(0).name.removesuffix("0.pt")
        return [int(path.name.split(".")[-2]) for path in self.folder.glob(f"{prefix}*.pt")]


def _digest(written: bytes | memoryview) -> bytes:
    return blake2b(written, digest_size=DIGEST).digest()
