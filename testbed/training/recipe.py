"""The description of one training run, as plain validated data."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from slowlink.methods import exchange, synchronization
from slowlink.testbed.results import Scale

How = Literal["one_by_one", "channels_last", "vmap"]
"""The gradients of several workers are computed, see :mod:`testbed.training.batching`."""

CodecScope = Literal["group", "layer"]
"""What a codec sees of a message of several tensors: one long vector, or each tensor by itself, so
that only their payloads travel together."""


class Part(BaseModel):
    """A method or model by name; every other key is a parameter of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


Kind = Literal[
    "exchange",
    "compression",
    "synchronization",
    "fusion",
    "aggregation",
    "model",
    "dataset",
    "device",
]


@dataclass(frozen=True)
class Of:
    """Marks a field whose value names something of this kind, which can then be looked up."""

    kind: Kind


Exchange = Annotated[Part, Of("exchange")]
Codec = Annotated[Part, Of("compression")]
Policy = Annotated[Part, Of("synchronization")]
Fusion = Annotated[Part, Of("fusion")]
Aggregation = Annotated[Part, Of("aggregation")]
Model = Annotated[Part, Of("model")]
Dataset = Annotated[str, Of("dataset")]
Device = Annotated[str, Of("device")]


class Level(BaseModel):
    """Codecs of one level of the exchange: towards the server and back.

    ``down`` says how the aggregate comes back. At the outermost level the codec's own answer comes
    back unless an optimizer sits at the server; inner levels answer with ``down``, by default the
    codec itself where its payloads add, else dense float32.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    up: Codec
    down: Codec | None = None


class Link(BaseModel):
    """The network of one case: rates in bit/s, latencies in seconds a hop."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lan: PositiveFloat
    wan: PositiveFloat
    lan_latency: Annotated[float, Field(ge=0)] = 0.0
    wan_latency: Annotated[float, Field(ge=0)] = 0.0
    colocated: Annotated[int, Field(ge=0)] = 0
    efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0


class Uneven(BaseModel):
    """Workers of different speed: an iteration takes as many times ``compute_s`` as ``sites`` says
    of all workers of each site, else as a factor that each worker draws evenly from 1 to
    ``highest`` by the run's seed; and each time up to ``jitter`` more or less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    highest: Annotated[float, Field(ge=1)] = 1.0
    sites: tuple[PositiveFloat, ...] = ()
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Spoiled(BaseModel):
    """The first ``workers`` bring ``factor`` times what they learned, and Gaussian noise as long as
    ``noise`` times that: -1 turns it around, -10 a longer one, and 0 with noise is nothing but
    noise, as of Blanchard et al. 2017 [@blanchard2017machine]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: PositiveInt
    factor: FiniteFloat
    noise: Annotated[FiniteFloat, Field(ge=0)] = 0.0


