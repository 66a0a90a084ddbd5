# RAT: exchanges on simulated networks, with faults and beside ns-3.
RAT = SETTINGS.recipes["rat"]
RAT_DIR = f"{RESULTS}/rat"
RAT_WHOLE = ["figure6", "latency", "pipelining", "exchanges", "survival", "table1"]
RAT_WHOLE += ["disturbances", "asymmetric"]
RAT_PARTS = {experiment: list(RAT.parts(experiment)) for experiment in ("figure7", "packet")}


def rat_rows(*experiments):
    jobs = [job for e in experiments for job in RAT_PARTS.get(e, [e])]
    return [f"{RAT_DIR}/{job}.parquet" for job in jobs]


def rat_sources(wildcards):
    exchanges = {RAT.methods[name].exchange for name in RAT.uses(wildcards.experiment)}
    return (
        NETWORK_SOURCES
        + SHARED
        + [f"methods/exchange/{name}.py" for name in ("__init__", *sorted(exchanges))]
        + sources("workflow/experiments/rat.py", "workflow/experiments/_bench.py")
    )


rule rat_experiment:
    input:
        rat_sources,
    output:
        f"{RAT_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/rat/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/rat/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join([*RAT_WHOLE, *sum(RAT_PARTS.values(), [])]),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=minutes(60),
    params:
        paper="rat",
        recipe=lambda wildcards: RAT.only(wildcards.experiment),
        scale=SCALE,
    message:
        "RAT: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


# It measures time, so it runs alone.
rule rat_cost:
    input:
        rat_sources,
    output:
        f"{RAT_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/rat/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/rat/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="scale",
    threads: ALONE
    resources:
        mem_mb=8000,
        runtime=minutes(60),
    params:
        paper="rat",
        recipe=lambda wildcards: RAT.only(wildcards.experiment),
        scale=SCALE,
    message:
        "RAT: what the simulator costs"
    script:
        "../scripts/experiment.py"


rule rat_joint:
    input:
        rows=rat_rows("figure7"),
        sources=sources("workflow/experiments/rat.py", "workflow/experiments/_bench.py"),
    output:
        f"{RAT_DIR}/figure7_joint.parquet",
    log:
        f"logs/{SCALE}/rat/figure7_joint.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        recipe=RAT.only("figure7"),
        scale=SCALE,
    message:
        "RAT: where both ratios of Figure 7 fit"
    script:
        "../scripts/rat_joint.py"


RAT_JOINT = [f"{RAT_DIR}/figure7_joint.parquet"]
TABLES["rat"] = {
    "table1": rat_rows("table1"),
    "packet": rat_rows("packet"),
    "scale": rat_rows("scale"),
}
FIGURES["rat"] = {
    "figure6": rat_rows("figure6"),
    "latency": rat_rows("latency"),
    "pipelining": rat_rows("pipelining"),
    "figure7": rat_rows("figure7") + RAT_JOINT,
    "exchanges": rat_rows("exchanges"),
    "survival": rat_rows("survival"),
    "packet": rat_rows("packet"),
    "disturbances": rat_rows("disturbances"),
    "asymmetric": rat_rows("asymmetric"),
    "scale": rat_rows("scale"),
}
