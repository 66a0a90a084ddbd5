from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
import rat_results
import sketch_fusion_results
from geomx_results import RECIPE

from reports import html, papers
from reports.verdicts import COLUMNS, detail

VOID = {"meta", "link", "input", "br", "path", "use", "rect"}
PROVENANCE = {
    "scale": "desk",
    "seeds": [0, 1, 2],
    "versions": {"python": "3.11", "torch": "<b>2.13</b>"},
    "durations": {"geomx_train": "3 jobs, 12 s in all"},
}


class Page(HTMLParser):
    """Collects what a browser would act on, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag != "use":
            self.fetched += [
                attributes[name]
                for name in ("src", "srcset", "href", "xlink:href")
                if name in attributes
            ]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open and self._open.pop() == tag, f"</{tag}> closes another tag"


@pytest.fixture(scope="module")
def built(geomx_claims, desk_results, tmp_path_factory):
    judged = detail(geomx_claims, desk_results, RECIPE, "desk", {})
    folder = tmp_path_factory.mktemp("report") / "desk"
    path = html.build(desk_results, judged, {"geomx": RECIPE}, PROVENANCE, folder)
    return path, judged, Page(path.read_text(encoding="utf-8"))


def test_page_opens_offline_and_every_link_leads_somewhere(built):
    path, _, page = built
    text = path.read_text(encoding="utf-8")
    assert page.fetched == ["data:,"]
    assert "@import" not in text and not re.findall(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids)), "ids must be unique, figures' too"
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids, link
        elif not link.startswith("http"):
            assert (path.parent / link).is_file(), link
    for prefix in re.findall(r"(?:url\(#|xlink:href=\"#)([^)\"]+)", text):
        assert prefix in page.ids


def test_page_shows_every_claim_with_its_verdict_and_reason(built):
    path, judged, page = built
    rows = [
        attributes for tag, attributes in page.tags if tag == "tr" and "data-verdict" in attributes
    ]
    assert [row["id"].removeprefix("row-") for row in rows] == list(judged["id"])
    assert [row["data-verdict"] for row in rows] == list(judged["verdict"])
    assert not any("hidden" in row for row in rows), "without scripts everything shows"
    saved = pd.read_csv(path.parent / "verdicts.csv", dtype=str, keep_default_na=False)
    assert list(saved.columns) == COLUMNS and list(saved["reason"]) == list(judged["reason"])


def test_page_has_every_part(built):
    path, judged, _ = built
    text = path.read_text(encoding="utf-8")
    for target in ("table1", "table2", "figure4", "figure6", "sensitivity", "mixed"):
        assert f"snakemake --cores 2 geomx_{target}" in text
    assert text.count("<svg") == 6 and "Not drawn" not in text
    for statement in judged.loc[judged["headline"] != "", "headline"]:
        assert statement.replace("'", "&#39;") in text
    assert "small_resnet" in text and "3 seeds" in text
    for words in (
        "Fashion-MNIST",
        "&lt;b&gt;2.13&lt;/b&gt;",
        "3 jobs, 12 s in all",
        "No run failed",
    ):
        assert words in text


def test_page_is_accessible(built):
    path, _, page = built
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h\d", tag)]
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(headings, headings[1:], strict=False))
    for tag, attributes in page.tags:
        if attributes.get("class", "").startswith("scroll"):
            assert attributes["tabindex"] == "0" and attributes["aria-label"]
        if tag == "svg":
            assert attributes["aria-hidden"] == "true"
        if tag == "figure":
            assert {attributes["aria-labelledby"], attributes["aria-describedby"]} <= set(page.ids)
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text and 'lang="en"' in text


def test_ink_and_palette_follow_the_page(built):
    path, _, _ = built
    drawn = "".join(re.findall(r"<svg.*?</svg>", path.read_text(encoding="utf-8"), re.DOTALL))
    assert "currentColor" in drawn and "var(--blue, #0072b2)" in drawn
    assert "#1f2328" not in drawn


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
    text = html.build(results, judged, RECIPE, PROVENANCE, tmp_path / "r").read_text()
    assert "diverged at round 7" in text and "No run failed" not in text
    assert "Not drawn: no results of experiment" in text and text.count("<svg") == 5


def test_a_report_replaces_the_old_one_whole(
    built, geomx_claims, desk_results, tmp_path, monkeypatch
):
    _, judged, _ = built
    few = desk_results[desk_results["experiment"] == "table1"]
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "stale.txt").write_text("old")
    (folder / "index.html").write_text("old page")

    def stumble(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(html, "_render", stumble)
        with pytest.raises(RuntimeError, match="killed"):
            html.build(few, judged, RECIPE, PROVENANCE, folder)
    assert (folder / "index.html").read_text() == "old page"
    assert [p.name for p in tmp_path.iterdir()] == ["report"]
    html.build(few, judged, RECIPE, PROVENANCE, folder)
    assert not (folder / "stale.txt").exists()
    assert Path(folder / "index.html").read_text().startswith("<!doctype html>")


def test_verdicts_without_details_are_refused(built, desk_results, tmp_path):
    _, judged, _ = built
    with pytest.raises(ValueError, match="verdicts lack .*bound"):
        html.build(desk_results, judged[COLUMNS], RECIPE, PROVENANCE, tmp_path / "r")


@pytest.fixture(scope="module")
def both(geomx_claims, desk_results, rat_claims, rat_rows, tmp_path_factory):
    """The page of two documents."""
    recipes = {"geomx": RECIPE, "rat": rat_results.RECIPE}
    results = pd.concat([desk_results, rat_rows], ignore_index=True)
    judged = pd.concat(
        [
            detail(geomx_claims, desk_results, RECIPE, "desk", {}),
            detail(rat_claims, rat_rows, rat_results.RECIPE, "desk", {}),
        ],
        ignore_index=True,
    )
    folder = tmp_path_factory.mktemp("both") / "desk"
    path = html.build(results, judged, recipes, PROVENANCE, folder)
    return path, judged, Page(path.read_text(encoding="utf-8"))


def test_two_documents_stand_on_one_page(both):
    path, judged, page = both
    text = path.read_text(encoding="utf-8")
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link.startswith("http") or (
            link[1:] in page.ids if link[0] == "#" else (path.parent / link).is_file()
        ), link
    assert [name for name in page.ids if name in ("geomx", "rat")] == ["geomx", "rat"]
    assert text.count("<svg") == sum(len(papers.load(p).FIGURES) for p in ("geomx", "rat"))
    assert "Not drawn" not in text and "Not made" not in text
    rows = [a["id"] for tag, a in page.tags if tag == "tr" and "data-verdict" in a]
    assert rows == [f"row-{name}" for name in judged["id"]] and len(rows) == 123 + 39
    for name in papers.load("rat").TABLES:
        assert f"tables/rat_{name}.csv" in text
    # Faults are drawn by seed, but nothing is trained and no interval rests on data.
    assert "model trained: resnet50" not in text


def test_sketch_fusion_fills_its_page(skf_claims, skf_rows, tmp_path):
    recipe, reason = sketch_fusion_results.RECIPE, "ImageNet is not to be had"
    judged = detail(skf_claims, skf_rows, recipe, "desk", {"desk": {"SKF-F6b": reason}})
    folder = tmp_path / "r"
    path = html.build(skf_rows, judged, {"sketch_fusion": recipe}, PROVENANCE, folder)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert text.count("<svg") == len(papers.load("sketch_fusion").FIGURES)
    assert "Not drawn" not in text and "Not made" not in text
    for name in papers.load("sketch_fusion").TABLES:
        assert f"tables/sketch_fusion_{name}.csv" in text
    # A figure's target has its name; what it rests on may come from several experiments.
    assert "snakemake --cores 2 sketch_fusion_figure1<" in text.replace("&#34;", "")
    assert "computed, measured, simulated" in text


def test_plain_tables_align_numbers_and_mark_what_is_absent(both):
    path, _, _ = both
    text = path.read_text(encoding="utf-8")
    table = re.search(r'aria-label="Table 1: traffic.*?</table>', text, re.DOTALL).group()
    heads = re.findall(r"<th scope=\"col\"( class=\"num\")?>([^<]*)</th>", table)
    saved = pd.read_csv(path.parent / "tables" / "rat_table1.csv")
    assert [name for _, name in heads] == list(saved.columns)
    assert {name for numeric, name in heads if not numeric} == {"exchange", "shape", "differs"}
    assert table.count("<tr>") == 1 + len(saved)
    absent = saved.drop(columns="differs").isna().to_numpy().sum()
    assert absent and table.count(">–</td>") == absent


def test_a_document_without_figures_or_tables_keeps_its_claims(
    geomx_claims, desk_results, tmp_path, monkeypatch
):
    judged = detail(geomx_claims, desk_results, RECIPE, "desk", {})
    monkeypatch.setattr(papers, "names", lambda: ["rat"])
    text = html.build(desk_results, judged, RECIPE, PROVENANCE, tmp_path / "r").read_text()
    assert "<svg" not in text and text.count('id="row-GEO-') == 123


def test_a_table_that_cannot_be_made_says_why(rat_claims, rat_rows, tmp_path):
    results = rat_rows[rat_rows["experiment"] != "packet"]
    judged = detail(rat_claims, results, rat_results.RECIPE, "desk", {})
    path = html.build(results, judged, rat_results.RECIPE, PROVENANCE, tmp_path / "r")
    text = path.read_text()
    assert "Not made: no results of experiment" in text and "Not drawn: no results" in text
    Page(text)
