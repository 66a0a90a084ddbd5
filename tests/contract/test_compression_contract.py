"""What every compressor must do, whichever files are in the room."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods.compression import COPY, Frame, Payload, Work, aggregate, load, names
from slowlink.testbed.training import device

VARIANTS = [
    ("bisparse", {"ratio": 0.1, "lower_bound": 0}),
    ("bisparse", {"ratio": 0.1, "lower_bound": 0, "format": "tight", "selection": "largest"}),
    ("bisparse", {"dense": "fp16"}),
    ("count_sketch", {"lower_bound": 0, "error_feedback": True, "momentum": 0.9}),
    ("count_sketch", {"lower_bound": 0, "selection": "top_pk", "rows": 3}),
    ("count_sketch", {"lower_bound": 0, "exact": False}),
    ("dgc", {"ratio": 0.05, "lower_bound": 0}),
    ("dgc", {"ratio": 0.05, "lower_bound": 0, "warmup": 2, "clip": 1.0, "nesterov": True}),
    ("dgt", {"block_size": 4, "share": 0.5}),
    ("dgt", {"block_size": 4, "share": 0.25, "error_feedback": True}),
    ("dgt", {"block_size": 4, "share": 0.25, "lossy": "drop", "loss": 0.3}),
    ("top_k", {"ratio": 0.3, "error_feedback": False}),
    ("random_k", {"ratio": 0.3}),
    ("random_k", {"ratio": 0.3, "error_feedback": False, "scale": True}),
    ("power_sgd", {"square_from": 200}),
    ("qsgd", {"norm": "max"}),
    ("qsgd", {"bits": 3, "bucket": 0, "norm": "max"}),
    ("qsgd", {"bits": 8, "bucket": 5, "error_feedback": True}),
    ("terngrad", {"clip": 0.0}),
    ("int8_blocks", {"chunk": 7, "error_feedback": True}),
    ("sparse_fp32", {"ratio": 0.3, "error_feedback": True}),
    ("sparse_int8", {"ratio": 0.3, "chunk": 5, "error_feedback": True}),
]
CASES = [(name, {}) for name in names()] + [case for case in VARIANTS if case[0] in names()]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 255, 1000]

every_case = pytest.mark.parametrize(("name", "parameters"), CASES, ids=lambda value: str(value))


def gradients(steps: int, shape: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for _ in range(steps)]


def run(codec, tensors, key="w") -> tuple[list[torch.Tensor], list[list[int]]]:
    """What one party alone gets back each step, and the bytes it sent each step."""
    results = [aggregate([codec], [tensor], key) for tensor in tensors]
    return [result[0] for result, _, _ in results], [up[0] for _, up, _ in results]


def payloads(codec, tensor, key="w") -> list[Payload]:
    """What one party alone sends, round by round."""
    sent, encoding = [], codec.encode(tensor, key)
    try:
        payload, how = next(encoding)
        while True:
            sent.append(payload)
            answer = codec.merge([payload], key) if how == "merge" else payload
            payload, how = encoding.send([answer] if how == "gather" else answer)
    except StopIteration:
        return sent


@pytest.mark.parametrize("name", names())
def test_describes_itself_and_works_by_default(name):
    codec = load(name)
    assert codec.name == name
    assert codec.summary and codec.source
    assert type(codec).__doc__
    assert codec.combine in ("sum", "merge", "gather")
    (tensor,) = gradients(1, (40,))
    (result,), _ = run(codec, [tensor])
    assert result.shape == tensor.shape


@pytest.mark.parametrize("name", names())
def test_unknown_parameter_is_refused_with_the_allowed_ones(name):
    with pytest.raises(ValueError, match=f"{name}: unknown parameter 'no_such'; it takes: "):
        load(name, no_such=1)


@every_case
def test_body_is_bytes_and_is_what_is_counted(name, parameters):
    (tensor,) = gradients(1, (37, 5))
    sent = payloads(load(name, **parameters), tensor)
    _, (counted,) = run(load(name, **parameters), [tensor])
    assert all(type(p.body) is bytes and p.nbytes == len(p.body) for p in sent)
    assert counted == [len(p.body) for p in sent]
    assert all(p.codec == name for p in sent)


@every_case
def test_same_seed_same_bytes(name, parameters):
    def stream():
        codec = load(name, **parameters)
        return [p for tensor in gradients(4, (300,)) for p in payloads(codec, tensor)]

    assert stream() == stream()


@every_case
def test_global_generators_are_left_alone(name, parameters):
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    run(load(name, **parameters), gradients(2, (300,)))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
    assert before[2] == np.random.get_state()[1].tobytes()


@every_case
def test_result_does_not_depend_on_global_generators(name, parameters):
    torch.manual_seed(1)
    first, _ = run(load(name, **parameters), gradients(2, (300,)))
    torch.manual_seed(2)
    second, _ = run(load(name, **parameters), gradients(2, (300,)))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@every_case
def test_restored_state_goes_on_bit_equal(name, parameters):
    steps = gradients(6, (500,))
    codec = load(name, **parameters)
    run(codec, steps[:3])
    saved = codec.state_dict()
    expected = run(codec, steps[3:])
    restored = load(name, **parameters)
    restored.load_state_dict(saved)
    run(codec, steps[:1])  # must not reach into what was saved
    again = run(restored, steps[3:])
    restored.load_state_dict(saved)  # which the restored codec has not changed either
    once_more = run(restored, steps[3:])
    for results, sent in (again, once_more):
        assert expected[1] == sent
        assert all(torch.equal(a, b) for a, b in zip(expected[0], results, strict=True))


@every_case
def test_generator_equals_compress_then_decompress(name, parameters):
    one, other = load(name, **parameters), load(name, **parameters)
    if not one.one_shot:
        pytest.skip("several rounds")
    for tensor in gradients(3, (300,)):
        (result,), _, _ = aggregate([one], [tensor], "w")
        payload = other.compress(tensor, "w")
        answer = other.merge([payload], "w") if other.combine == "merge" else payload
        assert torch.equal(result, other.decompress(answer))
        assert torch.equal(result, other.decompress(payload))


@every_case
@pytest.mark.parametrize("size", SIZES)
def test_any_size(name, parameters, size):
    codec = load(name, **parameters)
    results, _ = run(codec, gradients(2, (size,)))
    for result in results:
        assert result.shape == (size,) and result.dtype == torch.float32
        assert result.isfinite().all()


@every_case
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(), (1,), (4, 5), (3, 1, 7), (2, 3, 4, 5), (6, 0, 2), (70_000,)])
def test_any_shape_on_any_device(name, parameters, device, shape):
    (tensor,) = gradients(1, shape)
    (result,), _ = run(load(name, **parameters), [tensor.to(device)])
    flat, _ = run(load(name, **parameters), [tensor.reshape(-1)])
    assert result.device.type == device and result.shape == shape
    if device == "cpu":
        assert torch.equal(result.reshape(-1), flat[0])
    else:  # a GPU adds sketches and multiplies matrices in orders of its own
        torch.testing.assert_close(result.cpu().reshape(-1), flat[0])


@every_case
def test_strided_input_equals_contiguous(name, parameters):
    (tensor,) = gradients(1, (24, 30))
    contiguous, _ = run(load(name, **parameters), [tensor.t().contiguous()])
    strided, _ = run(load(name, **parameters), [tensor.t()])
    assert torch.equal(contiguous[0], strided[0])


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_equal_their_float32(name, parameters, dtype):
    (tensor,) = (tensor.to(dtype) for tensor in gradients(1, (100,)))
    given_, _ = run(load(name, **parameters), [tensor])
    as_float32, _ = run(load(name, **parameters), [tensor.float()])
    assert given_[0].dtype == torch.float32
    assert torch.equal(given_[0], as_float32[0])


@every_case
def test_input_is_not_changed(name, parameters):
    tensors = gradients(2, (300,))
    kept = [tensor.clone() for tensor in tensors]
    run(load(name, **parameters), tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, kept, strict=True))


@every_case
def test_result_is_not_an_alias_of_state_or_input(name, parameters):
    codec, (tensor,) = load(name, **parameters), gradients(1, (300,))
    (result,), _ = run(codec, [tensor])
    kept, saved = tensor.clone(), str(codec.state_dict())
    result.fill_(12345.0)
    assert torch.equal(tensor, kept) and str(codec.state_dict()) == saved


@every_case
def test_zero_stays_zero(name, parameters):
    codec = load(name, **parameters)
    if not codec.adds:
        pytest.skip("a vote has no zero")
    results, _ = run(codec, [torch.zeros(3, 50)] * 2)
    assert all(not result.any() for result in results)


@every_case
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_are_refused_naming_the_key_and_leave_the_state(name, parameters, poison):
    codec, clean = load(name, **parameters), load(name, **parameters)
    steps = gradients(2, (300,))
    run(codec, steps[:1], "layer.7"), run(clean, steps[:1], "layer.7")
    bad = steps[1].clone()
    bad[17] = poison
    with pytest.raises(ValueError, match=r"'layer\.7'.*1 of 300 values are NaN or infinite"):
        run(codec, [bad], "layer.7")
    after, expected = run(codec, steps[1:], "layer.7"), run(clean, steps[1:], "layer.7")
    assert torch.equal(after[0][0], expected[0][0])


@every_case
def test_integers_are_refused(name, parameters):
    with pytest.raises(ValueError, match="'w' must be a floating-point torch tensor"):
        run(load(name, **parameters), [torch.arange(10)])


@every_case
def test_keys_are_independent(name, parameters):
    a, b = gradients(3, (300,), seed=1), gradients(3, (7, 11), seed=2)
    mixed, alone_a, alone_b = (load(name, **parameters) for _ in range(3))
    for x, y in zip(a, b, strict=True):
        got_x, _ = run(mixed, [x], ("a", 0))
        got_y, _ = run(mixed, [y], "b")
        assert torch.equal(got_x[0], run(alone_a, [x], ("a", 0))[0][0])
        assert torch.equal(got_y[0], run(alone_b, [y], "b")[0][0])


@every_case
@pytest.mark.parametrize("parties", [1, 2])
def test_all_parties_get_the_sum_of_what_each_sent(name, parameters, parties):
    codecs = [load(name, **parameters) for _ in range(parties)]
    if not codecs[0].one_shot:
        pytest.skip("several rounds")
    if not codecs[0].adds:
        pytest.skip("the aggregate is a vote")
    shadows = [load(name, **parameters) for _ in range(parties)]
    for step in range(3):
        tensors = gradients(parties, (400,), seed=step)
        results, up, down = aggregate(codecs, tensors, "w")
        decoded = [
            codec.decompress(codec.compress(tensor, "w"))
            for codec, tensor in zip(shadows, tensors, strict=True)
        ]
        total = sum(decoded)
        # Only a half-precision answer rounds the sum.
        tolerance = 1e-3 if "16" in f"{name}{parameters}" else 0
        torch.testing.assert_close(results[0], total, rtol=tolerance, atol=0)
        assert all(torch.equal(result, results[0]) for result in results)
        assert len(up) == parties and len(down) == 1


@every_case
def test_what_the_first_party_decodes_needs_no_other_to(name, parameters):
    parties = 2  # what bisparse is set to
    steps = list(zip(*(gradients(3, (20, 17), seed=p) for p in range(parties)), strict=True))

    def outcomes(everyone):
        codecs = [load(name, **parameters) for _ in range(parties)]
        centre = load(name, **parameters)
        made = [aggregate(codecs, tensors, "w", centre, everyone) for tensors in steps]
        return [(results[0], up, down) for results, up, down in made]

    for (ours, *bytes_), (theirs, *expected) in zip(outcomes(False), outcomes(True), strict=True):
        assert torch.equal(ours, theirs) and bytes_ == expected


@every_case
def test_every_payload_survives_a_frame(name, parameters):
    (tensor,) = gradients(1, (9, 31))
    for payload in payloads(load(name, **parameters), tensor):
        frame = Frame(payload)
        for key in (None, b"k" * 32):
            wire = frame.to_bytes(key)
            assert len(wire) == frame.nbytes
            assert Frame.from_bytes(wire, key).payload == payload


@every_case
def test_payloads_of_another_codec_or_form_are_refused(name, parameters):
    codec, (tensor,) = load(name, **parameters), gradients(1, (40,))
    if not codec.one_shot:
        pytest.skip("several rounds")
    good = codec.compress(tensor, "w")
    for changes in ({"codec": "another"}, {"form": "another"}, {"dtype": "int8"}):
        with pytest.raises(ValueError, match=name):
            codec.decompress(Payload(**{**vars(good), **changes}))
    for shape in ((-4, -10), (2**40,), (2**20, 2**20), (0, 2**63), (2.5, 16)):
        with pytest.raises(ValueError, match=name):
            codec.decompress(Payload(**{**vars(good), "shape": shape}))


@pytest.mark.slow
@every_case
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_bodies_decode_finite_or_are_refused(name, parameters, data):
    codec = load(name, **parameters)
    if not codec.one_shot:
        pytest.skip("several rounds")
    good = codec.compress(gradients(1, (6, 11))[0], "w")
    body = bytearray(good.body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set" if body:
                body[at] = data.draw(st.sampled_from([0, 1, 0x55, 0x7F, 0x80, 0xC0, 0xFF]))
            case "cut":
                del body[at : at + data.draw(st.integers(1, 9))]
            case "insert":
                body[at:at] = bytes(data.draw(st.integers(1, 9)))
    try:
        result = codec.decompress(Payload(**{**vars(good), "body": bytes(body)}))
    except ValueError as error:
        assert name in str(error)
    else:
        assert result.shape == good.shape and result.isfinite().all()
        assert len(body) == good.nbytes or not good.dtype


@pytest.mark.parametrize("name", [name for name in names() if load(name).elementwise])
def test_tensors_of_elementwise_codecs_may_be_coded_as_one(name):
    parts = gradients(3, (7,))
    codec = load(name)
    joined = codec.compress(torch.cat(parts), "all")
    apart = [codec.compress(part, i) for i, part in enumerate(parts)]
    assert joined.body == b"".join(payload.body for payload in apart)
    assert codec.decompress(joined).equal(torch.cat([codec.decompress(one) for one in apart]))
    third = codec.compress(torch.cat(parts), "all", 1 / 3)
    assert third.body == codec.compress(torch.cat(parts) * (1 / 3), "all").body


@pytest.mark.parametrize("name", names())
def test_only_what_sends_values_as_they_are_does_no_work(name):
    codec = load(name)
    encoding, decoding = device.work(codec)
    assert isinstance(encoding, Work) and isinstance(decoding, Work)
    assert bool(encoding) == bool(decoding)
    if not encoding:
        assert codec.payload_bytes((1000,)) == (4000,)


@pytest.mark.parametrize("name", names())
def test_a_tensor_that_travels_as_it_is_costs_no_more_than_its_copy(name):
    """Of those that codecs are told to leave alone by a ``lower_bound``; all else is coded."""
    bounds = (0, 500, 10**9) if hasattr(load(name), "lower_bound") else (None,)
    for bound, n in itertools.product(bounds, (1, 16, 499, 500, 1000, 10**6)):
        codec = load(name) if bound is None else load(name, lower_bound=bound)
        left = bound is not None and codec.payload_bytes((n,)) == (4 * n,)
        encoding, decoding = codec.work(n)
        if left:
            assert not encoding.selections and encoding.kernels < 10 and decoding == COPY
        else:
            assert (encoding, decoding) == device.work(codec)
        assert left or bound != 10**9
