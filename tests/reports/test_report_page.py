from __future__ import annotations

import json
import re
import shlex
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
import report_site
from report_site import check_links, lead, read

from slowlink.methods import compression
from slowlink.reports import artifacts, html, methods
from slowlink.reports.charts import target
from slowlink.reports.verdicts import COLUMNS
from slowlink.testbed import results as tidy
from slowlink.workflow import documents, settings

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
    assert sum(path.stat().st_size for path in files) < 1.5 * MB * len(documents.names())
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
    wings = settings.wings().values()
    assert kinds["figure"] == sum(len(wing.figures) for wing in wings)
    assert kinds["table"] == sum(len(wing.tables) for wing in wings)


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
    main = judged.loc[judged["headline"] != "", "verdict"]
    impossible = judged[judged["verdict"] == "impossible as printed"]
    assert len(impossible)
    among_open = ["undecided", "depends on the reading", "not comparable", "not run here"]
    expected = {
        "Holds": (main == "holds").sum(),
        "Off": (main == "direction only").sum(),
        "Fails": main.isin(["fails", "contradicts itself"]).sum(),
        "Impossible": len(impossible),
        "Open": main.isin(among_open).sum(),
    }
    told = re.findall(r'<h3 id="h-outcome-[^"]*">([^(<]+) \((\d+)\)</h3>', front.text)
    assert told == [(name, str(count)) for name, count in expected.items() if count]
    for statement in judged.loc[judged["headline"] != "", "headline"]:
        # A percent sign never begins a line.
        assert statement.replace("'", "&#39;").replace(" %", "\u00a0%") in front.text
    for row in impossible.itertuples():
        assert f"documents/{row.document}.html#row-{row.id}" in front.links
    assert f"checked {len(once(judged))} printed claims" in front.text
    for verdict, count in once(judged)["verdict"].value_counts().items():
        assert f"<strong>{count}</strong> {verdict}" in front.text


def once(judged):
    """Entries of one printed number that come out alike, counted once."""
    return judged.drop_duplicates(["number", "verdict"])


def test_numbers_of_the_scoreboard_lead_to_the_claims_that_they_count(built_site, pages):
    _, judged = built_site
    links = [link for link in pages["index.html"].links if "?verdict=" in link]
    counted = re.findall(
        r'\?verdict=([^"#]*)#claims">(?:<span.*?</span>)?(?:<strong>)?(\d+)<',
        (pages["index.html"].text),
    )
    assert len(counted) == len(links)
    pagewise = [(link.partition("?")[0], *one) for link, one in zip(links, counted, strict=True)]
    for page, query, count in pagewise:
        counted_once = {
            (row["data-number"], row["data-verdict"])
            for row in pages[page].rows()
            if row["data-verdict"] in unquote(query).split(",")
        }
        assert len(counted_once) == int(count)
    firsts = [(unquote(query), int(count)) for page, query, count in pagewise[:5]]
    kinds = judged["kind"].isin(["value", "ordering", "derived"])
    assert (
        dict(firsts)["fails,contradicts itself"]
        == once(judged[kinds])["verdict"].isin(["fails", "contradicts itself"]).sum()
    )
    by_document = [int(count) for page, _, count in pagewise if page != "claims.html"]
    assert sum(by_document) == sum(count for _, count in firsts)


# A document --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", documents.names())
def test_a_document_s_page_has_all_its_figures_and_tables(name, pages):
    text, wing = pages[f"documents/{name}.html"].text, documents.load(name)
    assert "Not drawn" not in text and "Not made" not in text
    assert text.count("<svg") == len(wing.figures)
    titles = [unescape(title) for title in re.findall(r'<h3 id="h-.*?-.*?">(.*?)</h3>', text)]
    assert [title for title in titles if title in {one.title for one in wing.shown.values()}] == [
        one.title for one in wing.shown.values()
    ]
    for item in wing.shown:
        assert f"snakemake --cores 2 {name}_{target(item)}</code>" in text


@pytest.mark.parametrize("name", documents.names())
def test_files_are_those_of_the_targets(name, built_site, pages, made):
    folder, text = built_site[0], pages[f"documents/{name}.html"].text
    for kind, suffix in (("figures", "svg"), ("tables", "csv")):
        for file in sorted((made / name / kind).glob("*")):
            copy = f"{kind}/{name}_{file.stem}.{suffix}"
            assert (folder / copy).read_bytes() == file.read_bytes()
            assert f'href="../{copy}" download' in text
    wing = documents.load(name)
    assert len(list((made / name).glob("*/*"))) == len(wing.shown)


def test_words_of_data_and_seeds_are_those_of_the_rows(pages):
    text = pages["documents/sketch_fusion.html"].text
    assert "computed, measured, simulated" in text and "3 seeds" in text
    # Faults are drawn by seed, but nothing is trained and no interval rests on data.
    assert "model trained: resnet50" not in pages["documents/rat.html"].text
    for words in ("Fashion-MNIST", "&lt;b&gt;2.13&lt;/b&gt;", "3 jobs, 12 s in all"):
        assert words in pages["data.html"].text


