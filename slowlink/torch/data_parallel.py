"""A communication hook for torch's DistributedDataParallel."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from slowlink.methods import compression, fusion
from slowlink.methods.compression import Compressor, Key, untouched
from slowlink.methods.compression.pieces import packing
from slowlink.methods.fusion import Costs, Fusion
from slowlink.torch.costs import measured
from slowlink.torch.messenger import Aggregation, Messenger
from slowlink.torch.report import Report, Step
from slowlink.torch.wire import ProcessGroup, check_alike, reach

NonFinite = Literal["refuse", "pass"]

KEPT_STEPS = 1000
"""Steps that a report is over, at most."""

WHOLE = (torch.float32, torch.float64)
"""Dtypes of gradients that are summed as they are, where nothing is coded; halves are so in
float32, and rounded once."""

SETTLED = 2
"""DDP has ordered its buckets anew after the first step: a fusion sees them from here on."""


def comm_hook(
    model: DistributedDataParallel,
    method: str | Compressor,
    *,
    process_group: dist.ProcessGroup | None = None,
    start_after: int = 0,
    non_finite: NonFinite = "refuse",
    scaler: torch.amp.GradScaler | None = None,
    fusion: str | Fusion | None = None,
    costs: Costs | None = None,
    timeout: timedelta | None = None,
    **parameters: Any,
) -> CommHook:
    """Let a codec carry the gradients of ``model``; registers itself.

    Every parameter's gradient is coded by itself, under the parameter's name, so that DDP may order
    its buckets anew; what one bucket holds travels as one message while backward goes on. All ranks
    get the same bits: the mean, as from DDP.

    Parameters
    ----------
    model: not trained yet, with any number of buckets.
    method: the name of a codec (``slowlink.compression.names()``), which is told its rank where it
        rounds at random (``party``) and how many there are (``parties``); or one that was loaded,
        equal on all ranks but for its ``party``.
    process_group: gloo, NCCL or MPI; the model's own if None.
    start_after: so many first steps are DDP's own all-reduce, which codecs with error feedback
        and warm starts profit from.
    non_finite: ``refuse`` gradients with NaN or infinity by an error that names the parameter, or
        ``pass`` them on: then all ranks see NaN where one of them had any, so that AMP's scaler
        skips the step everywhere, and the codec's memory stays what it was before.
    scaler: of AMP, whose factor is taken out of what the codec sees, since its memory outlives
        changes of the factor.
    fusion: groups of gradients a message, instead of one of each bucket: a name of
        ``slowlink.fusion.names()`` or a fusion. Buckets of DDP should be small then
        (``bucket_cap_mb``), since a group can leave no sooner than its last bucket is full.
    costs: for a fusion that needs some; measured in the first steps if None.
    timeout: of rounds after the first; the group's own if None.
    parameters: of the codec.

    Raises
    ------
    ValueError
        No DDP model, an unknown codec or fusion, or a parameter that it refuses; ranks with
        different models, codecs or parameters.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"comm_hook: needs a DistributedDataParallel model, not {type(model).__name__}; wrap "
            "it first, or use fsdp_hook for a model of fully_shard"
        )
    wire = ProcessGroup(process_group or model.process_group, timeout)
    codec = loaded(method, parameters, wire.rank, wire.size)
    names = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
    if not isinstance(given := _fusion(fusion), Fusion | None):
        raise ValueError(f"comm_hook: fusion must be a name or a fusion, not {given!r}")
    shapes = {name: tuple(p.shape) for name, p in names.items()}
    alike = codec.name, settings(codec), getattr(codec, "parties", None), shapes
    check_alike(wire, "another model, codec or parameter", alike)
    hook = CommHook(
        names,
        Messenger(wire, codec),
        start_after=start_after,
        non_finite=non_finite,
        scaler=scaler,
        fusion=given,
        costs=costs,
        begins=partial(check_alike, wire, "gone on from another step"),
    )
    model.register_comm_hook(None, hook.on_bucket)
    return hook


def loaded(
    method: str | Compressor, parameters: Mapping[str, Any], rank: int, size: int
) -> Compressor:
    """The codec of that name, which is told its rank and of how many where it must know and
    ``parameters`` do not say; or the one given, which takes no parameters any more."""
    if isinstance(method, Compressor):
        if parameters:
            raise ValueError(f"{method.name}: is loaded already, so {min(parameters)} comes late")
        return method
    codec = compression.load(method, **parameters)
    told = {"party": rank, "parties": size}
    told = {name: one for name, one in told.items() if hasattr(codec, name)}
    return replace(codec, **{name: one for name, one in told.items() if name not in parameters})


