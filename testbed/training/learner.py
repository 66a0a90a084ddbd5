"""The learning half of a run: replicas, gradients, aggregation through codecs, evaluation.

It knows no time. Every gradient is real and computed by torch on real data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from methods import compression, fusion
from methods.compression import Compressor
from methods.exchange import Exchange, Topology
from methods.fusion import Costs
from testbed.prices import Groups, check_pair, default_down
from testbed.training import batching, models
from testbed.training.augmentation import augment
from testbed.training.datasets import Dataset
from testbed.training.recipe import Part, Recipe
from testbed.training.sampling import batches, split

IMAGE_BATCH, TEXT_BATCH = 125, 16
"""Samples that are evaluated at once: a window of text has scores for every word at every step."""

Sizes = dict[str, dict[int, float] | float]
"""Bytes by message slot: by sender for ``push``, one number for ``pull``."""


class Diverged(ArithmeticError):
    """Training produced a number that is not finite."""


@dataclass
class Replica:
    """A model's state as someone holds it; updating makes a new one.

    Only ``buffers`` change in place: BatchNorm's running statistics follow the batches of everyone
    who holds the replica.
    """

    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    velocity: list[torch.Tensor] | None = None
    version: int = 0


@dataclass
class Traffic:
    """What one aggregation put on the wire and through codecs.

    ``rounds`` has the payload bytes of each round of communication, ``values`` how many values each
    message had, and ``groups`` says who met, level by level.
    """

    rounds: list[Sizes] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    groups: Groups = field(default_factory=list)


class Learner:
    """Workers with their data, replicas and codecs."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        dataset: Dataset,
        exchange: Exchange,
        topology: Topology,
        costs: Costs | None = None,
    ) -> None:
        self.recipe, self.exchange, self.topology = recipe, exchange, topology
        cuda = recipe.accelerator != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        if recipe.accelerator == "cuda" and not cuda:
            raise ValueError("accelerator: cuda asked for, but torch sees no CUDA device")
        self.model = model.to(self.device)
        self.data = _on(dataset, self.device)
        self.text = dataset.train_y.ndim > 1
        if self.text and recipe.augment:
            raise ValueError(f"augment: {recipe.dataset} is text, only images are augmented")
        self.nodes = [int(node) for node in topology.workers]
        self.rank = {node: rank for rank, node in enumerate(self.nodes)}
        self._streams = self._make_streams()
        self._augmenters = [self._generator(f"augment {rank}") for rank in self.rank.values()]
        travelling = models.gradient_shapes(model, norm=recipe.norm)
        self.parameters = [model.get_parameter(name) for name in travelling]
        parameters = self.parameters
        # Backward produces the last layer's gradient first; fusion groups follow that order.
        order = list(range(len(parameters)))[::-1]
        grouping = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)
        if grouping.needs_costs and costs is None:
            raise ValueError(f"fusion {recipe.fusion.name} weighs costs: it needs overlap: true")
        self.sizes = [parameter.numel() for parameter in parameters]
        groups = grouping([self.sizes[i] for i in order], costs)
        self.groups = [[order[i] for i in group] for group in groups]
        initial = Replica(
            [p.detach().clone() for p in parameters], [b.clone() for b in model.buffers()]
        )
        self.replicas = [initial] * len(self.nodes)
        self.server = initial
        self._codecs: dict[tuple, Compressor] = {}
        self._codec_seed = fan_out(recipe.seed, "codec") % 2**31
        self._check()

    def _check(self) -> None:
        depth = len(self.exchange.groups(self.topology))
        if len(self.recipe.levels) != depth:
            raise ValueError(
                f"levels: {self.recipe.exchange.name} has {depth} levels, "
                f"the recipe gives codecs for {len(self.recipe.levels)}"
            )
        outer = self.codec("up", depth - 1, -1, self.recipe.levels[-1].up)
        check_pair(self.exchange, outer)
        for level in range(depth - 1):
            inner = self.codec("up", level, -1, self.recipe.levels[level].up)
            if not inner.one_shot:
                raise ValueError(f"{inner.name} needs several rounds: outermost level only")

    def _make_streams(self):
        shards = split(len(self.data.train_y), len(self.nodes), self._generator("split"))
        return [
            batches(
                shard,
                self.recipe.batch,
                self.recipe.sampler,
                self._generator(f"sampler {rank}"),
            )
            for rank, shard in enumerate(shards)
        ]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(fan_out(self.recipe.seed, name))

    def codec(self, direction: str, level: int, node: int, part: Part) -> Compressor:
        """The codec that ``node`` (-1: the centre) keeps for one direction of one level."""
        key = (direction, level, node)
        if key not in self._codecs:
            codec = compression.load(part.name, **part.parameters)
            # One seed for all parties: some codecs must draw alike everywhere. Those that must not
            # have a party's number besides; servers come after the workers, the central one first.
            own = dict(seed=self._codec_seed, party=self.rank.get(node, len(self.rank) + 1 + node))
            own = {name: own[name] for name in own if hasattr(codec, name)}
            self._codecs[key] = compression.load(part.name, **(own | part.parameters))
        return self._codecs[key]

    # Gradients and updates ---------------------------------------------------------------------

    def gradients(self, workers: Sequence[int]) -> dict[int, list[torch.Tensor]]:
        """By worker, the mean gradient of its next batch at its replica, one tensor a parameter."""
        images, labels = zip(*map(self._batch, workers), strict=True)
        replicas = [self.replicas[worker] for worker in workers]
        self.model.train()
        found, losses = batching.gradients(
            self.model,
            self.parameters,
            [replica.parameters for replica in replicas],
            images,
            labels,
            self.recipe.gradients,
            [replica.buffers for replica in replicas],
        )
        for worker, loss in zip(workers, losses.tolist(), strict=True):
            if not math.isfinite(loss):
                raise Diverged(f"loss of worker {worker} is {loss}; lower lr")
        if self.recipe.clip_norm:
            found = [clipped(gradient, self.recipe.clip_norm) for gradient in found]
        return dict(zip(workers, found, strict=True))

    def gradient(self, worker: int) -> list[torch.Tensor]:
        """:meth:`gradients` of one worker."""
        return self.gradients([worker])[worker]

    def _batch(self, worker: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = next(self._streams[worker])
        images = self.data.train_x[index]
        if self.recipe.augment:
            images = augment(images, self._augmenters[worker], self.recipe.colour)
        # A language model scores every token, so its labels are flat.
        return self._prepare(images), self.data.train_y[index].flatten()

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Standardised images, grey ones repeated for a model that takes colours; text as it is."""
        if self.text:
            return images
        images = self.data.prepare(images)
        channels = self.recipe.model.parameters.get("in_channels", images.shape[1])
        return images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images

    def _load(self, replica: Replica) -> None:
        for parameter, value in zip(self.parameters, replica.parameters, strict=True):
            parameter.data = value
        for buffer, value in zip(self.model.buffers(), replica.buffers, strict=True):
            buffer.copy_(value)

    def update(self, replica: Replica, gradient: Sequence[torch.Tensor]) -> Replica:
        """SGD with momentum and weight decay (torch's form); returns a new replica."""
        recipe = self.recipe
        lr = recipe.lr_at(replica.version)
        parameters, velocity = [], []
        held = replica.velocity or [None] * len(replica.parameters)
        for value, step, speed in zip(replica.parameters, gradient, held, strict=True):
            if recipe.weight_decay:
                step = step.add(value, alpha=recipe.weight_decay)
            if recipe.momentum:
                step = step.clone() if speed is None else speed.mul(recipe.momentum).add_(step)
                velocity.append(step)
            parameters.append(value.sub(step, alpha=lr))
        buffers = [buffer.clone() for buffer in replica.buffers]
        return Replica(parameters, buffers, velocity or None, replica.version + 1)

    def adopt(self, worker: int, received: Replica) -> None:
        """``worker`` goes on from ``received``, with its own momentum and count of updates."""
        own = self.replicas[worker]
        self.replicas[worker] = replace(received, velocity=own.velocity, version=own.version)

    def moved(self, replica: Replica, change: Sequence[torch.Tensor]) -> Replica:
        """``replica`` with ``change`` added; a new one."""
        parameters = [old + by for old, by in zip(replica.parameters, change, strict=True)]
        return replace(replica, parameters=parameters, version=replica.version + 1)

    # Aggregation ---------------------------------------------------------------------------------

    def aggregate(
        self,
        members: Sequence[int],
        gradients: dict[int, list[torch.Tensor]],
        weights: Sequence[float] | None = None,
    ) -> tuple[list[torch.Tensor], Traffic]:
        """The weighted mean of the members' gradients as every member decodes it.

        Goes level by level through the codecs of the recipe, exactly as payloads would travel.
        """
        weights = weights or [1 / len(members)] * len(members)
        nodes = [self.nodes[rank] for rank in members]
        levels = self.exchange.groups(self.topology, nodes)
        traffic = Traffic(groups=levels)
        out: list[torch.Tensor | None] = [None] * len(gradients[members[0]])
        for number, group in enumerate(self.groups):
            tensors = {}
            for rank, node, weight in zip(members, nodes, weights, strict=True):
                parts = [gradients[rank][i] for i in group]
                one = parts[0] if len(group) == 1 else torch.cat([p.flatten() for p in parts])
                tensors[node] = one * weight
            traffic.values.append(tensors[nodes[0]].numel())
            total = self._aggregate_group(levels, tensors, number, traffic)
            if len(group) == 1:
                out[group[0]] = total.view_as(gradients[members[0]][group[0]])
                continue
            shapes = [gradients[members[0]][i].shape for i in group]
            pieces = total.split([shape.numel() for shape in shapes])
            for index, shape, piece in zip(group, shapes, pieces, strict=True):
                out[index] = piece.view(shape)
        return out, traffic

    def _aggregate_group(self, levels, tensors, key, traffic: Traffic) -> torch.Tensor:
        outermost = len(levels) - 1
        for level in range(outermost):
            parents = [node for group in levels[level + 1] for node in group]
            spec = self.recipe.levels[level]
            sums = {}
            for group, parent in zip(levels[level], parents, strict=True):
                payloads = []
                for node in group:
                    codec = self.codec("up", level, node, spec.up)
                    payloads.append(codec.compress(tensors[node], key))
                    _add(traffic, 0, f"push/{level}", node, payloads[-1].nbytes)
                server = self.codec("up", level, parent, spec.up)
                combined = compression.combine_payloads(server, payloads, server.combine, key)
                combined = combined if isinstance(combined, list) else [combined]
                sums[parent] = sum(server.decompress(p, self.device) for p in combined)
            tensors = sums

        spec = self.recipe.levels[outermost]
        parties = [node for group in levels[outermost] for node in group]
        codecs = [self.codec("up", outermost, node, spec.up) for node in parties]
        centre = self.codec("up", outermost, -1, spec.up)
        results, up, down = compression.aggregate(
            codecs, [tensors[node] for node in parties], key, centre, everyone=False
        )
        total = results[0]
        for node, sent in zip(parties, up, strict=True):
            for number, nbytes in enumerate(sent):
                _add(traffic, number, f"push/{outermost}", node, nbytes)
        for number, nbytes in enumerate(down):
            _add(traffic, number, f"pull/{outermost}", None, nbytes)

        for level in reversed(range(outermost)):
            spec = self.recipe.levels[level]
            codec = self.codec("down", level, -1, spec.down or default_down(spec))
            payload = codec.compress(total, key)
            _add(traffic, len(traffic.rounds) - 1, f"pull/{level}", None, payload.nbytes)
            total = codec.decompress(payload, self.device)
        return total.view_as(results[0])

    def broadcast(self, replica: Replica) -> tuple[Replica, Sizes]:
        """Parameters as they arrive from a server that keeps the model, and their pull bytes."""
        sizes: Sizes = {}
        parameters = replica.parameters
        for level in reversed(range(len(self.recipe.levels))):
            spec = self.recipe.levels[level].down or Part(name="identity")
            codec = self.codec("weights", level, -1, spec)
            payloads = [codec.compress(p, i) for i, p in enumerate(parameters)]
            sizes[f"pull/{level}"] = float(sum(p.nbytes for p in payloads))
            parameters = [codec.decompress(p, self.device) for p in payloads]
        buffers = [buffer.clone() for buffer in replica.buffers]
        return Replica(parameters, buffers, None, replica.version), sizes

    # Evaluation ----------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, replica: Replica) -> tuple[float, float]:
        """Test accuracy (%) and mean test loss of ``replica``, over images or over words."""
        batch = TEXT_BATCH if self.text else IMAGE_BATCH
        self._load(replica)
        self.model.eval()
        correct, loss = 0, 0.0
        for images, labels in zip(
            self.data.test_x.split(batch), self.data.test_y.split(batch), strict=True
        ):
            images, labels = self._prepare(images), labels.flatten()
            if self.recipe.gradients == "channels_last":
                images = batching.channels_last(images)
            scores = self.model(images)
            correct += int((scores.argmax(1) == labels).sum())
            loss += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
        return 100 * correct / self.data.test_y.numel(), loss / self.data.test_y.numel()


def clipped(gradient: list[torch.Tensor], norm: float) -> list[torch.Tensor]:
    """``gradient``, scaled down if all of it together is longer than ``norm``."""
    length = torch.stack([torch.linalg.vector_norm(part) for part in gradient]).norm()
    return [part * (norm / length) for part in gradient] if length > norm else gradient


def _on(dataset: Dataset, device: torch.device) -> Dataset:
    tensors = {
        name: value.to(device)
        for name, value in vars(dataset).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(dataset, **tensors)


def fan_out(seed: int, name: str) -> int:
    """A seed for the purpose ``name``, drawn from the run's ``seed``; stable across versions."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def _add(traffic: Traffic, number: int, slot: str, node: int | None, nbytes: float) -> None:
    while len(traffic.rounds) <= number:
        traffic.rounds.append({})
    sizes = traffic.rounds[number]
    if node is None:
        sizes[slot] = sizes.get(slot, 0.0) + nbytes
    else:
        by_node = sizes.setdefault(slot, {})
        by_node[node] = by_node.get(node, 0.0) + nbytes
