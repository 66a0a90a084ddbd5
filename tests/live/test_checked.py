"""Predicted steps against worked examples, and real ones on shaped links against what must hold."""

import dataclasses
import json
import math

import numpy as np
import pytest

from slowlink.methods import compression
from slowlink.methods.fusion import Costs
from slowlink.testbed.live import checked
from slowlink.testbed.live.checked import (
    Alone,
    Checked,
    Parts,
    Prediction,
    carrier,
    cell_of,
    check_all,
    flat,
    in_turn_s,
    paces,
    predict,
    typical,
)
from slowlink.testbed.live.data_parallel import LiveRun, Run
from slowlink.testbed.network import tcp_efficiency
from slowlink.testbed.training.device import Coding
from slowlink.testbed.training.recipe import Level, Part, Recipe
from tests import small

SHAPES = {"first": (1000, 100), "last": (1000,)}
"""In the order of the model; backward produces the last first."""
FIRST, LAST = 4 * 100_000, 4 * 1000
FORWARD, BACKWARD, UPDATE = 0.010, (0.002, 0.030), 0.003
ITERATION = [FORWARD, *BACKWARD, UPDATE]
RATE, SMALLEST, SINGLE = 100e6, 4e-4, 40_000
CODING = Coding(rate=1e9, fixed_s=1e-4, decode=0.25)
WIRE = RATE * tcp_efficiency() / 8
"""Bytes/s of payload."""


def recipe(codec="identity", fusion="whole_model", workers=2, **changes) -> Recipe:
    codec = codec if isinstance(codec, Part) else Part(name=codec)
    fields = dict(
        exchange=Part(name="allgather"),
        levels=(Level(up=codec),),
        fusion=Part(name=fusion),
        model=Part(name="strided_cnn", hidden=20),
        workers=(workers,),
        rounds=5,
        evaluate_every=5,
    )
    return small.recipe(**fields | changes)


def alone(bytes_of_single, share=1.0, slower=0.0):
    """What a rank measures whose single message got this share of the rate."""
    iterations = np.array([ITERATION] * 3) + slower
    single_s = SMALLEST + bytes_of_single / (share * WIRE)
    return Alone(iterations, CODING, SMALLEST, single_s, SINGLE)


def coding(nbytes):
    """Seconds of encoding, and of decoding one payload."""
    both = 1e-4 + nbytes / 1e9
    return 0.75 * both, 0.25 * both


def test_one_message_of_values_takes_what_it_takes_by_hand():
    found = predict(recipe(), SHAPES, [alone(SINGLE)] * 2, flat(2, RATE))
    encode, decode = coding(FIRST + LAST)
    assert found.carrier == "ring" and found.groups == [[0, 1]]
    assert found.payload_bytes == FIRST + LAST and found.carried == pytest.approx(1)
    # Around a ring of two, each sends half a vector twice.
    assert found.parts.exchange_s == pytest.approx(SMALLEST + (FIRST + LAST) / WIRE, rel=1e-3)
    assert found.parts.compute_s == pytest.approx(sum(ITERATION))
    assert found.parts.coding_s == pytest.approx(encode + decode)
    assert found.parts.hidden_s == pytest.approx(0, abs=1e-9)
    assert found.in_turn_s == pytest.approx(found.parts.step_s)


def test_a_message_a_layer_hides_behind_backward():
    found = predict(recipe(fusion="layer_wise"), SHAPES, [alone(SINGLE)] * 2, flat(2, RATE))
    (e_last, d_last), (e_first, d_first) = coding(LAST), coding(FIRST)
    first_s = SMALLEST + FIRST / WIRE
    hidden_s = SMALLEST + LAST / WIRE
    assert hidden_s < BACKWARD[1] < first_s
    # The first message decodes while the second is on its way.
    assert found.parts.hidden_s == pytest.approx(hidden_s + d_last, rel=1e-3)
    step = sum(ITERATION) + e_last + e_first + first_s + d_first
    assert found.parts.step_s == pytest.approx(step, rel=1e-3)
    assert found.parts.coding_s == pytest.approx(e_last + d_last + e_first + d_first)
    # The last message's start-up is waited for either way.
    assert found.together_s == pytest.approx(step, rel=1e-3)


