"""The site: README.md and docs/ as they are, and pages from the docstrings; `make docs` builds it.

What a page links to, it links to on GitHub and here alike, for the root of both is the repository.
"""

import re
import shutil
from pathlib import Path

from slowlink.methods import compression, exchange, fusion, synchronization

HERE = Path(__file__).parent
ORDER = ["running", "training", "advice", "measuring", "live", "adding", "exchanges", "library"]
ORDER += ["targets"]
"""The order of the pages of docs/; one that is not named here stops the build."""

project = "slowlink"
author = copyright = "the slowlink authors"
html_title = "slowlink"
root_doc = "README"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "docs/api/*.rst"]
exclude_patterns = [d.name for d in HERE.parent.iterdir() if d.is_dir() and d != HERE]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_copy_source = html_show_sourcelink = html_show_sphinx = False

autodoc_inherit_docstrings = False  # what a method leaves out, the page of its room has said
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = [("Attributes", "params_style")]  # types are in the signature
python_maximum_signature_line_length = 100
add_module_names = False
python_use_unqualified_type_names = True

ROOMS = {room.__name__.rpartition(".")[2]: room for room in (compression, exchange, fusion)}
ROOMS["synchronization"] = synchronization


def navigation() -> str:
    """The table of contents, which the start page keeps for all."""
    pages = sorted((page.stem for page in HERE.glob("*.md")), key=ORDER.index)
    listed = [*(f"docs/{page}" for page in pages), "docs/api/index", "CONTRIBUTING", "CHANGELOG"]
    return "\n".join(["", "```{toctree}", ":hidden:", *listed, "```", ""])


def read(app, docname: str, source: list[str]) -> None:
    """The start page gets the navigation; a page of a room, what its methods are."""
    if docname == root_doc:
        source[0] += navigation()
    if docname.startswith("docs/api/"):
        source[0] = app.builder.templates.render_string(source[0], {"rooms": ROOMS})


SECTION = re.compile(r"(Parameters|Attributes|Raises|Returns|Yields)$")
ITEM = re.compile(r"(\w+(?:, \w+)*): (.*)")
ONE_LINE = ("attribute", "data", "property")
HOUSE = re.compile(r"(:\w+:`~?)(methods|testbed|reports|workflow)\.")
BAR = re.compile(r"(``.*?``)|\|")
"""Code, or else a bar, which stands for an absolute value and not for a substitution."""


def docstring(app, what: str, name: str, obj, options, lines: list[str]) -> None:
    """Ours name a thing and say what it is in one line; napoleon wants two."""
    inside, text = False, [""] * (what in ONE_LINE)  # where a colon ends no type
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        if set(below) == {"-"}:
            inside = SECTION.match(line)
        item = inside and ITEM.match(line)
        text += [item[1], "    " + item[2]] if item else [line]
    text = [HOUSE.sub(r"\1slowlink.\2.", line) for line in text]
    lines[:] = [BAR.sub(lambda found: found[1] or r"\|", line) for line in text]


def finished(app, exception) -> None:
    """A folder opens at index.html."""
    if exception is None:
        shutil.copy(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app) -> None:
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", docstring, priority=400)  # before napoleon
    app.connect("build-finished", finished)
