# Data sets: fetched once, checked always.
rule dataset:
    input:
        "data/sources.yaml",
    output:
        "results/data/{dataset}.json",
    log:
        "logs/data/{dataset}.log",
    retries: 1
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(30),
    message:
        "fetching and checking {wildcards.dataset}"
    run:
        pool.run(
            "slowlink.workflow.scripts.dataset",
            log[0],
            name=wildcards.dataset,
            output=output[0],
        )


rule data:
    input:
        expand(
            "results/data/{dataset}.json",
            dataset=["mnist", "fashion_mnist", "cifar10", "penn_treebank"],
        ),
