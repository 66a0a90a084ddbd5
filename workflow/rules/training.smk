# Training runs and their summaries, of every document that trains. A document's own rules fill in
# its runs, by name, and which runs a summary covers.
RUNS, SUMMARIES = {}, {}


def runs_of(paper, experiment):
    """The result files of an experiment's training runs."""
    return [
        f"{RESULTS}/{paper}/train/{run}.parquet"
        for run, recipe in RUNS[paper].items()
        if recipe.experiment == experiment
    ]


def curves_of(paper, experiment):
    return [f"{RESULTS}/{paper}/summary/{experiment}.parquet", *runs_of(paper, experiment)]


def run_of(wildcards):
    return RUNS[wildcards.paper][wildcards.run]


wildcard_constraints:
    run="[A-Za-z0-9_-]+",


rule train:
    input:
        data=lambda wildcards: f"results/data/{run_of(wildcards).dataset}.json",
        methods=lambda wildcards: methods_of(run_of(wildcards)),
        testbed=NETWORK_SOURCES + TRAINING_SOURCES,
    output:
        f"{RESULTS}/{{paper}}/train/{{run}}.parquet",
    log:
        f"logs/{SCALE}/{{paper}}/train/{{run}}.log",
    benchmark:
        f"{RESULTS}/jobs/{{paper}}_train/{{run}}.tsv"
    threads: 1
    resources:
        mem_mb=3000,
        gpu=int(SCALE == "paper"),
    params:
        recipe=lambda wildcards: run_of(wildcards).model_dump(mode="json"),
    message:
        "{wildcards.paper}: training {wildcards.run}"
    script:
        "../scripts/train.py"


rule summary:
    input:
        runs=lambda wildcards: runs_of(wildcards.paper, wildcards.experiment),
        testbed=sources("testbed/training/summary.py", "testbed/results.py"),
    output:
        f"{RESULTS}/{{paper}}/summary/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/{{paper}}/summary/{{experiment}}.log",
    threads: 1
    resources:
        mem_mb=1000,
    params:
        below_dense=lambda wildcards: SUMMARIES[wildcards.paper]["below_dense"],
        table=lambda wildcards: SUMMARIES[wildcards.paper]["tables"].get(wildcards.experiment, ""),
    message:
        "{wildcards.paper}: final accuracies and times to the target of {wildcards.experiment}"
    script:
        "../scripts/summary.py"
