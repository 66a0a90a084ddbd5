"""What every method of every room promises, whichever files are there."""

import importlib
import sys
import textwrap

import pytest

from slowlink import methods
from slowlink.methods import aggregation, compression, exchange, fusion, synchronization

ROOMS = {
    "exchange": (exchange, exchange.Exchange),
    "compression": (compression, compression.Compressor),
    "synchronization": (synchronization, synchronization.Policy),
    "fusion": (fusion, fusion.Fusion),
    "aggregation": (aggregation, aggregation.Aggregation),
}
EVERY = [(room, name) for room, (module, _) in ROOMS.items() for name in module.names()]


@pytest.mark.parametrize(("room", "name"), EVERY)
def test_method_describes_itself_and_loads_by_its_file_name(room, name):
    module, base = ROOMS[room]
    method = module.load(name)
    assert isinstance(method, base)
    assert method.summary and method.source
    assert type(method).__module__ == f"slowlink.methods.{room}.{name}"


@pytest.mark.parametrize(("room", "name"), EVERY)
def test_unknown_parameter_is_refused_with_what_is_allowed(room, name):
    with pytest.raises(ValueError, match=r"unknown parameter 'no_such'; it takes: "):
        ROOMS[room][0].load(name, no_such=1)


@pytest.mark.parametrize("room", ROOMS)
def test_unknown_method_is_refused_with_the_nearest_name(room):
    module = ROOMS[room][0]
    first = module.names()[0]
    with pytest.raises(ValueError, match=rf"did you mean '{first}'.*there are: "):
        module.load(first + "x")


def test_a_new_file_is_a_new_method_and_its_deletion_removes_it(tmp_path, monkeypatch):
    file = tmp_path / "every_other.py"
    file.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from slowlink.methods.fusion import Fusion

            @dataclass(frozen=True)
            class EveryOther(Fusion):
                summary = "pairs"
                source = "this test"
                width: int = 2

                def __call__(self, sizes, *args):
                    n = len(sizes)
                    return [list(range(i, min(i + self.width, n))) for i in range(0, n, self.width)]
            """
        )
    )
    before = fusion.names()
    monkeypatch.setattr(fusion, "__path__", [*fusion.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    try:
        assert set(fusion.names()) - set(before) == {"every_other"}
        assert fusion.load("every_other", width=3)([1] * 5) == [[0, 1, 2], [3, 4]]
        file.unlink()
        assert fusion.names() == before
    finally:
        sys.modules.pop("slowlink.methods.fusion.every_other", None)


def test_a_file_must_define_exactly_one_method():
    with pytest.raises(ValueError, match="exactly one Policy"):
        methods.method_class(
            "slowlink.methods.fusion", synchronization.Policy, "layer_wise", ["layer_wise"]
        )