def test_claims_stand_on_their_document_s_page_and_all_together(built_site, pages):
    folder, judged = built_site
    for name, mine in judged.groupby("document"):
        found = pages[f"documents/{name}.html"].rows()
        assert [row["id"].removeprefix("row-") for row in found] == list(mine["id"])
        assert [row["data-verdict"] for row in found] == list(mine["verdict"])
    every = pages["claims.html"].rows()
    assert [row["id"].removeprefix("row-") for row in every] == list(judged["id"])
    assert not any("hidden" in row for row in every), "without scripts everything shows"
    saved = pd.read_csv(folder / "verdicts.csv", dtype=str, keep_default_na=False)
    assert list(saved.columns) == COLUMNS and list(saved["reason"]) == list(judged["reason"])


def test_every_claim_names_a_command_that_exists(built_site, pages):
    targets = {"verdicts"}
    for name in documents.names():
        targets |= {name} | {f"{name}_{one}" for one in documents.load(name).targets}
    told = re.findall(r"<small><code>([^<]+)</code></small>", pages["claims.html"].text)
    assert len(told) == len(built_site[1])
    for command in told:
        tool, *_, what = shlex.split(unescape(command))
        if tool == "pytest":
            assert (ROOT / what.partition("::")[0]).is_file(), what
        else:
            assert what in targets, command
    table4 = built_site[1].query("document == 'sketch_fusion' and where == 'Table 4'")
    assert told.count("snakemake --cores 2 sketch_fusion_table4") >= len(table4) > 0
    figure7 = built_site[1].query("document == 'rat' and where == '§5.2, Figure 7'")
    assert told.count("snakemake --cores 2 rat_figure7") >= len(figure7) > 0


def test_figures_come_with_the_rows_behind_them(built_site, pages, worlds):
    folder, page = built_site[0], pages["documents/rat.html"]
    for name, item in documents.load("rat").shown.items():
        section = page.text.split(f'id="h-rat-{name}"')[1].split("</section>")[0]
        files = re.findall(r'href="\.\./([^"#]+)" download', section)
        kinds = {Path(file).suffix for file in files}
        assert kinds == ({".csv", ".svg"} if item.kind == "figure" else {".csv"})
    behind = pd.read_csv(folder / "data" / "rat_figure6.csv")
    mine = worlds["rat"].query("experiment == 'figure6' and status == 'ok'")
    heads = [name for name in behind if name.split(" (")[0] in set(mine["metric"])]
    values = np.sort(behind[heads].to_numpy().ravel())
    np.testing.assert_allclose(
        values[np.isfinite(values)], np.sort(mine["value"].dropna()), rtol=1e-5
    )


def test_plain_tables_align_numbers_and_mark_what_is_absent(built_site, pages):
    text = pages["documents/rat.html"].text
    table = re.search(r'aria-label="Table 1: traffic.*?</table>', text, re.DOTALL).group()
    heads = re.findall(r"<th scope=\"col\"( class=\"num\")?>([^<]*)</th>", table)
    saved = pd.read_csv(built_site[0] / "tables" / "rat_table1.csv")
    assert [name for _, name in heads] == list(saved.columns)
    assert {name for numeric, name in heads if not numeric} == {"exchange", "shape", "differs"}
    assert table.count("<tr>") == 1 + len(saved)
    absent = saved.drop(columns="differs").isna().to_numpy().sum()
    assert absent and table.count(">–</td>") == absent


# Figures and rows --------------------------------------------------------------------------------


def test_ink_and_palette_follow_the_page(built_site, pages):
    drawn = "".join(re.findall(r"<svg.*?</svg>", pages["documents/rat.html"].text, re.DOTALL))
    assert "currentColor" in drawn and "var(--blue, #0072b2)" in drawn
    assert "#1f2328" not in drawn
    css = (built_site[0] / "assets" / "report.css").read_text()
    assert "prefers-color-scheme: dark" in css and "@media print" in css


def _rows(*values: tuple) -> pd.DataFrame:
    base = dict(document="x", experiment="e", exchange="ring", compression="top_k", seed=1)
    base |= dict(synchronization="bsp", scale="desk", evidence="simulated")
    named = (
        base | dict(case=case, workers=workers, metric=metric, value=value, unit=unit)
        for case, workers, metric, value, unit in values
    )
    return tidy.frame([tidy.Row(**one) for one in named])


def test_rows_behind_a_figure_have_a_column_a_metric():
    table = artifacts.wide(
        _rows(("a", 4, "time", 1.5, "s"), ("b", 8, "time", 2.5, "s"), ("b", 8, "share", 0.5, "1"))
    )
    assert table.columns.tolist() == ["workers", "share", "time (s)"]
    assert table.fillna(-1).values.tolist() == [[4, -1, 1.5], [8, 0.5, 2.5]]


def test_rows_with_the_same_place_stay_apart():
    table = artifacts.wide(_rows(("a", 4, "time", 1.5, "s"), ("a", 4, "time", 2.5, "s")))
    assert table["value"].tolist() == [1.5, 2.5] and "metric" in table


