"""Gradients of several workers at once are those of each worker alone."""

import copy

import pytest
import torch
from torch import nn

from slowlink.testbed.training import batching, models, one_pass

pytestmark = pytest.mark.slow

MODELS = {
    "lenet5": {},
    "strided_cnn": {},
    "cnn3": {"width": 4},
    "resnet8": {"width": 4},
    "vgg16": {},
    "lstm": {"words": 11, "hidden": 4, "tied": True},
}
WORKERS, BATCH = 3, 5
# Relative errors of sums of some thousand terms in 64 and 32 bits.
CLOSE = {torch.float64: 1e-11, torch.float32: 1e-4}


def workers(name, dtype=torch.float64, sizes=(BATCH,) * WORKERS):
    """A model, and each worker's own parameters, batch, labels and buffers."""
    model = models.make(name, **MODELS[name]).to(dtype)
    random = torch.Generator().manual_seed(1)

    def near(value):
        return value.detach() + 0.02 * torch.randn(value.shape, dtype=dtype, generator=random)

    parameters = [[near(p) for p in model.parameters()] for _ in sizes]
    if name == "lstm":
        images = [torch.randint(11, (size, 6), generator=random) for size in sizes]
        labels = [torch.randint(11, (size * 6,), generator=random) for size in sizes]
    else:
        shape = models.sample_shape(name)
        images = [torch.randn(size, *shape, dtype=dtype, generator=random) for size in sizes]
        labels = [torch.randint(10, (size,), generator=random) for size in sizes]
    buffers = [[b.clone() for b in model.buffers()] for _ in sizes]
    return model, parameters, images, labels, buffers


def gradients(model, *given, **options):
    return batching.gradients(model, list(model.parameters()), *given, **options)


def alone(model, parameters, images, labels, buffers):
    """A model, a loss and a backward pass for each worker; moves its ``buffers`` along."""
    found, losses = [], []
    for own, batch, wanted, state in zip(parameters, images, labels, buffers, strict=True):
        copied = copy.deepcopy(model)
        with torch.no_grad():
            for held, value in zip(copied.parameters(), own, strict=True):
                held.copy_(value)
        for held, value in zip(copied.buffers(), state, strict=True):
            held.copy_(value)
        loss = nn.functional.cross_entropy(copied(batch), wanted)
        loss.backward()
        found.append([p.grad for p in copied.parameters()])
        losses.append(loss.detach())
        for held, value in zip(copied.buffers(), state, strict=True):
            value.copy_(held)
    return found, torch.stack(losses)


