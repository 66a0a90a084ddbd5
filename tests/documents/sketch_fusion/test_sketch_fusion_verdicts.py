"""Sketch-Fusion's verdicts follow from its results, its contradictions from its own numbers."""

from __future__ import annotations

import copy
import re

import pandas as pd
import pytest
from sketch_fusion_results import READINGS, RECIPE, ROUNDS, iteration, results

from slowlink.reports.evidence import Evidence
from slowlink.reports.verdicts import judge
from slowlink.testbed.results import coordinates


@pytest.fixture(scope="module")
def alike():
    """Results in which all readings of the document come to the same."""
    return results(dict.fromkeys(READINGS, (1, False, 1.0)))


@pytest.fixture(scope="module")
def judged(skf_claims, skf_rows):
    return judge(skf_claims, skf_rows, RECIPE, "desk").set_index("id")


def verdict(claims, rows, name: str) -> str:
    return judge(claims, rows, RECIPE, "desk", only={name}).iloc[0]["verdict"]


def change(rows: pd.DataFrame, *changes: tuple[str, float]) -> pd.DataFrame:
    """Results with the values that a query finds multiplied."""
    rows = rows.copy()
    for query, factor in changes:
        index = coordinates(rows).query(query).index
        assert len(index), query
        rows.loc[index, "value"] *= factor
    return rows


def reprinted(claims, numbers: dict[str, str]):
    """The claims, had the document printed other numbers."""
    assert numbers.keys() <= {claim.id for claim in claims}
    return [
        claim.model_copy(update={"printed": numbers[claim.id]} if claim.id in numbers else {})
        for claim in claims
    ]


READ = f"variant in {['flat', *READINGS]}"
"""As the document is read here, and as it may be read besides."""


def scaling(method: str, fusion: str, model: str, metric: str = "throughput") -> str:
    """Of 16 GPUs, in every reading."""
    return (
        f"experiment == 'scaling' and metric == '{metric}' and {READ} and workers == 16 "
        f"and method == '{method}' and fusion == '{fusion}' and model == '{model}'"
    )


def wise(method: str, model: str = "resnet20") -> str:
    return scaling(method, "layer_wise", model, "scaling_factor")


def baseline(model: str) -> str:
    return (
        f"experiment == 'baseline' and metric == 'scaling_factor' and {READ} and workers == 16 "
        f"and model == '{model}'"
    )


BEST = [
    (scaling("Sketch-Fusion", "layer_fusion", model), 1.2)
    for model in ("resnet20", "resnet50", "lstm")
]


def gain(model: str, over: str = "", method: str = "SignSGD") -> str:
    """Largest gains of methods with this in their name."""
    return (
        f"experiment == 'gains' and metric == 'largest_gain{over}' and {READ} "
        f"and model == '{model}' and method.str.contains('{method}')"
    )


TIME = "experiment == 'convergence' and metric == 'rounds_to_target' and method == 'Sketch-Fusion'"
DGC_TIME = TIME.replace("Sketch-Fusion", "DGC")
FINAL = TIME.replace("rounds_to_target", "final_accuracy")
KEPT = ROUNDS["Sketch-Fusion"] * iteration("Sketch-Fusion", "resnet20", True, 16)
KEPT /= iteration("Baseline", "resnet20", False, 16)
"""Of the baseline's time, what Sketch-Fusion takes to the target."""
GROWTH = "experiment == 'sizes' and metric == 'growth'"

TO_THE_LETTER = (TIME, 0.814 / KEPT), (gain("resnet20", method="Top-k"), 2.87 / 2.13)
"""With these the abstract's saving and gain of LayerFusion hold."""

