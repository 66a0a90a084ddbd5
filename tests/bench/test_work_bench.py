"""What every codec declares of its work, held against the clock.

Machines differ in what a pass, a search, a random number and a product cost beside each other, so
the prices are taken from all codecs together, on the machine that the tests run on. What is judged
is how far a codec then is from its own declaration: by a factor of two a machine may honestly
differ, by four none does.

What is declared are the kernels of a device that every part of a step has one of its own on, as
GPUs have. A processor's shorter way with small tensors is faster and no device is charged by it, so
it is closed while the clock runs.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

from slowlink.methods.compression import Work, load, names
from slowlink.methods.compression.pieces import packing, threads
from slowlink.testbed import measuring
from slowlink.testbed.training import device

ALONE = {"lower_bound": 10**9}
"""Parameters with which every tensor is sent as it is."""
VARIANTS = [
    ("bisparse", ALONE),
    ("count_sketch", ALONE),
    ("count_sketch", ALONE | {"error_feedback": True, "momentum": 0.9}),
    ("count_sketch", {"rows": 1}),
    ("dgc", ALONE),
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

pytestmark = pytest.mark.alone

TOLERANCE = 2.0
"""What machines may honestly differ by."""

BOUND = 3.0
"""What prices of one kind of work beside another may differ by between machines."""

KINDS = ("passes", "selections", "draws", "products")
PROCESSOR = device.profile("geomx_k40m").work
USUAL = np.array([getattr(PROCESSOR, kind).seconds(4) for kind in KINDS])
AGAIN = 5
"""Times that those which are off are measured again before they are judged."""


def cases():
    """Name and parameters of every codec and variant that does any work."""
    every = [(name, {}) for name in names()]
    every += [case for case in VARIANTS if case[0] in names()]
    for name, parameters in every:
        fitting = {k: v for k, v in SPARSE.items() if hasattr(load(name), k)}
        if any(device.work(load(name, **parameters))):
            yield name, fitting | parameters


def clocked(case):
    """What coding takes in this process, which does nothing else."""
    threads.ONE_CALL, packing.SMALL = -1, 0
    name, parameters = case
    return measuring.done(partial(load, name, **parameters), repeats=10)


def measure(which, known):
    """Add what those ``which`` take now to what is ``known`` of them, in the middle of which each
    is judged. A new process clocks them: where the memory of one happens to lie moves all that is
    measured in it the same way."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        times = list(alone.map(clocked, which))
    for (name, parameters), spent in zip(which, times, strict=True):
        works = load(name, **parameters).work(measuring.FEW**2)
        for way, work, one in zip(("encode", "decode"), works, spent, strict=True):
            known.setdefault((name, str(parameters), way), (work, []))[1].append(one)


def middle(known):
    """What is declared and the median of what was measured, by case and way."""
    return {
        key: (work, measuring.Done(*np.median([astuple(one) for one in every], axis=0)))
        for key, (work, every) in known.items()
    }


def off_passes(known):
    """Those whose time with the tensor's size is off what they declare, and by what factor.

    Prices are those of which the declarations differ least from the clock, by the sum of
    magnitudes of logarithms, so that a few that are off do not move them: any price of a pass, and
    of the other kinds beside it within BOUND of the usual.
    """
    worth = (
        np.array([[getattr(work, kind) for kind in KINDS] for work, _ in known.values()]) * USUAL
    )
    copies = np.array([spent.copies for _, spent in known.values()])
    beside = np.geomspace(1 / BOUND, BOUND, 9)
    prices = np.stack(np.meshgrid([1.0], beside, beside, beside), -1).reshape(-1, len(KINDS))
    ratios = np.log(np.maximum(copies, 1e-9)[:, None] / (worth @ (USUAL * prices).T))
    ratios -= np.median(ratios, axis=0)
    return _beyond(known, np.exp(ratios[:, np.abs(ratios).sum(0).argmin()]))


def off_kernels(known):
    """Those whose time on a small tensor is off what they declare, and by what factor."""
    ratios = np.array([spent.few_s / work.kernels for work, spent in known.values()])
    return _beyond(known, ratios / np.median(ratios))


def _beyond(known, ratios):
    return {
        key: round(float(ratio), 2)
        for key, ratio in zip(known, ratios, strict=True)
        if not 1 / TOLERANCE < ratio < TOLERANCE
    }


@pytest.fixture(scope="module")
def timed():
    """By case and way: what is declared, and what it takes here."""
    every, known = list(cases()), {}
    measure(every, known)
    for _ in range(AGAIN):
        off = {key[:2] for found in (off_passes, off_kernels) for key in found(middle(known))}
        measure([case for case in every if (case[0], str(case[1])) in off], known)
    return middle(known)


def test_large_tensors_take_as_long_as_declared(timed):
    assert not off_passes(timed)


def test_small_tensors_take_as_many_kernels_as_declared(timed):
    assert not off_kernels(timed)


@pytest.mark.parametrize("factor", [1 / 4, 4])
def test_whoever_declares_a_quarter_or_four_times_its_work_is_off(timed, factor):
    """A whole file: every variant of the codec, and both ways."""
    for name in {key[0] for key in timed}:
        false = {
            key: (Work(*(factor * part for part in astuple(work))), spent) if key[0] == name
            else (work, spent)
            for key, (work, spent) in timed.items()
        }  # fmt: skip
        assert name in {key[0] for key in off_passes(false)}
        assert name in {key[0] for key in off_kernels(false)}
