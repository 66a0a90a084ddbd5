"""Search time of the fusions, and how much longer than the optimum their iterations take.

Tensors as ResNet-50's in number and sizes; the gap to the optimum goes into ``extra_info``. No
time is asserted.
"""

from __future__ import annotations

import pytest

from slowlink.methods.fusion import Costs, load, names, timeline


def resnet50() -> list[int]:
    """Values of ResNet-50's 161 tensors, in the order backward produces their gradients."""
    sizes, channels = [64 * 3 * 49, 64, 64], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            for weights, out in ((channels, width), (9 * width, width), (width, 4 * width)):
                sizes += [weights * out, out, out]
            if not block:
                sizes += [channels * 4 * width, 4 * width, 4 * width]
            channels = 4 * width
    return [*sizes, 2048 * 1000, 1000][::-1]


def affine(alpha, beta):
    return lambda values: alpha + beta * values


SIZES = resnet50()
BACKWARD = [0.2 * (size**0.5 + 50) for size in SIZES]
BACKWARD = [0.2 * seconds / sum(BACKWARD) for seconds in BACKWARD]
# Seconds to encode, send and decode n values.
CODECS = {
    "dense": (affine(0, 0), affine(1e-3, 3e-9), affine(0, 0)),
    "sparse": (affine(1e-4, 2e-9), affine(5e-4, 1e-9), affine(1e-4, 5e-10)),
    "slow network": (affine(3e-4, 1e-9), affine(3e-4, 6e-9), affine(2e-4, 1e-9)),
    "slow codec": (affine(1e-3, 5e-9), affine(1e-4, 1e-11), affine(1e-3, 5e-9)),
    "concave": tuple(
        lambda n, a=a, b=b: a + b * n**0.7 for a, b in ((1e-4, 2e-7), (3e-4, 8e-7), (1e-4, 1e-7))
    ),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", names())
def test_search(benchmark, name, codec):
    benchmark.group = f"fusion of 161 tensors, {codec}"
    costs = Costs.by_values(SIZES, BACKWARD, *CODECS[codec], forward_s=0.1)
    groups = benchmark.pedantic(load(name), args=(SIZES, costs), rounds=3, warmup_rounds=1)
    took, best = (
        timeline(SIZES, found, costs).iteration_s
        for found in (groups, load("optimal")(SIZES, costs))
    )
    benchmark.extra_info |= {"groups": len(groups), "iteration_s": took, "gap": took / best - 1}
    assert len(SIZES) == 161 and sum(SIZES) == 25_557_032
    assert took >= best * (1 - 1e-9)
