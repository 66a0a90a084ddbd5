"""The house itself: both lists of pins agree."""

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_environment_has_the_pins_of_pyproject():
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert sorted(pip) == sorted(pins)
    assert all("==" in pin for pin in pins)
