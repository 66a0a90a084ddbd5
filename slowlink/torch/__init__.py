"""The methods in an own PyTorch training.

- :func:`comm_hook`: a codec for the gradients of DistributedDataParallel.
- :func:`fsdp_hook`: a codec for those of FSDP2, torch's ``fully_shard``.
- :func:`local_steps`: an optimizer whose workers meet only now and then, by a policy.
- :class:`DGCSGD`: an optimizer for codecs that keep the momentum of gradients themselves.
"""

from slowlink.torch.data_parallel import CommHook, comm_hook
from slowlink.torch.local import LocalSteps, local_steps
from slowlink.torch.optim import DGCSGD
from slowlink.torch.report import Report
from slowlink.torch.sharded import FsdpHook, fsdp_hook

__all__ = [
    "DGCSGD",
    "CommHook",
    "FsdpHook",
    "LocalSteps",
    "Report",
    "comm_hook",
    "fsdp_hook",
    "local_steps",
]
