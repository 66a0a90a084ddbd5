from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from slowlink.reports import claims, expressions

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "workflow" / "documents"
NAMES = ["dds", "geomx", "lpsp", "rat", "sketch_fusion"]
MINIMAL = {
    "document": "demo",
    "label": "Demo",
    "title": "A document",
    "citation": "nobody, 2020",
    "claims": [
        {
            "id": "D-1",
            "where": "Table 1",
            "kind": "value",
            "setting": "",
            "metric": "size",
            "printed": "9.90",
            "quantity": "bytes",
            "ours": {"experiment": "table1", "metric": "size"},
        }
    ],
}


def file_of(document: str) -> Path:
    return DOCUMENTS / document / "claims.yaml"


def write(folder: Path, head: dict | None = None, **changes) -> Path:
    data = MINIMAL | {"claims": [MINIMAL["claims"][0] | changes]} | (head or {})
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_geomx_has_every_entry_once_with_what_it_names():
    found = claims.load(file_of("geomx"), ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 123
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 86,
        "param": 16,
        "derived": 11,
        "ordering": 5,
        "algorithm": 4,
        "formula": 1,
    }
    assert 6 <= sum(bool(claim.headline) for claim in found) <= 8


def test_geomx_table_2_is_complete():
    values = [claim for claim in claims.load(file_of("geomx")) if claim.where == "Table 2"]
    cells = {(claim.row, claim.ours.metric) for claim in values if claim.ours}
    rows = {row for row, _ in cells}
    assert len(rows) == 9
    six = {"final_accuracy", "time_to_target", "rounds_to_target", "round_time"}
    six |= {"upload_raw", "download_raw"}
    assert cells >= {(row, metric) for row in rows for metric in six}
    compressed = {row for row, metric in cells if metric in ("upload", "download")}
    assert compressed == {row for row in rows if "BiSparse" in row or "FP16" in row}


def test_rat_has_every_entry_once_with_what_it_names():
    found = claims.load(file_of("rat"), ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 39
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "param": 11,
        "algorithm": 1,
        "formula": 11,
        "derived": 7,
        "ordering": 8,
        "value": 1,
    }
    assert 4 <= sum(bool(claim.headline) for claim in found) <= 6
    # Table 1 has ten schemes, and each is a file of its own.
    files = [claim.implemented_by[0] for claim in found if claim.where == "Table 1"]
    assert len(set(files)) == 10


def test_lpsp_has_every_entry_once_with_what_it_names():
    found = claims.load(file_of("lpsp"), ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 59
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 2,
        "param": 20,
        "derived": 15,
        "ordering": 13,
        "algorithm": 4,
        "formula": 5,
    }
    assert 3 <= sum(bool(claim.headline) for claim in found) <= 6


def test_dds_has_every_entry_once_with_what_it_names():
    found = claims.load(file_of("dds"), ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 64
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 32,
        "param": 13,
        "derived": 6,
        "formula": 1,
        "ordering": 8,
        "algorithm": 4,
    }
    assert 4 <= sum(bool(claim.headline) for claim in found) <= 6
    # Four modes by bytes, size, two clients, round time and accuracy; two cases by four figures.
    names = {claim.id for claim in found}
    modes = ("fp32_dense", "int8_dense", "fp32_sparse", "int8_sparse")
    kinds = ("bytes", "MB", "c0", "c1", "rt", "acc")
    assert names >= {f"DDS-FL-{mode}-{kind}" for mode in modes for kind in kinds}
    assert names >= {f"DDS-F0{n}-{case}" for n in (1, 2, 3, 4) for case in ("base", "dgc")}


def test_ids_are_those_of_one_document():
    ids = [claim.id for name in NAMES for claim in claims.load(file_of(name))]
    assert len(ids) == len(set(ids)) == 369


@pytest.mark.parametrize("document", NAMES)
def test_no_verdict_is_typed_in(document):
    text = file_of(document).read_text(encoding="utf-8")
    raw = yaml.safe_load(text)["claims"]
    assert all("verdict" not in entry for entry in raw)
    assert "impossible" not in text and "contradict" not in text.replace("contradicts itself", "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"verdict": "holds"}, "D-1: verdict: unknown key"),
        ({"ours": {"experiment": "t", "metric": "m", "case": "a"}}, "case: no coordinate"),
        ({"ours": {"experiment": "t"}}, "D-1: ours.metric"),
        ({"ours": "t"}, "'t' is no path"),
        ({"ours": "t/a//m"}, "'t/a//m' is no path"),
        ({"ours": "t/a/m"}, "axes of t are not declared"),
        ({"bound": "{t/a/m} * 2"}, "axes of t are not declared"),
        ({"bound": "{t/k=(1|2)/m}"}, "alternatives stand in arguments of min"),
        ({"kind": "guess"}, "D-1: kind"),
        ({"printed": "about 10"}, "about 10"),
        ({"ours": None}, "a value needs quantity and ours"),
        (
            {"kind": "derived", "calibrates": "the speed"},
            "calibrates, fit, over and comparable: only of a value",
        ),
        ({"fit": {"table": "T"}, "over": "{D-1}"}, "give either fit or over"),
        ({"over": "{D-9}"}, "'D-9' is neither a value"),
        ({"tie": 2}, "D-1: tie"),
        ({"bound": "{D-9} * 2"}, "'D-9' is neither a value"),
        ({"bound": "import os"}, "is not an expression"),
        ({"bound": "{D-1}.real"}, "is not an expression"),
    ],
)
def test_bad_entries_name_file_id_and_field(tmp_path, changes, says):
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match="demo.yaml") as error:
        claims.load(path)
    assert says in str(error.value) and "D-1" in str(error.value)


