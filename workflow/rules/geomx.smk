# GeoMX: Tables 1 and 2, Figures 4 and 6, mixed synchronization, sensitivity to computing time.
GEOMX = SETTINGS.recipes["geomx"]
GEOMX_DIR = f"{RESULTS}/geomx"
RUNS["geomx"] = in_jobs(GEOMX.runs(SCALE))
BELOW = dict(below_dense=GEOMX.target.below_dense)
SUMMARIES["geomx"] = {"figure4": BELOW, "figure6": BELOW | {"table": "table2"}, "mixed": BELOW}


# The methods of the tables' systems.
GEOMX_METHODS = SHARED + sources(
    "methods/fusion/layer_wise.py",
    *sorted({f"methods/exchange/{s.exchange}.py" for s in GEOMX.systems.values()}),
    *sorted(
        {
            f"methods/compression/{level.up.name}.py"
            for s in GEOMX.systems.values()
            for level in s.levels
        }
    ),
)


rule geomx_rounds:
    input:
        data=f"results/data/{GEOMX.dataset}.json",
        methods=GEOMX_METHODS,
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
        runtime=minutes(60),
    params:
        paper="geomx",
        recipe=recipe_of("geomx"),
        scale=SCALE,
    message:
        "one round of every case of {wildcards.experiment} on full-size models"
    script:
        "../scripts/experiment.py"


# Real bytes over real sockets, timed: they run alone.
rule geomx_links:
    input:
        data=f"results/data/{GEOMX.dataset}.json",
        methods=GEOMX_METHODS
        + sources(
            *sorted(
                {f"methods/exchange/{c.exchange.name}.py" for c in GEOMX.agreement.cases.values()}
            )
        ),
        testbed=NETWORK_SOURCES + EMULATED_SOURCES + TRAINING_SOURCES + sources("testbed/rounds.py"),
        live=sources("testbed/live/agreement.py", "testbed/live/busy.py")
        + sources("testbed/live/plan_*.py", "testbed/live/processes.py"),
        system=lambda wildcards: (
            sources("testbed/live/hips/*.py", "testbed/live/nursery.py")
            if wildcards.experiment == "system"
            else []
        ),
        workflow=sources("workflow/experiments/geomx.py", "workflow/experiments/_links.py")
        + sources("workflow/recipes/geomx.py"),
    output:
        f"{GEOMX_DIR}/links/{{experiment}}.parquet",
    log:
        f"logs/{SCALE}/geomx/links/{{experiment}}.log",
    benchmark:
        f"{RESULTS}/jobs/geomx_links/{{experiment}}.tsv"
    wildcard_constraints:
        experiment="emulated|agreement|system",
    threads: ALONE
    resources:
        mem_mb=12000,
        runtime=minutes(60),
    params:
        paper="geomx",
        recipe=recipe_of("geomx"),
        scale=SCALE,
    message:
        "real processes over emulated links, timed on this machine: {wildcards.experiment}"
    script:
        "../scripts/experiment.py"


# Every cell, emulated once and kept: make record-links.
GEOMX_RECORD = "data/recorded/geomx_emulated.json"


rule geomx_recorded:
    input:
        record=GEOMX_RECORD,
        tables=expand(f"{GEOMX_DIR}/rounds/{{table}}.parquet", table=["table1", "table2"]),
        workflow=sources("workflow/experiments/_links.py"),
    output:
        f"{GEOMX_DIR}/links/recorded.parquet",
    log:
        f"logs/{SCALE}/geomx/links/recorded.log",
    benchmark:
        f"{RESULTS}/jobs/geomx_recorded/recorded.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        scale=SCALE,
    message:
        "recorded rounds over emulated links"
    script:
        "../scripts/recorded.py"


# What each table and figure is made from.
GEOMX_ROUNDS = {e: [f"{GEOMX_DIR}/rounds/{e}.parquet"] for e in ("table1", "table2")}
GEOMX_LINKS = {e: [f"{GEOMX_DIR}/links/{e}.parquet"] for e in ("emulated", "agreement", "system")}
if sources(GEOMX_RECORD):
    GEOMX_LINKS["emulated"].append(f"{GEOMX_DIR}/links/recorded.parquet")
GEOMX_EMULATED = GEOMX_ROUNDS["table1"] + GEOMX_ROUNDS["table2"] + GEOMX_LINKS["emulated"]
GEOMX_CURVES = {e: curves_of("geomx", e) for e in ("figure4", "figure6", "mixed")}
TABLES["geomx"] = {
    "table1": GEOMX_ROUNDS["table1"],
    "table2": GEOMX_ROUNDS["table2"] + GEOMX_CURVES["figure6"],
    "emulated": GEOMX_EMULATED,
    "agreement": GEOMX_LINKS["agreement"],
    "system": GEOMX_LINKS["system"],
}
FIGURES["geomx"] = {
    "table1": GEOMX_ROUNDS["table1"],
    "figure4": GEOMX_CURVES["figure4"],
    "figure6": GEOMX_CURVES["figure6"],
    "accuracy_bytes": GEOMX_CURVES["figure6"],
    "mixed": GEOMX_CURVES["mixed"],
    "sensitivity": GEOMX_ROUNDS["table2"],
    "emulated": GEOMX_LINKS["emulated"] + GEOMX_LINKS["agreement"],
    "system": GEOMX_LINKS["system"],
}
DATASETS["geomx"] = [f"results/data/{GEOMX.dataset}.json"]
