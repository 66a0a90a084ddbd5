"""Sizes of the models against what GeoMX prints and against arithmetic."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier, BrokenBarrierError

import pytest
import torch

from slowlink.testbed.training import models

# GeoMX Table 1, millions of parameters.
PRINTED = {"resnet18_v1": 11.17, "resnet34_v1": 21.27, "resnet50_v1": 23.49, "resnet101_v1": 42.46}


def bottleneck_count(blocks, in_channels):
    """ResNet v1 with bottlenecks, by hand: weights and 1×1 biases, no BatchNorm."""
    total, channels = 7 * 7 * in_channels * 64, 64
    for stage, repeat in enumerate(blocks):
        inner = 64 * 2**stage
        outer = 4 * inner
        for block in range(repeat):
            total += channels * inner + inner + 9 * inner * inner + inner * outer + outer
            total += channels * outer if block == 0 else 0
            channels = outer
    return total + channels * 10 + 10


@pytest.mark.parametrize("name", PRINTED)
def test_printed_parameter_counts(name):
    count = models.count(models.gradient_shapes(models.make(name), norm=False))
    assert round(count / 1e6, 2) == PRINTED[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blocks"), [("resnet50_v1", (3, 4, 6, 3)), ("resnet101_v1", (3, 4, 23, 3))]
)
@pytest.mark.parametrize("in_channels", [1, 3])
def test_bottleneck_networks_against_arithmetic(name, blocks, in_channels):
    model = models.make(name, in_channels=in_channels)
    count = models.count(models.gradient_shapes(model, norm=False))
    assert count == bottleneck_count(blocks, in_channels)


def test_resnet50_of_table_2_and_its_dense_share():
    shapes = models.gradient_shapes(models.make("resnet50_v1", in_channels=1), norm=False)
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    assert sum(sizes) == 23_488_010
    assert sum(size for size in sizes if size < 200_000) == 1_598_986


def test_the_stand_in_keeps_the_dense_share_of_resnet50():
    shapes = models.gradient_shapes(models.make("strided_cnn"))
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    dense = sum(size for size in sizes if size < 5000)
    assert dense / sum(sizes) == pytest.approx(1_598_986 / 23_488_010, abs=5e-4)
    upload = (4 * dense + 8 * sum(size // 100 for size in sizes if size >= 5000)) / 4
    assert upload / sum(sizes) < 0.10


def test_same_seed_same_weights_and_the_global_generator_untouched():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second, other = (models.make("lenet5", seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(3), expected)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.slow
def test_threads_that_build_at_once_get_the_weights_of_their_seeds(monkeypatch):
    met = Barrier(2)

    def slow():  # two layers; between them the other thread may draw, if it is let
        first = torch.nn.Linear(3, 3)
        with suppress(BrokenBarrierError):
            met.wait(timeout=1)
        return torch.nn.Sequential(first, torch.nn.Linear(3, 3))

    monkeypatch.setitem(models.MODELS, "slow", slow)
    alone = [list(models.make("slow", seed).parameters()) for seed in (5, 6)]
    met.reset()
    with ThreadPoolExecutor(2) as pool:
        beside = [list(m.parameters()) for m in pool.map(partial(models.make, "slow"), (5, 6))]
    for ours, expected in zip(beside, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_counted_operations_of_a_known_network():
    # Per image: forward 2·m·n for each of the two layers; backward the same for weights, and for
    # inputs of all but the first layer.
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 7), torch.nn.Linear(7, 3))
    assert models.flops_per_sample(network, (1, 3, 4)) == 2 * (2 * 12 * 7) + 3 * (2 * 7 * 3)


def test_unknown_model_lists_those_there_are():
    with pytest.raises(ValueError, match="no model 'alexnet'; there are: cnn3, densenet121"):
        models.make("alexnet")


def on_meta(name, **parameters):
    with torch.device("meta"):
        return models.make(name, **parameters)


def he_count(blocks, width, classes=10):
    """A CIFAR residual network by hand: 3×3 kernels, two BatchNorm values a channel."""
    total, into = 27 * width + 2 * width, width
    for stage in range(3):
        out = width * 2**stage
        for _ in range(blocks):
            total += 9 * into * out + 9 * out * out + 4 * out
            into = out
    return total + into * classes + classes


def cnn3_count(width, colours=3, classes=10):
    """Three 3×3 convolutions, and what is left of 32×32 after three poolings: 4×4."""
    kernels = 9 * (colours * width + width * 2 * width + 2 * width * 2 * width)
    return kernels + 5 * width + 64 * (16 * 2 * width + 1) + (64 + 1) * classes


def lstm_count(words, hidden, embedding):
    gates = 4 * hidden * (embedding + hidden) + 8 * hidden
    gates += 4 * hidden * (hidden + hidden) + 8 * hidden
    return words * embedding + gates + words * hidden + words


# Figure 1c of Sketch-Fusion counts tensors; 161 of ResNet-50 is the number commonly printed.
@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "values"),
    [
        ("resnet20", {}, 59, he_count(3, 16)),
        ("resnet8", {"width": 8}, 23, he_count(1, 8)),
        ("vgg16", {}, 54, 14_710_464 + 4_224 + 2 * 4_224 + 5_130),
        ("vgg16", {"batch_norm": False}, 28, 14_710_464 + 4_224 + 5_130),
        ("cnn3", {}, 10, cnn3_count(32)),
        ("cnn3", {"width": 5, "in_channels": 1, "classes": 3}, 10, cnn3_count(5, 1, 3)),
        # DDS: the bytes of its log over 4, and the sizes that its code gives.
        ("mnist_cnn", {}, 8, 4_799_528 // 4),
        ("mlp", {}, 4, 401_408 + 512 + 5_120 + 10),
        ("mlp", {"hidden": 3}, 4, 785 * 3 + 4 * 10),
        ("resnet50", {}, 161, 25_557_032),
        ("lstm", {}, 11, lstm_count(10_000, 650, 650)),
        ("lstm", {"words": 50, "hidden": 7, "embedding": 5}, 11, lstm_count(50, 7, 5)),
        ("lstm", {"words": 50, "hidden": 7, "tied": True}, 10, lstm_count(50, 7, 7) - 350),
        ("vgg16_imagenet", {}, 32, 138_357_544),
        ("mobilenet_v2", {}, 158, 3_504_872),
    ],
)
def test_tensors_and_values(name, parameters, tensors, values):
    shapes = models.gradient_shapes(on_meta(name, **parameters))
    assert (len(shapes), models.count(shapes)) == (tensors, values)


@pytest.mark.parametrize("name", ["mnist_cnn", "mlp"])
def test_the_models_of_dds_take_grey_images(name):
    images = models.samples(models.make(name), models.sample_shape(name), 2)
    assert models.make(name)(images).shape == (2, 10)


def test_the_residual_network_of_cifar_has_the_published_size():
    assert round(he_count(3, 16) / 1e6, 2) == 0.27
    model = models.make("resnet8", width=4)
    images = torch.randn(2, 3, 32, 32)
    assert model(images).shape == (2, 10)
    # Option A: the widened shortcut alone, with a block that adds nothing.
    block = model[4].eval()
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(1, 4, 8, 8)
    y = block(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2]) and not y[:, :2].any() and not y[:, 6:].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "vgg16", "resnet50", "lstm"])
def test_operations_by_module_sum_to_torchs_own_count(name):
    from torch.utils.flop_counter import FlopCounterMode

    model, shape = on_meta(name), models.sample_shape(name)
    parts = models.flops_by_module(model, shape)
    with FlopCounterMode(display=False) as counter:
        model(models.samples(model, shape, batch=2)).sum().backward()
    total = sum(forward + backward for forward, backward in parts.values())
    # torch leaves out what the first step of an LSTM would add for its constant zero state.
    assert total == pytest.approx(counter.get_total_flops() / 2, rel=3e-3 if name == "lstm" else 0)


def test_operations_of_the_three_convolutions_by_formula():
    found = models.flops_by_module(on_meta("cnn3", width=5), models.sample_shape("cnn3"))
    kernels = [9 * 3 * 5, 9 * 5 * 10, 9 * 10 * 10]
    forward = [2 * k * side**2 for k, side in zip(kernels, (32, 16, 8), strict=True)]
    forward += [2 * 160 * 64, 2 * 64 * 10]
    # No gradient of the image is wanted: the first layer's backward is half of the others'.
    backward = [forward[0], *(2 * f for f in forward[1:])]
    assert list(found.values()) == list(zip(forward, backward, strict=True))


def test_the_three_convolutions_are_as_wide_as_they_are_asked_to_be():
    torch.manual_seed(0)
    model = models.make("cnn3", width=4)
    x = images = torch.rand(2, 3, 32, 32)
    convolutions = [module for module in model if isinstance(module, torch.nn.Conv2d)]
    assert [module.out_channels for module in convolutions] == [4, 8, 8]
    functional = torch.nn.functional
    for module in convolutions:  # the other order of pooling and rectifier
        x = functional.conv2d(x, module.weight, module.bias, padding=1)
        x = functional.max_pool2d(functional.relu(x), 2)
    hidden, scores = (module for module in model if isinstance(module, torch.nn.Linear))
    torch.testing.assert_close(model(images), scores(functional.relu(hidden(x.flatten(1)))))


@pytest.mark.parametrize("name", ["resnet8", "resnet20"])
def test_a_residual_network_keeps_channels_innermost_both_ways(name):
    model, images = models.make(name, width=4), torch.randn(2, 3, 32, 32)
    laid = []
    for module in model:
        if isinstance(module, models.PlainBlock):
            module.register_full_backward_hook(
                lambda _, into, out: laid.extend(each for pair in (into, out) for each in pair)
            )
    model(images).sum().backward()
    assert len(laid) == 6 if name == "resnet8" else 18
    assert all(each.is_contiguous(memory_format=torch.channels_last) for each in laid)
    # The same network by torch's own pieces, channels outermost.
    plain = models.make(name, width=4)
    first = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
    first.weight = plain[0].weight
    plain[0], plain[-3] = first, torch.nn.AdaptiveAvgPool2d(1)
    torch.testing.assert_close(models.make(name, width=4)(images), plain(images))


def test_operations_of_the_language_model_by_formula():
    found = models.flops_by_module(on_meta("lstm", words=50, hidden=7, embedding=5), (35,))
    forward = [0, 2 * 28 * (5 + 7), 2 * 28 * (7 + 7), 2 * 50 * 7]
    assert list(found.values()) == [(35 * f, 2 * 35 * f) for f in forward]


def test_the_language_model_reads_left_to_right_from_a_zero_state():
    model = models.make("lstm", words=11, hidden=6)
    tokens = torch.arange(10).view(2, 5)
    scores = model(tokens).view(2, 5, 11)
    changed = tokens.clone()
    changed[:, 3] = 10
    again = model(changed).view(2, 5, 11)
    assert torch.equal(scores[:, :3], again[:, :3])
    assert not torch.equal(scores[:, 3:], again[:, 3:])
    assert torch.equal(model(tokens).view(2, 5, 11), scores)
    with pytest.raises(ValueError, match=r"tied needs hidden \(7\) equal to embedding \(5\)"):
        models.make("lstm", words=11, hidden=7, embedding=5, tied=True)
