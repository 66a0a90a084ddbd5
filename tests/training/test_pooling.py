"""Pooling of 2×2 windows against torch's own, to the bit."""

import pytest
import torch
from torch import nn
from torch.func import vmap

from slowlink.testbed.training.pooling import MaxPool

CASES = {
    "random": lambda shape: torch.randn(shape),
    "many are equal": lambda shape: torch.randn(shape).round(),
    "some are NaN or infinite": lambda shape: torch.randn(shape).log().clamp(max=0.5) / 0.0,
}


def both(pool, images):
    images = images.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    pooled = pool(images)
    weights = torch.arange(pooled.numel()).view(pooled.shape).to(pooled.dtype)
    return pooled.detach(), torch.autograd.grad(pooled, images, weights)[0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 6, 28, 28), (3, 1, 4, 6), (2, 16, 7, 5), (2, 17, 7, 5), (0, 3, 4, 4)]
)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_torchs(case, shape, layout):
    torch.manual_seed(1)
    images = CASES[case](shape).contiguous(memory_format=layout)
    found, expected = both(MaxPool(), images), both(nn.MaxPool2d(2), images)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_channels_come_out_innermost():
    pooled, gradient = both(MaxPool(), torch.randn(2, 5, 8, 8))
    assert pooled.is_contiguous(memory_format=torch.channels_last)
    assert gradient.is_contiguous(memory_format=torch.channels_last)


def test_other_numbers_are_left_to_torch():
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    assert torch.equal(MaxPool()(images), nn.MaxPool2d(2)(images))


def test_a_dimension_of_workers_is_mapped_over():
    images = torch.randn(3, 2, 4, 8, 8)
    found = both(vmap(MaxPool()), images)
    each = [both(nn.MaxPool2d(2), own) for own in images]
    assert torch.equal(found[0], torch.stack([pooled for pooled, _ in each]))
    weights = torch.arange(found[0].numel(), dtype=torch.float32).view(found[0].shape)
    copy = images.flatten(0, 1).clone().requires_grad_()
    (expected,) = torch.autograd.grad(nn.MaxPool2d(2)(copy), copy, weights.flatten(0, 1))
    assert torch.equal(found[1], expected.view(images.shape))
