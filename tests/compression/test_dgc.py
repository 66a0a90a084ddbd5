"""Deep gradient compression: worked steps, conservation, the sampled threshold's bounds."""

from __future__ import annotations

import dataclasses
import math
import struct

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, load
from slowlink.methods.compression.pieces import threads


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def step(codec, values, key="w"):
    return codec.decompress(codec.compress(torch.tensor(values), key)).tolist()


def half(**parameters):
    """Sends exactly the larger two of four values: all of them are sampled."""
    return load("dgc", ratio=0.5, lower_bound=0, momentum=0.5, **parameters)


def test_momentum_correction_by_hand():
    codec = half()
    assert step(codec, [4.0, 1.0, -3.0, 2.0]) == [4, 0, -3, 0]
    # u = [0, 1, 0, 2] -> [0, 1.5, 0.5, 5]; v = [0, 2.5, 0.5, 7]
    assert step(codec, [0.0, 1.0, 0.5, 4.0]) == [0, 2.5, 0, 7]
    assert codec.state["w"]["velocity"].tolist() == [0, 0, 0.5, 0]
    assert codec.state["w"]["accumulated"].tolist() == [0, 0, 0.5, 0]


def test_of_nothing_nothing_is_sent():
    assert step(load("dgc"), []) == []


def test_without_masking_the_velocity_stays():
    codec = half(masking=False)
    assert step(codec, [4.0, 1.0, -3.0, 2.0]) == [4, 0, -3, 0]
    assert codec.state["w"]["velocity"].tolist() == [4, 1, -3, 2]
    # u = [2, 1.5, -1, 5]; v = [2, 2.5, -1, 7]
    assert step(codec, [0.0, 1.0, 0.5, 4.0]) == [0, 2.5, 0, 7]


def test_nesterov_by_hand():
    codec = half(nesterov=True)
    # u = g/2, v = u + g = 1.5 g
    assert step(codec, [4.0, 1.0, -3.0, 2.0]) == [6, 0, -4.5, 0]
    # u = ([0, .5, 0, 1] + g)/2 = [0, .75, .25, 2.5]; v = [0, 1.5, 0, 3] + u + g
    assert step(codec, [0.0, 1.0, 0.5, 4.0]) == [0, 3.25, 0, 9.5]


@pytest.mark.parametrize("n", [1, 16, 230, 5_000])
@pytest.mark.parametrize(
    "parameters",
    [{}, {"resample": False, "upper": 1.02}, {"masking": False, "nesterov": True}]
    + [{"strided": False, "lower": 0.98}, {"ratio": 0.5, "halves": True}, {"momentum": 0.0}],
    ids=str,
)
def test_a_small_tensor_s_one_kernel_has_the_bits_of_many(monkeypatch, n, parameters):
    near, apart = (load("dgc", **({"ratio": 0.02, "lower_bound": 0} | parameters)) for _ in "ab")
    for number in range(12):
        gradient = normal(n, number) * (1.0 if number % 3 else 0.01)
        sent = near.compress(gradient, "w")
        with monkeypatch.context() as patch:
            patch.setattr(threads, "ONE_CALL", 0)
            expected = apart.compress(gradient, "w")
        assert bytes(sent.body) == bytes(expected.body)
        for name in ("velocity", "accumulated"):
            assert torch.equal(near.state["w"][name], apart.state["w"][name])


def test_clipping_by_norm_divides_by_the_root_of_the_parties():
    codec = half(clip=10.0, parties=4)  # 10/√4 = 5
    assert step(codec, [6.0, 8.0, 0.0, 0.0]) == [3, 4, 0, 0]
    assert step(codec, [3.0, 4.0, 0.0, 0.0], "other") == [3, 4, 0, 0]


@pytest.mark.parametrize("resample", [True, False])
def test_value_and_residual_conserve_the_input(resample):
    codec = load("dgc", ratio=0.01, lower_bound=0, momentum=0.0, resample=resample)
    put_in, received = torch.zeros(9_000), torch.zeros(9_000)
    for number in range(10):
        gradient = (normal(9_000, number) * 100).round()
        put_in += gradient
        received += codec.decompress(codec.compress(gradient, "w"))
        assert torch.equal(received + codec.state["w"]["accumulated"], put_in)


@pytest.mark.parametrize("resample", [True, False])
def test_every_step_splits_what_was_accumulated(resample):
    codec = load("dgc", ratio=0.01, lower_bound=0, resample=resample)
    n = 2**18 + 5
    u, v = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for number in range(4):
        g = normal(n, number)
        u = np.float32(0.9) * u + g.numpy()
        v = v + u
        sent = codec.decompress(codec.compress(g, "w")).numpy()
        at = sent != 0
        assert np.array_equal(sent[at], v[at])
        u[at] = v[at] = 0
        assert np.array_equal(codec.state["w"]["velocity"].numpy(), u)
        assert np.array_equal(codec.state["w"]["accumulated"].numpy(), v)


