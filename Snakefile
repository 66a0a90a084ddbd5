# slowlink: which way of exchanging gradients is fastest, and do the papers hold up?
#
#   snakemake                                 everything, desk scale, on all cores
#   snakemake --cores 2 geomx_table2          one table or figure, as results/desk/geomx/…
#   snakemake --config scale=smoke            smoke | desk | paper
#   snakemake -n costs --config scale=paper   what a scale is estimated to cost
include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/experiment.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/costs.smk"


# On a cluster, downloads and what only reads results run where Snakemake does.
localrules:
    dataset,
    figure,
    table,
    judge,
    verdicts,
    page,
    cards,
    html,
    costs,


rule all:
    default_target: True
    input:
        REPORT,
        f"{RESULTS}/verdicts.csv",


onsuccess:
    if Path(REPORT).is_file():
        print(f"report: {REPORT}")
