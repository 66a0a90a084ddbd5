"""Two-bit quantisation: the published bytes, the residual, the server's answer."""

from __future__ import annotations

import pytest
import torch

from slowlink.methods.compression import Payload, aggregate, load


def published(gradient: list[float], residual: list[float], threshold: float) -> bytearray:
    """The published loop, value by value: 16 codes to a 32-bit word, first code highest."""
    body = bytearray(-(-len(gradient) // 16) * 4)
    for i, value in enumerate(gradient):
        residual[i] += value
        if residual[i] >= threshold:
            body[i // 4] |= 0b11 << (6 - 2 * (i % 4))
            residual[i] -= threshold
        elif residual[i] <= -threshold:
            body[i // 4] |= 0b10 << (6 - 2 * (i % 4))
            residual[i] += threshold
    return body


def test_bytes_by_hand():
    codec = load("two_bit", threshold=0.5)
    payload = codec.compress(torch.tensor([0.5, -0.5, 0.25, 1.0, -0.75]), "w")
    # 11 10 00 11 | 10 00 00 00 | …
    assert payload.body.hex() == "e3800000"
    assert codec.decompress(payload).tolist() == [0.5, -0.5, 0, 0.5, -0.5]
    assert codec.state["w"]["residual"].tolist() == [0, 0, 0.25, 0.5, -0.25]
    # The residual counts: 0.25 + 0.25, 0.5 + 0, -0.25 - 0.25.
    second = codec.compress(torch.tensor([0.0, 0.0, 0.25, 0.0, -0.25]), "w")
    assert second.body.hex() == "0f800000"


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 100, 2**18 + 3])
def test_equals_the_published_loop(n):
    codec, residual = load("two_bit", threshold=0.75), [0.0] * n
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        # Multiples of 1/8: float32 and the loop's doubles agree exactly.
        gradient = (torch.randn(n, generator=generator) * 8).round() / 8
        payload = codec.compress(gradient, "w")
        assert payload.body == bytes(published(gradient.tolist(), residual, 0.75))
        assert payload.nbytes == -(-n // 16) * 4
        assert codec.state["w"]["residual"].tolist() == residual


def test_value_and_residual_conserve_the_input():
    codec, put_in, received = load("two_bit"), torch.zeros(777), torch.zeros(777)
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        gradient = (torch.randn(777, generator=generator) * 16).round() / 16
        put_in += gradient
        received += codec.decompress(codec.compress(gradient, "w"))
        assert torch.equal(received + codec.state["w"]["residual"], put_in)


def test_server_decodes_sums_and_answers_dense():
    codecs = [load("two_bit", threshold=1.0) for _ in range(3)]
    tensors = [torch.tensor([1.0, -1.0, 0.0]), torch.tensor([2.0, 0.5, 0.0]), torch.ones(3)]
    results, up, down = aggregate(codecs, tensors, "w")
    assert [result.tolist() for result in results] == [[3, 0, 1]] * 3
    assert up == [[4]] * 3 and down == [12]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x40\0\0\0", "a 2-bit code stands for nothing"),
        (b"\0\0\0", "needs 4"),
        (b"\0" * 8, "needs 4"),
        (b"\0\0\0\x03", "bits beyond the last code"),
    ],
)
def test_malformed_bodies(body, message):
    with pytest.raises(ValueError, match=f"two_bit 2bit: .*{message}"):
        load("two_bit").decompress(Payload(body, "two_bit", (5,), "2bit"))


@pytest.mark.parametrize("threshold", [0, -1, float("inf"), "0.5", None])
def test_threshold_is_checked(threshold):
    with pytest.raises(ValueError, match="two_bit: threshold must be a number > 0"):
        load("two_bit", threshold=threshold)


@pytest.mark.parametrize("threshold", [1e39, 1e-50, 0.0, float("inf")])
def test_thresholds_that_float32_cannot_hold_are_refused(threshold):
    with pytest.raises(ValueError, match="two_bit: threshold must be a number > 0 that float32"):
        load("two_bit", threshold=threshold)