def assert_close(found, expected, tolerance):
    for own, wanted in zip(found[0], expected[0], strict=True):
        for gradient, oracle in zip(own, wanted, strict=True):
            assert gradient.shape == oracle.shape and not gradient.requires_grad
            assert (gradient - oracle).norm() <= tolerance * oracle.norm() and oracle.any()
    assert found[1].shape == expected[1].shape and not found[1].requires_grad
    torch.testing.assert_close(found[1], expected[1], rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("how", ["one_by_one", "channels_last", "vmap"])
@pytest.mark.parametrize("name", ["lenet5", "strided_cnn", "cnn3"])
def test_every_way_gives_what_each_worker_finds_alone(name, how, dtype):
    model, *given, _ = workers(name, dtype)
    found = gradients(model, *given, how)
    assert_close(found, alone(model, *given, [()] * WORKERS), CLOSE[dtype])
    # The workers differ, so a mix-up would show.
    assert not torch.allclose(found[0][0][0], found[0][1][0], rtol=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_one_by_one_is_backward_to_the_bit(name):
    model, *given, buffers = workers(name, torch.float32, sizes=(5, 2, 7))
    expected_buffers = [[b.clone() for b in own] for own in buffers]
    expected = alone(model, *given, expected_buffers)
    found = gradients(model, *given, buffers=buffers)
    assert_close(found, expected, 0)
    for own, wanted in zip(buffers, expected_buffers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, wanted, strict=True))


@pytest.mark.parametrize("how", ["one_by_one", "channels_last"])
@pytest.mark.parametrize("name", ["lenet5", "strided_cnn", "cnn3"])
def test_workers_of_the_same_parameters_pass_together(monkeypatch, name, how):
    sizes = (16,) * WORKERS
    model, parameters, images, labels, _ = workers(name, sizes=sizes)
    alike = [parameters[0]] * WORKERS
    monkeypatch.setattr(batching, "TOGETHER", 2 * 16)  # two workers, then the third
    # Whatever bits the kernels of this processor give.
    monkeypatch.setattr(batching, "_agree", lambda *given: True)
    monkeypatch.setattr(batching, "_same_bits", {})
    passes = []
    model[-1].register_forward_pre_hook(lambda *given: passes.append("a worker"))
    expected = alone(model, alike, images, labels, [()] * WORKERS)
    passes.clear()
    found = gradients(model, alike, images, labels, how)
    assert not passes
    assert_close(found, expected, CLOSE[torch.float64])
    assert not torch.allclose(found[0][0][0], found[0][1][0], rtol=0.01), "each has its own"
    gradients(model, parameters, images, labels, how)
    assert len(passes) == WORKERS, "others pass one by one"


@pytest.mark.parametrize("name", ["lenet5", "strided_cnn", "cnn3", "resnet8", "vgg16"])
def test_one_pass_of_a_gpu_finds_what_each_worker_finds_alone(name):
    """Its arithmetic, on a processor; statistics follow one worker after the other."""
    model, parameters, images, labels, buffers = workers(name)
    ours, theirs = copy.deepcopy([buffers[0], buffers[0]])
    assert one_pass.fits(model, list(model.parameters()))
    assert not one_pass.fits(model, list(model.parameters())[1:])
    expected = alone(model, [parameters[0]] * WORKERS, images, labels, [theirs] * WORKERS)
    given = torch.stack(images), torch.stack(labels), ours
    found, losses = one_pass.together(model, list(model.parameters()), parameters[0], *given)
    found = [list(own) for own in zip(*found, strict=True)]
    assert_close((found, losses), expected, CLOSE[torch.float64])
    for own, wanted, before in zip(ours, theirs, buffers[0], strict=True):
        torch.testing.assert_close(own, wanted)
        assert not torch.equal(own, before)


def test_one_pass_takes_only_layers_that_it_knows():
    cases = [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.BatchNorm2d(4, affine=False),
        nn.Dropout(),
        nn.GroupNorm(2, 4),
    ]
    assert not any(one_pass.fits(one, list(one.parameters())) for one in map(nn.Sequential, cases))
    model = nn.Sequential(nn.Conv2d(4, 4, 3))
    assert one_pass.fits(model, list(model.parameters()))
    assert not one_pass.fits(model.eval(), list(model.parameters()))


@pytest.mark.parametrize("size", [1, 5, 15, 16, 20, 32, 64])
@pytest.mark.parametrize("how", ["one_by_one", "channels_last"])
@pytest.mark.parametrize("name", ["lenet5", "strided_cnn", "cnn3"])
def test_a_worker_s_bits_do_not_depend_on_who_passes_with_it(name, how, size):
    """A live worker passes alone and has the bits of the trainer, which has all workers pass."""
    model, parameters, images, labels, _ = workers(name, torch.float32, (size,) * WORKERS)
    found, losses = gradients(model, [parameters[0]] * WORKERS, images, labels, how)
    for one in range(WORKERS):
        (own,), loss = gradients(model, parameters[:1], images[one:][:1], labels[one:][:1], how)
        assert torch.equal(loss[0], losses[one])
        assert all(torch.equal(a, b) for a, b in zip(own, found[one], strict=True))


def test_workers_pass_one_by_one_where_their_bits_would_change(monkeypatch):
    model, parameters, images, labels, _ = workers("lenet5", torch.float32, (16,) * WORKERS)
    given = [parameters[0]] * WORKERS, images, labels
    together = batching._together

    def rounded(*given):
        found, losses = together(*given)
        found[-1][-1].mul_(1 + 1e-6)
        return found, losses

    monkeypatch.setattr(batching, "_together", rounded)
    monkeypatch.setattr(batching, "_same_bits", {})
    expected = alone(model, *given, [()] * WORKERS)
    for _ in range(2):
        assert_close(gradients(model, *given), expected, 0)


@pytest.mark.parametrize("name", ["lenet5", "resnet8"])
def test_batches_of_several_sizes_or_with_statistics_do_not_pass_together(name):
    model, parameters, images, labels, buffers = workers(name, sizes=(5, 2, 5))
    given = [parameters[0]] * 3, images, labels
    expected = alone(model, *given, [[b.clone() for b in own] for own in buffers])
    assert_close(gradients(model, *given, buffers=buffers), expected, 1e-9)


@pytest.mark.parametrize("how", ["one_by_one", "channels_last"])
def test_batches_of_several_sizes_and_statistics_of_each_worker(how):
    model, *given, buffers = workers("resnet8", sizes=(5, 2, 7))
    expected_buffers = [[b.clone() for b in own] for own in buffers]
    expected = alone(model, *given, expected_buffers)
    assert_close(gradients(model, *given, how, buffers), expected, 1e-9)
    for own, wanted in zip(buffers, expected_buffers, strict=True):
        torch.testing.assert_close(own, wanted)
    assert not torch.equal(buffers[0][0], buffers[1][0])


@pytest.mark.parametrize("how", ["one_by_one", "channels_last", "vmap"])
def test_nothing_given_is_changed(how):
    model, parameters, images, labels, _ = workers("lenet5")
    before = copy.deepcopy((parameters, images, labels))
    gradients(model, parameters, images, labels, how)
    torch.testing.assert_close((parameters, images, labels), before)
    assert all(p.grad is None for p in model.parameters())
    assert not any(value.requires_grad for own in parameters for value in own)


def test_a_linear_model_by_hand():
    # One score pair per sample, all weights zero: softmax is a half, so the gradient of a sample
    # (x, label) is (1/2 - [class is label]) x.
    model = nn.Linear(2, 2, bias=False)
    parameters = [[torch.zeros(2, 2)]] * 2
    images = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]])]
    labels = [torch.tensor([0]), torch.tensor([0, 1])]
    (first, second), losses = gradients(model, parameters, images, labels)
    assert first[0].tolist() == [[-0.5, -1.0], [0.5, 1.0]]
    assert second[0].tolist() == [[-0.75, 1.0], [0.75, -1.0]]
    torch.testing.assert_close(losses, torch.full((2,), 2.0).log())


