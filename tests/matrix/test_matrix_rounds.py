"""Rounds of the matrix against the parts of the testbed that know one case of them."""

import numpy as np
import pytest

from methods import compression, exchange
from testbed.matrix import Cluster, Method, time_round
from testbed.network import simulate
from testbed.prices import load_codec
from testbed.training import device, pipeline
from testbed.training.recipe import Level, Part

ASYNCHRONOUS = ("asp", "ssp", "gssp")
V100 = device.profile("v100_document")
LAYERS = {name: pipeline.layers(Part(name=name)) for name in ("lenet5", "resnet20")}


def part(name, **parameters):
    return Part(name=name, **parameters)


def flat(workers=8, **options):
    given = dict(bandwidth=1e9, latency=1e-5, efficiency=0.95, overhead_s=1e-4)
    return Cluster("flat", workers, **(given | options))


def sites(**options):
    given = dict(bandwidth=155e6, per_site=4, lan=1e10, latency=1e-5, wan_latency=5e-3)
    return Cluster("sites", 16, **(given | options))


def method(exchanger="ring", *codecs, **options):
    levels = tuple(Level(up=c if isinstance(c, Part) else part(c)) for c in codecs)
    return Method("mine", part(exchanger), levels or (Level(up=part("identity")),), **options)


@pytest.mark.parametrize("kind", [flat, sites])
@pytest.mark.parametrize("name", exchange.names())
def test_whole_models_take_what_the_simulator_says(name, kind):
    cluster, layers = kind(overhead_s=0.0), LAYERS["resnet20"]
    made = method(name, fusion=part("whole_model"))
    try:
        got = time_round(made, layers, cluster, V100, 512)
    except ValueError as error:
        assert (name, kind) == ("hips", flat) and "no sites" in str(error)
        return
    plan = exchange.load(name)(cluster.topology)
    nbytes = 4.0 * sum(layers.sizes)
    alone = simulate(plan, cluster.topology, nbytes, efficiency=cluster.efficiency)
    assert got.exchange_s == pytest.approx(alone.completion_s, rel=1e-3)


def test_servers_on_the_way_code_and_the_answer_holds_what_every_site_sent():
    codec = part("bisparse", ratio=0.01, parties=4, lower_bound=0)
    layers, cluster = LAYERS["lenet5"], sites()
    got = time_round(
        method("hips", "identity", codec, fusion=part("whole_model")), layers, cluster, V100, 512
    )
    values = sum(layers.sizes)
    coder = compression.load(**codec.model_dump())
    up = sum(coder.payload_bytes(tensor.shape)[0] for tensor in layers.tensors)
    plan = exchange.load("hips")(cluster.topology)
    answer = sum(coder.answer_bytes(tensor.shape, 4)[0] for tensor in layers.tensors)
    sizes = {"push/0": 4.0 * values, "push/1": up, "pull/1": answer, "pull/0": 4.0 * values}
    coding = sum(V100.encode_s(coder, 4 * size) for size in layers.sizes)
    # All sites' to merge, then theirs.
    coding += (4 + 1) * sum(V100.decode_s(coder, 4 * size) for size in layers.sizes)
    assert got.guessed  # no document prints what BiSparse costs a V100
    sent = simulate(plan, cluster.topology, sizes).completion_s
    assert got.exchange_s == pytest.approx(sent + coding, rel=1e-3)
    assert got.compress_s == 0
    assert got.sent_bytes == 2 * 4 * values
    assert got.wan_bytes == 4 * up + 4 * answer  # four sites up, the centre down to each


def test_a_round_is_the_sum_of_its_parts_and_waits_for_the_slowest():
    even = time_round(method(), LAYERS["lenet5"], flat(), V100, 512)
    uneven = time_round(method(), LAYERS["lenet5"], flat(uneven=2.0), V100, 512)
    times = flat(uneven=2.0).seconds(even.compute_s)
    assert even.wait_s == 0
    assert uneven.wait_s == pytest.approx(max(times) - np.mean(times))
    assert uneven.round_s > even.round_s


@pytest.mark.parametrize("policy", ["asp", "ssp", "gssp", "mll_sgd", "lpsp", "fedavg"])
def test_policies_play_as_many_iterations_as_workers_a_round(policy):
    made = method("parameter_server", synchronization=part(policy))
    layers = LAYERS["lenet5"]
    free = flat(bandwidth=1e18, latency=0.0, overhead_s=0.0)
    alike = time_round(made, layers, free, V100, 512)
    alone = pipeline.single_gpu_s(V100, layers, 64)
    if policy != "lpsp":  # which lets those wait who find its candidates at their limit
        # Even workers, and sending is free; those who never wait vary by a tenth.
        assert alike.round_s == pytest.approx(alone, rel=0.02 if policy in ASYNCHRONOUS else 1e-3)
    slow = time_round(made, layers, flat(uneven=2.0), V100, 512)
    assert slow.round_s == pytest.approx(
        slow.compute_s + slow.compress_s + slow.exchange_s + slow.wait_s
    )
    assert alone < slow.compute_s < 2 * alone


def test_asp_never_waits_and_sends_each_iteration_both_ways():
    layers = LAYERS["lenet5"]
    cluster = flat(uneven=2.0)
    got = time_round(
        method("parameter_server", synchronization=part("asp")), layers, cluster, V100, 512
    )
    assert got.wait_s == pytest.approx(0, abs=1e-9)
    assert got.sent_bytes == pytest.approx(2 * 4 * sum(layers.sizes))


@pytest.mark.parametrize("uneven", [1.0, 2.0])
def test_a_policy_that_meets_in_lockstep_takes_computing_and_both_ways(uneven):
    layers, cluster = LAYERS["lenet5"], flat(uneven=uneven)
    codec = part("fp16")
    made = method("parameter_server", codec, synchronization=part("fedavg"))
    got = time_round(made, layers, cluster, V100, 512)
    values = sum(layers.sizes)
    plan = exchange.load("parameter_server")(cluster.topology)
    sizes = {"push/0": 2.0 * values, "pull/0": 4.0 * values}  # the model comes back dense
    sent = simulate(plan, cluster.topology, sizes, efficiency=cluster.efficiency).completion_s
    half = load_codec(codec)
    encoding = sum(V100.encode_s(half, 4 * n) for n in layers.sizes)
    decoding = sum(V100.decode_s(half, 4 * n) for n in layers.sizes)  # of the sum, by the server
    slowest = max(cluster.seconds(pipeline.single_gpu_s(V100, layers, 64)))
    whole = slowest + encoding + decoding + sent + 2 * cluster.overhead_s
    assert got.round_s == pytest.approx(whole, rel=1e-6)
    assert got.compress_s == pytest.approx(encoding, rel=1e-6)
    assert got.sent_bytes == pytest.approx(6 * values)


@pytest.mark.parametrize(
    "made, cluster, batch, why",
    [
        (method("hips", "identity", "bisparse"), flat(), 512, "no sites"),
        (method("ring", "dgc"), flat(), 512, "cannot carry dgc"),
        (method("rat", "ef_sign_sgd"), flat(), 512, "cannot carry ef_sign_sgd"),
        (method("ring", "identity", "fp16"), flat(), 512, "has 1 level"),
        (method("hips", "power_sgd", "identity"), sites(), 512, "needs several rounds"),
        (method(), flat(), 4, "8 workers share only 4 samples"),
    ],
)
def test_what_cannot_run_says_why(made, cluster, batch, why):
    with pytest.raises(ValueError, match=why):
        time_round(made, LAYERS["lenet5"], cluster, V100, batch)
