import json
import math
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from slowlink.testbed import cache as cached_module
from slowlink.testbed.cache import VARIABLE, Cache, beginning, cached, keep, sources


def refuse():
    raise AssertionError("computed again")


def test_a_number_is_computed_once_to_the_last_bit(tmp_path):
    value = math.pi * 1e-9
    assert Cache(tmp_path / "deep" / "file").get("a", lambda: value) == value
    assert Cache(tmp_path / "deep" / "file").get("a", refuse) == value
    with pytest.raises(AssertionError):
        Cache(tmp_path / "deep" / "file").get("b", refuse)


def test_it_keeps_what_json_can_tell(tmp_path, monkeypatch):
    told = {"flops": 0.1 + 0.2, "tensors": [["weight", [3, 4], math.inf]]}
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(AssertionError):
        cached("a", refuse)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert cached("a", lambda: told) == cached("a", refuse) == told


def test_all_that_begins_so_comes_in_one_look(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    assert beginning("a ") == {}
    for name in ("a 1", "a 10", "a", "aa 1", "b 1", "a %", "a Z", "a é"):
        cached(name, lambda name=name: [name])
    cached_module._write()  # what waits to be written is not looked at
    found = beginning("a ")
    assert {name: json.loads(told) for name, told in found.items()} == {
        name: [name] for name in ("a 1", "a 10", "a %", "a Z", "a é")
    }
    (tmp_path / "broken").write_bytes(b"no database" * 100)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "broken"))
    assert beginning("a ") == {}
    monkeypatch.delenv(VARIABLE)
    assert beginning("a ") == {}


def test_a_command_keeps_among_the_user_s_caches_what_the_environment_names_no_file_for(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "named")
    keep()
    assert os.environ[VARIABLE] == "named"
    monkeypatch.delenv(VARIABLE)
    keep()
    assert cached("a", lambda: 1) == 1 and (tmp_path / "slowlink" / "cache.sqlite").is_file()


def test_a_digest_of_files_changes_with_what_is_in_them(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    digests = set()
    for texts in (("ab", "c"), ("a", "bc"), ("c", "ab"), ("ab", "")):
        one.write_text(texts[0])
        two.write_text(texts[1])
        digests.add(sources(one, two))
    assert len(digests) == 4


def many(path, first):
    file = Cache(path)
    return [file.get(str(number), lambda number=number: number / 7) for number in range(first, 60)]


def test_processes_share_it(tmp_path):
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        found = list(pool.map(partial(many, tmp_path / "file"), [0, 20, 40, 0]))
    assert found == [[number / 7 for number in range(first, 60)] for first in (0, 20, 40, 0)]
    file = Cache(tmp_path / "file")
    assert [file.get(str(number), refuse) for number in range(60)] == found[0]


def test_it_computes_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "damaged").write_text("no database " * 100)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in ("damaged", "folder", "file/below"):
        assert Cache(tmp_path / path).get("a", lambda: 2) == 2
    assert (tmp_path / "damaged").read_text().startswith("no database")


def test_a_fork_and_a_thread_have_a_connection_of_their_own(tmp_path):
    file = Cache(tmp_path / "file")
    assert file.get("a", lambda: 1) == 1
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        assert list(pool.map(partial(many, tmp_path / "file"), [0, 0])) == [many(file.path, 0)] * 2
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(file.get, "a", refuse).result() == 1
    assert file.get("a", refuse) == 1


def test_two_files_in_turn_keep_what_is_theirs(tmp_path):
    first, second = Cache(tmp_path / "first"), Cache(tmp_path / "second")
    assert first.get("a", lambda: 1) == second.get("a", lambda: 2) - 1 == 1
    assert first.get("a", refuse) == 1
