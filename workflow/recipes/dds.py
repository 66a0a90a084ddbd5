"""DDS: what its recipe may say."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from testbed.results import Scale
from testbed.training.recipe import Level, Link, Part, Recipe
from workflow.recipes import Check, PaperRecipe, Strict, distinct, slug

Many = Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(distinct)]
Seeds = Annotated[list[int], Field(min_length=1), AfterValidator(distinct)]
Momentum = Annotated[float, Field(ge=0, lt=1)]

DENSE, BASELINE = "fp32_dense", "baseline"
"""What the other modes and cases are held against."""


class Federated(Strict):
    """``subset`` samples of each client a round; ``lr`` and ``momentum`` of a client's own SGD.

    Of the test images, ``round_test_limit`` are looked at after each round of a live run.
    ``weights``: the modes that send weights, where the others send their change in the round; those
    ``from_zero``, in round 1, their change from zero and not from the model. ``variants``: modes
    (by their names' first word) with other codecs, of which bytes alone matter. ``live``: the modes
    that run on real processes, one after the other if they are ``timed``; ``checked_rounds`` of
    ``checked_subset`` samples, also of variants, are repeated in one process.
    """

    dataset: str
    model: Part
    clients: PositiveInt
    rounds: Annotated[int, Field(ge=2)]
    subset: PositiveInt
    batch: PositiveInt
    epochs: PositiveInt
    lr: PositiveFloat
    momentum: Momentum
    min_clients: PositiveInt
    timeout_s: PositiveFloat
    round_test_limit: PositiveInt | None
    test_limit: PositiveInt | None
    seed: int
    modes: dict[str, Part]
    weights: list[str]
    from_zero: list[str]
    variants: dict[str, Part]
    live: list[str]
    timed: bool
    checked_rounds: PositiveInt
    checked_subset: PositiveInt


class FederatedSeeds(Strict):
    """Modes repeated in one process on other seeds; with another ``model`` and with ``subset``
    samples, if they are given."""

    modes: list[str]
    seeds: Seeds
    model: Part | None
    subset: PositiveInt | None
    test_limit: PositiveInt | None


class NonIid(FederatedSeeds):
    """The same on unlike clients: how the data set is split, by label."""

    splits: dict[str, Part]


class Case(Strict):
    """A codec, and an optimizer's momentum if that is another."""

    codec: Part
    momentum: Momentum | None = None


class DataParallel(Strict):
    """``images``, the first of the data set, split over ``workers``; ``steps`` of an epoch are as
    many as one worker alone would take. ``centralised``: the case that trains in one process.

    ``seed`` is that of the live runs; ``seeds`` are simulated, of ``simulated`` cases.
    ``judged_steps``: after how many the document gives its accuracy, which is where the simulated
    runs end. ``checked_steps`` of each live run are repeated in one process, and an epoch more
    where a codec warms up by epochs.
    """

    dataset: str
    model: Part
    workers: PositiveInt
    batch: PositiveInt
    images: PositiveInt
    epochs: PositiveInt
    evaluate_every: PositiveInt
    lr: PositiveFloat
    momentum: Momentum
    test_limit: PositiveInt | None
    rate: PositiveFloat
    latency: NonNegativeFloat
    device: str
    compute_s: PositiveFloat
    target: PositiveFloat
    cases: dict[str, Case]
    centralised: str
    seed: int
    seeds: Seeds
    simulated: list[str]
    judged_steps: PositiveInt
    checked_steps: PositiveInt

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def warmup_steps(self, label: str) -> int:
        return self.cases[label].codec.parameters.get("warmup", 0) * self.steps_per_epoch

    def checked(self, label: str) -> int:
        """How many steps of a case are repeated."""
        return self.checked_steps + bool(self.warmup_steps(label)) * self.steps_per_epoch


class Transport(Strict):
    """``sizes`` in MiB, of each rank's payload."""

    sizes: Many
    ranks: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)]
    rounds: PositiveInt