# What must change for a claim to get a verdict; no change: the results as they are.
WORLDS = [
    ("SKF-T1-O", "not comparable"),
    ("SKF-T1-SignSGD", "not comparable"),
    ("SKF-F1a", "holds"),
    ("SKF-F1a", "fails", (wise("QSGD"), 2)),
    ("SKF-F1a", "fails", (wise("DGC"), 1.4)),
    ("SKF-F1b", "not comparable"),
    ("SKF-F1b", "not comparable", (GROWTH, 0.01)),
    ("SKF-F1c", "holds"),
    ("SKF-F1c", "fails", ("metric == 'tensors' and model == 'lstm'", 100)),
    ("SKF-F5a", "direction only"),
    (
        "SKF-F5a",
        "holds",
        (gain("lstm", "_over_baseline"), 1.41 / 1.835),
        (gain("lstm"), 2.87 / 1.1),
    ),
    ("SKF-F5a", "fails", (gain("lstm", "_over_baseline"), 0.5)),
    (
        "SKF-F3c",
        "holds",
        (gain("resnet20", "_over_baseline"), 1.40 / 1.173),
        (gain("resnet20"), 2.47 / 1.473),
    ),
    ("SKF-F4b", "direction only"),
    ("SKF-F4b", "holds", (gain("resnet50"), 2.36 / 1.364)),
    ("SKF-ABS", "direction only", (FINAL, 1.01), (TIME, 0.9 / KEPT)),
    ("SKF-ABS", "not comparable", (FINAL, 1.01), *TO_THE_LETTER),
    # What a sketch of our size loses says nothing of theirs, and all else is judged.
    ("SKF-ABS", "not comparable", (FINAL, 0.95), *TO_THE_LETTER),
    ("SKF-ABS", "fails", (TIME, 1.2 / KEPT), TO_THE_LETTER[1]),
    ("SKF-F4a", "fails"),
    (
        "SKF-F4a",
        "holds",
        (scaling("FP16", "layer_fusion", "resnet50", "scaling_factor"), 0.5 / 0.894),
        (baseline("resnet50"), 0.35 / 0.731),
    ),
    ("SKF-T4-QSGD-ResNet-50-LF", "holds"),
    (
        "SKF-T4-QSGD-ResNet-50-LF",
        "direction only",
        (scaling("QSGD", "layer_fusion", "resnet50"), 2),
    ),
    # No faster than layer by layer.
    ("SKF-T4-QSGD-ResNet-50-LF", "fails", (scaling("QSGD", "layer_fusion", "resnet50"), 0.5)),
    ("SKF-T4-O1", "holds", *BEST),
    # On ResNet-20 Sketch-Fusion is 0.2 % below SignSGD, then 0.8 % above, then 10 % below.
    ("SKF-T4-O1", "undecided", *BEST[1:]),
    ("SKF-T4-O1", "undecided", *BEST[1:], (BEST[0][0], 1.01)),
    ("SKF-T4-O1", "fails", *BEST[1:], (BEST[0][0], 0.9)),
    # 0.5 % below the baseline.
    ("SKF-F1a", "undecided", (wise("SignSGD"), 1.151)),
    ("SKF-T4-O2", "direction only"),
    ("SKF-T4-O2", "fails", (scaling("PowerSGD", "layer_fusion", "lstm"), 0.5)),
    ("SKF-T4-O2", "fails", (scaling("Rand-k", "layer_fusion", "resnet50"), 2)),
    ("SKF-F6b", "not run here"),
]


@pytest.mark.parametrize(("name", "expected", "changes"), [(w[0], w[1], w[2:]) for w in WORLDS])
def test_verdicts_follow_results(name, expected, changes, skf_claims, alike):
    changed = change(alike, *changes) if changes else alike
    assert verdict(skf_claims, changed, name) == expected


def told(claims, rows, name: str) -> str:
    return judge(claims, rows, RECIPE, "desk", only={name}).iloc[0]["reason"]


def test_growth_on_a_processor_is_told_and_decides_nothing(skf_claims, skf_rows):
    assert "; ours fails: " in told(skf_claims, skf_rows, "SKF-F1b")
    flat = change(skf_rows, (GROWTH, 0.01))
    assert "; ours holds: " in told(skf_claims, flat, "SKF-F1b")
    # PowerSGD's small tensors go dense: it does not count.
    flat = change(flat, (f"{GROWTH} and method == 'PowerSGD'", 1e6))
    assert "; ours holds: " in told(skf_claims, flat, "SKF-F1b")


