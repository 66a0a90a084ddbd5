"""Backward, coding and communication that overlap: layers, costs and the time of an iteration."""

import math

import pytest
import torch

from methods import compression, exchange, fusion
from testbed.network import geo_sites, simulate, star
from testbed.training import models, pipeline
from testbed.training.device import Device
from testbed.training.recipe import Part

RATE = 1e9
DEVICE = Device(
    title="test",
    source="",
    flops=1e12,
    round_overhead_s=0.0,
    compression={
        "identity": math.inf,
        "other": {"rate": 4e9, "fixed_s": 1e-3, "decode": 0.25},
    },
)


def costs(layers, codec="identity", how="ring", workers=4, batch=16, **rest):
    system = exchange.load(how)
    topology = star(workers, RATE, latency=1e-5)
    return pipeline.costs(DEVICE, layers, compression.load(codec), system, topology, batch, **rest)


@pytest.mark.parametrize("name", ["resnet20", "vgg16", "resnet50", "lstm"])
def test_layers_are_the_models_tensors_backwards(name):
    layers = pipeline.layers(Part(name=name))
    with torch.device("meta"):
        shapes = models.gradient_shapes(models.make(name))
    assert [(t.name, t.shape) for t in layers.tensors] == list(shapes.items())[::-1]
    # Two thirds of the operations are backward, a little less where the first layer is heavy.
    assert sum(t.backward for t in layers.tensors) == pytest.approx(2 / 3, abs=5e-3)
    # BatchNorm and biases come with a layer that has operations, or before it.
    by_name = {t.name: t.backward for t in layers.tensors}
    if name == "resnet50":
        assert by_name["bn1.weight"] == by_name["bn1.bias"] == by_name["fc.weight"] == 0
        assert by_name["fc.bias"] == pytest.approx(4 * 1000 * 2048 / layers.flops)


def test_shares_follow_operations_of_a_network_by_hand(monkeypatch):
    chain = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    monkeypatch.setitem(models.MODELS, "chain", lambda: chain)
    layers = pipeline.layers(Part(name="chain"), sample=(5,))
    total = 2 * 2 * 35 + 3 * 2 * 21
    assert layers.flops == total
    assert [(t.name, t.backward) for t in layers.tensors] == [
        ("1.weight", pytest.approx(2 * 2 * 21 / total)),
        ("0.bias", pytest.approx(2 * 35 / total)),
        ("0.weight", 0.0),
    ]


def test_measured_layers_cover_an_iteration():
    torch.set_num_threads(1)
    part = Part(name="lstm", words=200, hidden=16)
    layers = pipeline.measured_layers(part, batch=2, repeats=1)
    assert [t.name for t in layers.tensors] == [t.name for t in pipeline.layers(part).tensors]
    assert all(t.backward >= 0 for t in layers.tensors)
    assert 0 < sum(t.backward for t in layers.tensors) < 1
    assert pipeline.single_gpu_s(DEVICE, layers, 6) == pytest.approx(6 * layers.sample_s)


def test_a_stand_in_is_as_large_and_as_slow_as_its_original():
    original, narrow = (pipeline.layers(Part(name=n)) for n in ("resnet20", "resnet8"))
    scaled = narrow.standing_for(original)
    assert len(scaled.tensors) == len(narrow.tensors)
    assert sum(scaled.sizes) == pytest.approx(sum(original.sizes), rel=1e-3)
    one, other = (pipeline.single_gpu_s(DEVICE, layers, 9) for layers in (scaled, original))
    assert one == other


@pytest.mark.parametrize("how", ["ring", "allgather", "parameter_server"])
@pytest.mark.parametrize("down", [1, 4])
def test_interpolated_transfers_equal_simulated_ones(how, down):
    topology = star(4, RATE, latency=1e-4)
    plan = exchange.load(how)(topology)
    seconds = pipeline.transfer_s(plan, topology, 0.9, down)
    for nbytes in (1, 2, 3, 5, 1000, 4096, 123_457, 98_765_432):
        sizes = {"push/0": nbytes, "pull/0": down * nbytes}
        direct = simulate(plan, topology, sizes, efficiency=0.9).completion_s
        assert seconds(nbytes) == pytest.approx(direct, rel=1e-3)


