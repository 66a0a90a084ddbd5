"""One job of an experiment: from its settings to its rows."""

from workflow.run import main

if "snakemake" in globals():
    main(
        snakemake.params.job,  # noqa: F821
        list(snakemake.input.rows),  # noqa: F821
        snakemake.output[0],  # noqa: F821
        snakemake.log[0],  # noqa: F821
    )
