# Verdicts, tables, figures and the HTML page; and the named targets.
REPORT_SOURCES = sources("reports/*.py", "data/claims/*.yaml", "workflow/judging.py")
TABLES = ["table1", "table2"]
FIGURES = ["table1", "figure4", "figure6", "accuracy_bytes", "sensitivity", "mixed"]
# The experiment that a figure shows, where its name does not say.
SHOWS = {"accuracy_bytes": "figure6"}


wildcard_constraints:
    table="|".join(TABLES),
    figure="|".join(FIGURES),


rule geomx_csv:
    input:
        results=lambda wildcards: GEOMX_PARTS[wildcards.table],
        sources=REPORT_SOURCES,
    output:
        report(
            f"{GEOMX_DIR}/tables/{{table}}.csv",
            category="GeoMX",
            subcategory="Tables",
            labels={"table": "{table}"},
        ),
    log:
        f"logs/{SCALE}/geomx/tables/{{table}}.log",
    threads: 1
    resources:
        mem_mb=1000,
    params:
        recipe=GEOMX.model_dump(mode="json"),
        scale=SCALE,
    message:
        "{wildcards.table}: printed, bound, ours, verdict"
    script:
        "../scripts/table.py"


rule geomx_svg:
    input:
        results=lambda wildcards: GEOMX_PARTS[SHOWS.get(wildcards.figure, wildcards.figure)],
        sources=REPORT_SOURCES,
    output:
        report(
            f"{GEOMX_DIR}/figures/{{figure}}.svg",
            category="GeoMX",
            subcategory="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        f"logs/{SCALE}/geomx/figures/{{figure}}.log",
    threads: 1
    resources:
        mem_mb=1000,
    message:
        "drawing {wildcards.figure}"
    script:
        "../scripts/figure.py"


rule verdicts:
    input:
        results=GEOMX_RESULTS,
        sources=REPORT_SOURCES,
    output:
        report(
            f"{RESULTS}/verdicts.csv",
            category="All documents",
            labels={"table": "verdicts"},
        ),
        details=f"{RESULTS}/verdicts.parquet",
    log:
        f"logs/{SCALE}/verdicts.log",
    threads: 1
    resources:
        mem_mb=1000,
    params:
        recipes={"geomx": GEOMX.model_dump(mode="json")},
        scale=SCALE,
    message:
        "a verdict for every claim"
    script:
        "../scripts/verdicts.py"


rule html:
    input:
        results=GEOMX_RESULTS,
        details=f"{RESULTS}/verdicts.parquet",
        datasets=f"results/data/{GEOMX.dataset}.json",
        sources=REPORT_SOURCES
        + sources("reports/templates/*", "reports/assets/*", "data/sources.yaml")
        + sources("workflow/provenance.py"),
    output:
        REPORT,
    log:
        f"logs/{SCALE}/html.log",
    threads: 1
    resources:
        mem_mb=1000,
    params:
        recipes={"geomx": GEOMX.model_dump(mode="json")},
        scale=SCALE,
        jobs=f"{RESULTS}/jobs",
    message:
        "writing the report"
    script:
        "../scripts/html.py"


rule geomx_table1:
    input:
        f"{GEOMX_DIR}/tables/table1.csv",
        f"{GEOMX_DIR}/figures/table1.svg",


rule geomx_table2:
    input:
        f"{GEOMX_DIR}/tables/table2.csv",


rule geomx_figure4:
    input:
        f"{GEOMX_DIR}/figures/figure4.svg",


rule geomx_figure6:
    input:
        f"{GEOMX_DIR}/figures/figure6.svg",
        f"{GEOMX_DIR}/figures/accuracy_bytes.svg",


rule geomx_sensitivity:
    input:
        f"{GEOMX_DIR}/figures/sensitivity.svg",


rule geomx_mixed:
    input:
        f"{GEOMX_DIR}/figures/mixed.svg",


rule geomx:
    input:
        expand(f"{GEOMX_DIR}/tables/{{table}}.csv", table=TABLES),
        expand(f"{GEOMX_DIR}/figures/{{figure}}.svg", figure=FIGURES),
