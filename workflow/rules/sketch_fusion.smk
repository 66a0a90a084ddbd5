# Sketch-Fusion: compression timed here, throughput and fusion simulated, training, theorems, and
# real processes.
SKF = SETTINGS.recipes["sketch_fusion"]
SKF_DIR = f"{RESULTS}/sketch_fusion"
RUNS["sketch_fusion"] = in_jobs(SKF.runs(SCALE))
SUMMARIES["sketch_fusion"] = dict.fromkeys(
    ("figure6", "lstm"), dict(below_dense=SKF.target.below_dense)
)

# The optional sections of the recipe that a job reads. What measures time runs alone.
SKF_SIMULATED = {"scaling": ["tensors"], "theory": ["theory"]}
SKF_MEASURED = {"fusion": [], "measured": ["measured"], "live": ["live"]}


def skf_sources(wildcards):
    """The source files behind a job's numbers."""
    experiment, methods = wildcards.experiment, SKF.methods.values()
    own = SHARED + sources("testbed/results.py", "workflow/experiments/_bench.py")
    own += sources("workflow/experiments/sketch_fusion.py")
    if experiment == "theory":
        return own + sources("testbed/training/quadratic.py")
    exchanges = {method.exchange for method in methods}
    groupings = {"layer_wise", "whole_model", "layer_fusion"}
    if experiment == "fusion":
        exchanges |= set(SKF.exchanges)
        groupings |= {part.name for part in SKF.fusion.values()}
    codecs = ["*"] if experiment == "measured" else [m.codec.name for m in methods]
    extra = {
        "live": ["testbed/live/*.py", "workflow/experiments/_simulated.py"],
        "measured": ["testbed/live/processes.py"],
    }
    return (
        own
        + NETWORK_SOURCES
        + TRAINING_SOURCES
        + sources(*(f"methods/compression/{name}.py" for name in codecs))
        + sources(*(f"methods/exchange/{name}.py" for name in exchanges))
        + sources(*(f"methods/fusion/{name}.py" for name in groupings))
        + sources(*extra.get(experiment, []))
    )


rule sketch_fusion_simulate:
    input:
        skf_sources,
    output:
        f"{SKF_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/sketch_fusion/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/sketch_fusion/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(SKF_SIMULATED),
    threads: 1
    resources:
        mem_mb=3000,
        runtime=minutes(60),
    params:
        paper="sketch_fusion",
        recipe=lambda wildcards: SKF.only(*SKF_SIMULATED[wildcards.experiment]),
        scale=SCALE,
    message:
        "Sketch-Fusion: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


rule sketch_fusion_measure:
    input:
        skf_sources,
        data=lambda wildcards: (
            f"results/data/{SKF.live.dataset}.json" if wildcards.experiment == "live" else []
        ),
    output:
        f"{SKF_DIR}/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/sketch_fusion/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/sketch_fusion/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="|".join(SKF_MEASURED),
    threads: ALONE
    resources:
        mem_mb=6000,
        runtime=minutes(60),
    params:
        paper="sketch_fusion",
        recipe=lambda wildcards: SKF.only(*SKF_MEASURED[wildcards.experiment]),
        scale=SCALE,
    message:
        "Sketch-Fusion, timed on this machine: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


def skf_rows(*experiments):
    return [f"{SKF_DIR}/{experiment}.parquet" for experiment in experiments]


SKF_CURVES = {name: curves_of("sketch_fusion", name) for name in ("figure6", "lstm")}
TABLES["sketch_fusion"] = {
    "table1": skf_rows("measured"),
    "table4": skf_rows("scaling", "measured"),
    "fusion": skf_rows("fusion"),
    "speed": skf_rows("measured"),
    "live": skf_rows("live"),
    "theory": skf_rows("theory"),
}
FIGURES["sketch_fusion"] = {
    "figure1": skf_rows("measured", "scaling"),
    "figure2": skf_rows("scaling"),
    "figure3": skf_rows("scaling", "measured"),
    "figure4": skf_rows("scaling", "measured"),
    "figure5": skf_rows("scaling", "measured"),
    "gains": skf_rows("scaling", "measured"),
    "figure6": SKF_CURVES["figure6"],
    "lstm": SKF_CURVES["lstm"],
    "fusion": skf_rows("fusion"),
    "theory": skf_rows("theory"),
}
DATASETS["sketch_fusion"] = sorted(
    {f"results/data/{d}.json" for d in (SKF.figure6.dataset, SKF.lstm.dataset, SKF.live.dataset)}
)
