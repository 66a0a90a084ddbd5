"""The cards of all methods."""

import pickle

from reports import methods
from testbed.files import whole
from workflow.experiment import Say


def main(say: Say, output: str) -> None:
    with whole(output) as path:
        path.write_bytes(pickle.dumps([methods.card(room, name) for room, name in methods.names()]))
