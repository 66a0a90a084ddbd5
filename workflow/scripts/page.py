"""What the report shows of a document or of the matrix, with the files that its page links."""

import os
import pickle
import shutil
from pathlib import Path

import pandas as pd

from slowlink.reports import html
from slowlink.testbed import results as rows
from slowlink.workflow import settings
from slowlink.workflow.experiment import Say


def main(say: Say, wing: str, files: list[str], judged: list[str], output: str) -> None:
    made = settings.wing_of(wing)
    folder = Path(output)
    chapter = html.Chapter(wing, made.shown, folder.parent, made.claims)
    table = rows.read(files)
    verdicts = pd.read_parquet(judged[0]) if judged else None
    matrix = made.beside(table) if made.beside else None
    fresh = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(fresh, ignore_errors=True)  # what a killed one left
    fresh.mkdir(parents=True)
    part = html.part(chapter, table, verdicts, matrix, fresh)
    (fresh / html.PART).write_bytes(pickle.dumps(part))
    os.replace(fresh, folder)
