"""What a round costs: bytes by slot, who codes what where, transfers, and what overlaps."""

import dataclasses
import inspect
import math
import random
import sys

import numpy as np
import pytest
import torch

from slowlink.methods import compression, exchange, fusion
from slowlink.methods.compression import Compressor, Work, combine_payloads
from slowlink.methods.exchange import in_pieces
from slowlink.testbed import matrix
from slowlink.testbed.network import geo_sites, simulate, star
from slowlink.testbed.prices import STEP, System, load_system, transfers
from slowlink.testbed.training import device, pipeline, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe
from slowlink.workflow.matrix import own, systems

RATE = 1e9
V100 = device.profile("v100_matrix")
LENET = pipeline.layers(Part(name="lenet5"))
SITES = geo_sites([2, 3], lan=1e9, wan=1e8)


def flat(codec="identity", how="ring", workers=4, **rest):
    carried = codec if isinstance(codec, Compressor) else compression.load(codec)
    topology = star(workers, RATE, latency=1e-5)
    return System(exchange.load(how), [carried], topology, **rest)


def costs(*arguments, compute_s=0.1, layers=LENET, **rest):
    return flat(*arguments, **rest).costs(V100, layers, compute_s)


def one_tensor(n):
    return pipeline.Layers("one", (pipeline.Layer("weight", (n,), 0.5),), 1.0)


def coded(what, name, n, times=1):
    return times * getattr(V100, f"{what}_s")(compression.load(name), 4 * n)


# Who codes what where -----------------------------------------------------------------------------


def steps(how, *codecs, topology=SITES):
    levels = [Level(up=Part(name=name)) for name in codecs]
    made = load_system(Part(name=how), levels, topology).gradient()
    return [(s.place, s.what, s.codec.name, s.times, s.share) for s in made]


def test_payloads_that_add_are_decoded_by_workers_only():
    ends = [("worker", "encode", "fp16", 1, 1), ("worker", "decode", "fp16", 1, 1)]
    for how in ("ring", "rat", "parameter_server", "hips"):
        assert steps(how, "fp16") == ends


def test_a_server_that_merges_decodes_everybodys_payload():
    assert steps("parameter_server", "top_k") == [
        ("worker", "encode", "top_k", 1, 1),
        ("centre", "decode", "top_k", 5, 1),
        ("worker", "decode", "top_k", 1, 1),
    ]
    everybody = steps("allgather", "top_k")
    assert everybody == [("worker", "encode", "top_k", 1, 1), ("worker", "decode", "top_k", 5, 1)]


def test_a_server_passes_on_what_only_decodes():
    for how in ("parameter_server", "allgather"):
        assert steps(how, "terngrad") == [
            ("worker", "encode", "terngrad", 1, 1),
            ("worker", "decode", "terngrad", 5, 1),
        ]


def test_colocated_servers_share_the_decoding():
    part = Part(name="parameter_server", shards="colocated")
    system = load_system(part, [Level(up=Part(name="top_k"))], star(4, RATE))
    merging = system.gradient()[1]
    assert (merging.place, merging.times, merging.share) == ("centre", 4, 1 / 4)


def test_site_servers_code_between_levels():
    assert steps("hips", "fp16", "bisparse") == [
        ("worker", "encode", "fp16", 1, 1),
        ("site", "decode", "fp16", 1, 1),  # the sum that has added up
        ("site", "encode", "bisparse", 1, 1),
        ("centre", "decode", "bisparse", 2, 1),
        ("site", "decode", "bisparse", 1, 1),
        ("site", "encode", "fp16", 1, 1),
        ("worker", "decode", "fp16", 1, 1),
    ]
    # The larger site's server has three payloads to decode; of those passed on, each site all.
    inner = [step[1:4] for step in steps("hips", "top_k", "terngrad") if step[0] == "site"]
    assert inner[0] == ("decode", "top_k", 3) and ("decode", "terngrad", 2) in inner


def test_a_server_that_keeps_the_model_decodes_what_it_is_sent_and_codes_the_model():
    level = Level(up=Part(name="sparse_int8"), down=Part(name="fp16"))
    push, pull = load_system(Part(name="parameter_server"), [level], SITES).model()
    assert [(s.place, s.what, s.times) for s in push] == [
        ("worker", "encode", 1),
        ("centre", "decode", 5),
    ]
    assert [(s.place, s.what, s.codec.name) for s in pull] == [
        ("centre", "encode", "fp16"),
        ("worker", "decode", "fp16"),
    ]


