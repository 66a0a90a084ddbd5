"""The matrix's figures and tables: drawn from any results, and saying what the rows say."""

import json
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.patches import Polygon

from slowlink.methods import compression
from slowlink.reports import artifacts, charts
from slowlink.reports.charts import Missing
from slowlink.reports.charts.drawing import draw
from slowlink.testbed import results
from slowlink.testbed.training import device
from slowlink.workflow import matrix, settings
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import page, pictures, ranking
from slowlink.workflow.matrix.crowd import crowded
from slowlink.workflow.matrix.ranking import CELL
from slowlink.workflow.matrix.survival import survived
from tests.matrix import checked_results, matrix_results
from tests.matrix.matrix_results import METHODS, PLACES, condensed, made, wan_bytes
from tests.reports import report_site

SHOWN = charts.items(page)
FIGURES = {name: one for name, one in SHOWN.items() if one.kind == "figure"}
TABLES = {name: one for name, one in SHOWN.items() if one.kind == "table"}


def told(rows):
    return results.coordinates(rows)


@pytest.fixture(scope="module", autouse=True)
def made_up_hook():
    """Two of the made-up methods as torch's hook and as what it is in its first rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "HOOK", "sparse")
        patch.setattr(page, "PLAIN_DDP", "dense")
        yield


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of a report of RAT and the matrix, by path."""
    rat = report_site.world("rat").results()
    made_up = [matrix_results.results(), matrix_results.form(), checked_results.rows()]
    recipe = settings.load({"scale": "desk"}).recipes["matrix"]
    for one, section in ((survived, recipe.survival), (crowded, recipe.crowd)):
        bench = Bench("matrix", one.name, recipe, "smoke")
        made_up.append(results.frame(one.function(bench, section)))  # of what is recorded
    ours = pd.concat(made_up, ignore_index=True)
    judged, made = report_site.judged("rat", rat), tmp_path_factory.mktemp("made")
    parts = [
        report_site.part(report_site.chapter(name, rows, table, made / name), rows, table)
        for name, rows, table in (("rat", rat, judged), ("matrix", ours, None))
    ]
    folder = report_site.write(tmp_path_factory.mktemp("site") / "desk", parts)
    files = folder.glob("**/*.html")
    return {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in files}


def test_the_front_page_has_the_map_of_winners_and_the_finding(pages):
    front = pages["index.html"]
    assert "matrix-winners_target" in front and "none is fastest everywhere" in front
    assert 'href="matrix.html"' in front and 'href="advice.html"' in front


def test_the_page_shows_every_figure_and_table_and_the_command(pages):
    shown_there = re.findall(r'id="h-(matrix-\w+)"', pages["matrix.html"])
    assert shown_there == [f"matrix-{name}" for name in matrix.load().shown]
    assert 'class="missing"' not in pages["matrix.html"]
    assert "snakemake --cores 2 matrix_winners" in pages["matrix.html"]


def test_cards_rank_the_methods_that_use_them(pages):
    card = pages["methods/exchange-hips.html"]
    assert "sites only" in card and "most often fastest" in card
    assert "No method of the matrix" in pages["methods/exchange-rat.html"]


def test_the_form_has_the_models_and_methods_of_its_rows(pages):
    assert "resnet50 (1024 samples a round)" in pages["advice.html"]
    data = re.search(r'id="advise-data">(.*?)</script>', pages["advice.html"]).group(1)
    assert list(json.loads(data)["curves"]) == ["ring", "top_k"]


@pytest.fixture(scope="module")
def short():
    return condensed()


