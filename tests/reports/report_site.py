"""A report of made-up results as the targets make it, and as a browser would read it."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from collections.abc import Iterable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pandas as pd

from slowlink.reports import artifacts, html, methods, verdicts
from slowlink.workflow import settings
from slowlink.workflow.verdicts import claims_of

TESTS = Path(__file__).parents[1]
VOID = {"meta", "link", "input", "br", "path", "use", "rect"}
PROVENANCE = {
    "scale": "desk",
    "seeds": [0, 1, 2],
    "versions": {"python": "3.11", "torch": "<b>2.13</b>"},
    "durations": {"geomx_train": "3 jobs, 12 s in all"},
}


# The report of made-up results --------------------------------------------------------------------


def world(name: str) -> ModuleType:
    """The made-up results of a wing: ``results()`` and the ``RECIPE`` they belong to."""
    file = next(TESTS.glob(f"**/{name}_results.py"))
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return importlib.import_module(file.stem)


def judged(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """A verdict for every claim of a document."""
    printed = claims_of(settings.wing_of(name))
    return verdicts.judge(printed, rows, world(name).RECIPE, "desk")


def chapter(
    name: str, rows: pd.DataFrame, verdict_table: pd.DataFrame | None, made: Path
) -> html.Chapter:
    """A wing with the files that the targets of its figures and tables make of these rows."""
    wing = settings.wing_of(name)
    printed = claims_of(wing)
    for kind in ("figures", "tables"):
        (made / kind).mkdir(parents=True)
    for one, figure in wing.figures.items():
        artifacts.write_figure(figure, rows, printed, made / "figures" / f"{one}.svg")
    for one, table in wing.tables.items():
        artifacts.write_table(table, rows, verdict_table, made / "tables" / f"{one}.csv")
    return html.Chapter(name, wing.shown, made, wing.claims)


def part(
    chapter: html.Chapter, rows: pd.DataFrame, verdict_table: pd.DataFrame | None
) -> tuple[Path, html.Part]:
    """A chapter's part of the report, by the folder of its files."""
    folder = chapter.made.with_name(f"{chapter.made.name}-page")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    beside = settings.wing_of(chapter.name).beside
    matrix = beside(rows) if beside else None
    return folder, html.part(chapter, rows, verdict_table, matrix, folder)


def write(
    folder: Path,
    parts: Iterable[tuple[Path, html.Part]],
    waits: html.Waits = html.Waits(),  # noqa: B008
) -> Path:
    """The pages; the path of their folder."""
    parts = dict(parts)
    recipes = {one.name: world(one.name).RECIPE for one in parts.values()}
    html.build(parts, cards(), recipes, PROVENANCE, folder, waits)
    return folder


@cache
def cards() -> list[methods.Card]:
    return [methods.card(room, name) for room, name in methods.names()]


# As a browser reads it ----------------------------------------------------------------------------


class Page(HTMLParser):
    """Collects what a browser would act on, and checks that tags nest."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self._open: list[str] = []
        self.feed(self.text)
        assert not self._open, f"{path}: never closed: {self._open}"
        self.known = frozenset(self.ids)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag != "use":
            names = ("src", "srcset", "href", "xlink:href")
            self.fetched += [attributes[name] for name in names if name in attributes]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open and self._open.pop() == tag, f"</{tag}> closes another tag"

    def rows(self) -> list[dict]:
        """Attributes of the rows of claims."""
        return [a for tag, a in self.tags if tag == "tr" and "data-verdict" in a]


def read(folder: Path) -> dict[str, Page]:
    """Every page of a report by its path in it."""
    return {str(path.relative_to(folder)): Page(path) for path in sorted(folder.rglob("*.html"))}


def check_links(folder: Path) -> None:
    """Every link leads to a file of the report and an id in it; only such files are fetched."""
    pages = read(folder)
    for name, page in pages.items():
        assert len(page.ids) == len(page.known), f"{name}: an id twice"
        for link in dict.fromkeys(page.links):
            lead(pages, folder, name, link)
        for source in dict.fromkeys(page.fetched):
            if source != "data:,":
                assert "//" not in source, f"{name} fetches {source}"
                assert (page.path.parent / source).is_file(), f"{name}: no {source}"
        for used in re.findall(r"(?:url\(#|xlink:href=\"#)([^)\"]+)", page.text):
            assert used in page.known, f"{name}: no {used}"
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"@import|url\(", sheet.read_text()), sheet


def lead(pages: dict[str, Page], folder: Path, name: str, link: str) -> None:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return
    start = folder / name
    target = (start.parent / unquote(parts.path)).resolve() if parts.path else start.resolve()
    assert target.is_file(), f"{name}: {link} leads nowhere"
    if parts.fragment:
        there = pages[str(target.relative_to(folder.resolve()))]
        assert parts.fragment in there.known, f"{name}: {link} names an id that is not there"
