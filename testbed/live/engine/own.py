"""Train a model of one's own: functions in a Python file, and a recipe."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slowlink.testbed.live import documents
from slowlink.testbed.live.engine import launch, settings, tasks
from slowlink.testbed.results import Row

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """What came out.

    Attributes
    ----------
    model: with the final parameters; they are also in ``model.pt`` of the output folder.
    rows: what was measured; they are also in ``rows.jsonl`` there, as they came.
    """

    model: nn.Module
    rows: list[Row]


def run(
    model: Callable[[], nn.Module],
    data: Callable[[str, int], Iterable[tuple[Any, Any]]],
    loss: Callable[[Any, Any], Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], Any],
    recipe: Mapping[str, Any] | str | Path,
    *,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    say: Say = print,
) -> Trained:
    """Train a model of one's own with real processes of this machine, one a worker.

    Functions are found again by name in every process, so they must stand in a file or a module,
    and a script calls this under ``if __name__ == "__main__":``. With ``state`` in the recipe, the
    same call goes on where an earlier one was interrupted, to the same bits.

    Parameters
    ----------
    model, data, loss, optimizer, evaluate: see :class:`testbed.live.engine.settings.Own`.
    recipe: see :class:`testbed.live.engine.settings.LiveSettings`, or a file that holds one.
    say: called with a line of progress now and then.

    Raises
    ------
    ValueError: a recipe or function that cannot be used; says which and why.
    Failed: the run ended with an error; says who and why.
    """
    if tasks.loading:
        raise RuntimeError(
            "slowlink.run was called while a worker imported this file; call it under "
            'if __name__ == "__main__":'
        )
    functions = dict(model=model, data=data, loss=loss, optimizer=optimizer)
    if evaluate is not None:
        functions["evaluate"] = evaluate
    own = {name: _reference(name, function) for name, function in functions.items()}

    def parse(document: Any) -> settings.LiveSettings:
        if not isinstance(document, Mapping):
            raise ValueError(f"a recipe has fields, {document!r} has none")
        if "own" in document:
            raise ValueError("own: leave it out, the functions are given")
        return settings.parse(dict(document, own=own))

    given = documents.read(recipe, parse) if isinstance(recipe, str | Path) else parse(recipe)
    ended = launch.run_all(given, say)
    trained = model()
    trained.load_state_dict(torch.load(given.output / "model.pt", weights_only=True))
    return Trained(trained, ended.rows)


def _reference(what: str, function: Any) -> str:
    """Where other processes find ``function``: ``module:name`` or ``file.py:name``."""
    name = getattr(function, "__qualname__", "")
    module = getattr(function, "__module__", None)
    bound = inspect.ismethod(function) and not inspect.isclass(function.__self__)
    if not module or not name or "<" in name or bound:
        raise ValueError(
            f"{what}: {function!r} has no name by which other processes find it; "
            "write it as a function of a file"
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise ValueError(f"{what}: {name} was typed in; other processes need a file to import")
        module = str(Path(file).resolve())
    return f"{module}:{name}"
