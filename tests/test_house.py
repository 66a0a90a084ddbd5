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
PINS = {
    "": PROJECT["project"]["dependencies"] + PROJECT["build-system"]["requires"],
    **PROJECT["project"]["optional-dependencies"],
}
LOCK = (ROOT / "requirements.lock").read_text()
ENTRIES = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())


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


def test_environment_has_the_pins_of_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert sorted(pip) == sorted(PROJECT["project"]["dependencies"] + PINS["test"])


def test_every_locked_file_is_checked():
    for entry in ENTRIES:
        assert re.search(r"( \\\n    --hash=sha256:[0-9a-f]{64})+$", entry), entry
    assert "://" not in LOCK


@pytest.mark.parametrize("extra", PINS)
def test_the_lock_has_what_an_extra_needs_and_no_more(extra):
    """By what installed packages say that they need; those not installed are left out."""
    versions = locked(extra)
    needed = [Requirement(pin) for pin in {*PINS[""], *PINS[extra]}]
    assert all(re.search("==|>=", str(one.specifier)) for one in needed)
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
            if need.marker is None or any(
                need.marker.evaluate({"extra": e}) for e in ("", *one.extras)
            ):
                need.marker = None
                needed.append(need)
    assert unknown or {name for name, *_ in seen} == set(versions)


def test_the_lock_knows_no_extra_that_pyproject_lacks():
    marked = set(re.findall(r"extra == '(\S+?)'", LOCK))
    assert marked == {*PINS, "cuda"} - {""}  # CUDA's libraries go with torch's builds for it
