"""What is compared: four rooms, one per question a training system must answer.

``exchange`` (who sends to whom), ``compression`` (what is sent), ``synchronization`` (when workers
meet) and ``fusion`` (which tensors travel together). A meeting at a server has an option,
``aggregation`` (how the server combines what is brought). A method is one file of its room; the
file's name is the method's name, and adding or deleting the file is all it takes to add or delete
it. Each room offers ``names()`` and ``load(name, **parameters)``.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def room(package: str, base: type[T]) -> tuple[Callable[[], list[str]], Callable[..., T]]:
    """Make ``names`` and ``load`` for one room.

    A method is the one subclass of ``base`` that a module directly inside ``package`` defines.
    Sub-packages and modules that start with an underscore hold shared pieces, not methods.
    """

    loaded: dict[str, type[T]] = {}

    def names() -> list[str]:
        """Names of the methods found in this room, sorted."""
        path = importlib.import_module(package).__path__
        return sorted(
            module.name
            for module in pkgutil.iter_modules(path)
            if not module.ispkg and not module.name.startswith("_")
        )

    def load(name: str, **parameters: Any) -> T:
        """Make the method ``name`` with ``parameters``.

        Raises
        ------
        ValueError
            Unknown name, unknown parameter or a value the method refuses; says what is allowed.
        """
        if name not in loaded:
            loaded[name] = method_class(package, base, name, names())
        return _construct(loaded[name], name, parameters)

    return names, load


def method_name(method: object) -> str:
    """The name of a method's file, by which users call it."""
    return type(method).__module__.rpartition(".")[2]


def method_class(package: str, base: type[T], name: str, known: list[str]) -> type[T]:
    """The class that the file ``name`` of room ``package`` defines."""
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        room_name = package.rpartition(".")[2]
        raise ValueError(f"no {room_name} method {name!r}{hint}; there are: {', '.join(known)}")
    module = importlib.import_module(f"{package}.{name}")
    return _only_subclass(module, base)


def _only_subclass(module: ModuleType, base: type[T]) -> type[T]:
    found = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, base) and member.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise ValueError(
            f"{module.__name__} must define exactly one {base.__name__}, it defines {len(found)}"
        )
    return found[0]


def _construct(cls: type[T], name: str, parameters: dict[str, Any]) -> T:
    allowed = [field.name for field in dataclasses.fields(cls) if field.init]
    unknown = sorted(set(parameters) - set(allowed))
    if unknown:
        raise ValueError(
            f"{name}: unknown parameter {', '.join(map(repr, unknown))}; "
            f"it takes: {', '.join(allowed) or 'none'}"
        )
    return cls(**parameters)
