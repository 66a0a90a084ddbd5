# Verdicts, tables, figures and the HTML page; and the named targets.
REPORT_SOURCES = sources("reports/*.py", "data/claims/*.yaml", "workflow/judging.py")


def report_sources(paper):
    return REPORT_SOURCES + sources(f"reports/papers/{paper}.py", "reports/papers/__init__.py")


def results_of(paper):
    """Every result file of a document, once."""
    parts = [*TABLES[paper].values(), *FIGURES[paper].values()]
    return sorted({file for files in parts for file in files})


RECIPES = {paper: recipe_of(paper) for paper in PAPERS}
JUDGED = [paper for paper in PAPERS if sources(f"data/claims/{paper}.yaml")]


wildcard_constraints:
    name="[a-z0-9_]+",


rule csv:
    input:
        results=lambda wildcards: TABLES[wildcards.paper][wildcards.name],
        sources=lambda wildcards: report_sources(wildcards.paper),
    output:
        report(
            f"{RESULTS}/{{paper}}/tables/{{name}}.csv",
            category="{paper}",
            subcategory="Tables",
            labels={"table": "{name}"},
        ),
    log:
        f"logs/{SCALE}/{{paper}}/tables/{{name}}.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        recipe=lambda wildcards: RECIPES[wildcards.paper],
        scale=SCALE,
    message:
        "{wildcards.paper}: table {wildcards.name}"
    script:
        "../scripts/table.py"


rule svg:
    input:
        results=lambda wildcards: FIGURES[wildcards.paper][wildcards.name],
        sources=lambda wildcards: report_sources(wildcards.paper),
    output:
        report(
            f"{RESULTS}/{{paper}}/figures/{{name}}.svg",
            category="{paper}",
            subcategory="Figures",
            labels={"figure": "{name}"},
        ),
    log:
        f"logs/{SCALE}/{{paper}}/figures/{{name}}.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    message:
        "{wildcards.paper}: drawing {wildcards.name}"
    script:
        "../scripts/figure.py"


rule verdicts:
    input:
        results=[file for paper in JUDGED for file in results_of(paper)],
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
        runtime=minutes(10),
    params:
        recipes={paper: RECIPES[paper] for paper in JUDGED},
        scale=SCALE,
    message:
        "a verdict for every claim"
    script:
        "../scripts/verdicts.py"


rule html:
    input:
        results=[file for paper in PAPERS for file in results_of(paper)] + [ADVICE],
        details=f"{RESULTS}/verdicts.parquet",
        datasets=sorted({file for files in DATASETS.values() for file in files}),
        sources=REPORT_SOURCES
        + sources("reports/papers/*.py", "reports/templates/*", "reports/assets/*")
        + sources("data/sources.yaml", "workflow/provenance.py")
        # Cards of methods are computed with the page.
        + sorted({*SHARED, *NETWORK_SOURCES, *sources("methods/*/*.py", "testbed/matrix.py")}),
    output:
        REPORT,
    log:
        f"logs/{SCALE}/html.log",
    threads: workflow.cores
    resources:
        mem_mb=1000,
        runtime=minutes(10),
    params:
        recipes=RECIPES,
        scale=SCALE,
        jobs=f"{RESULTS}/jobs",
    message:
        "writing the report"
    script:
        "../scripts/html.py"


# A target for every document, table and figure: rat, rat_figure6, geomx_table2, …
def csv_of(paper, name):
    return [f"{RESULTS}/{paper}/tables/{name}.csv"] if name in TABLES[paper] else []


def svg_of(paper, name):
    return [f"{RESULTS}/{paper}/figures/{name}.svg"] if name in FIGURES[paper] else []


for paper in PAPERS:
    names = dict.fromkeys([*TABLES[paper], *FIGURES[paper]])

    rule:
        name:
            paper
        input:
            [file for name in names for file in csv_of(paper, name) + svg_of(paper, name)],

    for name in names:

        rule:
            name:
                f"{paper}_{name}"
            input:
                csv_of(paper, name) + svg_of(paper, name),
