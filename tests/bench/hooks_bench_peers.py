"""What the ranks of the hooks' benchmark do; ranks import it by name."""

import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import slowlink.torch

OURS = {
    "identity": {},
    "fp16": {},
    "power_sgd": {"rank": 4},
    "top_k": {},
    "bisparse": {"format": "tight"},
    "sign_sgd": {},
    "count_sketch": {},
}
WARM = 3
"""Steps that do not count: kernels are compiled, buckets ordered, memory is had."""


def measure(port, values, kinds, steps, rank, tell):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    width = int((values / 4) ** 0.5)
    models = {kind: hooked(kind, width) for kind in kinds}
    inputs = torch.randn(1, width)
    took = {kind: {"cpu": [], "wall": []} for kind in kinds}
    for step in range(WARM + steps):
        for kind, model in models.items():
            tell(f"step {step} of {kind}")
            model.zero_grad()
            loss = model(inputs).square().mean()
            dist.barrier()
            cpu, wall = time.process_time(), time.perf_counter()
            loss.backward()
            took[kind]["cpu"].append(time.process_time() - cpu)
            took[kind]["wall"].append(time.perf_counter() - wall)
    return {
        kind: {clock: 1e3 * statistics.median(s[WARM:]) for clock, s in clocks.items()}
        for kind, clocks in took.items()
    }


def hooked(kind, width):
    torch.manual_seed(0)
    # One bucket: torch's PowerSGD hook aborts on gloo with several.
    network = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])
    model = DistributedDataParallel(network, bucket_cap_mb=1000)
    if kind == "torch all-reduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif kind == "torch fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "torch power_sgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        name = kind.removeprefix("ours ")
        slowlink.torch.comm_hook(model, name, **OURS[name])
    return model
