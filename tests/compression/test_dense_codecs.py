"""Identity and fp16: bytes, rounding, saturation, sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, add_payloads, aggregate, combine_payloads, load


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def test_identity_by_hand():
    codec = load("identity")
    payload = codec.compress(torch.tensor([[1.0, -2.0]]), "w")
    assert payload.body.hex() == "0000803f000000c0"
    assert (payload.dtype, payload.shape, payload.numel) == ("float32", (1, 2), 2)
    assert codec.decompress(payload).tolist() == [[1, -2]]


def test_fp16_by_hand():
    codec = load("fp16")
    payload = codec.compress(torch.tensor([1.0, -2.0, 2049.0, 2051.0, 2.0**-26]), "w")
    assert payload.body.hex(" ", 2) == "003c 00c0 0068 0268 0000"  # to even; to zero
    assert codec.decompress(payload).tolist() == [1, -2, 2048, 2052, 0]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17, 1_000])
def test_identity_is_lossless_and_fp16_rounds_as_numpy_does(n):
    identity, fp16 = load("identity"), load("fp16")
    a, b = identity.compress(normal(n), "w"), fp16.compress(normal(n), "w")
    assert (a.nbytes, b.nbytes) == (4 * n, 2 * n)
    assert torch.equal(identity.decompress(a), normal(n))
    assert b.body == normal(n).numpy().astype("<f2").tobytes()


def test_fp16_saturates_and_counts():
    codec = load("fp16")
    payload = codec.compress(torch.tensor([65504.0, 65519.0, -1e30, 5.0]), "w")
    assert codec.decompress(payload).tolist() == [65504, 65504, -65504, 5]
    assert codec.state["w"]["saturated"] == 2
    codec.compress(torch.tensor([1e9, 0.0, 0.0, 0.0]), "w")
    assert codec.state["w"]["saturated"] == 3
    codec.compress(torch.ones(4), "other")
    assert "other" not in codec.state


def test_identity_sum_is_the_float32_sum_in_party_order():
    codecs = [load("identity") for _ in range(5)]
    tensors = [normal(1_000, seed) for seed in range(5)]
    results, up, down = aggregate(codecs, tensors, "w")
    expected = tensors[0].clone()
    for tensor in tensors[1:]:
        expected += tensor
    assert all(torch.equal(result, expected) for result in results)
    assert up == [[4_000]] * 5 and down == [4_000]


def test_fp16_sums_in_float32_and_rounds_once():
    codec = load("fp16")
    # 2048 + 1 + 1 is 2048 when rounded after every addition, and 2050 when rounded once.
    parts = [codec.compress(torch.tensor([value]), "w") for value in (2048.0, 1.0, 1.0)]
    assert codec.decompress(add_payloads(parts)).tolist() == [2050]
    many = [codec.compress(normal(500, seed), "w") for seed in range(7)]
    exact = sum(np.frombuffer(p.body, "<f2").astype(np.float32) for p in many)
    assert add_payloads(many).body == exact.astype("<f2").tobytes()


def test_fp16_sums_saturate():
    codec = load("fp16")
    parts = [codec.compress(torch.tensor([60_000.0, -60_000.0]), "w")] * 3
    assert codec.decompress(add_payloads(parts)).tolist() == [65504, -65504]


@pytest.mark.parametrize("name", ["identity", "fp16"])
def test_malformed_bodies(name):
    codec = load(name)
    good = codec.compress(normal(6), "w")
    for body in (good.body[:-1], good.body + b"\0", b"", b"\xff" * good.nbytes):
        with pytest.raises(ValueError, match=f"{name} dense: "):
            codec.decompress(Payload(**{**vars(good), "body": body}))


def test_what_cannot_be_added_says_why():
    codec = load("identity")
    a, b = codec.compress(normal(6), "w"), codec.compress(normal(8), "w")
    with pytest.raises(ValueError, match="payloads differ in codec, shape, form or dtype"):
        add_payloads([a, b])
    with pytest.raises(ValueError, match="no payloads to combine"):
        add_payloads([])
    with pytest.raises(ValueError, match="it combines by merging"):
        add_payloads([Payload(b"", "two_bit", (0,), "2bit")])
    with pytest.raises(ValueError, match="dtype 'object' is not one of"):
        add_payloads([Payload(b"", "identity", (0,), "dense", "object")])
    with pytest.raises(ValueError, match="body has 20 bytes, its shape needs 24"):
        add_payloads([a, Payload(**{**vars(a), "body": a.body[:20]})])
    with pytest.raises(ValueError, match="not whole float32"):
        add_payloads([Payload(a.body[:5], "identity", (6,), "dense", "float32")])


def test_combining_by_gathering_returns_all():
    codec = load("identity")
    parts = [codec.compress(normal(4, seed), "w") for seed in range(3)]
    assert combine_payloads(codec, parts, "gather") == parts
    assert combine_payloads(codec, parts, "sum") == add_payloads(parts)
