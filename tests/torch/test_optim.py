"""DGCSGD: against torch's SGD where the two must agree, and by hand."""

import pytest
import torch

from slowlink.torch import DGCSGD


def steps(make, gradients, start=(2.0, -1.0)):
    """Where a parameter gets by these gradients; a function of it may stand for one."""
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = make([parameter])
    for gradient in gradients:
        found = gradient(parameter.detach()) if callable(gradient) else gradient
        parameter.grad = torch.as_tensor(found, dtype=torch.float64)
        optimizer.step()
    return parameter.detach()


GRADIENTS = [[0.3, -0.2], [0.1, 0.5], [-0.4, 0.0], [0.2, 0.2]]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_weight_decay_it_is_sgd_without_momentum(momentum):
    ours = steps(lambda p: DGCSGD(p, lr=0.1, momentum=momentum), GRADIENTS)
    torch.testing.assert_close(ours, steps(lambda p: torch.optim.SGD(p, lr=0.1), GRADIENTS))


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_alone_moves_as_torchs_momentum_by_its_gradient(nesterov):
    how = dict(lr=0.1, momentum=0.9, nesterov=nesterov)
    ours = steps(lambda p: DGCSGD(p, weight_decay=0.05, **how), [[0.0, 0.0]] * 6)
    torchs = steps(lambda p: torch.optim.SGD(p, **how), [lambda w: 0.05 * w] * 6)
    torch.testing.assert_close(ours, torchs)


def test_without_momentum_it_is_sgd_with_weight_decay():
    ours = steps(lambda p: DGCSGD(p, lr=0.1, weight_decay=0.05), GRADIENTS)
    torchs = steps(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05), GRADIENTS)
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("nesterov", [False, True])
def test_by_hand(nesterov):
    lr, m, decay, w, u = 0.1, 0.9, 0.2, 2.0, 0.0
    for g in (0.3, 0.1, -0.4):
        u = m * u + decay * w
        w -= lr * ((decay * w + m * u if nesterov else u) + g)
    how = dict(lr=lr, momentum=m, weight_decay=decay, nesterov=nesterov)
    given = dict(gradients=[[0.3], [0.1], [-0.4]], start=(2.0,))
    assert steps(lambda p: DGCSGD(p, **how), **given).item() == pytest.approx(w, rel=1e-12)
    torchs = steps(lambda p: torch.optim.SGD(p, **how), **given)
    assert torchs.item() != pytest.approx(w, rel=1e-3)


def test_it_goes_on_from_its_state():
    def fresh(parameter):
        return DGCSGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1)

    whole = steps(lambda p: fresh(*p), GRADIENTS)
    first = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    optimizer = fresh(first)
    for number, gradient in enumerate(GRADIENTS):
        if number == 2:
            kept, first = optimizer.state_dict(), torch.nn.Parameter(first.detach().clone())
            optimizer = fresh(first)
            optimizer.load_state_dict(kept)
        first.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(first.detach(), whole)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (dict(lr=-1), "lr must not be negative"),
        (dict(lr=0.1, momentum=-0.1), "momentum must not"),
        (dict(lr=0.1, weight_decay=-1), "weight_decay must not"),
        (dict(lr=0.1, nesterov=True), "nesterov needs a momentum"),
    ],
)
def test_what_cannot_be_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        DGCSGD([torch.nn.Parameter(torch.zeros(1))], **wrong)
