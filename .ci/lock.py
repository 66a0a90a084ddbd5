#!/usr/bin/env python3
"""Write requirements.lock: all packages of pyproject.toml and what they need, with hashes; and
environment.yml, those that `make test` wants by the same versions.

python .ci/lock.py      with the extra "install"

Versions in the lock stay where they can: to let one move, delete its entry first.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
CONDA = ROOT / "environment.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
ENVIRONMENT = "suite"
"""The extra that `make env` installs, so that what it needs has no mark."""
COMPILE = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
COMPILE += ["--python-version=3.11", "--no-annotate", "--no-header", "pyproject.toml", "-"]
HEAD = """\
# Every package that slowlink uses, for all systems, with the hashes of its files. `make lock`
# writes it from pyproject.toml, and .ci/install.py installs it. What is marked as an extra's is
# left out by `pip install --no-deps --require-hashes -r requirements.lock`. "cuda" is what torch's
# builds for CUDA ask for; the last hash of torch is that of its build for CPUs.
"""
CONDA_HEAD = """\
# What `make test` wants, by the versions of requirements.lock, for conda users; `make lock` writes
# it. The tested path is `make env` (a venv).
name: slowlink
channels: [conda-forge]
dependencies:
  - python=3.11
  - pip
  - pip:
"""
# Of torch 2.13.0+cpu for Python 3.11 on Linux, x86-64; it is on no package index that uv looks at.
CPU_BUILD = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"


def compiled(constraints: str, *options: str) -> dict[str, str]:
    """The lock's entries by name and version, of the core, what builds it, and ``options``."""
    done = subprocess.run(
        [*COMPILE, "--constraints", constraints, *options],
        input="\n".join(PROJECT["build-system"]["requires"]),
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {entry.split()[0]: entry for entry in re.split(r"\n(?=\S)", done.stdout.strip())}


def named(extras: list[str]) -> set[str]:
    """Names that the core and these extras ask for themselves."""
    found, pending = set(), list(PROJECT["project"]["dependencies"])
    pending += [need for extra in extras for need in EXTRAS[extra]]
    while pending:
        name, more = re.match(r"([\w.-]+)(?:\[(.*?)\])?", pending.pop()).groups()
        if name == PROJECT["project"]["name"]:
            pending += [need for extra in more.split(",") for need in EXTRAS[extra.strip()]]
        else:
            found.add(name)
    return found


def locked() -> str:
    """The lock's pins, by the marks of no extra, since those of extras hold nowhere."""
    pins = re.findall(r"^[\w.-]+==.*?(?= \\$)", LOCK.read_text(), re.MULTILINE)
    return "\n".join(re.sub(r"( ;| and) \(?extra == .*", "", pin) for pin in pins)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins.txt")
        pins.write_text(locked())
        every = compiled(str(pins), "--all-extras", "--generate-hashes")
        base = compiled(str(pins), "--extra", ENVIRONMENT)
        of = {extra: compiled(str(pins), "--extra", extra) for extra in EXTRAS}
    lines = []
    for package, entry in every.items():
        asking = [extra for extra in EXTRAS if package in of[extra]]
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
    wanted = named([ENVIRONMENT, "dev"])
    pins = [package for package in every if package.partition("==")[0] in wanted]
    CONDA.write_text(CONDA_HEAD + "".join(f"      - {pin}\n" for pin in pins))


if __name__ == "__main__":
    main()