def test_cases_are_named_where_nothing_else_tells_them_apart():
    several = [(f"of {n}", n, "time", n, "s") for n in (4, 8)]
    assert artifacts.wide(_rows(*several)).columns.tolist() == ["workers", "time (s)"]
    more = artifacts.wide(_rows(*several, ("with 8", 8, "time", 7, "s")))
    assert more.columns.tolist() == ["case", "workers", "time (s)"]
    only = artifacts.wide(_rows(("a", 4, "time", 1, "s"), ("b", 4, "time", 2, "s")))
    assert only.values.tolist() == [["a", 1], ["b", 2]]


# What is missing or wrong ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rat(rat_rows, tmp_path_factory):
    """RAT's verdicts, and its chapter without the results of two experiments."""
    judged = report_site.judged("rat", rat_rows)
    few = rat_rows[~rat_rows["experiment"].isin(["packet", "figure6"])]
    return (
        judged,
        few,
        report_site.chapter("rat", few, judged, tmp_path_factory.mktemp("few") / "rat"),
    )


@pytest.mark.slow
def test_failed_runs_and_missing_experiments_are_shown(rat, tmp_path):
    judged, few, chapter = rat
    broken = few.copy()
    told = ["failed", "diverged at round 7", float("nan")]
    broken.loc[few["experiment"] == "latency", ["status", "reason", "value"]] = told
    folder = report_site.write(tmp_path / "r", [report_site.part(chapter, broken, judged)])
    data = (folder / "data.html").read_text()
    assert "diverged at round 7" in data and "No run failed" not in data
    text = (folder / "documents" / "rat.html").read_text()
    lacking = [
        one for one in chapter.items.values() if {"packet", "figure6"} & set(one.experiments)
    ]
    assert "Not drawn: no results of experiment &#39;figure6&#39;" in text
    assert "Not drawn: no results of experiment &#39;packet&#39;" in text
    assert 2 <= len(re.findall("Not (?:drawn|made): ", text)) <= len(lacking)
    assert not (folder / "figures" / "rat_figure6.svg").exists()
    # Without a matrix its pages are left out.
    assert not (folder / "matrix.html").exists() and not (folder / "advice.html").exists()
    check_links(folder)


@pytest.mark.slow
def test_a_report_replaces_the_old_one_whole(rat, tmp_path, monkeypatch):
    judged, few, chapter = rat
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "stale.txt").write_text("old")
    (folder / "index.html").write_text("old page")

    def stumble(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(html, "_search", stumble)
        with pytest.raises(RuntimeError, match="killed"):
            report_site.write(folder, [report_site.part(chapter, few, judged)])
    assert (folder / "index.html").read_text() == "old page"
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    report_site.write(folder, [report_site.part(chapter, few, judged)])
    assert not (folder / "stale.txt").exists()
    assert (folder / "index.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_verdicts_without_details_are_refused(rat, tmp_path):
    judged, few, chapter = rat
    with pytest.raises(ValueError, match="verdicts lack .*bound"):
        report_site.write(tmp_path / "r", [report_site.part(chapter, few, judged[COLUMNS])])


@pytest.mark.slow
def test_a_report_of_a_run_that_goes_on_says_what_it_waits_for(rat, tmp_path):
    judged, few, chapter = rat
    waits = html.Waits(["GeoMX", "Matrix"], "12 min")
    folder = report_site.write(tmp_path / "r", [report_site.part(chapter, few, judged)], waits)
    front = folder / "index.html"
    assert "GeoMX and Matrix" in front.read_text() and "12 min" in front.read_text()
    assert front.stat().st_mtime == 0  # so that Snakemake knows it is not the last
    check_links(folder)
    nothing = report_site.write(tmp_path / "s", [], waits)
    assert "12 min" in (nothing / "index.html").read_text()
    check_links(nothing)


@pytest.mark.slow
def test_a_document_without_figures_or_tables_keeps_its_claims(rat, tmp_path):
    judged, few, chapter = rat
    bare = html.Chapter("rat", {}, tmp_path, chapter.claims)
    folder = report_site.write(tmp_path / "r", [report_site.part(bare, few, judged)])
    text = (folder / "documents" / "rat.html").read_text()
    assert "<svg" not in text and text.count('id="row-RAT-') == len(judged)
    check_links(folder)


# Methods -----------------------------------------------------------------------------------------


def test_every_method_has_a_card_that_says_what_it_sends_and_how_to_run_it(pages):
    for room, (module, _) in methods.ROOMS.items():
        for name in module.names():
            page = pages[f"methods/{room}-{name}.html"]
            assert f"snakemake --cores 2 matrix --config only={name}" in page.text
            assert f"methods/{room}/{name}.py" in page.text
            assert f"methods/{room}-{name}.html" in pages["methods.html"].links
            for words in ("What it sends", "What it costs", "How to use it"):
                assert words in page.text
    lpsp = pages["methods/synchronization-lpsp.html"]
    assert "What the documents say of it" in lpsp.text and lpsp.rows()


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
    sys.modules.pop("slowlink.methods.compression.dummy")
    assert cards["dummy"].sends.equals(cards["fp16"].sends)
    assert cards["dummy"].page == "methods/compression-dummy.html"
