from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from reports import claims, expressions

ROOT = Path(__file__).parents[2]
FILES = ROOT / "data" / "claims"
FILE = FILES / "geomx.yaml"
MINIMAL = {
    "paper": "demo",
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


def write(folder: Path, **changes) -> Path:
    data = MINIMAL | {"claims": [MINIMAL["claims"][0] | changes]}
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_geomx_has_every_entry_once_with_what_it_names():
    found = claims.load(FILE, ROOT)
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
    values = [claim for claim in claims.load(FILE) if claim.where == "Table 2"]
    cells = {(claim.ours.case, claim.ours.metric) for claim in values if claim.ours}
    cases = {case for case, _ in cells}
    assert len(cases) == 9
    six = {"converged_accuracy", "convergence_time", "rounds_to_converge", "communication_time"}
    six |= {"upload_raw", "download_raw"}
    assert cells >= {(case, metric) for case in cases for metric in six}
    compressed = {case for case, metric in cells if metric in ("upload", "download")}
    assert compressed == {case for case in cases if "BiSparse" in case or "FP16" in case}


def test_rat_has_every_entry_once_with_what_it_names():
    found = claims.load(FILES / "rat.yaml", ROOT)
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


def test_sketch_fusion_has_every_entry_once_with_what_it_names():
    found = claims.load(FILES / "sketch_fusion.yaml", ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 84
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 52,
        "param": 9,
        "derived": 8,
        "ordering": 8,
        "algorithm": 3,
        "formula": 4,
    }
    assert 4 <= sum(bool(claim.headline) for claim in found) <= 6


def test_sketch_fusion_table_4_is_complete():
    cells = {
        (claim.ours.case, claim.model): int(claim.printed)
        for claim in claims.load(FILES / "sketch_fusion.yaml")
        if claim.where == "Table 4" and claim.ours
    }
    assert len(cells) == 7 * 3 * 2 + 3
    # The document prints the increase in brackets, too.
    increases = {"resnet20": [97, 1300, 277, 1202, 124, 893, 226]}
    increases["resnet50"] = [102, 406, 78, 682, 379, 866, 5]
    increases["lstm"] = [251, 564, 249, 1013, 323, 878, 128]
    methods = ["Top-k", "DGC", "Rand-k", "QSGD", "EFSignSGD", "SignSGD", "PowerSGD"]
    for model, numbers in increases.items():
        for method, more in zip(methods, numbers, strict=True):
            assert cells[f"{method} LF 16", model] - cells[f"{method} LW 16", model] == more


def test_lpsp_has_every_entry_once_with_what_it_names():
    found = claims.load(FILES / "lpsp.yaml", ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 49
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 3,
        "param": 20,
        "derived": 5,
        "ordering": 12,
        "algorithm": 4,
        "formula": 5,
    }
    assert 3 <= sum(bool(claim.headline) for claim in found) <= 6


def test_dds_has_every_entry_once_with_what_it_names():
    found = claims.load(FILES / "dds.yaml", ROOT)
    kinds = [claim.kind for claim in found]
    assert len({claim.id for claim in found}) == len(found) == 58
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "value": 29,
        "param": 12,
        "derived": 6,
        "formula": 1,
        "ordering": 8,
        "algorithm": 2,
    }
    assert 4 <= sum(bool(claim.headline) for claim in found) <= 6
    # Four modes by bytes, size, two clients, round time and accuracy; two cases by four figures.
    names = {claim.id for claim in found}
    modes = ("fp32_dense", "int8_dense", "fp32_sparse", "int8_sparse")
    kinds = ("bytes", "MB", "c0", "c1", "rt", "acc")
    assert names >= {f"DDS-FL-{mode}-{kind}" for mode in modes for kind in kinds}
    assert names >= {f"DDS-F0{n}-{case}" for n in (1, 2, 3, 4) for case in ("base", "dgc")}