# Bytes --------------------------------------------------------------------------------------------

LARGE_ENOUGH = {"bisparse": {"lower_bound": 0, "parties": 4}, "dgc": {"lower_bound": 0}}


@pytest.mark.parametrize("name", compression.names())
def test_answers_are_as_large_as_what_really_comes_back(name):
    n, parties, seeded = 30_000, 4, torch.Generator().manual_seed(0)
    codecs = [compression.load(name, **LARGE_ENOUGH.get(name, {})) for _ in range(parties)]
    sent = [next(c.encode(torch.randn(n, generator=seeded), 0))[0] for c in codecs]
    answer = combine_payloads(codecs[0], sent, codecs[0].combine, 0)
    answer = answer if isinstance(answer, list) else [answer]
    got = sum(payload.nbytes for payload in answer)
    # Where the data decide: payloads of independent values, each of at most the size that is said.
    exact = codecs[0].exact_bytes and name != "top_k"
    said = codecs[0].answer_bytes((n,), parties)[0]
    assert got == said if exact else got == pytest.approx(said, rel=0.1)


@pytest.mark.parametrize("codec, times", [("sign_sgd", 1), ("two_bit", 16), ("terngrad", 4)])
def test_the_answers_size_is_the_codecs_not_the_parties(codec, times):
    (sizes,) = flat(codec, "parameter_server").sizes((160_000,))
    assert sizes["pull/0"] == pytest.approx(times * sizes["push/0"])


def test_every_round_is_sent_and_shapes_matter_where_a_tensor_travels_alone():
    class TwoRounds(Compressor):
        encode_work = decode_work = Work()

        def payload_bytes(self, shape):
            return (1000, 0) if len(shape) == 1 else (4000, 2000)

    assert LENET.tensors[-1].shape == (6, 1, 5, 5) and LENET.sizes[-1] == 150
    system = flat(TwoRounds(), overhead_s=0.01)
    given = system.costs(V100, LENET, 0.1)

    def send(nbytes):
        return system.transfers.seconds(dict.fromkeys(system.plan.slots, nbytes))

    last = len(LENET.sizes)
    assert given.communicate(last - 1, last) == pytest.approx(send(4000) + send(2000) + 0.02)
    assert given.communicate(last - 2, last) == pytest.approx(send(1000) + 0.01)


def test_payloads_of_layers_share_a_message():
    """PowerSGD of rank 4 on two matrices: the codec sees both, though they travel together."""
    shapes = [(100, 30), (80,), (50, 20)]
    tensors = tuple(pipeline.Layer(str(i), shape, 0.1) for i, shape in enumerate(shapes))
    layers, system = pipeline.Layers("three", tensors, 1.0), flat("power_sgd", overhead_s=0.01)
    first, second = ({*sizes.values()} for sizes in system.messages(layers, "layer")(0, 3))
    # P, and the vector as it is; then Q.
    assert (first, second) == ({4 * (4 * 100 + 4 * 50 + 80)}, {4 * 4 * (30 + 20)})
    (flattened,) = system.messages(layers, "group")(0, 3)
    assert {*flattened.values()} == {4 * (3000 + 80 + 1000)}
    given = system.costs(V100, layers, 0.1, "layer")
    one_by_one = sum(given.communicate(i, i + 1) for i in range(3))
    # Five start-ups become two.
    start = 2 * 3 * 2e-5 + 0.01
    assert given.communicate(0, 3) == pytest.approx(one_by_one - 3 * start, rel=1e-3)
    assert given.encode(0, 3) == pytest.approx(sum(given.encode(i, i + 1) for i in range(3)))


