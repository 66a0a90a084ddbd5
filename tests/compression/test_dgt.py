"""Differential gradient transmission: ranking, losses, 4-bit blocks, bytes."""

from __future__ import annotations

import struct

import pytest
import torch

from slowlink.methods.compression import Payload, load


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def kinds(payload: Payload, blocks: int) -> list[int]:
    codes = [(byte >> shift) & 3 for byte in payload.body for shift in (6, 4, 2, 0)]
    return codes[:blocks]


def test_bytes_by_hand():
    # Blocks of 2 with mean |g| 2, 7, 1 and 0.5: one of four is reliable, and the last.
    codec = load("dgt", block_size=2, share=0.25)
    payload = codec.compress(torch.tensor([1.0, 3.0, -7.0, 7.0, 2.0, 0.0, 0.5]), "w")
    # Kinds 3 0 3 0; exact -7, 7, 0.5; scales 3/7 and 2/7; codes 1/(3/7) = 2.33 -> 2+8, 7+8; 7+8, 8.
    assert payload.body[:1].hex() == "cc"
    assert payload.body[1:13] == struct.pack("<3f", -7, 7, 0.5)
    assert struct.unpack("<2f", payload.body[13:21]) == pytest.approx((3 / 7, 2 / 7))
    assert payload.body[21:].hex() == "aff8"
    expected = [2 * 3 / 7, 3.0, -7.0, 7.0, 2.0, 0.0, 0.5]
    assert codec.decompress(payload).tolist() == pytest.approx(expected)


def test_contribution_is_a_weighted_mean_over_steps():
    codec = load("dgt", block_size=2, alpha=0.25)
    codec.compress(torch.tensor([4.0, -4.0, 8.0, 0.0, 1.0]), "w")
    assert codec.state["w"]["contribution"].tolist() == [3.0, 3.0, 0.75]
    codec.compress(torch.tensor([0.0, 0.0, 2.0, 2.0, 3.0]), "w")
    assert codec.state["w"]["contribution"].tolist() == [0.75, 2.25, 0.1875 + 2.25]


def test_the_past_decides_the_rank_too():
    codec = load("dgt", block_size=2, share=1 / 3, alpha=0.9)
    first = codec.compress(torch.tensor([100.0, 100, 1, 1, 0, 0]), "w")
    second = codec.compress(torch.tensor([0.0, 0, 1, 1, 0, 0]), "w")
    assert kinds(first, 3) == kinds(second, 3) == [0, 3, 0]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1_000, 64 * 40])
