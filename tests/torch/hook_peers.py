"""What the ranks of these tests do; a module of its own, because ranks import it by name."""

import copy
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel

import slowlink.torch
from slowlink.methods import compression

STEPS, LR = 6, 0.2
SMALL_BUCKETS = 0.005
"""MiB; the model below then fills several."""


def join(port, size, rank):
    patience = timedelta(seconds=60)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=patience)
    torch.set_num_threads(1)


def several(port, size, jobs, rank, tell):
    """The answer of each job, a function of this module with its options, or its error's text."""
    join(port, size, rank)
    answers = []
    for name, options in jobs:
        tell(f"{name} {options}")
        try:
            answers.append(globals()[name](**options))
        except Exception as error:
            answers.append("\n".join([str(error), *getattr(error, "__notes__", ())]))
            dist.barrier()
    return answers


def network(dtype=torch.float32):
    torch.manual_seed(5)
    layers = [nn.Linear(20, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 4)]
    return nn.Sequential(*layers).to(dtype)


def batch(step, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(12, 20, generator=generator).to(dtype),
        torch.randint(4, (12,), generator=generator),
    )


def loss_of(model, step, rank, dtype=torch.float32):
    inputs, labels = batch(step, rank, dtype)
    return nn.functional.cross_entropy(model(inputs).float(), labels)


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def register(model, method, parameters, options):
    """Our hook, or one of torch's."""
    if method == "plain":
        return None
    if method == "torch fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return None
    if method == "torch power_sgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return None
    return slowlink.torch.comm_hook(model, method, **parameters, **options)


def train(
    method="plain",
    parameters=None,
    options=None,
    steps=tuple(range(STEPS)),
    dtype=torch.float32,
    bucket_mb=SMALL_BUCKETS,
    resume_at=None,
    overflow_at=None,
    scaled=False,
    everywhere=False,
    views=False,
):
    """Train; the parameters at the end, the dtypes of gradients, the hook's report and state."""
    rank = dist.get_rank()
    options = dict(options or {})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=scaled)
    if scaled:
        options["scaler"] = scaler

    def wrapped(network):
        model = DistributedDataParallel(
            network, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=views
        )
        return model, register(model, method, parameters or {}, options)

    model, hook = wrapped(network(dtype))
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
    skipped = []
    for number, step in enumerate(steps):
        if number == resume_at:
            saved = copy.deepcopy([model.module.state_dict(), hook.state_dict()])
            saved.append(copy.deepcopy(optimizer.state_dict()))
            fresh = network(dtype)
            fresh.load_state_dict(saved[0])
            model, hook = wrapped(fresh)
            hook.load_state_dict(saved[1])
            optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
            optimizer.load_state_dict(saved[2])
        optimizer.zero_grad()
        loss = loss_of(model, step, rank, dtype)
        if step == overflow_at and (rank == 1 or everywhere):
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
        if not finite:
            skipped.append(step)
        scaler.step(optimizer)
        scaler.update()
    return {
        "vector": vector(model),
        "dtypes": {p.grad.dtype for p in model.parameters()},
        "report": hook and hook.report().as_dict(),
        "printed": hook and str(hook.report()),
        "state": hook and hook.state_dict(),
        "skipped": skipped,
    }


def of_all(method, parameters, size):
    """Each party's codec, told its number and how many there are where it asks."""
    own = [{"party": party, "parties": size} | parameters for party in range(size)]
    known = vars(compression.load(method)).keys()
    return [
        compression.load(method, **{name: one for name, one in its.items() if name in known})
        for its in own
    ]


def in_one_process(method, parameters, size, steps=range(STEPS)):
    """The same training by all workers in this process, codecs driven by ``aggregate``."""
    model = network()
    codecs = of_all(method, parameters, size)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
    for step in steps:
        gradients = []
        for rank in range(size):
            model.zero_grad()
            loss_of(model, step, rank).backward()
            gradients.append({n: p.grad * (1 / size) for n, p in model.named_parameters()})
        for name, parameter in model.named_parameters():
            parts = [one[name] for one in gradients]
            results, _, _ = compression.aggregate(codecs, parts, name)
            parameter.grad = results[0].view_as(parameter)
        optimizer.step()
    return vector(model)


def sharded(method=None, parameters=None, steps=STEPS, resume_at=None):
    """Train with fully_shard; all parameters at the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    hook = method and slowlink.torch.fsdp_hook(model, method, **(parameters or {}))
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for step in range(steps):
        if step == resume_at:
            state = copy.deepcopy(hook.state_dict())
            hook.codec.state.clear()
            hook.load_state_dict(state)
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
    full = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    return {"vector": full, "bytes": hook and (hook.payload_bytes, hook.dense_bytes)}


def local(policy, options=None, steps=12, resume_at=None):
    """Train by local steps; the parameters at the end, the meetings and the bytes put in."""
    rank, model = dist.get_rank(), network()
    inner = torch.optim.SGD(model.parameters(), LR)
    optimizer = slowlink.torch.local_steps(inner, policy, **(options or {}))
    for step in range(steps):
        if step == resume_at:
            state = copy.deepcopy(optimizer.state_dict())
            inner = torch.optim.SGD(model.parameters(), LR)
            optimizer = slowlink.torch.local_steps(inner, policy, **(options or {}))
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
    optimizer.finish()
    return {
        "vector": vector(model),
        "meetings": optimizer.meetings,
        "bytes": optimizer.payload_bytes,
    }


def of_a_part(method):
    """Train in the group of the first two ranks; the third looks on."""
    part = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        model = DistributedDataParallel(network(), process_group=part)
        slowlink.torch.comm_hook(model, method)
        optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, step, dist.get_rank()).backward()
            optimizer.step()
        result = vector(model)
    else:
        result = None
    dist.barrier()
    return result


def averaged(every, steps=12):
    """The same by torch's own averaging of models."""
    rank, model = dist.get_rank(), network()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
        if step % every == every - 1:
            average_parameters(model.parameters(), dist.group.WORLD)
    return vector(model)


