"""One table with our numbers and verdicts, as CSV: what its target makes and its page shows."""

from slowlink.reports import artifacts
from slowlink.testbed.files import whole
from slowlink.workflow.experiment import Say
from slowlink.workflow.settings import wing_of
from slowlink.workflow.verdicts import judge_from


def main(
    say: Say, wing: str, name: str, files: list[str], recipe: dict, scale: str, output: str
) -> None:
    made = wing_of(wing)
    table = made.tables[name]
    judged, rows = judge_from(made, files, recipe, scale, table.experiments)
    with whole(output) as path:
        artifacts.write_table(table, rows, judged, path)
