"""A model of one's own: what may be named, how it is timed, and the line over what codecs take."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from slowlink.testbed import given
from slowlink.testbed.training import device, own
from slowlink.testbed.training.recipe import Part

CODE = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))

def pair():
    return net(), (torch.randn(6, 3, 2, 2), torch.zeros(6, dtype=torch.int64))

def closure():
    return net(), {"x": torch.randn(4, 12)}, lambda model, batch: model(batch["x"]).square().mean()

def broken():
    raise KeyError("data")

def number():
    return 3

def no_scores():
    return nn.Conv2d(3, 1, 1)

def vector():
    return net(), torch.randn(2, 12), lambda model, batch: model(batch)

def frozen():
    return net().requires_grad_(False)

def unused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    return Two()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_training.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_training"
    sys.modules.pop("my_training", None)


def test_a_function_returns_a_model_alone_or_with_its_batch_and_loss(mine):
    alone = own.subject(f"{mine}:net", batch=7, sample=(3, 2, 2))
    assert alone.samples == 7 and alone.loss().ndim == 0
    pair, closure = own.subject(f"{mine}:pair"), own.subject(f"{mine}:closure")
    assert (pair.samples, closure.samples) == (6, 4)
    assert closure.loss().numel() == 1
    assert own.subject("lenet5", batch=2).loss().ndim == 0


@pytest.mark.parametrize(
    "spec, options, says",
    [
        ("my_training:net", {}, "returns a model alone: give the shape of a sample"),
        ("my_training:pair", dict(batch=3), "returns its own batch; leave --batch out"),
        ("my_training:broken", {}, r"my_training:broken\(\) fails: KeyError: 'data'"),
        ("my_training:number", {}, "returns int; return a torch model"),
        ("my_training:other", {}, "my_training has no function 'other'"),
        ("my_training:frozen", dict(sample=(12,)), "no parameter that is trained"),
        ("no_such_module:f", {}, "import no_such_module fails: ModuleNotFoundError"),
        ("lenet6", {}, "'lenet6' names no function and no model; say module:function"),
    ],
)
def test_what_cannot_be_timed_is_said_in_a_line(mine, spec, options, says):
    with pytest.raises(ValueError, match=says) as raised:
        own.subject(spec, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name, sample, says",
    [("no_scores", (3, 2, 2), "returns no scores"), ("vector", None, "not one number")],
)
def test_a_loss_that_is_none_is_said_when_it_is_timed(mine, name, sample, says):
    asked = own.subject(f"{mine}:{name}", sample=sample)
    with pytest.raises(ValueError, match=says):
        own.measure_model(asked, repeats=1)


class Slow(torch.autograd.Function):
    """Backward takes so many seconds."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        import time

        time.sleep(ctx.seconds)
        return grad, None


