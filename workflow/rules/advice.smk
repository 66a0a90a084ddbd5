# The form of the report that advises, and what a scale costs before it runs.
ADVICE = f"{MATRIX_DIR}/advice.parquet"


rule matrix_advice:
    input:
        cells=[
            f"{MATRIX_DIR}/{job}.parquet"
            for job in MATRIX_JOBS + MATRIX_KEPT
            if job.startswith("cells/")
        ],
        sources=SHARED
        + NETWORK_SOURCES
        + sources("methods/*/*.py", "testbed/matrix.py", "testbed/lineup.py")
        + sources("reports/advise.py", "workflow/advice.py", "workflow/recipes/matrix.py"),
    output:
        ADVICE,
    log:
        f"logs/{SCALE}/matrix/advice.log",
    benchmark:
        f"{RESULTS}/jobs/matrix/advice.tsv"
    priority: 2
    threads: 1
    resources:
        mem_mb=4000,
        runtime=minutes(60),
    params:
        recipe=lambda wildcards: recipe_of("matrix"),
        scale=SCALE,
    message:
        "matrix: round times for the form that advises"
    script:
        "../scripts/advice.py"


def cost_lines(wildcards):
    from dataclasses import asdict

    from workflow import cost

    others = {}
    for paper in PAPERS:
        if paper != "matrix":
            files = {
                f for files in [*TABLES[paper].values(), *FIGURES[paper].values()] for f in files
            }
            others[paper] = sum("/train/" not in f for f in files)
    timed = cost.timed(Path("results/desk/jobs"), others)
    return [asdict(line) for line in cost.estimate(RUNS, MATRIX, others, timed)]


def cost_said(wildcards):
    from workflow import cost

    return cost.said(cost.Cost(**line) for line in cost_lines(wildcards))


# snakemake -n costs --config scale=paper
rule costs:
    output:
        f"{RESULTS}/costs.csv",
    log:
        f"logs/{SCALE}/costs.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        lines=cost_lines,
        said=cost_said,
    message:
        "estimated costs at scale {SCALE}, not measured:\n{params.said}"
    script:
        "../scripts/costs.py"