def test_what_cannot_be_done_is_refused_with_the_reason():
    ragged = workers("lenet5", sizes=(5, 2, 5))[:4]
    normed, *given = workers("resnet8")
    text = workers("lstm")[:4]
    with pytest.raises(ValueError, match=r"vmap: all batches must be of one size.*\[5, 2, 5\]"):
        gradients(*ragged, "vmap")
    with pytest.raises(ValueError, match="vmap: the model has buffers"):
        gradients(normed, *given[:3], "vmap", given[3])
    with pytest.raises(ValueError, match="vmap: the model is recurrent"):
        gradients(*text, "vmap")
    with pytest.raises(ValueError, match=r"channels_last: samples must be images .*\(6,\)"):
        gradients(*text, "channels_last")
    with pytest.raises(ValueError, match="no such way; there are: one_by_one, channels_last, vmap"):
        gradients(*text, "twice")


def test_what_is_missing_is_named():
    model, parameters, images, labels, buffers = workers("resnet8")
    with pytest.raises(ValueError, match="one entry a worker, not 3, 3, 2, 3"):
        gradients(model, parameters, images, labels[:2], buffers=buffers)
    with pytest.raises(ValueError, match="one entry a worker, not 0, 0, 0"):
        gradients(model, [], [], [])
    with pytest.raises(ValueError, match="worker 0 has 0 buffers, not 21"):
        gradients(model, parameters, images, labels)
    short = [*parameters[:2], parameters[2][1:]]
    with pytest.raises(ValueError, match="worker 2 has 22 parameters, not 23"):
        gradients(model, short, images, labels, buffers=buffers)


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("cnn3", ["one_by_one", "channels_last", "vmap"]),
        ("resnet8", ["one_by_one", "channels_last"]),
        ("lstm", ["one_by_one"]),
    ],
)
def test_the_ways_open_to_a_model_are_timed_in_turns(monkeypatch, name, able):
    model = models.make(name, **MODELS[name])
    shape = models.sample_shape(name)
    assert batching.ways(model, shape) == able
    calls, real = [], batching.gradients

    def watched(*arguments):
        calls.append(arguments[5])
        return real(*arguments)

    monkeypatch.setattr(batching, "gradients", watched)
    seconds = batching.measure(model, shape, workers=2, batch=2, repeats=2)
    assert list(seconds) == able and min(seconds.values()) > 0
    # Each turn runs a way once uncounted and once on the clock.
    assert calls == [how for how in able for _ in range(2)] * 2


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_are_innermost_for_the_kernels_that_follow_one_channel_too(channels):
    images = torch.randn(4, channels, 9, 7)
    laid = batching.channels_last(images)
    assert torch.equal(laid, images)
    out = torch.nn.Conv2d(channels, 5, 3)(laid)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert not out.is_contiguous()