class Recipe(BaseModel):
    """One training run: the four methods, the model, the data, the links and the device.

    Attributes
    ----------
    at: coordinates of its rows besides those that rows have a field for.
    networks: case name -> links. Policies that do not look at the clock are trained once and
        timed on every network; others take exactly one.
    aggregation: how the server combines what the members of a meeting bring.
    codec_scope: whether codecs see the fusion's groups or layers.
    codecs: by rank, workers with another codec towards the server than ``levels`` says.
    sends: what workers bring to a meeting where changes travel and a server keeps the model: their
        ``change``, or their ``weights`` themselves, of whose mean the new model is made. With
        ``weights_first`` the first meeting of all is one of weights.
    spoiled: workers that bring something else than they learned; null for none.
    stands_for: the model that ``model`` stands in for: link rates are scaled by the ratio of
        their sizes, computing and compressing take the larger model's time.
    norm: whether BatchNorm's scale and shift train and travel; GeoMX prints sizes without them.
    validation: so many training images are held out of training.
    judged_on: the ``test`` images, or those held out for ``validation``.
    words, steps: of text: the vocabulary that is kept, and tokens a window.
    split: which samples are whose: one of :mod:`testbed.training.splits`, with its parameters.
    deal: they are dealt ``once``, or anew for ``each_round`` of a worker, of so many iterations as
        the policy's ``local_iterations``.
    subset: samples of its share that a worker takes in each of its rounds, drawn anew; null for a
        stream of all of them that rounds do not interrupt.
    augment: whether training images are flipped and cropped at random.
    colour: augmented images change their brightness and contrast by at most this share.
    lr_steps: from so many updates on, the learning rate is multiplied by so much (once each).
    momentum_lasts: whether a worker's momentum goes on through the ``run``, or begins at zero in
        each ``round``, when the model of a meeting has come.
    clip_norm: each worker's gradient is scaled down to at most this norm, before any codec.
    overlap: whether coding and communication overlap with backward, in the groups of the fusion.
        Workers of one site are then a flat cluster, whose links have the rate ``lan``. If not, they
        follow on each other.
    overhead_s: with overlap, seconds of a round of communication besides the transfers.
    timed_workers, timed_batch: with overlap, the cluster and the batch that are timed, where fewer
        workers or smaller batches train in their stead.
    optimizer_at: ``worker`` (the aggregate gradient comes back) or ``server`` (parameters do).
    averaged_over: what workers change on their own reaches the server's model as the mean over the
        ``members`` of a meeting, or as their sum over the number of ``all`` workers, so that an
        iteration weighs the same whoever meets.
    cluster: ``sites`` with a server each around a central one, or a ``star`` with one server,
        whose links have the rate ``lan``.
    gradients: how those of several workers are computed (``testbed.training.batching``).
    uneven: workers of different speed; null if all take ``compute_s``.
    rounds, seconds: the run ends after so many rounds, or at this virtual time. A round is as many
        iterations as there are workers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: str
    experiment: str
    system: str
    at: dict[str, float | str] = {}
    exchange: Exchange
    levels: tuple[Level, ...]
    synchronization: Policy
    fusion: Fusion = Part(name="layer_wise")
    aggregation: Aggregation = Part(name="mean")
    codec_scope: CodecScope = "group"
    codecs: dict[NonNegativeInt, Codec] = {}
    sends: Literal["change", "weights", "weights_first"] = "change"
    spoiled: Spoiled | None = None
    model: Model
    stands_for: Model | None = None
    norm: bool = True
    dataset: Dataset
    limit: PositiveInt | None = None
    test_limit: PositiveInt | None = None
    validation: PositiveInt | None = None
    judged_on: Literal["test", "validation"] = "test"
    words: PositiveInt | None = None
    steps: PositiveInt = 35
    workers: tuple[PositiveInt, ...]
    split: Part = Part(name="even")
    deal: Literal["once", "each_round"] = "once"
    subset: PositiveInt | None = None
    sampler: Literal["random", "sequential"] = "random"
    augment: bool = False
    colour: Annotated[float, Field(ge=0, le=1)] = 0.0
    batch: PositiveInt
    lr: PositiveFloat
    lr_steps: dict[PositiveInt, PositiveFloat] = {}
    clip_norm: PositiveFloat | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    momentum_lasts: Literal["run", "round"] = "run"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    optimizer_at: Literal["worker", "server"] = "worker"
    averaged_over: Literal["members", "all"] = "all"
    cluster: Literal["sites", "star"] = "sites"
    uneven: Uneven | None = None
    rounds: PositiveInt | None = None
    seconds: PositiveFloat | None = None
    evaluate_every: PositiveInt
    seed: int
    scale: Scale
    device: Device
    compute_s: Annotated[float, Field(ge=0)] | None = None
    overlap: bool = False
    overhead_s: Annotated[float, Field(ge=0)] = 0.0
    timed_workers: PositiveInt | None = None
    timed_batch: PositiveInt | None = None
    networks: dict[str, Link]
    gradients: How = "one_by_one"
    torch_threads: PositiveInt = 1
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _has_networks(self) -> Recipe:
        if not self.networks:
            raise ValueError("networks: name at least one case")
        return self

    @model_validator(mode="after")
    def _ends(self) -> Recipe:
        if (self.rounds is None) == (self.seconds is None):
            raise ValueError("give either rounds or seconds")
        if self.uneven and self.uneven.sites and len(self.uneven.sites) != len(self.workers):
            raise ValueError(f"uneven: sites needs a factor for each of {len(self.workers)} sites")
        if self.judged_on == "validation" and not self.validation:
            raise ValueError("judged_on: validation needs validation, how many images")
        if self.colour and not self.augment:
            raise ValueError("colour needs augment: true")
        if self.cluster == "star" and len(self.workers) != 1:
            raise ValueError("cluster: star takes workers of one site")
        return self

    @model_validator(mode="after")
    def _overlaps(self) -> Recipe:
        if self.overlap:
            if self.optimizer_at != "worker":
                raise ValueError("overlap needs optimizer_at: worker")
            if self.timed_workers and len(self.workers) != 1:
                raise ValueError("timed_workers needs workers of one site")
        elif self.overhead_s or self.timed_workers or self.timed_batch:
            raise ValueError("overhead_s, timed_workers and timed_batch need overlap: true")
        return self

    @model_validator(mode="after")
    def _deals(self) -> Recipe:
        if self.split != Part(name="even"):
            from slowlink.testbed.training import splits  # imports torch; most recipes do without

            try:
                splits.check(self.split.name, self.split.parameters)
            except ValueError as error:
                raise ValueError(f"split: {error}") from None
        if self.in_rounds:
            field = "subset" if self.subset else "deal: each_round"
            if not hasattr(self.policy(), "local_iterations"):
                raise ValueError(
                    f"{field} needs rounds of as many iterations as a policy's local_iterations "
                    f"says, which {self.synchronization.name} has not; take one that has, or leave "
                    "it out"
                )
            if self.gradients == "vmap":
                raise ValueError(
                    f"{field}: a round's last batch may be smaller, and gradients: vmap takes "
                    "batches of one size; take one_by_one or channels_last"
                )
        return self

    @model_validator(mode="after")
    def _brings(self) -> Recipe:
        count, name = sum(self.workers), self.synchronization.name
        for rank in self.codecs:
            if rank >= count:
                raise ValueError(f"codecs: there is no worker {rank}, ranks are 0 to {count - 1}")
        if self.spoiled and self.spoiled.workers > count:
            raise ValueError(f"spoiled: {self.spoiled.workers} workers of {count}")
        for field, usual in (("momentum_lasts", "run"), ("sends", "change")):
            given = getattr(self, field)
            if given != usual and self.policy().travels != "delta":
                raise ValueError(
                    f"{field}: {given} needs a policy whose changes travel, and with {name} "
                    f"gradients do; give it local_iterations of 2 or more, or leave {field} out"
                )
        if self.sends != "change":
            between = exchange.load(self.exchange.name, **self.exchange.parameters)
            if between.whole:
                raise ValueError(
                    f"sends: {self.sends} needs a server that keeps the model, and "
                    f"{self.exchange.name} has none; take an exchange with a server"
                )
            if self.policy().averages_inside:
                raise ValueError(
                    f"sends: {self.sends} goes to the one server that keeps the model, and {name} "
                    "averages at several levels; take sends: change"
                )
        return self

    def policy(self) -> synchronization.Policy:
        """A new one, whose draws depend on the run's seed unless it names one of its own."""
        name, parameters = self.synchronization.name, self.synchronization.parameters
        policy = synchronization.load(name, **parameters)
        if not hasattr(policy, "seed") or "seed" in parameters:
            return policy
        return synchronization.load(name, seed=fan_out(self.seed, "policy") % 2**31, **parameters)

    @property
    def in_rounds(self) -> bool:
        """Whether each round of a worker has samples of its own, and batches do not flow on."""
        return self.subset is not None or self.deal == "each_round"

    @property
    def round_iterations(self) -> int:
        """Iterations of a round of a worker that is :attr:`in_rounds`."""
        return self.policy().local_iterations

    @property
    def id(self) -> str:
        """Tells the run from the others of its experiment, as part of a file name."""
        return slug(f"{self.system}-seed{self.seed}")

    @property
    def told(self) -> dict[str, Any]:
        """The fields that all result rows of the run share; each network adds its case."""
        return dict(
            document=self.document,
            experiment=self.experiment,
            at=self.at,
            exchange=self.exchange.name,
            compression=self.levels[-1].up.name,
            synchronization=self.synchronization.name,
            fusion=self.fusion.name,
            model=self.model.name,
            dataset=self.dataset,
            workers=sum(self.workers),
            seed=self.seed,
            scale=self.scale,
            device=self.device,
        )

    def lr_at(self, update: int) -> float:
        """The learning rate of update number ``update``, counted from 0."""
        factors = [factor for start, factor in self.lr_steps.items() if update >= start]
        return self.lr * math.prod(factors)


def slug(text: str) -> str:
    """``text`` as part of a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in text)


def fan_out(seed: int, name: str) -> int:
    """A seed for the purpose ``name``, drawn from the run's ``seed``; stable across versions."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
