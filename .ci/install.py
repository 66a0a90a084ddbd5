#!/usr/bin/env python3
"""Install what requirements.lock says, and slowlink itself, beside the Python that runs this.

    python .ci/install.py [--pip] [extra ...]

Nothing is resolved, and every file is checked against its hash. pip gets torch, since it knows
where this machine has its build of torch from, and uv, which installs the rest in seconds. pip
installs that, too, with --pip or where uv cannot.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PIP_INSTALL = [*PIP, "install", "--progress-bar=off"]
UV_INSTALL = [sys.executable, "-m", "uv", "pip", "install", "--compile-bytecode"]
UV_INSTALL += ["--python", sys.executable]
LOCKED = ["--no-deps", "--require-hashes", "-r"]
ITSELF = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Install what requirements.lock says.")
    parser.add_argument("--pip", action="store_true", help="install everything with pip")
    parser.add_argument("extras", nargs="*", help="of pyproject.toml")
    given = parser.parse_args()
    known = set(re.findall(r"extra == '(\S+?)'", LOCK))
    if unknown := set(given.extras) - known:
        parser.error(f"requirements.lock has no extra {min(unknown)!r}, but {sorted(known)}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        if not installed("torch"):
            # If pip knew the hashes now, it would prefer the package index, which has them beside
            # its links, to a build for CPUs that lies nearer. They are checked with the rest.
            pin = re.search(r"^torch==\S+", LOCK, re.MULTILINE)[0]
            run(*PIP, "download", "--no-deps", "--only-binary=:all:", "--dest", folder, pin)
            file.write_text(locked(["torch"]))
            # uv compiles what it installs itself; every start would compile torch again (2 to 4 s)
            # where Python is told to write no byte code.
            run(*PIP_INSTALL, "--no-index", "--find-links", folder, *LOCKED, file)
        # torch's builds for CUDA, and no others, ask for CUDA's libraries.
        cuda = any(re.match("nvidia|cuda", need) for need in metadata.requires("torch"))
        others = set(re.findall(r"^([^\s#=]+)==", LOCK, re.MULTILINE)) - {"torch"}
        extras = [*given.extras, *(["cuda"] if cuda else [])]
        if not given.pip:
            file.write_text(locked(["uv"], ["install"]))
            try:
                run(*PIP_INSTALL, "--no-compile", *LOCKED, file)
                file.write_text(locked(others, extras))
                run(*UV_INSTALL, *LOCKED, file)
                run(*UV_INSTALL, *ITSELF)
                return
            except subprocess.CalledProcessError:
                print("uv does not do it here; pip goes on.", flush=True)
        file.write_text(locked(others, extras))
        run(*PIP_INSTALL, *LOCKED, file)
        run(*PIP_INSTALL, *ITSELF)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def installed(name: str) -> bool:
    """Whether the version in the lock is here, of whatever build."""
    try:
        return f"\n{name}=={metadata.version(name).partition('+')[0]} " in LOCK
    except metadata.PackageNotFoundError:
        return False


def locked(names: Collection[str], extras: Collection[str] = ()) -> str:
    """The lock's entries of these names, those of ``extras`` among them.

    Installers leave out what is marked as an extra's; these marks become ones that always hold.
    """
    entries = [e for e in re.split(r"\n(?=\S)", LOCK) if e.partition("==")[0] in names]
    mark = f"extra == '({'|'.join(extras)})'"
    text = "\n".join(entries)
    return re.sub(mark, "python_version > '3'", text) if extras else text


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[3]} ended with {error.returncode}; what it printed says why")
