# Data sets: fetched once, checked always.
rule dataset:
    input:
        "data/sources.yaml",
    output:
        "results/data/{dataset}.json",
    log:
        "logs/data/{dataset}.log",
    threads: 1
    resources:
        mem_mb=1000,
    retries: 1
    message:
        "fetching and checking {wildcards.dataset}"
    script:
        "../scripts/dataset.py"
