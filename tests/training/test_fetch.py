"""Fetching: whatever a source does, the cache holds checked files or nothing."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from slowlink.testbed import cache
from slowlink.testbed.training import fetch as fetching
from slowlink.testbed.training.fetch import (
    DataSet,
    DataUnavailable,
    fetch,
    main,
    obtain,
    read_sources,
)

ROOT = Path(__file__).resolve().parents[2]
rng = np.random.default_rng(7)
FILES = {"a.bin": rng.bytes(300_000), "b.bin": rng.bytes(1_000)}
A = FILES["a.bin"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def dataset(*sources: dict) -> dict[str, DataSet]:
    """The data set ``toy`` of FILES with these sources, as sources.yaml would give it."""
    about = dict(title="Toy", licence="none", homepage="http://toy.example", citation="toy")
    files = {name: sha256(content) for name, content in FILES.items()}
    return {"toy": DataSet(**about, files=files, sources=list(sources))}


class Server:
    """A site on this machine; ``pages`` maps a path to bytes or to a function of the handler."""

    def __init__(self) -> None:
        self.pages: dict = {f"{name}.gz": gzip.compress(c) for name, c in FILES.items()}
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
                    answer(self, page)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.files = {"kind": "url", "name": f"{self.url}/{{file}}.gz"}
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def archive(self, content: bytes, **changes) -> dict:
        """A source that is one archive with FILES under ``x/``."""
        self.pages["all.tar"] = content
        return {"kind": "url", "name": f"{self.url}/all.tar", "member": "x/{file}"} | changes


def answer(handler, content: bytes, length: int | None = None, **headers: str) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(length or len(content)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(content)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Server()
    yield site
    site.http.shutdown()
    site.http.server_close()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """No test touches the real cache."""
    monkeypatch.delenv("SLOWLINK_DATA", raising=False)
    monkeypatch.setattr(fetching, "CACHE", tmp_path / "default")


def complete(directory: Path) -> bool:
    return all((directory / name).read_bytes() == content for name, content in FILES.items())


def cached(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_committed_sources_are_complete():
    sources = read_sources()
    assert set(sources) == {"mnist", "fashion_mnist", "cifar10", "penn_treebank", "imagenet"}
    for name, entry in sources.items():
        kinds = [source.kind for source in entry.sources]
        assert (kinds[0] == "url" and len(kinds) >= 2) if entry.files else entry.by_hand, name
        for source in entry.sources:
            # What is not one checked archive must be one download a file, or the other way round.
            assert "{file}" in (source.member or source.name)


VALID = yaml.safe_load((ROOT / "data/sources.yaml").read_text(encoding="utf-8"))["mnist"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": "red"}, ["mnist.colour", "Extra inputs"]),
        ({"licence": None}, ["mnist.licence", "string"]),
        ({"homepage": "ftp://x"}, ["mnist.homepage"]),
        ({"files": {"x": "abc"}}, ["mnist.files.x", "pattern"]),
        ({"files": {"../x": "0" * 64}}, ["mnist.files", "pattern"]),
        ({"sources": [{"kind": "torrent", "name": "x"}]}, ["mnist.sources.0.kind", "'npm'"]),
        ({"files": {}}, ["mnist", "needs folders and by_hand"]),
    ],
)
def test_malformed_sources_name_file_and_field(tmp_path, change, told):
    path = tmp_path / "sources.yaml"
    path.write_text(yaml.safe_dump({"mnist": VALID | change}))
    with pytest.raises(ValueError) as caught:
        read_sources(path)
    assert all(text in str(caught.value) for text in [str(path), *told])
    path.write_text("a: [")
    with pytest.raises(ValueError, match=f"{path}: cannot be read"):
        read_sources(path)


def test_unknown_data_set_gets_a_hint():
    with pytest.raises(ValueError, match=r"no data set 'mnits' \(did you mean 'mnist'\?\)"):
        obtain("mnits")


def test_fetches_once_then_reads_the_cache(server, tmp_path):
    sources = dataset(server.files)
    first = obtain("toy", tmp_path, sources)
    assert first.path == tmp_path / "toy" and complete(first.path)
    assert first.source == server.files["name"]
    assert stat.S_IMODE((first.path / "a.bin").stat().st_mode) == 0o644
    assert server.asked == ["a.bin.gz", "b.bin.gz"]
    assert obtain("toy", tmp_path, sources).source == "cache" and len(server.asked) == 2
    assert fetch("toy", tmp_path, sources) == first.path
    assert cached(tmp_path) == ["a.bin", "b.bin"], "nothing but the files stays behind"


@pytest.mark.parametrize("there", [{"a.bin": A}, {"a.bin": A, "b.bin": b"other"}])
def test_fetches_only_what_is_missing_or_corrupt(server, tmp_path, there):
    (tmp_path / "toy").mkdir()
    for name, content in there.items():
        (tmp_path / "toy" / name).write_bytes(content)
    assert complete(fetch("toy", tmp_path, dataset(server.files)))
    assert server.asked == ["b.bin.gz"]


def test_what_was_checked_is_checked_again_once_it_changes(server, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept.sqlite"))
    sources, b = dataset(server.files), FILES["b.bin"]
    fetch("toy", tmp_path, sources)
    file = fetch("toy", tmp_path, sources) / "b.bin"
    with monkeypatch.context() as patched:
        patched.setattr(fetching.pooch, "file_hash", lambda *_: pytest.fail("hashed again"))
        fetch("toy", tmp_path, sources)
    file.write_bytes(flipped(b))  # as long
    assert complete(fetch("toy", tmp_path, sources))
    assert server.asked == ["a.bin.gz", "b.bin.gz", "b.bin.gz"]


def test_an_archive_is_downloaded_once(server, tmp_path):
    content = tar({f"./x/{name}": c for name, c in FILES.items()})
    source = server.archive(content, sha256=sha256(content))
    assert complete(fetch("toy", tmp_path, dataset(source))) and server.asked == ["all.tar"]


BAD_PAGES = {
    "cut file": (gzip.compress(A[:-1]), sha256(A)),
    "cut gzip": (gzip.compress(A)[:-9], "end-of-stream"),
    "cut transfer": (lambda h: answer(h, gzip.compress(A)[:9999], 99_999), "IncompleteRead"),
    "flipped bit": (gzip.compress(flipped(A)), sha256(flipped(A))),
    "damaged gzip": (gzip.compress(A)[:5000] + b"\0" * 50 + gzip.compress(A)[5050:], ""),
    "too long": (gzip.compress(A + b"x"), sha256(A)),
    "log-in page": (b"<html>please log in</html>", sha256(A)),
    "empty": (b"", sha256(A)),
    "missing": (None, "404"),
}


@pytest.mark.parametrize("case", BAD_PAGES)
def test_bad_download_is_refused_and_the_next_source_tried(server, tmp_path, capsys, case):
    server.pages["a.bin.gz"], told = BAD_PAGES[case]
    with pytest.raises(DataUnavailable) as caught:
        fetch("toy", tmp_path, dataset(server.files))
    assert f"{server.files['name']}: " in str(caught.value) and told in str(caught.value)
    assert cached(tmp_path) == [], "nothing refused is cached"

    good = server.archive(tar({f"x/{name}": c for name, c in FILES.items()}))
    fetched = obtain("toy", tmp_path, dataset(server.files, good))
    assert complete(fetched.path) and fetched.source == good["name"]
    assert told in capsys.readouterr().err


def test_wrong_archive_is_refused_unopened(server, tmp_path, monkeypatch):
    content = tar({f"x/{name}": c for name, c in FILES.items()})  # all is right inside
    monkeypatch.setattr(fetching.tarfile, "open", lambda *_: pytest.fail("archive was opened"))
    with pytest.raises(DataUnavailable, match=sha256(content)):
        fetch("toy", tmp_path, dataset(server.archive(content, sha256="0" * 64)))
    assert cached(tmp_path) == []


def test_a_file_labelled_as_encoded_is_taken(server, tmp_path):
    """Some servers send x.gz with Content-Encoding: gzip, which a client unpacks."""
    content = server.pages["a.bin.gz"]
    server.pages["a.bin.gz"] = lambda h: answer(h, content, Content_Encoding="gzip")
    assert complete(fetch("toy", tmp_path, dataset(server.files)))


def test_only_named_members_leave_an_archive(server, tmp_path):
    evil = {"../evil": b"1", "../../../evil": b"2", str(tmp_path / "evil"): b"3", "x/evil": b"4"}
    content = tar(evil | {f"x/{name}": c for name, c in FILES.items()})
    assert complete(fetch("toy", tmp_path / "y/cache", dataset(server.archive(content))))
    assert cached(tmp_path) == ["a.bin", "b.bin"]


def test_a_link_or_nothing_in_a_members_place_is_refused(server, tmp_path):
    (tmp_path / "secret").write_bytes(A)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("x/a.bin")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(info)
    for content in (out.getvalue(), tar({"x/b.bin": FILES["b.bin"]})):
        with pytest.raises(DataUnavailable, match="the archive has no file x/a.bin"):
            fetch("toy", tmp_path / "c", dataset(server.archive(content)))


def test_no_source_reachable_says_what_was_tried_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        site = f"http://127.0.0.1:{probe.getsockname()[1]}/x.tar"
    npm, deb = {"kind": "npm", "name": "p@1.0"}, {"kind": "debian", "name": "d"}
    with pytest.raises(DataUnavailable) as caught:
        fetch("toy", tmp_path / "c", dataset({"kind": "url", "name": site}, npm, deb))
    told = str(caught.value)
    assert told.startswith(f"toy: not available: {tmp_path / 'c/toy'} lacks a.bin, b.bin; tried: ")
    assert f"{site}: cannot connect (Connection refused)" in told
    assert "npm package p@1.0: npm is not installed" in told
    assert "debian package d: apt-get is not installed" in told
    assert "Get Toy from http://toy.example and put it there" in told and "SLOWLINK_DATA" in told


def test_a_silent_site_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT_S", (1, 0.2))
    server.pages["a.bin.gz"] = lambda handler: time.sleep(1)
    with pytest.raises(DataUnavailable, match="timed out"):
        fetch("toy", tmp_path, dataset(server.files))


def test_long_downloads_are_not_silent(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fetching, "PROGRESS_S", 0)
    fetch("toy", tmp_path, dataset(server.files))
    size = len(server.pages["a.bin.gz"])
    assert f"{server.files['name']}: {size:,} bytes of {size:,}" in capsys.readouterr().err


def test_killed_in_the_middle_leaves_nothing_under_a_final_name(server, tmp_path):
    content, stalled = server.pages["b.bin.gz"], threading.Event()

    def stall(handler) -> None:
        answer(handler, content[:500], len(content))
        handler.wfile.flush()
        stalled.set()
        time.sleep(5)

    server.pages["b.bin.gz"] = stall  # the first file arrives whole
    program = (
        "from slowlink.testbed.training.fetch import DataSet, fetch\n"
        f"toy = DataSet(**{dataset(server.files)['toy'].model_dump()!r})\n"
        f"fetch('toy', {str(tmp_path)!r}, dict(toy=toy))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert stalled.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "toy/a.bin").read_bytes() == A and not (tmp_path / "toy/b.bin").exists()

    server.pages["b.bin.gz"] = content
    server.asked.clear()
    assert complete(fetch("toy", tmp_path, dataset(server.files)))
    assert server.asked == ["b.bin.gz"], "what was whole is kept"


def test_two_at_once_both_get_whole_files(server, tmp_path):
    paths = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch("toy", tmp_path, dataset(server.files))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4 and complete(paths[0]) and cached(tmp_path) == ["a.bin", "b.bin"]


def test_shared_cache_is_read_without_a_trace(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "toy").mkdir(parents=True)
    for name, content in FILES.items():
        (shared / "toy" / name).write_bytes(content)
    monkeypatch.setenv("SLOWLINK_DATA", str(shared))
    fetched = obtain("toy", sources=dataset())
    assert fetched.path == shared / "toy" and fetched.source == "cache"
    assert cached(shared) == ["a.bin", "b.bin"]


def test_cache_that_cannot_be_written_gives_way_to_the_own_one(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataUnavailable, match="cannot be written"):
        fetch("toy", tmp_path / "file/cache", dataset(server.files))
    assert server.asked == []
    monkeypatch.setenv("SLOWLINK_DATA", str(tmp_path / "file/cache"))
    assert fetch("toy", sources=dataset(server.files)) == tmp_path / "default/toy"


def test_folders_are_placed_by_hand(tmp_path):
    with pytest.raises(DataUnavailable, match=r"lacks train, val; .*ILSVRC2012_img_train.tar"):
        fetch("imagenet", tmp_path)
    for split in ("train", "val"):
        (tmp_path / "imagenet" / split).mkdir(parents=True)
    assert fetch("imagenet", tmp_path) == tmp_path / "imagenet"


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


def test_npm_package(server, tools, tmp_path):
    server.pages["toy.tgz"] = tar({f"package/{name}": c for name, c in FILES.items()})
    source = {"kind": "npm", "name": "toy@1.2.3", "member": "package/{file}"}
    tools(
        "npm",
        "import sys\nassert sys.argv[1:4] == ['view', 'toy@1.2.3', 'dist.tarball']\n"
        f"print('{server.url}/toy.tgz')",
    )
    fetched = obtain("toy", tmp_path / "c", dataset(source))
    assert complete(fetched.path) and fetched.source == "npm package toy@1.2.3"
    tools("npm", "import sys; sys.exit('npm warn x\\nnpm error code E404\\nnpm error 404 no toy')")
    with pytest.raises(DataUnavailable, match="npm failed: npm error code E404; npm error 404"):
        fetch("toy", tmp_path, dataset(source))


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_debian_package(server, tools, tmp_path):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: toy-data\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: toy\n"
    )
    for name, content in FILES.items():
        (tree / f"usr/{name}.gz").write_bytes(gzip.compress(content))
    build = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(tmp_path / "toy.deb")]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    server.pages["toy.deb"] = (tmp_path / "toy.deb").read_bytes()
    calls = tmp_path / "calls"
    tools(  # a machine that has no package lists before its own are fetched
        "apt-get",
        "import sys\n"
        f"open({str(calls)!r}, 'a').write(sys.argv[1] + ' ')\n"
        "lists = any(a.startswith('Dir::State::Lists=') for a in sys.argv)\n"
        "if not lists: sys.exit('E: Unable to locate package toy-data')\n"
        f"if sys.argv[1] == 'download': print(\"'{server.url}/toy.deb' toy.deb 9 SHA256:0\")",
    )
    source = {"kind": "debian", "name": "toy-data", "member": "usr/{file}.gz"}
    fetched = obtain("toy", tmp_path / "c", dataset(source))
    assert complete(fetched.path) and fetched.source == "debian package toy-data"
    assert calls.read_text().startswith("download update download ")


def test_python_archive_comes_from_the_index_that_pip_is_given(server, tmp_path, monkeypatch):
    archive = tar({f"toy-1.0/{name}": c for name, c in FILES.items()})
    source = {"kind": "pypi", "name": "toy-1.0.tar.gz", "member": "toy-1.0/{file}"}
    sources = dataset(source | {"sha256": sha256(archive)})
    server.pages["simple/toy/"] = b'<html><a href="../../files/toy-1.0.tar.gz">toy-1.0.tar.gz</a>'
    server.pages["files/toy-1.0.tar.gz"] = archive
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    fetched = obtain("toy", tmp_path, sources)
    assert complete(fetched.path) and fetched.source == "pypi package toy-1.0.tar.gz"

    server.pages["files/toy-1.0.tar.gz"] = flipped(archive)
    with pytest.raises(DataUnavailable, match=sha256(flipped(archive))):
        fetch("toy", tmp_path / "c", sources)
    server.pages["simple/toy/"] = b"<html></html>"
    with pytest.raises(DataUnavailable, match="lists no toy-1.0.tar.gz"):
        fetch("toy", tmp_path / "c", sources)
    del server.pages["simple/toy/"]
    with pytest.raises(DataUnavailable, match="(?i)no details about project 'toy'"):
        fetch("toy", tmp_path / "c", sources)


def test_reasons_carry_no_passwords():
    error = OSError("no schema for https://me:secret@files.example/simple")
    assert fetching._reason(error) == "no schema for https://***@files.example/simple"


def test_command_line(server, tmp_path, capsys, monkeypatch):
    sources = dataset(server.files)
    monkeypatch.setattr(fetching, "read_sources", lambda: sources)
    for source in (server.files["name"], "cache"):
        assert main(["toy", "--cache", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"toy: {tmp_path / 'toy'} (from {source})\n"
    assert main(["boy", "--cache", str(tmp_path)]) == 1
    assert "error: no data set 'boy' (did you mean 'toy'?)" in capsys.readouterr().err
    server.pages.clear()
    assert main(["toy", "--cache", str(tmp_path / "other")]) == 1
    assert "error: toy: not available: " in capsys.readouterr().err
