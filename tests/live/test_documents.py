"""Files that describe a run: the same data from JSON and YAML, and what is refused of either."""

import json

import pytest
from pydantic import BaseModel, ConfigDict

from slowlink.testbed.live import documents


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rate: float = 1.0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    one: Inner | None = None
    many: tuple[Inner, ...] = ()
    named: dict[str, Inner] = {}
    count: int = 1


def read(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return documents.read(path, lambda document: documents.validated(Outer, document))


def test_json_and_yaml_are_the_same(tmp_path):
    document = dict(one=dict(rate=1e-7), many=[dict(rate=2.5)], named=dict(a=dict()), count=3)
    expected = Outer(**document)
    text = json.dumps(document)
    assert "1e-07" in text  # a number in JSON, which would be a text in YAML
    assert read(tmp_path, text) == expected
    assert read(tmp_path, "one: {rate: 1.0e-7}\nmany: [{rate: 2.5}]\nnamed: {a: {}}\ncount: 3") == (
        expected
    )
    assert documents.loads(text) == document
    # What is merged in may be overridden, there and where it is merged in again.
    merged = "many: [&a {rate: 9.0}, &b {<<: *a, rate: 2.5}]\none: {<<: *b, rate: 1.0e-7}\n"
    assert read(tmp_path, f"{merged}named: {{a: {{}}}}\ncount: 3").one == expected.one


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read as JSON or YAML"),
        ("[" * 100_000, "cannot be read as JSON or YAML"),
        ('{"count": 1, "count": 2}', "key 'count' is given twice"),
        ("count: 1\ncount: 2", "cannot be .*key 'count' is given twice"),
        ("one: {rate: 1.0, rate: 2.0}", "cannot be .*key 'rate' is given twice"),
        ('{"one": {"rate": NaN}}', "NaN is not a finite number"),
        ('{"one": {"rate": 1e999}}', "1e999 is not a finite number"),
        ("- 1", "Input should be a valid dictionary"),
        ("count: x", "count: Input should be a valid integer.*, not 'x'"),
        ("count: '3.5'", "count: Input should be a valid integer.*, not '3.5'"),
        ("count: []", "count: Input should be a valid integer$"),
        ("counts: 1", "counts: no such key; there are: one, many, named, count$"),
        ("one: {rat: 1}", "one.rat: no such key; there are: rate$"),
        ("many: [{}, {rat: 1}]", "many.1.rat: no such key; there are: rate$"),
        ("named: {b: {rat: 1}}", "named.b.rat: no such key; there are: rate$"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_field(tmp_path, text, said):
    with pytest.raises(ValueError, match=rf"run\.yaml: {said}"):
        read(tmp_path, text)


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    with pytest.raises(ValueError) as refused:
        read(tmp_path, "one: {rate: x}\ncount: y\nmore: 1")
    fields = [line.split(": ")[1] for line in str(refused.value).split("\n")]
    assert fields == ["one.rate", "count", "more"]