def settings(codec: Compressor) -> dict[str, Any]:
    """The parameters of a codec but for which party it is, and of how many."""
    told = ("party", "parties")
    named = (one.name for one in fields(codec) if one.init and one.name not in told)
    return {name: getattr(codec, name) for name in named}


def _fusion(given: str | Fusion | None) -> Fusion | None:
    return fusion.load(given) if isinstance(given, str) else given


@dataclass
class _Bucket:
    """A bucket of DDP on its way: the gradients that it still waits for."""

    buffer: Tensor
    missing: int
    done: torch.futures.Future

    def arrived(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.done.set_result(self.buffer)

    def failed(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_result(error)


def _opened(future: torch.futures.Future) -> Tensor:
    """A bucket's gradients; raised here, an error reaches DDP with its kind and words."""
    if isinstance(found := future.value(), BaseException):
        raise found
    return found


class CommHook:
    """What :func:`comm_hook` makes; :meth:`on_bucket` is what DDP calls.

    Parameters
    ----------
    parameters: by name, all that DDP's buckets hold. The others are those of :func:`comm_hook`.
    groups: names of each message, in the order in which they leave; from the first step on.
    whole: a group is coded as one tensor, joined in its order, and its key is its number.
    launched: is told of each message. begins: is told before the first, after how many steps.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        messenger: Messenger,
        *,
        start_after: int = 0,
        non_finite: NonFinite = "refuse",
        scaler: torch.amp.GradScaler | None = None,
        fusion: Fusion | None = None,
        costs: Costs | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        whole: bool = False,
        launched: Callable[[Aggregation], None] = lambda message: None,
        begins: Callable[[int], None] = lambda steps: None,
    ) -> None:
        if non_finite not in ("refuse", "pass"):
            raise ValueError(f"non_finite must be refuse or pass, not {non_finite!r}")
        if isinstance(start_after, bool) or not isinstance(start_after, int) or start_after < 0:
            raise ValueError(f"start_after must be a whole number of steps >= 0, not {start_after}")
        if groups is not None and sorted(n for some in groups for n in some) != sorted(parameters):
            raise ValueError("groups must hold every parameter once")
        self.messenger, self.codec = messenger, messenger.codec
        self.start_after, self.non_finite, self.scaler = start_after, non_finite, scaler
        self.fusion, self.costs, self.groups, self.whole = fusion, costs, groups, whole
        self.steps = 0
        self._parameters = dict(parameters)
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._values = sum(parameter.numel() for parameter in parameters.values())
        self._launched, self._begins = launched, begins
        self._order: list[tuple[str, float]] = []
        self._waiting: dict[str, tuple[Tensor, _Bucket]] = {}
        self._next = 0
        self._messages: list[Aggregation] = []
        self._records: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._before: dict[Key, Any] = {}
        self._error: BaseException | None = None

    # What users call -----------------------------------------------------------------------------

    def report(self) -> Report:
        """What the last steps cost, at most 1000 of them."""
        self._settle()
        return Report.of(self.codec.name, list(self._records))

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, of this rank: every rank keeps its own."""
        self._settle()
        return {
            "method": self.codec.name,
            "parameters": settings(self.codec),
            "sizes": self._sizes,
            "steps": self.steps,
            "groups": self.groups,
            "codec": self.codec.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict` of this rank; what follows is bit-equal, up to the order in
        which three or more ranks are summed by the backend.

        Raises ValueError for the state of another codec, of other parameters or of another model.
        """
        check_state(state, self.codec)
        if state["sizes"] != self._sizes:
            odd = set(state["sizes"].items()) ^ set(self._sizes.items())
            raise ValueError(f"load_state_dict: the state is of another model, as {min(odd)[0]!r}")
        self._settle()
        self.steps, self.groups = state["steps"], state["groups"]
        self.codec.load_state_dict(state["codec"])

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: parameter.numel() for name, parameter in self._parameters.items()}

    # What DDP calls ------------------------------------------------------------------------------

    def on_bucket(self, state, bucket):  # no annotations, since DDP refuses those that are strings
        """Send a bucket of gradients off; the future that comes back holds their mean."""
        now = time.perf_counter()
        if bucket.index() == 0:
            if self._begins:
                begins, self._begins = self._begins, None
                begins(self.steps)
            self._settle()
            self._begin(now)
        names = [self._names.get(id(parameter)) for parameter in bucket.parameters()]
        if None in names:
            raise ValueError(
                "comm_hook: a parameter of DDP's bucket took no gradients when the hook was made; "
                "freeze parameters before DistributedDataParallel wraps the model"
            )
        buffer, plain = bucket.buffer(), self.steps < self.start_after
        if buffer.is_sparse:
            raise ValueError(f"gradient of {names[0]!r}: is sparse, which no codec here takes")
        plain |= self._as_buckets and untouched(self.codec) and buffer.dtype in WHOLE
        if plain:
            with _refusing(names, bucket.gradients()):
                done = self._all_reduce(buffer)
        else:
            done = self._send(names, bucket.gradients(), buffer)
        self.steps += bucket.is_last()
        # What encoding took is no backward of the next bucket's.
        self._order += [(name, (now - self._mark) / len(names)) for name in names]
        self._mark = time.perf_counter()
        return done

    @property
    def _as_buckets(self) -> bool:
        return self.groups is None and not self.messenger.ordered

    def _begin(self, now: float) -> None:
        if self.fusion and self.groups is None and self.steps >= SETTLED and self._order:
            sizes = [self._parameters[name].numel() for name, _ in self._order]
            costs = self.costs
            if costs is None and self.fusion.needs_costs:
                shapes = [self._parameters[name].shape for name, _ in self._order]
                times = [seconds for _, seconds in self._order]
                costs = measured(self.messenger, shapes, times)
            groups = self.fusion(sizes, costs)
            self.groups = [[self._order[i][0] for i in group] for group in groups]
        self._order, self._mark, self._next = [], now, 0

    def _all_reduce(self, buffer: Tensor) -> torch.futures.Future:
        """DDP's own mean."""
        message, wire = Aggregation(sent=[buffer.nbytes], framed=[buffer.nbytes]), self._wire
        start = time.perf_counter()
        if self.non_finite == "refuse":
            packing.scale(buffer, 1 / wire.size, "a gradient in DDP's bucket")
        else:
            buffer.mul_(1 / wire.size)
        message.launched_at = time.perf_counter()
        message.encode_s = message.launched_at - start
        work = reach(dist.all_reduce, buffer, group=wire.group, async_op=True)
        self._add(message)

        def done(future):
            message.done_at = time.perf_counter()
            message.busy_s = message.done_at - message.launched_at
            message.waits.append((message.launched_at, message.done_at))
            message.totals.set_result([])
            return future.value()[0]

        return work.get_future().then(done)

    @property
    def _wire(self) -> ProcessGroup:
        return self.messenger.wire

    def _send(
        self, names: Sequence[str], gradients: Sequence[Tensor], buffer: Tensor
    ) -> torch.futures.Future:
        done = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        bucket = _Bucket(buffer, len(names), done)
        if self.groups is None:
            parts = list(zip(names, gradients, strict=True))
            if self.codec.elementwise:  # then the bucket may be one tensor, as it is
                parts, bucket.missing = [("bucket", buffer)], 1
            with _refusing(names, gradients):
                self._launch(parts, [bucket] * len(parts), 0)
            return done.then(_opened)
        for name, gradient in zip(names, gradients, strict=True):
            self._waiting[name] = gradient, bucket
        # A group that is complete out of turn waits: all ranks launch in one order.
        while self._next < len(self.groups) and self._waiting.keys() >= set(
            group := self.groups[self._next]
        ):
            some = [(name, *self._waiting.pop(name)) for name in group]
            parts = [(name, gradient) for name, gradient, _ in some]
            with _refusing(*zip(*parts, strict=True)):
                self._launch(parts, [its for _, _, its in some], self._next)
            self._next += 1
        return done.then(_opened)

    def _launch(
        self, parts: list[tuple[str, Tensor]], buckets: Sequence[_Bucket], number: int
    ) -> None:
        scale = self.scaler.get_scale() if self.scaler else 1.0
        gradients, own = [gradient for _, gradient in parts], 1 / (self.messenger.wire.size * scale)
        # This rank's summand of the mean; a codec that can takes the factor along.
        factor = dict(factor=own) if self.codec.elementwise and not self.whole else {}
        shares = [gradient.to(torch.float32) for gradient in gradients]
        if not factor:
            shares = [share.mul_(own) for share in shares]
        if self.whole or self.codec.elementwise:
            joined = shares[0] if len(shares) == 1 else torch.cat([s.flatten() for s in shares])
            # Without memory of what was, only the size has to be the key's own.
            coded = [(number if self.whole else f"{joined.numel()} values", joined)]
        else:
            coded = [(name, share) for (name, _), share in zip(parts, shares, strict=True)]
        if self.non_finite == "pass":
            for key, _ in coded:
                self._remember(key)

        def write(message: Aggregation, totals: list[Tensor]) -> Callable[[], None]:
            if len(coded) < len(gradients):
                totals = totals[0].flatten().split([gradient.numel() for gradient in gradients])
            for gradient, total in zip(gradients, totals, strict=True):
                if gradient is buckets[0].buffer and message.finite and scale == 1:
                    # The whole bucket as one: DDP takes its values from what it gets.
                    buckets[0].buffer = total.to(gradient.dtype)
                elif message.finite:
                    gradient.copy_(total.view_as(gradient))
                    if scale != 1:
                        gradient.mul_(scale)
                else:
                    gradient.fill_(torch.nan)
            return lambda: [bucket.arrived() for bucket in buckets]

        tolerant = self.non_finite == "pass"
        message = self.messenger.launch(coded, write, tolerant=tolerant, **factor)
        self._add(message)

        def fail(totals) -> None:
            if (error := totals.exception()) is not None:
                self._error = self._error or error
                for bucket in buckets:
                    bucket.failed(error)

        message.totals.add_done_callback(fail)

    def _add(self, message: Aggregation) -> None:
        self._messages.append(message)
        self._launched(message)

    # What a step leaves --------------------------------------------------------------------------

    def _settle(self) -> None:
        """Count the step that DDP has ended; undo what it did to memory if it was not finite."""
        messages, self._messages = self._messages, []
        wait([message.totals for message in messages])
        if self._error:  # DDP has said so, in words of its own
            raise self._error
        if not messages or any(message.totals.exception() for message in messages):
            return
        self._records.append(Step.of(messages, self._values))
        if not all(message.finite for message in messages):
            for key, state in self._before.items():
                self.codec.state.pop(key, None)
                if state is not None:
                    self.codec.state[key] = state
            self._before = {}

    def _remember(self, key: Key) -> None:
        """Keep the codec's memory of ``key`` as it is before this step."""
        state = self.codec.state.get(key)
        self._before[key] = None if state is None else _kept(self._before.get(key), state)


@contextmanager
def _refusing(names: Sequence[str], gradients: Sequence[Tensor]) -> Iterator[None]:
    """Where gradients that are not finite are refused, say which, and what can be done."""
    try:
        yield
    except ValueError as error:
        if "NaN or infin" not in str(error):
            raise
        told = (
            error  # as it is where only a gradient's share, or its sum with memory, is not finite
        )
        for name, gradient in zip(names, gradients, strict=True):
            if bad := int((~gradient.isfinite()).sum()):
                told = ValueError(
                    f"gradient of {name!r}: {bad} of {gradient.numel()} values are NaN or infinite"
                )
                break
        told.add_note("non_finite='pass' hands such gradients on, as AMP's scaler expects")
        raise told from (None if told is error else error)


def check_state(state: Mapping[str, Any], codec: Compressor) -> None:
    """Raises ValueError where a saved state is of another codec, or of other parameters."""
    if (method := state.get("method")) != codec.name:
        raise ValueError(
            f"load_state_dict: the state is of {method or 'no codec'}, the hook has {codec.name}"
        )
    for name, value in settings(codec).items():
        if (saved := state["parameters"].get(name)) != value:
            raise ValueError(
                f"load_state_dict: the state is of {codec.name} with {name}={saved!r}, the hook "
                f"has {value!r}"
            )


def _kept(old: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``state``, in the memory of an ``old`` one where it fits."""
    kept = {}
    for name, value in state.items():
        place = old.get(name) if old else None
        if isinstance(value, Tensor):
            fits = isinstance(place, Tensor) and place.shape == value.shape
            fits = fits and place.device == value.device and place.dtype == value.dtype
            kept[name] = place.copy_(value) if fits else value.clone()
        else:
            kept[name] = copy.deepcopy(value)
    return kept
