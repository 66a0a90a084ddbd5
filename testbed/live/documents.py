"""Files that describe a run, JSON or YAML: read, checked, and refused in plain words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
Made = TypeVar("Made")


def read(path: str | Path, make: Callable[[Any], Made]) -> Made:
    """What ``make`` makes of the plain data in a file.

    Raises
    ------
    ValueError
        What is wrong, a line each: the file, and what ``make`` says.
    OSError
        No such file.
    """
    text = Path(path).read_text(encoding="utf-8")
    try:
        return make(yaml.load(text, Loader=_Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path}: neither JSON nor YAML: {error}") from None
    except ValueError as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in str(error).split("\n"))) from None


def validated(kind: type[Model], document: Any, **inner: type[BaseModel]) -> Model:
    """``document`` as a ``kind``; ``inner`` are the models of its fields, for the names of theirs.

    Raises
    ------
    ValueError
        What is wrong, a line each: the field and what is allowed.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        lines = (_line(entry, kind, inner) for entry in error.errors())
        raise ValueError("\n".join(lines)) from None


class _Loader(yaml.SafeLoader):
    """Refuses keys that come twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"key {key!r} is given twice")
        return super().construct_mapping(node, deep)


def _line(entry: dict, kind: type[BaseModel], inner: dict[str, type[BaseModel]]) -> str:
    where = ".".join(map(str, entry["loc"]))
    text = entry["msg"].removeprefix("Value error, ")
    if entry["type"] == "extra_forbidden":
        known = inner.get(entry["loc"][0], kind)
        text = f"no such key; there are: {', '.join(known.model_fields)}"
    elif entry["type"] not in ("missing", "value_error"):
        given = str(entry["input"])
        text += f", not {given[:50]}" if not isinstance(entry["input"], dict | list) else ""
    return f"{where}: {text}" if where else text
