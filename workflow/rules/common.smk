# Settings, paths, and the jobs that follow from what documents and the matrix declare.
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir)))

from slowlink.workflow import experiment

experiment.PLANNING = True

from snakemake.logging import logger

from slowlink.workflow import closure, pool, settings
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.lock import only_run
from slowlink.workflow.progress import Progress, duration
from slowlink.workflow.wing import BESIDE

# A run that was killed must not lock out the next one.
RUNNING = only_run(Path(".snakemake"))

# What is simulated of an exchange or counted of a model is shared, and what a file imports.
os.environ.setdefault("SLOWLINK_CACHE", str(Path("results/cache.sqlite").absolute()))

try:
    SETTINGS = settings.load(config, names=RUNNING is not None)
except settings.SettingsError as error:
    raise WorkflowError(str(error)) from None

SCALE = SETTINGS.scale
WINGS = settings.wings()
DOCUMENTS = [name for name, wing in WINGS.items() if wing.claims]
JOBS = Jobs(SETTINGS, WINGS)
RESULTS = f"results/{SCALE}"
REPORT = f"reports/html/{SCALE}/index.html"
# What jobs are forked from takes as long to start as all of them take to be planned: it begins now,
# but for who has a report, and may have no job to run. Snakemake tells later that a run is a dry one.
if RUNNING and not Path(REPORT).is_file() and {"-n", "--dry-run"}.isdisjoint(sys.argv):
    pool.begin()


PROGRESS = None


onstart:
    global PROGRESS
    if RUNNING is not None:
        PROGRESS = Progress(workflow.dag.needrun_jobs(), workflow.cores)
        PROGRESS.filter_terminal(logger)
    # A limit of jobs a second wakes the scheduler once more every second for every job that ended,
    # to look at all that is ready: in the end half a core does nothing else. Clusters have it.
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
    # What only a method itself can judge is judged before the first job, not in the middle.
    try:
        settings.make_all_apart(SCALE)
    except settings.SettingsError as error:
        raise WorkflowError(str(error)) from None


wildcard_constraints:
    wing="|".join(WINGS),


def minutes(desk):
    """The longest that a job may run, for schedulers that ask: many times longer at paper scale."""
    return desk * (48 if SCALE == "paper" else 1)


# Of jobs whose times count, so that nothing runs beside them; no number of smoke counts.
ALONE = 1 if SCALE == "smoke" else workflow.cores
