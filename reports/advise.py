"""Which method for my cluster? The short name of the command ``workflow.matrix.advice``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("slowlink.workflow.matrix.advice", run_name="__main__", alter_sys=True)
