"""What every codec declares of its work, held against the clock."""

from functools import partial
from statistics import median

import pytest

from methods.compression import Work, load, names
from testbed import measuring
from testbed.training import device

VARIANTS = [
    ("count_sketch", {"rows": 1}),
    ("count_sketch", {"error_feedback": True, "selection": "top_pk"}),
    ("dgt", {"error_feedback": True}),
    ("dgt", {"lossy": "drop"}),
    ("int8_blocks", {"error_feedback": True}),
    ("power_sgd", {"rank": 1}),
    ("qsgd", {"error_feedback": True}),
    ("random_k", {"error_feedback": False}),
    ("sparse_fp32", {"error_feedback": True}),
    ("sparse_int8", {"error_feedback": True}),
    ("terngrad", {"clip": 0.0}),
    ("top_k", {"error_feedback": False}),
]
SPARSE = {"ratio": 0.01, "lower_bound": 0}
"""Parameters, of those codecs that have them, with which matrices of any size are sparse."""

PROCESSOR = device.profile("geomx_k40m").work
TOLERANCE = 1.4
"""Below √2, so that whoever declares half of what others do is off by more, whatever the noise."""


def cases():
    every = [(name, {}) for name in names()]
    every += [case for case in VARIANTS if case[0] in names()]
    for name, parameters in every:
        fitting = {k: v for k, v in SPARSE.items() if hasattr(load(name), k)}
        if any(device.work(load(name, **parameters))):
            yield name, fitting | parameters


@pytest.fixture(scope="module")
def timed():
    """By case and way: what is declared, and the least of two runs some time apart."""
    found = {}
    for _ in range(2):
        for name, parameters in cases():
            codec = load(name, **parameters)
            spent = measuring.done(partial(load, name, **parameters))
            for way, work, one in zip(("encode", "decode"), device.work(codec), spent, strict=True):
                key = f"{name} {parameters} {way}"
                known = found.get(key, (work, one))[1]
                found[key] = (
                    work,
                    measuring.Done(min(one.few_s, known.few_s), min(one.copies, known.copies)),
                )
    return found


def copies(work):
    """Passes that work is worth on a processor, all kinds together."""
    return PROCESSOR.seconds(work.over_values, 4) / PROCESSOR.passes.seconds(4)


def off(ratios):
    """Those that are off what is usual."""
    usual = median(ratios.values())
    return {
        key: round(ratio / usual, 2)
        for key, ratio in ratios.items()
        if not 1 / TOLERANCE < ratio / usual < TOLERANCE
    }


def test_large_tensors_take_as_many_copies_as_declared(timed):
    assert not off({key: spent.copies / copies(work) for key, (work, spent) in timed.items()})


def test_small_tensors_take_as_many_kernels_as_declared(timed):
    assert not off({key: spent.few_s / work.kernels for key, (work, spent) in timed.items()})


def test_whoever_declares_half_of_its_work_is_off(timed):
    ratios = {key: spent.copies / copies(work) for key, (work, spent) in timed.items()}
    for key in ratios:
        assert key in off(ratios | {key: 2 * ratios[key]})


@pytest.mark.parametrize("name", names())
def test_only_what_sends_values_as_they_are_does_no_work(name):
    codec = load(name)
    encoding, decoding = device.work(codec)
    assert isinstance(encoding, Work) and isinstance(decoding, Work)
    assert bool(encoding) == bool(decoding)
    if not encoding:
        assert codec.payload_bytes((1000,)) == (4000,)
