"""Local steps: an optimizer whose workers compute on their own and meet when a policy says so."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from slowlink.methods import method_name, synchronization
from slowlink.methods.compression import Compressor, Frame, untouched
from slowlink.methods.synchronization import Finished, Policy, Sync, Synced
from slowlink.torch.coordinator import Coordinator, Line
from slowlink.torch.data_parallel import check_state, loaded, settings
from slowlink.torch.messenger import Messenger
from slowlink.torch.wire import ProcessGroup, reach


def local_steps(
    optimizer: torch.optim.Optimizer,
    policy: str | Policy = "bsp",
    *,
    every: int | None = None,
    codec: str | Compressor = "identity",
    process_group: dist.ProcessGroup | None = None,
    groups: Sequence[int] | None = None,
    averaged_over: Literal["members", "all"] = "members",
    timeout: timedelta | None = None,
    **parameters: Any,
) -> LocalSteps:
    """Let workers step on their own, and meet by a policy.

    Where all members join every meeting (``bsp``, and others by their parameters), they average
    what they hold by one all-reduce. Where a policy looks at the clock or lets some of them meet
    (``lpsp``, ``gssp``, ``ssp``, ``asp``, …), a thread of the first rank keeps the global model and
    asks the policy: every step then waits for its word, which takes a message each way, and what
    members have changed goes to it and comes back as the new model.

    The model itself must not be wrapped in DistributedDataParallel. Buffers, as BatchNorm's
    statistics, and the optimizer's own state stay each worker's. Meetings follow from how often
    ``step`` is called, so that a step which AMP's scaler leaves out must be left out on all ranks:
    reduce the scaler's finding first, or train in bfloat16, which needs no scaler.

    Parameters
    ----------
    optimizer: of parameters that are equal on all ranks.
    policy: a name of ``slowlink.synchronization.names()``, or a policy, equal on all ranks.
    every: local steps of a round, for policies that count them (``local_iterations``).
    codec: of what a worker has changed since its last meeting; of one round where some meet.
    process_group: the default one if None; gloo if some meet, beside it.
    groups: the site of each rank, for policies that know sites; one site if None.
    averaged_over: a meeting of some changes the global model by the mean over its ``members``, or
        by its share of that over ``all`` workers.
    timeout: of every wait for others; the group's own if None. Where some meet, it is also how long
        others wait until they know of a worker that died.
    parameters: of the policy.

    Raises
    ------
    ValueError
        Unknown names or parameters; no optimizer; policies whose members compute on while they
        meet; codecs of several rounds where some meet.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"local_steps: needs an optimizer, not {type(optimizer).__name__}")
    if averaged_over not in ("members", "all"):
        raise ValueError(f"local_steps: averaged_over is members or all, not {averaged_over!r}")
    if isinstance(policy, str):
        if every is not None:
            parameters["local_iterations"] = every
        policy = synchronization.load(policy, **parameters)
    elif parameters or every is not None:
        raise ValueError(
            f"local_steps: {method_name(policy)} is loaded already, so parameters come late"
        )
    if policy.continues_after_upload:
        raise ValueError(
            f"local_steps: with these parameters, members of {method_name(policy)} compute on "
            "while they meet, which an optimizer's step cannot; choose ones that wait"
        )
    rank, size = dist.get_rank(process_group), dist.get_world_size(process_group)
    codec = loaded(codec, {}, rank, size)
    if not (policy.together or codec.one_shot):
        raise ValueError(
            f"local_steps: {codec.name} has several rounds, which all workers must join, and "
            f"{method_name(policy)} lets some meet; take a codec of one round"
        )
    sites = [0] * size if groups is None else list(groups)
    if len(sites) != size:
        raise ValueError(f"local_steps: groups has {len(sites)} sites for {size} ranks")
    kind = _Together if policy.together else _Parted
    meeting = kind(policy, codec, process_group, sites, averaged_over, timeout)
    return LocalSteps(optimizer, meeting)