def test_share_of_reliable_blocks_and_the_number_of_bytes(share, n):
    codec = load("dgt", block_size=64, share=share)
    payload = codec.compress(normal(n), "w")
    blocks = -(-n // 64)
    exact = min(int(share * blocks + 0.5), blocks - 1) + 1  # and always the last
    rough = blocks - exact
    assert kinds(payload, blocks).count(0) == exact
    assert payload.nbytes == -(-blocks // 4) + 4 * (n - 64 * rough) + rough * (4 + 32)


def test_important_blocks_are_exact_and_the_others_within_half_a_step():
    codec = load("dgt", block_size=64, share=0.3)
    gradient = normal(64 * 50) * torch.logspace(-3, 3, 50).repeat_interleave(64)
    payload = codec.compress(gradient, "w")
    rows, decoded = gradient.view(50, 64), codec.decompress(payload).view(50, 64)
    for number, kind in enumerate(kinds(payload, 50)):
        if kind == 0:
            assert torch.equal(decoded[number], rows[number])
        else:
            scale = rows[number].abs().max() / 7
            error = (decoded[number] - rows[number]).abs().max()
            assert 0 < error <= scale / 2 * (1 + 1e-5)
    assert kinds(payload, 50)[-15:] == [0] * 15  # the largest 15 of 50, by construction


def test_lost_blocks_are_zero_and_count_their_bytes():
    codec = load("dgt", block_size=4, share=0.0, lossy="drop", loss=0.4, seed=5)
    n = 4 * 3_000
    payload = codec.compress(normal(n), "w")
    assert payload.nbytes == 750 + 4 * n
    decoded = codec.decompress(payload).view(-1, 4)
    kind = torch.tensor(kinds(payload, 3_000))
    assert torch.equal(decoded[kind != 2], normal(n).view(-1, 4)[kind != 2])
    assert not decoded[kind == 2].any()
    lost = int((kind == 2).sum())
    assert abs(lost - 1_200) < 4 * (3_000 * 0.4 * 0.6) ** 0.5
    again = codec.compress(normal(n), "w")
    assert kinds(again, 3_000) != kinds(payload, 3_000)


def test_important_blocks_are_never_lost():
    codec = load("dgt", block_size=4, share=0.5, lossy="drop", loss=1.0)
    gradient = torch.arange(1, 41).float()
    decoded = codec.decompress(codec.compress(gradient, "w"))
    assert decoded.tolist() == [0] * 16 + list(range(17, 41))


def test_error_feedback_conserves_the_input():
    """Integers up to 7·2^j in each block quantise to integers, so sums are exact."""
    codec = load("dgt", block_size=8, share=0.25, error_feedback=True)
    put_in, received = torch.zeros(800), torch.zeros(800)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        residual = codec.state.get("w", {}).get("residual", torch.zeros(800))
        target = torch.randint(-56, 57, (100, 8), generator=generator).float()
        target[:, 0] = 56  # the scale is 8 then
        gradient = target.view(-1) - residual
        put_in += gradient
        received += codec.decompress(codec.compress(gradient, "w"))
        assert torch.equal(received + codec.state["w"]["residual"], put_in)
    assert codec.state["w"]["residual"].any()


def test_the_server_answers_dense():
    codec = load("dgt", block_size=4, share=0.5)
    payload = codec.compress(normal(40), "w")
    answer = codec.merge([payload, payload])
    assert (answer.form, answer.dtype, answer.nbytes) == ("dense", "float32", 160)
    assert torch.equal(codec.decompress(answer), codec.decompress(payload) * 2)


def test_malformed_bodies():
    codec = load("dgt", block_size=2, share=0.5)
    exact, scale = struct.pack("<f", 5.0), struct.pack("<f", 1.0)

    def decode(body):
        return codec.decompress(Payload(body, "dgt", (3,), "blocks")).tolist()

    assert decode(b"\xc0" + exact + scale + b"\x9f") == [1, 7, 5]
    for body, message in [
        (b"\xc0" + exact + scale, "needs 10"),
        (b"\xc0" + exact + scale + b"\x9f\0", "needs 10"),
        (b"\xc4" + exact + scale + b"\x9f", "bits beyond the last code"),
        (b"\xf0" + exact + scale + b"\x9f", "the last block does not travel reliably"),
        (b"\xc0" + exact + scale + b"\x90", "a 4-bit code stands for nothing"),
        (b"\xc0" + exact + struct.pack("<f", -1) + b"\x9f", "a scale is negative"),
        (b"\xc0" + exact + struct.pack("<f", 1e38) + b"\x9f", "a scale is negative or too large"),
        (b"\xc0" + exact + struct.pack("<f", float("nan")) + b"\x9f", "NaN or infinite"),
        (b"\xc0" + struct.pack("<f", float("inf")) + scale + b"\x9f", "NaN or infinite"),
        (b"", "needs 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            decode(body)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"block_size": 3}, "dgt: block_size must be an even number"),
        ({"share": 1.1}, "share"),
        ({"alpha": 1}, "alpha"),
        ({"lossy": "fp8"}, "lossy must be drop or int4"),
        ({"loss": 0.1}, "loss > 0 needs lossy='drop'"),
        ({"lossy": "drop", "error_feedback": True}, "error_feedback needs lossy='int4'"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(ValueError, match=message):
        load("dgt", **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"block_size": 4, "share": 0.5},
        {"block_size": 6, "share": 0.0},
        {"block_size": 4, "share": 1.0},
        {"block_size": 4, "lossy": "drop", "loss": 0.5},
    ],
)
def test_bytes_are_predicted(parameters):
    codec = load("dgt", **parameters)
    for n in range(1, 60):
        predicted = codec.payload_bytes((n,))
        assert (codec.compress(torch.ones(n), n).nbytes,) == predicted
