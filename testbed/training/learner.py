"""The learning half of a run: replicas, gradients, aggregation through codecs, evaluation.

It knows no time. Every gradient is real and computed by torch on real data.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import nn

from slowlink.methods import aggregation, compression, fusion
from slowlink.methods.compression import Compressor
from slowlink.methods.compression.pieces.packing import check_finite
from slowlink.methods.exchange import Exchange, Topology
from slowlink.methods.fusion import Costs
from slowlink.testbed.prices import Groups, check_pair, default_down, load_codec, passes
from slowlink.testbed.training import batching, models, splits
from slowlink.testbed.training.augmentation import augment
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Level, Part, Recipe, fan_out
from slowlink.testbed.training.sampling import batches, batches_in_rounds

IMAGE_BATCH, TEXT_BATCH = 125, 16
"""Samples that are evaluated at once: a window of text has scores for every word at every step."""

IDENTITY = Part(name="identity")

SMALL = 2_000_000
"""Values of a model up to which a processor codes the gradients that a GPU computes, which would
launch kernels for longer than they last."""

PARTIES = 2**20
"""More than the nodes of any topology."""
EVEN = Part(name="even")

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
    message had, and ``groups`` says who met, level by level. Where a region has no server, its
    bytes are those of the worker that it is named by.
    """

    rounds: list[Sizes] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    groups: Groups = field(default_factory=list)

    def add(self, number: int, slot: str, node: int | None, nbytes: float) -> None:
        """Count bytes in a slot of the round of this number; from ``node``, or of an answer."""
        while len(self.rounds) <= number:
            self.rounds.append({})
        sizes = self.rounds[number]
        if node is None:
            sizes[slot] = sizes.get(slot, 0.0) + nbytes
        else:
            by_node = sizes.setdefault(slot, {})
            by_node[node] = by_node.get(node, 0.0) + nbytes

    def by_sender(self) -> list[Sizes]:
        """``rounds``, where whom a region is named by, its server if it has one, or any worker may
        send for it: each tree of RAT, for instance, has another aggregator there, which sends its
        share of the region's message."""
        rounds = [dict(sizes) for sizes in self.rounds]
        workers = {node: [node] for group in self.groups[:1] for its in group for node in its}
        for level in range(1, len(self.groups)):
            names = [name for group in self.groups[level] for name in group]
            pairs = zip(names, self.groups[level - 1], strict=True)
            workers = {name: [w for node in group for w in workers[node]] for name, group in pairs}
            slot = f"push/{level}"
            for sizes in (sizes for sizes in rounds if slot in sizes):
                sent = sizes[slot]
                sizes[slot] = sent | {w: sent[name] for name, its in workers.items() for w in its}
        return rounds