@pytest.fixture(scope="module")
def nobody():
    return condensed(reach=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_the_same_each_time(name, tmp_path, short):
    paths = [tmp_path / f"{i}.svg" for i in range(2)]
    assert [artifacts.write_figure(FIGURES[name], short, [], path) for path in paths] == ["", ""]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not plt.get_fignums()


def test_figures_and_tables_show_a_second_trained_model(tmp_path):
    both = condensed(residual=True)
    place = pictures.first_there(both)["panel"]
    assert {one.partition(",")[0] for one in place} == {"LeNet-5 to 90 %", "ResNet-50 to 58 %"}
    told = page.trained.make(both, None).set_index("method")
    name = "ResNet-50: rounds to 58 %"
    assert (
        told.at["sparse", name].startswith("100002.0 [") and told.at["hasty", name] == "not trained"
    )
    assert told.at["dense", "ResNet-50: p of target met"] == "0.018"
    rates = page.learning_rates.make(both, None).set_index(["model", "method"])
    # 0.05 went on to the second rung, which counts; 0.01 did not.
    assert rates.loc[("ResNet-50", "sparse"), "lr 0.05: accuracy (%)"] == "18.05"
    assert rates.loc[("ResNet-50", "sparse"), "lr 0.01: accuracy (%)"] == "6.01"
    assert rates.loc[("ResNet-50", "sparse"), "chosen"] == "0.05"
    target = page.target.make(both, None)
    assert set(target["model"]) == {"LeNet-5", "ResNet-50"}
    panels = set(pictures.points(both)["panel"])
    assert any(one.startswith("ResNet-50, ") for one in panels)


@pytest.mark.slow
def test_all_is_made_without_anyone_at_the_target(nobody):
    for table in TABLES.values():
        assert len(table.make(nobody, None))
    for figure in FIGURES.values():
        assert draw(figure, nobody).axes


@pytest.mark.parametrize("name", ["winners_target", "pareto"])
def test_figures_of_training_say_that_there_is_none(name):
    with pytest.raises(Missing, match="no method of the matrix was trained"):
        draw(FIGURES[name], condensed(trained=False))


def test_a_tile_has_the_names_of_its_winners_and_two_colours_where_they_tie(short):
    fig = draw(page.winners, short)
    flat = fig.axes[0]
    assert flat.get_title(loc="left") == "ResNet-50, flat, even speeds"
    texts = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text()
             for t in flat.texts}  # fmt: skip
    times = ranking.comparable(short)
    first = ranking.best(times)
    tied = 0
    for x, workers in enumerate((8, 16)):
        for y, bandwidth in enumerate((1e7, 1e9, 1e11)):
            row = first.loc[("resnet50", "flat", "even", workers, bandwidth)]
            text = texts[x, y].replace("\n", " ")
            # One is not first if a price is off, and its tile asks.
            assert text.endswith(" ?") == ((workers, bandwidth) == (16, 1e9))
            shown = set(text.removesuffix(" ?").removesuffix(" +").split(" = "))
            assert shown == set(row.index[row])
            tied += len(shown) > 1
    patches = [patch for patch in flat.patches if isinstance(patch, Polygon)]
    assert tied and len(patches) == 6 + tied


def test_a_model_that_nobody_brought_to_its_target_hides_no_other():
    table = pictures.first_there(condensed(reach=False, residual=True))
    found = table.groupby(table["panel"].str.partition(",")[0])["status"].agg(set).to_dict()
    assert found == {"LeNet-5 to 90 %": {"late"}, "ResNet-50 to 58 %": {"ok"}}


def test_profiles_have_few_lines_a_panel_and_every_method_once(short):
    fig = draw(page.profiles, short)
    named = [text.get_text() for ax in fig.axes for text in ax.texts]
    assert sorted(named) == sorted(ranking.comparable(short))
    table = made(trained=False)
    many = table[(table["case"] == "dense")]
    labels = [f"codec {i}" for i in range(17)]
    rows = pd.concat(
        [many.assign(case=label, at=many["at"].str.replace("dense", label)) for label in labels],
        ignore_index=True,
    )
    rows = told(
        matrix_results.results(rows, dict.fromkeys(labels, "codec"), {}, {}, [], *PLACES[4:])
    )
    panels = pictures.panels(rows, ranking.score(ranking.metric(rows, "round_time")))
    assert [len(labels) for _, labels in panels] == [6, 6, 5]
    assert sorted(sum((mine for _, mine in panels), [])) == sorted(labels)


def test_bars_add_up_to_the_round(short):
    ax = draw(page.parts, short).axes[0]
    labels = [text.get_text() for text in ax.get_yticklabels()]
    ends = {}
    for bar in ax.patches:
        at = labels[round(bar.get_y() + bar.get_height() / 2)]
        ends[at] = max(ends.get(at, 0), bar.get_x() + bar.get_width())
    times = ranking.metric(short, "round_time").loc[("resnet50", "flat", "even", 16, 1e9)].dropna()
    most = 4 * times[labels].median()
    assert labels == list(times.sort_values(kind="stable").index)
    assert ends == pytest.approx({label: min(times[label], most) for label in labels})


