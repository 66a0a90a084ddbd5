"""The space besides the rows of the matrix: what it refuses cannot be trained either, and bounds
lose no winner."""

import contextlib
import itertools
from functools import partial

import numpy as np
import pytest
import torch

from slowlink.methods import exchange, synchronization
from slowlink.methods.exchange import in_pieces
from slowlink.methods.fusion.layer_fusion import LayerFusion
from slowlink.testbed.matrix import Cluster, Method, best_round, least_s, time_round
from slowlink.testbed.network import simulate
from slowlink.testbed.network.counting import complete
from slowlink.testbed.prices import System, among
from slowlink.testbed.training import device, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.pipeline import layers
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import advice, experiments, systems
from slowlink.workflow.matrix.ranking import TIE
from slowlink.workflow.matrix.rounds import methods_of

RECIPE = advice.recipe()
BEYOND = systems.beyond(RECIPE)
MACHINE = device.profile(RECIPE.device)
LAYERS = layers(Part(name="lenet5"))
LINKS = dict(lan=1e9, latency=1e-4, overhead_s=1e-4, pieces=8, efficiency=0.95)
SITES = Cluster("sites", 4, 5e7, per_site=2, wan_latency=0.002, **LINKS)
FLAT = Cluster("flat", 4, 1e9, **LINKS)
SMALL = Part(name="mlp", hidden=12)


@pytest.fixture(autouse=True)
def data(monkeypatch):
    labels = torch.arange(80) % 10
    images = torch.randint(0, 256, (80, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    half = torch.tensor([0.5])
    made = Dataset("made", images, labels, images[:10], labels[:10], 10, (1, 28, 28), half, half)
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: made)


def where(system: systems.System) -> Cluster:
    """Sites for who has servers of its own in them or between them."""
    return SITES if system.exchange[0].name in ("hips", "parameter_server") else FLAT


def training(system: systems.System, carrier: Part, place: Cluster, **changes) -> Recipe:
    """Two rounds on four workers."""
    part = system.synchronization
    policy = synchronization.load(part.name, **part.parameters)
    at_server = policy.asynchronous and policy.travels == "gradient"
    groups = exchange.load(carrier.name, **carrier.parameters).groups(place.topology)
    parties = sum(map(len, groups[-1]))
    levels = [*system.levels, *system.levels[-1:] * (len(groups) - len(system.levels))]
    levels[-1] = Level(up=among(levels[-1].up, parties))
    told = dict(
        document="test", experiment="space", system="one", exchange=carrier,
        levels=tuple(levels), synchronization=part, codec_scope="layer", model=SMALL,
        dataset="made", workers=(2, 2) if place is SITES else (4,), batch=4, lr=0.01, rounds=2,
        evaluate_every=2, seed=1, scale="smoke", device="v100_matrix", compute_s=0.01,
        accelerator="cpu", cluster="sites" if place is SITES else "star",
        optimizer_at="server" if at_server else "worker",
        networks={"one": Link(lan=1e9, wan=5e7)},
    )  # fmt: skip
    return Recipe(**told | changes)


def trained(system: systems.System) -> str:
    """Really training a system; the reason if it is refused."""
    try:
        list(trainer.train(training(system, system.exchange[0], where(system))))
    except ValueError as error:
        return str(error)
    return ""


def timed(system: systems.System) -> str:
    """The same of timing a round."""
    try:
        time_round(methods_of("one", system)[0], LAYERS, where(system), MACHINE, 256)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(12))
def test_what_is_refused_cannot_be_trained_and_all_else_can(part):
    """Every system of the space, by the same words."""
    refused = 0
    for label in list(BEYOND)[part::12]:
        why = timed(BEYOND[label])
        assert trained(BEYOND[label]) == why, label
        refused += bool(why)
    assert refused


@pytest.mark.parametrize("name", exchange.names())
@pytest.mark.parametrize("policy", synchronization.names())
def test_every_policy_on_every_exchange_is_timed_and_trained_or_neither(name, policy):
    depth = 2 if name == "hips" else 1
    options = RECIPE.options.get(policy, {})
    one = systems.System(
        exchange=Part(name=name),
        levels=[Level(up=Part(name="identity"))] * depth,
        synchronization=Part(name=policy, **options),
        fusion=Part(name="whole_model"),
    )
    assert timed(one) == trained(one)


CLASSES: dict[str, list[tuple[str, systems.System, Part]]] = {}
for _label, _one in RECIPE.found().items():
    for _carrier in _one.exchange:
        CLASSES.setdefault(systems.class_of(_one), []).append((_label, _one, _carrier))
