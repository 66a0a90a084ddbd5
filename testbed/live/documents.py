"""Files that describe a run, JSON or YAML: read, checked, and refused in plain words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from slowlink.testbed.given import Loader, unread

Model = TypeVar("Model", bound=BaseModel)
Made = TypeVar("Made")

USUAL: dict[str, Any] = dict(
    document="", seed=0, scale="desk", device="this machine", accelerator="cpu"
)
"""Fields of a recipe that no live run has a use for, or that are seldom others."""


def read(path: str | Path, make: Callable[[Any], Made]) -> Made:
    """What ``make`` makes of the plain data in a file.

    Raises
    ------
    ValueError
        What is wrong, a line each: the file, and that there is none or what ``make`` says.
    """
    try:
        return make(_data(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON or YAML: {unread(error)}") from None
    except ValueError as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(error).split("\n"))) from None


def validated(kind: type[Model], document: Any, **context: Any) -> Model:
    """``document`` as a ``kind``, whose validators are told the ``context``.

    Raises
    ------
    ValueError
        What is wrong, a line each: the field and what is allowed.
    """
    try:
        return kind.model_validate(document, context=context)
    except ValidationError as error:
        raise ValueError("\n".join(lines(error, kind))) from None


def lines(error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """What of a ``kind`` is wrong, a line each: the field and what is allowed."""
    return [_line(entry, kind) for entry in error.errors()]


def loads(text: str | bytes) -> Any:
    """Parse a JSON text, but refuse what Python's reader accepts: repeated keys, NaN and infinity.

    Raises
    ------
    ValueError, and RecursionError where it nests too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)


def _data(text: str) -> Any:
    try:
        return loads(text)
    except json.JSONDecodeError:
        return yaml.load(text, Loader)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"key {name!r} is given twice")
    return dict(pairs)


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text} is not a finite number")
    return float(text)


def _line(entry: dict, kind: type[BaseModel]) -> str:
    where = ".".join(map(str, entry["loc"]))
    text = entry["msg"].removeprefix("Value error, ")
    if entry["type"] == "extra_forbidden":
        text = f"no such key; there are: {', '.join(_model(kind, entry['loc'][:-1]).model_fields)}"
    elif entry["type"] not in ("missing", "value_error", "json_invalid"):
        given = entry["input"]
        text += "" if isinstance(given, dict | list) else f", not {repr(given)[:50]}"
    return f"{where}: {text}" if where else text


def _model(kind: type[BaseModel], steps: Sequence[str | int]) -> type[BaseModel]:
    """The model at the end of ``steps`` from ``kind`` through its fields and what they hold."""
    for step in steps:
        if isinstance(step, str) and step in kind.model_fields:
            kind = _within(kind.model_fields[step].annotation) or kind
    return kind


def _within(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, alone, in a container or where there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for its in get_args(annotation) if (found := _within(its))), None)