def test_signs_are_gathered_and_everybody_decodes_all_of_them():
    found = predict(recipe("sign_sgd", workers=4), SHAPES, [alone(3 * SINGLE)] * 4, flat(4, RATE))
    encode, decode = coding(FIRST + LAST)
    assert found.carrier == "allgather" and found.carried == pytest.approx(1)
    assert found.payload_bytes == (FIRST + LAST) / 32
    sent = 3 * found.payload_bytes  # through every card
    assert found.parts.exchange_s == pytest.approx(SMALLEST + sent / WIRE, rel=1e-3)
    assert found.parts.coding_s == pytest.approx(encode + 4 * decode)


def test_the_slow_way_up_counts_and_so_does_what_a_single_message_got():
    """Half the rate for a message alone is half the rate for all."""
    whole = predict(recipe(), SHAPES, [alone(SINGLE)] * 2, flat(2, 4 * RATE, up=RATE))
    assert whole.parts.exchange_s == pytest.approx(SMALLEST + (FIRST + LAST) / WIRE, rel=1e-3)
    half = predict(recipe(), SHAPES, [alone(SINGLE, share=0.5)] * 2, flat(2, RATE))
    assert half.carried == pytest.approx(0.5)
    twice = SMALLEST + 2 * (FIRST + LAST) / WIRE
    assert half.parts.exchange_s == pytest.approx(twice, rel=1e-3)


def test_all_wait_for_the_slowest():
    ranks = [alone(SINGLE), alone(SINGLE, slower=0.01)]
    found = predict(recipe(), SHAPES, ranks, flat(2, RATE))
    assert found.parts.compute_s == pytest.approx(sum(ITERATION) + 4 * 0.01)


def test_messages_one_after_the_other_by_hand():
    costs = Costs.by_values([10, 20], [1.0, 2.0], *([lambda n: 0.5, lambda n: 4.0, lambda n: 1.0]))
    # Ready at 1.5 and 4 s; 1.5 + 4 + 1, then again 4 + 1.
    assert in_turn_s([[0], [1]], costs) == 11.5


def test_gloo_adds_values_and_gathers_the_rest():
    load = compression.load
    added, gathered = ("identity", "fp16", "power_sgd", "count_sketch"), ("qsgd", "top_k", "dgc")
    assert {carrier(load(name)) for name in added} == {"ring"}
    assert {carrier(load(name)) for name in gathered} == {"allgather"}


def test_links_up_and_down():
    network = flat(3, 8e6, up=2e6)
    up = np.isin(network.link_src, network.workers)
    assert set(network.link_rate[up]) == {2e6} and set(network.link_rate[~up]) == {8e6}
    assert set(flat(2, 8e6).link_rate) == {8e6}


# What is said of a cell ---------------------------------------------------------------------------


def run_of_steps(step, compress, exposed, wait, busy):
    arrays = dict(step_s=step, compress_s=compress, exposed_s=exposed, wait_s=wait, busy_s=busy)
    arrays = {name: np.array(values, float) for name, values in arrays.items()}
    nothing = np.zeros_like(arrays["step_s"])
    fields = {field.name: nothing for field in dataclasses.fields(Run)}
    return Run(**fields | arrays)


def test_the_middle_step_is_split_without_rest():
    """Two ranks, a first step that does not count, then 8, 5 and 6 s in the mean."""
    run = run_of_steps(
        step=[[99, 8, 5, 6], [99, 8, 5, 6]],
        compress=[[9, 1, 1, 1], [9, 1, 1, 2]],
        exposed=[[9, 3, 2, 3], [9, 3, 2, 2]],
        wait=[[9, 2, 1, 2], [9, 2, 1, 1]],
        busy=[[9, 5, 5, 4], [9, 5, 5, 4]],
    )
    parts, quartiles = typical(run, warm=1)
    assert parts == Parts(compute_s=2.0, coding_s=2.5, exchange_s=1.5, hidden_s=1.5)
    assert parts.step_s == 6.0 and quartiles == (5.5, 7.0)


def cell(predicted, measured, in_turn_s=None, **changes):
    foretold = Prediction(
        "ring", [[0]], Parts(*predicted), in_turn_s or sum(predicted[:3]), 1000.0, 1.0
    )
    step = sum(measured[:3])
    fields = dict(
        quartiles=(step, step),
        payload_bytes=1000.0,
        busy_share=0.5,
        cpu_share=0.25,
        queued_s=0.0,
        link_share=1.0,
    )
    return Checked(foretold, Parts(*measured), **(fields | changes))


