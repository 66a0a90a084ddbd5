"""What a node trains: a recipe's model and data, or a user's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import os
import random
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from slowlink.testbed.live.engine.settings import LiveSettings
from slowlink.testbed.training import models, trainer
from slowlink.testbed.training.learner import Codecs, Diverged, Learner, Replica, grouped
from slowlink.testbed.training.recipe import fan_out

Metrics = dict[str, tuple[float, str]]
"""Value and unit by name."""

RUNNING = ("running_mean", "running_var", "_u", "_v", "weight_u", "weight_v")
"""Buffers that follow the batches: of normalisations, and the vectors of spectral norms."""


def ignored(left: int) -> None:
    """Nobody waits."""


class Task(Protocol):
    """A model with its optimizer, and a worker's data.

    Attributes
    ----------
    codec: of all nodes; a node uses its own.
    groups: of parameters by index, each of which codecs see as one tensor.
    shapes: of the parameters that travel.
    """

    codec: Codecs
    groups: Sequence[Sequence[int]]
    shapes: Sequence[torch.Size]

    def values(self) -> list[Tensor]:
        """The parameters as they are; not to be changed."""

    def gradient(self) -> list[Tensor]:
        """Of the next batch, at these parameters. Raises ArithmeticError where it is not finite."""

    def step(self, gradient: Sequence[Tensor]) -> None:
        """Let the optimizer take a step by ``gradient``."""

    def adopt(self, values: Sequence[Tensor]) -> None:
        """Go on from these parameters; the optimizer keeps its state, unless momentum lasts for a
        round."""

    def begin_at(self, updates: int) -> None:
        """Count so many updates as done, by which learning rates go."""

    def statistics(self) -> list[Tensor]:
        """Running statistics: floating-point buffers of the model that follow the batches. They are
        its own, and what is copied into them takes effect."""

    def changed(self) -> list[str]:
        """Names of buffers that batches have changed since the beginning and that a model is saved
        with, but running statistics."""

    def evaluation(self) -> Callable[[], Metrics]:
        """Evaluates the model, as it is now, on test data; at a server, beside all else."""

    def state(self) -> dict[str, Any]:
        """All that is needed to go on to the bit, but codecs."""

    def restore(self, state: Mapping[str, Any], say: Callable[[int], None] = ignored) -> None:
        """Go on from what :meth:`state` gave; whoever draws the batches before it anew says how
        many are left."""

    def model(self) -> dict[str, Tensor]:
        """The model's state by name, as torch saves it."""


def make(settings: LiveSettings, rank: int | None) -> Task:
    """The task of the worker of this rank, or of a server (None)."""
    torch.set_num_threads(settings.training.torch_threads)
    torch.set_deterministic_debug_mode("warn")  # the longer name also imports the compiler
    return OwnTask(settings, rank) if settings.own else RecipeTask(settings, rank)


class RecipeTask:
    """The trainer's own learner, of which one replica is used."""

    def __init__(self, settings: LiveSettings, rank: int | None) -> None:
        recipe = settings.training
        data = trainer.data_of(recipe)
        part = trainer.fitting(recipe.model, data)
        model = models.make(part.name, recipe.seed, **part.parameters)
        self.learner = Learner(recipe, model, data, settings.exchange, settings.topology)
        self.rank, self.batches = 0 if rank is None else rank, 0
        self.codec, self.groups = self.learner.codec, self.learner.groups
        self.shapes = self.learner.shapes
        self.using = Lock()
        """Whoever uses the learner's one model holds it: a server's models are evaluated by two
        threads."""

    @property
    def replica(self) -> Replica:
        return self.learner.replicas[self.rank]

    @replica.setter
    def replica(self, new: Replica) -> None:
        self.learner.replicas[self.rank] = new

    def values(self) -> list[Tensor]:
        return self.replica.parameters

    def gradient(self) -> list[Tensor]:
        self.batches += 1
        with self.using:
            return self.learner.gradient(self.rank)

    def step(self, gradient: Sequence[Tensor]) -> None:
        self.replica = self.learner.update(self.replica, gradient)

    def adopt(self, values: Sequence[Tensor]) -> None:
        self.learner.adopt(self.rank, replace(self.replica, parameters=list(values)))

    def begin_at(self, updates: int) -> None:
        self.replica = replace(self.replica, version=updates)

    def statistics(self) -> list[Tensor]:
        return [buffer for buffer in self.replica.buffers if buffer.is_floating_point()]

    def changed(self) -> list[str]:
        return []  # models of ours have no others

    def evaluation(self) -> Callable[[], Metrics]:
        buffers = [buffer.clone() for buffer in self.replica.buffers]
        return partial(self._evaluate, replace(self.replica, buffers=buffers))

    def _evaluate(self, replica: Replica) -> Metrics:
        with self.using:
            accuracy, loss = self.learner.evaluate(replica)
        if not math.isfinite(loss):
            raise Diverged(f"test loss is {loss}; lower lr")
        found = dict(test_accuracy=(accuracy, "%"), test_loss=(loss, ""))
        if self.learner.text:
            found["test_perplexity"] = math.exp(min(loss, trainer.LARGEST_LOSS)), ""
        return found

    def state(self) -> dict[str, Any]:
        return dict(vars(self.replica), batches=self.batches)

    def restore(self, state: Mapping[str, Any], say: Callable[[int], None] = ignored) -> None:
        own = dict(state)
        self.batches = own.pop("batches")
        self.learner.rewind(self.rank, self.batches)
        self.replica = Replica(**own)

    def model(self) -> dict[str, Tensor]:
        model, replica = self.learner.model, self.replica
        with self.using:
            for parameter, value in zip(self.learner.parameters, replica.parameters, strict=True):
                parameter.data = value
            for buffer, value in zip(model.buffers(), replica.buffers, strict=True):
                buffer.copy_(value)
            return model.state_dict()


