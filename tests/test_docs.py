"""The pages: what they show runs, what they link to is there, and the site of them is whole.

Every fenced block of the README and of docs/ is executed in a copy of the repository, block by
block in the order of its page. What a block needs said stands in comments above it, which readers
do not see:

- ``<!-- goes on -->``: Python that uses the names of the Python before it.
- ``<!-- schema: package.module.Class -->``: YAML or JSON that this pydantic model takes.
- ``<!-- not run: why -->``: the reason why it is not executed. Its commands are checked all the
  same: make and Snakemake plan them, and programs read their options. Of Python, imports are run.

- ``<!-- file: name -->``: JSON, which has no comments, that becomes this file.

A block whose first line is a comment with a file's name becomes that file, or is added at its end
if it is there; a command or another file must use it. ``text`` is for what is no code.
"""

import ast
import contextlib
import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from slowlink.methods import compression, exchange, fusion, synchronization
from tests.warm_python import WarmPython
from tests.workflow.checkout import Checkout

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

MARK = re.compile(r"<!-- (goes on|schema|file|not run)(?:: (.+?))? -->", re.DOTALL)
NAMED = re.compile(r"# (\S+\.\w+)\n")
PLACEHOLDER = re.compile(r"<\w+>|…|\.\.\.")
COMMANDS = ("make", "python", "slowlink", "snakemake")

# Ends a program with OPTIONS_READ when its command line has been understood, before it does more.
OPTIONS_READ = 42
READ_OPTIONS = f"""
import argparse, os, runpy, sys

def read(parser, *arguments, understand=argparse.ArgumentParser.parse_args, **named):
    understand(parser, *arguments, **named)
    os._exit({OPTIONS_READ})

argparse.ArgumentParser.parse_args = read
sys.argv.pop(0)
sys.path.insert(0, os.getcwd())
if sys.argv[0] == "-m":
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Block:
    """A fenced block: where it stands, what it is, and the comments above it."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line} ({self.language})"

    @property
    def file(self) -> str | None:
        """The name of the file that it shows."""
        named = NAMED.match(self.text)
        return named[1] if named else self.marks.get("file")

    @property
    def left_out(self) -> bool:
        return "not run" in self.marks

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, one a line, without comments."""
        joined = self.text.replace("\\\n", " ")
        lines = (shlex.join(shlex.split(line, comments=True)) for line in joined.splitlines())
        return [line for line in lines if line]


def parsed(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[Block]:
    found, marks = [], {}
    for token in parsed(page):
        if token.type == "html_block":
            marks |= {mark: said or "" for mark, said in MARK.findall(token.content)}
        elif token.type == "fence":
            found.append(Block(page, token.map[0] + 1, token.info, token.content, marks))
            marks = {}
        elif marks and token.block:
            raise AssertionError(f"{page.name}: no fenced block follows on {marks}")
    return found


def inline(page: Path) -> Iterator[Token]:
    """What stands in a page's sentences and tables."""
    for token in parsed(page):
        yield from token.children or ()


def sentences(page: Path) -> list[str]:
    """Commands in a page's sentences that say all of themselves."""
    codes = {token.content for token in inline(page) if token.type == "code_inline"}
    commands = (code for code in codes if code.split()[0] in COMMANDS and code.split()[1:])
    return sorted(command for command in commands if not PLACEHOLDER.search(command))


BLOCKS = {page: blocks(page) for page in PAGES}
SHOWN = [page for page in PAGES if BLOCKS[page] or sentences(page)]