SHARED = [named for named in CLASSES.values() if len(named) > 1]


@pytest.mark.slow
@pytest.mark.parametrize("named", SHARED, ids=lambda named: named[0][0])
def test_systems_of_one_class_give_the_same_model(named):
    """To the bit, whatever they are called and whatever carries them; but for sites, which add
    among themselves first, and so round elsewhere."""
    ends = {}
    for label, one, carrier in named:
        place = SITES if carrier.name == systems.SITES else FLAT
        scope = dict(codec_scope=one.codec_scope, rounds=8, evaluate_every=8)
        spec = training(one, carrier, place, **scope)
        try:
            curve = [row.value for row in trainer.train(spec) if row.metric == "test_loss"]
        except ValueError:  # this one cannot carry it, which other tests ask about
            continue
        ends[label, str(carrier), place is SITES] = curve
    flat = [rows for (*_, sites), rows in ends.items() if not sites]
    assert len(ends) > 1 and len(flat[0]) == 2 and flat[0][0] != flat[0][-1]
    assert all(rows == flat[0] for rows in flat)
    for (*_, sites), rows in ends.items():
        assert not sites or rows == pytest.approx(flat[0], rel=1e-3)


def test_local_sgd_by_any_name_is_one_class():
    """Of federated averaging only where all are asked, waited for, and count alike."""

    def of(name: str, **options) -> str:
        meeting = Part(name=name, local_iterations=3, **options)
        levels, carrier = [Level(up=Part(name="identity"))], Part(name="parameter_server")
        return systems.class_of(
            systems.System(exchange=carrier, levels=levels, synchronization=meeting)
        )

    assert of("fedavg") == of("mll_sgd") == of("bsp")
    for other in (dict(timeout_s=1.0), dict(fraction=0.5), dict(samples=(1, 2))):
        assert of("fedavg", **other) != of("bsp")
    assert of("mll_sgd", hub_rounds=2) != of("bsp")


@pytest.mark.parametrize("codec, alike", [("identity", True), ("fp16", True), ("top_k", False)])
def test_what_is_coded_value_by_value_is_of_one_class_together_or_apart(codec, alike):
    levels = [Level(up=Part(name=codec))]
    told = dict(exchange=Part(name="allgather"), levels=levels, fusion=Part(name="buckets"))
    apart, together = (systems.System(**told, codec_scope=one) for one in ("layer", "group"))
    assert (systems.class_of(apart) == systems.class_of(together)) == alike


def test_torch_casts_a_bucket_at_once_and_is_trained_as_half_precision():
    found, label = RECIPE.found(), "torch DDP + fp16"
    assert found[label].codec_scope == "group"
    assert systems.class_of(found[label]) == systems.class_of(found["fp16"])
    bench = Bench("matrix", "training", RECIPE, "desk")
    made = experiments.run(bench, RECIPE.training, label, 0.1, 1, 10, "training")
    assert made.codec_scope == "layer" and made.fusion == Part(name="layer_wise")
    made = experiments.run(bench, RECIPE.training, "Sketch-Fusion", 0.1, 1, 10, "training")
    assert made.codec_scope == "group" and made.fusion == RECIPE.fusion


def test_a_tree_of_workers_keeps_no_model_for_those_who_are_not_there():
    """A worker that meets alone would be its root, and sends nothing."""
    level = (Level(up=Part(name="identity")),)
    one = Method("tree", Part(name="k_nomial_tree"), level, Part(name="ssp", local_iterations=3))
    with pytest.raises(ValueError, match="the sum is with one of these, not with a server"):
        time_round(one, LAYERS, SITES, MACHINE, 256)


def test_local_steps_of_several_rounds_need_an_exchange_without_a_server():
    level, meeting = (Level(up=Part(name="power_sgd")),), Part(name="bsp", local_iterations=3)
    made = Method("central", Part(name="parameter_server"), level, meeting)
    with pytest.raises(ValueError, match="several rounds, and between them a server that keeps"):
        time_round(made, LAYERS, FLAT, MACHINE, 256)
    assert time_round(Method("ring", Part(name="ring"), level, meeting), LAYERS, FLAT, MACHINE, 256)


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [1e6, 5e7, 1e10])
def test_bounds_leave_out_no_winner(bandwidth):
    """Of all pairs of codecs, timed one by one."""
    where = LAYERS, Cluster("sites", 4, bandwidth, per_site=2, wan_latency=0.002, **LINKS), MACHINE
    methods = [
        method
        for label, one in BEYOND.items()
        if one.group == "sites"
        for method in methods_of(label, one)
    ]
    rounds = {}
    for method in methods:
        try:
            rounds[method.label] = time_round(method, *where, 256).round_s
        except ValueError:
            continue
        assert least_s(method, *where, 256) <= rounds[method.label] * (1 + 1e-9), method.label
    _, made = best_round(methods, *where, 256)
    assert made.round_s == min(rounds.values())


