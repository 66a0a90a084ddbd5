# Figures, tables, verdicts and the pages; and the named targets.
def item_of(wildcards):
    return WINGS[wildcards.wing].shown[wildcards.name]


def results_behind(wildcards):
    return JOBS.behind(wildcards.wing, item_of(wildcards).of)


def words_of(wildcards):
    """What a document prints, which stands beside what is drawn and is judged."""
    claims = WINGS[wildcards.wing].claims
    return [str(claims.relative_to(closure.ROOT))] if claims else []


def judged_by(wildcards):
    """The same, and the recipe, of which the document's own scale is judged, too."""
    words = words_of(wildcards)
    return words + [str(Path(words[0]).with_name("recipe.yaml"))] if words else []


def code_of(wildcards):
    """The files that a figure or table uses, and a digest of what is its own."""
    return WINGS[wildcards.wing].code(wildcards.name)


def sources_of(*files):
    return lambda wildcards: sorted(closure.closure(files))


def shown_with(*files):
    """These files and those that the figure or table uses."""
    return lambda wildcards: sorted(closure.closure(files) | code_of(wildcards)[0])


wildcard_constraints:
    name="[a-z0-9_]+",


rule figure:
    input:
        rows=results_behind,
        claims=words_of,
        sources=shown_with("reports/charts/drawing.py"),
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
        code=lambda wildcards: code_of(wildcards)[1],
    message:
        "{wildcards.wing}: drawing {wildcards.name}"
    run:
        pool.run(
            "slowlink.workflow.scripts.figure",
            log[0],
            wing=wildcards.wing,
            name=wildcards.name,
            files=list(input.rows),
            output=output[0],
        )


rule table:
    input:
        rows=results_behind,
        claims=judged_by,
        sources=shown_with("reports/verdicts.py", "reports/tables.py"),
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
        code=lambda wildcards: code_of(wildcards)[1],
        recipe=lambda wildcards: RECIPES[wildcards.wing],
        scale=SCALE,
    message:
        "{wildcards.wing}: table {wildcards.name}"
    run:
        pool.run(
            "slowlink.workflow.scripts.table",
            log[0],
            wing=wildcards.wing,
            name=wildcards.name,
            files=list(input.rows),
            recipe=params.recipe,
            scale=SCALE,
            output=output[0],
        )


RECIPES = {name: recipe.model_dump(mode="json") for name, recipe in SETTINGS.recipes.items()}


rule judge:
    input:
        rows=lambda wildcards: JOBS.every(wildcards.wing),
        claims=judged_by,
        sources=sources_of("reports/verdicts.py", "reports/tables.py"),
    output:
        f"{RESULTS}/{{wing}}/verdicts.parquet",
    log:
        f"logs/{SCALE}/{{wing}}/verdicts.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(10),
    params:
        recipe=lambda wildcards: RECIPES[wildcards.wing],
        scale=SCALE,
    message:
        "{wildcards.wing}: a verdict for every claim"
    run:
        pool.run(
            "slowlink.workflow.scripts.judge",
            log[0],
            wing=wildcards.wing,
            files=list(input.rows),
            recipe=params.recipe,
            scale=SCALE,
            output=output[0],
        )


rule verdicts:
    input:
        [f"{RESULTS}/{name}/verdicts.parquet" for name in DOCUMENTS],
    output:
        report(
            f"{RESULTS}/verdicts.csv",
            category="All documents",
            labels={"table": "verdicts"},
        ),
    log:
        f"logs/{SCALE}/verdicts.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    message:
        "the verdicts of all documents"
    run:
        pool.run("slowlink.workflow.scripts.verdicts", log[0], files=list(input), output=output[0])


def shown_by(wing):
    """The files of all figures and tables of a wing."""
    made = WINGS[wing]
    return [f"{RESULTS}/{wing}/figures/{name}.svg" for name in made.figures] + [
        f"{RESULTS}/{wing}/tables/{name}.csv" for name in made.tables
    ]


def read_by_page(wing):
    """All results of a document; of the matrix, those that its figures and tables are of and those
    that no other experiment reads, a sixth: what others condense is not read again."""
    made = WINGS[wing]
    if wing in DOCUMENTS:
        return JOBS.every(wing)
    shown = [one for item in made.shown.values() for one in item.of]
    read = {before.name for one in made.experiments.values() for before in one.after}
    last = [one for name, one in made.experiments.items() if name not in read]
    return JOBS.behind(wing, [*shown, *last])


def judged_for(wildcards):
    return [f"{RESULTS}/{wildcards.wing}/verdicts.parquet"] * (wildcards.wing in DOCUMENTS)


PAGES = {name: f"{RESULTS}/{name}/page" for name in WINGS}
CARDS = f"{RESULTS}/cards.pickle"


def datasets(wildcards=None):
    return sorted({file for job in JOBS.all.values() for file in job.inputs["data"]})


def write_report(log, **more):
    """The report of all parts that are there, those that are not named on its first page."""
    pool.run(
        "slowlink.workflow.scripts.html",
        log,
        parts=list(PAGES.values()),
        cards=CARDS,
        datasets=[file for file in datasets() if Path(file).is_file()],
        recipes=RECIPES,
        scale=SCALE,
        logs=f"logs/{SCALE}",
        output=REPORT,
        **more,
    )


# The part of the report that is a document's or the matrix's. As soon as one is there, a report of
# those that are is written, where the rest is worth waiting for.
rule page:
    input:
        rows=lambda wildcards: read_by_page(wildcards.wing),
        shown=lambda wildcards: shown_by(wildcards.wing),
        judged=judged_for,
        sources=lambda wildcards: sorted(
            closure.closure(["reports/html.py"]) | WINGS[wildcards.wing].code(BESIDE)[0]
        ),
    output:
        directory(f"{RESULTS}/{{wing}}/page"),
    log:
        f"logs/{SCALE}/{{wing}}/page.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(10),
    params:
        code=lambda wildcards: WINGS[wildcards.wing].code(BESIDE)[1],
    message:
        "{wildcards.wing}: its page"
    run:
        pool.run(
            "slowlink.workflow.scripts.page",
            log[0],
            wing=wildcards.wing,
            files=list(input.rows),
            judged=list(input.judged),
            output=output[0],
        )
        if PROGRESS and PROGRESS.left_s > WORTH_WAITING_S:
            write_report(
                log[0].replace("page.log", "report.log"), left=duration(PROGRESS.left_s)
            )


WORTH_WAITING_S = 60


rule cards:
    input:
        sources=sources_of("reports/methods.py"),
        methods=[str(file) for file in Path("methods").glob("*/*.py")],
        data=["data/bibliography.bib"],
    output:
        CARDS,
    log:
        f"logs/{SCALE}/cards.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(10),
    message:
        "a card for every method"
    run:
        pool.run("slowlink.workflow.scripts.cards", log[0], output=output[0])


rule html:
    input:
        PAGES.values(),
        CARDS,
        datasets=datasets,
        sources=sources_of("reports/html.py", "workflow/provenance.py"),
        templates=[str(file) for file in Path("reports").glob("[ta]*s/*")],
        data=["data/bibliography.bib", "data/sources.yaml"],
    output:
        REPORT,
    log:
        f"logs/{SCALE}/html.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(10),
    params:
        recipes=RECIPES,
    message:
        "writing the report"
    run:
        write_report(log[0])


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
