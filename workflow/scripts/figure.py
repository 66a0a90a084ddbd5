"""One figure, as SVG: what its target makes and its page shows."""

from slowlink.reports import artifacts
from slowlink.testbed.files import whole
from slowlink.testbed.results import read
from slowlink.workflow.experiment import Say
from slowlink.workflow.settings import wing_of
from slowlink.workflow.verdicts import claims_of


def main(say: Say, wing: str, name: str, files: list[str], output: str) -> None:
    made = wing_of(wing)
    with whole(output) as path:
        artifacts.write_figure(made.figures[name], read(files), claims_of(made), path)
