"""A wing is a folder: what it takes to add an experiment or a document, and to delete one."""

import re
import shutil
import textwrap

import pandas as pd
import pytest

from slowlink.workflow import documents, settings, targets
from tests.workflow.checkout import ROOT, Checkout

EXTRA = '''
"""How often a message crosses the spines."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import PositiveInt

from slowlink.reports.charts import Dots, Figure
from slowlink.testbed.results import Row
from slowlink.workflow.documents.rat.experiments import Bench
from slowlink.workflow.experiment import Section, experiment


class Crossings(Section):
    racks: list[PositiveInt]


@experiment(minutes=1, methods=("Ring",))
def crossings(bench: Bench, crossings: Crossings) -> Iterator[Row]:
    """Crossings of a ring in the order of the racks."""
    for racks in crossings.racks:
        yield bench.row("crossings", racks, "1", at={"racks": racks}, evidence="computed")


crossing = Figure(
    title="Crossings of a ring",
    shows="A ring in the order of the racks crosses the spines once a rack.",
    of=[crossings],
    chart=Dots("crossings", y="racks"),
)
'''

TOY = {
    "__init__.py": "",
    "recipe.yaml": """
        rate: 1.0e+9
        halves: {shares: [0.5, 0.25], smoke: {shares: [0.5]}}
        """,
    "experiments.py": '''
        """A document of one number."""

        from __future__ import annotations

        from collections.abc import Iterator

        from pydantic import PositiveFloat

        from slowlink.testbed.results import Row
        from slowlink.workflow import experiment as declarations
        from slowlink.workflow.experiment import Section, experiment


        class Toy(declarations.Settings):
            rate: PositiveFloat


        class Halves(Section):
            shares: list[PositiveFloat]


        @experiment(minutes=1)
        def halves(bench: declarations.Bench[Toy], halves: Halves) -> Iterator[Row]:
            """A share of the rate."""
            for share in halves.shares:
                rate = share * bench.settings.rate
                yield bench.row("rate", rate, "bit/s", at={"share": share}, evidence="computed")
        ''',
    "page.py": '''
        """What the toy shows."""

        from __future__ import annotations

        from typing import TYPE_CHECKING

        from slowlink.reports.charts import table
        from slowlink.workflow.documents.toy import experiments
        from slowlink.workflow.experiment import PLANNING

        if not PLANNING or TYPE_CHECKING:
            import pandas as pd

            from slowlink.reports import tables


        @table(title="Table 1", shows="Shares of a rate.", of=[experiments.halves])
        def table1(rows: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
            return tables.cells(verdicts, "Table 1")[["id", "printed", "ours", "verdict"]]
        ''',
    "claims.yaml": """
        document: toy
        label: Toy
        title: A document of one number
        citation: Nobody, nowhere
        axes: {halves: [share]}
        claims:
          - id: TOY-1
            where: Table 1
            kind: value
            setting: half
            metric: rate
            printed: "500"
            unit: Mbit/s
            quantity: count
            ours: halves/0.5/times=1e-6/rate
        """,
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return Checkout(tmp_path_factory.mktemp("wings") / "slowlink")


@pytest.fixture
def added(checkout):
    """Both of the above, made by one run, as a run costs seconds before its first job."""
    rat = checkout.path / "workflow" / "documents" / "rat"
    recipe, toy = rat / "recipe.yaml", rat.with_name("toy")
    before = recipe.read_text()
    (rat / "crossings.py").write_text(EXTRA)
    recipe.write_text(before + "\ncrossings: {racks: [2, 4]}\n")
    toy.mkdir()
    for name, text in TOY.items():
        (toy / name).write_text(textwrap.dedent(text).lstrip())
    try:
        code, said = checkout.run("rat_crossing", "toy_table1")
        assert code == 0, said[-3000:]
        yield checkout.path / "results" / "smoke"
    finally:
        (rat / "crossings.py").unlink()
        recipe.write_text(before)
        shutil.rmtree(toy)


def test_an_experiment_is_one_python_and_one_yaml_file_and_a_document_one_folder(added):
    svg = (added / "rat/figures/crossing.svg").read_text()
    assert "crossings" in svg and "data-missing" not in svg
    crossings = pd.read_parquet(added / "rat/crossings.parquet")
    assert crossings["value"].to_list() == [2.0, 4.0]
    table = pd.read_csv(added / "toy/tables/table1.csv", dtype=str)
    assert table.to_dict("records") == [
        {"id": "TOY-1", "printed": "500", "ours": "500", "verdict": "holds"}
    ]


def test_a_documents_folder_can_be_deleted(checkout):
    folder = checkout.path / "workflow" / "documents" / "lpsp"
    away = shutil.move(folder, checkout.path / "lpsp")
    try:
        plan = checkout.planned()
        assert "rat: table1" in plan and "lpsp" not in plan
    finally:
        shutil.move(away, folder)


def test_the_list_of_targets_is_what_the_wings_declare():
    assert (ROOT / "docs" / "targets.md").read_text() == targets.listed()


def test_targets_named_elsewhere_exist():
    known = set(re.findall(r"^\| `(\w+)`", targets.listed(), flags=re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "Snakefile", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        named = re.findall(r"snakemake --cores \d? ?(\w+_\w+)", page.read_text())
        # The second is the example of docs/adding.md, which declares it.
        assert set(named) <= known | {"lpsp_ray", "rat_distances"}, page


def _numbers(text: str) -> list[str]:
    return [one.replace(",", "") for one in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.parametrize("name", documents.names())
def test_what_a_document_is_told_to_say_has_its_numbers(name):
    """As they are printed there, or rounded, or in thousands."""
    wing = settings.wings()[name]
    files = [wing.folder / "claims.yaml", wing.folder / settings.RECIPE]
    printed = {float(one) for file in files for one in _numbers(file.read_text())}
    for item in wing.shown.values():
        for told in _numbers(item.says):
            half = 0.5 * 10.0 ** -len(told.partition(".")[2]) + 1e-9
            near = (abs(one / unit - float(told)) <= half for one in printed for unit in (1, 1000))
            assert any(near), f"{item.title}: {told}"
