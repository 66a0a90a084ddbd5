"""The space besides the rows of the matrix: what it refuses cannot be trained either, and bounds
lose no winner."""

import pytest
import torch

from slowlink.methods import exchange, synchronization
from slowlink.testbed.matrix import Cluster, Method, best_round, least_s, time_round
from slowlink.testbed.prices import among
from slowlink.testbed.training import device, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.pipeline import layers
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe
from slowlink.workflow.matrix import advice, systems
from slowlink.workflow.matrix.ranking import TIE
from slowlink.workflow.matrix.rounds import methods_of

RECIPE = advice.recipe()
BEYOND = systems.beyond(RECIPE)
MACHINE = device.profile(RECIPE.device)
LAYERS = layers(Part(name="lenet5"))
LINKS = dict(lan=1e9, latency=1e-4, overhead_s=1e-4, pieces=8, efficiency=0.95)
SITES = Cluster("sites", 4, 5e7, per_site=2, wan_latency=0.002, **LINKS)
FLAT = Cluster("flat", 4, 1e9, **LINKS)
SMALL = Part(name="lenet5", hidden=[12, 8])


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