def test_repeated_id_and_unreadable_file(tmp_path):
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"claims": MINIMAL["claims"] * 2}))
    with pytest.raises(ValueError, match="D-1: id: appears twice"):
        claims.load(path)
    path.write_text("claims: [")
    with pytest.raises(ValueError, match="cannot be read as YAML"):
        claims.load(path)
    with pytest.raises(ValueError, match="cannot be read"):
        claims.load(tmp_path / "absent.yaml")


def test_files_and_tests_that_claims_name_must_exist(tmp_path):
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "it.py").write_text("")
    (tmp_path / "test_it.py").write_text("class TestIt:\n    def test_a(self): ...\n")
    entry = {"kind": "algorithm", "implemented_by": ["methods/it.py"]}
    good = write(tmp_path, **entry, proved_by=["test_it.py::TestIt::test_a[1]"])
    assert claims.load(good, tmp_path)[0].proved_by
    for proof in ("test_it.py::test_a", "test_it.py", "test_no.py::test_a"):
        with pytest.raises(ValueError, match="D-1: proved_by"):
            claims.load(write(tmp_path, **entry, proved_by=[proof]), tmp_path)
    with pytest.raises(ValueError, match="D-1: implemented_by: no file"):
        path = write(tmp_path, kind="formula", implemented_by=["no.py"], proved_by=["test_it.py"])
        claims.load(path, tmp_path)


@pytest.mark.parametrize("document", NAMES)
def test_what_is_built_otherwise_is_no_mere_note(document):
    """A note of what is built tells of the document; what differs here makes another verdict."""
    for claim in claims.load(file_of(document), ROOT):
        if claim.implemented_by and not claim.otherwise_here:
            assert not re.search(r"\b(here|ours|this one|leaves? them out)\b", claim.note), claim.id


def test_only_what_is_built_is_built_otherwise(tmp_path):
    with pytest.raises(ValueError, match="otherwise_here: only of what is implemented_by files"):
        claims.load(write(tmp_path, otherwise_here="twice as long"))


def test_what_is_not_run(tmp_path):
    entry = {"claims": ["D-1"], "scales": ["smoke"], "reason": "too large for this scale"}
    (found,) = claims.load(write(tmp_path, {"not_run": [entry]}))
    assert set(found.not_run) == {"smoke"}
    assert found.not_run["smoke"].covers(found.ours)
    for change, says in (
        ({"claims": ["D-2"]}, "no claim has the id D-2"),
        ({"scales": ["tiny"]}, "scales"),
        ({"reason": ""}, "reason"),
    ):
        with pytest.raises(ValueError, match=says):
            claims.load(write(tmp_path, {"not_run": [entry | change]}))


def test_only_what_is_named_may_be_missing(tmp_path):
    where = {"experiment": "t", "workers": [8, 16]}
    entry = {"claims": ["D-1"], "scales": ["smoke"], "reason": "too large for this scale"}
    derived = dict(kind="derived", value="{t/BSP/8/size}", quantity="count")
    head = {"axes": {"t": ["method", "workers"]}, "not_run": [entry | {"missing": [where]}]}
    (found,) = claims.load(write(tmp_path, head, **derived))
    partly = found.not_run["smoke"]
    assert all(map(partly.covers, found.lookups()))
    assert not partly.covers(claims.Lookup.of("t/BSP/12/size", found.axes))
    assert not partly.covers(claims.Lookup.of("t/BSP/size", found.axes))
    head["not_run"] = [entry | {"missing": [where | {"workers": 9}]}]
    with pytest.raises(ValueError, match="D-1 looks nothing up at .*9"):
        claims.load(write(tmp_path, head, **derived))


