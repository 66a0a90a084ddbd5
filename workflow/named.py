"""What the names in a recipe name: methods, models, data sets and devices, found without importing.

Fields of recipes say with :class:`testbed.training.recipe.Of` what their names are names of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from slowlink.testbed.given import Loader
from slowlink.testbed.training.recipe import Kind, Of, Part
from slowlink.workflow.closure import ROOMS, ROOT

MODELS = ROOT / "testbed/training/models.py"
DEVICES = ROOT / "data/devices.yaml"
SOURCES = ROOT / "data/sources.yaml"


@dataclass(frozen=True)
class Named:
    """A name in a recipe, the dotted path to it, and the parameters beside it."""

    key: str
    kind: Kind
    name: str
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)


def named(
    value: Any, annotation: Any = None, key: str = "", of: Of | None = None
) -> Iterator[Named]:
    """Every name in a recipe, or in a part of it that has this annotation."""
    if get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        of = next((mark for mark in marks if isinstance(mark, Of)), of)
    arms = [arm for arm in get_args(annotation) if arm is not NoneType]
    if get_origin(annotation) in (Union, UnionType):  # with nothing; no recipe has other choices
        yield from named(value, arms[0], key, of)
    elif isinstance(value, Part) and of:
        yield Named(key, of.kind, value.name, value.parameters)
    elif isinstance(value, str) and of:
        yield Named(key, of.kind, value)
    elif isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            marks = [mark for mark in info.metadata if isinstance(mark, Of)]
            path = f"{key}.{name}" if key else name
            inner = getattr(value, name)
            if marks and isinstance(inner, str) and value.model_extra:
                yield Named(path, marks[0].kind, inner, value.model_extra)
            else:
                yield from named(inner, info.annotation, path, marks[0] if marks else None)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from named(inner, arms[-1] if arms else None, f"{key}.{name}", of)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from named(inner, arms[0] if arms else None, f"{key}.{number}", of)


@cache
def known(kind: Kind) -> tuple[str, ...]:
    """All names of a kind."""
    if kind == "model":
        return tuple(sorted(_models()))
    if kind == "device":
        return ("this_cpu", *sorted(yaml.load(DEVICES.read_text(), Loader)))
    if kind == "dataset":
        return tuple(sorted(yaml.load(SOURCES.read_text(), Loader)))
    files = (ROOT / "methods" / kind).glob("*.py")
    return tuple(sorted(file.stem for file in files if not file.stem.startswith("_")))


@cache
def parameters(kind: Kind, name: str) -> frozenset[str]:
    """The parameters that a method or a model takes; of others there are none."""
    if kind == "model":
        return _models()[name]
    if kind not in ROOMS:
        return frozenset()
    folder = ROOT / "methods" / kind
    found: set[str] = set()
    wanted = _classes(folder / f"{name}.py")
    seen = {key: one for file in folder.glob("_*.py") for key, one in _classes(file).items()}
    pending = list(wanted.values())
    while pending:
        one = pending.pop()
        found |= _fields(one)
        bases = {ast.unparse(base).rpartition(".")[2] for base in one.bases}
        pending += [seen.pop(base) for base in bases if base in seen]
    return frozenset(found)


@cache
def _classes(file: Path) -> dict[str, ast.ClassDef]:
    body = ast.parse(file.read_text()).body
    return {one.name: one for one in body if isinstance(one, ast.ClassDef)}


def _fields(one: ast.ClassDef) -> set[str]:
    """Fields of a dataclass that its constructor takes."""
    return {
        line.target.id
        for line in one.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
        and "init=False" not in (ast.unparse(line.value) if line.value else "")
    }


@cache
def _models() -> dict[str, frozenset[str]]:
    """Parameters of every model by name."""
    functions = [
        one for one in ast.parse(MODELS.read_text()).body if isinstance(one, ast.FunctionDef)
    ]
    return {
        one.name: frozenset(argument.arg for argument in one.args.args)
        for one in functions
        if any(ast.unparse(mark) == "_model" for mark in one.decorator_list)
    }


@cache
def constant(room: str, name: str, attribute: str, default: Any) -> Any:
    """A constant of a method's class, as its file gives it; ``default`` where it does not."""
    for one in _classes(ROOT / "methods" / room / f"{name}.py").values():
        for line in one.body:
            targets = line.targets if isinstance(line, ast.Assign) else []
            targets = [line.target] if isinstance(line, ast.AnnAssign) else targets
            if attribute in map(ast.unparse, targets):
                call = isinstance(line.value, ast.Call)  # frozenset({…})
                return ast.literal_eval(line.value.args[0] if call else line.value)
    return default


def kept_momentum(codec: Part, momentum: float) -> tuple[Part, float]:
    """A codec with a momentum that keeps what it does not send, and what is left to the optimizer.

    Momentum is kept where what is not sent is kept, so that it is corrected for the delay.
    """
    keeps = codec.parameters.get(
        "error_feedback", constant("compression", codec.name, "error_feedback", True)
    )
    if keeps and "momentum" in parameters("compression", codec.name):
        return Part(name=codec.name, **(codec.parameters | {"momentum": momentum})), 0.0
    return codec, momentum