class DdsRecipe(PaperRecipe):
    """The recipe ``papers/dds.yaml``."""

    paper: Literal["dds"]
    threads: PositiveInt
    # A job gets only those that it needs.
    federated: Federated | None = None
    federated_seeds: FederatedSeeds | None = None
    non_iid: NonIid | None = None
    ddp: DataParallel | None = None
    transport: Transport | None = None

    def only(self, *sections: str) -> dict[str, Any]:
        """The recipe as plain data with these optional sections alone."""
        optional = {n for n, field in type(self).model_fields.items() if not field.is_required()}
        return self.model_dump(mode="json", exclude=optional - set(sections))

    def runs(self, scale: Scale) -> dict[str, Recipe]:
        """The simulated data-parallel training runs by id."""
        return {
            slug(f"ddp-{label}-seed{seed}"): self.run(label, seed, scale)
            for label in self.ddp.simulated
            for seed in self.ddp.seeds
        }

    def run(self, label: str, seed: int, scale: Scale) -> Recipe:
        """The data-parallel training of a case, up to where the document gives its accuracy."""
        ddp, case = self.ddp, self.ddp.cases[label]
        alone = label == ddp.centralised
        codec = case.codec.parameters
        if "warmup" in codec:
            codec |= dict(steps_per_epoch=ddp.steps_per_epoch)
        return Recipe(
            paper=self.paper,
            experiment="ddp_seeds",
            system=label,
            exchange=Part(name="allgather"),
            levels=(Level(up=Part(name=case.codec.name, **codec)),),
            synchronization=Part(name="bsp"),
            model=ddp.model,
            dataset=ddp.dataset,
            limit=ddp.images,
            test_limit=ddp.test_limit,
            # One process takes the batch of all workers together.
            workers=(1 if alone else ddp.workers,),
            cluster="star",
            batch=ddp.batch * (ddp.workers if alone else 1),
            lr=ddp.lr,
            momentum=ddp.momentum if case.momentum is None else case.momentum,
            rounds=ddp.judged_steps,
            evaluate_every=ddp.evaluate_every,
            seed=seed,
            scale=scale,
            device=ddp.device,
            compute_s=ddp.compute_s,
            networks={label: Link(lan=ddp.rate, wan=ddp.rate, lan_latency=ddp.latency)},
            torch_threads=self.threads,
            accelerator="cpu",
        )

    def check(self, check: Check) -> None:
        from methods import compression
        from testbed.training import device, models, splits

        for name, value in self:
            if value is None:
                check.fail(name, "is missing")
        federated, ddp = self.federated, self.ddp
        check.need("federated.modes", DENSE, federated.modes)
        check.need("ddp.cases", BASELINE, ddp.cases)
        check.need("ddp.centralised", ddp.centralised, ddp.cases)
        parts = {f"federated.modes.{label}": part for label, part in federated.modes.items()}
        parts |= {f"federated.variants.{label}": p for label, p in federated.variants.items()}
        parts |= {f"ddp.cases.{label}.codec": case.codec for label, case in ddp.cases.items()}
        for key, part in parts.items():
            check.need(f"{key}.name", part.name, compression.names())
            check.make(key, compression.load, part.name, **part.parameters)
        names = ("live", "weights", "from_zero")
        named = {f"federated.{name}": getattr(federated, name) for name in names}
        named["federated_seeds.modes"] = self.federated_seeds.modes
        named["non_iid.modes"] = self.non_iid.modes
        for key, labels in named.items():
            for label in labels:
                check.need(key, label, federated.modes)
        for label in ddp.simulated:
            check.need("ddp.simulated", label, ddp.cases)
        check.need("ddp.device", ddp.device, device.profiles())
        for name in ("federated", "ddp", "federated_seeds", "non_iid"):
            if (model := getattr(self, name).model) is not None:
                check.need(f"{name}.model.name", model.name, models.MODELS)
        for label in federated.from_zero:
            if label in federated.weights:
                check.fail("federated.from_zero", f"{label} sends weights, not changes")
        for label, split in self.non_iid.splits.items():
            check.make(f"non_iid.splits.{label}", splits.check, split.name, split.parameters)
        if federated.min_clients > federated.clients:
            check.fail("federated.min_clients", f"there are {federated.clients} clients")
        for label in ddp.cases:
            if ddp.checked(label) > ddp.steps:
                check.fail("ddp.checked_steps", f"there are {ddp.steps} steps")
        tested = ddp.judged_steps % ddp.evaluate_every == 0 or ddp.judged_steps == ddp.steps
        if ddp.judged_steps > ddp.steps or not tested:
            check.fail(
                "ddp.judged_steps",
                f"of {ddp.steps} steps, every {ddp.evaluate_every}th is tested, and the last",
            )