def points(rows):
    """What the figure of time, accuracy and bytes shows, by panel."""
    table = pictures.points(rows).drop_duplicates(["panel", "method"]).set_index("method")
    return dict(list(table.groupby("panel", sort=False)))


def test_the_front_is_marked(short):
    table = points(short)["LeNet-5, flat, even speeds, 1 Gbit/s"]
    # hasty is quickest, sends least and is the most accurate.
    assert list(table.index[table["front"] == pictures.ON_FRONT]) == ["hasty"]
    assert table.at["dense", "bytes"] == 1e9
    assert "lucky" not in table.index  # one seed diverged
    ax = draw(page.pareto, short).axes[0]
    assert [text.get_text() for text in ax.texts] == ["hasty"]
    assert len(ax.collections) and ax.get_xlabel() == "time of a round, s"


def test_points_are_of_methods_whose_training_holds_there_and_between_sites_of_what_leaves(short):
    flat, sites = points(short).values()
    assert "loose" in flat.index and "loose" not in sites.index
    assert sites["bytes"].to_dict() == {label: wan_bytes(label) for label in sites.index}
    assert sites["sent"].iloc[0] == "LeNet-5, sites, even: between sites"
    # Of networks with uneven speeds, only that where policies were trained is shown.
    table = made()
    cells = table[table["experiment"] == "cells"]
    uneven = cells.assign(at=cells["at"].str.replace("even", "uneven"))
    places = [*PLACES]
    places[3] = places[3] | {"loose": ("flat", "uneven")}
    both = pd.concat([table, uneven], ignore_index=True)
    found = points(told(matrix_results.results(both, *places)))
    kinds = [panel.rpartition(", ")[0].removeprefix("LeNet-5, ") for panel in found]
    assert kinds == ["flat, even speeds", "flat, uneven speeds", "sites, even speeds"]
    there = [panel for panel, table in found.items() if "loose" in table.index]
    assert there == ["LeNet-5, flat, uneven speeds, 1 Gbit/s"]


def test_sizes_that_were_not_timed_are_said_not_a_crash():
    table = made()
    trained = table["experiment"] != "cells"
    table = table.assign(workers=table["workers"].where(~trained, 12))
    with pytest.raises(Missing, match="as many workers as were trained"):
        draw(page.pareto, told(matrix_results.results(table)))


def test_the_footing_is_the_device_s():
    profile = device.profile(settings.load({"scale": "desk"}).recipes["matrix"].device)
    shows = page.winners.shows
    assert f"costs {1000 * profile.round_overhead_s:g} ms besides" in shows
    assert "Codecs that Table 1 does not print" in shows
    printed = {"top_k", "dgc", "random_k", "qsgd", "sign_sgd", "terngrad", "power_sgd"}
    for name in compression.names():
        guesses = profile.guesses(compression.load(name))
        assert guesses == (name not in printed | {"identity"})


def test_the_norm_that_qsgd_was_trained_with_is_told():
    recipe = settings.load({"scale": "desk"}).recipes["matrix"]
    norm = compression.load("qsgd", **recipe.options.get("qsgd", {})).norm
    for one in (page.winners_target, page.trained):
        assert f"qsgd rounds to levels of the {norm} norm of a bucket" in one.shows


def test_guessed_prices_are_marked_in_the_ranking(short):
    assert "price of coding" not in page.ranking.make(short, None)
    known = (short["experiment"] == "methods") & (short["metric"] == "cells")
    (row,) = short[known & (short["method"] == "hasty")].to_dict("records")
    marked = pd.concat([short, pd.DataFrame([row | {"metric": "guessed", "value": 1.0}])])
    ranking = page.ranking.make(marked.reset_index(drop=True), None).set_index("method")
    assert ranking["price of coding"].to_dict() == {
        label: "guessed" if label == "hasty" else "" for label in METHODS
    }


