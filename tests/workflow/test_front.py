"""The head of the README is what a run found."""

import pandas as pd

from slowlink.reports import claims
from slowlink.testbed import results
from slowlink.testbed.results import Row
from slowlink.workflow import documents, front


def test_a_row_a_document_counts_its_verdicts_and_quotes_one(tmp_path, monkeypatch):
    made = []
    for name in documents.names():
        file = documents.load(name).claims
        striking = claims.about(file).striking
        for claim in claims.load(file):
            verdict = "fails" if claim.id == striking else "holds"
            row = dict(id=claim.id, document=name, headline=claim.headline, verdict=verdict)
            row |= dict(reason=f"{claim.id} is so")
            row |= dict(number=claim.number or claim.id, printed=claim.printed, ours="1")
            made.append(row)
    results = tmp_path / "desk"
    (results / "matrix" / "figures").mkdir(parents=True)
    (results / "matrix" / "figures" / "winners_target.svg").write_text(
        "<svg><metadata>dated</metadata></svg>"
    )
    for name, mine in pd.DataFrame(made).groupby("document"):
        (results / name).mkdir()
        mine.to_parquet(results / name / "verdicts.parquet")
    text = front.README.read_text()
    assert all(text.count(mark) == 1 for mark in front.MARKS)
    (tmp_path / "docs").mkdir()
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr(front, "ROOT", tmp_path)
    monkeypatch.setattr(front, "README", tmp_path / "README.md")
    front.main(results)
    written = (tmp_path / "README.md").read_text()
    lines = [line for line in written.splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(documents.names())
    rat = next(line for line in lines if line.startswith("| RAT |"))
    assert rat.startswith("| RAT | 39 | 38 | 0 | 1 | 0 | 0 | Of all exchanges only Ring, ")
    assert rat.endswith("*fails* |") and (tmp_path / front.MAP).read_text() == "<svg></svg>"
    kept = pd.read_csv(tmp_path / "data/recorded/desk_verdicts.csv", dtype=str)
    assert kept.to_dict("records") == pd.DataFrame(made)[kept.columns].to_dict("records")
    front.main(results)
    assert (tmp_path / "README.md").read_text() == written


def test_what_training_arrived_at_is_numbers_and_a_status():
    same = dict(
        document="matrix", experiment="arrived", scale="smoke", evidence="measured", model="lenet5"
    )
    late = dict(status="late", reason="it does not arrive")
    rows = []
    for label, ends in {"a": (80, 90), "b": (80, None)}.items():
        for seed, value in enumerate(ends):
            made = dict(value=value) if value else late
            run = same | dict(at=dict(method=label, trained_as=label), seed=seed)
            rows.append(Row(**run, metric="rounds_to_target", unit="rounds", **made))
            rows.append(Row(**run, metric="final_accuracy", unit="%", value=90.0 + seed))
    first, second = front.taught(results.frame(rows)).to_dict("records")
    assert (first["status"], first["rounds"], first["late"]) == ("ok", 85, 0)
    assert (second["status"], second["late"], second["seeds"]) == ("late", 1, 2)
    assert pd.isna(second["rounds"]) and second["accuracy"] == 90.5
