"""Federated training over DDS: one controller, and clients that keep their data.

- :mod:`~testbed.live.dds.federated.settings`: the JSON files of controller and clients;
- :mod:`~testbed.live.dds.federated.training`: what they compute, and :func:`simulate`, which is all
  of it in one process and the same to the bit;
- :mod:`~testbed.live.dds.federated.messages`: what they say;
- :mod:`~testbed.live.dds.federated.controller`, :mod:`~testbed.live.dds.federated.client`;
- :mod:`~testbed.live.dds.federated.checkpoint`: the latest model on disk;
- :mod:`~testbed.live.dds.federated.live`: :func:`run_live`, all of them on this machine.

Commands::

    python -m testbed.live.dds.federated controller controller.json
    python -m testbed.live.dds.federated client client.json

When rounds end is the policy's affair (:mod:`methods.synchronization.fedavg`), what an update looks
like the codec's (:mod:`methods.compression`). Whoever dies, or takes nothing of what is sent to it,
is left out and may come back; a controller that dies goes on, when it is started again, after the
last round that it completed.

Two things differ from the DDS document: the round waits for all who were asked until its time-out,
not for the first ``min_clients``; and each client has a topic of its own.
"""

from testbed.live.dds.federated.live import Failed, run_live
from testbed.live.dds.federated.settings import ClientSettings, ControllerSettings, Data, Task
from testbed.live.dds.federated.training import Round, Sent, simulate

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
