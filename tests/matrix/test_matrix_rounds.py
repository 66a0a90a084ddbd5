"""Rounds of the matrix against the parts of the testbed that know one case of them."""

import itertools
import math

import numpy as np
import pytest

from slowlink.methods import compression, exchange
from slowlink.methods.compression import Work
from slowlink.testbed.cache import VARIABLE
from slowlink.testbed.matrix import Cluster, Method, best_round, time_round
from slowlink.testbed.network import simulate
from slowlink.testbed.prices import load_codec
from slowlink.testbed.training import device, pipeline
from slowlink.testbed.training.recipe import Level, Part

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


@pytest.mark.parametrize("pieces", [1, 8])
@pytest.mark.parametrize("kind", [flat, sites])
@pytest.mark.parametrize("name", exchange.names())
def test_whole_models_take_what_the_simulator_says(name, kind, pieces):
    cluster, layers = kind(overhead_s=0.0, pieces=pieces), LAYERS["resnet20"]
    made = method(name, fusion=part("whole_model"))
    try:
        got = time_round(made, layers, cluster, V100, 512)
    except ValueError as error:
        assert (name, kind) == ("hips", flat) and "no sites" in str(error)
        return
    plan = exchange.in_pieces(exchange.load(name)(cluster.topology), pieces)
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


@pytest.mark.parametrize("meeting", [{}, {"local_iterations": 3}])
@pytest.mark.parametrize("workers", [12, 13])
def test_workers_that_are_alike_do_not_wait(workers, meeting):
    """The mean of so many equal times is rounded up and down."""
    made = method(synchronization=part("bsp", **meeting))
    got = time_round(made, LAYERS["lenet5"], flat(workers), V100, 512)
    alone_s = pipeline.single_gpu_s(V100, LAYERS["lenet5"], 512 / workers)
    assert np.mean([alone_s] * workers) != alone_s
    assert (got.compute_s, got.wait_s) == (alone_s, 0)


@pytest.mark.parametrize(
    "workers, factors", [(1, [1]), (2, [1, 3]), (3, [1, 2, 3]), (5, [1, 1.5, 2, 2.5, 3])]
)
def test_the_slowest_worker_takes_as_many_times_the_fastest_as_was_said(workers, factors):
    assert sorted(flat(workers, uneven=3.0).seconds(0.5)) == [0.5 * factor for factor in factors]


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp", "gssp", "mll_sgd", "lpsp", "fedavg"])
@pytest.mark.parametrize("codec", ["identity", "two_bit"])
def test_a_worker_alone_only_computes(policy, codec):
    layers, cluster = LAYERS["lenet5"], flat(1, uneven=2.0)
    made = method("parameter_server", codec, synchronization=part(policy))
    got = time_round(made, layers, cluster, V100, 64)
    assert got.round_s == got.compute_s == pytest.approx(V100.compute_s(layers.flops, 64, "lenet5"))
    assert got.sent_bytes == got.wan_bytes == 0 and not got.guessed
    assert best_round([made], layers, cluster, V100, 64) == (made, got)


def test_a_codec_that_sees_a_bucket_is_priced_once_for_it():
    layers = LAYERS["lenet5"]  # ten tensors of 61,706 values: one bucket
    half = dict(rate=1e9, fixed_s=1e-3)
    about = dict(title="t", source="s", flops=1e12, round_overhead_s=0.0, work=device.FREE)
    machine = device.Device(**about, known={"fp16": half})
    for scope, calls in (("layer", 10), ("group", 1)):
        made = method("ring", "fp16", fusion=part("buckets"), codec_scope=scope)
        got = time_round(made, layers, flat(), machine, 512)
        assert got.compress_s == pytest.approx(calls * 1e-3 + 4 * 61_706 / 1e9)


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


# The fastest of all exchanges and fusions --------------------------------------------------------

SPACE = {
    "identity": ("ring", "rat", "halving_doubling", "butterfly", "parameter_hub", "allgather"),
    "fp16": ("ring", "rat", "halving_doubling", "plink", "parameter_server"),
    "power_sgd": ("ring", "rat", "parameter_server"),
    "top_k": ("allgather", "parameter_server"),
    "qsgd": ("allgather", "parameter_server"),
    "count_sketch": ("ring", "rat"),
}
PLACES = {
    "flat": flat(4, pieces=4),
    "slow sites": sites(bandwidth=2e7, pieces=4, overhead_s=1e-4),
    "fast sites": sites(bandwidth=1e10, wan_latency=1e-4, uneven=2.0),
}


