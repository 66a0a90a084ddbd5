from __future__ import annotations

import json
import re
import shlex
import sys
from html import unescape
from pathlib import Path

import matrix_results
import numpy as np
import pandas as pd
import pytest
import rat_results
import sketch_fusion_results
from geomx_results import RECIPE
from report_site import PROVENANCE, check_links, lead, read

from methods import compression
from reports import html, methods, papers, shown
from reports.verdicts import COLUMNS, detail
from testbed import results as rows

ROOT = Path(__file__).parents[2]
MB = 1e6


@pytest.fixture(scope="module")
def pages(built_site):
    return read(built_site[0])


# The whole folder --------------------------------------------------------------------------------


def test_every_link_leads_somewhere_and_nothing_is_fetched_from_elsewhere(built_site):
    check_links(built_site[0])


def test_the_menu_is_on_every_page_and_says_where_one_is(pages):
    for name, page in pages.items():
        menu = [a for tag, a in page.tags if tag == "a" and "aria-current" in a]
        assert len(menu) == (not re.match("methods/", name)), name
        assert page.text.startswith("<!doctype html>")


def test_the_folder_stays_small(built_site):
    files = [path for path in built_site[0].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5 * MB
    assert not [path for path in files if path.stat().st_size == 0]


def test_search_finds_every_claim_method_table_and_figure(built_site, pages):
    folder, judged = built_site
    text = (folder / "assets" / "search.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("window.searchIndex = ").rstrip().removesuffix(";"))
    for *_, link in index:
        lead(pages, folder, "index.html", link)
    kinds = pd.Series([kind for kind, *_ in index]).value_counts()
    assert kinds["claim"] == len(judged)
    assert kinds["method"] == sum(len(room.names()) for room, _ in methods.ROOMS.values())
    modules = [papers.load(name) for name in ("geomx", "rat", "matrix")]
    shown_there = [item.kind for module in modules for item in module.PAGE]
    assert kinds["figure"] == shown_there.count("figure")
    assert kinds["table"] == shown_there.count("table")


def test_pages_are_accessible_as_far_as_their_text_tells(pages):
    for name, page in pages.items():
        headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
        assert headings.count(1) == 1, name
        assert all(b - a <= 1 for a, b in zip(headings, headings[1:], strict=False)), name
        for tag, attributes in page.tags:
            if attributes.get("class", "").startswith("scroll"):
                assert attributes["tabindex"] == "0" and attributes["aria-label"]
            if tag == "svg":
                assert attributes["aria-hidden"] == "true"
            if tag == "figure":
                named = {attributes["aria-labelledby"], attributes["aria-describedby"]}
                assert named <= set(page.ids)
        assert 'lang="en"' in page.text


# Front page --------------------------------------------------------------------------------------


def test_the_front_page_says_what_came_out(built_site, pages):
    _, judged = built_site
    front = pages["index.html"]
    main = judged[judged["headline"] != ""]
    impossible = judged[judged["verdict"] == "impossible as printed"]
    assert len(impossible)
    expected = {
        "What held": main["verdict"].isin(["holds", "direction only"]).sum(),
        "What did not hold": main["verdict"].isin(["fails", "contradicts itself"]).sum(),
        "What is physically impossible": len(impossible),
        "What stays open": main["verdict"]
        .isin(["undecided", "not comparable", "not run here"])
        .sum(),
    }
    told = re.findall(r'<h3 id="h-what-[^"]*">([^(<]+) \((\d+)\)</h3>', front.text)
    assert told == [(name, str(count)) for name, count in expected.items() if count]
    for statement in judged.loc[judged["headline"] != "", "headline"]:
        assert statement.replace("'", "&#39;") in front.text
    for row in impossible.itertuples():
        assert f"papers/{row.paper}.html#row-{row.id}" in front.links
    assert f">{len(judged)} printed claims" in front.text.replace("\n", " ")
    counts = judged["verdict"].value_counts()
    for verdict, count in counts.items():
        assert re.search(rf"<strong>{count}</strong> {verdict}", front.text)


def test_the_front_page_has_the_map_of_winners_and_the_matrix_s_finding(pages):
    front = pages["index.html"]
    assert "matrix-winners" in front.text and front.text.count("<svg") == 1
    assert "none is fastest everywhere" in front.text and "matrix.html" in front.links


# A document --------------------------------------------------------------------------------------


def test_a_document_s_page_has_every_part(built_site, pages):
    _, judged = built_site
    text = pages["papers/geomx.html"].text
    for target in ("table1", "table2", "figure4", "figure6", "sensitivity", "mixed", "emulated"):
        assert f"snakemake --cores 2 geomx_{target}" in text
    assert "Not drawn" not in text and "Not made" not in text
    for name in ("geomx", "rat"):
        assert pages[f"papers/{name}.html"].text.count("<svg") == len(papers.load(name).FIGURES)
    assert "small_resnet" in text and "3 seeds" in text
    # Faults are drawn by seed, but nothing is trained and no interval rests on data.
    assert "model trained: resnet50" not in pages["papers/rat.html"].text
    for words in ("Fashion-MNIST", "&lt;b&gt;2.13&lt;/b&gt;", "3 jobs, 12 s in all"):
        assert words in pages["data.html"].text


def test_claims_stand_on_their_document_s_page_and_all_together(built_site, pages):
    folder, judged = built_site
    for name, mine in judged.groupby("paper"):
        found = pages[f"papers/{name}.html"].rows()
        assert [row["id"].removeprefix("row-") for row in found] == list(mine["id"])
        assert [row["data-verdict"] for row in found] == list(mine["verdict"])
    every = pages["claims.html"].rows()
    assert [row["id"].removeprefix("row-") for row in every] == list(judged["id"])
    assert not any("hidden" in row for row in every), "without scripts everything shows"
    saved = pd.read_csv(folder / "verdicts.csv", dtype=str, keep_default_na=False)
    assert list(saved.columns) == COLUMNS and list(saved["reason"]) == list(judged["reason"])


def test_every_claim_names_a_command_that_exists(built_site, pages):
    targets = {"verdicts", "matrix"}
    for name in ("geomx", "rat"):
        module = papers.load(name)
        targets |= {name} | {f"{name}_{item}" for item in (*module.TABLES, *module.FIGURES)}
    told = re.findall(r"<small><code>([^<]+)</code></small>", pages["claims.html"].text)
    assert len(told) == len(built_site[1])
    for command in told:
        tool, *_, what = shlex.split(unescape(command))
        if tool == "pytest":
            assert (ROOT / what.partition("::")[0]).is_file(), what
        else:
            assert what in targets, command
    table2 = built_site[1].query("paper == 'geomx' and where == 'Table 2' and kind == 'value'")
    assert told.count("snakemake --cores 2 geomx_table2") >= len(table2) > 0


def test_figures_come_with_their_rows_and_tables_as_csv(built_site, pages, desk_results):
    folder, _ = built_site
    for name in ("geomx", "rat", "matrix"):
        path = "matrix.html" if name == "matrix" else f"papers/{name}.html"
        page = pages[path]
        for item in papers.load(name).PAGE:
            anchor = f"h-{name}-{item.name}{'-table' * (item.kind == 'table')}"
            section = page.text.split(f'id="{anchor}"')[1].split("</section>")[0]
            files = re.findall(r'href="(?:\.\./)?([^"#]+)" download', section)
            kinds = sorted(Path(file).suffix for file in files)
            assert set(kinds) == ({".csv", ".svg"} if item.kind == "figure" else {".csv"})
    behind = pd.read_csv(folder / "data" / "geomx_figure4.csv")
    mine = desk_results[
        (desk_results["experiment"] == "figure4") & (desk_results["status"] == "ok")
    ]
    heads = [name for name in behind if name.split(" (")[0] in set(mine["metric"])]
    values = np.sort(behind[heads].to_numpy().ravel())
    np.testing.assert_allclose(
        values[np.isfinite(values)], np.sort(mine["value"].dropna()), rtol=1e-5
    )


def test_plain_tables_align_numbers_and_mark_what_is_absent(built_site, pages):
    text = pages["papers/rat.html"].text
    table = re.search(r'aria-label="Table 1: traffic.*?</table>', text, re.DOTALL).group()
    heads = re.findall(r"<th scope=\"col\"( class=\"num\")?>([^<]*)</th>", table)
    saved = pd.read_csv(built_site[0] / "tables" / "rat_table1.csv")
    assert [name for _, name in heads] == list(saved.columns)
    assert {name for numeric, name in heads if not numeric} == {"exchange", "shape", "differs"}
    assert table.count("<tr>") == 1 + len(saved)
    absent = saved.drop(columns="differs").isna().to_numpy().sum()
    assert absent and table.count(">–</td>") == absent


def test_sketch_fusion_fills_its_page(skf_claims, skf_rows, tmp_path):
    recipe, reason = sketch_fusion_results.RECIPE, "ImageNet is not to be had"
    judged = detail(skf_claims, skf_rows, recipe, "desk", {"desk": {"SKF-F6b": reason}})
    html.build(skf_rows, judged, {"sketch_fusion": recipe}, PROVENANCE, tmp_path / "r")
    check_links(tmp_path / "r")
    text = (tmp_path / "r" / "papers" / "sketch_fusion.html").read_text(encoding="utf-8")
    assert text.count("<svg") == len(papers.load("sketch_fusion").FIGURES)
    assert "Not drawn" not in text and "Not made" not in text
    for name in papers.load("sketch_fusion").TABLES:
        assert f"tables/sketch_fusion_{name}.csv" in text
    # A figure's target has its name; what it rests on may come from several experiments.
    assert "snakemake --cores 2 sketch_fusion_figure1<" in text.replace("&#34;", "")
    assert "computed, measured, simulated" in text
    # Without a matrix among the results its pages are left out.
    assert not (tmp_path / "r" / "matrix.html").exists()


# Figures and rows --------------------------------------------------------------------------------


def test_ink_and_palette_follow_the_page(built_site, pages):
    drawn = "".join(re.findall(r"<svg.*?</svg>", pages["papers/geomx.html"].text, re.DOTALL))
    assert "currentColor" in drawn and "var(--blue, #0072b2)" in drawn
    assert "#1f2328" not in drawn
    css = (built_site[0] / "assets" / "report.css").read_text()
    assert "prefers-color-scheme: dark" in css and "@media print" in css


def test_lean_figures_keep_what_they_show():
    svg = (
        '<svg>\n <defs><path id="m1" d="M 0 1.23456 \nL 5.000001 -0.0001 \nz"/></defs>\n'
        '<g id="g1"><use xlink:href="#m1" x="3.14159" y="7"/>'
        '<text style="font-family: \'A\', sans-serif; fill: red" transform="rotate(-0 1 2)">'
        "1.23456 a  b</text></g>\n</svg>"
    )
    assert shown.lean(svg) == (
        '<svg><defs><path id="m1" d="M0 1.23L5 0z"/></defs><g>'
        '<use xlink:href="#m1" x="3.14" y="7"/>'
        '<text style="font-family: sans-serif; fill: red">1.23456 a  b</text></g></svg>'
    )


def _rows(*values: tuple) -> pd.DataFrame:
    base = dict(paper="x", experiment="e", exchange="ring", compression="top_k", seed=1)
    base |= dict(synchronization="bsp", scale="desk", evidence="simulated")
    named = (
        base | dict(case=case, workers=workers, metric=metric, value=value, unit=unit)
        for case, workers, metric, value, unit in values
    )
    return rows.frame([rows.Row(**one) for one in named])


def test_rows_behind_a_figure_have_a_column_a_metric():
    table = shown.wide(
        _rows(("a", 4, "time", 1.5, "s"), ("a", 8, "time", 2.5, "s"), ("a", 8, "share", 0.5, "1"))
    )
    assert table.columns.tolist() == ["case", "workers", "share", "time (s)"]
    assert table.fillna(-1).values.tolist() == [["a", 4, -1, 1.5], ["a", 8, 0.5, 2.5]]


def test_rows_with_the_same_place_stay_apart():
    table = shown.wide(_rows(("a", 4, "time", 1.5, "s"), ("a", 4, "time", 2.5, "s")))
    assert table["value"].tolist() == [1.5, 2.5] and "metric" in table


def test_very_many_rows_have_columns_by_case(monkeypatch):
    monkeypatch.setattr(shown, "MANY", 3)
    several = _rows(*((case, n, "time", n, "s") for case in "ab" for n in (4, 8)))
    table = shown.wide(several)
    assert table.columns.tolist() == ["workers", "a: time (s)", "b: time (s)"]
    assert table.values.tolist() == [[4, 4, 4], [8, 8, 8]]


# What is missing or wrong ------------------------------------------------------------------------


def test_failed_runs_and_missing_experiments_are_shown(geomx_claims, desk_results, tmp_path):
    results = desk_results.copy()
    broken = (results["experiment"] == "mixed") & (results["case"] == "mixed")
    results.loc[broken, ["status", "reason", "value"]] = [
        "failed",
        "diverged at round 7",
        float("nan"),
    ]
    results = results[results["experiment"] != "sensitivity"]
    judged = detail(geomx_claims, results, RECIPE, "desk", {})
    folder = html.build(results, judged, RECIPE, PROVENANCE, tmp_path / "r").parent
    data = (folder / "data.html").read_text()
    assert "diverged at round 7" in data and "No run failed" not in data
    text = (folder / "papers" / "geomx.html").read_text()
    assert "Not drawn: no results of experiment" in text
    assert text.count("<svg") == len(papers.load("geomx").FIGURES) - 1
    check_links(folder)


def test_a_report_replaces_the_old_one_whole(geomx_claims, desk_results, tmp_path, monkeypatch):
    few = desk_results[desk_results["experiment"] == "table1"]
    judged = detail(geomx_claims, desk_results, RECIPE, "desk", {})
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "stale.txt").write_text("old")
    (folder / "index.html").write_text("old page")

    def stumble(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(html, "_search", stumble)
        with pytest.raises(RuntimeError, match="killed"):
            html.build(few, judged, RECIPE, PROVENANCE, folder)
    assert (folder / "index.html").read_text() == "old page"
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    html.build(few, judged, RECIPE, PROVENANCE, folder)
    assert not (folder / "stale.txt").exists()
    assert (folder / "index.html").read_text().startswith("<!doctype html>")


def test_verdicts_without_details_are_refused(built_site, desk_results, tmp_path):
    with pytest.raises(ValueError, match="verdicts lack .*bound"):
        html.build(desk_results, built_site[1][COLUMNS], RECIPE, PROVENANCE, tmp_path / "r")


def test_a_document_without_figures_or_tables_keeps_its_claims(
    geomx_claims, desk_results, tmp_path, monkeypatch
):
    judged = detail(geomx_claims, desk_results, RECIPE, "desk", {})
    monkeypatch.setattr(papers, "names", lambda: ["rat"])
    folder = html.build(desk_results, judged, RECIPE, PROVENANCE, tmp_path / "r").parent
    text = (folder / "papers" / "geomx.html").read_text()
    assert "<svg" not in text and text.count('id="row-GEO-') == len(judged)
    check_links(folder)


def test_a_table_that_cannot_be_made_says_why(rat_claims, rat_rows, tmp_path):
    results = rat_rows[rat_rows["experiment"] != "packet"]
    judged = detail(rat_claims, results, rat_results.RECIPE, "desk", {})
    folder = html.build(results, judged, rat_results.RECIPE, PROVENANCE, tmp_path / "r").parent
    text = (folder / "papers" / "rat.html").read_text()
    assert "Not made: no results of experiment" in text and "Not drawn: no results" in text
    check_links(folder)


# Methods -----------------------------------------------------------------------------------------


def test_every_method_has_a_card_that_says_what_it_sends_and_how_to_run_it(pages):
    for room, (module, _) in methods.ROOMS.items():
        for name in module.names():
            page = pages[f"methods/{room}-{name}.html"]
            assert f"snakemake --cores 2 matrix --config only={name}" in page.text
            assert f"methods/{room}/{name}.py" in page.text
            assert f"methods/{room}-{name}.html" in pages["methods.html"].links
            for words in ("What it sends", "What it costs", "Where it wins", "How to use it"):
                assert words in page.text
    bisparse = pages["methods/compression-bisparse.html"]
    assert "What the documents say of it" in bisparse.text and bisparse.rows()


def all_cards():
    return [methods.card(*name) for name in methods.names()]


def test_cards_have_the_codec_s_own_bytes():
    cards = {(card.room, card.name): card for card in all_cards()}
    for name in compression.names():
        sends = cards["compression", name].sends.set_index("tensor")
        told = sends.loc["a matrix, 1024 × 1024"]
        assert told["float32, B"] == 4 * 1024**2
        assert told["payload, B"] == sum(compression.load(name).payload_bytes((1024, 1024)))
    # A vector to each of 7 others and from each, n - 1 one after another never.
    flat = cards["exchange", "allgather"].sends.iloc[0]
    assert (flat["messages"], flat["vectors a worker"]) == (56, 14)
    ring = cards["exchange", "ring"].sends.iloc[0]
    assert (ring["one after another"], ring["vectors a worker"]) == (14, pytest.approx(2 * 14 / 8))
    assert "sites" in cards["exchange", "hips"].sends.iloc[0]["cannot run because"]
    layers = cards["fusion", "layer_wise"].sends
    assert (layers["messages"] == layers["tensors"]).all()
    assert (cards["fusion", "whole_model"].sends["messages"] == 1).all()
    for card in cards.values():
        ran = card.rounds.dropna(subset=["round, s"])
        parts = ran[["computing", "coding", "sending", "waiting"]].sum(axis=1)
        np.testing.assert_allclose(parts, ran["round, s"])


@pytest.mark.parametrize("room", methods.ROOMS)
def test_cards_show_code_that_runs(room):
    for card in all_cards():
        if card.room == room:
            exec(card.load, {})  # our own text, from the card


def test_a_new_file_has_a_card(tmp_path, monkeypatch):
    source = (ROOT / "methods" / "compression" / "fp16.py").read_text()
    (tmp_path / "dummy.py").write_text(source)
    monkeypatch.setattr(compression, "__path__", [*compression.__path__, str(tmp_path)])
    cards = {card.name: card for card in all_cards() if card.room == "compression"}
    sys.modules.pop("methods.compression.dummy")
    assert cards["dummy"].sends.equals(cards["fp16"].sends)
    assert cards["dummy"].page == "methods/compression-dummy.html"


def test_a_card_lists_the_ranks_of_all_that_use_the_method(pages):
    label = next(name for name, (group, *_) in matrix_results.METHODS.items() if group == "system")
    assert label in pages["methods/exchange-hips.html"].text
    assert "No method of the matrix" in pages["methods/exchange-rat.html"].text