@pytest.mark.parametrize("ratio", [0.001, 0.01])
@pytest.mark.parametrize("n", [3_001, 65_536, 100_000])
@pytest.mark.parametrize("heavy", [False, True])
def test_number_sent_lies_between_lower_times_k_and_k(n, ratio, heavy):
    k = -int(-n * ratio // 1)
    for seed in range(10):
        gradient = normal(n, seed)
        if heavy:
            gradient = gradient / normal(n, seed + 50).abs()
        codec = load("dgc", ratio=ratio, lower_bound=0, seed=seed)
        pairs = codec.compress(gradient, "w").nbytes // 8
        assert 0.8 * k <= pairs <= k


def test_adaptation_lowers_a_threshold_that_keeps_too_few():
    n, few = 50_000, 0
    for seed in range(20):
        options = {"ratio": 0.002, "lower_bound": 0, "seed": seed}
        fixed = load("dgc", **options, adaptations=0).compress(normal(n), "w").nbytes // 8
        adapted = load("dgc", **options).compress(normal(n), "w").nbytes // 8
        few += fixed < 80
        assert 80 <= adapted <= 100
    assert few > 0


def test_resampling_takes_exactly_the_largest():
    n, taken = 50_000, 0
    gradient = normal(n)
    exact = gradient.abs().topk(100).indices.sort().values
    for seed in range(20):
        codec = load("dgc", ratio=0.002, lower_bound=0, seed=seed, adaptations=10, upper=1.0001)
        sent = codec.decompress(codec.compress(gradient, "w")).nonzero().view(-1)
        if len(sent) == 100:
            taken += 1
            assert torch.equal(sent, exact)
    assert taken > 0


@pytest.mark.parametrize("gradient", [torch.zeros(5_000), torch.ones(5_000)])
def test_ties_never_exceed_k(gradient):
    codec = load("dgc", ratio=0.01, lower_bound=0)
    assert codec.compress(gradient, "w").nbytes == 8 * 50


def test_warm_up_by_epochs_is_geometric():
    codec = load("dgc", ratio=0.001, warmup=3, steps_per_epoch=2)
    expected = [0.1778, 0.1778, 0.0316, 0.0316, 0.0056, 0.0056, 0.001, 0.001]
    assert [codec.ratio_at(step) for step in range(8)] == pytest.approx(expected, rel=0.01)


def test_warm_up_by_a_list_shows_in_the_bytes():
    codec = load("dgc", ratio=0.001, warmup=[0.25, 0.0625, 0.015625, 0.004], lower_bound=0)
    sent = [codec.compress(normal(16_000, step), "w").nbytes / 8 / 16_000 for step in range(6)]
    for share, ratio in zip(sent, [0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001], strict=True):
        assert 0.8 * ratio <= share <= ratio


def test_predicted_bytes_are_the_most_of_all_steps():
    codec = load("dgc", warmup=[0.25, 0.5, 0.01], lower_bound=10)
    assert codec.payload_bytes((16_001,)) == (8 * 8_001,)
    assert load("dgc").payload_bytes((16_001,)) == (8 * 17,)
    assert load("dgc").payload_bytes((9,)) == (36,)
    assert not codec.exact_bytes
    assert codec.compress(normal(16_001), "w").nbytes <= 8 * 8_001


def test_dds_network_sends_402_1_6_1_pairs():
    """k = ⌈ratio·n⌉ of the four tensors of DDS's 784-512-10 network at ratio 0.001."""
    codec = load("dgc", ratio=0.001, lower_bound=0, momentum=0.0, lower=0.999, adaptations=1000)
    most = {401_408: 402, 512: 1, 5_120: 6, 10: 1}
    for n, k in most.items():
        sent = codec.compress(normal(n), n).nbytes // 8
        assert sent == k


def test_small_tensors_send_their_velocity_whole():
    codec = load("dgc", lower_bound=5, momentum=0.5)
    first = codec.compress(torch.tensor([1.0, 2.0, 3.0, 4.0]), "b")
    assert (first.form, first.dtype, first.nbytes) == ("dense", "float32", 16)
    assert codec.decompress(first).tolist() == [1, 2, 3, 4]
    assert step(codec, [1.0, 1.0, 1.0, 1.0], "b") == [1.5, 2, 2.5, 3]
    nesterov = load("dgc", lower_bound=5, momentum=0.5, nesterov=True)
    assert step(nesterov, [4.0, 0.0, 0.0, 2.0], "b") == [6, 0, 0, 3]


def test_bytes_by_hand_and_merge():
    codec = half()
    a = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    assert (a.form, a.dtype) == ("pairs", "")
    assert a.body.hex(" ", 4) == "00008040 000040c0 00000000 02000000"
    b = half().compress(torch.tensor([0.0, 1.0, 5.0, 0.0]), "w")
    merged = codec.merge([a, b])
    assert merged.body == struct.pack("<3f3i", 4, 1, 2, 0, 1, 2)
    assert codec.merge([merged, b]).body == struct.pack("<3f3i", 4, 2, 7, 0, 1, 2)


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<fi", 1, 4),
        struct.pack("<fi", 1, -1),
        struct.pack("<ffii", 1, 2, 2, 1),
        struct.pack("<ffii", 1, 2, 1, 1),
        struct.pack("<fi", float("nan"), 1),
        struct.pack("<fi", 1, 1)[:7],
    ],
)
def test_malformed_bodies(body):
    with pytest.raises(ValueError, match="dgc pairs: "):
        half().decompress(Payload(body, "dgc", (4,), "pairs"))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 1.5}, "dgc: ratio"),
        ({"clip": -1}, "clip"),
        ({"lower": 1.0}, "lower must be"),
        ({"upper": 1.0}, "upper must be"),
        ({"masking": 1}, "masking must be true or false"),
        ({"warmup": -1}, "warmup must be epochs"),
        ({"warmup": [0.5, 2]}, "warmup must be ratios"),
        ({"warmup": "3"}, "warmup"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("dgc", **parameters)


def test_an_empty_body_cannot_ask_for_a_huge_tensor():
    with pytest.raises(ValueError, match="dgc pairs: body is empty"):
        load("dgc").decompress(Payload(b"", "dgc", (300_000_000,), "pairs"))


@pytest.mark.parametrize("halves", [False, True])
def test_values_may_be_halves(halves):
    """Six bytes a pair, the same pairs; beyond the range of float16 its ends are sent."""
    codec = load("dgc", ratio=0.1, momentum=0.0, lower_bound=0, halves=halves)
    gradient = torch.linspace(-1, 1, 1000) ** 3
    gradient[7] = 1e30
    payload = codec.compress(gradient, "a")
    sent = codec.decompress(payload)
    kept = sent.nonzero()[:, 0]
    assert payload.nbytes == (6 if halves else 8) * len(kept) and len(kept) <= 100
    assert payload.dtype == ("float16" if halves else "")
    expected = gradient[kept].clamp(-65504, 65504).half().float() if halves else gradient[kept]
    assert torch.equal(sent[kept], expected)
    merged = codec.merge([payload, payload])
    assert torch.equal(codec.decompress(merged)[kept][8:], 2 * expected[8:])
    other = load("dgc", ratio=0.1, momentum=0.0, lower_bound=0, halves=not halves)
    with pytest.raises(ValueError):
        other.decompress(payload)


@pytest.mark.parametrize("body", [b"12345", b"\0\x7c" + bytes(4), b"\0\0\xff\xff\xff\x7f"])
def test_malformed_halves_are_refused(body):
    codec = load("dgc", lower_bound=0, halves=True)
    good = codec.compress(torch.ones(100), "a")
    with pytest.raises(ValueError, match="dgc pairs"):
        codec.decompress(dataclasses.replace(good, body=body))


def test_the_sample_may_be_drawn_at_random():
    """Its threshold is the sample's own quantile, and it differs from that at a stride."""
    n, ratio = 100_000, 0.01
    values = torch.randn(n, generator=torch.Generator().manual_seed(1))
    common = dict(ratio=ratio, momentum=0.0, sample_rate=0.1, adaptations=0, lower_bound=0)
    kept = {}
    for strided in (True, False):
        codec = load("dgc", strided=strided, **common)
        at = codec._sampled(n, ratio, "a", 0)
        sample = values[at].abs().sort(descending=True).values
        threshold = sample[math.ceil(ratio * len(sample)) - 1]
        sent = codec.decompress(codec.compress(values, "a")).nonzero()[:, 0]
        over = (values.abs() >= threshold).nonzero()[:, 0]
        assert torch.equal(sent, over[: math.ceil(ratio * n)])
        kept[strided] = at
    strides = kept[True].diff().unique()
    assert len(strides) == 1 and len(kept[False].diff().unique()) > 1
    assert len(kept[False]) == 10_000