def table_of(claims, rows, table: str, rates) -> dict[str, str]:
    """What a document would print whose machines differ from ours by ``rates`` alone."""
    rows, printed = Evidence(claims, rows), {}
    for claim in claims:
        if claim.fit and claim.fit.table == table:
            terms = rows.terms(claim).values()
            took = sum(rate * term for rate, term in zip(rates, terms, strict=True))
            printed[claim.id] = f"{1 / took if claim.quantity == 'throughput' else took:.6g}"
    return printed


@pytest.mark.parametrize(
    ("table", "cells", "rates"),
    [("Table 1", 7, [0.3]), ("Table 4, layer by layer", 21, [2.0, 0.5, 3.0])],
)
def test_a_table_of_other_machines_holds_and_one_cell_of_it_does_not(
    table, cells, rates, skf_claims, skf_rows
):
    numbers = table_of(skf_claims, skf_rows, table, rates)
    assert len(numbers) == cells
    one = min(numbers)
    for times, expected in ((1.0, "holds"), (1.5, "off by ×")):
        printed = numbers | {one: f"{times * float(numbers[one]):.6g}"}
        claims = reprinted(skf_claims, printed)
        found = judge(claims, skf_rows, RECIPE, "desk", only={one}).iloc[0]["verdict"]
        assert found == expected


SLOW_SKETCH = "a sketch costs what Top-k does"
# Of claims that hold, what must change in one reading alone for them to depend on it.
OPEN = [
    ("SKF-F1a", [], "fused baseline", "experiment == 'baseline'", 1e-3),
    ("SKF-T4-O1", BEST, SLOW_SKETCH, "method == 'Sketch-Fusion'", 0.5),
    ("SKF-F6a", [(TIME, 0.9 / KEPT), (DGC_TIME, 3)], SLOW_SKETCH, "method == 'Sketch-Fusion'", 2),
    (
        "SKF-F4a",
        [
            (scaling("FP16", "layer_fusion", "resnet50", "scaling_factor"), 0.5 / 0.894),
            (baseline("resnet50"), 0.35 / 0.731),
        ],
        "b of all GPUs",
        "method == 'FP16'",
        0.5,
    ),
]


@pytest.mark.parametrize(("name", "changes", "reading", "where", "factor"), OPEN)
def test_what_holds_in_one_reading_only_depends_on_it(
    name, changes, reading, where, factor, skf_claims, alike
):
    rows = change(alike, *changes)
    assert verdict(skf_claims, rows, name) == "holds"
    rows = change(rows, (f"variant == '{reading}' and {where}", factor))
    assert verdict(skf_claims, rows, name) == "depends on the reading"
    reason = told(skf_claims, rows, name)
    assert "several readings" in reason and f"{reading}: fails" in reason


def t4(method: str, model: str, way: str = "LF") -> str:
    return f"SKF-T4-{method}-{model}-{way}"


# A contradiction is arithmetic over printed numbers: with these others it would not be there.
CONSISTENT = {
    "SKF-F3a": {t4("Top-k", "ResNet-20"): "1600"},
    # By the abstract 18.6 % are significant; 13.4 % on the LSTM need not be.
    "SKF-F3b": {t4("PowerSGD", "ResNet-20"): "1200"},
}


def test_the_document_contradicts_itself_in_these(judged):
    found = judged.index[judged["verdict"] == "contradicts itself"]
    assert set(found) == CONSISTENT.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSISTENT)
def test_other_printed_numbers_would_not_contradict(name, skf_claims, skf_rows):
    numbers = CONSISTENT[name]
    every = reprinted(skf_claims, numbers)
    assert verdict(every, skf_rows, name) != "contradicts itself"
    for number in numbers:
        fewer = {key: value for key, value in numbers.items() if key != number}
        assert verdict(reprinted(skf_claims, fewer), skf_rows, name) == "contradicts itself"


