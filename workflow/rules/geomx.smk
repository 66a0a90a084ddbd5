# GeoMX: Tables 1 and 2, Figures 4 and 6, mixed synchronization, sensitivity to computing time.
GEOMX = SETTINGS.recipes["geomx"]
GEOMX_DIR = f"{RESULTS}/geomx"
RUNS["geomx"] = {name: [run] for name, run in GEOMX.runs(SCALE).items()}
BELOW = dict(below_dense=GEOMX.target.below_dense)
SUMMARIES["geomx"] = {"figure4": BELOW, "figure6": BELOW | {"table": "table2"}, "mixed": BELOW}


rule geomx_rounds:
    input:
        data=f"results/data/{GEOMX.dataset}.json",
        methods=SHARED
        + sources(
            "methods/fusion/layer_wise.py",
            *sorted({f"methods/exchange/{s.exchange}.py" for s in GEOMX.systems.values()}),
            *sorted(
                {
                    f"methods/compression/{level.up.name}.py"
                    for s in GEOMX.systems.values()
                    for level in s.levels
                }
            ),
        ),
        testbed=NETWORK_SOURCES + TRAINING_SOURCES + sources("testbed/rounds.py"),
        workflow=sources("workflow/experiments/geomx.py", "workflow/recipes/geomx.py"),
    output:
        f"{GEOMX_DIR}/rounds/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/geomx/rounds/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/geomx_rounds/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="table1|table2",
    threads: 1
    resources:
        mem_mb=9000,
    params:
        paper="geomx",
        recipe=recipe_of("geomx"),
        scale=SCALE,
    message:
        "one round of every case of {wildcards.experiment} on full-size models"
    script:
        "../scripts/experiment.py"


# What each table and figure is made from.
GEOMX_ROUNDS = {e: [f"{GEOMX_DIR}/rounds/{e}.parquet"] for e in ("table1", "table2")}
GEOMX_CURVES = {e: curves_of("geomx", e) for e in ("figure4", "figure6", "mixed")}
TABLES["geomx"] = {
    "table1": GEOMX_ROUNDS["table1"],
    "table2": GEOMX_ROUNDS["table2"] + GEOMX_CURVES["figure6"],
}
FIGURES["geomx"] = {
    "table1": GEOMX_ROUNDS["table1"],
    "figure4": GEOMX_CURVES["figure4"],
    "figure6": GEOMX_CURVES["figure6"],
    "accuracy_bytes": GEOMX_CURVES["figure6"],
    "mixed": GEOMX_CURVES["mixed"],
    "sensitivity": GEOMX_ROUNDS["table2"],
}
DATASETS["geomx"] = [f"results/data/{GEOMX.dataset}.json"]
