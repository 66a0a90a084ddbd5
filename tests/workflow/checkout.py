"""A copy of the repository in which Snakemake runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from slowlink.testbed.training.fetch import fetch
from slowlink.workflow import closure

ROOT = Path(__file__).parents[2]
SNAKEMAKE = Path(sys.executable).parent / "snakemake"

# Kills the whole process group, as a power cut would, just before a file whose path contains
# KILL_AT takes its name; adds to the file NAMED every name that a file or folder takes.
SITECUSTOMIZE = """
import os, signal
_replace, _at = os.replace, os.environ.get("KILL_AT")

def replace(src, dst, **kwargs):
    if _at and _at in str(dst):
        os.killpg(0, signal.SIGKILL)
    with open(os.environ["NAMED"], "a") as file:
        file.write(os.path.abspath(dst) + "\\n")
    return _replace(src, dst, **kwargs)

os.replace = replace
"""


class Checkout:
    """The sources without results, with data that is there already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        ignore = shutil.ignore_patterns(
            ".git", ".venv", ".snakemake", "results", "logs", "cache", "*.egg-info", "__pycache__"
        )
        shutil.copytree(ROOT, path, ignore=ignore)
        # What one copy compiles, all have: names in these folders go by content and time of change.
        for package in closure.PACKAGES:
            for folder in {file.parent for file in (path / package).rglob("*.py")}:
                compiled = ROOT / folder.relative_to(path) / "__pycache__"
                compiled.mkdir(exist_ok=True)
                (folder / "__pycache__").symlink_to(compiled)
        shutil.rmtree(path / "reports" / "html", ignore_errors=True)
        hooks = path / ".hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(textwrap.dedent(SITECUSTOMIZE))
        data = fetch("fashion_mnist").parent
        self.environment = os.environ | {
            "PYTHONPATH": f"{hooks}{os.pathsep}{path}",
            "SLOWLINK_DATA": str(data),
            "SLOWLINK_CACHE": str(self._session() / "cache.sqlite"),
            "NAMED": str(hooks / "named"),
        }

    def _session(self) -> Path:
        """The folder of all tests of a session, whose copies know what one of them computed: names
        in the cache say all that a value depends on, files by their content."""
        folders = [path for path in self.path.parents if re.fullmatch(r"pytest-\d+", path.name)]
        return folders[0] if folders else self.path.parent

    def start(self, *arguments: str, kill_at: str = "") -> subprocess.Popen:
        return subprocess.Popen(
            [
                *[str(SNAKEMAKE), "--cores", "2", "--show-failed-logs"],
                *[*arguments, "--config", "scale=smoke"],
            ],
            cwd=self.path,
            env=self.environment | {"KILL_AT": kill_at},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, kill_at: str = "") -> tuple[int, str]:
        process = self.start(*arguments, kill_at=kill_at)
        try:
            output, _ = process.communicate(timeout=1200)
        finally:
            with suppress(ProcessLookupError):  # nothing of it is left, most often
                os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, output

    def named(self) -> set[Path]:
        """What took its name when it was whole, from this folder."""
        lines = (self.path / ".hooks" / "named").read_text().splitlines()
        paths = {Path(line) for line in lines}
        return {path.relative_to(self.path) for path in paths if path.is_relative_to(self.path)}

    def planned(self, *targets: str) -> str:
        code, output = self.run("-n", *targets)
        assert code == 0, output
        return output