class Shell:
    """A copy of the repository in which the blocks of a page run as a reader would run them.

    ``python``: the command that runs Python programs.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        copy = Checkout(folder)
        self.path, self.interpreter = copy.path, str(python)
        self.planned: set[tuple[str, ...]] = set()
        self.programs = folder / ".hooks" / "bin"
        self.programs.mkdir()
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        scripts = {"snakemake": "snakemake.cli:main", "torchrun": "torch.distributed.run:main"}
        scripts |= project.get("scripts", {})
        for name, target in scripts.items():
            module, _, function = target.partition(":")
            program = f"#!{python}\nfrom {module} import {function}\n"
            program += f'if __name__ == "__main__":\n    raise SystemExit({function}())\n'
            (self.programs / name).write_text(program)
            (self.programs / name).chmod(0o755)
        (self.programs / "read_options.py").write_text(READ_OPTIONS)
        places = [self.programs, python.parent, Path(sys.executable).parent]
        path = os.pathsep.join([*map(str, places), os.environ["PATH"]])
        # The second is what torchrun starts its ranks by.
        self.environment = copy.environment | {"PATH": path, "PYTHON_EXEC": str(python)}

    def run(self, command: list[str], what: object, codes: Collection[int] = (0,)) -> None:
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, text=True, timeout=500,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        end = done.stdout[-3000:]
        assert done.returncode in codes, f"{what} ended with {done.returncode}:\n{end}"

    def python(self, chain: list[Block]) -> None:
        """Run Python blocks as one program, whose line numbers are those of the page."""
        lines: list[str] = []
        for block in chain:
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
        program = self.path / f"{chain[0].page.stem}_page.py"
        self.program(program, "\n".join(lines) + "\n", chain[0])

    def program(self, file: Path, text: str, what: object) -> None:
        """Run ``text`` as a Python file."""
        file.write_text(text, encoding="utf-8")
        self.run([self.interpreter, file.name], what)

    def shell(self, block: Block) -> None:
        self.planned.clear()
        self.run(["bash", "-euo", "pipefail", "-c", block.text], block)

    def keep(self, block: Block) -> bool:
        """Let a block become its file, or add it to the one there; whether the file is new."""
        self.planned.clear()
        path = self.path / block.file
        assert path.resolve().is_relative_to(self.path), f"{block} would lie elsewhere"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            new = file.tell() == 0
            file.write(block.text if new else "\n" + block.text)
        return new

    def check(self, command: str, what: str) -> None:
        """Let make and Snakemake plan a command, and others read its options."""
        words = list(itertools.dropwhile(re.compile(r"\w+=").match, shlex.split(command)))
        program, given = words[0].removeprefix(".venv/bin/"), words[1:]
        if program == "make":
            self.run(["make", "-n", *given], what)
        elif program == "snakemake":
            for option in ("--workflow-profile", "--report"):  # they ask for more than a plan
                if option in given:
                    at = given.index(option)
                    _, value = given[at : at + 2]
                    del given[at : at + 2]
                    assert option == "--report" or (self.path / value / "config.yaml").is_file()
            # Other cores leave a plan as it is, which is made once while nothing changes.
            plan = tuple(word for word in given if word != "-n")
            plan = plan[2:] if plan[:1] == ("--cores",) else plan
            if plan not in self.planned:
                self.run(["snakemake", "-n", *given], what)
                self.planned.add(plan)
        elif program == "python" or (self.programs / program).is_file():
            script = [] if program == "python" else [str(self.programs / program)]
            ends = (OPTIONS_READ,) if given[2:] or script else (OPTIONS_READ, 0)
            reader = str(self.programs / "read_options.py")
            self.run([self.interpreter, reader, *script, *given], what, ends)
        elif program == "pip":
            self.need_extras(given, what)
        else:
            pytest.fail(f"{what}: nobody knows how to check {program!r}")

    def need_extras(self, given: list[str], what: str) -> None:
        """Hold the extras of slowlink that are installed against those that it has."""
        project = tomllib.loads((self.path / "pyproject.toml").read_text())["project"]
        asked = {extra for word in given for extra in re.findall(r"[\w-]+", word.partition("[")[2])}
        assert asked <= set(project["optional-dependencies"]), what


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A command that starts Python programs without the seconds that importing torch takes."""
    with contextlib.closing(WarmPython(tmp_path_factory.mktemp("python"))) as warm:
        yield warm.command


@pytest.fixture
def shell(tmp_path, python):
    return Shell(tmp_path / "slowlink", python)


def called(page: Path) -> str:
    return page.stem


def test_every_block_says_its_language_and_why_it_is_not_run(record_property):
    every = [block for page in PAGES for block in BLOCKS[page]]
    for block in every:
        assert block.language in ("python", "sh", "yaml", "json", "text"), block
        if block.left_out:
            assert len(block.marks["not run"].split()) > 2, f"{block} needs a reason"
        if block.language in ("yaml", "json"):
            assert "schema" in block.marks or block.file, f"{block}: whose example is it?"
        assert "goes on" not in block.marks or block.language == "python", block
    count = Counter((block.language, block.left_out) for block in every)
    for (language, left_out), number in sorted(count.items()):
        record_property(f"{language} {'not run' if left_out else 'run'}", number)
    assert count["python", False] > count["python", True]


@pytest.mark.parametrize("page", SHOWN, ids=called)
def test_the_blocks_of_a_page_run_in_their_order(page, shell):
    chain: list[Block] = []
    for block in BLOCKS[page]:
        if chain and "goes on" not in block.marks:
            shell.python(chain)
            chain = []
        new = block.file and shell.keep(block)
        if "schema" in block.marks:
            text = (shell.path / block.file).read_text("utf-8") if block.file else block.text
            validate(text, block)
        elif new:
            assert uses(page, block), f"nothing that runs on {page.name} uses {block.file}"
        if block.language == "python" and block.left_out:
            shell.program(shell.path / f"{page.stem}_imports.py", imports(block), block)
        elif block.language == "python" and not block.file:
            chain.append(block)
        elif block.language == "sh" and block.left_out:
            for command in block.commands:
                shell.check(command, f"{block}: {command}")
        elif block.language == "sh":
            shell.shell(block)
    if chain:
        shell.python(chain)
    for command in sentences(page):
        shell.check(command, f"{page.name}: {command}")


