"""Codecs in the reduce-scatter of FSDP2, torch's ``fully_shard``."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slowlink.methods.compression import Compressor, Payload, combine_payloads
from slowlink.torch.data_parallel import check_state, loaded, settings
from slowlink.torch.wire import device_of, reach


def fsdp_hook(model: nn.Module, method: str | Compressor, **parameters: Any) -> FsdpHook:
    """Let a codec carry the gradients of a model of ``fully_shard``; registers itself.

    Every unit that ``fully_shard`` was called on joins its gradients, a part for each rank. A rank
    codes the parts one by one, sends each to its owner, and decodes the sum of those that it owns
    itself. A part has the memory of its unit and its owner.

    Codecs of one round can do this. Those of several rounds (``power_sgd``, ``count_sketch``)
    cannot: every rank goes on with the sum of the first one, which only the owner gets here.

    Parameters
    ----------
    model: of torch 2.7 or newer; all of its units are on gloo, NCCL or MPI.
    method, parameters: as of :func:`slowlink.torch.comm_hook`.

    Raises
    ------
    ValueError
        A model without ``fully_shard``, or a codec of several rounds.
    """
    ready = dist.is_initialized()
    place = (dist.get_rank(), dist.get_world_size()) if ready else (0, 1)
    codec = loaded(method, parameters, *place)
    if not codec.one_shot:
        raise ValueError(
            f"fsdp_hook: {codec.name} goes on with the sum of its first round on every rank, and a "
            "reduce-scatter gives it to one; take a codec of one round, or comm_hook with "
            "DistributedDataParallel"
        )
    units = {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "set_custom_reduce_scatter")
    }
    if not units:
        raise ValueError(
            "fsdp_hook: no part of the model can be given a reduce-scatter; call torch's "
            "fully_shard on it first (torch 2.7 or newer)"
        )
    hook = FsdpHook(codec)
    for name, module in units.items():
        module.set_custom_reduce_scatter(_ReduceScatter(hook, name))
    return hook


class FsdpHook:
    """What :func:`fsdp_hook` makes: the codec with its memory, and what it has sent."""

    def __init__(self, codec: Compressor) -> None:
        self.codec = codec
        self.payload_bytes = self.dense_bytes = 0

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, of this rank: every rank keeps its own."""
        own = dict(method=self.codec.name, parameters=settings(self.codec))
        return own | dict(codec=self.codec.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`. Raises ValueError for another codec's."""
        check_state(state, self.codec)
        self.codec.load_state_dict(state["codec"])


class _ReduceScatter:
    """The interface that ``set_custom_reduce_scatter`` wants, for one unit."""

    def __init__(self, hook: FsdpHook, unit: str) -> None:
        self.hook, self.unit = hook, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        codec, ranks = self.hook.codec, dist.get_world_size(group)
        factor = _factor(op, ranks)
        parts = input_tensor.to(torch.float32).mul(factor).view(ranks, -1)
        rank = dist.get_rank(group)
        keys = [(self.unit, owner) for owner in range(ranks)]
        encodings = [codec.encode(part, key) for part, key in zip(parts, keys, strict=True)]
        asked = [next(encoding) for encoding in encodings]
        payloads = [payload for payload, _ in asked]
        arrived = _all_to_all(payloads, group, input_tensor.device)
        combined = combine_payloads(codec, arrived, asked[rank][1], keys[rank])
        try:
            encodings[rank].send(combined)
        except StopIteration as stop:
            output_tensor.copy_(stop.value.view_as(output_tensor))
        self.hook.payload_bytes += sum(payload.nbytes for payload in payloads)
        self.hook.dense_bytes += 4 * input_tensor.numel()


def _factor(op: Any, ranks: int) -> float:
    """What every rank's part counts: 1/ranks of a mean."""
    if op == dist.ReduceOp.AVG:
        return 1 / ranks
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise ValueError(f"fsdp_hook: the reduction {op} is neither a sum nor a mean of ranks")


def _all_to_all(
    payloads: Sequence[Payload], group: dist.ProcessGroup, device: torch.device
) -> list[Payload]:
    """Send each rank its payload; returns those that came for this one, in the order of ranks."""
    kind = zlib.crc32(repr([replace(payload, body=b"") for payload in payloads[:1]]).encode())
    place = device if device_of(group).type == "cuda" else torch.device("cpu")
    mine = torch.tensor([[p.nbytes, kind] for p in payloads], device=place)
    heads = torch.empty_like(mine)
    reach(dist.all_to_all_single, heads, mine, group=group)
    lengths, kinds = heads.T.tolist()
    if any(other != kind for other in kinds):
        raise ValueError("fsdp_hook: ranks send different codecs or shapes; all need the same")
    bodies = torch.cat([_body(payload).to(place) for payload in payloads])
    came = bodies.new_empty(sum(lengths))
    reach(
        dist.all_to_all_single,
        came,
        bodies,
        output_split_sizes=lengths,
        input_split_sizes=[payload.nbytes for payload in payloads],
        group=group,
    )
    own = payloads[dist.get_rank(group)]
    return [
        replace(own, body=one if place.type == "cuda" else one.numpy().tobytes())
        for one in came.split(lengths)
    ]


def _body(payload: Payload) -> Tensor:
    content = payload.content
    if isinstance(content, Tensor):
        return content.view(torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
