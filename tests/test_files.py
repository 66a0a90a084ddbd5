"""Files that are whole or not at all; that they last is tested with the federated checkpoint."""

import pytest

from slowlink.testbed.files import whole


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