# Transfers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ring", "allgather", "parameter_server", "hips"])
@pytest.mark.parametrize("down", [1, 4])
def test_interpolated_transfers_equal_simulated_ones(how, down):
    topology = geo_sites([2, 5], lan=RATE, wan=0.1 * RATE, wan_latency=1e-3)
    exchanger = exchange.load(how)
    made, plan = transfers(exchanger, topology, 0.9), exchanger(topology)
    for nbytes in (1, 2, 3, 5, 1000, 4096, 123_457, 98_765_432):
        sizes = {slot: nbytes * (down if slot == "pull/0" else 1.0) for slot in plan.slots}
        direct = simulate(plan, topology, sizes, efficiency=0.9).completion_s
        assert made.seconds(sizes) == pytest.approx(direct, rel=1e-3)


def test_an_array_of_sizes_takes_what_each_does_in_any_order():
    """And also right below and at the powers of STEP, where lines begin."""
    topology = star(4, RATE, latency=1e-5)  # the rate of simulated networks, so that scale is 1
    powers = STEP ** np.arange(-9.0, 16)
    sizes = np.concatenate([np.nextafter(powers, 0), powers, np.nextafter(powers, 1e99), [0, 777]])
    sizes = np.random.default_rng(0).permutation(sizes)
    made, again = (transfers(exchange.load("ring"), topology, 0.9 - n / 10) for n in range(2))
    one_by_one = [made.alike(nbytes) for nbytes in sizes.tolist()]
    assert made.scale == 1 and np.array_equal(made.alike(sizes), one_by_one)
    first = again.alike(sizes)
    assert np.array_equal(first, [again.alike(nbytes) for nbytes in sizes.tolist()])
    order = np.argsort(sizes)
    assert (np.diff(first[order]) >= -1e-12).all()
    assert first[order][0] == pytest.approx(6 * 2e-5)  # six steps, over two cards each


def test_sizes_right_below_a_power_are_on_the_line_below_it():
    """Of two powers of STEP; of times that are no line, on the sites of the next test."""
    sites = geo_sites([2, 2, 2], lan=RATE, wan=RATE / 64, lan_latency=1e-5, wan_latency=5e-3)
    made = transfers(exchange.load("ring"), sites, 0.95, pieces=32)
    powers = STEP ** np.arange(6.0, 16, 2)
    found = made.alike(np.nextafter(powers / made.scale, 0))
    plan = in_pieces(exchange.load("ring")(sites), 32)
    for nbytes, seconds in zip(powers / made.scale, found, strict=True):
        took = simulate(plan, sites, float(nbytes), efficiency=0.95).completion_s
        assert seconds == pytest.approx(took, rel=1e-3)


@pytest.mark.parametrize("how", ["ring", "rat", "plink"])
def test_times_that_jump_with_the_pieces_of_a_message_are_not_missed(how):
    """Between sites of two: pieces are as long as latencies, and times saw up and down by 25 %."""
    cluster = matrix.Cluster("sites", 6, 155e6, 2, 1e10, 1e-5, 5e-3)
    made = transfers(exchange.load(how), cluster.topology, pieces=32)
    for nbytes in np.geomspace(2e5, 1.2e7, 26):
        sizes = dict.fromkeys(made.plan.slots, float(nbytes))
        direct = simulate(made.plan, cluster.topology, sizes).completion_s
        assert made.seconds(sizes) == pytest.approx(direct, rel=2e-3)


def test_small_messages_over_links_that_are_far_slower_than_the_fastest_are_not_missed():
    """Two hosts of four GPUs, 2.4 Tbit/s inside and 100 Mbit/s between: pieces are as long as
    latencies at a kilobyte, which is less than a byte where the fastest links have RATE."""
    topology = geo_sites(
        [4, 4], lan=2.4e12, wan=1e8, site_wan=1e8, lan_latency=5e-6, wan_latency=1e-4
    )
    made = transfers(exchange.load("ring"), topology, pieces=32)
    for nbytes in np.geomspace(4, 1e5, 30):
        sizes = dict.fromkeys(made.plan.slots, float(nbytes))
        direct = simulate(made.plan, topology, sizes).completion_s
        assert made.seconds(sizes) == pytest.approx(direct, rel=1e-3)


