"""Which files a function's result depends on, read off the source without running it.

The closure of a module is itself and what it imports, directly or not, of this repository but its
workflow; a method, a data file or a module to run that the code names as a constant counts as
imported. Imports for type checkers do not count. Of a function only those imports of its module
count whose names it uses, itself or through other functions and classes of its module and of others
in its folder, there also as ``module.name``. Another experiment is not followed: it counts by its
rows, which are inputs.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any

from slowlink.testbed.cache import cached, sources

ROOT = Path(__file__).parents[1]
OWN = "slowlink."
PACKAGES = ("methods", "torch", "testbed", "reports", "workflow")
BESIDE = "slowlink/"
"""Where a package lies that is no folder of the repository's own; a wheel has all of them there."""
FRAME = "workflow/"
EXPERIMENTS = ("experiment", "training")
"""What declares an experiment."""
ROOMS = ("exchange", "compression", "synchronization", "fusion", "aggregation")


def closure(files: Iterable[str]) -> set[str]:
    """Paths, from the repository's root, of these files and all that they import."""
    found: set[str] = set()
    pending = list(files)
    while pending:
        file = pending.pop()
        # The workflow's own files only carry settings to functions and rows to files.
        if file not in found and not file.startswith(FRAME):
            found.add(file)
            pending += _imported(file) if file.endswith(".py") else ()
    return found


@cache  # many jobs of a plan have one function, and no file changes meanwhile
def of_function(module: str, name: str) -> tuple[frozenset[str], str]:
    """What a function of a module uses: the closure of :func:`used_by`, and a digest of its own
    source and of all that it uses in its module, and in others of its folder."""

    def read() -> tuple[list[str], str]:
        nodes, files = used_by(module, name)
        text = "\n".join(sorted(map(_text, nodes)))
        return sorted(files), hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    place = _file_of(module)
    told = f"used by {name} of {place} {_folder(Path(place).parent)} among {_tree()}"
    files, digest = cached(told, read)
    return frozenset(closure(files)), digest


def used_by(module: str, name: str) -> tuple[list[ast.AST], set[str]]:
    """Definitions that a function uses in its module, and in others of its folder, where these come
    from; the files that all other names are imported from, and those that constants name."""
    nodes: dict[int, ast.AST] = {}
    files: set[str] = set()
    pending, seen = {(_file_of(module), name)}, set()
    while pending - seen:
        place = (pending - seen).pop()
        seen.add(place)
        source = _Source.of(place[0])
        for one, attribute in source.used(place[1]):
            if node := source.defined.get(one):
                nodes[id(node)] = node
                files |= source.named(one)
            for file, name in source.imported.get(one, ()):
                beside = file.startswith(FRAME) and Path(file).parent == Path(source.file).parent
                inner = name or attribute  # of a module, what stands after the dot
                if not beside or not _Source.of(file).has(inner):
                    files.add(file)
                elif inner not in _Source.of(file).experiments:
                    pending.add((file, inner))
    return list(nodes.values()), files


def methods_of(names: Iterable[tuple[str, str]]) -> set[str]:
    """The files of methods, given as room and name, with what they import."""
    return closure(f"methods/{room}/{name}.py" for room, name in names)


def declares(file: Path) -> bool:
    """Whether a file of a wing declares settings, an experiment, a figure or a table."""
    told = f"declares {sources(file)} by {sources(Path(__file__))}"
    return cached(told, partial(_declares, file))


def _declares(file: Path) -> bool:
    for node in _parsed(str(file.relative_to(ROOT))).body:
        made: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef):
            made = node.decorator_list
        elif isinstance(node, ast.ClassDef):
            made = [base for base in node.bases if _called(base) == "Settings"]
        elif isinstance(node, ast.Assign):
            made = [node.value]
        for one in made:
            called = _called(one.func if isinstance(one, ast.Call) else one)
            if called in (*EXPERIMENTS, "table", "Figure", "Settings"):
                return True
    return False


class _Source:
    """A module's definitions and imports by name."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.defined: dict[str, ast.AST] = {}
        self.experiments: set[str] = set()
        self.imported: dict[str, list[tuple[str, str]]] = {}
        # Many functions use the same definitions.
        self.named, self._read = cache(self.named), cache(self._read)
        for node in _statements(_parsed(file)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, place in _bound(node, file):
                    self.imported.setdefault(name, []).append(place)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.defined[node.name] = node
                if any(_called(getattr(o, "func", o)) in EXPERIMENTS for o in node.decorator_list):
                    self.experiments.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for one in ast.walk(target):
                        if isinstance(one, ast.Name):
                            self.defined[one.id] = node

    @staticmethod
    @cache
    def of(file: str) -> _Source:
        return _Source(file)

    def has(self, name: str) -> bool:
        return name in self.defined or name in self.imported

    def used(self, name: str) -> set[tuple[str, str]]:
        """Names of the module that a definition uses, itself among them, each with what stands
        after a dot behind it, or nothing."""
        found, pending, seen = {(name, "")}, {name}, set()
        while pending - seen:
            one = (pending - seen).pop()
            seen.add(one)
            names = {x for x in self._read(one) if x[0] not in self.experiments - {name}}
            found |= names
            pending |= {x for x, _ in names}
        return found

    def named(self, name: str) -> frozenset[str]:
        """The files that constants of a definition name."""
        return frozenset(_constants(_telling(self.defined[name]), self.file))

    def _read(self, name: str) -> frozenset[tuple[str, str]]:
        """Names that a definition reads, as :meth:`used` gives them."""
        node = self.defined.get(name)
        inside = list(ast.walk(node)) if node else []
        # A section has the name of its experiment: as a parameter, it is not that.
        given = {inner.arg for inner in inside if isinstance(inner, ast.arg)}
        behind = {id(x.value): x.attr for x in inside if isinstance(x, ast.Attribute)}
        read = [x for x in inside if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load)]
        return frozenset((x.id, behind.get(id(x), "")) for x in read if x.id not in given)


def _called(node: ast.expr) -> str:
    """The last name of a dotted one."""
    return getattr(node, "attr", getattr(node, "id", ""))


_text = cache(ast.dump)


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a module, those under conditions included, but for type checkers' own."""
    for node in tree.body:
        if isinstance(node, ast.If):
            if _called(node.test) != "TYPE_CHECKING":
                yield from _statements(node)
        else:
            yield node


