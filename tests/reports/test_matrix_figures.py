"""The matrix's figures and tables: drawn from any results, and saying what the rows say."""

import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.patches import Polygon

from reports import figures, matrix
from reports.papers import matrix as page
from testbed import results
from testbed.training import device
from tests.reports.matrix_results import METHODS, PLACES, made, wan_bytes


def condensed(**how):
    return results.frame(matrix.condense(made(**how), *PLACES))


@pytest.fixture(scope="module")
def short():
    return condensed()


@pytest.fixture(scope="module")
def nobody():
    return condensed(reach=False)


@pytest.mark.parametrize("name", page.FIGURES)
def test_every_figure_is_drawn_and_the_same_each_time(name, tmp_path, short):
    paths = [figures.save(page.FIGURES[name](short, []), tmp_path / f"{i}.svg") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert not plt.get_fignums()


def test_all_is_made_without_anyone_at_the_target(nobody):
    for table in page.TABLES.values():
        assert len(table(None, nobody))
    for figure in page.FIGURES.values():
        assert figure(nobody, []).axes


@pytest.mark.parametrize("name", ["winners_target", "pareto"])
def test_figures_of_training_say_that_there_is_none(name):
    with pytest.raises(ValueError, match="no method of the matrix was trained"):
        page.FIGURES[name](condensed(trained=False), [])


def test_page_and_targets_name_what_there_is():
    assert {item.name for item in page.PAGE if item.kind == "figure"} == set(page.FIGURES)
    assert {item.name for item in page.PAGE if item.kind == "table"} == set(page.TABLES)


def test_a_tile_has_the_numbers_of_its_winners_and_two_colours_where_they_tie(short):
    fig = page.winners(short)
    flat = fig.axes[0]
    legend = {int(t.get_text().split()[0]): t.get_text().split("  ")[1]
              for t in fig.legends[0].get_texts()}  # fmt: skip
    texts = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text()
             for t in flat.texts}  # fmt: skip
    times = matrix.metric(short, "round_time")[matrix.qualified(short)]
    first = matrix.best(times)
    tied = 0
    for x, workers in enumerate((8, 16)):
        for y, bandwidth in enumerate((1e7, 1e9, 1e11)):
            row = first.loc[("resnet50", "flat/even", workers, bandwidth)]
            shown = {legend[int(code)] for code in texts[x, y].rstrip("+").split("=")}
            assert shown == set(row.index[row])
            tied += len(shown) > 1
    patches = [patch for patch in flat.patches if isinstance(patch, Polygon)]
    assert tied and len(patches) == 6 + tied


def test_profiles_have_few_lines_a_panel_and_every_method_once(short):
    fig = page.profiles(short)
    named = [line.get_label() for ax in fig.axes for line in ax.lines]
    assert sorted(named) == sorted(matrix.qualified(short))
    assert all(len(ax.lines) <= 8 for ax in fig.axes)
    many = made(trained=False)
    many = many[many["case"] == "dense"]
    labels = [f"codec {i}" for i in range(17)]
    rows = [row for label in labels for row in many.assign(case=label).to_dict("records")]
    table = results.frame(results.Row(**row) for row in rows)
    told = dict.fromkeys(labels, "codec"), {}, {}, [], *PLACES[4:]
    table = results.frame(matrix.condense(table, *told))
    score = matrix.score(matrix.metric(table, "round_time"))
    panels = page._panels(table, score)
    assert [len(labels) for _, labels in panels] == [6, 6, 5]
    assert sorted(sum((mine for _, mine in panels), [])) == sorted(labels)


def test_bars_add_up_to_the_round(short):
    ax = page.parts(short).axes[0]
    labels = [text.get_text() for text in ax.get_yticklabels()]
    ends = {}
    for bar in ax.patches:
        at = labels[round(bar.get_y() + bar.get_height() / 2)]
        ends[at] = max(ends.get(at, 0), bar.get_x() + bar.get_width())
    times = matrix.metric(short, "round_time").loc[("resnet50", "flat/even", 16, 1e9)].dropna()
    most = 4 * times[labels].median()
    assert labels == list(times.sort_values(kind="stable").index)
    assert ends == pytest.approx({label: min(times[label], most) for label in labels})


def test_the_front_is_marked(short):
    table = page._points(short)["flat/even"]
    # hasty is quickest, sends least and is the most accurate.
    assert list(table.index[table["front"]]) == ["hasty"]
    assert table.at["dense", "bytes"] == 1e9
    assert math.isfinite(table["low"].iloc[0])
    assert "lucky" not in table.index  # one seed diverged