class Slowed(nn.Module):
    """Two layers; 20 ms lie between their gradients, 10 ms before the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        hidden = Slow.apply(self.first(x), 0.02)
        return Slow.apply(self.second(hidden), 0.01)


def slowed():
    model, x = Slowed(), torch.randn(5, 4)
    return own.Subject("slowed", model, lambda: model(x).square().sum(), 5)


def test_tensors_come_in_the_order_and_at_the_times_of_their_gradients():
    file = own.measure_model(slowed(), repeats=3)
    names = [tensor.name for tensor in file.tensors]
    assert {*names[:2]} == {"second.weight", "second.bias"}
    assert {*names[2:]} == {"first.weight", "first.bias"}
    spans = [tensor.backward_s for tensor in file.tensors]
    # A sleep never ends early.
    assert sum(spans[:2]) >= 0.01 and sum(spans[2:]) >= 0.02
    total = file.forward_s + file.rest_s + sum(spans)
    assert total == pytest.approx(file.batch / file.samples_per_s, rel=1e-3)
    assert file.spread[0] <= 1 <= file.spread[1]
    layers = file.layers
    assert [t.backward for t in layers.tensors] == pytest.approx([s / total for s in spans])
    assert layers.sizes[:1] in ([2], [8]) and sum(layers.sizes) == 30


def test_operations_are_counted_as_by_hand(mine):
    file = own.measure_model(own.subject(f"{mine}:net", batch=8, sample=(3, 2, 2)), repeats=1)
    # Twice a multiply-add; forward and both gradients of the second layer, no input of the first.
    assert file.flops == 2 * (2 * 60 + 3 * 15)


def test_what_gets_no_gradient_is_left_out_and_said(mine):
    file = own.measure_model(own.subject(f"{mine}:unused", sample=(2,)), repeats=1)
    assert {tensor.name for tensor in file.tensors} == {"used.weight", "used.bias"}
    assert "2 parameters get no gradient and are left out, as idle.weight" in file.measured.notes


def test_files_come_back(mine, tmp_path):
    file = own.measure_model(own.subject(f"{mine}:pair"), repeats=2)
    codecs = {"top_k": Part(name="top_k", ratio=0.1), "small": Part(name="power_sgd", rank=1)}
    profile = own.measure_device(file, codecs | {"identity": Part(name="identity")}, repeats=2)
    assert set(profile.known) == {"top_k", "small"}  # identity does no work
    assert profile.known["small"].codec == "power_sgd"
    given.write(tmp_path / "m.yaml", "two\nlines", file)
    given.write(tmp_path / "d.yaml", "head", {"mine": profile})
    assert own.load(tmp_path / "m.yaml") == file
    assert device.load(tmp_path / "d.yaml") == ("mine", profile)
    assert (tmp_path / "m.yaml").read_text().startswith("# two\n# lines\n")
    for field in ("date", "processor", "versions", "repeats"):
        assert field in (tmp_path / "d.yaml").read_text()
    # The profile computes as fast as was measured, by samples and by operations alike.
    seconds = profile.compute_s(0, file.batch, file.model)
    assert seconds == pytest.approx(file.batch / file.samples_per_s)
    assert profile.compute_s(file.flops, file.batch) == pytest.approx(seconds, rel=1e-4)


@pytest.mark.parametrize(
    "text, says",
    [
        ("{}", "model: is missing"),
        ("{model: m, batch: 0}", "batch"),
        ("{model: m, batch: 1, forward_s: 1, samples_per_s: 1, tensors: []}", "tensors"),
        (
            "{model: m, batch: 1, forward_s: 1, samples_per_s: 1, "
            "tensors: [{name: w, shape: [0], backward_s: 1}]}",
            r"tensors\.0\.shape\.0",
        ),
        ("{model: m, batch: 1, forward_s: .inf}", "forward_s: .*finite"),
        ("{model: m, batch: 1, forward_s: 1, rest_s: .inf}", "rest_s: .*finite"),
        ("{model: m, batch: 1, forward_s: 1, samples_per_s: .inf}", "samples_per_s: .*finite"),
        (
            "{model: m, batch: 1, forward_s: 1, samples_per_s: 1, flops: .inf}",
            "flops: .*finite",
        ),
        (
            "{model: m, batch: 1, forward_s: 1, samples_per_s: 1, "
            "tensors: [{name: w, shape: [1], backward_s: .nan}]}",
            r"tensors\.0\.backward_s: .*finite",
        ),
    ],
)
def test_a_model_file_that_does_not_fit_is_named(tmp_path, text, says):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"m\.yaml: .*{says}.*slowlink measure makes"):
        own.load(tmp_path / "m.yaml")


def file_of(*shapes):
    tensors = [own.Tensor(name=str(n), shape=s, backward_s=1.0) for n, s in enumerate(shapes)]
    return own.ModelFile(model="m", batch=1, forward_s=1.0, samples_per_s=1.0, tensors=tensors)


def timed_as(monkeypatch, seconds):
    """Every run takes ``seconds(values, run)``, a quarter of it decoding."""

    def runs(make, tensors, repeats, clock):
        (tensor,) = tensors
        took = [seconds(tensor.numel(), run) for run in range(repeats)]
        return [own.measuring.CodingTimes(0.5 * s, 0.25 * s, 0.25 * s) for s in took]

    monkeypatch.setattr(own.measuring, "runs", runs)


def test_a_line_comes_back_with_its_spread(monkeypatch):
    timed_as(monkeypatch, lambda values, run: (1e-4 + 2e-9 * values) * (1 + 0.1 * (run - 2)))
    file = file_of((10,), (100,), (1000, 3), (512, 512), (64,), (64,))
    cost = own.measure_coding(None, file, repeats=5)
    assert cost.fixed_s == pytest.approx(1e-4, rel=1e-4)
    assert cost.rate == pytest.approx(4 / 2e-9, rel=1e-4)
    assert cost.decode == pytest.approx(0.25)
    assert cost.spread == pytest.approx((0.9, 1.1))


def test_the_whole_model_takes_what_was_measured_where_time_is_no_line(monkeypatch):
    def seconds(values, run):
        return 1e-5 + 1e-7 * np.sqrt(values)

    timed_as(monkeypatch, seconds)
    shapes = [(n,) for n in (3, 50, 700, 9000, 120_000)]
    cost = own.measure_coding(None, file_of(*shapes), repeats=3)
    whole = sum(seconds(n, 0) for (n,) in shapes)
    assert sum(cost.seconds(4 * n) for (n,) in shapes) == pytest.approx(whole, rel=1e-4)


def test_large_models_are_timed_on_few_tensors_that_stand_for_all(monkeypatch):
    asked = []
    timed_as(monkeypatch, lambda values, run: asked.append(values) or 1e-6 * values)
    file = file_of(*[(n + 1, 5) for n in range(200)], (1 << 13, 1 << 12))
    cost = own.measure_coding(None, file, repeats=1)
    assert len(asked) == own.SIZES and max(asked) == own.LARGEST
    assert cost.rate == pytest.approx(4e6, rel=1e-4)
    tensors, counts = own._chosen([tensor.shape for tensor in file.tensors])
    assert sum(counts) == 201 and len(tensors) == own.SIZES