@cache
def _imported(file: str) -> tuple[str, ...]:
    """Files that a file leads to directly; not parsed again while it and the files there are stay
    what they were."""
    name = f"imports of {file} {sources(ROOT / file)} among {_tree()}"
    return tuple(cached(name, partial(_led_to, file)))


def _led_to(file: str) -> list[str]:
    nodes = _telling(_parsed(file))
    found = {one for package in _packages(file) for one in package}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {one for _, (one, _) in _bound(node, file)}
    return sorted(found | set(_constants(nodes, file)))


@cache
def _folder(folder: Path) -> str:
    """A digest of the modules of a folder."""
    return sources(*sorted((ROOT / folder).glob("*.py")))


@cache
def _tree() -> str:
    """A digest of the names of all files that code may lead to, and of this one's content."""
    names = [
        path
        for place in (*PACKAGES, BESIDE.rstrip("/"), "data")
        for path in glob(f"{place}/**", root_dir=ROOT, recursive=True)
    ]
    told = "\n".join(sorted(name for name in names if "__pycache__" not in name))
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest() + sources(Path(__file__))


def _telling(tree: ast.AST) -> list[ast.AST]:
    """Imports, calls and texts, but for type checkers' own. A plan looks at some hundred files, so
    that this is a loop over the fields of nodes and not a walk."""
    found: list[ast.AST] = []
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        kind = node.__class__
        if kind is ast.Constant:
            if node.value.__class__ is str:
                found.append(node)
            continue
        if kind is ast.If and _called(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        if kind in (ast.Import, ast.ImportFrom, ast.Call):
            found.append(node)
        for name in node._fields:
            value = getattr(node, name)
            if value.__class__ is list:
                pending += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                pending.append(value)
    return found


def _packages(file: str) -> Iterator[list[str]]:
    """What runs before a file: its packages."""
    for folder in Path(file).parents:
        init = folder / "__init__.py"
        if str(folder) != "." and (ROOT / init).is_file():
            yield [str(init)]


def _bound(node: ast.Import | ast.ImportFrom, file: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that an import binds, the file of this repository behind each, and what its name is
    there; empty if it is the module itself."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            name, module = alias.asname or alias.name.partition(".")[0], alias.name
            places = [(_file_of(module), "")] if _own(module) else []
        else:
            base = node.module or ""
            if node.level:
                parts = Path(file).parent.parts[: len(Path(file).parent.parts) - node.level + 1]
                base = OWN + ".".join([*parts, base] if base else parts)
            name = alias.asname or alias.name
            places = []
            if _own(base):
                # A module leads to its packages itself.
                module = _file_of(f"{base}.{alias.name}")
                places = [(module, "") if module else (_file_of(base), alias.name)]
        yield from ((name, place) for place in places if place[0])


def _own(module: str) -> bool:
    return module.removeprefix(OWN).partition(".")[0] in PACKAGES and module.startswith(OWN)


def _file_of(module: str) -> str:
    """The file of a module of this repository; empty if there is none."""
    path = module.removeprefix(OWN).replace(".", "/")
    for place in ("", BESIDE):
        for file in (f"{place}{path}.py", f"{place}{path}/__init__.py"):
            if (ROOT / file).is_file():
                return file
    return ""


def _constants(nodes: Iterable[ast.AST], file: str) -> Iterator[str]:
    """Methods that code loads by a constant name, and data files and modules that it names: these
    run in processes of their own."""
    data = _data(str(Path(file).parent))
    for one in nodes:
        if isinstance(one, ast.Call):
            given = [*one.args[:1], *(k.value for k in one.keywords if k.arg == "name")]
            for value in given if _called(one.func) in ("load", "Part") else ():
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield from _methods(value.value)
        elif isinstance(one, ast.Constant) and one.value in data:
            yield data[one.value]
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield from _run(one.value)


@cache
def _run(name: str) -> tuple[str, ...]:
    """The files that run as the module ``name``; none of a text that names no module."""
    module = name.partition(":")[0]  # what follows is a function in it
    if "." not in module or not _own(module):
        return ()
    if not all(part.isidentifier() for part in module.split(".")):
        return ()
    return tuple(file for file in (_file_of(module), _file_of(f"{module}.__main__")) if file)


@cache
def _methods(name: str) -> tuple[str, ...]:
    files = [f"methods/{room}/{name}.py" for room in ROOMS]
    return tuple(file for file in files if (ROOT / file).is_file())


@cache
def _data(folder: str) -> dict[str, str]:
    """Files that are no Python in a folder and in ``data``, by their names."""
    found = {}
    for place in ("data", folder):
        for path in (ROOT / place).glob("*.*"):
            if path.is_file() and path.suffix in (".cc", ".yaml", ".html", ".css", ".js"):
                found[path.name] = str(path.relative_to(ROOT))
    return found