@pytest.mark.parametrize("workers, per_site, wan", [(64, 8, 1e7), (64, 8, 5e7), (16, 4, 1.55e8)])
def test_slots_of_any_proportions_take_what_the_simulator_says(workers, per_site, wan):
    """Plain sums inside of sites, something smaller between them, either way: the longest of
    several chains, which is bent where they are equally long."""
    cluster = matrix.Cluster("sites", workers, wan, per_site, 1e10, 1e-5, 5e-3)
    made, drawn = transfers(exchange.load("hips"), cluster.topology, pieces=32), random.Random(1)
    for _ in range(30):
        inside = 10 ** drawn.uniform(2.5, 7.5)
        sizes = dict.fromkeys(made.plan.slots, inside * 10 ** drawn.uniform(-2.5, 0))
        sizes["push/0"] = inside
        direct = simulate(made.plan, cluster.topology, sizes).completion_s
        assert made.seconds(sizes) == pytest.approx(direct, rel=1e-3)


def test_a_site_that_is_done_goes_on():
    """Three sites of 3, 5 and 9 workers, 1 Gbit/s inside and 155 Mbit/s at the centre."""
    topology, nbytes = geo_sites([3, 5, 9], lan=RATE, wan=155e6), 102e6
    inside, outside = 8 * nbytes / RATE, 8 * nbytes / 155e6

    def last_arrival(queue):
        """Equal transfers that begin at these times share one link evenly."""
        queue, left, now = sorted(queue), [], 0.0
        while queue or left:
            begin = queue[0] if queue else math.inf
            end = now + min(left) * len(left) if left else math.inf
            left = [rest - (min(begin, end) - now) / len(left) for rest in left]
            now = min(begin, end)
            if begin <= end:
                left.append(outside)
                queue.pop(0)
            else:
                left.remove(min(left))
        return now

    up = last_arrival([3 * inside, 5 * inside, 9 * inside])
    down = 3 * outside + 9 * inside  # all sites get the sum at once, the largest hands it on last
    for options in ({}, {"overlap": False}, {"overlap": False, "chunks": 8}):
        made = transfers(exchange.load("hips", **options), topology)
        slots = made.plan.slots
        assert made.seconds(dict.fromkeys(slots, nbytes)) == pytest.approx(up + down, rel=1e-3)
        # Slots of another size wait for nobody either: a dense answer inside of sites.
        sizes = dict.fromkeys(slots, nbytes) | {"push/1": nbytes / 50, "pull/1": nbytes / 50}
        small = 9 * inside + outside / 50 + 3 * outside / 50 + 9 * inside
        assert made.seconds(sizes) == pytest.approx(small, rel=1e-3)


def test_the_slowest_link_does_not_hold_up_the_largest_site():
    """Sites of 3, 5 and 9 workers behind 50, 100 and 155 Mbit/s, into a centre without limits: a
    barrier between phases would add up the largest site and the slowest link, 26 % too much."""
    sites, nbytes = {1: (3, 50e6), 2: (5, 100e6), 3: (9, 155e6)}, 1e8
    even = geo_sites([workers for workers, _ in sites.values()], RATE, 1e15, site_wan=1.0)
    rates = even.link_rate.copy()
    for site, (_, rate) in sites.items():
        switch = even.node_names.index(f"site{site}/switch")
        ends = (even.link_src == switch) | (even.link_dst == switch)
        rates[ends & (even.link_rate == 1.0)] = rate
    topology = dataclasses.replace(even, link_rate=rates)
    expected = 2 * max(8 * nbytes * (n / RATE + 1 / rate) for n, rate in sites.values())
    barrier = 2 * (8 * nbytes * (9 / RATE + 1 / 50e6))
    assert barrier / expected == pytest.approx(1.26, abs=0.01)
    made = transfers(exchange.load("hips", overlap=False), topology)
    got = made.seconds(dict.fromkeys(made.plan.slots, nbytes))
    assert got == pytest.approx(expected, rel=1e-3)


# What overlaps ------------------------------------------------------------------------------------


def test_messages_cost_what_formulas_say():
    wire, latency, n, workers = 8 / RATE, 2e-5, 30_000, 4
    layers = one_tensor(n)
    ring = costs("fp16", overhead_s=0.01, layers=layers)
    expected = 0.01 + 2 * (workers - 1) * (2 * n / workers * wire + latency)
    assert ring.communicate(0, 1) == pytest.approx(expected, rel=1e-6)
    assert ring.encode(0, 1) == coded("encode", "fp16", n)
    assert ring.decode(0, 1) == coded("decode", "fp16", n)
    gathered = costs("sign_sgd", "allgather", layers=layers)
    (nbytes,) = compression.load("sign_sgd").payload_bytes((n,))
    expected = (workers - 1) * nbytes * wire + latency
    assert gathered.communicate(0, 1) == pytest.approx(expected, rel=1e-6)
    assert gathered.decode(0, 1) == pytest.approx(coded("decode", "sign_sgd", n, workers))
    assert sum(ring.backward_s) + ring.forward_s == pytest.approx(0.1)