def counted(made, layers, cluster, batch, groups):
    """Seconds of a round, message by message, each simulated as it is and coded layer by layer."""
    topology, codec = cluster.topology, load_codec(made.levels[0].up)
    plan = exchange.load(made.exchange.name, **made.exchange.parameters)(topology)
    plan = exchange.in_pieces(plan, cluster.pieces) if cluster.pieces > 1 else plan
    parties = len(topology.workers)
    slowest = max(cluster.seconds(pipeline.single_gpu_s(V100, layers, batch / parties)))
    server = made.exchange.name == "parameter_server"
    sums, merges = codec.combine == "sum", codec.combine == "merge"
    now = slowest - sum(tensor.backward for tensor in layers.tensors) * slowest
    free, arrivals = 0.0, []
    for group in groups:
        tensors = [layers.tensors[i] for i in group]
        now += sum(tensor.backward for tensor in tensors) * slowest
        now += sum(V100.encode_s(codec, 4 * tensor.values) for tensor in tensors)
        took, merging = 0.0, server and merges
        sent = [codec.payload_bytes(t.shape) for t in tensors]
        back = [codec.answer_bytes(t.shape, parties) for t in tensors]
        for up, down in zip(
            *(itertools.zip_longest(*b, fillvalue=0) for b in (sent, back)), strict=True
        ):
            if any(up) or any(down):
                sizes = {"push/0": float(sum(up)), "pull/0": float(sum(down))}
                if not server:
                    sizes = dict.fromkeys(plan.slots, float(sum(up)))
                    sizes["pull/0"] = float(sum(down))
                sizes = {slot: sizes[slot] for slot in plan.slots}
                took += cluster.overhead_s
                took += simulate(plan, topology, sizes, efficiency=cluster.efficiency).completion_s
        times = 1 if sums or merging else parties
        decode = sum(V100.decode_s(codec, 4 * tensor.values) for tensor in tensors)
        took += parties * decode if merging else 0.0
        free = max(free, now) + took
        arrivals.append((free, times * decode))
    for arrived, decode in arrivals:
        now = max(now, arrived) + decode
    return now


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("codec", SPACE)
def test_the_fastest_is_that_of_all_simulated_one_by_one(codec, place):
    """Neither interpolation nor what is left out for its bound changes who is first."""
    layers, cluster, batch = LAYERS["lenet5"], PLACES[place], 512
    made = [method(how, codec, fusion=part("whole_model")) for how in SPACE[codec]]
    n = len(layers.sizes)
    every = [[*range(n)]]
    known = {m.exchange.name: counted(m, layers, cluster, batch, every) for m in made}
    chosen, took = best_round(made, layers, cluster, V100, batch)
    assert took.round_s == pytest.approx(min(known.values()), rel=0.01)
    assert known[chosen.exchange.name] == pytest.approx(min(known.values()), rel=0.01)
    # The best of all groupings of layers, 2 ** (n - 1) of them, over the exchanges.
    best = np.inf
    for how in made:
        for bits in range(2 ** (n - 1)):
            ends = [i + 1 for i in range(n - 1) if bits >> i & 1]
            groups = [[*range(a, b)] for a, b in itertools.pairwise([0, *ends, n])]
            if len(groups) <= 3:
                best = min(best, counted(how, layers, cluster, batch, groups))
    searched = [method(how, codec, fusion=part("optimal")) for how in SPACE[codec]]
    _, took = best_round(searched, layers, cluster, V100, batch)
    assert took.round_s <= best * 1.01


def test_what_was_played_of_a_codec_counts_no_more_when_the_codec_is_edited(monkeypatch, tmp_path):
    """Its name and parameters stay, what it sends and what coding takes do not."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache.sqlite"))
    made = method("parameter_server", "top_k", synchronization=part("asp"))
    kind = type(compression.load("top_k"))

    def timed():
        return time_round(made, LAYERS["lenet5"], flat(), V100, 512)

    before = timed()
    assert timed() == before
    monkeypatch.setattr(kind, "encode_work", Work(passes=10_000, kernels=10_000))
    dear = timed()
    assert dear.compress_s > 2 * before.compress_s
    monkeypatch.setattr(kind, "payload_bytes", lambda its, shape: [4 * math.prod(shape)])
    assert timed().sent_bytes == pytest.approx(2 * 4 * sum(LAYERS["lenet5"].sizes))
