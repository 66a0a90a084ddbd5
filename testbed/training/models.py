"""Models by name, and the tensors whose gradients travel.

The residual networks follow the layout whose sizes GeoMX prints (Tables 1 and 2): the Gluon
``resnet*_v1`` family, which is torchvision's network with biased 1×1 convolutions inside bottleneck
blocks, ten classes, and BatchNorm's scale and shift left out of the count.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

MODELS: dict[str, Callable[..., nn.Module]] = {}


def _model(function: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    MODELS[function.__name__] = function
    return function


def make(name: str, seed: int = 0, **parameters) -> nn.Module:
    """Build model ``name`` with initial weights drawn from ``seed``; leaves the global RNG alone.

    Raises
    ------
    ValueError
        Unknown model; lists those there are.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}; there are: {', '.join(sorted(MODELS))}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](**parameters)


@_model
def lenet5(
    in_channels: int = 1,
    classes: int = 10,
    hidden: tuple[int, int] = (120, 84),
    image: int = 28,
) -> nn.Module:
    """LeNet-5 with rectifiers and max-pooling, for 28×28 (padded) or 32×32 images.

    Pooling comes before the rectifier: the two commute, and this order rectifies a quarter as much.
    """
    side = (image + (4 if image == 28 else 0) - 4) // 2
    side = (side - 4) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 6, 5, padding=2 if image == 28 else 0),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * side * side, hidden[0]),
        nn.ReLU(),
        nn.Linear(hidden[0], hidden[1]),
        nn.ReLU(),
        nn.Linear(hidden[1], classes),
    )


@_model
def strided_cnn(in_channels: int = 1, classes: int = 10, hidden: int = 180) -> nn.Module:
    """Two strided convolutions and two linear layers for 28×28 images: cheap enough to train long
    on a processor. 180 hidden units put 6.8 % of the values outside the one large tensor."""
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 5, stride=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _resnet_v1(depth: int, in_channels: int, classes: int) -> nn.Module:
    from testbed.training._torchvision import torchvision  # slow to import, needed here only

    network = getattr(torchvision.models, f"resnet{depth}")(num_classes=classes)
    network.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
    for module in network.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            # Version 1 puts the stride on the first 1×1 convolution.
            stride = module.conv2.stride
            module.conv2.stride = (1, 1)
            for name, step in (("conv1", stride), ("conv3", (1, 1))):
                old = getattr(module, name)
                biased = nn.Conv2d(old.in_channels, old.out_channels, 1, stride=step, bias=True)
                setattr(module, name, biased)
    return network


@_model
def resnet18_v1(in_channels: int = 3, classes: int = 10) -> nn.Module:
    return _resnet_v1(18, in_channels, classes)


@_model
def resnet34_v1(in_channels: int = 3, classes: int = 10) -> nn.Module:
    return _resnet_v1(34, in_channels, classes)


@_model
def resnet50_v1(in_channels: int = 3, classes: int = 10) -> nn.Module:
    return _resnet_v1(50, in_channels, classes)


@_model
def resnet101_v1(in_channels: int = 3, classes: int = 10) -> nn.Module:
    return _resnet_v1(101, in_channels, classes)


def gradient_shapes(model: nn.Module, norm: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors whose gradients travel, in the model's order.

    ``norm=False`` leaves out the scale and shift of BatchNorm, as GeoMX's printed sizes do.
    """
    skipped = set()
    if not norm:
        for prefix, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                skipped |= {f"{prefix}.{name}" for name, _ in module.named_parameters()}
    return {
        name: tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if name not in skipped
    }


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    """Number of values in all of the tensors."""
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def image_shape(part_parameters: dict, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a network made with these parameters takes, given the data set's image shape."""
    return (part_parameters.get("in_channels", shape[0]), *shape[1:])


def flops_per_image(model: nn.Module, image: tuple[int, ...]) -> float:
    """Floating-point operations of one forward and backward pass of one image, counted."""
    from torch.utils.flop_counter import FlopCounterMode

    # Counted on the meta device: only shapes matter. BatchNorm needs more than one value.
    probe = model.to("meta").train()
    batch = torch.empty((2, *image), device="meta")
    with FlopCounterMode(display=False) as counter:
        probe(batch).sum().backward()
    return counter.get_total_flops() / 2
