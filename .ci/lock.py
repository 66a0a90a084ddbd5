#!/usr/bin/env python3
"""Write requirements.lock: all packages of pyproject.toml and what they need, with hashes.

python .ci/lock.py      with the extra "install"; versions in the lock stay where they can
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
COMPILE = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
COMPILE += ["--python-version=3.11", "--no-annotate", "--no-header", "pyproject.toml"]
HEAD = """\
# Every package that slowlink uses, for all systems, with the hashes of its files. `make lock`
# writes it from pyproject.toml, and .ci/install.py installs it. What is marked as an extra's is
# left out by `pip install --no-deps --require-hashes -r requirements.lock`. "cuda" is what torch's
# builds for CUDA ask for; the last hash of torch is that of its build for CPUs.
"""
# Of torch 2.13.0+cpu for Python 3.11 on Linux, x86-64; it is on no package index that uv looks at.
CPU_BUILD = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"


def compiled(*options: str) -> dict[str, str]:
    """The lock's entries by name and version."""
    done = subprocess.run(
        [*COMPILE, *options], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {entry.split()[0]: entry for entry in re.split(r"\n(?=\S)", done.stdout.strip())}


def main() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    every = compiled("--all-extras", "--generate-hashes", "--constraints", LOCK)
    base = compiled("--constraints", LOCK)
    of = {extra: compiled("--extra", extra, "--constraints", LOCK) for extra in extras}
    lines = []
    for package, entry in every.items():
        asking = [extra for extra in extras if package in of[extra]]
        if re.match("nvidia-|cuda-|triton=", package):
            asking = ["cuda"]
        elif package in base:
            asking = []
        if package.startswith("torch=="):
            entry += f" \\\n    --hash=sha256:{CPU_BUILD}"
        if asking:
            marker = " or ".join(f"extra == '{extra}'" for extra in sorted(asking))
            pin, slash, hashes = entry.partition(" \\\n")
            pin, semicolon, where = pin.partition(" ; ")
            marker = f"({where}) and ({marker})" if semicolon else marker
            entry = f"{pin} ; {marker}{slash}{hashes}"
        lines.append(entry)
    LOCK.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