@pytest.mark.parametrize(
    "ours, said", [("9999", "fails"), (None, "depends on the reading"), ("1", "contradicts itself")]
)
def test_compressors_may_be_most_of_them_or_each(ours, said, skf_claims, skf_rows):
    """As printed on ResNet-50 each gains more than on the others, or most do, or none."""
    methods = ("Top-k", "DGC", "Rand-k", "QSGD", "EFSignSGD", "SignSGD", "PowerSGD")
    numbers = {t4(method, "ResNet-50"): ours for method in methods if ours}
    assert verdict(reprinted(skf_claims, numbers), skf_rows, "SKF-F345") == said


@pytest.mark.parametrize("model", ["ResNet-20", "ResNet-50", "LSTM"])
@pytest.mark.parametrize("factor", [0.5, 1, 3])
def test_what_the_speeds_were_chosen_from_proves_nothing(factor, model, skf_claims, skf_rows):
    """Print and profile move together, so that we always meet what is printed."""
    name = f"SKF-T4-SF-{model}"
    (claim,) = (one for one in skf_claims if one.id == name)
    printed = round(factor * float(claim.printed))
    claims = reprinted(skf_claims, {name: str(printed)})
    where = scaling("Sketch-Fusion", "layer_fusion", claim.model)
    (ours,) = coordinates(skf_rows).query(f"{where} and variant == 'flat'")["value"]
    rows = change(skf_rows, (where, printed / ours))
    found = judge(claims, rows, RECIPE, "desk", only={name}).iloc[0]
    assert found["ratio"] == pytest.approx(1) and found["verdict"] == "not comparable"
    assert "was chosen from this number" in found["reason"]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("SKF-T4-O1", {"SKF-T4-SF-LSTM": "3000"}),
        ("SKF-T4-O2", {t4("Top-k", "ResNet-20"): "900"}),
        ("SKF-T4-O2", {t4("QSGD", "LSTM"): "9000"}),
        ("SKF-T1-O", {"SKF-T1-Top-K": "300"}),
    ],
)
def test_what_agrees_would_contradict_with_other_numbers(name, numbers, skf_claims, skf_rows):
    assert verdict(reprinted(skf_claims, numbers), skf_rows, name) == "contradicts itself"


@pytest.mark.parametrize(
    ("saving", "expected"),
    [(3, "fails"), (5.3, "holds"), (15, "holds"), (18.6, "holds"), (25, "fails"), (-20, "fails")],
)
def test_any_saving_in_the_printed_range_agrees(saving, expected, skf_claims, alike):
    # DGC is slow enough for its own part to hold.
    changed = change(alike, (TIME, (1 - saving / 100) / KEPT), (DGC_TIME, 3))
    assert verdict(skf_claims, changed, "SKF-F6a") == expected


def test_a_target_never_reached_leaves_time_open(skf_claims, skf_rows):
    late = skf_rows.copy()
    index = coordinates(late).query(TIME).index
    late.loc[index, ["status", "reason", "value"]] = ["failed", "never reached", float("nan")]
    assert verdict(skf_claims, late, "SKF-F6a") == "undecided"
    assert verdict(skf_claims, late, "SKF-ABS") == "undecided"
    # And what the accuracy comes to, which says nothing of their sketch, does not settle it.
    assert verdict(skf_claims, change(late, (FINAL, 0.9)), "SKF-ABS") == "undecided"


def test_reductions_stand_with_what_was_trained(skf_claims, skf_rows):
    recipe = copy.deepcopy(RECIPE)
    recipe["figure6"] |= {"rounds": 1600, "workers": 2}
    recipe["convergence"] = {"training": "figure6_recorded"}
    only = {"SKF-F6a", "SKF-ABS", "SKF-P03"}
    table = judge(skf_claims, skf_rows, recipe, "desk", only=only).set_index("id")
    for name in ("SKF-F6a", "SKF-ABS"):
        reason = table.loc[name, "reason"]
        assert "convergence.training.batch is 16 here in place of 128" in reason
        assert "convergence.training.test_limit is 2500 here in place of" in reason
        assert "convergence.training.epochs is 17.5 here in place of 140" in reason
        assert "stands in" not in reason
    accuracy = table.loc["SKF-ABS", "reason"].split("accuracy: ")[1]
    assert accuracy.startswith("not comparable (neither the size of the sketch is printed")
    assert "read otherwise" not in accuracy.split("); ")[0]  # no reading trains anything else
    assert table.loc["SKF-P03", "verdict"] == "scaled here"


