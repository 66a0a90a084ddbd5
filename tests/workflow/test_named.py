"""Names in recipes are found without importing, and alike with importing."""

import dataclasses
import inspect
from importlib import import_module

import pytest
import yaml

from slowlink.testbed.training import models
from slowlink.testbed.training.recipe import Codec, Dataset, Level, Of, Part
from slowlink.workflow.experiment import Section
from slowlink.workflow.named import ROOMS, Named, constant, kept_momentum, known, named, parameters

METHODS = [(room, name) for room in ROOMS for name in known(room)]


def test_the_same_methods_as_the_rooms_find():
    for room in ROOMS:
        assert list(known(room)) == import_module(f"slowlink.methods.{room}").names()


@pytest.mark.parametrize(("room", "name"), METHODS)
def test_the_same_parameters_as_the_class_takes(room, name):
    module = import_module(f"slowlink.methods.{room}")
    bases = [one for one in vars(module).values() if inspect.isclass(one)]
    own = import_module(f"slowlink.methods.{room}.{name}")
    (cls,) = (
        one
        for one in vars(own).values()
        if inspect.isclass(one)
        and one.__module__ == own.__name__
        and any(issubclass(one, base) for base in bases if base.__module__ == module.__name__)
    )
    taken = {field.name for field in dataclasses.fields(cls) if field.init}
    assert parameters(room, name) == taken


def test_the_same_models_with_the_same_parameters():
    assert set(known("model")) == set(models.MODELS)
    for name, make in models.MODELS.items():
        assert parameters("model", name) == set(inspect.signature(make).parameters)


@pytest.mark.parametrize("name", known("compression"))
def test_constants_are_those_of_the_class(name):
    codec = import_module("slowlink.methods.compression").load(name)
    assert constant("compression", name, "combine", "sum") == codec.combine


def test_data_sets_and_devices_are_those_of_the_files():
    with open("data/devices.yaml") as file:
        assert set(known("device")) == {"this_cpu", *yaml.safe_load(file)}
    assert {"mnist", "cifar10"} <= set(known("dataset"))


class Case(Section):
    codec: Codec
    levels: list[Level] = []
    dataset: Dataset | None = None
    plain: str = "ring"


class Whole(Section):
    cases: dict[str, Case]
    room: list[Codec]


def test_names_are_found_wherever_they_stand():
    codec = Part(name="top_k", ratio=0.1)
    case = Case(codec=codec, levels=[Level(up=codec, down=Part(name="fp16"))], dataset="mnist")
    found = list(named(Whole(cases={"a": case}, room=[codec])))
    assert found == [
        Named("cases.a.codec", "compression", "top_k", {"ratio": 0.1}),
        Named("cases.a.levels.0.up", "compression", "top_k", {"ratio": 0.1}),
        Named("cases.a.levels.0.down", "compression", "fp16", {}),
        Named("cases.a.dataset", "dataset", "mnist", {}),
        Named("room.0", "compression", "top_k", {"ratio": 0.1}),
    ]
    assert list(named("ring", None)) == [] and Of("model").kind == "model"


def test_momentum_is_kept_where_what_is_not_sent_is_kept():
    assert kept_momentum(Part(name="identity"), 0.9) == (Part(name="identity"), 0.9)
    kept, rest = kept_momentum(Part(name="dgc", ratio=0.01), 0.9)
    assert kept.parameters == {"ratio": 0.01, "momentum": 0.9} and rest == 0.0
    lossy = Part(name="count_sketch", error_feedback=False)
    assert kept_momentum(lossy, 0.9) == (lossy, 0.9)
