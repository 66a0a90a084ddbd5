"""The report in headless Chromium: axe, the console, widths, dark, search, filter and sorting.

Needs the extra ``browser`` and a Chromium (``CHROMIUM`` names its program, if not on the path).
"""

from __future__ import annotations

import pytest

from slowlink.workflow import documents

playwright = pytest.importorskip("playwright.sync_api", reason="the extra browser is not installed")
axe = pytest.importorskip("axe_playwright_python.base", reason="the extra browser is not installed")

PAGES = [
    "index.html",
    "documents/rat.html",
    "documents/lpsp.html",
    "documents/sketch_fusion.html",
    "matrix.html",
    "methods.html",
    "methods/exchange-hips.html",
    "methods/compression-bisparse.html",
    "methods/synchronization-lpsp.html",
    "methods/fusion-layer_fusion.html",
    "advice.html",
    "claims.html",
    "data.html",
]
# axe takes long on pages with many figures or rows; these have everything that any page has.
LOOKED_AT = {
    "light": ["index", "documents/rat", "matrix", "methods", "advice", "claims", "data"],
    "dark": ["index", "matrix", "methods/compression-bisparse", "advice"],
}
WIDE, NARROW = 1280, 420


@pytest.fixture
def open_page(browser, built_site):
    """Opens a page of the report; at the end nothing may have been said or asked for outside."""
    contexts, said, asked = [], [], []

    def opened(path: str, width: int = WIDE, scheme: str = "light"):
        view = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=view, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{built_site[0].as_uri()}/{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    ("scheme", "path"), [(scheme, path) for scheme in LOOKED_AT for path in LOOKED_AT[scheme]]
)
def test_axe_finds_nothing(open_page, scheme, path):
    page = open_page(f"{path}.html", NARROW if scheme == "dark" else WIDE, scheme)
    page.add_script_tag(content=axe.AXE_SCRIPT)
    # Without preload axe reads no style sheets again, which a page from a folder may not; of rules
    # that pass one node each is enough.
    found = page.evaluate("axe.run({preload: false, resultTypes: ['violations']})")
    wrong = [(one["id"], [n["html"] for n in one["nodes"][:3]]) for one in found["violations"]]
    assert wrong == [] and len(found["passes"]) > 20


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_the_window(open_page, path):
    page = open_page(path, WIDE)
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_is_dark_and_figures_follow(open_page):
    def light(colour: str) -> float:
        return sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(","))) / (3 * 255)

    for scheme in ("light", "dark"):
        page = open_page("documents/rat.html", scheme=scheme)
        ground = light(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ink = light(page.locator("figure svg text").first.evaluate("x => getComputedStyle(x).fill"))
        assert (ground > 0.9 and ink < 0.3) if scheme == "light" else (ground < 0.2 and ink > 0.7)


def test_search_finds_a_claim_and_leads_to_it(open_page, built_site):
    claim = built_site[1].iloc[5]
    page = open_page("methods/exchange-ring.html")
    page.keyboard.press("/")
    page.keyboard.type(f"{claim['id'].lower()} {claim['where'].lower()}")
    first = page.locator("#found a").first
    assert claim["id"] in first.inner_text()
    page.keyboard.press("ArrowDown")
    assert first.evaluate("link => link === document.activeElement")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/documents/{claim['document']}.html#row-{claim['id']}")
    assert page.locator(f"#row-{claim['id']}").is_visible()


def test_search_closes_with_escape_and_says_how_many(open_page):
    page = open_page("index.html")
    page.locator("#search").fill("ring")
    page.locator("#found a").first.wait_for()
    assert page.locator("#found output").inner_text().endswith("found")
    page.keyboard.press("Escape")
    assert not page.locator("#found").is_visible()


def test_claims_filter_by_outcome_kind_and_words(open_page, built_site):
    judged = built_site[1]
    page = open_page("index.html")
    page.locator('.legend a:has-text("open")').first.click()
    page.wait_for_url("**/claims.html?verdict=*")
    visible = page.locator("table.claims tbody tr:visible")
    among = ["undecided", "depends on the reading", "not comparable", "not run here"]
    assert visible.count() == judged["verdict"].isin(among).sum()
    assert page.locator("select[name=verdict] option:checked").inner_text() == "open"
    page.locator("select[name=verdict]").select_option("undecided")
    assert visible.count() == (judged["verdict"] == "undecided").sum()
    page.locator("select[name=verdict]").select_option("")
    page.locator("select[name=kind]").select_option("param")
    assert visible.count() == (judged["kind"] == "param").sum()
    page.locator("select[name=kind]").select_option("")
    page.locator("input[name=text]").fill("no claim says this")
    assert visible.count() == 0
    # A link to a row that the filter hides shows it again.
    target = f"row-{judged['id'].iloc[0]}"
    page.evaluate(f"location.hash = '{target}'")
    page.locator(f"#{target}").wait_for(state="visible")


def test_a_document_s_scoreboard_filters_its_claims_again_and_again(open_page, built_site):
    mine = built_site[1].query("document == 'rat'")["verdict"]
    page = open_page("documents/rat.html?verdict=holds#claims")
    visible = page.locator("table.claims tbody tr:visible")
    holds, fails = (int(mine.isin(s).sum()) for s in (["holds"], ["fails", "contradicts itself"]))
    assert 0 < fails != holds > 0
    for _ in range(2):
        page.locator('#scoreboard .legend a:has-text("fails")').first.click()
        playwright.expect(visible).to_have_count(fails)  # The link loads the page anew.
        page.locator("select[name=verdict]").select_option("holds")
        playwright.expect(visible).to_have_count(holds)


def test_tables_sort_by_number_then_the_other_way_round(open_page):
    page = open_page("methods/exchange-ring.html")
    table = page.locator("#sends table")
    button = table.locator("thead button").nth(3)
    orders = []
    for direction in ("ascending", "descending"):
        button.click()
        assert table.locator(f'th[aria-sort="{direction}"]').count() == 1
        cells = table.locator("tbody td:nth-child(4)").all()
        orders.append([float(cell.get_attribute("data-value")) for cell in cells])
    assert orders[0] == sorted(orders[0]) and orders[1] == sorted(orders[1], reverse=True)


def test_everything_shows_without_scripts(browser, built_site):
    folder, judged = built_site
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((folder / "documents" / "rat.html").as_uri())
    mine = judged[judged["document"] == "rat"]
    assert page.locator("table.claims tbody tr:visible").count() == len(mine)
    assert page.locator("figure svg").count() == len(documents.load("rat").figures)
    assert not page.locator("nav search").is_visible()
    context.close()


def test_it_prints_without_menu_and_with_whole_tables(open_page):
    page = open_page("documents/rat.html", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("nav").is_visible()
    assert (
        page.locator(".scroll.tall").first.evaluate("x => getComputedStyle(x).maxHeight") == "none"
    )
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
