# Figures, tables, verdicts and the pages; and the named targets.
def item_of(wildcards):
    return WINGS[wildcards.wing].shown[wildcards.name]


def results_behind(wildcards):
    return JOBS.behind(wildcards.wing, item_of(wildcards).of)


def words_of(wildcards):
    """What a document prints, which stands beside what is drawn and is judged."""
    claims = WINGS[wildcards.wing].claims
    return [str(claims.relative_to(closure.ROOT))] if claims else []


def source_of(wildcards):
    """A digest of the declaration of a figure or table and of what it uses in its file."""
    return WINGS[wildcards.wing].digest(wildcards.name)


def sources_of(*files):
    return lambda wildcards: sorted(closure.closure(files))


wildcard_constraints:
    name="[a-z0-9_]+",


rule figure:
    input:
        rows=results_behind,
        claims=words_of,
        sources=sources_of("reports/charts/drawing.py"),
    output:
        report(
            f"{RESULTS}/{{wing}}/figures/{{name}}.svg",
            category="{wing}",
            subcategory="Figures",
            labels={"figure": "{name}"},
        ),
    log:
        f"logs/{SCALE}/{{wing}}/figures/{{name}}.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        code=source_of,
    message:
        "{wildcards.wing}: drawing {wildcards.name}"
    script:
        "../scripts/figure.py"


rule table:
    input:
        rows=results_behind,
        claims=words_of,
        sources=sources_of("reports/verdicts.py", "reports/tables.py"),
    output:
        report(
            f"{RESULTS}/{{wing}}/tables/{{name}}.csv",
            category="{wing}",
            subcategory="Tables",
            labels={"table": "{name}"},
        ),
    log:
        f"logs/{SCALE}/{{wing}}/tables/{{name}}.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        code=source_of,
        recipe=lambda wildcards: RECIPES[wildcards.wing],
        scale=SCALE,
    message:
        "{wildcards.wing}: table {wildcards.name}"
    script:
        "../scripts/table.py"


RECIPES = {name: recipe.model_dump(mode="json") for name, recipe in SETTINGS.recipes.items()}


rule verdicts:
    input:
        rows=[file for name in DOCUMENTS for file in JOBS.every(name)],
        claims=[f"workflow/documents/{name}/claims.yaml" for name in DOCUMENTS],
        sources=sources_of("reports/verdicts.py", "reports/tables.py"),
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
        recipes={name: RECIPES[name] for name in DOCUMENTS},
        scale=SCALE,
    message:
        "a verdict for every claim"
    script:
        "../scripts/verdicts.py"


def shown_by(wing):
    """The files of all figures and tables of a wing."""
    made = WINGS[wing]
    return [f"{RESULTS}/{wing}/figures/{name}.svg" for name in made.figures] + [
        f"{RESULTS}/{wing}/tables/{name}.csv" for name in made.tables
    ]


def read_by_pages(wing):
    """All results of a document; of the matrix what is condensed, a sixth, and the form's."""
    if wing in DOCUMENTS:
        return JOBS.every(wing)
    return JOBS.behind(wing, [WINGS[wing].experiments[name] for name in ("condensed", "advice")])


rule html:
    input:
        rows=[file for name in WINGS for file in read_by_pages(name)],
        shown=[file for name in WINGS for file in shown_by(name)],
        details=f"{RESULTS}/verdicts.parquet",
        datasets=lambda wildcards: sorted(
            {f for job in JOBS.all.values() for f in job.inputs["data"]}
        ),
        sources=sources_of("reports/html.py", "workflow/provenance.py"),
        templates=[str(file) for file in Path("reports").glob("[ta]*s/*")],
        # Cards of methods are computed with the page.
        methods=[str(file) for file in Path("methods").glob("*/*.py")],
        data=["data/bibliography.bib", "data/sources.yaml"],
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


# A target for every document, table and figure: rat, rat_figure6, geomx_table2, …; and for every
# experiment that runs only when it is asked for.
for wing in WINGS:

    rule:
        name:
            wing
        input:
            shown_by(wing),

    for target, names in WINGS[wing].targets.items():

        rule:
            name:
                f"{wing}_{target}"
            input:
                [file for file in shown_by(wing) if Path(file).stem in names],

    for one in WINGS[wing].experiments.values():
        if one.optional:

            rule:
                name:
                    f"{wing}_{one.name}"
                input:
                    [job.output for job in JOBS.of(wing, one)],