def uses(page: Path, shown: Block) -> list[Block]:
    """The commands and the other files of a page that name what a file is called."""
    name = re.compile(rf"(?<![a-z]){Path(shown.file).stem}(?![a-z])")
    run = [one for one in BLOCKS[page] if one.language == "sh" and not one.left_out]
    files = [one for one in BLOCKS[page] if one.file and one.file != shown.file]
    return [one for one in run + files if name.search(one.text)]


def imports(block: Block) -> str:
    """The import statements of a Python block."""
    found = (
        node
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return "\n".join(map(ast.unparse, found))


def validate(text: str, block: Block) -> None:
    """Hold an example against the pydantic model that reads what it is an example of."""
    module, _, name = block.marks["schema"].rpartition(".")
    schema = getattr(importlib.import_module(module), name)
    if block.language == "json":
        schema.model_validate_json(text)
    else:
        schema.model_validate(yaml.safe_load(text))


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to a page's headings."""
    tokens = parsed(page)
    titles = [text.content for head, text in pairwise(tokens) if head.type == "heading_open"]
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", LINKED, ids=called)
def test_links_lead_somewhere(page):
    for token in inline(page):
        url = token.attrGet("href") or token.attrGet("src")
        if url is None or urlsplit(url).scheme:
            continue
        path, _, anchor = unquote(url).partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {url}"
        assert target.resolve().is_relative_to(ROOT), f"{page.name}: {url} leads out"
        if anchor:
            assert target.suffix == ".md" and anchor in slugs(target), f"{page.name}: {url}"


class Html(HTMLParser):
    """What a page of the site loads, links to and has, and its text outside of code."""

    LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text = ""
        self.code = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        self.loads += [said[self.LOADS[tag]]] if said.get(self.LOADS.get(tag)) else []
        self.links += [said["href"]] if tag == "a" and said.get("href") else []
        self.ids |= {said["id"]} if "id" in said else set()
        self.code += tag in ("code", "pre", "script", "style")

    def handle_endtag(self, tag):
        self.code -= tag in ("code", "pre", "script", "style")

    def handle_data(self, data):
        self.text += "" if self.code else data


@pytest.fixture(scope="module")
def docs_site(tmp_path_factory):
    """The folder of the site, of which every page is built without a warning."""
    pytest.importorskip("furo", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", f"{folder}/trees"]
    done = subprocess.run(
        [*build, "-c", "docs", ".", f"{folder}/html"], cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html"


@pytest.fixture(scope="module")
def html(docs_site):
    return {path: Html(path) for path in docs_site.rglob("*.html")}


def test_the_site_loads_nothing_from_elsewhere(docs_site, html):
    for path, page in html.items():
        for url in page.loads:
            to = urlsplit(url)
            assert not to.scheme and not to.netloc, f"{path.name}: {url}"
            assert not to.path or (path.parent / to.path).is_file(), f"{path.name}: {url}"
    for style in docs_site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\W*(https?:)?//", style.read_text("utf-8")), style


def test_links_within_the_site_lead_somewhere(html):
    for path, page in html.items():
        for url in page.links:
            to = urlsplit(url)
            if to.scheme:
                continue
            target = (path.parent / unquote(to.path)).resolve() if to.path else path
            assert target.is_file(), f"{path.name}: {url}"
            if to.fragment and target in html:
                assert unquote(to.fragment) in html[target].ids, f"{path.name}: {url}"


def test_the_site_has_every_page_and_every_method(docs_site, html):
    linked = {urlsplit(url).path for url in html[docs_site / "index.html"].links}
    pages = {f"docs/{page.stem}.html" for page in PAGES if page.parent != ROOT}
    assert pages | {"docs/api/index.html"} <= linked
    for room in (compression, exchange, fusion, synchronization):
        name = room.__name__.rpartition(".")[2]
        page = html[docs_site / f"docs/api/{name}.html"]
        for method in room.names():
            start = f"{room.__name__}.{method}."
            assert any(anchor.startswith(start) for anchor in page.ids), start


def test_docstrings_leave_no_markup_in_the_text(html):
    for path, page in html.items():
        left = re.search(r".*(:\w+:`|``|\w::\s|-{4}|\\\|).*", page.text)
        assert not left, f"{path.name}: {left[0]}"


def test_no_page_is_wider_than_a_narrow_window(docs_site, html, browser):
    page = browser.new_page(viewport={"width": 420, "height": 900})
    for path in html:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, path.name
        codes = page.locator(".highlight pre")
        for scrolls in codes.evaluate_all("all => all.map(e => getComputedStyle(e).overflowX)"):
            assert scrolls == "auto", path.name