def test_tables_say_what_the_rows_say(short):
    ranking = page.ranking.make(short, None).set_index("method")
    assert set(ranking.index) == set(METHODS)
    needed = ranking["rounds to target (at most 30)"]
    assert needed["elsewhere"] == "not trained" and needed["lucky"] == "1 of 3 seeds never"
    accuracy = ranking["accuracy after 6 rounds (%)"]
    assert accuracy["lucky"] == "1 of 3 seeds diverged" and accuracy["hasty"].startswith("94.7")
    lan = ranking["bytes a round and worker (ResNet-50, 16 workers, flat, 1 Gbit/s)"]
    wan = ranking["bytes a round between sites (ResNet-50, 16 workers, sites, 1 Gbit/s)"]
    assert lan.pop("sites only") == ""
    assert lan.map(float).to_dict() == {label: METHODS[label][2] for label in lan.index}
    assert wan.map(float).to_dict() == {label: wan_bytes(label) for label in METHODS}
    rates = page.learning_rates.make(short, None).set_index("method").drop(columns="model")
    assert rates.loc["dense"].tolist() == ["51.00", "55.00", "0.05"]
    assert rates.loc["lucky"].tolist() == ["51.00", "diverged", "0.05"]
    assert "twin" not in rates.index
    untried = short[(short["method"] != "dense") | (short["lr"] != 0.01)]
    rates = page.learning_rates.make(untried, None).set_index("method").drop(columns="model")
    assert rates.loc["dense"].tolist() == ["–", "55.00", "0.05"]
    (lost,) = page.cannot_run.make(short, None).to_dict("records")
    assert lost == dict(reason="star has no sites", methods="sites only", networks="flat", cells=12)
    target = page.target.make(short, None)
    # On slow links sparse is first by far, on fast ones dense and its twin.
    row = target[(target["network"] == "flat, even speeds")].set_index("bandwidth")
    assert (
        row.at["10 Mbit/s", "first"] == "sparse" and row.at["100 Gbit/s", "first"] == "dense, twin"
    )
    assert row.at["10 Mbit/s", "never got there"] == 2
    every = dict(one.split(": ") for one in row.at["1 Gbit/s", "seconds of all"].split("; "))
    assert set(every) == set(METHODS) - {"sites only", "elsewhere"}
    assert every["lucky"] == "1 of 3 seeds never" and every["sparse"] == "46 [36, 57]"
    # Some 11 rounds of 9 s against 22 of 2.08 s; the interval is that of the logarithms.
    assert row.at["1 Gbit/s", "sending everything takes"] == "2.16 times as long"


def test_cards_say_where_a_method_wins(short):
    table = page.standing(short).set_index("label")
    assert table.at["sparse", "most often fastest"] == "flat, even speeds, 10 Mbit/s: 4 of 4 cells"
    assert table.at["hasty", "most often fastest"] == "nowhere"
    assert table.loc["sites only", ranking.ROOMS].tolist() == [
        "hips",
        "top_k",
        "bsp",
        "layer_fusion",
    ]


def test_regret_names_what_it_costs_and_where(short):
    (line,) = page.regrets.make(short, None).to_dict("records")
    assert line["always"] == "sites only" and line["cells that cannot run it"] == 12
    assert line["reaches the target"] == "yes" and line["where"].startswith("LeNet-5, 8 workers, s")
    lost = page.never.make(short, None).set_index("method")
    assert list(lost.index) == ["sites only", "loose"]  # never first, the nearest first
    fast = page.fastest.make(short, None).set_index("cell")
    cell = "ResNet-50, 16 workers, flat, even speeds, 1 Gbit/s"
    assert fast.at[cell, "fastest"] == "sparse" and fast.at[cell, "carried by"] == "ring"
    assert fast.at[cell, "next"] == "dense: 4.33 times" and fast.at[cell, "within 2 %"] == ""


def test_what_is_no_row_stands_beside_the_fastest_row(short):
    (line,) = page.beyond.make(short, None).to_dict("records")
    assert line == {
        "cell": "ResNet-50, 16 workers, flat, even speeds, 1 Gbit/s",
        "group": "policies with codecs",
        "systems": 3,
        "the fastest of them": "ssp with fp16 by one server",
        "the fastest row": "sparse",
        "times its round": 4.0,
    }