class LocalSteps(torch.optim.Optimizer):
    """What :func:`local_steps` makes: use it as the optimizer that it wraps.

    Attributes
    ----------
    meetings: that this worker took part in.
    payload_bytes: that it put into them.
    """

    # AMP's scaler then takes its factor out of the gradients before this steps, and does not leave
    # that to a fused optimizer inside, which it would not reach.
    _step_supports_amp_scaling = False

    def __init__(self, optimizer: torch.optim.Optimizer, meeting: _Together | _Parted) -> None:
        # As torch's own wrappers do, this shares all that an optimizer has with the one inside.
        self.optimizer, self._meeting = optimizer, meeting
        self.param_groups, self.defaults = optimizer.param_groups, optimizer.defaults
        meeting.start([p for group in self.param_groups for p in group["params"]])

    def __getattr__(self, name: str) -> Any:
        # Hooks and what else is of no worker's business are those of the one inside.
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @property
    def meetings(self) -> int:
        return self._meeting.meetings

    @property
    def payload_bytes(self) -> int:
        return self._meeting.payload_bytes

    def __repr__(self) -> str:
        return f"LocalSteps({method_name(self._meeting.policy)}, {self.optimizer!r})"

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step on this worker's gradients; meet others if the policy says so."""
        loss = self.optimizer.step(closure)
        with torch.no_grad():
            self._meeting.after_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise ValueError("LocalSteps: add groups of parameters before local_steps")

    def finish(self) -> None:
        """End the training: all workers call it, and all hold one model after it."""
        with torch.no_grad():
            self._meeting.finish()

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, of this rank: every rank keeps its own.

        Raises ValueError where some meet: then there is no one moment for all; call
        :meth:`finish` before.
        """
        return {"optimizer": self.optimizer.state_dict(), "meeting": self._meeting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict`; parameters are loaded with the model, as always. Raises
        ValueError for the state of another codec."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.param_groups = self.optimizer.param_groups
        self._meeting.load_state_dict(state["meeting"])


class _Together:
    """All meet: the policy runs on every rank alike, and all-reduce does the rest."""

    def __init__(self, policy, codec, group, sites, averaged_over, timeout) -> None:
        self.policy, self.codec = policy, codec
        self.wire = ProcessGroup(group, timeout)
        self.messenger = Messenger(self.wire, codec)
        self.sites = sites
        self.meetings = self.payload_bytes = self.steps = self.met_at = 0
        policy.begin(sites)

    def start(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.base = None
        if not untouched(self.codec):
            self.base = [parameter.detach().clone() for parameter in parameters]

    def after_step(self) -> None:
        self.steps += 1
        for sync in self._decided():
            if len(sync.bringing) != self.wire.size:
                raise RuntimeError(f"{method_name(self.policy)}: {sync} is no meeting of all")
            self._meet(sync)
            self.policy.on(Synced(sync.members, float(self.steps)))

    def _decided(self) -> list[Sync]:
        """What the policy decides when all ranks have finished this step at one time."""
        ranks, t = range(self.wire.size), float(self.steps)
        decisions = [d for rank in ranks for d in self.policy.on(Finished(rank, self.steps, t))]
        return [decision for decision in decisions if isinstance(decision, Sync)]

    def _meet(self, sync: Sync) -> None:
        weights = sync.weights or (1.0,) * self.wire.size
        share = weights[sync.members.index(self.wire.rank)] / sum(weights)
        self.meetings, self.met_at = self.meetings + 1, self.steps
        if self.base is None:
            flat = torch.cat([parameter.flatten() for parameter in self.parameters])
            # As torch's averaging divides: 1/n is not exact.
            flat = flat.mul_(share) if sync.weights else flat.div_(self.wire.size)
            reach(dist.all_reduce, flat, group=self.wire.group)
            self.payload_bytes += flat.nbytes
            _write(self.parameters, flat)
            return
        pairs = zip(self.parameters, self.base, strict=True)
        changes = [(i, (p - base).float() * share) for i, (p, base) in enumerate(pairs)]
        message = self.messenger.launch(changes)
        totals = message.totals.result()
        self.payload_bytes += sum(message.sent)
        for parameter, base, total in zip(self.parameters, self.base, totals, strict=True):
            base.add_(total.view_as(base))
            parameter.copy_(base)

    def finish(self) -> None:
        if self.met_at != self.steps:  # averaging what is equal would round it
            self._meet(Sync(tuple(range(self.wire.size))))
        self.messenger.close()

    def state_dict(self) -> dict[str, Any]:
        kept = {f.name: getattr(self.policy, f.name) for f in dataclasses.fields(self.policy)}
        return {
            "method": self.codec.name,
            "parameters": settings(self.codec),
            "steps": self.steps,
            "met_at": self.met_at,
            "base": copy.deepcopy(self.base),
            "codec": self.codec.state_dict(),
            "policy": {name: copy.deepcopy(its) for name, its in kept.items() if name[0] == "_"},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_state(state, self.codec)
        self.steps, self.met_at = state["steps"], state["met_at"]
        self.base = copy.deepcopy(state["base"])
        self.codec.load_state_dict(state["codec"])
        for name, value in copy.deepcopy(state["policy"]).items():
            setattr(self.policy, name, value)


class _Parted:
    """Some meet: the first rank's coordinator keeps the model and asks the policy."""

    def __init__(self, policy, codec, group, sites, averaged_over, timeout) -> None:
        self.policy, self.codec = policy, codec
        self.sites, self.averaged_over = sites, averaged_over
        self.line = Line(group, timeout)
        self.meetings = self.payload_bytes = self.steps = 0

    def start(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        self.base = self._vector()
        self.coordinator = None
        if self.line.rank == 0:
            self.coordinator = Coordinator(
                self.policy,
                self.line,
                dataclasses.replace(self.codec),
                self.base.clone(),
                self.sites,
                self.averaged_over,
            )
            self.coordinator.start()
        self._serve()

    def after_step(self) -> None:
        self.steps += 1
        self.line.say("finished", self.steps)
        self._serve()

    def _serve(self) -> None:
        """Do what the coordinator asks for, until it lets this worker compute on."""
        while True:
            kind, number = self.line.hear()
            if kind == "continue":
                return
            if kind == "give":
                self._give(number)
            elif kind in ("take", "last"):
                vector = self.line.receive(len(self.base))
                _write(self.parameters, vector)
                if kind == "last":
                    return
                self.meetings += 1
                if number == -1:
                    self.base = vector
            else:
                raise ConnectionError(self.line.failure)

    def _give(self, level: int) -> None:
        if level != -1:  # an inner level averages models, and the global one does not change
            self.line.send(self._vector())
            self.payload_bytes += self.base.nbytes
            return
        payload = self.codec.compress(self._vector() - self.base, "model")
        self.payload_bytes += payload.nbytes
        frame = torch.frombuffer(bytearray(Frame(payload).to_bytes()), dtype=torch.uint8)
        self.line.announce(len(frame))
        self.line.send(frame)

    def _vector(self) -> Tensor:
        """(n,) copy of all parameters, float32, where gloo wants it."""
        parts = [parameter.detach().flatten().float() for parameter in self.parameters]
        vector = torch.cat(parts)
        return vector.cpu() if vector.is_cuda else vector

    def finish(self) -> None:
        self.line.say("left", self.steps)
        self._serve()
        if self.coordinator:  # it may still have others to give the last model to
            self.coordinator.join()

    def state_dict(self) -> dict[str, Any]:
        raise ValueError(
            f"LocalSteps: while workers meet in parts, there is no state of one moment "
            f"({method_name(self.policy)}); call finish() on all ranks, save the model and the "
            "inner optimizer, and begin anew from them"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state_dict()


def _write(parameters: Sequence[Tensor], flat: Tensor) -> None:
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.copy_(part.view_as(parameter))
