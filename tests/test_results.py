"""The one result row: validated, written whole or not at all."""

import math

import pandas as pd
import pytest
from pydantic import ValidationError

from slowlink.testbed import results
from slowlink.testbed.results import Row


def row(**changes):
    fields = dict(
        document="p",
        experiment="e",
        case="c",
        scale="smoke",
        evidence="computed",
        metric="m",
        unit="s",
    )
    return Row(**(fields | {"value": 1.5} | changes))


def test_round_trip(tmp_path):
    rows = [row(), row(status="failed", reason="why", value=math.nan), row(round=3, time_s=2.5)]
    results.write(rows, tmp_path / "a" / "x.parquet")
    read = results.read([tmp_path / "a" / "x.parquet"])
    pd.testing.assert_frame_equal(read, results.frame(rows))


@pytest.mark.parametrize(
    "changes",
    [
        {"value": math.nan},
        {"value": math.inf},
        {"status": "failed", "value": math.nan},
        {"evidence": "guessed"},
        {"unit": "furlong"},
        {"scale": "huge"},
        {"colour": "red"},
        {"status": "late", "value": math.nan},
        {"at": {"workers": 8}},
    ],
)
def test_incomplete_or_unknown_is_refused(changes):
    with pytest.raises(ValidationError):
        row(**changes)


def test_coordinates_become_columns():
    rows = [row(at={"method": "Ring", "k": 2}), row(at={"method": "RAT"}), row()]
    table = results.coordinates(results.frame(rows))
    assert list(table["method"].fillna("")) == ["Ring", "RAT", ""]
    assert table["k"].iloc[0] == 2.0 and table["k"].isna().sum() == 2
    assert "at" not in table and list(table["value"]) == [1.5] * 3


def test_a_record_is_its_row_again():
    one = row(at={"d": 0.01, "method": "Ring"})
    record = results.frame([one]).iloc[0]
    assert results.row_of(record, value=2.0).value == 2.0
    assert results.row_of(record).at == {"d": 0.01, "method": "Ring"}


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def rows():
        yield row()
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        results.write(rows(), tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    results.write([row()], path)
    before = path.read_bytes()

    def half(self, target, **kwargs):
        with open(target, "wb") as file:
            file.write(b"PAR1half")
        raise OSError("disk full")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", half)
    with pytest.raises(OSError, match="x.parquet: cannot be written, .*disk full"):
        results.write([row(value=2.0)], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_rows_is_no_result(tmp_path):
    with pytest.raises(ValueError, match="no rows"):
        results.write([], tmp_path / "x.parquet")


def test_unreadable_and_foreign_files_are_named(tmp_path):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"broken\.parquet: not a readable result file"):
        results.read([broken])
    foreign = tmp_path / "foreign.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(foreign)
    with pytest.raises(ValueError, match=r"foreign\.parquet: columns"):
        results.read([foreign])
    for changes in ({"value": math.nan}, {"status": "failed"}, {"scale": "huge"}):
        hidden = tmp_path / "hidden.parquet"
        table = results.frame([row(), row()]).astype(object)
        table.loc[1, list(changes)] = list(changes.values())
        table.infer_objects().to_parquet(hidden, index=False)
        with pytest.raises(ValueError, match=r"hidden\.parquet: (unknown scale|'m' of 'c' is)"):
            results.read([hidden])
    bad = tmp_path / "bad.parquet"
    results.frame([row()]).assign(evidence="guessed").to_parquet(bad, index=False)
    with pytest.raises(ValueError, match=r"bad\.parquet: unknown evidence"):
        results.read([bad])