class Codecs:
    """The codecs that all nodes keep, each made when it is first asked for.

    Parameters
    ----------
    rank: of each worker, by node.
    own: by rank, the codec of workers with another one than the innermost level has.
    """

    def __init__(
        self,
        levels: Sequence[Level],
        seed: int,
        rank: Mapping[int, int],
        own: Mapping[int, Part] | None = None,
    ) -> None:
        self.levels, self.rank, self.own = levels, rank, own or {}
        self.seed = fan_out(seed, "codec") % 2**31
        self.made: dict[tuple[str, int, int], Compressor] = {}

    def __call__(self, direction: str, level: int, node: int, part: Part) -> Compressor:
        """The codec that ``node`` (-1: the centre) keeps for one direction of one level."""
        key = (direction, level, node)
        if key not in self.made:
            codec = compression.load(part.name, **part.parameters)
            # One seed for all parties: some codecs must draw alike everywhere. Those that must not
            # have a party's number besides; servers come after the workers, the central one first.
            # What is rounded once more on its way back must not be so by the same draws.
            party = self.rank.get(node, len(self.rank) + 1 + node)
            if direction != "up":
                party += PARTIES * (2 * level + 1 + (direction == "weights"))
            own = dict(seed=self.seed, party=party)
            own = {name: own[name] for name in own if hasattr(codec, name)}
            self.made[key] = compression.load(part.name, **(own | part.parameters))
        return self.made[key]

    def up(self, level: int, node: int) -> Compressor:
        """The codec of ``node`` towards the server."""
        part = self.levels[level].up
        if level == 0:
            part = self.own.get(self.rank.get(node), part)
        return self("up", level, node, part)

    def down(self, level: int) -> Compressor:
        """The codec by which an aggregate comes back within ``level``."""
        spec = self.levels[level]
        return self("down", level, -1, spec.down or default_down(spec))

    def weights(self, level: int) -> Compressor:
        """The codec by which parameters come back from a server that keeps the model."""
        return self("weights", level, -1, self.levels[level].down or IDENTITY)

    def states(self) -> dict[tuple[str, int, int], Any]:
        """A copy of the state of all codecs."""
        return {key: codec.state_dict() for key, codec in self.made.items()}

    def load(self, states: Mapping[tuple[str, int, int], Any]) -> None:
        """Go on from a copy; codecs without state there begin anew."""
        for direction, level, node in states.keys() - self.made.keys():
            if direction in ("down", "weights"):
                getattr(self, direction)(level)
            else:
                self.up(level, node)
        for key, codec in self.made.items():
            codec.load_state_dict(states.get(key, {}))


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
        small = sum(p.numel() for p in model.parameters()) < SMALL
        self.home = torch.device("cpu") if small else self.device
        self.data = _on(dataset, self.home)
        self.text = dataset.train_y.ndim > 1
        if self.text:
            check_text(recipe)
        self.nodes = [int(node) for node in topology.workers]
        self.rank = {node: rank for rank, node in enumerate(self.nodes)}
        self._dealt = lru_cache(maxsize=1)(self._deal)
        self._streams = [self._stream(rank) for rank in self.rank.values()]
        self._augmenters = [self._generator(f"augment {rank}") for rank in self.rank.values()]
        travelling = models.gradient_shapes(model, norm=recipe.norm)
        self.parameters = [model.get_parameter(name) for name in travelling]
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.groups = grouped(recipe, self.sizes, costs)
        initial = Replica(
            [p.detach().to(self.home, copy=True) for p in self.parameters],
            [b.clone() for b in model.buffers()],
        )
        self.replicas = [initial] * len(self.nodes)
        self.server = initial
        self.codec = Codecs(recipe.levels, recipe.seed, self.rank, recipe.codecs)
        rule = recipe.aggregation
        self.rule = aggregation.load(rule.name, **rule.parameters)
        self._adds = rule.name == "mean" and not recipe.codecs
        """Whether sums on the way are what the server makes of what workers bring: their mean, of
        what comes in one codec."""
        self._check()

    def _check(self) -> None:
        depth = len(self.exchange.groups(self.topology))
        if len(self.recipe.levels) != depth:
            raise ValueError(
                f"levels: {self.recipe.exchange.name} has {depth} levels, "
                f"the recipe gives codecs for {len(self.recipe.levels)}"
            )
        outer = load_codec(self.recipe.levels[-1].up)
        check_pair(self.exchange, outer)
        if self.recipe.aggregation.name != "mean":
            self._check_apart(f"aggregation: {self.recipe.aggregation.name}", outer)
        for rank, part in self.recipe.codecs.items():
            try:
                own = load_codec(part)
                check_pair(self.exchange, own)
            except ValueError as error:
                raise ValueError(f"codecs.{rank}: {error}") from None
            for codec in (outer, own):
                self._check_apart(f"codecs.{rank}: {own.name}", codec)
        for level in self.recipe.levels[:-1]:
            inner = load_codec(level.up)
            if not (inner.one_shot or self.passes):
                raise ValueError(f"{inner.name} needs several rounds: outermost level only")

    def _check_apart(self, what: str, codec: Compressor) -> None:
        exchange, depth = self.recipe.exchange.name, len(self.recipe.levels)
        if not apart(self.exchange, depth, codec):
            raise ValueError(
                f"{what} needs a server that has every member's values; {exchange} with "
                f"{codec.name} gives it only what they combine to"
            )

    @cached_property
    def passes(self) -> bool:
        """Whether servers add payloads and pass on their sum, see :func:`testbed.prices.passes`."""
        levels = self.recipe.levels
        up = [load_codec(level.up) for level in levels]
        return passes(up, [load_codec(one.down or default_down(one)) for one in levels[:-1]])

    @cached_property
    def _coded(self) -> Sequence[Sequence[int]]:
        """Tensors that are coded together: groups, or all of them where values are coded one by
        one, which gives the same values and bytes in fewer calls."""
        levels = self.recipe.levels
        parts = [part for one in levels for part in (one.up, one.down or default_down(one))]
        if all(load_codec(part).elementwise for part in parts):
            return [[index for group in self.groups for index in group]]
        return self.groups

    def _deal(self, name: str) -> list[torch.Tensor]:
        """Every worker's share of the samples, as drawn for this purpose."""
        how, labels = self.recipe.split, self.data.train_y.cpu()
        generator, workers = self._generator(name), len(self.nodes)
        return splits.split(how.name, labels, workers, generator, **how.parameters)

    def _stream(self, rank: int) -> Iterator[torch.Tensor]:
        """The batches of a worker, from the first on."""
        recipe = self.recipe
        if recipe.in_rounds:
            return batches_in_rounds(
                partial(self._samples, rank),
                recipe.round_iterations,
                recipe.batch,
                recipe.sampler,
                lambda round_: self._generator(f"order {rank} {round_}"),
            )
        share = self._dealt("split")[rank]
        if len(share) < recipe.batch:
            raise ValueError(
                f"split: {recipe.split.name} gives worker {rank} {len(share)} samples, no batch of "
                f"{recipe.batch}; take a smaller batch, fewer workers or subset, which takes what "
                "there is"
            )
        return batches(share, recipe.batch, recipe.sampler, self._generator(f"sampler {rank}"))

    def _samples(self, rank: int, round_: int) -> torch.Tensor:
        """Indices of the samples that a worker takes in its round of this number, from 1."""
        recipe, anew = self.recipe, self.recipe.deal == "each_round"
        share = self._dealt(f"split {round_}" if anew else "split")[rank]
        # An even share that is dealt anew is a draw, in random order; others are in an order.
        if recipe.subset and not (anew and recipe.split == EVEN):
            draw = self._generator(f"subset {rank} {round_}")
            share = share[torch.randperm(len(share), generator=draw)]
        return share[: recipe.subset]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(fan_out(self.recipe.seed, name))

    # State ---------------------------------------------------------------------------------------

    def rewind(self, rank: int, batches: int) -> None:
        """Begin the data stream of the worker of this rank anew, after so many batches."""
        self._streams[rank] = self._stream(rank)
        self._augmenters[rank] = self._generator(f"augment {rank}")
        for _ in range(batches):
            self._batches([rank])

    # Gradients and updates ---------------------------------------------------------------------

    def gradients(self, workers: Sequence[int]) -> dict[int, list[torch.Tensor]]:
        """The mean gradient of each worker's next batch at its replica, one tensor a parameter."""
        images, labels = self._batches(workers)
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

    def _batches(self, workers: Sequence[int]) -> tuple[Sequence[torch.Tensor], ...]:
        """Images or windows, and labels, of each worker's next batch."""
        index = [next(self._streams[worker]) for worker in workers]
        sizes, every = [len(one) for one in index], torch.cat(index)
        images, labels = self.data.train_x[every], self.data.train_y[every].split(sizes)
        if self.recipe.augment:
            pairs = zip(workers, images.split(sizes), strict=True)
            images = torch.cat(
                [augment(own, self._augmenters[rank], self.recipe.colour) for rank, own in pairs]
            )
        # A language model scores every token, so its labels are flat.
        images = self._prepare(images.to(self.device))
        return images.split(sizes), [own.flatten().to(self.device) for own in labels]

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Standardised images, grey ones repeated for a model that takes colours; text as it is."""
        if self.text:
            return images
        images = self.data.prepare(images)
        channels = self.recipe.model.parameters.get("in_channels", images.shape[1])
        return images.expand(-1, channels, -1, -1) if images.shape[1] == 1 else images

    def _load(self, replica: Replica) -> None:
        for parameter, value in zip(self.parameters, replica.parameters, strict=True):
            parameter.data = value.to(self.device)
        for buffer, value in zip(self.model.buffers(), replica.buffers, strict=True):
            buffer.copy_(value)

    def update(self, replica: Replica, gradient: Sequence[torch.Tensor]) -> Replica:
        """SGD with momentum and weight decay (torch's form); returns a new replica."""
        recipe, step, velocity = self.recipe, list(gradient), replica.velocity
        if recipe.weight_decay:
            step = torch._foreach_add(step, replica.parameters, alpha=recipe.weight_decay)
        if recipe.momentum:
            if velocity is None:
                velocity = [part.clone() for part in step]
            else:
                velocity = list(torch._foreach_mul(velocity, recipe.momentum))
                torch._foreach_add_(velocity, step)
            step = velocity
        lr = recipe.lr_at(replica.version)
        parameters = torch._foreach_sub(replica.parameters, step, alpha=lr)
        buffers = [buffer.clone() for buffer in replica.buffers]
        return Replica(list(parameters), buffers, velocity, replica.version + 1)

    def adopt(self, worker: int, received: Replica) -> None:
        """``worker`` goes on from ``received``, with its own count of updates, and with its own
        momentum if that lasts."""
        own = self.replicas[worker]
        velocity = own.velocity if self.recipe.momentum_lasts == "run" else None
        self.replicas[worker] = replace(received, velocity=velocity, version=own.version)

    def moved(self, replica: Replica, change: Sequence[torch.Tensor]) -> Replica:
        """``replica`` with ``change`` added; a new one."""
        parameters = torch._foreach_add(replica.parameters, change)
        return replace(replica, parameters=list(parameters), version=replica.version + 1)

    # Aggregation ---------------------------------------------------------------------------------

    def aggregate(
        self,
        members: Sequence[int],
        gradients: dict[int, list[torch.Tensor]],
        weights: Sequence[float] | None = None,
        returns: bool = True,
        origin: Sequence[torch.Tensor] | None = None,
    ) -> tuple[list[torch.Tensor], Traffic]:
        """The weighted mean of the members' gradients as every member decodes it.

        Goes level by level through the codecs of the recipe, exactly as payloads would travel. If
        the recipe has another ``aggregation`` than the mean, or codecs of single workers, it is
        that of what the server decodes.

        returns: whether the mean comes back through the inner levels. It stays with a server that
            keeps the model, whose way back is :meth:`broadcast`.
        origin: the server's model, where members bring no changes but models themselves.
        """
        weights = weights or [1 / len(members)] * len(members)
        if not self._adds:
            return self._by_rule(members, gradients, weights, origin)
        nodes = [self.nodes[rank] for rank in members]
        levels = self.exchange.groups(self.topology, nodes)
        brought = {
            node: (gradients[rank], weight)
            for node, rank, weight in zip(nodes, members, weights, strict=True)
        }
        sizes = [sum(self.sizes[i] for i in group) for group in self.groups]
        traffic = Traffic(values=sizes, groups=levels)
        above, held = self._sums(levels, brought, traffic)
        if above == len(levels):
            (out,) = held.values()
            self._add_pulls(above, traffic, self._dense_bytes)
            return out, traffic
        out: list[torch.Tensor | None] = [None] * len(self.sizes)
        for number, group in enumerate(self._coded):
            tensors = {}
            for node, own in held.items():
                one = fused(own, group)
                tensors[node] = one if above else one * brought[node][1]
            total = self._aggregate_group(levels, above, tensors, number, traffic, returns)
            self._add_pulls(above, traffic, 4.0 * sum(self.sizes[i] for i in group))
            for index, piece in unfused(total, group, self.shapes).items():
                out[index] = piece
        return out, traffic

    def _by_rule(self, members, gradients, weights, origin) -> tuple[list[torch.Tensor], Traffic]:
        """What the rule makes of the members' vectors as the server decodes them, each by the
        codec of who sends it; it answers with float32 values."""
        sizes = [sum(self.sizes[i] for i in group) for group in self.groups]
        nodes = [self.nodes[rank] for rank in members]
        traffic = Traffic(values=sizes, groups=self.exchange.groups(self.topology, nodes))
        order = [index for group in self.groups for index in group]
        vectors = []
        for rank, node in zip(members, nodes, strict=True):
            codec, decoded = self.codec.up(0, node), []
            for number, group in enumerate(self.groups):
                payload = codec.compress(fused(gradients[rank], group), number)
                traffic.add(0, "push/0", node, payload.nbytes)
                decoded.append(codec.decompress(payload, self.home).flatten())
            vectors.append(torch.cat(decoded))
        before = None if origin is None else fused([part.flatten() for part in origin], order)
        made = by_rule(self.rule, vectors, weights, before)
        self._add_pulls(1, traffic, self._dense_bytes)
        out: list[torch.Tensor | None] = [None] * len(self.sizes)
        for index, piece in unfused(made, order, self.shapes).items():
            out[index] = piece
        return out, traffic

    def _add_pulls(self, above: int, traffic: Traffic, nbytes: float) -> None:
        for level in range(above):
            traffic.add(len(traffic.rounds) - 1, f"pull/{level}", None, nbytes)

    def _sums(self, levels: Groups, brought, traffic: Traffic):
        """Add up, without bytes, what travels as it is from the innermost level on.

        Returns
        -------
        the first level with a codec that has something to do, and by node what meets there: as it
        was ``brought`` if that is the innermost level, else sums of it times its weights.
        """
        above, held = 0, {node: own for node, (own, _) in brought.items()}
        while above < len(levels) and self._as_it_is(above):
            outermost = above == len(levels) - 1
            senders, parents = levels[above], [-1]
            if outermost:
                senders = [[node for group in senders for node in group]]
            else:
                parents = [node for group in levels[above + 1] for node in group]
            for node in (node for group in senders for node in group):
                traffic.add(0, f"push/{above}", node, self._dense_bytes)
            sums = {}
            for group, parent in zip(senders, parents, strict=True):
                for node in group:
                    own = held[node]
                    if not above:
                        own = torch._foreach_mul(own, brought[node][1])
                    if parent in sums:
                        torch._foreach_add_(sums[parent], own)
                    else:
                        sums[parent] = list(own)
            above, held = above + 1, sums
        if above == len(levels):
            for number, part in enumerate(held[-1]):
                check_finite(part, f"the sum of tensor {number}")
        return above, held

    def _as_it_is(self, level: int) -> bool:
        """Whether values travel unchanged through ``level``, both ways."""
        up = self.codec.up(level, -1)
        inner = level < len(self.recipe.levels) - 1
        down = self.codec.down(level) if inner else up
        return compression.untouched(up) and compression.untouched(down)

    @cached_property
    def _dense_bytes(self) -> float:
        return 4.0 * sum(self.sizes)

    def _aggregate_group(
        self, levels, above: int, tensors, key, traffic: Traffic, returns: bool
    ) -> torch.Tensor:
        outermost = len(levels) - 1
        if self.passes and not above:
            return self._added(levels, tensors, key, traffic)
        for level in range(above, outermost):
            parents = [node for group in levels[level + 1] for node in group]
            sums = {}
            for group, parent in zip(levels[level], parents, strict=True):
                payloads = []
                for node in group:
                    codec = self.codec.up(level, node)
                    payloads.append(codec.compress(tensors[node], key))
                    traffic.add(0, f"push/{level}", node, payloads[-1].nbytes)
                server = self.codec.up(level, parent)
                combined = compression.combine_payloads(server, payloads, server.combine, key)
                combined = combined if isinstance(combined, list) else [combined]
                sums[parent] = sum(server.decompress(p, self.home) for p in combined)
            tensors = sums

        parties = [node for group in levels[outermost] for node in group]
        codecs = [self.codec.up(outermost, node) for node in parties]
        centre = self.codec.up(outermost, -1)
        results, up, down = compression.aggregate(
            codecs, [tensors[node] for node in parties], key, centre, everyone=False
        )
        total = results[0]
        for node, sent in zip(parties, up, strict=True):
            for number, nbytes in enumerate(sent):
                traffic.add(number, f"push/{outermost}", node, nbytes)
        for number, nbytes in enumerate(down):
            traffic.add(number, f"pull/{outermost}", None, nbytes)

        for level in reversed(range(above, outermost)) if returns else ():
            codec = self.codec.down(level)
            payload = codec.compress(total, key)
            traffic.add(len(traffic.rounds) - 1, f"pull/{level}", None, payload.nbytes)
            total = codec.decompress(payload, self.home)
        return total.view_as(results[0])

    def _added(self, levels: Groups, tensors, key, traffic: Traffic) -> torch.Tensor:
        """What workers alone code: servers add payloads on their way, and pass on the sum."""
        outermost, places = len(levels) - 1, list(tensors)
        codecs = [self.codec.up(outermost, node) for node in tensors]
        centre, inside = self.codec.up(outermost, -1), []
        for level in range(outermost):
            inside.append([[places.index(node) for node in group] for group in levels[level]])
            places = [node for group in levels[level + 1] for node in group]
        results, up, down = compression.aggregate(
            codecs, list(tensors.values()), key, centre, everyone=False, inside=inside
        )
        # A sum has the bytes of each of its payloads, whoever sends it.
        for level, groups in enumerate(levels):
            for node in (node for group in groups for node in group):
                for number, nbytes in enumerate(up[0]):
                    traffic.add(number, f"push/{level}", node, nbytes)
            for number, nbytes in enumerate(down):
                traffic.add(number, f"pull/{level}", None, nbytes)
        return results[0]

    def broadcast(self, replica: Replica) -> tuple[Replica, Sizes]:
        """Parameters as they arrive from a server that keeps the model, and their pull bytes."""
        sizes: Sizes = {}
        parameters = replica.parameters
        for level in reversed(range(len(self.recipe.levels))):
            codec = self.codec.weights(level)
            if compression.untouched(codec):
                sizes[f"pull/{level}"] = self._dense_bytes
                continue
            payloads = [codec.compress(p, i) for i, p in enumerate(parameters)]
            sizes[f"pull/{level}"] = float(sum(p.nbytes for p in payloads))
            parameters = [codec.decompress(p, self.home) for p in payloads]
        buffers = [buffer.clone() for buffer in replica.buffers]
        return Replica(parameters, buffers, None, replica.version), sizes

    # Evaluation ----------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, replica: Replica) -> tuple[float, float]:
        """Test accuracy (%) and mean test loss of ``replica``, over images or over words."""
        batch = TEXT_BATCH if self.text else IMAGE_BATCH
        self._load(replica)
        self.model.eval()
        correct = loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for images, labels in zip(
            self.data.test_x.split(batch), self.data.test_y.split(batch), strict=True
        ):
            images, labels = self._prepare(images.to(self.device)), labels.flatten().to(self.device)
            if self.recipe.gradients == "channels_last":
                images = batching.channels_last(images)
            scores = self.model(images)
            correct = correct + (scores.argmax(1) == labels).sum()
            loss = loss + nn.functional.cross_entropy(scores, labels, reduction="sum")
        count = self.data.test_y.numel()
        return 100 * int(correct) / count, float(loss) / count


def check_text(recipe: Recipe) -> None:
    """Refuse what can be done with images only. Raises ValueError with the field."""
    for field_, given, what in (
        ("augment", recipe.augment, "augmented"),
        ("split", recipe.split != EVEN, "split by label"),
        ("subset", recipe.subset, "drawn for a round"),
        ("deal", recipe.deal != "once", "dealt anew"),
    ):
        if given:
            raise ValueError(f"{field_}: {recipe.dataset} is text, only images are {what}")


def grouped(recipe: Recipe, sizes: Sequence[int], costs: Costs | None = None) -> list[list[int]]:
    """What codecs see as one tensor: the groups of parameters of these sizes, by index.

    Raises ValueError for a fusion that needs costs, without them.
    """
    # Backward produces the last layer's gradient first; fusion groups follow that order.
    order = list(range(len(sizes)))[::-1]
    grouping = fusion.load(recipe.fusion.name, **recipe.fusion.parameters)
    if grouping.needs_costs and costs is None:
        raise ValueError(f"fusion {recipe.fusion.name} weighs costs: it needs overlap: true")
    groups = grouping([sizes[i] for i in order], costs)
    if recipe.codec_scope == "layer":
        groups = [[i] for i in range(len(order))]
    return [[order[i] for i in group] for group in groups]


def fused(tensors: Sequence[torch.Tensor], group: Sequence[int]) -> torch.Tensor:
    """The tensors of a group, by their index, as one: the only one as it is, else all flat."""
    parts = [tensors[i] for i in group]
    return parts[0] if len(parts) == 1 else torch.cat([part.flatten() for part in parts])


def unfused(
    total: torch.Tensor, group: Sequence[int], shapes: Sequence[torch.Size]
) -> dict[int, torch.Tensor]:
    """The tensors of a group by index, given all of them as one; ``shapes`` is of all tensors."""
    pieces = total.flatten().split([shapes[i].numel() for i in group])
    return {i: piece.view(shapes[i]) for i, piece in zip(group, pieces, strict=True)}


def apart(exchange: Exchange, depth: int, outer: Compressor) -> bool:
    """Whether there is a server that can have every member's values, and not only their sum."""
    return not exchange.whole and depth == 1 and outer.one_shot and outer.adds


def by_rule(
    rule: aggregation.Aggregation,
    vectors: Sequence[torch.Tensor],
    weights: Sequence[float],
    origin: torch.Tensor | None = None,
) -> torch.Tensor:
    """What ``rule`` makes of the members' (values,) vectors, times the sum of their weights.

    origin: what the vectors are changes from, where they are models and no changes themselves.
    """
    total = sum(weights)
    made = rule(torch.stack(list(vectors)), [weight / total for weight in weights], origin)
    return check_finite(total * made, "the aggregate")


def spoil(
    recipe: Recipe,
    rank: int,
    iteration: int,
    brought: Sequence[torch.Tensor],
    origin: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """What the worker of this rank brings in truth, after so many iterations of its own, where an
    honest one brings a change or a gradient, or a model that has changed from ``origin``."""
    how = recipe.spoiled
    if how is None or rank >= how.workers:
        return list(brought)
    learned = brought if origin is None else torch._foreach_sub(brought, origin)
    found = torch._foreach_mul(learned, how.factor)
    if how.noise:
        seed = fan_out(recipe.seed, f"spoiled {rank} {iteration}")
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(part.shape, generator=generator).to(part.device) for part in learned]
        scale = how.noise * _length(learned) / _length(drawn)
        found = torch._foreach_add(found, torch._foreach_mul(drawn, scale))
    return list(found if origin is None else torch._foreach_add(origin, found))


def digest(tensors: Iterable[torch.Tensor]) -> bytes:
    """A digest of all bits of the tensors, in order."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.digest()


def clipped(gradient: list[torch.Tensor], norm: float) -> list[torch.Tensor]:
    """``gradient``, scaled down if all of it together is longer than ``norm``."""
    length = _length(gradient)
    return [part * (norm / length) for part in gradient] if length > norm else gradient


def _length(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The Euclidean norm of all values of all tensors."""
    # Torch adds up squares in the order of memory, which differs with how a gradient was computed.
    parts = [part.contiguous() for part in tensors]
    return torch.stack([torch.linalg.vector_norm(part) for part in parts]).norm()


def _on(dataset: Dataset, device: torch.device) -> Dataset:
    tensors = {
        name: value.to(device)
        for name, value in vars(dataset).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(dataset, **tensors)
