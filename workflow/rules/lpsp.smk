# LPSP: its worked example, who waits for whom on uneven workers, and training under every policy.
LPSP = SETTINGS.recipes["lpsp"]
LPSP_DIR = f"{RESULTS}/lpsp"
RUNS["lpsp"] = in_jobs(LPSP.runs(SCALE))
SUMMARIES["lpsp"] = LPSP.summaries()

# The optional sections of the recipe that a job reads. What measures time runs alone.
LPSP_WAITING = {f"waiting-{workers}": workers for workers in LPSP.waiting.workers}
LPSP_SIMULATED = {"example": ["example"], "bound": ["waiting", "mnist", "cifar10"]}
LPSP_SIMULATED |= dict.fromkeys(LPSP_WAITING, ["waiting", "mnist", "cifar10"])
LPSP_SIMULATED["recorded"] = []
LPSP_MEASURED = {"batching": ["batching", "mnist", "cifar10"], "ray": ["ray"]}
LPSP_LIVE = {"ray": ["testbed/live/*.py"]}
for experiment in ("recorded", *LPSP_WAITING):
    LPSP_LIVE[experiment] = ["testbed/live/replay.py", LPSP.waiting.trace]


def lpsp_sources(wildcards):
    policies = {part.name for part in LPSP.methods.values()}
    return (
        SHARED
        + NETWORK_SOURCES
        + TRAINING_SOURCES
        + sources(*(f"methods/synchronization/{name}.py" for name in ("__init__", *policies)))
        + sources("methods/exchange/__init__.py", "methods/exchange/parameter_server.py")
        + sources("workflow/experiments/lpsp.py", "workflow/experiments/_bench.py")
        + sources("workflow/recipes/lpsp.py")
        + sources(*LPSP_LIVE.get(wildcards.experiment, []))
    )


rule lpsp_simulate:
    input:
        lpsp_sources,
    output:
        f"{LPSP_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/lpsp/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/lpsp/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(LPSP_SIMULATED),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=minutes(30),
    params:
        paper="lpsp",
        recipe=lambda wildcards: LPSP.only(*LPSP_SIMULATED[wildcards.experiment]),
        scale=SCALE,
    message:
        "LPSP: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


rule lpsp_measure:
    input:
        lpsp_sources,
        data=lambda wildcards: (
            f"results/data/{LPSP.ray.dataset}.json" if wildcards.experiment == "ray" else []
        ),
    output:
        f"{LPSP_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/lpsp/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/lpsp/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(LPSP_MEASURED),
    threads: ALONE
    resources:
        mem_mb=6000,
        runtime=minutes(60),
    params:
        paper="lpsp",
        recipe=lambda wildcards: LPSP.only(*LPSP_MEASURED[wildcards.experiment]),
        scale=SCALE,
    message:
        "LPSP, timed on this machine: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


def lpsp_rows(*experiments):
    jobs = [job for e in experiments for job in (LPSP_WAITING if e == "waiting" else [e])]
    return [f"{LPSP_DIR}/{job}.parquet" for job in jobs]


# Real processes, with the optional dependencies: snakemake lpsp_ray, or make reproduce-ray. What is
# there is shown beside the recorded runs.
rule lpsp_ray:
    input:
        lpsp_rows("ray"),


LPSP_REAL = lpsp_rows("recorded")
LPSP_REAL += [ancient(file) for file in lpsp_rows("ray") if Path(file).is_file()]
LPSP_CURVES = {name: curves_of("lpsp", name) for name in SUMMARIES["lpsp"]}
TABLES["lpsp"] = {
    "table3": LPSP_CURVES["mnist"],
    "table4": LPSP_CURVES["cifar10"],
    "example": lpsp_rows("example"),
    "waiting": lpsp_rows("waiting"),
    "bound": lpsp_rows("bound"),
    "batching": lpsp_rows("batching"),
    "actors": LPSP_REAL,
}
FIGURES["lpsp"] = {
    "example": lpsp_rows("example"),
    "gantt": lpsp_rows("waiting"),
    "figure3": LPSP_CURVES["mnist"],
    "figure4": LPSP_CURVES["mnist"],
    "figure5": LPSP_CURVES["cifar10"],
    "figure6": LPSP_CURVES["cifar10"],
    "figure7": LPSP_CURVES["cifar10"],
    "control": [file for name in LPSP_CURVES if name != "cifar10" for file in LPSP_CURVES[name]],
    "throughput": lpsp_rows("waiting"),
    "staleness": lpsp_rows("waiting"),
    "bound": lpsp_rows("bound"),
}
DATASETS["lpsp"] = [f"results/data/{d.dataset}.json" for d in (LPSP.mnist, LPSP.cifar10)]