def test_a_merge_is_decoded_by_the_server_before_it_answers():
    server = costs("sign_sgd", "parameter_server", layers=one_tensor(1000))
    idle = flat("sign_sgd", "parameter_server")
    (sizes,) = idle.sizes((1000,))
    assert server.decode(0, 1) == coded("decode", "sign_sgd", 1000)
    sent = idle.communicate_s(sizes)
    assert server.communicate(0, 1) == pytest.approx(sent + coded("decode", "sign_sgd", 1000, 4))


@pytest.mark.parametrize("name", compression.names())
def test_messages_priced_at_once_cost_what_each_does(name):
    """Of codecs that see layers; to the bit, for the search for groups decides by it."""
    level, at_once = Level(up=Part(name=name)), set()
    for how in ("ring", "allgather", "parameter_server", "hips"):
        try:
            levels = [Level(up=Part(name="identity")), level] if how == "hips" else [level]
            system = load_system(Part(name=how), levels, SITES, overhead_s=1e-4)
        except ValueError:
            continue
        made = system.costs(V100, LENET, 0.1, "layer")
        at_once |= {how} if made.at_once else set()
        one_by_one = fusion.every_message(dataclasses.replace(made, at_once=False))
        told = [system.messages(LENET, "layer")(0, end) for end in range(1, len(LENET.sizes) + 1)]
        sent = [sum(map(system.communicate_s, rounds)) for rounds in told]
        on_the_way = [
            sum(step.seconds(V100, size) for step in system.gradient()[1:-1] for size in sizes)
            for sizes in (LENET.sizes[:end] for end in range(1, len(LENET.sizes) + 1))
        ]
        assert one_by_one[1, 0, 1:] == pytest.approx(np.add(sent, on_the_way), rel=1e-9)
        assert np.array_equal(fusion.every_message(made), one_by_one, equal_nan=True)
    assert "allgather" in at_once  # where all that moves is what everybody sends


def test_a_worker_alone_neither_codes_nor_sends():
    alone = costs("fp16", workers=1)
    iteration = pipeline.overlapped(LENET, fusion.load("layer_wise"), alone)
    assert iteration.iteration_s == pytest.approx(0.1)


def test_servers_of_several_workers_add_up_inside_first():
    inner = star(4, 10 * RATE)
    n = 1_000_000
    given = dict(layers=one_tensor(n))
    outer, within = costs("fp16", **given), costs("fp16", inner=inner, **given)
    extra = within.communicate(0, 1) - outer.communicate(0, 1)
    assert extra == pytest.approx(2 * 3 / 4 * 4 * n * 8 / (10 * RATE))
    assert within.encode(0, 1) == outer.encode(0, 1) and within.decode(0, 1) == outer.decode(0, 1)
    one_server = costs("fp16", workers=1, inner=inner, **given)
    assert one_server.communicate(0, 1) == pytest.approx(extra) and one_server.encode(0, 1) == 0


def test_the_iteration_by_hand_and_its_bounds():
    given = costs("fp16")
    whole = pipeline.overlapped(LENET, fusion.load("whole_model"), given).iteration_s
    n = len(LENET.sizes)
    coding = given.encode(0, n) + given.decode(0, n)
    assert whole == pytest.approx(0.1 + coding + given.communicate(0, n))
    wise = pipeline.overlapped(LENET, fusion.load("layer_wise"), given).iteration_s
    coding = sum(given.encode(i, i + 1) + given.decode(i, i + 1) for i in range(n))
    sending = sum(given.communicate(i, i + 1) for i in range(n))
    rounding = 1e-12
    assert 0.1 + coding - rounding <= wise <= 0.1 + coding + sending


