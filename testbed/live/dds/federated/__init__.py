"""Federated training over DDS: one controller, and clients that keep their data.

- :mod:`~testbed.live.dds.federated.settings`: the JSON files of controller and clients;
- :mod:`~testbed.live.dds.federated.training`: what they compute, and :func:`simulate`, which is all
  of it in one process and the same to the bit;
- :mod:`~testbed.live.dds.federated.messages`: what they say, and
  :mod:`~testbed.live.dds.federated.board`, where models are published;
- :mod:`~testbed.live.dds.federated.controller`, :mod:`~testbed.live.dds.federated.client`;
- :mod:`~testbed.live.dds.federated.checkpoint`: the latest model on disk;
- :mod:`~testbed.live.dds.federated.live`: :func:`run_live`, all of them on this machine.

Commands::

    python -m slowlink.testbed.live.dds.federated controller controller.json
    python -m slowlink.testbed.live.dds.federated client client.json

When rounds end is the policy's affair (:mod:`methods.synchronization.fedavg`), what an update looks
like the codec's (:mod:`methods.compression`). Whoever dies, or takes nothing of what is sent to it,
is left out and may come back; a controller that dies goes on, when it is started again, after the
last round that it completed.

What differs from the DDS document: unless its time-out is 0, a round waits for all who were asked
until then, and not for the first ``min_clients``, without whom it never ends. Each client has a
topic of its own, on which it is told what to do and sends what it learned; only models are
published once for all. Which format a client sends is said before, by the task for all or for this
client: updates in another are refused, where the document's controller takes what it gets. What a
client's update was under way is told by one clock, and means nothing between machines; the document
subtracts the clocks of two.
"""

from slowlink.testbed.live.dds.federated.live import Failed, run_live
from slowlink.testbed.live.dds.federated.settings import (
    ClientSettings,
    ControllerSettings,
    Data,
    Task,
)
from slowlink.testbed.live.dds.federated.training import Round, Sent, simulate

__all__ = [
    "ClientSettings",
    "ControllerSettings",
    "Data",
    "Failed",
    "Round",
    "Sent",
    "Task",
    "run_live",
    "simulate",
]
