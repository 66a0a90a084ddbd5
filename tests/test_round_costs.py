"""What a round of a full-size model costs on a device."""

from __future__ import annotations

import pytest

from slowlink.testbed import rounds
from slowlink.testbed.training import trainer
from slowlink.testbed.training.learner import Traffic
from slowlink.testbed.training.recipe import Part
from tests import small


def test_a_rate_known_of_a_model_prices_a_round_as_it_prices_a_training(monkeypatch):
    """Not by operations, which are known, too, and would say another time."""
    known = small.DEVICE.model_copy(update=dict(samples_per_s={"lenet5": 40.0}))
    for module in (rounds, trainer):
        monkeypatch.setattr(module, "profile", lambda name: known)
    data = small.noise(240, 10)
    monkeypatch.setattr(rounds, "_image_shape", lambda dataset: data.shape)
    recipe = small.recipe(workers=(2,), rounds=1, evaluate_every=1, batch=8)
    compute_s, coding_s = rounds.costs(recipe, Traffic())
    assert (compute_s, coding_s) == (pytest.approx(8 / 40.0), 0.0)
    trained = trainer._Session(recipe, lambda *said: None, lambda *asked, **more: data)
    assert compute_s == trained.compute_s
    other = recipe.model_copy(update=dict(model=Part(name="strided_cnn", hidden=20)))
    assert rounds.costs(other, Traffic())[0] not in (0.0, compute_s)