SMALL_SPACE = {
    "exchange": ("ring", "halving_doubling", "allgather", "parameter_server", "hips", "rat"),
    "codec": ("identity", "fp16", "sign_sgd", "top_k", "power_sgd"),
    "fusion": ("layer_wise", "whole_model", "layer_fusion"),
    "every": (1, 3),
}
CLUSTERS = {
    "fast": Cluster("flat", 4, 1e9, **LINKS),
    "slow": Cluster("flat", 8, 1e7, uneven=2.0, **LINKS),
    "sites": SITES,
}


def small_space(cluster):
    """Every system of it, by its four answers; of local steps all travels in one message."""
    for names in itertools.product(*SMALL_SPACE.values()):
        carrier, codec, grouping, every = names
        depth = 2 if carrier == "hips" else len(exchange.load(carrier).groups(cluster.topology))
        levels = (Level(up=Part(name="identity")),) * (depth - 1) + (Level(up=Part(name=codec)),)
        meeting = Part(name="bsp", local_iterations=every)
        group = Part(name=grouping if every == 1 else "whole_model")
        # What a server keeps is handed out in plans of its own.
        if every == 1 or exchange.load(carrier).whole:
            yield Method(str(names), Part(name=carrier), levels, meeting, group)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTERS)
def test_all_systems_of_a_small_space_simulated_one_by_one_have_the_same_winner(name, monkeypatch):
    """Every message is simulated as large as it is; nothing is interpolated or left out. Groups
    are those that the search found, for whoever searches may end elsewhere by the least change."""
    where = LAYERS, CLUSTERS[name], MACHINE, 256
    searched, current, plans, known = {}, "", {}, {}
    search = LayerFusion.__call__

    def kept(self, sizes, costs=None):
        if current not in searched:
            searched[current] = search(self, sizes, costs)
        return searched[current]

    def exact(system, sizes):
        key = system, tuple(sorted(sizes.items()))
        if any(sizes.values()) and key not in known:
            if system not in plans:
                plans[system] = in_pieces(system.exchange(system.topology), system.pieces)
            told = plans[system], system.topology, complete(plans[system], sizes)
            ran = simulate(*told, efficiency=system.efficiency)
            known[key] = ran.completion_s + system.overhead_s
        return known.get(key, 0.0)

    def exact_moving(system, nbytes):
        none = dict.fromkeys(system.plan.slots, 0.0)
        slots = system.transfers.simulated.slots
        return exact(system, none | dict(zip(slots, nbytes, strict=True)))

    @partial(np.vectorize, otypes=[float])
    def exact_alike(system, nbytes):
        return exact(system, dict.fromkeys(system.plan.slots, nbytes))

    ours, simulated = {}, {}
    with monkeypatch.context() as patch:
        patch.setattr(LayerFusion, "__call__", kept)
        for one in small_space(CLUSTERS[name]):
            current = one.label
            with contextlib.suppress(ValueError):  # what cannot run says why elsewhere
                ours[one] = time_round(one, *where).round_s
        patch.setattr(System, "communicate_s", exact)
        patch.setattr(System, "moving_s", exact_moving)
        patch.setattr(System, "alike_s", lambda *given: exact_alike(*given))
        for one in ours:
            current = one.label
            simulated[one] = time_round(one, *where).round_s
    assert len(simulated) > 40 and len(known) > 200
    for one, round_s in simulated.items():
        assert ours[one] == pytest.approx(round_s, rel=0.01), one.label
    winner, made = best_round(ours, *where)
    assert simulated[winner] == min(simulated.values()) == pytest.approx(made.round_s, rel=0.01)


@pytest.mark.parametrize("policy", ["asp", "ssp", "gssp"])
@pytest.mark.parametrize("codec", ["identity", "top_k"])
def test_sites_do_not_help_who_meets_alone(policy, codec):
    """By more than the share within which rounds tie."""
    plain, coded = Level(up=Part(name="identity")), Level(up=Part(name=codec))
    meeting = Part(name=policy, local_iterations=3)
    rounds = [
        time_round(Method("one", Part(name=name), levels, meeting), LAYERS, SITES, MACHINE, 256)
        for name, levels in (("parameter_server", (coded,)), ("hips", (plain, coded)))
    ]
    assert rounds[0].round_s <= (1 + TIE) * rounds[1].round_s