def test_a_small_error_needs_no_reason():
    one = cell((0.1, 0.0, 0.1, 0.0), (0.1, 0.01, 0.11, 0.0))
    assert one.error == pytest.approx(0.2 / 0.22 - 1) and abs(one.error) < checked.NEAR
    assert one.why == ""


def test_reasons_follow_from_the_numbers():
    one = cell(
        (0.1, 0.01, 0.09, 0.0),
        (0.11, 0.01, 0.28, 0.0),
        quartiles=(0.36, 0.44),
        payload_bytes=1200.0,
        busy_share=0.97,
        queued_s=0.05,
        link_share=0.9,
        in_turn_s=0.3,
    )
    assert one.error == pytest.approx(-0.5)
    assert one.why.split("; ") == [
        "exchange 280 ms, not 90 ms (95 % of the difference)",
        "decoding between transfers: 100 ms",
        "payload 1200 B, not 1000 B",
        "processors 97 % busy (25 % with this)",
        "waiting for a processor 50 ms a step",
        "before, links carried 90 % of their rate",
        "half of all steps within 20 % of their time",
    ]


def test_the_part_that_makes_up_for_another_is_no_reason():
    """Predicted 50 ms too long, since coding is, though the exchange took longer."""
    one = cell((0.1, 0.1, 0.05, 0.0), (0.1, 0.03, 0.07, 0.0))
    assert one.error == pytest.approx(0.25)
    assert one.why == "coding 30 ms, not 100 ms (140 % of the difference)"


def test_messages_that_start_together_are_named():
    """Predicted 100 ms too long, of which start-ups one after the other are 90."""
    one = cell((0.1, 0.0, 0.2, 0.0), (0.1, 0.0, 0.1, 0.0))
    told = dataclasses.replace(one.predicted, together_s=0.21)
    assert dataclasses.replace(one, predicted=told).why.split("; ") == [
        "exchange 100 ms, not 200 ms (100 % of the difference)",
        "messages under way together: 90 ms less",
    ]


def test_a_cell_comes_back_from_plain_data():
    one = cell((0.1, 0.01, 0.09, 0.0), (0.11, 0.01, 0.28, 0.0), queued_s=math.nan)
    told = dataclasses.asdict(one) | dict(queued_s=None)
    told["predicted"]["together_s"] = None
    back = cell_of(json.loads(json.dumps(told)))
    assert math.isnan(back.queued_s) and math.isnan(back.predicted.together_s)
    known = dict(queued_s=0.0, predicted=dataclasses.replace(one.predicted, together_s=0.0))
    assert dataclasses.replace(back, **known) == dataclasses.replace(one, **known)


# Real ones ----------------------------------------------------------------------------------------


def test_too_few_steps_and_other_workers_are_refused():
    with pytest.raises(ValueError, match="steps: 2 are not more than 2 that do not count"):
        check_all([LiveRun(recipe(), 2)], flat(2, 1e8))
    with pytest.raises(ValueError, match=r"workers: the network has 3, a case \(2,\)"):
        check_all([LiveRun(recipe(), 5)], flat(3, 1e8))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("real", [False, True])
def test_steps_on_shaped_links(shaped, real):
    rate, told = 2e6, []
    cases = {
        "values": recipe(fusion="layer_wise", system="values"),
        "signs": recipe("sign_sgd", system="signs"),
    }
    single, data = cases["values"].model_copy(update=dict(workers=(1,))), small.noise(80, 4)
    pace = None if real else paces(single, data)
    found = check_all(
        [LiveRun(case, 5, paces=pace) for case in cases.values()],
        flat(2, rate),
        dataset=data,
        measured_s=0.2,
        timeout_s=60,
        done=lambda case, one: told.append((case.recipe.system, one)),
    )
    assert told == list(zip(cases, found, strict=True))
    values, signs = found
    assert len(values.predicted.groups) == 8 and len(signs.predicted.groups) == 1
    for one in found:
        assert one.payload_bytes == one.predicted.payload_bytes
        assert one.measured.step_s >= sum(pace or [0])
        assert one.quartiles[0] <= one.measured.step_s <= one.quartiles[1]
        assert 0 < one.link_share < 1.5 and 0 < one.cpu_share <= 1
    # No link is faster than it is shaped, but for the packets that an idle one lets pass at once.
    carried = values.measured.exchange_s + values.measured.hidden_s
    assert carried > 0.8 * 8 * values.payload_bytes / rate
    assert values.predicted.parts.exchange_s + values.predicted.parts.hidden_s > carried / 3
