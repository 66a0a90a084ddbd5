# slowlink: which way of exchanging gradients is fastest, and do the papers hold up?
#
#   snakemake --cores                         everything, desk scale
#   snakemake --cores 2 geomx_table2          one table or figure, as results/desk/geomx/…
#   snakemake --cores --config scale=smoke    smoke | desk | paper
include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/geomx.smk"
include: "workflow/rules/rat.smk"
include: "workflow/rules/sketch_fusion.smk"
include: "workflow/rules/lpsp.smk"
include: "workflow/rules/dds.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        REPORT,
        f"{RESULTS}/verdicts.csv",


onsuccess:
    print(f"report: {REPORT}")
