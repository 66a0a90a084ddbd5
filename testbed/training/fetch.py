"""Fetch data sets: the cache, then their own sites, then packages that carry the same bytes.

What a data set is and where it comes from is data (``data/sources.yaml``). pooch downloads; it
gives a file its name in the cache only after its SHA-256 has been checked, so whatever interrupts
a fetch, nobody reads a partial or a forged file.

    python -m slowlink.testbed.training.fetch fashion_mnist cifar10 --cache DIR
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

import pooch
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from slowlink.testbed.cache import cached, state
from slowlink.testbed.given import Loader

DATA = Path(__file__).resolve().parents[2] / "data"
SOURCES = DATA / "sources.yaml"
CACHE = DATA / "cache"
CACHE_VARIABLE = "SLOWLINK_DATA"

TIMEOUT_S = (5, 30)
"""Seconds to connect, and between two reads."""
COMMAND_TIMEOUT_S = 120
PROGRESS_S = 5


class DataUnavailable(RuntimeError):
    """No source could provide a data set; the message says what was tried and what to do."""


# --- what sources.yaml says ----------------------------------------------------------------------

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Source(_Strict):
    """Where the files of a data set can be had.

    Attributes
    ----------
    kind, name: a ``url``, or a package of ``npm``, ``debian`` or ``pypi`` (there an archive).
    sha256: of the archive, checked before it is opened.
    member: the path of a file inside the archive; none if a download is the file itself.

    In ``name`` and ``member``, ``{file}`` stands for the file's name.
    """

    kind: Literal["url", "npm", "debian", "pypi"]
    name: str
    sha256: Sha256 | None = None
    member: str | None = None

    @property
    def label(self) -> str:
        return self.name if self.kind == "url" else f"{self.kind} package {self.name}"


class DataSet(_Strict):
    """One data set of ``sources.yaml``; without ``files`` it is placed by hand as ``folders``."""

    title: str
    licence: str
    homepage: Annotated[str, Field(pattern=r"^https?://\S+$")]
    citation: str
    files: dict[Name, Sha256] = {}
    sources: list[Source] = []
    folders: list[Name] = []
    by_hand: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> DataSet:
        if not self.files and not (self.folders and self.by_hand):
            raise ValueError("a set without files needs folders and by_hand")
        return self


def read_sources(path: str | Path = SOURCES) -> dict[str, DataSet]:
    """Read and validate ``sources.yaml``.

    Raises
    ------
    ValueError
        One line for each wrong field: file, field, what is wrong.
    """
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
        return TypeAdapter(dict[Name, DataSet]).validate_python(content)
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, problem['loc'])) or 'top level'}: {problem['msg']}"
            for problem in error.errors()
        ]
        raise ValueError("\n".join(lines)) from error


# --- how a source delivers -----------------------------------------------------------------------
# A package's own client says where its archive lies. Then every source is a download by pooch.

FAILURES = (
    OSError,  # also every error of requests
    EOFError,
    ValueError,  # a wrong checksum, or something that an archive or an index lacks
    zlib.error,
    tarfile.TarError,
    subprocess.SubprocessError,
)


def _npm(package: str, scratch: Path) -> str:
    return _told("npm", "view", package, "dist.tarball", "--fetch-retries=1").strip()


def _debian(package: str, scratch: Path) -> str:
    ask = ["apt-get", "download", "--print-uris", package]
    try:
        told = _told(*ask)
    except ChildProcessError:
        # This machine may never have fetched its package lists: fetch them here, for this once.
        lists = scratch / "lists"
        (lists / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={scratch}"]
        _told("apt-get", "update", *own)
        told = _told(*ask, *own)
    return shlex.split(told)[0]


def _pypi(archive: str, scratch: Path) -> str:
    import pypi_simple  # slow to import, and seldom needed

    strange = (
        pypi_simple.NoSuchProjectError,
        pypi_simple.UnsupportedContentTypeError,
        pypi_simple.UnsupportedRepoVersionError,
    )
    index = os.environ.get("PIP_INDEX_URL", pypi_simple.PYPI_SIMPLE_ENDPOINT)
    with pypi_simple.PyPISimple(index) as client:
        try:
            page = client.get_project_page(archive.rpartition("-")[0], timeout=TIMEOUT_S)
        except strange as error:
            raise ValueError(str(error)) from error
    for package in page.packages:
        if package.filename == archive:
            return package.url
    raise ValueError(f"the package index lists no {archive}")


LOCATE: dict[str, Callable[[str, Path], str]] = {
    "url": lambda url, scratch: url,
    "npm": _npm,
    "debian": _debian,
    "pypi": _pypi,
}
"""The URL of what is downloaded, (name, scratch folder) -> URL by kind of source."""


def _told(*command: str) -> str:
    """Run a command and return what it prints; raise ChildProcessError where it fails."""
    if shutil.which(command[0]) is None:
        raise ChildProcessError(f"{command[0]} is not installed")
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"LC_ALL": "C"},  # reasons in one language
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not re.match("npm warn", line, re.I)]
        raise ChildProcessError(f"{command[0]} failed: {'; '.join(lines[:3])}")
    return done.stdout


class _Progress:
    """Says every few seconds how far a download is; pooch updates it."""

    def __init__(self, text: str) -> None:
        self.text, self.total, self.done = text, 0, 0
        self.start = self.said = time.monotonic()

    def update(self, nbytes: int) -> None:
        self.done += nbytes
        now = time.monotonic()
        if now - self.said > PROGRESS_S:
            self.said = now
            left = (now - self.start) * (self.total - self.done) / self.done
            of = f" of {self.total:,}, {left:.0f} s left" if self.total else ""
            _say(f"{self.text}: {self.done:,} bytes{of}")

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _deliver(source: Source, file: str, archive: Callable, url: str, out: str, _: object) -> None:
    """pooch's downloader: write ``file``, unpacked, to the path ``out``."""
    path = archive(source.name.format(file=file))
    if source.member is None:
        with path.open("rb") as stream:
            _unpack(stream, out)
    else:
        with tarfile.open(path) as tar:
            wanted = PurePosixPath(source.member.format(file=file))  # some archives begin with ./
            found = [m for m in tar if PurePosixPath(m.name) == wanted and m.isreg()]
            if not found:
                raise ValueError(f"the archive has no file {wanted}")
            _unpack(tar.extractfile(found[0]), out)