# One price, whoever asks --------------------------------------------------------------------------


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Codecs under other names: files beside those of the room, found as they are."""
    for name in ("sign_sgd", "identity"):
        text = inspect.getsource(inspect.getmodule(type(compression.load(name))))
        (tmp_path / f"my_{name}.py").write_text(text)
    monkeypatch.setattr(compression, "__path__", [*compression.__path__, str(tmp_path)])
    yield
    for name in ("sign_sgd", "identity"):
        sys.modules.pop(f"slowlink.methods.compression.my_{name}", None)


@pytest.mark.parametrize("how", ["allgather", "parameter_server"])
@pytest.mark.parametrize("name", ["sign_sgd", "identity"])
def test_a_copy_of_a_codec_under_another_name_costs_the_same(copied, name, how):
    def ask(codec):
        made = matrix.Method("mine", Part(name=how), (Level(up=Part(name=codec)),))
        return matrix.time_round(made, LENET, matrix.Cluster("flat", 16, 1e10), V100, 1024)

    assert f"my_{name}" in compression.names()
    assert ask(f"my_{name}") == ask(name)


def carried():
    """Every exchange with every codec that it carries; HiPS between sites, others on one switch."""
    for how in exchange.names():
        for name in compression.names():
            carries = exchange.load(how).combines
            if compression.load(name).combine in carries:
                yield how, name


@pytest.fixture(scope="module")
def digits():
    """A data set of a few pictures as large as MNIST's."""
    seeded = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 1, 28, 28), generator=seeded, dtype=torch.uint8)
    labels = torch.arange(40) % 10
    half = torch.tensor([0.5])
    return Dataset("digits", images, labels, images, labels, 10, (1, 28, 28), half, half)


def link(**rates):
    return Link(**rates, lan_latency=1e-5, wan_latency=5e-3, efficiency=0.95)


def run(made, **fields):
    """What trains ``made``."""
    return Recipe(
        document="test",
        experiment="prices",
        system=made.label,
        exchange=made.exchange,
        synchronization=made.synchronization,
        fusion=made.fusion,
        codec_scope=made.codec_scope,
        model=Part(name="lenet5"),
        dataset="digits",
        lr=0.01,
        seed=0,
        scale="smoke",
        device="v100_matrix",
        accelerator="cpu",
        **fields,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["layer", "group"])
@pytest.mark.parametrize("how, name", list(carried()))
def test_clock_matrix_advice_and_search_give_one_number(how, name, scope, digits):
    grouping, several = Part(name="layer_fusion"), how == "hips"
    levels = [Level(up=Part(name="identity"))] * several + [Level(up=Part(name=name))]
    given = dict(latency=1e-5, efficiency=0.95, overhead_s=1e-4)
    cluster = matrix.Cluster("flat", 4, RATE, **given)
    if several:
        cluster = matrix.Cluster("sites", 4, RATE, 2, 10 * RATE, wan_latency=5e-3, **given)
    batch = 8
    made = matrix.Method(name, Part(name=how), tuple(levels), fusion=grouping, codec_scope=scope)
    ranked = matrix.time_round(made, LENET, cluster, V100, 4 * batch)

    answers = dict(exchange=made.exchange, levels=levels, fusion=grouping, codec_scope=scope)
    row = systems.System(**answers)
    asked = own.Asked("lenet5", LENET, 4 * batch, cluster, V100, "v100")
    advised, refused = own.predict({name: row}, asked)
    assert not refused and advised[name] == (made, ranked)

    system = load_system(
        made.exchange, levels, cluster.topology, cluster.efficiency, cluster.overhead_s
    )
    costs = system.costs(V100, LENET, pipeline.single_gpu_s(V100, LENET, batch), scope)
    searched = pipeline.overlapped(LENET, fusion.load(grouping.name), costs)
    assert searched.iteration_s == pytest.approx(ranked.round_s)

    # The trainer's sites have uplinks of their own rate, which two sites cannot fill.
    lan, wan = (10 * RATE, RATE) if several else (RATE, RATE)
    recipe = run(
        made,
        levels=(*levels, *levels[-1:] * (len(system.up) - len(levels))),
        workers=(2, 2) if several else (4,),
        batch=batch,
        rounds=1,
        evaluate_every=1,
        overlap=True,
        overhead_s=1e-4,
        networks={"one": link(lan=lan, wan=wan)},
    )
    clocked = [row.value for row in trainer.train(recipe, load=lambda *_, **__: digits)][-1]
    assert clocked == pytest.approx(ranked.round_s)


