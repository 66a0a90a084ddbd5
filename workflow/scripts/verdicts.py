"""The verdicts of all documents, as one CSV."""

import pandas as pd

from slowlink.reports import verdicts
from slowlink.testbed.files import whole
from slowlink.workflow.experiment import Say


def main(say: Say, files: list[str], output: str) -> None:
    judged = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    with whole(output) as path:
        judged[verdicts.COLUMNS].to_csv(path, index=False)
