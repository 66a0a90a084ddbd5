"""Sizes of the models against what GeoMX prints and against arithmetic."""

import pytest
import torch

from testbed.training import models

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


def test_counted_operations_of_a_known_network():
    # Per image: forward 2·m·n for each of the two layers; backward the same for weights, and for
    # inputs of all but the first layer.
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 7), torch.nn.Linear(7, 3))
    assert models.flops_per_image(network, (1, 3, 4)) == 2 * (2 * 12 * 7) + 3 * (2 * 7 * 3)


def test_unknown_model_lists_those_there_are():
    with pytest.raises(ValueError, match="no model 'alexnet'; there are: lenet5"):
        models.make("alexnet")
