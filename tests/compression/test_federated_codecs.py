"""The formats of DDS's federated rounds: printed sizes, bytes by hand, rounding, error feedback."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from slowlink.methods.compression import Payload, aggregate, load
from slowlink.methods.compression.pieces import quantising

NAMES = ("int8_blocks", "sparse_fp32", "sparse_int8")
LARGEST = torch.finfo(torch.float32).max
MODEL = 1_199_882  # values of the document's convolutional network


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def decode(body: bytes) -> list[float]:
    """A second decoder, value by value, from the layouts alone."""
    if body[:4] == b"Q8\0\1":
        chunk, n, chunks = struct.unpack_from("<iqi", body, 4)
        scales = struct.unpack_from(f"<{chunks}f", body, 20)
        codes = struct.unpack_from(f"<{n}b", body, 20 + 4 * chunks)
        return [code * scales[i // chunk] for i, code in enumerate(codes)]
    n, k = struct.unpack_from("<ii", body, 4)
    result = [0.0] * n
    if body[:4] == b"S4\0\1":
        indices, values = struct.unpack_from(f"<{k}i", body, 12), body[12 + 4 * k :]
        found = struct.unpack(f"<{k}f", values)
    else:
        assert body[:4] == b"SQ\0\1"
        chunk, chunks = struct.unpack_from("<ii", body, 12)
        layout = f"<{k}i{chunks}f{k}b"
        fields = struct.unpack(layout, body[20:])
        indices, scales, codes = fields[:k], fields[k : k + chunks], fields[k + chunks :]
        found = [code * scales[i // chunk] for i, code in enumerate(codes)]
    for index, value in zip(indices, found, strict=True):
        result[index] += value
    return result


@pytest.mark.parametrize(
    ("name", "parameters", "printed"),
    [
        ("identity", {}, 4_799_528),
        ("int8_blocks", {}, 1_204_590),
        ("int8_blocks", {"chunk": 8192}, 1_200_490),
        ("sparse_fp32", {}, 959_916),
        ("sparse_int8", {}, 600_432),
    ],
)
def test_the_sizes_that_the_logs_and_the_text_of_dds_give(name, parameters, printed):
    codec = load(name, **parameters)
    assert codec.payload_bytes((MODEL,)) == (printed,)
    assert codec.compress(normal(MODEL), "model").nbytes == printed


def test_bodies_by_hand():
    values = torch.tensor([127.0, -3.0, 0.5, 1.5, -254.0, 100.0, 0.0])  # 0.5 and 1.5 go to even
    assert load("int8_blocks", chunk=4).compress(values, "w").body == (
        struct.pack("<2s2biqi", b"Q8", 0, 1, 4, 7, 2)
        + struct.pack("<2f7b", 1, 2, 127, -3, 0, 2, -127, 50, 0)
    )
    assert load("sparse_fp32", ratio=0.5).compress(values, "w").body == (
        struct.pack("<2s2b2i", b"S4", 0, 1, 7, 3) + struct.pack("<3i3f", 0, 4, 5, 127, -254, 100)
    )
    assert load("sparse_int8", ratio=0.5, chunk=2).compress(values, "w").body == (
        struct.pack("<2s2b4i", b"SQ", 0, 1, 7, 3, 2, 2)
        + struct.pack("<3i2f3b", 0, 4, 5, 2, np.float32(100) / np.float32(127), 64, -127, 127)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 9, 10, 1023, 1025, 5_000])
def test_another_decoder_reads_the_same(name, n):
    codec = load(name)
    payload = codec.compress(normal(n), "w")
    np.testing.assert_allclose(
        codec.decompress(payload), np.float32(decode(payload.body)), rtol=2**-23, atol=0
    )


@pytest.mark.parametrize("chunk", [1, 3, 1024, 100_000])
@pytest.mark.parametrize("spread", [1e-44, 1e-30, 1.0, 1e30])
def test_every_value_goes_to_the_nearest_multiple(chunk, spread):
    values = normal(3_000) * spread
    codec = load("int8_blocks", chunk=chunk)
    decoded = codec.decompress(codec.compress(values, "w")).double()
    scales, codes = quantising.to_blocks(values, chunk)
    scale = scales.double().repeat_interleave(chunk)[:3_000]
    assert codes.int().abs().max() <= 127
    assert (codes.int().abs().amax() == 127) or spread < 1e-40
    # Halfway, give or take what the division rounds (127·2^-24 of a scale) and, among denormals,
    # where the scale itself is of few bits or 0, what the largest value exceeds 127 of it by.
    slack = 64 * 2.0**-149
    assert ((values.double() - decoded).abs() <= scale * (0.5 + 2**-17) + slack).all()
    assert (decoded.sign() * values.sign() >= 0).all()


def test_what_is_already_a_multiple_is_kept_exactly():
    values = torch.arange(-127, 128).float() * 2.0**-9
    codec = load("int8_blocks", chunk=255)
    assert torch.equal(codec.decompress(codec.compress(values, "w")), values)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_float_survives(name):
    codec, values = load(name, ratio=1.0) if "sparse" in name else load(name), torch.ones(50)
    values[3], values[4] = LARGEST, -LARGEST
    decoded = codec.decompress(codec.compress(values, "w"))
    assert decoded.isfinite().all()
    torch.testing.assert_close(decoded[3:5], values[3:5], rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", [0, 1, 100, 2_049])
@pytest.mark.parametrize("block", [1, 64, 5_000])
@pytest.mark.parametrize("spread", [0.0, 1e-44, 1.0, 1e38])
def test_kernels_equal_their_torch_reference(n, block, spread):
    values = normal(n) * spread
    scales, codes = quantising.to_blocks(values, block)
    expected = quantising.bucket_norms_torch(values, block, "max") / 127
    assert torch.equal(scales, expected.clamp(max=quantising.LARGEST_SCALE))
    assert torch.equal(codes, quantising.nearest_codes_torch(values, scales, block))
    decoded = quantising.scale_buckets(codes.float(), scales, block)
    assert torch.equal(quantising.from_blocks(scales, codes, block), decoded)


@pytest.mark.parametrize("name", NAMES)
def test_result_does_not_depend_on_the_number_of_threads(name):
    threads = torch.get_num_threads()
    try:
        bodies = set()
        for count in (1, 2):
            torch.set_num_threads(count)
            bodies.add(load(name).compress(normal(600_007), "w").body)
    finally:
        torch.set_num_threads(threads)
    assert len(bodies) == 1


@pytest.mark.parametrize("name", ["sparse_fp32", "sparse_int8"])
@pytest.mark.parametrize("n", [1, 9, 10, 11, 400, 40_003])
def test_the_largest_are_sent(name, n):
    values = normal(n).mul(4).round() + 0.25  # many equal ones, none 0
    order = np.argsort(-values.abs().numpy(), kind="stable")
    expected = sorted(order[: max(1, n // 10)].tolist())
    codec = load(name, chunk=1) if name == "sparse_int8" else load(name)
    assert codec.decompress(codec.compress(values, "w")).nonzero().view(-1).tolist() == expected


@pytest.mark.parametrize("name", NAMES)
def test_what_is_sent_and_the_residual_are_the_input(name):
    codec, residual = load(name, error_feedback=True), torch.zeros(3_000)
    for step in range(5):
        due = residual + normal(3_000, step)
        sent = codec.decompress(codec.compress(normal(3_000, step), "w"))
        residual = codec.state["w"]["residual"].clone()
        assert torch.equal(residual, due - sent)
    torch.testing.assert_close(sent + residual, due, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_without_error_feedback_nothing_is_remembered(name):
    codec = load(name)
    bodies = {codec.compress(normal(500), "w").body for _ in range(3)}
    assert len(bodies) == 1 and not codec.state


@pytest.mark.parametrize("name", ["sparse_fp32", "sparse_int8"])
def test_error_feedback_sends_all_in_the_end(name):
    """A constant gradient: after many steps, what was sent is near all that there was."""
    gradient, steps = normal(100).abs() + 0.1, 200
    for feedback, missed in ((True, 0.1), (False, 0.5)):
        codec = load(name, error_feedback=feedback)
        sent = sum(aggregate([codec], [gradient], "w")[0][0] for _ in range(steps))
        lost = float((steps * gradient - sent).norm() / (steps * gradient).norm())
        assert (lost < missed) == feedback


def test_a_server_adds_what_clients_scaled():
    parties = [normal(2_000, seed) for seed in range(3)]
    weights = [0.5, 0.3, 0.2]
    codecs = [load("sparse_int8") for _ in parties]
    scaled = [w * p for w, p in zip(weights, parties, strict=True)]
    (result, *others), up, _ = aggregate(codecs, scaled, "model")
    expected = [decode(load("sparse_int8").compress(p, "model").body) for p in scaled]
    np.testing.assert_allclose(result, np.sum(expected, axis=0), rtol=1e-5, atol=1e-7)
    assert all(torch.equal(result, other) for other in others)
    assert up == [[20 + 5 * 200 + 4]] * 3


def test_the_decoder_takes_other_chunks_and_more_pairs():
    values = normal(100)
    for name in ("int8_blocks", "sparse_int8"):
        payload = load(name, chunk=8).compress(values, "w")
        assert torch.equal(load(name).decompress(payload), load(name, chunk=8).decompress(payload))
    for name in ("sparse_fp32", "sparse_int8"):
        payload = load(name, ratio=0.2).compress(values, "w")
        assert load(name, ratio=0.1).decompress(payload).count_nonzero() == 20
        with pytest.raises(ValueError, match=f"{name} .*20 of 100 values.* needs 30 or more of"):
            load(name, ratio=0.3).decompress(payload)


def q8(chunk=2, n=4, chunks=2, scales=(1.0, 1.0), codes=(1, 2, 3, 4)):
    head = struct.pack("<4siqi", b"Q8\0\1", chunk, n, chunks)
    return head + struct.pack(f"<{len(scales)}f{len(codes)}b", *scales, *codes)


def s4(n=4, k=2, indices=(1, 3), values=(1.0, 2.0), magic=b"S4\0\1"):
    head = struct.pack("<4sii", magic, n, k)
    return head + struct.pack(f"<{len(indices)}i{len(values)}f", *indices, *values)


def sq8(n=4, k=2, chunk=2, chunks=1, indices=(1, 3), scales=(1.0,), codes=(1, 2)):
    head = struct.pack("<4siiii", b"SQ\0\1", n, k, chunk, chunks)
    layout = f"<{len(indices)}i{len(scales)}f{len(codes)}b"
    return head + struct.pack(layout, *indices, *scales, *codes)


def read(name: str, body: bytes) -> torch.Tensor:
    form = {"int8_blocks": "q8", "sparse_fp32": "s4", "sparse_int8": "sq8"}[name]
    codec = load(name) if name == "int8_blocks" else load(name, ratio=0.5)
    return codec.decompress(Payload(body, name, (4,), form))


def test_these_bodies_are_right_but_for_what_is_said_below():
    assert read("int8_blocks", q8()).tolist() == [1, 2, 3, 4]
    assert read("sparse_fp32", s4()).tolist() == [0, 1, 0, 2]
    assert read("sparse_int8", sq8()).tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("int8_blocks", b"", "does not begin with b'Q8"),
        ("int8_blocks", q8()[:19], "does not begin with b'Q8"),
        ("int8_blocks", b"q" + q8()[1:], "does not begin with b'Q8"),
        ("int8_blocks", q8(n=5), "head says 5 values in 2 chunks of 2, the shape has 4"),
        ("int8_blocks", q8(chunk=0), "2 chunks of 0"),
        ("int8_blocks", q8(chunk=-2), "2 chunks of -2"),
        ("int8_blocks", q8(chunks=3), "3 chunks of 2"),
        ("int8_blocks", q8() + b"\0", "body has 33 bytes, its shape needs 32"),
        ("int8_blocks", q8(scales=(1.0, -1.0)), "a scale is negative"),
        ("int8_blocks", q8(scales=(1.0, float("nan"))), "NaN or infinite"),
        ("int8_blocks", q8(scales=(1.0, 3e38)), "127 times a scale is infinite"),
        ("int8_blocks", q8(codes=(1, 2, 3, -128)), "a code is below -127"),
        ("sparse_fp32", s4(magic=b"S4\0\2"), "does not begin with b'S4"),
        ("sparse_fp32", s4(n=5), "head says 2 of 5 values, the shape needs 2 or more of 4"),
        ("sparse_fp32", s4(k=-1), "head says -1 of 4"),
        ("sparse_fp32", s4(k=3), "body has 28 bytes, its shape needs 36"),
        ("sparse_fp32", s4(indices=(1, 4)), "an index lies outside 0…3"),
        ("sparse_fp32", s4(indices=(-1, 2)), "an index lies outside 0…3"),
        ("sparse_fp32", s4(indices=(2, 2)), "indices do not ascend"),
        ("sparse_fp32", s4(values=(1.0, float("inf"))), "NaN or infinite"),
        ("sparse_fp32", s4()[:-1], "body has 27 bytes, its shape needs 28"),
        ("sparse_int8", sq8(k=2**31 - 1, chunk=2**31 - 1), "body has 34 bytes"),
        ("sparse_int8", sq8(k=1), "head says 1 of 4 values in 1 chunks of 2"),
        ("sparse_int8", sq8(chunk=0), "1 chunks of 0"),
        ("sparse_int8", sq8(indices=(3, 1)), "indices do not ascend"),
        ("sparse_int8", sq8(scales=(3e38,)), "127 times a scale is infinite"),
    ],
)
def test_malformed_bodies(name, body, said):
    with pytest.raises(ValueError, match=f"^{name} .*({said})"):
        read(name, body)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("int8_blocks", {"chunk": 0}, "chunk must be a whole number in 1…2147483647, not 0"),
        ("int8_blocks", {"chunk": 2.5}, "chunk must be a whole number"),
        ("sparse_fp32", {"ratio": 0}, r"ratio must be a number in \(0, 1\]"),
        ("sparse_int8", {"ratio": 1.5}, r"ratio must be a number in \(0, 1\]"),
        ("sparse_int8", {"chunk": 2**31}, "chunk must be a whole number"),
        ("sparse_fp32", {"error_feedback": 1}, "error_feedback must be true or false"),
    ],
)
def test_parameters_are_checked(name, parameters, said):
    with pytest.raises(ValueError, match=f"^{name}: {said}"):
        load(name, **parameters)
