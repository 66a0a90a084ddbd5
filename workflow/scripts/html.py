"""The HTML report of a scale, of all its parts or of those that are there."""

import fcntl
import pickle
from pathlib import Path

from slowlink.reports import html
from slowlink.workflow.experiment import Say
from slowlink.workflow.provenance import provenance
from slowlink.workflow.settings import wing_of


def main(
    say: Say,
    parts: list[str],
    cards: str,
    datasets: list[str],
    recipes: dict,
    scale: str,
    logs: str,
    output: str,
    left: str = "",
) -> None:
    """Parts that are not there are named on the first page; ``left`` is how long they take."""
    folder = Path(output).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{scale}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        there = [Path(one) for one in parts if (Path(one) / html.PART).is_file()]
        missing = [wing_of(Path(one).parent.name) for one in parts if Path(one) not in there]
        read = {one: pickle.loads((one / html.PART).read_bytes()) for one in there}
        made = pickle.loads(Path(cards).read_bytes()) if Path(cards).is_file() else []
        seeds = sorted({seed for part in read.values() for seed in part.seeds})
        origin = provenance(scale, seeds, datasets, logs)
        waits = html.Waits([html.label(one.name, one.claims) for one in missing], left)
        html.build(read, made, recipes, origin, folder, waits)
