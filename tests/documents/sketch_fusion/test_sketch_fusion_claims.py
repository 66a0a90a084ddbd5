"""Sketch-Fusion's claims are complete, and as it prints them."""

from __future__ import annotations

from slowlink.reports import claims
from slowlink.reports.verdicts import RULES
from slowlink.workflow.settings import ROOT


def test_every_entry_is_there_once_with_what_it_names(wing):
    found = claims.load(wing.claims, ROOT)
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


def test_absolute_numbers_are_fitted_or_ratios_or_were_chosen_from(skf_claims):
    """None of them is held against ours as it is: machines and software are others."""
    absolute = [one for one in skf_claims if one.kind == "value" and RULES[one.quantity].absolute]
    assert len(absolute) == 7 + 7 * 3 * 2 + 3
    assert {one.id for one in absolute if one.calibrates} == {
        f"SKF-T4-SF-{model}" for model in ("ResNet-20", "ResNet-50", "LSTM")
    }
    assert {one.id for one in absolute if one.over} == {
        one.id for one in absolute if one.id.endswith("-LF")
    }
    for one in absolute:
        assert sum(map(bool, (one.fit, one.over, one.calibrates))) == 1


def test_table_4_is_complete(skf_claims):
    cells = {
        (claim.ours.get("method"), claim.ours.get("fusion"), claim.model): int(claim.printed)
        for claim in skf_claims
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
            fused, single = (cells[method, f"layer_{how}", model] for how in ("fusion", "wise"))
            assert fused - single == more
