# What a scale costs before it runs: snakemake -n costs --config scale=paper
import subprocess
from functools import cache


@cache
def cost_said():
    """The estimate as text. It needs models, which planning does without: a process of its own."""
    command = [sys.executable, "-m", "slowlink.workflow.cost", "--scale", SCALE]
    done = subprocess.run(command, cwd=workflow.basedir, capture_output=True, text=True)
    if done.returncode:
        raise WorkflowError(done.stderr or f"{command} ended with {done.returncode}")
    return done.stdout.rstrip()


rule costs:
    output:
        f"{RESULTS}/costs.csv",
    log:
        f"logs/{SCALE}/costs.log",
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5),
    params:
        scale=SCALE,
        said=lambda wildcards: cost_said(),
    message:
        "estimated costs at scale {SCALE}, not measured:\n{params.said}"
    run:
        pool.run("slowlink.workflow.scripts.costs", log[0], scale=SCALE, output=output[0])
