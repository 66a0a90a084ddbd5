"""Below which size tensors travel whole is not printed: which sizes give the printed megabytes?"""

from math import prod

import pytest

from slowlink.testbed.training import models

SITES = 2
PRINTED = {"BiSparse": (8.15, 9.90), "BiSparse+FP16": (4.95, 6.70)}


def megabytes(bound: int, value: int) -> tuple[float, float]:
    """Up and down of a site: k = 1 % of a large tensor as pairs of index and value, 4 bytes each,
    padded for every site on the way down; the others whole, ``value`` bytes each."""
    network = models.make("resnet50_v1", in_channels=1)
    sizes = [prod(shape) for shape in models.gradient_shapes(network, norm=False).values()]
    sparse = [size for size in sizes if size >= bound]
    whole = value * (sum(sizes) - sum(sparse))
    pairs = sum(8 * max(1, int(0.01 * size)) for size in sparse)
    return (whole + pairs) / 1e6, (whole + SITES * pairs) / 1e6


@pytest.mark.slow
@pytest.mark.parametrize("bound", [147_457, 200_000, 262_144, 147_456, 262_145])
def test_which_bounds_give_the_printed_megabytes(bound):
    found = [tuple(round(one, 2) for one in megabytes(bound, value)) for value in (4, 2)]
    assert (found == list(PRINTED.values())) == (147_457 <= bound <= 262_144)
