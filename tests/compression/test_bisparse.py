"""BiSparse: worked steps, conservation, the bounds on k, GeoMX's bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from scipy import stats

from slowlink.methods.compression import Frame, Payload, aggregate, load
from slowlink.methods.compression.pieces import sampling


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def integers(n: int, seed: int = 0, most: int = 50) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (n,), generator=generator).float()


def pairs(payload: Payload) -> tuple[np.ndarray, np.ndarray]:
    """Values and indices of a body, read straight from the layout (padding dropped)."""
    count = payload.nbytes // 8
    values = np.frombuffer(payload.body, "<f4", count)
    kind = "<f4" if payload.form == "padded" else "<i4"
    indices = np.frombuffer(payload.body, kind, count, offset=4 * count)
    return values[indices >= 0], indices[indices >= 0].astype(int)


def resnet50_sizes() -> list[int]:
    """Values of each weight and bias of Gluon's resnet50_v1: 1-channel input, 10 classes.

    Bottleneck: 1×1 (with bias), 3×3, 1×1 (with bias), and a 1×1 shortcut in a stage's first
    block. Batch normalisation's parameters are not part of the paper's sizes.
    """
    sizes, inputs = [64 * 1 * 7 * 7], 64
    for blocks, outputs in ((3, 256), (4, 512), (6, 1024), (3, 2048)):
        inner = outputs // 4
        for block in range(blocks):
            sizes += [inner * inputs, inner, inner * inner * 9, outputs * inner, outputs]
            if block == 0:
                sizes.append(outputs * inputs)
            inputs = outputs
    return [*sizes, 10 * 2048, 10]


def test_two_steps_by_hand():
    # Four values, all of them sampled: T is exactly the second largest |u|.
    codec = load("bisparse", ratio=0.5, momentum=0.5, lower_bound=0, format="tight")
    first = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    # v = u = g; |4| and |-3| are sent, and both u and v are zeroed there.
    assert codec.decompress(first).tolist() == [4, 0, -3, 0]
    assert codec.state["w"]["velocity"].tolist() == [0, 1, 0, 2]
    assert codec.state["w"]["position"].tolist() == [0, 1, 0, 2]
    second = codec.compress(torch.tensor([0.0, 1.0, 0.5, 4.0]), "w")
    # v = [0, 1.5, 0.5, 5], u = [0, 2.5, 0.5, 7].
    assert codec.decompress(second).tolist() == [0, 2.5, 0, 7]
    assert codec.state["w"]["velocity"].tolist() == [0, 0, 0.5, 0]
    assert codec.state["w"]["position"].tolist() == [0, 0, 0.5, 0]


def test_padded_bytes_by_hand():
    codec = load("bisparse", ratio=0.5, lower_bound=0)
    a = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    assert (a.form, a.dtype) == ("padded", "")
    assert a.body.hex(" ", 4) == "00008040 000040c0 00000000 00000040"  # 4, -3; 0.0, 2.0
    other = load("bisparse", ratio=0.5, lower_bound=0)
    b = other.compress(torch.tensor([1.0, 0.0, 0.0, 8.0]), "w")
    answer = codec.merge([a, b])
    # Union 0, 2, 3 of values 4+1, -3, 8; one of parties·k = 4 places is padding.
    assert answer.body == struct.pack("<8f", 5, -3, 8, -65530, 0, 2, 3, -1)
    assert answer.body.hex(" ", 4).split()[3] == "00fa7fc7"
    assert codec.decompress(answer).tolist() == [5, 0, -3, 8]


def test_tight_bytes_by_hand():
    codec = load("bisparse", ratio=0.5, lower_bound=0, format="tight")
    payload = codec.compress(torch.tensor([4.0, 1.0, -3.0, 2.0]), "w")
    assert payload.body.hex(" ", 4) == "00008040 000040c0 00000000 02000000"
    assert codec.merge([payload, payload]).nbytes == 16


@pytest.mark.parametrize("selection", ["first", "largest"])
def test_value_and_residual_conserve_the_input(selection):
    """Without momentum: everything ever put in is either received or in the position."""
    options = {"ratio": 0.05, "lower_bound": 0, "momentum": 0.0, "selection": selection}
    codec = load("bisparse", **options)
    put_in, received = torch.zeros(5_000), torch.zeros(5_000)
    for step in range(12):
        gradient = integers(5_000, seed=step)
        put_in += gradient
        received += codec.decompress(codec.compress(gradient, "w"))
        assert torch.equal(received + codec.state["w"]["position"], put_in)


@pytest.mark.parametrize("format", ["padded", "tight"])
@pytest.mark.parametrize("n", [1_000, 2**18 + 77])
def test_every_step_splits_the_published_update_bit_by_bit(format, n):
    """The fast, blocked form against the published loop in plain numpy."""
    codec = load("bisparse", lower_bound=0, format=format, seed=3)
    v, u = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for step in range(4):
        g = normal(n, seed=step)
        v = np.float32(0.9) * v + g.numpy()
        u = u + v
        random = sampling.generator(3, "w", step)
        at = sampling.scattered_positions(n, codec.sample_size(n), random).numpy()
        threshold = np.sort(np.abs(u[at]))[-codec.least(n)]
        sent = np.flatnonzero(np.abs(u) >= threshold)[: codec.most(n)]
        payload = codec.compress(g, "w")
        assert np.array_equal(pairs(payload)[1], sent)
        assert np.array_equal(pairs(payload)[0], u[sent])
        v[sent] = u[sent] = 0
        assert np.array_equal(codec.state["w"]["velocity"].numpy(), v)
        assert np.array_equal(codec.state["w"]["position"].numpy(), u)


def test_padded_and_tight_say_the_same():
    padded = [load("bisparse", lower_bound=0, parties=3) for _ in range(3)]
    tight = [load("bisparse", lower_bound=0, format="tight") for _ in range(3)]
    for step in range(3):
        tensors = [normal(30_000, seed=10 * step + party) for party in range(3)]
        a, up, down = aggregate(padded, tensors, "w")
        b, up_tight, down_tight = aggregate(tight, tensors, "w")
        assert torch.equal(a[0], b[0])
        assert up == [[8 * 300]] * 3 and down == [8 * 900]
        assert all(sent[0] <= 8 * 300 for sent in up_tight)
        assert down_tight[0] == 8 * len(np.unique(a[0].nonzero()))


def test_union_is_the_dense_sum_in_party_order():
    codecs = [load("bisparse", lower_bound=0, parties=4, seed=party) for party in range(4)]
    sent = [c.compress(normal(20_000, seed=i), "w") for i, c in enumerate(codecs)]
    dense = torch.zeros(20_000)
    for payload in sent:
        dense += codecs[0].decompress(payload)
    assert torch.equal(codecs[0].decompress(codecs[0].merge(sent)), dense)


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.07, 0.29, 1.0])
@pytest.mark.parametrize("n", [10, 100, 1_234, 20_000, 200_000, 210_000])
def test_sample_size_and_rank(n, ratio):
    """sN samples where their rank skN is 10 or more, else 10/k, all where there are fewer."""
    codec = load("bisparse", ratio=ratio, lower_bound=0)
    m, rank = codec.sample_size(n), codec.least(n)
    assert 1 <= m <= n
    if 0.005 * n * ratio >= 10:
        assert m == math.floor(0.005 * n)
    else:
        assert m == min(n, math.floor(10 / ratio))
    assert rank == max(1, math.floor(round(m * ratio, 9)))


GRADIENTS = {
    "normal": normal,
    "heavy tails": lambda n, seed: normal(n, seed) / normal(n, seed + 999).abs(),
    "one constant": lambda n, seed: torch.ones(n),
    "zero": lambda n, seed: torch.zeros(n),
    "mostly zero": lambda n, seed: normal(n, seed) * (normal(n, seed + 1) > 3),
    "few levels": lambda n, seed: integers(n, seed, most=2),
    "ascending": lambda n, seed: torch.arange(n).float(),
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("n", [101, 3_000, 60_000])
def test_number_sent_keeps_its_hard_bounds(kind, n):
    codec = load("bisparse", ratio=0.02, lower_bound=0, format="tight")
    for step in range(3):
        values, _ = pairs(codec.compress(GRADIENTS[kind](n, step), "w"))
        assert codec.least(n) <= len(values) <= codec.most(n) == n * 2 // 100


def test_share_above_the_sampled_threshold_is_beta_distributed():
    """The statement of the docstring: Beta(j, m - j + 1), hence deviation 1/√j around k."""
    n, ratio, runs = 50_000, 0.01, 400
    codec = load("bisparse", ratio=ratio, lower_bound=0)
    m, j = codec.sample_size(n), codec.least(n)
    assert (m, j) == (1_000, 10)
    magnitudes = normal(n).abs()
    shares = []
    for seed in range(runs):
        at = sampling.scattered_positions(n, m, sampling.generator(seed, "w", 0))
        threshold = sampling.kth_largest(magnitudes[at], j)
        shares.append(len(sampling.indices_at_least(magnitudes, threshold)) / n)
    expected = stats.beta(j, m - j + 1)
    assert stats.kstest(shares, expected.cdf).pvalue > 0.001
    assert np.std(shares) / ratio == pytest.approx(1 / math.sqrt(j), rel=0.15)


def test_share_sent_is_near_k_where_the_sample_is_large():
    # ResNet-50's largest tensor: rank j = 117, so the share above T is k ± 9 %.
    n = 512 * 512 * 9
    codec = load("bisparse", format="tight")
    assert codec.least(n) == 117
    low = stats.beta(117, codec.sample_size(n) - 116).ppf(1e-6)
    for step in range(3):
        values, _ = pairs(codec.compress(normal(n, step), "w"))
        assert low * n < len(values) <= n // 100


def test_samples_change_with_step_key_and_seed_only():
    n, gradient = 20_000, normal(20_000)

    def sent(seed, key, steps_before):
        codec = load("bisparse", lower_bound=0, momentum=0.0, seed=seed, format="tight")
        for _ in range(steps_before):
            codec.compress(torch.zeros(n), key)
        return codec.compress(gradient, key).body

    assert sent(0, "a", 0) == sent(0, "a", 0)
    assert len({sent(0, "a", 0), sent(1, "a", 0), sent(0, "b", 0), sent(0, "a", 1)}) == 4


def test_truncation_is_first_come_or_largest():
    n = 20_000
    gradient = normal(n)
    exact = gradient.abs().topk(200).indices.sort().values
    cut = 0
    for seed in range(8):
        options = {"lower_bound": 0, "format": "tight", "seed": seed}
        _, first = pairs(load("bisparse", **options).compress(gradient, "w"))
        _, largest = pairs(load("bisparse", **options, selection="largest").compress(gradient, "w"))
        if len(first) == 200:  # the threshold was low enough for k values or more
            cut += 1
            assert largest.tolist() == exact.tolist()
            assert first[-1] <= largest[-1]
        else:
            assert first.tolist() == largest.tolist()
    assert 0 < cut < 8


def test_resnet50_is_the_papers_model():
    sizes = resnet50_sizes()
    tiny = [n for n in sizes if n < 200_000]
    assert (sum(sizes), sum(tiny)) == (23_488_010, 1_598_986)


@pytest.mark.parametrize(
    ("dense", "up_mb", "down_mb"), [("fp32", "8.15", "9.90"), ("fp16", "4.95", "6.70")]
)
def test_resnet50_bytes_are_those_of_table_2(dense, up_mb, down_mb):
    """Measured on real payloads of every tensor; printed in 10⁶ bytes with two digits."""
    site = load("bisparse", dense=dense)
    up = down = 0
    for number, n in enumerate(resnet50_sizes()):
        payload = site.compress(normal(n, number), number)
        up += payload.nbytes
        down += site.merge([payload, payload], number).nbytes
        k = n // 100 if n >= 200_000 else 0
        width = {"fp32": 4, "fp16": 2}[dense]
        assert payload.nbytes == (8 * k if k else width * n)
    assert (f"{up / 1e6:.2f}", f"{down / 1e6:.2f}") == (up_mb, down_mb)


def test_predicted_bytes():
    padded, tight = load("bisparse", dense="fp16"), load("bisparse", format="tight")
    assert padded.payload_bytes((400, 501)) == (8 * 2_004,) == tight.payload_bytes((400, 501))
    assert padded.payload_bytes((199_999,)) == (399_998,)
    assert tight.payload_bytes((199_999,)) == (799_996,)
    assert padded.exact_bytes and not tight.exact_bytes


def test_lower_bound_splits_dense_from_sparse():
    codec = load("bisparse", lower_bound=1_000)
    small, large = codec.compress(normal(999), "a"), codec.compress(normal(1_000), "b")
    assert (small.form, small.nbytes, small.dtype) == ("dense", 4 * 999, "float32")
    assert (large.form, large.nbytes, large.dtype) == ("padded", 8 * 10, "")
    assert torch.equal(codec.decompress(small), normal(999))
    assert "a" not in codec.state
    # Fewer than 1/ratio values have no share to send.
    assert load("bisparse", lower_bound=0).compress(normal(99), "w").form == "dense"


def test_dense_tensors_add():
    codec = load("bisparse", dense="fp16")
    payload = codec.compress(torch.tensor([1.0, 60_000.0, 1e9]), "w")
    assert payload.nbytes == 6
    # Summed in float32, rounded once, saturated.
    assert codec.decompress(codec.merge([payload] * 3)).tolist() == [3, 65504, 65504]


def test_too_many_parties_for_the_padded_answer():
    codec = load("bisparse", ratio=0.5, lower_bound=0, parties=2)
    payload = codec.compress(normal(8), "w")
    with pytest.raises(ValueError, match="3 payloads of 12 pairs to merge, but parties=2"):
        codec.merge([payload] * 3)


@pytest.mark.slow
def test_padded_refuses_what_float_indices_cannot_say():
    codec = load("bisparse", lower_bound=0, ratio=1e-6)
    with pytest.raises(ValueError, match="use format='tight'"):
        codec.compress(torch.zeros(2**24 + 1), "w")
    codec = load("bisparse", lower_bound=0, ratio=1e-6, format="tight")
    assert codec.compress(torch.zeros(2**24 + 1), "w").nbytes == 8 * 16


def body(values, indices, kind="f"):
    return struct.pack(f"<{len(values)}f{len(indices)}{kind}", *values, *indices)


BAD_PADDED = {
    "index out of range": body([1, 2], [0, 4]),
    "index negative": body([1, 2], [-2, 1]),
    "indices descend": body([1, 2], [2, 1]),
    "index repeats": body([1, 2], [1, 1]),
    "index is no whole number": body([1, 2], [0, 1.5]),
    "index is NaN": body([1, 2], [0, float("nan")]),
    "value is infinite": body([1, float("inf")], [0, 1]),
    "padding in front": body([-65530, 2], [-1, 1]),
    "padding of another value": body([1, 7], [0, -1]),
    "nothing but padding": body([-65530, -65530], [-1, -1]),
    "pairs of nobody": body([1, 2, 3], [0, 1, 2]),
    "half a pair": body([1, 2], [0, 1])[:-4],
    "empty": b"",
}


@pytest.mark.parametrize("what", BAD_PADDED)
def test_malformed_padded_bodies(what):
    codec = load("bisparse", ratio=0.5, lower_bound=0)
    good = Payload(body([1, 2], [0, 3]), "bisparse", (4,), "padded")
    assert codec.decompress(good).tolist() == [1, 0, 0, 2]
    with pytest.raises(ValueError, match="bisparse padded: "):
        codec.decompress(Payload(BAD_PADDED[what], "bisparse", (4,), "padded"))


def test_a_short_body_cannot_ask_for_a_huge_tensor():
    codec = load("bisparse", format="tight")
    with pytest.raises(ValueError, match=r"0 pairs, but 2147483647 values make at least 107374"):
        codec.decompress(Payload(b"", "bisparse", (2**31 - 1,), "tight"))


def test_three_counts_differ():
    payload = load("bisparse").compress(normal(200_000), "conv")
    frame = Frame(payload)
    assert payload.nbytes == 16_000
    # head 18, "bisparse" 8, "padded" 6, no dtype, one dimension 8, digest 16
    assert len(frame.to_bytes()) == frame.nbytes == 16_000 + 18 + 8 + 6 + 8 + 16


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ratio": 0}, r"bisparse: ratio must be a number in \(0, 1\], not 0"),
        ({"ratio": "0.01"}, "ratio must be a number"),
        ({"ratio": True}, "ratio must be a number"),
        ({"sample_rate": float("nan")}, "sample_rate"),
        ({"momentum": 1.0}, "momentum"),
        ({"lower_bound": 1.5}, "lower_bound"),
        ({"dense": "fp8"}, "dense must be fp32 or fp16, not 'fp8'"),
        ({"format": "loose"}, "format must be padded or tight"),
        ({"parties": 0}, "parties"),
        ({"selection": "last"}, "selection"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("bisparse", **parameters)


def test_a_key_keeps_its_size():
    codec = load("bisparse", lower_bound=0)
    codec.compress(normal(1_000), "w")
    with pytest.raises(ValueError, match="'w' has 2000 values, had 1000 before"):
        codec.compress(normal(2_000), "w")
