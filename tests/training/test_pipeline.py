"""The tensors of models, and when backward has their gradients."""

import pytest
import torch

from slowlink.testbed.training import device, models, pipeline
from slowlink.testbed.training.recipe import Part

DEVICE = device.profile("v100_flops")


@pytest.mark.parametrize("name", ["resnet20", "vgg16", "resnet50", "lstm"])
def test_layers_are_the_models_tensors_backwards(name):
    layers = pipeline.layers(Part(name=name))
    with torch.device("meta"):
        shapes = models.gradient_shapes(models.make(name))
    assert [(t.name, t.shape) for t in layers.tensors] == list(shapes.items())[::-1]
    # Two thirds of the operations are backward, a little less where the first layer is heavy.
    assert sum(t.backward for t in layers.tensors) == pytest.approx(2 / 3, abs=5e-3)
    # BatchNorm and biases come with a layer that has operations, or before it.
    by_name = {t.name: t.backward for t in layers.tensors}
    if name == "resnet50":
        assert by_name["bn1.weight"] == by_name["bn1.bias"] == by_name["fc.weight"] == 0
        assert by_name["fc.bias"] == pytest.approx(4 * 1000 * 2048 / layers.flops)


def test_shares_follow_operations_of_a_network_by_hand(monkeypatch):
    chain = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    monkeypatch.setitem(models.MODELS, "chain", lambda: chain)
    layers = pipeline.layers(Part(name="chain"), sample=(5,))
    total = 2 * 2 * 35 + 3 * 2 * 21
    assert layers.flops == total
    assert [(t.name, t.backward) for t in layers.tensors] == [
        ("1.weight", pytest.approx(2 * 2 * 21 / total)),
        ("0.bias", pytest.approx(2 * 35 / total)),
        ("0.weight", 0.0),
    ]


def test_measured_layers_cover_an_iteration():
    torch.set_num_threads(1)
    part = Part(name="lstm", words=200, hidden=16)
    layers = pipeline.measured_layers(part, batch=2, repeats=1)
    assert [t.name for t in layers.tensors] == [t.name for t in pipeline.layers(part).tensors]
    assert all(t.backward >= 0 for t in layers.tensors)
    assert 0 < sum(t.backward for t in layers.tensors) < 1
    assert pipeline.single_gpu_s(DEVICE, layers, 6) == pytest.approx(6 * layers.sample_s)


def test_a_stand_in_is_as_large_and_as_slow_as_its_original():
    original, narrow = (pipeline.layers(Part(name=n)) for n in ("resnet20", "resnet8"))
    scaled = narrow.standing_for(original)
    assert len(scaled.tensors) == len(narrow.tensors)
    assert sum(scaled.sizes) == pytest.approx(sum(original.sizes), rel=1e-3)
    one, other = (pipeline.single_gpu_s(DEVICE, layers, 9) for layers in (scaled, original))
    assert one == other
