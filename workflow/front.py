"""The head of the README, from the results of a run: the winners' map, and a row a document.

    python -m slowlink.workflow.front results/desk

It copies the map to ``docs/winners.svg``, writes the table between the two marks in README.md, and
keeps all verdicts and reasons in ``data/recorded/desk_verdicts.csv``, for later runs to compare,
and what the matrix's training arrived at in ``data/recorded/matrix_trained.csv``, for advice.
Of each document, it quotes the claim that ``striking`` names in the head of its claims file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from slowlink.reports import claims, tables
from slowlink.reports.html import SCORE, score
from slowlink.testbed.results import coordinates, read
from slowlink.workflow import documents
from slowlink.workflow.closure import ROOT
from slowlink.workflow.matrix.ranking import arrived, holds_not, trained_models, trainings

README, MAP = ROOT / "README.md", "docs/winners.svg"
VERDICTS = "data/recorded/{}_verdicts.csv"
TAUGHT = "data/recorded/matrix_trained.csv"
MARKS = "<!-- made by `python -m slowlink.workflow.front` -->\n", "<!-- end -->\n"
SAID = (
    "Each tile is a kind of network, a number of workers and a rate of its links. It names the\n"
    "method that reaches the target accuracy there in the least time, or the two fastest of a tie."
)
HEAD = ("document", "claims", *SCORE, "its most surprising finding")


def table(verdicts: pd.DataFrame) -> str:
    """A row a document: how many claims, how they came out, and one of them in words."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for name in documents.names():
        about = claims.about(documents.load(name).claims)
        mine = verdicts[verdicts["document"] == name].set_index("id")
        every = tables.scoreboard(verdicts).loc[name]
        counts = score(every.to_dict())
        told = mine.loc[about.striking]
        finding = f"{told['headline']}: *{told['verdict']}*"
        cells = [about.label, every.sum(), *counts.values(), finding]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def taught(results: pd.DataFrame) -> pd.DataFrame:
    """What each class of the matrix that was trained needs (rounds) and reaches (%).

    ``late`` of its ``seeds`` never reached the target, and ``diverged`` of them have no accuracy:
    then there is no mean of them. Who reached the target and may not hold it is ``unsure``.
    """
    rows = coordinates(results)
    made = []
    for model in trained_models(rows):
        rounds = arrived(rows, "rounds_to_target", model)
        accuracy = arrived(rows, "final_accuracy", model)
        doubtful = holds_not(rows, model)
        for label in dict.fromkeys(trainings(rows, model)["trained_as"]):
            # Whoever shares the class has what it arrived at.
            shares = trainings(rows, model).query("trained_as == @label")["method"].iloc[0]
            needs, reaches = rounds[shares], accuracy[shares]
            status = "late" if needs.never else "unsure" if shares in doubtful else "ok"
            made.append(
                {
                    "model": model,
                    "method": label,
                    "status": status,
                    "rounds": None if needs.never else round(needs.mean),
                    "accuracy": None if reaches.never else round(reaches.mean, 1),
                    "late": needs.never,
                    "diverged": reaches.never,
                    "seeds": needs.seeds,
                }
            )
    return pd.DataFrame(made)


def main(results: Path) -> None:
    """Write the map, the table and the verdicts.

    Raises FileNotFoundError if the run has not made them.
    """
    files = [results / name / "verdicts.parquet" for name in documents.names()]
    verdicts = pd.concat(map(pd.read_parquet, files))
    picture = (results / "matrix/figures/winners_target.svg").read_text(encoding="utf-8")
    # What a picture says about itself is no part of what is seen.
    drawn, _, rest = picture.partition("<metadata>")
    (ROOT / MAP).write_text(drawn + rest.partition("</metadata>")[2], encoding="utf-8")
    before, _, rest = README.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    head = f"![Who reaches the target accuracy first, by network, workers and rate]({MAP})\n\n"
    head += f"{SAID}\n\n"
    text = before + MARKS[0] + head + table(verdicts) + MARKS[1] + after
    README.write_text(text, encoding="utf-8")
    kept = verdicts[["id", "printed", "ours", "verdict", "reason"]]
    kept.to_csv(ROOT / VERDICTS.format(results.name), index=False)
    if (condensed := results / "matrix/condensed.parquet").is_file():
        taught(read([condensed])).to_csv(ROOT / TAUGHT, index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