def test_messages_cost_what_formulas_say():
    layers = pipeline.layers(Part(name="lenet5"))
    wire, latency, n, workers = 8 / RATE, 2e-5, 30_000, 4
    ring = costs(layers, "fp16", overhead_s=0.01)
    steps = 2 * (workers - 1)
    expected = 0.01 + steps * (2 * n / workers * wire + latency)
    assert ring.communicate(n) == pytest.approx(expected, rel=1e-6)
    assert ring.encode(n) == pytest.approx(0.75 * (1e-3 + 4 * n / 4e9))
    assert ring.decode(n) == pytest.approx(0.25 * (1e-3 + 4 * n / 4e9))
    # Everybody's payloads, each of them decoded.
    codec = compression.load("sign_sgd")
    gathered = costs(layers, "sign_sgd", "allgather")
    (nbytes,) = codec.payload_bytes((n,))
    expected = (workers - 1) * nbytes * wire + latency
    assert gathered.communicate(n) == pytest.approx(expected, rel=1e-6)
    assert gathered.decode(n) == pytest.approx(workers * ring.decode(n))
    assert sum(gathered.backward_s) + gathered.forward_s == pytest.approx(layers.flops * 16 / 1e12)


def test_every_round_is_sent_and_shapes_matter_where_a_tensor_travels_alone():
    class TwoRounds(compression.Compressor):
        def payload_bytes(self, shape):
            return (1000, 0) if len(shape) == 1 else (4000, 2000)

    layers = pipeline.layers(Part(name="lenet5"))
    assert layers.tensors[-1].shape == (6, 1, 5, 5) and layers.sizes[-1] == 150
    topology = star(4, RATE, latency=1e-5)
    ring, rest = exchange.load("ring"), dict(batch=1, overhead_s=0.01)
    given = pipeline.costs(DEVICE, layers, TwoRounds(), ring, topology, **rest)
    send = pipeline.transfer_s(ring(topology), topology)
    assert given.communicate(150) == pytest.approx(send(4000) + send(2000) + 0.02)
    assert given.communicate(151) == pytest.approx(send(1000) + 0.01)


def test_a_merge_is_decoded_once_where_a_server_merges():
    layers = pipeline.layers(Part(name="lenet5"))
    server, everybody = (
        costs(layers, "bisparse", how) for how in ("parameter_server", "allgather")
    )
    assert everybody.decode(1000) == pytest.approx(4 * server.decode(1000))


def test_a_worker_alone_neither_codes_nor_sends():
    layers = pipeline.layers(Part(name="lenet5"))
    alone = pipeline.overlapped(layers, fusion.load("layer_wise"), costs(layers, "fp16", workers=1))
    assert alone.iteration_s == pytest.approx(pipeline.single_gpu_s(DEVICE, layers, 16))


def test_servers_of_several_workers_add_up_inside_first():
    layers = pipeline.layers(Part(name="lenet5"))
    inner = star(4, 10 * RATE)
    flat, within = costs(layers, "fp16"), costs(layers, "fp16", inner=inner)
    n = 1_000_000
    extra = within.communicate(n) - flat.communicate(n)
    assert extra == pytest.approx(2 * 3 / 4 * 4 * n * 8 / (10 * RATE))
    assert within.encode(n) == flat.encode(n) and within.decode(n) == flat.decode(n)
    one_server = costs(layers, "fp16", workers=1, inner=inner)
    assert one_server.communicate(n) == pytest.approx(extra) and one_server.encode(n) == 0


def test_the_iteration_by_hand_and_its_bounds():
    layers = pipeline.layers(Part(name="lenet5"))
    given = costs(layers, "fp16")
    whole = pipeline.overlapped(layers, fusion.load("whole_model"), given).iteration_s
    n = sum(layers.sizes)
    compute = pipeline.single_gpu_s(DEVICE, layers, 16)
    assert whole == pytest.approx(
        compute + given.encode(n) + given.communicate(n) + given.decode(n)
    )
    wise = pipeline.overlapped(layers, fusion.load("layer_wise"), given).iteration_s
    coding = sum(given.encode(v) + given.decode(v) for v in layers.sizes)
    sending = sum(map(given.communicate, layers.sizes))
    assert compute + coding <= wise <= compute + coding + sending


def test_exchanges_of_several_levels_are_refused():
    layers = pipeline.layers(Part(name="lenet5"))
    with pytest.raises(ValueError, match="hips has several levels"):
        pipeline.costs(
            DEVICE,
            layers,
            compression.load("identity"),
            exchange.load("hips"),
            geo_sites([2, 2], lan=1e9, wan=1e8),
            16,
        )
