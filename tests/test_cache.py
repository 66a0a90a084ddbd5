import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import pytest

from slowlink.testbed.cache import VARIABLE, Cache, cached, sources


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
    assert many(tmp_path / "file", 0) == found[0]
    file = Cache(tmp_path / "file")
    assert [file.get(str(number), refuse) for number in range(60)] == found[0]


def test_it_computes_where_nothing_can_be_kept(tmp_path):
    (tmp_path / "damaged").write_text("no database " * 100)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in ("damaged", "folder", "file/below"):
        assert Cache(tmp_path / path).get("a", lambda: 2) == 2
    assert (tmp_path / "damaged").read_text().startswith("no database")
