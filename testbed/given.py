"""YAML files that users give: checked against a schema, and written whole with what made them."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from slowlink.testbed.files import whole

T = TypeVar("T")


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Reads plain data, and refuses a mapping that has a key twice: YAML would keep the last."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._seen: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # What is merged in stands beside what overrides it from the second call on.
        if id(node) not in self._seen:
            self._seen.add(id(node))
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key, _ in node.value:
                if keys.count(key.value) > 1:
                    why = f"key {key.value!r} is given twice"
                    raise yaml.constructor.ConstructorError(None, None, why, key.start_mark)
        super().flatten_mapping(node)


class Measured(BaseModel):
    """When, where and with what something was measured.

    ``repeats``: measurements of each quantity, whose median and quartiles are given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    date: str
    processor: str
    versions: dict[str, str]
    repeats: int
    notes: tuple[str, ...] = ()


def here(repeats: int, *notes: str, **versions: str) -> Measured:
    """A measurement that is made here and now."""
    return Measured(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        processor=processor(),
        versions={"python": platform.python_version(), **versions},
        repeats=repeats,
        notes=notes,
    )


def processor() -> str:
    """What the kernel calls this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def read(path: str | Path, schema: type[T] | Any, remedy: str) -> T:
    """What a YAML file holds, as ``schema`` has it.

    Raises
    ------
    ValueError
        No such file, no YAML, or a field that does not fit, in one line that names the file, the
        field and ``remedy``.
    """
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}; {remedy}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML: {unread(error)}; {remedy}") from None
    if raw is None:
        raise ValueError(f"{path}: is empty; {remedy}")
    try:
        return TypeAdapter(schema).validate_python(raw)
    except ValidationError as error:
        raise ValueError(f"{path}: {first(error)}; {remedy}") from None


def unread(error: Exception) -> str:
    """Why a text cannot be read, in a line: YAML's own words are several."""
    where = getattr(error, "problem_mark", None)
    line = f"line {where.line + 1}: " if where else ""
    return line + (getattr(error, "problem", None) or str(error))


def first(error: ValidationError) -> str:
    """The first thing that is wrong: its field, and why."""
    one = error.errors()[0]
    field = ".".join(str(part) for part in one["loc"])
    why = one["msg"].removeprefix("Value error, ")
    if one["type"] == "extra_forbidden":
        why = "no such field"
    elif one["type"] == "missing":
        why = "is missing"
    elif one["type"] in ("model_type", "dict_type"):
        why = "should be a mapping, of names to values"
    return f"{field}: {why}" if field else why


def write(path: str | Path, head: str, value: BaseModel | dict[str, BaseModel]) -> None:
    """Write a model, or several by name, below comment lines of ``head``. Defaults are left out."""
    plain = (
        {name: one.model_dump(mode="json", exclude_defaults=True) for name, one in value.items()}
        if isinstance(value, dict)
        else value.model_dump(mode="json", exclude_defaults=True)
    )
    comment = "".join(f"# {line}\n" for line in head.splitlines())
    text = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    with whole(path) as part:
        part.write_text(comment + text, encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    """Short lists in a line, and numbers that YAML reads as numbers."""


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    text = repr(value)
    if value and not 1e-4 <= abs(value) < 1e6:
        # YAML takes 1e-05 for a text, and 2.5e+7 is shorter to read than its zeros.
        shortest = (f"{value:.{digits}e}" for digits in range(1, 17))
        digits, _, power = next(one for one in shortest if float(one) == value).partition("e")
        text = f"{digits}e{int(power):+d}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _sequence(dumper: yaml.SafeDumper, value: list) -> yaml.Node:
    flat = all(not isinstance(one, dict) for one in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=flat)


def _mapping(dumper: yaml.SafeDumper, value: dict) -> yaml.Node:
    flat = all(isinstance(one, int | float | str) for one in value.values()) and len(value) < 6
    flat = flat and all(len(str(one)) < 40 for one in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=flat)


_Dumper.add_representer(float, _number)
_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(dict, _mapping)
