"""A node's last snapshots on disk, each replaced as a whole."""

from __future__ import annotations

import io
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.serialization import add_safe_globals

from slowlink.testbed import files

DIGEST = 16
"""Bytes at the end of a file that tell whether the others are as they were written."""

FORM = 2
"""Which form the states of nodes have; to be counted up when that changes."""

NUMBERS = np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
SAFE = [np.dtype, np.float64(0).__reduce__()[0], *{type(np.dtype(code)) for code in NUMBERS}]
"""What numpy's numbers are read by: learning rates and schedules may be some."""


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
        add_safe_globals(SAFE)

    def save(self, number: int, state: dict[str, Any], kept: int = 2) -> None:
        """Write, and forget all but the latest ``kept``: whoever reads finds old or new files.

        Raises
        ------
        ValueError
            The state holds what cannot be read again; says what.
        """
        saved = io.BytesIO()
        torch.save({"form": FORM, "run": self.run, "state": state}, saved)
        saved.seek(0)
        try:
            torch.load(saved, map_location="meta", weights_only=True)  # all but tensors' values
        except Exception as error:
            odd = re.search(r"GLOBAL (\S+)", str(error))
            raise ValueError(
                f"{self._path(number)}: not written, since {odd[1] if odd else error} could not be "
                "read again; let optimizers and schedulers keep numbers and tensors"
            ) from None
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
        if _digest(written[:-DIGEST]) != written[-DIGEST:]:
            raise ValueError(f"{path}: not a snapshot, or damaged; delete it to begin anew")
        try:
            found = torch.load(io.BytesIO(written[:-DIGEST]), weights_only=True)
        except Exception as error:  # torch raises whatever it stumbles on
            raise ValueError(
                f"{path}: is whole, but this version cannot read it; go on with the one that "
                f"wrote it ({error})"
            ) from None
        if found.get("form") != FORM:
            raise ValueError(
                f"{path}: of another version of slowlink; go on with that one, or name another "
                "state"
            )
        if found["run"] != self.run:
            raise ValueError(f"{path}: of another configuration; delete it, or name another state")
        return found["state"]

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.node.replace('/', '-')}.{number}.pt"

    def _numbers(self) -> list[int]:
        prefix, found = self._path(0).name.removesuffix("0.pt"), []
        for path in self.folder.glob(f"{prefix}*.pt"):
            number = path.name.removeprefix(prefix).removesuffix(".pt")
            if not number.isdecimal():
                raise ValueError(f"{path}: is no snapshot, by its name; put it elsewhere")
            found.append(int(number))
        return found


def _digest(written: bytes | memoryview) -> bytes:
    return blake2b(written, digest_size=DIGEST).digest()
