# Settings, paths and which source files a result depends on.
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.scheduling.job_scheduler import JobScheduler

sys.path.insert(0, str(Path(workflow.basedir)))

from workflow.job import only_run
from workflow.recipes import slug
from workflow.settings import PAPERS, SettingsError, load

# A run that was killed must not lock out the next one.
RUNNING = only_run(Path(".snakemake"))

try:
    SETTINGS = load(config, names=RUNNING is not None)
except SettingsError as error:
    raise WorkflowError(str(error)) from None


# For a limit on submissions, Snakemake looks for jobs to start a second after it looked: for ever,
# and once more a second for every job that ended. After some hundred jobs that takes a core. Here
# jobs that end are reason enough to look again.
def look_again(self, delay, later=JobScheduler._schedule_reevalutation):
    if not self.workflow.local_exec:
        later(self, delay)


JobScheduler._schedule_reevalutation = look_again


wildcard_constraints:
    paper="|".join(PAPERS),


SCALE = SETTINGS.scale
RESULTS = f"results/{SCALE}"
REPORT = f"reports/html/{SCALE}/index.html"


def sources(*patterns):
    """Source files that match; as inputs, they make Snakemake redo what used them and no more."""
    root = Path(workflow.basedir)
    found = {str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern)}
    return sorted(found)


def minutes(desk):
    """The longest that a job may run, for schedulers that ask: many times longer at paper scale."""
    return desk * (48 if SCALE == "paper" else 1)


# Methods that share an exchange share what is simulated of it, jobs what is counted of a model.
os.environ.setdefault("SLOWLINK_KEPT", str(Path("results/kept.sqlite").absolute()))

# Of jobs whose times count, so that nothing runs beside them; no number of smoke counts.
ALONE = 1 if SCALE == "smoke" else workflow.cores


# What the methods of a room share.
SHARED = sources("methods/__init__.py", "methods/*/_*.py", "methods/compression/pieces/*.py")


def methods_of(recipes):
    """The files of the methods that training recipes use, with their rooms' shared pieces."""
    names = set()
    for recipe in recipes:
        for room in ("exchange", "synchronization", "fusion"):
            names.add((room, getattr(recipe, room).name))
        names.add(("compression", "identity"))
        for level in recipe.levels:
            names |= {("compression", codec.name) for codec in (level.up, level.down) if codec}
    files = {f"methods/{room}/{name}.py" for room, name in names}
    rooms = {f"methods/{room}/__init__.py" for room, _ in names}
    return sorted(files | rooms | set(SHARED))


# Emulated links simulate nothing: changing them repeats no simulation and no training.
EMULATED_SOURCES = sources("testbed/network/emulated.py")
NETWORK_SOURCES = sorted(
    set(
        sources(
            "testbed/network/*.py",
            "testbed/network/*.cc",
            "testbed/results.py",
            "data/devices.yaml",
            "data/recorded/*.yaml",
        )
    )
    - set(EMULATED_SOURCES)
)
# Not what training does not import, so that changing it trains nothing anew.
NOT_TRAINING = ["summary", "quadratic"]
TRAINING_SOURCES = sorted(
    set(sources("testbed/training/*.py", "testbed/measuring.py", "methods/fusion/__init__.py"))
    - {f"testbed/training/{name}.py" for name in NOT_TRAINING}
)


# By document, filled in by its own rules: the result files behind each of its tables and figures,
# and the data sets that it trains on.
TABLES, FIGURES, DATASETS = {}, {}, {}


def recipe_of(paper):
    """A document's recipe as plain data, which jobs get."""
    return SETTINGS.recipes[paper].model_dump(mode="json")
