"""The house itself: the lock and all lists of pins agree."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCK = (ROOT / "requirements.lock").read_text()
NOT_WANTED = {one.partition(";")[0] for one in PROJECT["tool"]["uv"]["override-dependencies"]}
"""Names that installed packages ask for and that nothing uses."""
ENTRIES = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())


def asked(*extras: str) -> list[Requirement]:
    """What the core and these extras ask for, those that they name of the project among them."""
    found = [Requirement(one) for one in PROJECT["project"]["dependencies"]]
    for extra in extras:
        for one in map(Requirement, EXTRAS[extra]):
            found += asked(*one.extras) if one.name == "slowlink" else [one]
    return found


def locked(extra: str) -> dict[str, str]:
    """Versions by name that an installer takes from the lock here, with an extra or without."""
    found = {}
    for entry in ENTRIES:
        one = Requirement(entry.partition(" \\\n")[0])
        if one.marker is None or one.marker.evaluate({"extra": extra}):
            (pin,) = one.specifier
            assert pin.operator == "==" and one.name not in found
            found[one.name] = pin.version
    return found


def test_environment_has_the_versions_of_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    versions = locked("dev")
    names = {one.name for one in asked("suite", "dev")}
    assert sorted(pip) == sorted(f"{name}=={versions[name]}" for name in names)


def test_a_user_gets_bounds_and_the_core_is_light():
    core = [Requirement(one) for one in PROJECT["project"]["dependencies"]]
    assert {one.name for one in core} == {"torch", "numpy", "numba"}
    for one in [*core, *asked(*EXTRAS)]:
        if one.name != "ns3":  # its releases differ in the C++ that we write against
            assert re.search(r">=", str(one.specifier)) and "==" not in str(one.specifier), one


def test_every_locked_file_is_checked():
    for entry in ENTRIES:
        assert re.search(r"( \\\n    --hash=sha256:[0-9a-f]{64})+$", entry), entry
    assert "://" not in LOCK


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_the_lock_has_what_an_extra_needs_and_no_more(extra):
    """Beside `make env`'s, by what installed packages say that they need; those not installed are
    left out."""
    versions = locked(extra)
    needed = asked("suite", extra)
    needed += map(Requirement, PROJECT["build-system"]["requires"])
    seen, unknown = set(), False
    while needed:
        one = needed.pop()
        if one.marker and not any(one.marker.evaluate({"extra": e}) for e in ("", *one.extras)):
            continue
        name = canonicalize_name(one.name)
        assert one.specifier.contains(versions[name], prereleases=True), f"{one}: {versions[name]}"
        if (name, *one.extras) in seen:
            continue
        seen.add((name, *one.extras))
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            unknown = True
            continue
        assert installed.version.partition("+")[0] == versions[name]
        for need in map(Requirement, installed.requires or ()):
            if need.name not in NOT_WANTED and (
                need.marker is None
                or any(need.marker.evaluate({"extra": e}) for e in ("", *one.extras))
            ):
                need.marker = None
                needed.append(need)
    assert unknown or {name for name, *_ in seen} == set(versions)


def test_the_lock_knows_no_extra_that_pyproject_lacks():
    marked = set(re.findall(r"extra == '(\S+?)'", LOCK))
    # CUDA's libraries go with torch's builds for it, and `make env` installs the suite.
    assert marked == {*EXTRAS, "cuda"} - {"suite", "live", "dds"}