SERVED = [
    ("parameter_server", name, policy)
    for name in ("fp16", "sparse_int8", "top_k")
    for policy in ("bsp", "fedavg", "mll_sgd")
]
WHOLE = [
    (how, name, "bsp")
    for how, names in {
        "ring": ("identity", "fp16", "power_sgd", "random_k"),
        "rat": ("identity", "count_sketch"),
        "halving_doubling": ("identity",),
        "allgather": ("top_k", "qsgd"),
    }.items()
    for name in names
]


@pytest.mark.slow
@pytest.mark.parametrize("how, name, policy", [*SERVED, *WHOLE, ("ring", "identity", "fedavg")])
def test_clock_and_matrix_give_one_number_of_local_steps(how, name, policy, digits):
    made = matrix.Method(
        name, Part(name=how), (Level(up=Part(name=name)),), Part(name=policy, local_iterations=3)
    )
    cluster = matrix.Cluster("flat", 4, RATE, latency=1e-5, efficiency=0.95)
    ranked = matrix.time_round(made, LENET, cluster, V100, 4 * 8)
    recipe = run(
        made,
        levels=made.levels,
        workers=(4,),
        batch=8,
        compute_s=pipeline.single_gpu_s(V100, LENET, 8),
        cluster="star",
        rounds=24,
        evaluate_every=12,
        networks={"one": link(lan=RATE, wan=RATE)},
    )
    rows = trainer.train(recipe, load=lambda *_, **__: digits)
    times = {row.round: row.time_s for row in rows if row.metric == "test_accuracy"}
    assert (times[24] - times[12]) / 12 == pytest.approx(ranked.round_s)


@pytest.mark.parametrize("how", ["ring", "rat", "halving_doubling", "butterfly", "plink"])
def test_local_steps_send_their_share_of_what_every_step_would(how):
    cluster = matrix.Cluster("flat", 4, RATE, latency=1e-5, overhead_s=1e-4)
    given = Part(name=how), (Level(up=Part(name="identity")),)
    every = matrix.Method("", *given, fusion=Part(name="whole_model"))
    third = matrix.Method("", *given, Part(name="bsp", local_iterations=3))
    all_steps, local = (matrix.time_round(m, LENET, cluster, V100, 32) for m in (every, third))
    assert local.exchange_s == pytest.approx(all_steps.exchange_s / 3)
    assert local.sent_bytes == pytest.approx(all_steps.sent_bytes / 3)
    assert local.compute_s == all_steps.compute_s


def test_who_meets_in_parts_needs_a_node_that_keeps_the_model(digits):
    told = "ring cannot carry lpsp: some of the workers meet without the others"
    made = matrix.Method(
        "", Part(name="ring"), (Level(up=Part(name="identity")),), Part(name="lpsp")
    )
    with pytest.raises(ValueError, match=told):
        matrix.time_round(made, LENET, matrix.Cluster("flat", 4, RATE), V100, 32)
    fields = dict(levels=made.levels, workers=(4,), batch=8, cluster="star", rounds=1)
    recipe = run(made, evaluate_every=1, networks={"one": link(lan=RATE, wan=RATE)}, **fields)
    with pytest.raises(ValueError, match=told):
        list(trainer.train(recipe, load=lambda *_, **__: digits))


@pytest.mark.parametrize("how", exchange.names())
def test_interpolation_finds_where_pieces_are_shorter_than_the_latency(how):
    cluster = matrix.Cluster("sites", 16, 155e6, 4, 1e10, latency=1e-5, wan_latency=5e-3)
    made = transfers(exchange.load(how), cluster.topology, pieces=32)
    assert made.plan.chunks == exchange.in_pieces(made.plan, 32).chunks
    for nbytes in np.geomspace(1e3, 2e8, 25):
        sizes = dict.fromkeys(made.plan.slots, float(nbytes))
        direct = simulate(made.plan, cluster.topology, sizes).completion_s
        assert made.seconds(sizes) == pytest.approx(direct, rel=0.01)
