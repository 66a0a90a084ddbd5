"""Models by name, and the tensors whose gradients travel.

The networks ``resnet*_v1`` follow the layout whose sizes GeoMX prints (Tables 1 and 2): the Gluon
family, which is torchvision's network with biased 1×1 convolutions inside bottleneck blocks, ten
classes, and BatchNorm's scale and shift left out of the count. Sketch-Fusion's models (Table 3) are
``resnet20``, ``vgg16``, ``resnet50`` and ``lstm``.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

import torch
from torch import nn
from torch.nn import functional

from slowlink.testbed.training.pooling import MaxPool

MODELS: dict[str, Callable[..., nn.Module]] = {}
_drawing = Lock()  # layers draw from torch's global generator, which all threads share


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
    with _drawing, torch.random.fork_rng(devices=[]):
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
        MaxPool(),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        MaxPool(),
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


@_model
def mnist_cnn() -> nn.Module:
    """Two 3×3 convolutions and two linear layers for 28×28 grey images: 1,199,882 values.

    DDS: the federated model of its code; the text does not describe it. Pooling comes before the
    rectifier, as in :func:`lenet5`.
    """
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        MaxPool(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@_model
def mlp(hidden: int = 512) -> nn.Module:
    """One hidden layer for 28×28 grey images: 407,050 values with 512 units.

    DDS: the data-parallel model of its code.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))


