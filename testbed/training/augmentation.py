"""Preprocessing and augmentation of image batches, as GeoMX's data module has them.

Source: GeoMX §2, data processing module: normalisation, standardisation, random flips, crops and
colour changes. Every function works on a whole (n, channels, height, width) batch and draws only
from the generator it is given, so a batch depends on nothing but its images and that generator.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def normalise(images: Tensor) -> Tensor:
    """uint8 images scaled to float32 in [0, 1]."""
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, not {images.dtype}")
    return images.float().div_(255)


def standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """uint8 images as float32 with each channel's ``mean`` taken off and divided by its ``std``.

    ``mean`` and ``std`` are (channels,), of images scaled to [0, 1].
    """
    if not min(std.tolist()) > 0:
        raise ValueError("std must be positive in every channel; are the images all alike?")
    mean, std = (value.to(images.device).view(-1, 1, 1) for value in (mean, std))
    return normalise(images).sub_(mean).div_(std)


def flip(images: Tensor, generator: Generator, probability: float = 0.5) -> Tensor:
    """Mirror each image left to right with the given probability."""
    mirrored = torch.rand(len(images), generator=generator) < probability
    return torch.where(mirrored.to(images.device).view(-1, 1, 1, 1), images.flip(-1), images)


def crop(
    images: Tensor, generator: Generator, padding: int = 4, size: tuple[int, int] | None = None
) -> Tensor:
    """Pad each image with ``padding`` zeros on every side and cut a random window out of it.

    ``size`` is the window's (height, width), the image's own if None. All positions are equally
    likely.
    """
    n, _, height, width = images.shape
    window = size or (height, width)
    rows, columns = height + 2 * padding - window[0], width + 2 * padding - window[1]
    if padding < 0 or rows < 0 or columns < 0 or min(window) < 1:
        raise ValueError(f"cannot crop {window} from {height}x{width} images padded by {padding}")
    top = torch.randint(rows + 1, (n,), generator=generator).to(images.device)
    left = torch.randint(columns + 1, (n,), generator=generator).to(images.device)
    padded = F.pad(images, (padding,) * 4)
    # a view of all windows, from which one an image is copied
    views = padded.unfold(2, window[0], 1).unfold(3, window[1], 1)
    return views[torch.arange(n, device=images.device), :, top, left]


def recolour(images: Tensor, generator: Generator, most: float) -> Tensor:
    """Change brightness and contrast of each uint8 image by random factors.

    Both factors are uniform in ``1 ± most``; contrast scales around the image's own mean. Values
    are rounded and kept in 0 … 255.
    """
    if not 0 <= most <= 1:
        raise ValueError(f"colours change by at most a number in [0, 1], not {most}")
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, not {images.dtype}")
    draws = 2 * torch.rand((2, len(images), 1, 1, 1), generator=generator).to(images.device) - 1
    values = images.float() * (1 + most * draws[0])
    mean = values.mean((1, 2, 3), keepdim=True)
    values = mean + (values - mean) * (1 + most * draws[1])
    return values.round().clamp(0, 255).to(torch.uint8)


def augment(images: Tensor, generator: Generator, colour: float = 0.0) -> Tensor:
    """Randomly flip, crop and, where ``colour`` is not 0, recolour uint8 training images."""
    images = crop(flip(images, generator), generator)
    return recolour(images, generator, colour) if colour else images
