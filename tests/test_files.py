"""Files that are whole or not at all."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from slowlink.testbed.files import append, save, whole


def test_what_a_killed_writer_left_is_overwritten(tmp_path):
    (tmp_path / ".x.part").write_text("half of an older one")
    with whole(tmp_path / "x") as part:
        part.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.parametrize("lasting", [False, True])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, lasting):
    path = tmp_path / "deep" / "x"
    with whole(path, lasting) as part:
        part.write_text("old")
    with pytest.raises(KeyboardInterrupt), whole(path, lasting) as part:
        part.write_text("ne")
        raise KeyboardInterrupt
    assert [path.name for path in path.parent.iterdir()] == ["x"]
    assert path.read_text() == "old"


def test_what_lasts_is_there_before_its_name_is(tmp_path, monkeypatch):
    """Its bytes, then its name, and then the folder that keeps the name."""
    done = []
    replace, fsync = os.replace, os.fsync

    def note(what, do, *arguments):
        done.append(what)
        return do(*arguments)

    monkeypatch.setattr(os, "replace", lambda *names: note("replace", replace, *names))
    monkeypatch.setattr(
        os, "fsync", lambda file: note(Path(f"/dev/fd/{file}").resolve(), fsync, file)
    )
    with whole(tmp_path / "model", lasting=True) as part:
        part.write_bytes(b"model")
    assert done == [tmp_path / ".model.part", "replace", tmp_path]
    assert (tmp_path / "model").read_bytes() == b"model"


def test_on_a_full_disk_the_error_names_the_file(tmp_path):
    path, state = tmp_path / "x", {"a": torch.arange(1000)}
    append(tmp_path / "rows", "one\n")
    save(path, state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot be written, and is as it was: File") as error:
            save(path, state)
        assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
        with pytest.raises(OSError, match="cannot be written: File too large") as error:
            append(tmp_path / "rows", "two\n" * 1000)
        assert error.value.filename == str(tmp_path / "rows")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(torch.load(path)["a"], state["a"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rows", "x"]


def test_an_error_of_another_file_is_not_this_ones(tmp_path):
    with pytest.raises(FileNotFoundError) as error, whole(tmp_path / "x") as part:
        part.write_text((tmp_path / "other").read_text())
    assert error.value.filename == str(tmp_path / "other")