def test_what_there_is_is_counted():
    found = page.extent.make(told(matrix_results.results(made(residual=True))), None)
    counts = dict(zip(found["what"], map(float, found["how many"]), strict=True))
    assert counts["methods"] == len(METHODS) and counts["systems"] == 21
    # Of LeNet-5, six classes with three seeds and two rates each; ResNet-50 has two classes.
    assert counts["classes trained with LeNet-5"] == 6 and counts["trainings of LeNet-5"] == 18
    assert counts["trainings of LeNet-5 that tried a rate"] == 12
    assert counts["trainings of ResNet-50"] == counts["trainings of ResNet-50 that tried a rate"]
    assert counts["cells"] + counts["cells that cannot run"] == len(METHODS) * 2 * 2 * 2 * 3
    assert counts["processor seconds, ResNet-50, 16 workers between sites, asked again"] == 0.05


def test_one_method_by_two_names_is_named_once():
    seconds = {"local": 1.0, "federated": 1.0, "other": 1.0, "slower": 1.01}
    alike = {"local": "local", "federated": "local", "slower": "local", "other": "other"}
    assert list(pictures._once(seconds, alike)) == ["local", "other", "slower"]


def test_what_answers_are_worth_and_who_stays_first(short):
    worth = page.worth.make(short, None).set_index("question")
    assert list(worth["next best"]) == ["plink: +1.0 %", "top_k: -10.0 %", "layer_wise: +25.0 %"]
    assert list(worth["plain"]) == ["ring: +10.0 %", "identity: 3 times as long", "the same"]
    assert set(worth["cell"]) == {"ResNet-50, 16 workers, flat, even speeds, 1 Gbit/s"}
    there = page.worth_to_target.make(short, None)
    assert there[["first", "next best"]].values.tolist() == [["dense", "ring: +20.0 %"]]
    (line,) = page.steadiness.make(short, None).to_dict("records")
    assert (line["cells"], line["stays"], line["first in"]) == (1, 0, "round time")
    assert (line["coding twice as dear"], line["latency"]) == ("1: dense (1.5 times)", "")
    # Its tile is pale, and no other.
    tiles = pictures.first_rounds(short).query("status == 'ok'")
    (pale,) = set(tiles.loc[tiles["value"] == 0, CELL].itertuples(index=False, name=None))
    assert pale == ("resnet50", "flat", "even", 16, 1e9)


def test_what_the_default_of_torchs_hook_leaves(short, nobody, monkeypatch):
    """At 1 Gbit/s, plain values need 10 to 12 rounds of 9 s."""

    def default(rows):
        found = page.warm_up.make(rows, None)
        assert set(found["model"]) == {"LeNet-5"} and len(found) == 2 * 3
        here = found[(found["network"] == "flat") & (found["bandwidth"] == "1 Gbit/s")]
        return here[["dense", "hook, by default"]].values.tolist()

    ((plain, least),) = default(short)
    assert plain == least and plain.startswith("99")  # 11 rounds of 9 s
    monkeypatch.setattr(page, "WARM_UP", 10)
    assert [least for _, least in default(short)] == ["at least 90"]
    # Whoever never reaches the target with plain values does not before the hook begins.
    assert default(nobody) == [["3 of 3 seeds never", "at least 90"]]
    monkeypatch.setattr(page, "HOOK", "nobody's")
    with pytest.raises(Missing, match="dense and nobody's are not among"):
        page.warm_up.make(short, None)


def test_tiles_name_the_fastest_first_and_of_equals_whoever_is_first_most_often():
    cells = [
        (dict(k=1), dict(A=2.0, B=1.0)),  # a tie, as their seeds say
        (dict(k=2), dict(C=1.0, A=1.0005)),
        (dict(k=3), dict(A=1.0)),
        (dict(k=4), {}),
    ]
    lines = pictures._in_order(cells, dict(method="nobody"))
    assert [(at["k"], at["method"]) for at in lines] == [
        (1, "B"), (1, "A"), (2, "A"), (2, "C"), (3, "A"), (4, "nobody"),
    ]  # fmt: skip
