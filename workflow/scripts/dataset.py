"""Fetch and check a data set; write where it lies and where it came from."""

import json

from testbed.files import whole
from testbed.training.fetch import obtain
from workflow.job import job


def main(name: str, output: str, log: str) -> None:
    with job(log) as say:
        fetched = obtain(name)
        say(f"{name}: {fetched.source}")
        with whole(output) as path:
            path.write_text(json.dumps({"dataset": name, "source": fetched.source}) + "\n")


if "snakemake" in globals():
    main(snakemake.wildcards.dataset, snakemake.output[0], snakemake.log[0])  # noqa: F821