@_model
def cnn3(width: int = 32, in_channels: int = 3, classes: int = 10) -> nn.Module:
    """Three 3×3 convolutions and two linear layers for 32×32 images.

    LPSP, section 4.1, prints "three convolutional layers" and no sizes; with 32, 64 and 64 channels
    it has 122,570 values. Pooling comes before the rectifier, as in :func:`lenet5`.
    """
    layers: list[nn.Module] = []
    into = in_channels
    for out in (width, 2 * width, 2 * width):
        layers += [nn.Conv2d(into, out, 3, padding=1), MaxPool(), nn.ReLU()]
        into = out
    head = [nn.Linear(into * 4 * 4, 64), nn.ReLU(), nn.Linear(64, classes)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def _resnet_v1(depth: int, in_channels: int, classes: int) -> nn.Module:
    # It is slow to import and only needed here.
    from slowlink.testbed.training._torchvision import torchvision

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


class PlainBlock(nn.Module):
    """Two 3×3 convolutions; where the shape changes the shortcut subsamples and pads channels with
    zeros (He et al. [@he2016deep], option A), so it has no parameters."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.stride, self.extra = stride, out - into

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        before = self.extra // 2
        shortcut = functional.avg_pool2d(x, 1, self.stride)  # subsamples; see Average
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, before, self.extra - before))
        return functional.relu(y + shortcut)


class _First(nn.Conv2d):
    """A convolution that lays images, and so all that follows, with channels innermost in memory,
    where a processor, not a GPU, convolves few channels faster."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            x = x.contiguous(memory_format=torch.channels_last)
        return super().forward(x)


class Average(nn.Module):
    """The mean of every channel. This pooling's gradient keeps channels innermost; that of the
    adaptive one, or of an index, does not, and slows down every layer before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(x, x.shape[2:])


def _resnet_cifar(blocks: int, width: int, in_channels: int, classes: int) -> nn.Module:
    network = nn.Sequential(
        _First(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    )
    into = width
    for stage in range(3):
        for block in range(blocks):
            out = width * 2**stage
            network.append(PlainBlock(into, out, 2 if stage and not block else 1))
            into = out
    network.extend([Average(), nn.Flatten(), nn.Linear(into, classes)])
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


@_model
def resnet20(width: int = 16, in_channels: int = 3, classes: int = 10) -> nn.Module:
    """He et al., CVPR 2016, section 4.2, n = 3, for 32×32 images: 0.27 million values."""
    return _resnet_cifar(3, width, in_channels, classes)


@_model
def resnet8(width: int = 16, in_channels: int = 3, classes: int = 10) -> nn.Module:
    """The same family with n = 1."""
    return _resnet_cifar(1, width, in_channels, classes)


@_model
def vgg16(batch_norm: bool = True, in_channels: int = 3, classes: int = 10) -> nn.Module:
    """VGG-16 [@simonyan2014very] as it is trained on 32×32 images: 13 convolutions and one linear
    layer, 14.7 million values. BatchNorm after each convolution is what makes it train; the
    document says neither."""
    layers: list[nn.Module] = []
    into = in_channels
    for repeat, out in [(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)]:
        for _ in range(repeat):
            layers.append(nn.Conv2d(into, out, 3, padding=1))
            layers += [nn.BatchNorm2d(out)] if batch_norm else []
            layers.append(nn.ReLU())
            into = out
        layers.append(MaxPool())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(into, classes))


class LanguageModel(nn.Module):
    """Embedding, LSTM layers and a score for every word; see :func:`lstm`."""

    def __init__(
        self, words: int, hidden: int, embedding: int, layers: int, tied: bool, dropout: float
    ) -> None:
        super().__init__()
        if tied and hidden != embedding:
            raise ValueError(f"lstm: tied needs hidden ({hidden}) equal to embedding ({embedding})")
        self.embedding = nn.Embedding(words, embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        # One module a layer: the gradients of a layer are ready before those of the layer below.
        widths = [embedding] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(nn.LSTM(w, hidden, batch_first=True) for w in widths)
        self.output = nn.Linear(hidden, words)
        if tied:
            self.output.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, steps) word numbers to (batch · steps, words) scores of the words that follow."""
        values = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            values = self.dropout(layer(values)[0])
        return self.output(values).flatten(0, 1)


@_model
def lstm(
    words: int = 10_000,
    hidden: int = 650,
    embedding: int | None = None,
    layers: int = 2,
    tied: bool = False,
    dropout: float = 0.0,
) -> nn.Module:
    """A word-level language model whose hidden state starts at zero in every window.

    Sketch-Fusion prints "two hidden layers" and no widths; 650 is the medium model of Zaremba et
    al. (2014). ``embedding`` is as wide as ``hidden`` if None.
    """
    return LanguageModel(words, hidden, embedding or hidden, layers, tied, dropout)


def _of_torchvision(name: str, classes: int) -> nn.Module:
    from slowlink.testbed.training._torchvision import torchvision

    return getattr(torchvision.models, name)(num_classes=classes)


@_model
def resnet50(classes: int = 1000) -> nn.Module:
    return _of_torchvision("resnet50", classes)


@_model
def resnet101(classes: int = 1000) -> nn.Module:
    return _of_torchvision("resnet101", classes)


@_model
def resnet152(classes: int = 1000) -> nn.Module:
    return _of_torchvision("resnet152", classes)


@_model
def densenet121(classes: int = 1000) -> nn.Module:
    return _of_torchvision("densenet121", classes)


@_model
def mobilenet_v2(classes: int = 1000) -> nn.Module:
    return _of_torchvision("mobilenet_v2", classes)


@_model
def vgg16_imagenet(classes: int = 1000) -> nn.Module:
    return _of_torchvision("vgg16", classes)


_CIFAR = ("resnet20", "resnet8", "vgg16", "cnn3")
_MNIST = ("lenet5", "strided_cnn", "mnist_cnn", "mlp")
_WINDOW = ("lstm",)


def sample_shape(name: str) -> tuple[int, ...]:
    """Shape of one sample as the model ``name`` is commonly trained: an image, or tokens."""
    shapes = dict.fromkeys(_CIFAR, (3, 32, 32)) | dict.fromkeys(_MNIST, (1, 28, 28))
    return (shapes | dict.fromkeys(_WINDOW, (35,))).get(name, (3, 224, 224))


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
    """Shape of a network's input, given its parameters and the data set's image shape."""
    return (part_parameters.get("in_channels", shape[0]), *shape[1:])


def samples(model: nn.Module, shape: tuple[int, ...], batch: int) -> torch.Tensor:
    """Made-up samples on the device of ``model``: images, or tokens for a language model."""
    device = next(model.parameters()).device
    count = torch.arange(batch * torch.Size(shape).numel(), device=device).view(batch, *shape)
    if isinstance(model, LanguageModel):
        return count % model.embedding.num_embeddings
    return torch.sin(count.float())


def flops_by_module(model: nn.Module, sample: tuple[int, ...]) -> dict[str, tuple[float, float]]:
    """Floating-point operations a sample of each module that has parameters of its own.

    Returns
    -------
    module name -> (forward, backward), in the order of the model. Backward costs a layer twice its
    forward pass, for the gradients of its weights and of its input; only once where the input is
    the sample itself. Matrix products and convolutions count; elementwise work does not.
    """
    from torch.utils.flop_counter import FlopCounterMode

    # Counted on the meta device: only shapes matter. BatchNorm needs more than one value.
    probe = model.to("meta").train()
    inner = {
        name: module
        for name, module in probe.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
    passes: dict[str, int] = {}

    def note(name: str) -> Callable:
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            passes[name] = 1 + inputs[0].requires_grad

        return hook

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in inner.items()]
    with FlopCounterMode(display=False) as counter:
        probe(samples(probe, sample, batch=2))
    for hook in hooks:
        hook.remove()
    counts = counter.get_flop_counts()
    root = type(probe).__name__
    found = {}
    for name in inner:
        forward = sum(counts.get(f"{root}.{name}" if name else root, {}).values()) / 2
        found[name] = (forward, passes.get(name, 0) * forward)
    return found


def flops_per_sample(model: nn.Module, sample: tuple[int, ...]) -> float:
    """Floating-point operations of one forward and backward pass of one sample, counted."""
    return sum(forward + backward for forward, backward in flops_by_module(model, sample).values())
