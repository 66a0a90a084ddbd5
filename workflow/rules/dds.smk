# DDS: bytes, federated and data-parallel training on real processes over DDS, further seeds in one
# process, and the transport beside others.
DDS = SETTINGS.recipes["dds"]
DDS_DIR = f"{RESULTS}/dds"
RUNS["dds"] = in_jobs(DDS.runs(SCALE))
SUMMARIES["dds"] = {"ddp_seeds": dict(target=DDS.ddp.target, window=1)}

# The optional sections of the recipe that a job reads. What measures time runs alone.
DDS_BY_SEED = {
    name: [f"{name}-{seed}" for seed in getattr(DDS, name).seeds]
    for name in ("federated_seeds", "non_iid")
}
DDS_SIMULATED = {"bytes": ["federated"]}
for name, jobs in DDS_BY_SEED.items():
    DDS_SIMULATED |= dict.fromkeys(jobs, ["federated", name])
DDS_MEASURED = {
    "federated": ["federated", "federated_seeds"],
    "ddp": ["ddp"],
    "transport": ["transport"],
}
DDS_CODECS = [part.name for part in DDS.federated.modes.values()]
DDS_CODECS += [case.codec.name for case in DDS.ddp.cases.values()]


def dds_sources(wildcards):
    return (
        SHARED
        + NETWORK_SOURCES
        + TRAINING_SOURCES
        + sources(*(f"methods/compression/{name}.py" for name in sorted(set(DDS_CODECS))))
        + sources("methods/exchange/allgather.py", "methods/synchronization/fedavg.py")
        + sources("workflow/experiments/dds.py", "workflow/experiments/_bench.py")
        + sources("workflow/experiments/_simulated.py")
        + sources("workflow/recipes/dds.py")
        + sources("testbed/live/*.py", "testbed/live/dds/**/*.py")
    )


def dds_data(wildcards):
    part = {"ddp": DDS.ddp}.get(wildcards.experiment, DDS.federated)
    return f"results/data/{part.dataset}.json" if wildcards.experiment != "transport" else []


rule dds_simulate:
    input:
        dds_sources,
        data=dds_data,
    output:
        f"{DDS_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/dds/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/dds/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(DDS_SIMULATED),
    threads: 1
    resources:
        mem_mb=2000,
        runtime=minutes(30),
    params:
        paper="dds",
        recipe=lambda wildcards: DDS.only(*DDS_SIMULATED[wildcards.experiment]),
        scale=SCALE,
    message:
        "DDS: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


rule dds_measure:
    input:
        dds_sources,
        data=dds_data,
    output:
        f"{DDS_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/dds/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/dds/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(DDS_MEASURED),
    threads: ALONE
    resources:
        mem_mb=6000,
        runtime=minutes(60),
    params:
        paper="dds",
        recipe=lambda wildcards: DDS.only(*DDS_MEASURED[wildcards.experiment]),
        scale=SCALE,
    message:
        "DDS, timed on this machine: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


def dds_rows(*experiments):
    jobs = [job for e in experiments for job in DDS_BY_SEED.get(e, [e])]
    return [f"{DDS_DIR}/{job}.parquet" for job in jobs]


DDS_CURVES = curves_of("dds", "ddp_seeds")
DDS_DDP = dds_rows("ddp") + DDS_CURVES
DDS_FEDERATED = dds_rows("federated", "federated_seeds")
TABLES["dds"] = {
    "federated": DDS_FEDERATED,
    "ddp": DDS_DDP,
    "bytes": dds_rows("bytes"),
    "transport": dds_rows("transport"),
}
FIGURES["dds"] = {
    "ddp_figure1": dds_rows("ddp"),
    "ddp_figure2": DDS_DDP,
    "ddp_figure3": dds_rows("ddp"),
    "ddp_figure4": dds_rows("ddp"),
    "profile": dds_rows("ddp"),
    "fl_figure1": dds_rows("federated"),
    "fl_figure2": dds_rows("federated"),
    "fl_figure3": dds_rows("federated"),
    "fl_figure4": DDS_FEDERATED,
    "bytes": dds_rows("bytes"),
    "non_iid": dds_rows("non_iid", "federated_seeds"),
    "transport": dds_rows("transport"),
}
DATASETS["dds"] = sorted({f"results/data/{d.dataset}.json" for d in (DDS.federated, DDS.ddp)})
