"""What attackers send, beside what they would have sent."""

import federated_peers
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from slowlink.testbed.live.dds.federated import Data
from slowlink.testbed.live.dds.federated.attacks import spoiled
from slowlink.testbed.live.dds.federated.training import sgd
from slowlink.testbed.training import models


@pytest.mark.parametrize("factor, noise", [(1.0, 0.0), (-1.0, 0.0), (-10.0, 0.0), (0.0, 5.0)])
def test_attackers_train_and_change_what_they_learned(tmp_path, factor, noise):
    federated_peers.write_images(tmp_path / "images")
    data = Data(name="mnist", directory=tmp_path / "images").load()
    changes = []
    for script in (sgd, spoiled(factor, noise)):
        model = models.make("mlp", 1, hidden=4)
        start = parameters_to_vector(model.parameters()).detach().clone()
        how = dict(epochs=1, lr=0.1, momentum=0.5, batch=16)
        draw = torch.Generator().manual_seed(3)
        steps = list(script(model, data, torch.arange(40), generator=draw, **how))
        assert len(steps) == 3
        changes.append(parameters_to_vector(model.parameters()).detach() - start)
    honest, sent = changes
    rest = sent - factor * honest
    assert float(rest.norm()) == pytest.approx(noise * float(honest.norm()), abs=1e-4)