@pytest.mark.parametrize("paper", ["dds", "geomx", "lpsp", "rat", "sketch_fusion"])
def test_no_verdict_is_typed_in(paper):
    text = (FILES / f"{paper}.yaml").read_text(encoding="utf-8")
    raw = yaml.safe_load(text)["claims"]
    assert all("verdict" not in entry for entry in raw)
    assert "impossible" not in text and "contradict" not in text.replace("contradicts itself", "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"verdict": "holds"}, "D-1: verdict: unknown key"),
        ({"ours": {"experiment": "t", "metric": "m", "wan": 1}}, "D-1: ours.wan: unknown key"),
        ({"kind": "guess"}, "D-1: kind"),
        ({"printed": "about 10"}, "about 10"),
        ({"ours": None}, "a value needs quantity and ours"),
        ({"kind": "derived", "calibrates": "the speed"}, "calibrates: only of a value"),
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


def test_not_run_list(tmp_path):
    found = claims.load(write(tmp_path))
    path = tmp_path / "not_run.yaml"
    path.write_text("smoke: {D-1: too large for this scale}\n")
    assert claims.load_not_run(path, found) == {
        "smoke": {"D-1": "too large for this scale"},
        "desk": {},
        "paper": {},
    }
    for text, says in [
        ("smoke: {D-2: too large for this scale}", "D-2"),
        ("tiny: {}", "tiny"),
        ("smoke: {D-1: ''}", "D-1"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=says):
            claims.load_not_run(path, found)
    assert claims.load_not_run(FILES / claims.NOT_RUN, claims.load_all(FILES))


def test_the_not_run_list_may_name_what_is_missing(tmp_path):
    look = {"a": {"experiment": "t", "case": "BSP on 8", "metric": "size"}}
    found = claims.load(
        write(tmp_path, kind="derived", value="{a}", quantity="count", lookups=look)
    )
    path = tmp_path / claims.NOT_RUN
    entry = {"reason": "too large for this scale", "missing": "t: * on 8"}
    path.write_text(yaml.safe_dump({"smoke": {"D-1": entry}}))
    partly = claims.load_not_run(path, found)["smoke"]["D-1"]
    assert partly.covers(found[0].lookups["a"])
    assert not partly.covers(claims.Lookup(experiment="t", case="BSP on 12", metric="size"))
    for change, says in (
        ({"missing": "t: * on 9"}, "D-1: no lookup is 't: [*] on 9'"),
        ({"missing": []}, "D-1"),
        ({"reason": ""}, "D-1"),
    ):
        path.write_text(yaml.safe_dump({"smoke": {"D-1": entry | change}}))
        with pytest.raises(ValueError, match=says):
            claims.load_not_run(path, found)


def test_a_claim_keeps_the_lookups_that_it_uses(tmp_path):
    look = {name: {"experiment": "t", "case": name, "metric": "size"} for name in "abc"}
    part = {"printed": "4", "quantity": "count"}
    parts = [
        part | {"largest": ["{a}"]},
        part | {"value": "1", "beside": {"value": "{b}", "why": "-"}},
    ]
    path = write(tmp_path, kind="derived", parts=parts, lookups=look)
    assert set(claims.load(path)[0].lookups) == {"a", "b"}


def test_the_not_run_list_covers_all_documents(tmp_path):
    write(tmp_path)
    other = {"paper": "other", "claims": [MINIMAL["claims"][0] | {"id": "O-1"}]}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(MINIMAL | other))
    listed = tmp_path / claims.NOT_RUN
    listed.write_text("smoke: {D-1: too large for this scale, O-1: too large for this scale}\n")
    every = claims.load_all(tmp_path)
    assert [(claim.paper, claim.id) for claim in every] == [("demo", "D-1"), ("other", "O-1")]
    assert set(claims.load_not_run(listed, every)["smoke"]) == {"D-1", "O-1"}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(MINIMAL | {"paper": "other"}))
    with pytest.raises(ValueError, match="ids of two documents: D-1"):
        claims.load_all(tmp_path)


def test_printed_numbers_keep_their_digits():
    assert expressions.printed("9.90").low == pytest.approx(9.895)
    assert expressions.printed("9.9").high == pytest.approx(9.95)
    assert expressions.printed("-0.2").low == pytest.approx(-0.25)
    assert expressions.printed("10") == expressions.Interval(9.5, 10.5)
    for text in ("nan", "1-2", "", "8 %"):
        with pytest.raises(ValueError, match="printed number"):
            expressions.printed(text)
