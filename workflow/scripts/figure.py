"""One figure, as SVG: what its target makes and its page shows."""

from reports import artifacts
from testbed.files import whole
from testbed.results import read
from workflow.experiment import Say
from workflow.settings import wing_of
from workflow.verdicts import claims_of


def main(say: Say, wing: str, name: str, files: list[str], output: str) -> None:
    made = wing_of(wing)
    with whole(output) as path:
        artifacts.write_figure(made.figures[name], read(files), claims_of(made), path)
