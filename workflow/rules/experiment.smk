# Every experiment of every document and of the matrix, and every group of training runs.
def job_of(wildcards):
    return JOBS.all[wildcards.wing, wildcards.job]


rule experiment:
    input:
        unpack(lambda wildcards: job_of(wildcards).inputs),
    output:
        f"{RESULTS}/{{wing}}/{{job}}.parquet",
    log:
        f"logs/{SCALE}/{{wing}}/{{job}}.log",
    wildcard_constraints:
        job="|".join({job for _, job in JOBS.all}),
    priority: lambda wildcards: job_of(wildcards).experiment.priority
    threads: lambda wildcards: ALONE if job_of(wildcards).experiment.alone else 1
    resources:
        mem_mb=lambda wildcards: job_of(wildcards).experiment.memory_mb,
        runtime=lambda wildcards: minutes(job_of(wildcards).experiment.minutes),
        gpu=lambda wildcards: job_of(wildcards).gpu,
    params:
        job=lambda wildcards: job_of(wildcards).params,
    message:
        "{wildcards.wing}: {wildcards.job}"
    run:
        pool.run(
            "slowlink.workflow.scripts.experiment",
            log[0],
            threads,
            job=params.job,
            files=list(input.rows),
            output=output[0],
        )