AXES = {"t": ("method", "k", "d")}


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("t/m", {}),
        ("t/Ring/m", {"method": "Ring"}),
        ("t/RAT barrier/2/0.010/m", {"method": "RAT barrier", "k": 2, "d": 0.01}),
        ("t/variant=free/Ring/1e1/m", {"variant": "free", "method": "Ring", "k": 10}),
        ("t/method=p_min=1/2/m", {"method": "p_min=1", "k": 2}),
        ("other/shape=4x4/m", {"shape": "4x4"}),
    ],
)
def test_a_path_names_coordinates(path, where):
    found = claims.Lookup.of(path, AXES)
    assert dict(found.where) == where
    assert (found.experiment, found.metric) == (path.split("/")[0], "m")


def test_a_path_converts_units():
    assert claims.Lookup.of("t/times=1000/m", AXES).times == 1000


def test_a_claim_knows_the_experiments_it_is_judged_by(tmp_path):
    part = {"printed": "4", "quantity": "count"}
    parts = [
        part | {"largest": ["{a/m}"]},
        part | {"value": "{D-1}", "beside": {"value": "{b/m}", "why": "-"}},
    ]
    value = MINIMAL["claims"][0]
    derived = value | {"id": "D-2", "kind": "derived", "parts": parts, "ours": None}
    first, second = claims.load(write(tmp_path, {"claims": [value, derived]}))
    assert first.experiments() == {"table1"}
    assert second.experiments() == {"a", "b"}
    assert second.experiments({"D-1": first}) == {"a", "b", "table1"}
    whole = value | {"id": "D-3", "ours": "c/m", "fit": {"table": "T", "terms": {"x": "{d/m}"}}}
    whole["beside"] = {"value": "2 * {D-1}", "why": "-"}
    first, third = claims.load(write(tmp_path, {"claims": [value, whole]}))
    assert third.experiments({"D-1": first}) == {"c", "d"}, "what stands beside is printed"


GRID = {
    "id": "D-{row}-{column}",
    "setting": "{name}",
    "ours": "{row}/{of}/{metric}",
    "rows": {"A": {"name": "first", "of": "k=1"}, "B": {"name": "second", "of": "k=2"}},
    "columns": {"x": {"metric": "size"}, "y": {"metric": "delay", "quantity": "latency"}},
    "cells": """
        of x      y
        A  9.90   -
        B  1.000  2
    """,
    "except": {"B": {"x": {"note": "of {name}, another way", "calibrates": "the speed"}}},
}


def test_a_printed_table_is_a_grid(tmp_path):
    found = claims.load(write(tmp_path, printed=None, **GRID))
    assert [(c.id, c.printed, c.row, c.column) for c in found] == [
        ("D-A-x", "9.90", "first", "x"),
        ("D-B-x", "1.000", "second", "x"),
        ("D-B-y", "2", "second", "y"),
    ]
    assert [c.quantity for c in found] == ["bytes", "bytes", "latency"]
    assert [c.setting for c in found] == ["first", "second", "second"]
    assert str(found[2].ours) == "B/k=2/delay"
    assert [c.note for c in found] == ["", "of second, another way", ""]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cells": "of x y\nA 1"}, "A has 1 numbers for 2 columns"),
        ({"cells": "of x z\nA 1 2", "except": {}}, "'z' is not one of the columns"),
        ({"cells": "of x\nC 1", "except": {}}, "'C' is not one of the rows"),
        ({"except": {"A": {"y": {"note": "-"}}}}, "there is no cell A, y"),
    ],
)
def test_a_grid_must_fit(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        claims.load(write(tmp_path, **GRID | changes))


def test_statements_alike_are_written_once(tmp_path):
    parts = [
        {"label": "{row} on {column}", "order": ["{t/{of}/{column}/m}", "{t/b/{column}/m}"],
         "rows": {"A": {"of": "a"}, "C": {"of": "c", "unit": "s"}}, "columns": [2, 4]},
        {"label": "alone", "order": ["1", "{t/a/2/m}"]},
    ]  # fmt: skip
    path = write(tmp_path, {"axes": AXES}, kind="ordering", parts=parts, ours=None)
    (found,) = claims.load(path)
    assert [part.label for part in found.parts] == [
        "A on 2", "A on 4", "C on 2", "C on 4", "alone"
    ]  # fmt: skip
    assert found.parts[3].order == ("{t/c/4/m}", "{t/b/4/m}")
    assert [part.unit for part in found.parts] == ["", "", "s", "s", ""]


def test_the_head_of_a_file(tmp_path):
    head = claims.about(write(tmp_path))
    assert (head.document, head.label, head.title) == ("demo", "Demo", "A document")


def test_printed_numbers_keep_their_digits():
    assert expressions.printed("9.90").low == pytest.approx(9.895)
    assert expressions.printed("9.9").high == pytest.approx(9.95)
    assert expressions.printed("-0.2").low == pytest.approx(-0.25)
    assert expressions.printed("10") == expressions.Interval(9.5, 10.5)
    for text in ("nan", "1-2", "", "8 %"):
        with pytest.raises(ValueError, match="printed number"):
            expressions.printed(text)
