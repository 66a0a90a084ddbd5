"""Bytes on the wire: the published formulas, and the bodies that are really made.

The formulas are written here a second time, from the publications. ``k`` is the number of values
kept, ⌈n/100⌉ at 1 % and at least 1.
"""

from __future__ import annotations

import math
import random

import pytest
import torch

from slowlink.methods.compression import aggregate, load, names

LARGEST = 1_000_000


def kept(n: int) -> int:
    return max(1, -(-n // 100))


def up(n: int, step: int) -> int:
    return -(-n // step)


def low_rank(n: int) -> tuple[int, ...]:
    """Rank 4 of the squarest matrix, from 2^14 values on: factors of r·rows and r·columns."""
    columns = math.isqrt(n - 1) + 1
    return (4 * n,) if n < 2**14 else (16 * up(n, columns), 16 * columns)


# Codec, parameters, and the bytes of each round for a flat tensor of n values.
FORMULAS = {
    "identity": ({}, lambda n: (4 * n,)),
    "fp16": ({}, lambda n: (2 * n,)),
    "two_bit": ({}, lambda n: (4 * up(n, 16),)),
    "top_k": ({"ratio": 0.01}, lambda n: (8 * kept(n),)),
    "random_k": ({"ratio": 0.01}, lambda n: (4 * kept(n),)),
    "dgc": ({"ratio": 0.01, "lower_bound": 0}, lambda n: (8 * kept(n),)),
    "bisparse": (
        {"ratio": 0.01, "lower_bound": 100},
        lambda n: (8 * (n // 100) if n >= 100 else 4 * n,),
    ),
    "qsgd": ({"bits": 2, "bucket": 512}, lambda n: (4 * up(n, 512) + up(2 * n, 8),)),
    "qsgd 5 bits": ({"bits": 5, "bucket": 100}, lambda n: (4 * up(n, 100) + up(5 * n, 8),)),
    "sign_sgd": ({}, lambda n: (up(n, 8),)),
    "ef_sign_sgd": ({}, lambda n: (4 + up(n, 8),)),
    "count_sketch": (
        {"ratio": 0.01, "rows": 5, "width": 4, "lower_bound": 0},
        lambda n: (4 * 5 * 4 * kept(n), 4 * kept(n)) if 21 * kept(n) < n else (4 * n,),
    ),
    "power_sgd": ({"rank": 4}, low_rank),
    "terngrad": ({}, lambda n: (4 + up(n, 4),)),
    "int8_blocks": ({}, lambda n: (20 + n + 4 * up(n, 1024),)),
    "sparse_fp32": ({}, lambda n: (12 + 8 * max(1, n // 10),)),
    "sparse_int8": ({}, lambda n: (20 + 5 * max(1, n // 10) + 4 * up(max(1, n // 10), 1024),)),
}  # fmt: skip
SOME = sorted({*range(1, 40), *random.Random(4).sample(range(40, 20_000), 160), 4096, 65_537})

every_formula = pytest.mark.parametrize("title", FORMULAS)


def made(title: str) -> tuple:
    parameters, formula = FORMULAS[title]
    return load(title.split()[0], **parameters), formula


@pytest.mark.slow
@every_formula
def test_the_published_formula_at_every_size(title):
    codec, formula = made(title)
    wrong = [n for n in range(1, LARGEST + 1) if codec.payload_bytes((n,)) != formula(n)]
    assert not wrong, f"{title}: {len(wrong)} sizes, first {wrong[0]}"


@pytest.mark.parametrize("title", [*FORMULAS, *(name for name in names() if name not in FORMULAS)])
def test_bodies_have_the_bytes_that_are_predicted(title):
    codec = made(title)[0] if title in FORMULAS else load(title)
    random_values = torch.Generator().manual_seed(0)
    for n in SOME:
        tensor = torch.randn(n, generator=random_values)
        _, (sent,), _ = aggregate([codec], [tensor], n)
        predicted = list(codec.payload_bytes((n,)))
        if codec.exact_bytes:
            assert sent == predicted, n
        else:
            assert len(sent) == len(predicted)
            assert all(a <= b for a, b in zip(sent, predicted, strict=True)), (n, sent, predicted)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("shape", [(64, 3, 7, 7), (512, 512), (1000,), (10, 1), (1, 10), ()])
def test_bytes_of_shaped_tensors(name, shape):
    codec = load(name)
    _, (sent,), _ = aggregate([codec], [torch.randn(shape)], "w")
    predicted = codec.payload_bytes(shape)
    assert len(sent) == len(predicted)
    assert all(
        a == b if codec.exact_bytes else a <= b for a, b in zip(sent, predicted, strict=True)
    )
