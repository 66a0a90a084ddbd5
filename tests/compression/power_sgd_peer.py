"""torch's PowerSGD hook, for a process of its own: where the hook's last callback outlives its
group, gloo ends the process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook


class Bucket:
    """What the hook reads of DDP's bucket, over gradients of ``shapes``."""

    def __init__(self, buffer: Tensor, shapes: Sequence[tuple[int, ...]]):
        self.flat, self.shapes = buffer, shapes

    def buffer(self):
        return self.flat

    def index(self):
        return 0

    def is_last(self):
        return True

    def gradients(self):
        parts = self.flat.split([math.prod(shape) for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def hooked(
    steps: Sequence[Sequence[Tensor]],
    cases: Sequence[tuple[int, float, Tensor, Tensor]],
    *_: object,
) -> list[list[list[Tensor]]]:
    """What the hook makes of each step's gradients, by case.

    A case is the rank, the epsilon of orthogonalization, and memory for P and the first Q.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    results = []
    for rank, epsilon, p, q in cases:
        state = hook.PowerSGDState(
            None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=2,
            min_compression_rate=1,
            orthogonalization_epsilon=epsilon,
        )
        state.iter = 2  # past the steps without compression
        state.p_memory_dict[0], state.q_memory_dict[0] = p, q
        results.append([])
        for gradients in steps:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            bucket = Bucket(flat, [tuple(gradient.shape) for gradient in gradients])
            hook.powerSGD_hook(state, bucket).wait()
            results[-1].append([gradient.clone() for gradient in bucket.gradients()])
    return results