def _unpack(stream, out: str) -> None:
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    with open(out, "wb") as target:
        shutil.copyfileobj(gzip.GzipFile(fileobj=stream) if packed else stream, target)
    os.chmod(out, 0o644)  # pooch's temporary files are the owner's alone


def _archive(source: Source, text: str, scratch: Path, name: str) -> Path:
    """Download ``name`` of ``source``: a tar archive, or the packed or plain file itself."""
    url = LOCATE[source.kind](name, scratch)
    get = pooch.HTTPDownloader(
        progressbar=_Progress(text), timeout=TIMEOUT_S, headers={"Accept-Encoding": "identity"}
    )
    path = Path(pooch.retrieve(url, source.sha256, path=scratch, downloader=get))
    if source.kind != "debian":
        return path
    contents = path.with_suffix(".tar")
    with contents.open("wb") as out:
        subprocess.run(["dpkg-deb", "--fsys-tarfile", path], stdout=out, check=True)
    return contents


# --- the cache -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetched:
    """Where a data set lies, and the source of what had to be fetched, else ``cache``."""

    path: Path
    source: str = "cache"


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
        No source delivered, or no cache can be written; says what was tried and the remedy.
    """
    known = read_sources() if sources is None else sources
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no data set {name!r}{hint}; there are: {', '.join(known)}")
    dataset = known[name]
    shared = os.environ.get(CACHE_VARIABLE)
    caches = [Path(c).absolute() for c in ([cache_dir] if cache_dir else [shared, CACHE]) if c]
    for folder in caches:
        if not _missing(folder / name, dataset):
            return Fetched(folder / name)
    tried: list[str] = []
    for folder in caches:
        if _writable(folder / name):
            source = _fetch(name, dataset, folder / name, tried)
            if source:
                return Fetched(folder / name, source)
            break
        tried.append(f"{folder / name} cannot be written")
    lacks = ", ".join(_missing(folder / name, dataset))
    raise DataUnavailable(
        f"{name}: not available: {folder / name} lacks {lacks}; "
        f"tried: {'; '.join(tried) or 'nothing, for it is placed by hand'}. "
        f"Get {dataset.title} from {dataset.homepage} and put it there "
        f"({dataset.by_hand or f'checksums are in {SOURCES.name}'}), "
        f"or let {CACHE_VARIABLE} name a folder in which {name}/ holds it"
    )


def _missing(folder: Path, dataset: DataSet) -> list[str]:
    """The files and folders that ``folder`` lacks, or holds with another checksum."""
    return [sub for sub in dataset.folders if not (folder / sub).is_dir()] + [
        file
        for file, sha256 in dataset.files.items()
        if not (folder / file).is_file() or _hash(folder / file) != sha256
    ]


def _hash(file: Path) -> str:
    """A file's SHA-256, not computed again while the file stays as it is."""
    return cached(f"SHA-256 of {state(file)}", lambda: pooch.file_hash(str(file)))


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _fetch(name: str, dataset: DataSet, folder: Path, tried: list[str]) -> str:
    """Fetch what ``folder`` lacks; the source that had the last of it, or nothing."""
    files = pooch.create(folder, base_url="", registry=dataset.files)
    for source in dataset.sources:
        text = f"{name}: from {source.label}"
        _say(text)
        with tempfile.TemporaryDirectory() as scratch:
            archive = cache(partial(_archive, source, text, Path(scratch)))
            try:
                for file in dataset.files:
                    files.fetch(file, downloader=partial(_deliver, source, file, archive))
                return source.label
            except FAILURES as error:
                tried.append(f"{source.label}: {_reason(error)}")
                _say(f"{name}: {tried[-1]}")
    return ""


# --- what the user sees --------------------------------------------------------------------------

pooch.get_logger().setLevel("WARNING")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reason(error: BaseException) -> str:
    """One line, without the passwords that an index's address may carry."""
    text = " ".join(str(error).split()) or type(error).__name__
    cause = re.search(r"\[Errno -?\d+\] ([^'\")]+)", text)
    text = f"cannot connect ({cause[1]})" if cause and "Max retries" in text else text
    return re.sub(r"//[^/@\s]+@", "//***@", text)


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
