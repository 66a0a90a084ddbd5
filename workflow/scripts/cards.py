"""The cards of all methods."""

import pickle

from slowlink.reports import methods
from slowlink.testbed.files import whole
from slowlink.workflow.experiment import Say


def main(say: Say, output: str) -> None:
    with whole(output) as path:
        path.write_bytes(pickle.dumps([methods.card(room, name) for room, name in methods.names()]))
