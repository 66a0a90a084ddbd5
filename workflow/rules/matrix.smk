# The matrix: every method in every cell, and the training that says how many rounds each needs.
MATRIX = SETTINGS.recipes["matrix"]
MATRIX_DIR = f"{RESULTS}/matrix"
MATRIX_LABELS = {slug(label): label for label in MATRIX.found()}
MATRIX_TRAINED_AS = MATRIX.trained_as()


def matrix_jobs(labels):
    trained = {MATRIX_TRAINED_AS[label] for label in labels}
    return [f"cells/{slug(label)}" for label in labels] + sorted(
        f"training/{slug(label)}" for label in trained
    )


# With --config only=<method>, what uses it is made; of all else what is there stays as it is.
MATRIX_JOBS, MATRIX_KEPT = matrix_jobs(MATRIX_TRAINED_AS), []
if SETTINGS.only is not None:
    needed = MATRIX.needed()
    own = [label for label in MATRIX_TRAINED_AS if SETTINGS.only in needed[label]]
    there = [
        job for job in MATRIX_JOBS if Path(workflow.basedir, MATRIX_DIR, f"{job}.parquet").is_file()
    ]
    trained = {f"training/{slug(label)}" for label in MATRIX_TRAINED_AS if label not in own}
    MATRIX_JOBS = [job for job in matrix_jobs(own) if job not in trained or job not in there]
    MATRIX_KEPT = [job for job in there if job not in MATRIX_JOBS]


def matrix_sources(wildcards):
    """The source files behind a job of one method."""
    job, _, method = wildcards.experiment.partition("/")
    system = MATRIX.found()[MATRIX_LABELS[method]]
    codecs = {part.name for lv in system.levels for part in (lv.up, lv.down) if part}
    files = {f"methods/compression/{name}.py" for name in codecs | {"identity"}}
    for room in ("exchange", "synchronization", "fusion"):
        files |= {f"methods/{room}/__init__.py", f"methods/{room}/{getattr(system, room).name}.py"}
    own = ["workflow/experiments/matrix.py", "testbed/matrix.py", "methods/compression/__init__.py"]
    own += ["workflow/recipes/matrix.py", "testbed/training/summary.py"]
    return SHARED + NETWORK_SOURCES + TRAINING_SOURCES + sources(*own, *sorted(files))


def matrix_data(wildcards):
    trains = wildcards.experiment.startswith("training/")
    return [f"results/data/{MATRIX.training.dataset}.json"] if trains else []


rule matrix_job:
    input:
        data=matrix_data,
        sources=matrix_sources,
    output:
        f"{MATRIX_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/matrix/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/matrix/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(MATRIX_JOBS) or "none",
    priority: 2  # the form's times, minutes on one core, wait for these
    threads: 1
    resources:
        mem_mb=3000,
        runtime=minutes(60),
        gpu=lambda wildcards: int(SCALE == "paper" and wildcards.experiment.startswith("training/")),
    params:
        paper="matrix",
        recipe=lambda wildcards: MATRIX.only(MATRIX_LABELS[wildcards.experiment.partition("/")[2]]),
        scale=SCALE,
    message:
        "matrix: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


rule matrix_condensed:
    input:
        results=[f"{MATRIX_DIR}/{job}.parquet" for job in MATRIX_JOBS + MATRIX_KEPT],
        sources=sources("workflow/scripts/condense.py", "reports/matrix.py", "testbed/results.py"),
    output:
        f"{MATRIX_DIR}/condensed.parquet",
    log:
        f"logs/{SCALE}/matrix/condensed.log",
    threads: 1
    resources:
        mem_mb=3000,
        runtime=minutes(15),
    params:
        told=dict(
            groups={label: system.group for label, system in MATRIX.found().items()},
            trained_as=MATRIX_TRAINED_AS,
            trained_at=MATRIX.trained_at(),
            dense=[label for label, system in MATRIX.found().items() if system.dense],
            rounds=MATRIX.training.rounds,
            most_rounds=MATRIX.training.most_rounds,
            grid=MATRIX.training.grid,
        ),
    message:
        "matrix: putting all results together"
    script:
        "../scripts/condense.py"


MATRIX_PARTS = [f"{MATRIX_DIR}/condensed.parquet"]
TABLES["matrix"] = dict.fromkeys(
    ["ranking", "target", "learning_rates", "cannot_run"], MATRIX_PARTS
)
FIGURES["matrix"] = dict.fromkeys(
    ["winners", "winners_models", "winners_target", "profiles", "pareto", "parts", "scaling"],
    MATRIX_PARTS,
)
DATASETS["matrix"] = [f"results/data/{MATRIX.training.dataset}.json"]