def halves(shapes):
    """What a message of half-precision sums brings, and the payloads of every rank."""
    from slowlink.torch.wire import ProcessGroup

    codec = compression.load("fp16")
    payloads = []
    for rank in range(dist.get_world_size()):
        generator = torch.Generator().manual_seed(rank)
        tensors = [torch.randn(shape, generator=generator) * 4e4 for shape in shapes]
        payloads.append([codec.compress(tensor, i) for i, tensor in enumerate(tensors)])
    mine = [replace(payload) for payload in payloads[dist.get_rank()]]
    flight = ProcessGroup().begin(mine, ["sum"] * len(shapes), list(range(len(shapes))))
    arrived, _ = flight.wait()
    bodies = [payload.body for payload in arrived]
    wanted = [compression.add_payloads(of_ranks).body for of_ranks in zip(*payloads, strict=True)]
    return bodies, wanted


def unlike():
    """Ranks with a share of their own."""
    model = DistributedDataParallel(network())
    slowlink.torch.comm_hook(model, "top_k", ratio=0.1 * (1 + dist.get_rank()))


def patience():
    """Seconds that the rounds after the first wait for others."""
    hook = slowlink.torch.comm_hook(DistributedDataParallel(network()), "power_sgd")
    options = hook.messenger.wire._later._get_backend(torch.device("cpu")).options
    return options._timeout.total_seconds()


def resumed_by_one():
    """Rank 0 goes on from a state, rank 1 from nothing."""
    model = DistributedDataParallel(network())
    hook = slowlink.torch.comm_hook(model, "random_k")
    loss_of(model, 0, dist.get_rank()).backward()
    state, model = hook.state_dict(), DistributedDataParallel(network())
    hook = slowlink.torch.comm_hook(model, "random_k")
    if dist.get_rank() == 0:
        hook.load_state_dict(state)
    loss_of(model, 1, dist.get_rank()).backward()


def scaled_local_steps():
    """The parameters after steps with AMP's scaler, of a plain optimizer and of a fused one."""
    ends = []
    for fused in (False, True):
        model = network()
        inner = torch.optim.SGD(model.parameters(), LR, fused=fused)
        optimizer = slowlink.torch.local_steps(inner, every=2)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step, dist.get_rank())).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.finish()
        ends.append(vector(model))
    return ends


def foreign_local_states():
    def begun(codec):
        inner = torch.optim.SGD(network().parameters(), LR)
        return slowlink.torch.local_steps(inner, every=2, codec=codec)

    try:
        begun("top_k").load_state_dict(begun("identity").state_dict())
    except ValueError as error:
        return str(error)


def error_of_the_mean(method):
    """Of equal gradients on all ranks, relative and in the mean over steps."""
    layer = nn.Linear(400, 100, bias=False)
    model = DistributedDataParallel(layer)
    slowlink.torch.comm_hook(model, method)
    generator, errors = torch.Generator().manual_seed(0), []
    for _ in range(5):
        inputs = torch.randn(8, 400, generator=generator)
        model.zero_grad()
        model(inputs).sum().backward()
        wanted = inputs.sum(0).expand(100, -1)
        errors.append(float((layer.weight.grad - wanted).norm() / wanted.norm()))
    return sum(errors) / len(errors)


def of_default_backends(port, size, rank, tell):
    """Train by a hook and by local steps in a group that names no backend."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group(store=store, rank=rank, world_size=size)
    ends = []
    for hooked in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), LR)
        if hooked:
            model = DistributedDataParallel(model)
            slowlink.torch.comm_hook(model, "top_k", ratio=0.1)
        else:
            optimizer = slowlink.torch.local_steps(optimizer, every=2, codec="top_k")
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, step, rank).backward()
            optimizer.step()
        if not hooked:
            optimizer.finish()
        ends.append(vector(model))
    return ends


def foreign_states():
    """What is said of the states of another model, another share, and nothing at all."""
    said = []
    hook = slowlink.torch.comm_hook(DistributedDataParallel(network()), "top_k")
    other = DistributedDataParallel(nn.Sequential(nn.Linear(20, 9)))
    others = [
        slowlink.torch.comm_hook(other, "top_k").state_dict(),
        slowlink.torch.comm_hook(
            DistributedDataParallel(network()), "top_k", ratio=0.5
        ).state_dict(),
        {},
    ]
    for state in others:
        try:
            hook.load_state_dict(state)
        except ValueError as error:
            said.append(str(error))
    return said


def sparse():
    model = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    slowlink.torch.comm_hook(model, "top_k")
    model(torch.tensor([1, 2])).sum().backward()


def frozen_late():
    model = DistributedDataParallel(nn.Linear(4, 2), find_unused_parameters=True)
    model.module.bias.requires_grad_(False)
    slowlink.torch.comm_hook(model, "top_k")
    model(torch.ones(3, 4)).sum().backward()
