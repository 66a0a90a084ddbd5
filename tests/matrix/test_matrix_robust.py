"""Whether who is first stays first with prices off: against asking everyone, and on known moves."""

from dataclasses import replace

import pandas as pd
import pytest

from slowlink.methods import compression
from slowlink.reports.evidence import Estimate
from slowlink.testbed.matrix import best_round
from slowlink.testbed.training import device
from slowlink.testbed.training.pipeline import layers
from slowlink.testbed.training.recipe import Part
from slowlink.workflow import settings
from slowlink.workflow.matrix import robust
from slowlink.workflow.matrix.ranking import first
from slowlink.workflow.matrix.rounds import clusters, methods_of

MODEL = "lenet5"
MATRIX = settings.load({"scale": "desk"}).recipes["matrix"]
MACHINE = device.profile(MATRIX.device)
LAYERS = layers(Part(name=MODEL))


def cluster(bandwidth, workers=8):
    return next(
        one for speeds, one in clusters(MATRIX)
        if (one.kind, speeds, one.workers, one.bandwidth) == ("flat", "even", workers, bandwidth)
    )  # fmt: skip


def timed(there):
    """Every trained method that meets in every round or few, with what a round takes."""
    found, methods = {}, {}
    for label, system in MATRIX.found().items():
        if not system.trained or system.synchronization.name != "bsp":
            continue
        try:
            able = methods_of(label, system)
            found[label] = best_round(able, LAYERS, there, MACHINE, MATRIX.models[MODEL])[1].round_s
        except ValueError:
            continue
        methods[label] = able
    return methods, found


def test_a_codec_on_a_dearer_device_takes_so_many_times_as_long():
    there, dear = robust.changes(cluster(1e9), MACHINE)["coding twice as dear"]
    codec = compression.load("top_k", ratio=0.01)
    assert there == cluster(1e9)
    assert dear.encode_s(codec, 4e6) == pytest.approx(2 * MACHINE.encode_s(codec, 4e6))
    assert dear.decode_s(codec, 4e6) == pytest.approx(2 * MACHINE.decode_s(codec, 4e6))
    there, same = robust.changes(cluster(1e9), MACHINE)["latency half as long"]
    assert there == replace(cluster(1e9), latency=cluster(1e9).latency / 2,
                            wan_latency=cluster(1e9).wan_latency / 2)  # fmt: skip
    assert same == MACHINE


def rounds(methods, there, machine):
    return robust.Rounds(methods, (LAYERS, there, machine, MATRIX.models[MODEL]))


@pytest.mark.parametrize("bandwidth", [10e6, 155e6, 1e9])
def test_who_is_first_then_is_who_is_first_among_all(bandwidth):
    """Nobody is left out who could be first: the same as timing every method anew."""
    here = cluster(bandwidth)
    methods, found = timed(here)
    seconds = {label: Estimate.of(one) for label, one in found.items()}
    (leader, *_), moved = first(seconds), []
    for change, (there, machine) in robust.changes(here, MACHINE).items():
        every = rounds(methods, there, machine)
        then = {label: Estimate.of(every.seconds(label)) for label in methods}
        faster = first(then)
        stays = leader in faster
        expected = leader if stays else faster[0]
        longer = 1.0 if stays else then[leader].mean / then[expected].mean
        few = rounds(methods, there, machine)
        told = robust.ahead(leader, seconds, found, few)
        assert told == (expected, pytest.approx(longer)), change
        assert len(few.timed) < len(methods)
        moved += [] if stays else [change]
    # With LeNet-5 on eight workers the price of coding decides at 155 Mbit/s alone.
    assert moved == (["coding twice as dear"] if bandwidth == 155e6 else [])


def test_a_lead_that_seeds_do_not_tell_apart_is_not_lost():
    """Twice the rounds of one seed and half those of another: no price makes that sure."""
    here = cluster(155e6)
    methods, found = timed(here)
    alone = {label: Estimate.of(one) for label, one in found.items()}
    (leader, *_), other = first(alone), "identity every 8"
    there = rounds(methods, *robust.changes(here, MACHINE)["coding twice as dear"])
    assert robust.ahead(leader, alone, found, there)[0] == other

    def apart(label):
        needed = [100.0, 100.0, 100.0] if label == leader else [50.0, 200.0, 100.0]
        return Estimate.of(found[label] * pd.Series(needed, [1, 2, 3]))

    by_seed = {label: apart(label) for label in methods}
    assert robust.ahead(leader, by_seed, found, there) == (leader, 1.0)