class OwnTask:
    """A user's model, data, loss and optimizer.

    Every iteration is seeded by its number, so that a run that goes on repeats what it would have
    done: what draws at random (dropout, an order of samples) draws from the generators of torch,
    numpy or Python.
    """

    def __init__(self, settings: LiveSettings, rank: int | None) -> None:
        recipe, own = settings.training, settings.own
        self.seed, self.own = recipe.seed, own
        self.net = self._made()
        self.judged: nn.Module | None = None
        """Another one, which takes the state of the model that is evaluated."""
        self.judging = Lock()
        """Whoever evaluates holds it: a server's models are evaluated by two threads."""
        self.parameters = [p for p in self.net.parameters() if p.requires_grad]
        self._check_parameters()
        made = named("optimizer", own.optimizer)(self.parameters)
        self.optimizer, self.scheduler = made if _is_pair(made) else (made, None)
        self._check_optimizer()
        self.loss = named("loss", own.loss)
        self.score = own.evaluate and named("evaluate", own.evaluate)
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.groups = grouped(recipe, [shape.numel() for shape in self.shapes])
        ranks = {node: number for number, node in enumerate(settings.workers)}
        self.codec = Codecs(recipe.levels, self.seed, ranks, recipe.codecs)
        self.batches = 0
        self.losses: list[float] = []
        self.place = None
        if rank is not None:
            site, _, worker = settings.topology.node_names[settings.workers[rank]].partition("/")
            number = int("".join(filter(str.isdigit, worker or site)))
            self.place = (site if worker else "site1"), number
            self.data = named("data", own.data)(*self.place)
            if not any(hasattr(self.data, its) for its in ("__iter__", "__getitem__")):
                raise ValueError(f"own.data: must give batches to iterate over, not {self.data!r}")
        self._stream = self._batches()
        self.others = self._others()
        """As they were at the beginning."""

    def _made(self) -> nn.Module:
        make_model = named("model", self.own.model)
        self._draw("model")
        net = make_model()
        if not isinstance(net, nn.Module):
            raise ValueError(f"own.model: must give a torch.nn.Module, not {net!r}")
        return net

    def _draw(self, what: str) -> None:
        """Let all that is drawn from now on be what belongs to this."""
        seed = fan_out(self.seed, what)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    def _check_parameters(self) -> None:
        if not self.parameters:
            raise ValueError("own.model: has no parameters to train")
        for parameter in self.parameters:
            if isinstance(parameter, nn.UninitializedParameter):
                raise ValueError(
                    "own.model: has lazy layers; pass them a batch before you return the model"
                )
            if parameter.dtype != torch.float32:
                raise ValueError(f"own.model: parameters must be float32, not {parameter.dtype}")

    def _check_optimizer(self) -> None:
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ValueError(
                "own.optimizer: must give a torch.optim.Optimizer, or a pair of it and a scheduler,"
                f" not {self.optimizer!r}"
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ValueError("own.optimizer: LBFGS asks for the loss again, and gets one gradient")
        if self.scheduler and not isinstance(self.scheduler, lr_scheduler.LRScheduler):
            raise ValueError(f"own.optimizer: {self.scheduler!r} is no scheduler of torch")
        if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            raise ValueError("own.optimizer: ReduceLROnPlateau asks for a loss that is not known")

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        for epoch in count():
            self._draw(f"{self.place} epoch {epoch}")
            batch = None
            for batch in self.data:
                yield batch
            if batch is None:
                again = " when iterated over again; a generator can be read only once"
                raise ValueError(
                    f"own.data: {self.own.data}{self.place} gave no batch{again if epoch else ''}"
                )

    def _next(self) -> tuple[Any, Any]:
        # What follows, drawing the batch included, draws from this seed.
        self._draw(f"{self.place} batch {self.batches}")
        self.batches += 1
        batch = next(self._stream)
        if not _is_pair(batch):
            sized = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            what = f"{type(batch).__name__}{sized}"
            raise ValueError(f"own.data: a batch must be a pair (x, y), not a {what}")
        return batch[0], batch[1]

    def values(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def gradient(self) -> list[Tensor]:
        x, y = self._next()
        self.net.train()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.net(*x) if isinstance(x, tuple | list) else self.net(x), y)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"{tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(f"own.loss: must give a tensor of one number, not {what}")
        if not torch.isfinite(loss):
            raise Diverged(f"loss is {loss.item()}; lower the learning rate")
        loss.backward()
        if any(
            parameter.grad is not None and parameter.grad.is_sparse for parameter in self.parameters
        ):
            raise ValueError(
                "own.model: has layers whose gradients are sparse, which do not travel; leave "
                "sparse=True out"
            )
        self.losses.append(loss.item())
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for parameter in self.parameters
        ]

    def step(self, gradient: Sequence[Tensor]) -> None:
        for parameter, its in zip(self.parameters, gradient, strict=True):
            parameter.grad = its.clone()
        self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()

    @torch.no_grad()
    def adopt(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def begin_at(self, updates: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the optimizer has not stepped before
            for _ in range(updates if self.scheduler else 0):
                self.scheduler.step()

    def statistics(self) -> list[Tensor]:
        return [
            buffer
            for name, buffer in self.net.named_buffers()
            if name.rpartition(".")[2] in RUNNING and buffer.is_floating_point()
        ]

    def changed(self) -> list[str]:
        return [name for name, was in self.others.items() if not _same(was, self._others()[name])]

    def _others(self) -> dict[str, Tensor]:
        """Buffers that a model is saved with, by name, but what belongs to normalisations."""
        kept, known = self.net.state_dict().keys(), (*RUNNING, "num_batches_tracked")
        return {
            name: buffer.clone()
            for name, buffer in self.net.named_buffers()
            if name in kept and name.rpartition(".")[2] not in known
        }

    def evaluation(self) -> Callable[[], Metrics]:
        found: Metrics = {}
        if self.losses:
            found["train_loss"] = math.fsum(self.losses) / len(self.losses), ""
            self.losses = []
        if not self.score:
            return lambda: found
        # Not a copy of the model, which may hold what cannot be copied, such as an activation.
        self.judged = self.judged or self._made()
        return partial(self._evaluate, self._state_of_net(), found)

    def _evaluate(self, state: Mapping[str, Any], found: Metrics) -> Metrics:
        with self.judging, torch.no_grad():
            self.judged.load_state_dict(state)
            self.judged.eval()
            scores = self.score(self.judged)
        try:
            return found | {name: (float(value), "") for name, value in scores.items()}
        except (AttributeError, TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"own.evaluate: must give numbers by name, not {repr(scores)[:80]}"
            ) from None

    def _state_of_net(self) -> dict[str, Any]:
        state = self.net.state_dict().items()
        return {name: v.clone() if isinstance(v, Tensor) else v for name, v in state}

    def state(self) -> dict[str, Any]:
        kept = self.net.state_dict().keys()
        unsaved = {n: b.clone() for n, b in self.net.named_buffers() if n not in kept}
        return dict(
            net=self._state_of_net(),
            unsaved=unsaved,
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler and self.scheduler.state_dict(),
            batches=self.batches,
            losses=list(self.losses),
        )

    def restore(self, state: Mapping[str, Any], say: Callable[[int], None] = ignored) -> None:
        self.net.load_state_dict(state["net"])
        for name, value in state["unsaved"].items():
            owner, _, leaf = name.rpartition(".")
            setattr(self.net.get_submodule(owner), leaf, value.clone())
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.losses = list(state["losses"])
        self._stream, self.batches = self._batches(), 0
        while self.batches < state["batches"]:
            self._next()
            say(state["batches"] - self.batches)

    def model(self) -> dict[str, Tensor]:
        return self.net.state_dict()


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def described(error: BaseException) -> str:
    """An error, with the last line of a user's file that it went through."""
    theirs = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != "slowlink" and not file.startswith(("<", *theirs)):
            place = f" ({file}:{line})"
    return f"{type(error).__name__}: {error}{place}"


loading = False
"""Whether a user's file is being imported."""


def named(field: str, reference: str) -> Callable[..., Any]:
    """The function of ``module:name`` or ``file.py:name``.

    Raises
    ------
    ValueError
        It cannot be imported, or there is none; names the field.
    """
    global loading
    source, _, name = reference.rpartition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the command's own path begins where it is installed
    loading = True
    try:
        found: Any = _file(source) if source.endswith(".py") else importlib.import_module(source)
    except (ImportError, OSError, SyntaxError) as error:
        raise ValueError(f"own.{field}: {source} cannot be imported: {error}") from None
    finally:
        loading = False
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"own.{field}: {source} has no function {name!r}")
    return found


def _file(source: str) -> ModuleType:
    path = Path(source).resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # it finds its neighbours as where it is run itself
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    name = f"slowlink_own_{digest}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
