# Training runs and their summaries, of every document that trains. A document's own rules fill in
# its jobs, each a list of runs of one experiment, and how each experiment is summarised.
RUNS, SUMMARIES = {}, {}


def in_jobs(runs):
    """At paper scale a job a run, at desk scale one for all seeds, at smoke scale an experiment,
    for starting a job takes seconds."""
    jobs = {}
    for name, run in runs.items():
        of_seeds = name.removesuffix(f"-seed{run.seed}")
        job = dict(paper=name, desk=of_seeds, smoke=run.experiment)[SCALE]
        jobs.setdefault(job, []).append(run)
    return jobs


def runs_of(paper, experiment):
    """The result files of an experiment's training runs."""
    return [
        f"{RESULTS}/{paper}/train/{run}.parquet"
        for run, recipes in RUNS[paper].items()
        if recipes[0].experiment == experiment
    ]


def curves_of(paper, experiment):
    return [f"{RESULTS}/{paper}/summary/{experiment}.parquet", *runs_of(paper, experiment)]


def recipes_of(wildcards):
    return RUNS[wildcards.paper][wildcards.run]


wildcard_constraints:
    run="[A-Za-z0-9_-]+",


rule train:
    input:
        data=lambda wildcards: f"results/data/{recipes_of(wildcards)[0].dataset}.json",
        methods=lambda wildcards: methods_of(recipes_of(wildcards)),
        testbed=NETWORK_SOURCES + TRAINING_SOURCES,
    output:
        f"{RESULTS}/{{paper}}/train/{{run}}.parquet",
    log:
        f"logs/{SCALE}/{{paper}}/train/{{run}}.log",
    benchmark:
        f"{RESULTS}/jobs/{{paper}}_train/{{run}}.tsv"
    priority: 1  # the longest first, so that no core idles at the end
    threads: 1
    resources:
        mem_mb=3000,
        runtime=minutes(120),
        gpu=int(SCALE == "paper"),
    params:
        recipes=lambda wildcards: [r.model_dump(mode="json") for r in recipes_of(wildcards)],
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
        runtime=minutes(5),
    params:
        how=lambda wildcards: SUMMARIES[wildcards.paper][wildcards.experiment],
    message:
        "{wildcards.paper}: final accuracies and times to the target of {wildcards.experiment}"
    script:
        "../scripts/summary.py"
