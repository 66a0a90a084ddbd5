"""Where the numbers of a report come from: versions, machine, seeds, durations."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from slowlink.testbed.given import processor

PACKAGES = ("torch", "torchvision", "snakemake", "numpy", "numba", "pandas", "seaborn")


def provenance(scale: str, seeds: Sequence[int], datasets: Sequence[str], logs: str) -> dict:
    """What the report shows under Provenance; times of jobs, beside their logs, are their cost, not
    results."""
    fetched = [json.loads(Path(file).read_text()) for file in datasets]
    return {
        "scale": scale,
        "seeds": list(seeds),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        "machine": {
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "data": {entry["dataset"]: f"from {entry['source']}" for entry in fetched},
        "durations": _durations(Path(logs)),
    }


def _durations(folder: Path) -> dict[str, str]:
    """Jobs and seconds by document."""
    import pandas as pd  # which takes long

    found = {}
    for wing in sorted(path for path in folder.glob("*") if path.is_dir()):
        seconds = [pd.read_csv(file, sep="\t")["s"].iloc[0] for file in wing.rglob("*.tsv")]
        if seconds:
            found[wing.name] = f"{len(seconds)} jobs, {sum(seconds):.0f} s in all"
    return found