def test_every_claim_that_results_or_numbers_decide_is_tried(skf_claims):
    tried = {world[0] for world in WORLDS} | CONSISTENT.keys() | {"SKF-F6a", "SKF-F345"}
    decided = {claim.id for claim in skf_claims if claim.kind in ("ordering", "derived")}
    assert decided <= tried


def test_reasons_give_the_arithmetic(judged):
    reason = judged["reason"]
    assert "printed 1.58, but its own numbers give 1.098 to 1.1" in reason["SKF-F3a"]
    # Table 4's DGC over 0.6, as Figure 1a has it more than 40 % below the baseline.
    assert "if it is of 16 GPUs too: 5692 to 5694 images/s" in reason["SKF-F3b"]
    assert "printed 1.10, but its own numbers give 1.196 to 1.198" in reason["SKF-F3b"]
    assert "the same if read otherwise: read as less than the abstract's" in reason["SKF-F3b"]
    # 35 % of 6321, and the median of 530, 600, 2174, 2417, 3001 and 4187 without FP16.
    assert "better than linearly: 2212 to 2213 images/s" in reason["SKF-F3b"]
    assert "the median of Table 4 but PowerSGD: 2295 to 2296 images/s" in reason["SKF-F3b"]
    assert "not in that to converge: 30 %" in reason["SKF-F6a"]
    assert "read as what each of them does: contradicts itself" in reason["SKF-F345"]
    assert "that the text has, LSTM's over ResNet-50's: 1.216" in reason["SKF-F345"]
    assert "which sends 1 % too" in reason["SKF-T1-O"] and "4.1" in reason["SKF-T1-O"]
    assert "closer than 2 %" in reason["SKF-T4-O1"]
    assert "where 1.41 would be the least" in reason["SKF-F5a"]
    assert "training.epochs" not in reason["SKF-F6a"]  # as printed
    assert "beside it, the largest of Table 4: 1.38 to 1.381" in reason["SKF-ABS"]
    # 6321 images a second on 16 GPUs.
    assert "395 to 395.1 1/s" in reason["SKF-T4-SF-ResNet-50"]
    assert "flat, this CPU" in reason["SKF-T4-DGC-ResNet-20-LW"]
    trained_or_not = ("SKF-F6a", "SKF-F1c", "SKF-F3b", "SKF-F345")
    assert not any("stands in" in reason[name] for name in trained_or_not)
    assert not any(re.search(r"\bnan\b", text) for text in reason)


def test_parameters_follow_the_recipe(judged, skf_claims, skf_rows):
    params = judged[judged["kind"] == "param"]["verdict"]
    assert params.value_counts().to_dict() == {
        "used as printed": 7,
        "implemented": 1,
        "not printed": 1,
    }
    assert "name count_sketch" in judged.loc["SKF-P09", "ours"]
    recipe = copy.deepcopy(RECIPE)
    recipe["methods"]["QSGD"]["codec"]["bits"] = 4
    recipe["figure6"]["limit"] = 10_000
    only = {"SKF-P07", "SKF-P08"}
    table = judge(skf_claims, skf_rows, recipe, "desk", only=only).set_index("id")
    assert set(table["verdict"]) == {"scaled here"}
    assert "methods.QSGD.codec.bits is 4 here" in table.loc["SKF-P08", "reason"]


def test_missing_results_stop_the_run(skf_claims, skf_rows):
    few = skf_rows[skf_rows["experiment"] != "gains"]
    with pytest.raises(ValueError, match=re.escape("SKF-F3a (gains/method=Top-k")):
        judge(skf_claims, few, RECIPE, "desk")
