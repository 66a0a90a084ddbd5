"""Fetch and check a data set; write where it lies and where it came from."""

import json

from slowlink.testbed.files import whole
from slowlink.testbed.training.fetch import obtain
from slowlink.workflow.experiment import Say


def main(say: Say, name: str, output: str) -> None:
    fetched = obtain(name)
    say(f"{name}: {fetched.source}")
    with whole(output) as path:
        path.write_text(json.dumps({"dataset": name, "source": fetched.source}) + "\n")