def test_points_are_of_methods_whose_training_holds_there_and_between_sites_of_what_leaves(short):
    tables = page._points(short)
    assert "loose" in tables["flat/even"].index and "loose" not in tables["sites/even"].index
    sites = tables["sites/even"]["bytes"]
    assert sites.to_dict() == {label: wan_bytes(label) for label in sites.index}
    labels = [ax.get_xlabel() for ax in page.pareto(short).axes]
    assert sum("leave the sites" in label for label in labels) == 1
    # Of networks with uneven speeds, only that where policies were trained is shown.
    table = made()
    cells = table[table["experiment"] == "cells"]
    uneven = cells.assign(variant=cells["variant"].str.replace("even", "uneven"))
    places = [*PLACES]
    places[2] = places[2] | {"loose": "flat/uneven"}
    both = matrix.condense(pd.concat([table, uneven]), *places)
    tables = page._points(results.frame(both))
    assert set(tables) == {"flat/even", "sites/even", "flat/uneven"}
    assert [where for where, table in tables.items() if "loose" in table.index] == ["flat/uneven"]


def test_sizes_that_were_not_timed_are_said_not_a_crash():
    table = made()
    trained = table["experiment"] != "cells"
    table = table.assign(workers=table["workers"].where(~trained, 12))
    with pytest.raises(ValueError, match="as many workers as were trained"):
        page.pareto(results.frame(matrix.condense(table, *PLACES)))


def test_the_footing_is_the_device_s():
    coding, known = page.DEVICE.compression, page._FOOTING
    assert device.profile("v100_matrix") == page.DEVICE and "costs 3 ms besides" in known
    for like, names in {
        "sign_sgd": ["fp16", "ef_sign_sgd"],
        "terngrad": ["int8_blocks", "two_bit"],
        "top_k": ["bisparse", "dgt", "sparse_fp32", "sparse_int8"],
        "dgc": ["other"],
    }.items():
        assert all(coding[name] == coding[like] for name in names)
    assert coding["count_sketch"].rate == pytest.approx(coding["qsgd"].rate / 5)
    slowest = max(coding.values(), key=lambda one: one.fixed_s)
    assert slowest.fixed_s == coding["dgc"].fixed_s


def test_tables_say_what_the_rows_say(short):
    ranking = page.TABLES["ranking"](None, short).set_index("method")
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
    rates = page.TABLES["learning_rates"](None, short).set_index("method")
    assert rates.loc["dense"].tolist() == ["51.00", "55.00", "0.05"]
    assert rates.loc["lucky"].tolist() == ["51.00", "diverged", "0.05"]
    assert "twin" not in rates.index
    untried = short[(short["case"] != "dense") | (short["variant"] != "lr=0.01")]
    rates = page.TABLES["learning_rates"](None, untried).set_index("method")
    assert rates.loc["dense"].tolist() == ["–", "55.00", "0.05"]
    (lost,) = page.TABLES["cannot_run"](None, short).to_dict("records")
    assert lost == dict(reason="star has no sites", methods="sites only", networks="flat", cells=12)
    target = page.TABLES["target"](None, short)
    # On slow links sparse is first by far, on fast ones dense and its twin.
    row = target[(target["network"] == "flat, even speeds")].set_index("bandwidth")
    assert (
        row.at["10 Mbit/s", "first"] == "sparse" and row.at["100 Gbit/s", "first"] == "dense, twin"
    )
    assert row.at["10 Mbit/s", "not by round 30"] == 2
    every = dict(one.split(": ") for one in row.at["1 Gbit/s", "seconds of all"].split("; "))
    assert set(every) == set(METHODS) - {"sites only", "elsewhere"}
    assert every["lucky"] == "1 of 3 seeds never" and every["sparse"] == "46 [35, 56]"
    # 11 rounds of 9 s against 22 of 2.08 s.
    assert row.at["1 Gbit/s", "sending everything takes"] == "2.16 times as long"


def test_cards_say_where_a_method_wins(short):
    table = page.standing(short).set_index("label")
    assert table.at["sparse", "most often fastest"] == "flat, even speeds, 10 Mbit/s: 4 of 4 cells"
    assert table.at["hasty", "most often fastest"] == "nowhere"
    assert table.loc["sites only", matrix.ROOMS].tolist() == [
        "hips",
        "top_k",
        "bsp",
        "layer_fusion",
    ]
