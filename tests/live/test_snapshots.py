"""Snapshots on disk: those of this run, whole, and the latest."""

import numpy as np
import pytest
import torch

from slowlink.testbed.live import snapshots as snapshots_module
from slowlink.testbed.live.snapshots import Snapshots


def test_snapshots_of_another_run_and_damaged_ones_are_refused(tmp_path):
    Snapshots(tmp_path, "one", "site1/server").save(3, {"round": 3})
    assert Snapshots(tmp_path, "one", "site1/server").load() == {3: {"round": 3}}
    assert Snapshots(tmp_path, "one", "site1/server0").load() == {}
    with pytest.raises(ValueError, match="of another configuration"):
        Snapshots(tmp_path, "two", "site1/server").load()
    next(tmp_path.iterdir()).write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a snapshot"):
        Snapshots(tmp_path, "one", "site1/server").load()


def test_every_changed_bit_is_found(tmp_path):
    snapshots = Snapshots(tmp_path, "one", "node")
    snapshots.save(3, {"weights": torch.arange(50.0)})
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    for bit in range(0, 8 * len(written), 61):
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(ValueError, match="not a snapshot"):
            snapshots.load()
    file.write_bytes(written)
    assert snapshots.load()[3]["weights"].equal(torch.arange(50.0))


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(3), np.int64(7), np.bool_(True)])
def test_numbers_of_numpy_are_read_again(tmp_path, number):
    Snapshots(tmp_path, "one", "node").save(3, {"lr": number})
    found = Snapshots(tmp_path, "one", "node").load()[3]["lr"]
    assert found == number and type(found) is type(number)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    snapshots = Snapshots(tmp_path, "one", "node")
    with pytest.raises(ValueError, match=r"node.3.pt: not written, since .*Odd could not be"):
        snapshots.save(3, {"schedule": Odd()})
    assert not list(tmp_path.iterdir())


def test_who_cannot_read_a_whole_snapshot_is_not_told_to_delete_it(tmp_path, monkeypatch):
    snapshots = Snapshots(tmp_path, "one", "node")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *_, **__: None)
        snapshots.save(3, {"schedule": Odd()})
    with pytest.raises(ValueError, match="node.3.pt: is whole, but") as error:
        snapshots.load()
    assert "delete" not in str(error.value)


class Odd:
    """No number, and no tensor."""


def test_snapshots_of_another_version_are_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(snapshots_module, "FORM", 1)
        Snapshots(tmp_path, "one", "node").save(3, {"round": 3})
    with pytest.raises(ValueError, match="node.3.pt: of another version of slowlink; go on with"):
        Snapshots(tmp_path, "one", "node").load()


def test_a_file_with_another_name_is_named(tmp_path):
    (tmp_path / "node.best.pt").write_bytes(b"mine")
    with pytest.raises(ValueError, match="node.best.pt: is no snapshot, by its name"):
        Snapshots(tmp_path, "one", "node").load()


def test_only_the_latest_snapshots_stay_and_none_of_undone_rounds(tmp_path):
    snapshots = Snapshots(tmp_path, "one", "node")
    for number in (0, 1, 2, 3, 2):
        snapshots.save(number, {"round": number})
    assert sorted(snapshots.load()) == [2]
    snapshots.save(3, {"round": 3})
    assert sorted(snapshots.load()) == [2, 3]
