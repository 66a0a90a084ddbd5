"""Augmentation of whole batches, against one-image-at-a-time references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slowlink.testbed.training.augmentation import (
    augment,
    crop,
    flip,
    normalise,
    recolour,
    standardise,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 40, channels: int = 3, height: int = 7, width: int = 9) -> torch.Tensor:
    """uint8 images in which every pixel is told from its neighbours, and none is 0."""
    shape = (n, channels, height, width)
    return torch.randint(1, 256, shape, generator=seeded(99), dtype=torch.uint8)


def test_flip_against_image_by_image():
    images = pictures()
    flipped = flip(images, seeded(1))
    draws = torch.rand(len(images), generator=seeded(1))
    assert 0 < int((draws < 0.5).sum()) < len(images), "both cases are seen"
    for before, after, draw in zip(images.numpy(), flipped.numpy(), draws, strict=True):
        expected = before[:, :, ::-1] if draw < 0.5 else before
        assert np.array_equal(after, expected)


def test_flip_always_and_never():
    images = pictures()
    assert torch.equal(flip(images, seeded(), 0.0), images)
    assert torch.equal(flip(images, seeded(), 1.0), images.flip(3))
    assert torch.equal(flip(flip(images, seeded(), 1.0), seeded(), 1.0), images)


def test_flip_frequency():
    images = torch.tensor([1, 2], dtype=torch.uint8).expand(10_000, 1, 1, 2)
    share = (flip(images, seeded(4), 0.3)[:, 0, 0, 0] == 2).double().mean()
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / 10_000) ** 0.5


@pytest.mark.parametrize(("padding", "size"), [(4, None), (1, None), (0, (5, 4)), (2, (7, 3))])
def test_crop_against_image_by_image(padding, size):
    images = pictures()
    n, channels, height, width = images.shape
    window = size or (height, width)
    got = crop(images, seeded(2), padding, size)
    assert got.shape == (n, channels, *window) and got.dtype == images.dtype
    generator = seeded(2)
    top = torch.randint(height + 2 * padding - window[0] + 1, (n,), generator=generator)
    left = torch.randint(width + 2 * padding - window[1] + 1, (n,), generator=generator)
    for i in range(n):
        padded = np.pad(images[i].numpy(), [(0, 0), (padding, padding), (padding, padding)])
        rows = slice(int(top[i]), int(top[i]) + window[0])
        columns = slice(int(left[i]), int(left[i]) + window[1])
        assert np.array_equal(got[i].numpy(), padded[:, rows, columns])


def test_crop_reaches_every_position_equally_often():
    # the one bright pixel of a 3 x 3 image padded by 1 lands anywhere on the window
    images = torch.zeros(9000, 1, 3, 3, dtype=torch.uint8)
    images[:, 0, 1, 1] = 1
    counts = crop(images, seeded(6), 1).sum((0, 1)).double()
    assert counts.sum() == 9000
    assert (counts - 1000).abs().max() < 5 * (9000 * (1 / 9) * (8 / 9)) ** 0.5


def test_crop_that_cannot_be_is_refused():
    for padding, size in ((0, (8, 9)), (-1, None), (0, (0, 3))):
        with pytest.raises(ValueError, match="cannot crop"):
            crop(pictures(), seeded(), padding, size)


def test_recolour_against_image_by_image():
    images = pictures()
    got = recolour(images, seeded(3), 0.4)
    draws = 2 * torch.rand((2, len(images)), generator=seeded(3)).double().numpy() - 1
    for i, image in enumerate(images.numpy().astype(np.float64)):
        brighter = image * (1 + 0.4 * draws[0, i])
        mean = brighter.mean()
        expected = np.clip(mean + (brighter - mean) * (1 + 0.4 * draws[1, i]), 0, 255)
        # half a unit of rounding, and float32 against float64
        assert np.abs(got[i].numpy() - expected).max() <= 0.5 + 1e-3
    assert torch.equal(recolour(images, seeded(), 0.0), images)
    assert not torch.equal(got, images)


def test_normalise_and_standardise():
    images = torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(1, 2, 1, 2)
    assert torch.equal(normalise(images).flatten(), torch.tensor([0, 0.2, 1, 0.4]))
    got = standardise(images, torch.tensor([0.1, 0.2]), torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(got.flatten(), torch.tensor([-0.2, 0.2, 3.2, 0.8]))
    assert got.dtype == torch.float32
    with pytest.raises(ValueError, match="must be uint8, not torch.float32"):
        standardise(got, torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="std must be positive"):
        standardise(images, torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="must be uint8"):
        recolour(got, seeded(), 0.1)
    with pytest.raises(ValueError, match="at most a number in"):
        recolour(images, seeded(), 1.5)


@pytest.mark.parametrize("colour", [0.0, 0.2])
def test_augmenting_is_deterministic_and_leaves_its_input_alone(colour):
    images = pictures()
    copy, state = images.clone(), torch.get_rng_state()
    first, again, other = (augment(images, seeded(s), colour) for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == images.shape and first.dtype == torch.uint8
    assert torch.equal(images, copy)
    assert torch.equal(torch.get_rng_state(), state)


def test_empty_batch():
    assert augment(pictures()[:0], seeded(), 0.1).shape == (0, 3, 7, 9)
