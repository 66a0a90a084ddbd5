"""The virtual-time trainer against plain torch, closed forms and itself."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch import nn

from slowlink.methods import aggregation, compression, exchange, synchronization
from slowlink.testbed.network import geo_sites, simulate
from slowlink.testbed.prices import load_system
from slowlink.testbed.results import frame
from slowlink.testbed.training import augmentation, datasets, learner, models, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe, Uneven
from tests import small

IDENTITY = Level(up=Part(name="identity"))


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    """In place of a data set on disk."""
    data = small.prototypes(360, 120, std=0.25)
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: data)
    monkeypatch.setattr(trainer, "profile", lambda name: small.DEVICE)
    return data


def recipe(**changes) -> Recipe:
    fields = dict(
        exchange=Part(name="hips", overlap=False),
        levels=(IDENTITY, IDENTITY),
        workers=(2, 1),
        rounds=6,
        evaluate_every=3,
        compute_s=0.25,
        networks={"one": Link(lan=1e9, wan=1e8)},
    )
    return small.recipe(**fields | changes)


def run(**changes):
    return frame(trainer.train(recipe(**changes)))


def make_learner(spec, data):
    model = models.make(spec.model.name, spec.seed, **spec.model.parameters)
    sites = trainer.topology(spec.workers, next(iter(spec.networks.values())))
    system = exchange.load(spec.exchange.name, **spec.exchange.parameters)
    return learner.Learner(spec, model, data, system, sites)


@pytest.mark.parametrize(
    ("name", "levels"), [("hips", (IDENTITY, IDENTITY)), ("parameter_server", (IDENTITY,))]
)
@pytest.mark.parametrize("optimizer_at", ["worker", "server"])
@pytest.mark.parametrize("fusion", ["layer_wise", "whole_model"])
def test_workers_equal_one_worker_with_all_of_their_batches(
    small_data, name, levels, optimizer_at, fusion
):
    spec = recipe(
        exchange=Part(name=name),
        levels=levels,
        momentum=0.9,
        weight_decay=1e-3,
        optimizer_at=optimizer_at,
        fusion=Part(name=fusion),
    )
    rows = frame(trainer.train(spec))

    # The oracle: torch's own optimizer on the joint batch of the same index streams.
    streams = make_learner(spec, small_data)._streams
    model = small.plainly_trained(spec, small_data, streams)
    ours = rows.query("metric == 'test_loss' and round == 6")["value"].item()
    assert ours == pytest.approx(small.loss(model, small_data), rel=1e-4)


@pytest.mark.parametrize("codec", ["power_sgd", "top_k", "dgc", "qsgd"])
def test_what_travels_together_teaches_the_same_where_codecs_see_layers(small_data, codec):
    given = dict(
        exchange=Part(name="ring" if codec == "power_sgd" else "allgather"),
        levels=(Level(up=Part(name=codec)),),
        workers=(3,),
        cluster="star",
    )

    def losses(**changes):
        rows = run(**given, **changes)
        return rows.query("metric == 'test_loss'")["value"].tolist()

    alone = losses()
    assert losses(fusion=Part(name="whole_model"), codec_scope="layer") == alone
    assert losses(fusion=Part(name="whole_model")) != alone


SPARSE, HALF = Level(up=Part(name="bisparse", lower_bound=0)), Part(name="fp16")


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("parameter_server", (IDENTITY,)),
        ("hips", (IDENTITY, IDENTITY)),
        ("hips", (IDENTITY, SPARSE)),
        ("hips", (IDENTITY, Level(up=Part(name="power_sgd")))),
        ("hips", (Level(up=Part(name="identity"), down=HALF), IDENTITY)),
        ("hips", (Level(up=HALF), IDENTITY)),
    ],
)
@pytest.mark.parametrize("fusion", ["layer_wise", "whole_model"])
@pytest.mark.parametrize("weights", [None, [0.5, 0.2, 0.3]])
def test_sums_without_bytes_are_those_of_bytes(
    small_data, monkeypatch, name, levels, fusion, weights
):
    spec = recipe(exchange=Part(name=name), levels=levels, fusion=Part(name=fusion))
    gradients = make_learner(spec, small_data).gradients(range(3))
    given = range(3), gradients, weights
    before = [[part.clone() for part in own] for own in gradients.values()]
    found, traffic = make_learner(spec, small_data).aggregate(*given)
    torch.testing.assert_close(list(gradients.values()), before, rtol=0, atol=0)
    monkeypatch.setattr(compression, "untouched", lambda codec: False)
    through_bytes, expected = make_learner(spec, small_data).aggregate(*given)
    assert all(torch.equal(a, b) for a, b in zip(found, through_bytes, strict=True))
    assert traffic == expected


ADDING = [name for name in compression.names() if compression.load(name).combine == "sum"]


@pytest.mark.parametrize("codec", ADDING)
def test_payloads_that_add_are_coded_by_workers_alone_on_any_number_of_levels(small_data, codec):
    """What learns is what one server would make of it, and what travels is what the price list
    says, round by round."""
    level, flat = Level(up=Part(name=codec)), Part(name="parameter_server")
    spec = recipe(exchange=Part(name="hips"), levels=(level, level), codec_scope="layer")
    made = make_learner(spec, small_data)
    alone = make_learner(spec.model_copy(update=dict(exchange=flat, levels=(level,))), small_data)
    system = load_system(spec.exchange, spec.levels, made.topology)
    assert system.passes and made.passes
    for _ in range(3):  # what a codec keeps of one round comes with the next
        gradients = made.gradients(range(3))
        found, traffic = made.aggregate(range(3), gradients)
        expected, _ = alone.aggregate(range(3), gradients)
        for one, other in zip(found, expected, strict=True):
            # Sites add first, so that sums round elsewhere: float16 at 5e-4 of a value.
            near = 1e-3 if codec == "fp16" else 1e-4
            torch.testing.assert_close(one, other, rtol=near, atol=near * other.abs().max().item())
    told = [Counter() for _ in traffic.rounds]
    for parameter in made.parameters:
        for number, sizes in enumerate(system.sizes(parameter.shape)):
            told[number].update(sizes)
    for sizes, expected in zip(traffic.rounds, told, strict=True):
        for slot, nbytes in sizes.items():
            sent = nbytes.values() if isinstance(nbytes, dict) else [nbytes]
            assert set(sent) == {expected[slot]}
    kept = [node for (_, _, node), state in made.codec.states().items() if state]
    assert set(kept) <= set(made.nodes)


def last_model(spec, **changes):
    """The server's parameters at the end of a run, and its rows."""
    spec = spec.model_copy(update=changes)
    policy = spec.policy()
    session = trainer._Session(spec, lambda message: None, trainer.load_dataset)
    course = trainer._event_driven if spec.uneven or spec.seconds else trainer._lockstep
    rows = frame(course(session, policy))
    return session.learner.server.parameters, rows


@pytest.mark.parametrize("uneven", [None, Uneven(highest=1.5)])
def test_a_server_that_keeps_the_model_steps_by_what_it_has_decoded_itself(small_data, uneven):
    """By hand: one step by the mean of the sites' sums, each rounded to float16 on its way up and
    once more in a site's server; nothing is rounded on a way back that no gradient takes."""
    levels = (Level(up=HALF), IDENTITY)
    spec = recipe(levels=levels, optimizer_at="server", rounds=1, evaluate_every=1, uneven=uneven)
    trained = make_learner(spec, small_data)
    gradients = trained.gradients(range(3))

    def third(rank, i):
        return (gradients[rank][i] * (1 / 3)).half()

    found, rows = last_model(spec)
    for i, (before, after) in enumerate(zip(trained.server.parameters, found, strict=True)):
        total = (third(0, i) + third(1, i)).float() + third(2, i).float()
        assert torch.equal(after, torch.sub(before, total, alpha=spec.lr))
    # Up and back between sites: the sum and the model, both in float32.
    sent = rows.query("metric == 'bytes_sent' and round == 1")["value"].item()
    assert sent == 2 * 4 * sum(trained.sizes)


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("hips", (Level(up=HALF, down=HALF), Level(up=HALF, down=HALF))),
        ("hips", (Level(up=Part(name="identity"), down=HALF), SPARSE)),
        ("parameter_server", (Level(up=HALF, down=Part(name="int8_blocks")),)),
    ],
)
def test_optimizers_at_uneven_workers_do_what_those_of_even_ones_do(name, levels):
    """To the bit: what each of them gets is the sum, whenever it comes."""
    spec = recipe(exchange=Part(name=name), levels=levels, momentum=0.9)
    expected, _ = last_model(spec)
    for changes in (dict(uneven=Uneven(highest=1.5)), dict(rounds=None, seconds=6 * 0.25 + 0.2)):
        found, rows = last_model(spec, **changes)
        assert rows["round"].max() == 6
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("rat", (2, 1)),
        ("rat", (2, 2)),
        ("plink", (2, 2)),
        ("geng_hips", (2, 2)),
        ("blue_connect", (2, 2)),
        ("rat", (3, 2)),
        ("parameter_hub", (2, 2)),
        ("parameter_hub", (1, 3)),
    ],
)
@pytest.mark.parametrize("codec", ["identity", "fp16"])
@pytest.mark.parametrize("uneven", [None, Uneven(highest=1.0)])
def test_whoever_sends_for_a_site_sends_as_much(name, workers, codec, uneven):
    """In whichever slot, a message is the whole vector in the one codec of all levels."""
    level = Level(up=Part(name=codec))
    spec = recipe(
        exchange=Part(name=name), levels=(level, level), workers=workers, uneven=uneven, rounds=3
    )
    rows = frame(trainer.train(spec))
    sites = trainer.topology(workers, spec.networks["one"])
    numel = models.count(models.gradient_shapes(models.make("lenet5", hidden=(20, 16))))
    size = numel * (4 if codec == "identity" else 2)
    expected = 0.25 + simulate(exchange.load(name)(sites), sites, size).completion_s
    assert round_time(rows) == pytest.approx(expected, rel=1e-6)
    sent = rows.query("metric == 'bytes_sent' and round == 3")["value"].item()
    assert sent == pytest.approx(3 * 2 * size, rel=1e-12)  # sums of thirds


@pytest.mark.parametrize(
    ("name", "workers", "vectors"),
    [
        ("parameter_server", 4, 2),  # there and back
        ("ring", 4, 4 * 3 / 4),  # three quarters sent twice, and as much received
        ("halving_doubling", 8, 4 * 7 / 8),
        ("rat", 4, 4 * 3 / 4),
        ("butterfly", 8, 2 * 3),  # a vector each way, log2 of the workers times
        ("allgather", 8, 2 * 7),  # the own one to all others, and all of theirs
        ("k_nomial_tree", 8, 2 * 2 * 7 / 8),  # all but the root have a parent, there and back
    ],
)
@pytest.mark.parametrize("uneven", [None, Uneven(highest=1.0)])
def test_bytes_are_what_a_worker_really_sends_and_receives(name, workers, vectors, uneven):
    spec = recipe(
        exchange=Part(name=name), levels=(IDENTITY,), workers=(workers,), cluster="star", rounds=1
    ).model_copy(update=dict(uneven=uneven, evaluate_every=1))
    rows = frame(trainer.train(spec))
    size = 4 * models.count(models.gradient_shapes(models.make("lenet5", hidden=(20, 16))))
    sent = rows.query("metric == 'bytes_sent' and round == 1")["value"].item()
    assert sent == pytest.approx(vectors * size, rel=1e-12)


@pytest.mark.parametrize("codec", compression.names())
@pytest.mark.parametrize("exchanged", ["parameter_server", "hips"])
def test_gradients_cost_workers_that_are_told_to_be_uneven_as_much(codec, exchanged):
    """Uneven by nothing, or told to run for some seconds, they bring the same gradients: the answer
    is the sum in the codec's own form, and not the model."""
    levels = (*([IDENTITY] if exchanged == "hips" else []), Level(up=Part(name=codec)))
    spec = recipe(exchange=Part(name=exchanged), levels=levels, rounds=3, evaluate_every=3)
    even = frame(trainer.train(spec))
    uneven = frame(trainer.train(spec.model_copy(update=dict(uneven=Uneven(highest=1.0)))))
    for metric in ("test_loss", "bytes_sent", "mean_round_time"):
        of = [rows.loc[rows["metric"] == metric, "value"].to_list() for rows in (even, uneven)]
        assert of[1] == pytest.approx(of[0], rel=1e-9)


def test_a_second_rounding_does_not_draw_what_the_first_one_drew(small_data):
    """A model that comes down over two levels is rounded twice, and is the model in the mean."""
    level = Level(up=Part(name="identity"), down=Part(name="qsgd", bits=4))
    trained = make_learner(recipe(levels=(level, level), optimizer_at="server"), small_data)
    (number, largest) = max(enumerate(trained.server.parameters), key=lambda its: its[1].numel())
    total = sum(trained.broadcast(trained.server)[0].parameters[number] for _ in range(300))
    # Rounded by the same draws, the mean is half as large again.
    assert float((total / 300).norm() / largest.norm()) == pytest.approx(1, abs=0.05)


def test_runs_of_other_seeds_ask_other_clients():
    """Unless the recipe says which."""
    drawn = Part(name="fedavg", fraction=0.5)
    policies = [recipe(synchronization=drawn, seed=seed).policy() for seed in (1, 1, 2)]
    assert policies[0].seed == policies[1].seed != policies[2].seed
    same = Part(name="fedavg", fraction=0.5, seed=3)
    assert {recipe(synchronization=same, seed=seed).policy().seed for seed in (1, 2)} == {3}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_not_passed_on(small_data, bad):
    made = make_learner(recipe(), small_data)
    gradients = made.gradients(range(3))
    gradients[1][2][0, 0] = bad
    with pytest.raises(ValueError, match=r"sum of tensor 2: \d+ of \d+ values are NaN or infinite"):
        made.aggregate(range(3), gradients)


def test_one_seed_gives_bit_equal_rows_and_another_does_not():
    first, second, other = run(), run(), run(seed=8)
    assert first.equals(second)
    assert not first["value"].equals(other["value"])


@pytest.mark.parametrize("uneven", [None, Uneven(highest=1.5)])
def test_runs_by_turns_are_those_one_after_the_other_to_the_bit(uneven):
    """As when rates are tried: each goes on where it was, whatever ran in between."""
    levels = (IDENTITY, Level(up=Part(name="qsgd")))
    model = Part(name="resnet8", width=4, in_channels=1)
    options = dict(levels=levels, model=model, augment=True, uneven=uneven, evaluate_every=2)
    runs = [recipe(**options, lr=lr) for lr in (0.05, 0.1)]
    whole = [list(trainer.train(one)) for one in runs]
    turns = list(zip(*map(trainer.train, runs), strict=True))
    assert [list(rows) for rows in zip(*turns, strict=True)] == whole


@pytest.mark.parametrize("codec", ["bisparse", "power_sgd"])
def test_a_run_goes_on_from_its_checkpoint_to_the_bit(codec, tmp_path):
    """Codecs with residuals and momentum, an optimizer with momentum, augmentation, BatchNorm."""
    levels = (IDENTITY, Level(up=Part(name=codec)))
    model = Part(name="resnet8", width=4, in_channels=1)
    options = dict(levels=levels, model=model, momentum=0.9, augment=True, evaluate_every=2)
    whole = list(trainer.train(recipe(**options)))
    begun, checkpoint = [], tmp_path / "run"
    for row in trainer.train(recipe(**options), checkpoint=checkpoint):
        begun.append(row)
        if row.round == 4:
            break
    assert checkpoint.is_file() and begun == whole[: len(begun)]
    seen = []
    again = list(trainer.train(recipe(**options), seen.append, checkpoint=checkpoint))
    assert again == whole
    assert len(seen) == 1  # only the last evaluation was left to make


def test_a_run_that_looks_at_the_clock_makes_no_checkpoint(tmp_path):
    mixed = recipe(synchronization=Part(name="mixed"), optimizer_at="server")
    assert list(trainer.train(mixed, checkpoint=tmp_path / "run")) == list(trainer.train(mixed))
    assert not (tmp_path / "run").exists()


def test_training_learns():
    accuracy = run(rounds=120, evaluate_every=120, momentum=0.9, lr=0.03).query(
        "metric == 'test_accuracy'"
    )
    assert accuracy["value"].iloc[-1] > 90


def test_virtual_time_is_compute_plus_simulated_exchange_on_every_network():
    networks = {"slow": Link(lan=1e7, wan=1e6), "fast": Link(lan=1e9, wan=1e8, wan_latency=0.01)}
    rows = run(networks=networks)
    spec = recipe(networks=networks)
    numel = models.count(models.gradient_shapes(models.make("lenet5", hidden=(20, 16))))
    for case, link in networks.items():  # noqa: B007 (the query below names it)
        sites = trainer.topology(spec.workers, link)
        plan = exchange.load("hips", overlap=False)(sites)
        expected = 0.25 + simulate(plan, sites, 4 * numel).completion_s
        times = rows.query("case == @case and metric == 'test_accuracy'").set_index("round")
        assert times.loc[6, "time_s"] == pytest.approx(6 * expected)
    same = rows.query("metric == 'test_loss'").pivot(index="round", columns="case", values="value")
    assert same["slow"].equals(same["fast"])


def test_a_stand_in_keeps_the_communication_time_of_the_model_it_stands_for():
    rows = run(stands_for=Part(name="resnet18_v1", in_channels=1))
    values = models.count(
        models.gradient_shapes(models.make("resnet18_v1", in_channels=1), norm=False)
    )
    sites = geo_sites([2, 1], lan=1e9, wan=1e8)
    expected = (
        0.25 + simulate(exchange.load("hips", overlap=False)(sites), sites, 4 * values).completion_s
    )
    mean = rows.query("metric == 'mean_round_time'")["value"].item()
    assert mean == pytest.approx(expected, rel=1e-9)
    sent = rows.query("metric == 'bytes_sent' and round == 6")["value"].item()
    assert sent == pytest.approx(6 * 2 * 4 * values)


def test_bytes_of_every_slot_follow_the_formats(small_data):
    bisparse = Part(name="bisparse", ratio=0.1, lower_bound=1000, dense="fp16", parties=2)
    spec = recipe(levels=(Level(up=Part(name="fp16")), Level(up=bisparse)))
    trained = make_learner(spec, small_data)
    members = range(3)
    gradients = {rank: trained.gradient(rank) for rank in members}
    _, traffic = trained.aggregate(members, gradients)
    sizes = [p.numel() for p in trained.parameters]
    dense = sum(n for n in sizes if n < 1000)
    pairs = sum(n // 10 for n in sizes if n >= 1000)
    (sent,) = traffic.rounds
    assert set(sent["push/0"].values()) == {2 * sum(sizes)}
    assert set(sent["push/1"].values()) == {2 * dense + 8 * pairs}
    assert sent["pull/1"] == 2 * dense + 8 * 2 * pairs
    assert sent["pull/0"] == 2 * sum(sizes)
    assert len(sent["push/0"]) == 3 and len(sent["push/1"]) == 2


@pytest.mark.parametrize("name", compression.names())
def test_every_codec_trains_between_sites(name):
    rows = run(levels=(IDENTITY, Level(up=Part(name=name))), rounds=4, evaluate_every=2)
    assert rows["value"].map(math.isfinite).all()
    assert (rows.query("metric == 'bytes_sent' and round > 0")["value"] > 0).all()


def test_mixed_with_one_site_equals_bsp_with_the_optimizer_at_the_server():
    common = dict(workers=(3,), optimizer_at="server")
    mixed = run(synchronization=Part(name="mixed"), **common)
    bsp = run(synchronization=Part(name="bsp"), **common)
    for metric in ("test_loss", "test_accuracy"):
        a, b = (rows.loc[rows["metric"] == metric, "value"].to_list() for rows in (mixed, bsp))
        assert a == b
    a, b = (rows.query("metric == 'mean_round_time'")["value"].item() for rows in (mixed, bsp))
    assert a == pytest.approx(b, rel=0.2)
    assert mixed.query("metric == 'staleness'")["value"].item() == 0


def test_mixed_sites_do_not_wait_and_their_staleness_is_counted():
    rows = run(
        synchronization=Part(name="mixed"), workers=(1, 1, 1), optimizer_at="server", rounds=30
    )
    # Sites of one speed take turns: while one computes, each of the two others updates once.
    assert rows.query("metric == 'staleness'")["value"].item() == pytest.approx(2, abs=0.25)


def test_a_slow_site_holds_up_all_but_under_mixed_synchronization():
    """By hand: on links that take no time, full synchronization waits for the site that takes three
    seconds; under mixed, sites do one iteration a second and a third of one."""
    still = {"one": Link(lan=1e15, wan=1e15)}
    common = dict(networks=still, workers=(2, 2), optimizer_at="server", rounds=60)
    common |= dict(evaluate_every=60, compute_s=1.0, uneven=Uneven(sites=[1, 3]))
    for policy, seconds in (("bsp", 3.0), ("mixed", 2 / (1 + 1 / 3))):
        rows = run(synchronization=Part(name=policy), **common)
        mean = rows.query("metric == 'mean_round_time'")["value"].item()
        assert mean == pytest.approx(seconds, rel=0.02)


def test_mixed_moves_the_bytes_of_bsp_at_equal_work():
    common = dict(workers=(1, 1), optimizer_at="server", rounds=6, evaluate_every=6)
    mixed = run(synchronization=Part(name="mixed"), **common)
    bsp = run(**common)
    sent = [r.query("metric == 'bytes_sent' and round == 6")["value"].item() for r in (mixed, bsp)]
    assert sent[0] == pytest.approx(sent[1])


@pytest.mark.parametrize("inner", ["identity", "fp16"])
def test_halves_are_the_same_coded_together_or_by_group(monkeypatch, inner):
    levels = tuple(Level(up=Part(name=name)) for name in (inner, "fp16"))
    together = run(levels=levels, fusion=Part(name="layer_wise"))
    monkeypatch.setattr(learner.Learner, "_coded", property(lambda one: one.groups))
    assert together.equals(run(levels=levels, fusion=Part(name="layer_wise")))


def test_the_server_keeps_what_rounding_on_the_way_down_would_lose():
    # Steps far below half a unit of float16 must still add up at the server.
    down = Level(up=Part(name="identity"), down=Part(name="fp16"))
    rows = run(
        levels=(down, down), optimizer_at="server", lr=1e-5, rounds=40, evaluate_every=40
    ).query("metric == 'test_loss'")
    whole = run(optimizer_at="server", lr=1e-5, rounds=40, evaluate_every=40)
    whole = whole.query("metric == 'test_loss'")["value"].to_list()
    ours = rows["value"].to_list()
    assert whole[1] < whole[0]
    assert ours[1] - ours[0] == pytest.approx(whole[1] - whole[0], rel=0.05)


def test_running_statistics_travel_with_replicas_only(small_data, monkeypatch):
    def tiny(**_):
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))

    monkeypatch.setitem(models.MODELS, "tiny", tiny)
    trained = make_learner(recipe(model=Part(name="tiny"), workers=(1, 1)), small_data)
    trained.replicas[0] = trained.update(trained.replicas[0], trained.gradient(0))
    before = [buffer.clone() for buffer in trained.replicas[0].buffers]
    trained.gradient(1)
    assert all(map(torch.equal, before, trained.replicas[0].buffers))
    assert not torch.equal(before[0], trained.replicas[1].buffers[0])


def test_a_policy_that_needs_more_than_the_trainer_has_is_refused(monkeypatch):
    mixed = type(synchronization.load("mixed"))
    monkeypatch.setattr(mixed, "continues_after_upload", True)
    with pytest.raises(ValueError, match="mixed: workers that compute on send changes"):
        run(synchronization=Part(name="mixed"), optimizer_at="server")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(synchronization=Part(name="mixed")), "optimizer_at: server"),
        (
            dict(
                synchronization=Part(name="mixed"),
                optimizer_at="server",
                networks={"a": Link(lan=1, wan=1), "b": Link(lan=1, wan=1)},
            ),
            "one network a run",
        ),
        (dict(levels=(IDENTITY,)), "hips has 2 levels"),
        (dict(model=Part(name="lenet6")), "no model 'lenet6'"),
        (dict(exchange=Part(name="hips", shards=3)), "unknown parameter 'shards'"),
    ],
)
def test_nonsense_is_refused_with_its_reason(changes, said):
    with pytest.raises(ValueError, match=said):
        run(**changes)


def test_a_codec_that_an_exchange_cannot_carry_is_refused():
    class Ring(exchange.Exchange):
        combines = frozenset({"sum"})

    with pytest.raises(ValueError, match="cannot carry bisparse: its payloads combine by merge"):
        learner.check_pair(Ring(), compression.load("bisparse"))
    learner.check_pair(Ring(), compression.load("identity"))


def test_divergence_is_a_failed_row_with_its_reason():
    last = run(lr=1e6, rounds=9).iloc[-1]
    assert last["status"] == "failed" and "diverged with lr 1000000.0" in last["reason"]


def test_seeds_fan_out_by_name():
    seeds = {learner.fan_out(seed, name) for seed in range(50) for name in ("split", "sampler 1")}
    assert len(seeds) == 100
    assert learner.fan_out(1, "split") == learner.fan_out(1, "split")


# --- overlap -------------------------------------------------------------------------------------


def overlapping(**changes):
    defaults = dict(
        exchange=Part(name="ring"), levels=(IDENTITY,), workers=(3,), overlap=True, batch=8
    )
    return defaults | changes


def round_time(rows):
    return rows.query("metric == 'mean_round_time'")["value"].item()


def test_overlap_without_compression_on_an_infinite_network_takes_the_computing_time():
    endless = {"one": Link(lan=1e30, wan=1e30)}
    rows = run(**overlapping(networks=endless))
    assert round_time(rows) == pytest.approx(0.25)
    # By operations of the device, for another batch than the one that trains.
    rows = run(**overlapping(networks=endless, compute_s=None, timed_batch=100))
    model = models.make("lenet5", hidden=(20, 16))
    assert round_time(rows) == pytest.approx(
        models.flops_per_sample(model, (1, 28, 28)) * 100 / 1e9
    )


def test_overlap_times_the_whole_model_by_formula_and_leaves_learning_alone():
    network = {"one": Link(lan=1e8, wan=1e8, lan_latency=1e-3, efficiency=0.5)}
    numel = models.count(models.gradient_shapes(models.make("lenet5", hidden=(20, 16))))
    spec = overlapping(networks=network, fusion=Part(name="whole_model"), overhead_s=0.125)
    for workers in (None, 5):
        rows = run(**spec, timed_workers=workers)
        n = workers or 3
        expected = 2 * (n - 1) * (4 * numel / n * 8 / 0.5e8 + 2e-3)
        assert round_time(rows) == pytest.approx(0.25 + 0.125 + expected, rel=1e-6)
    plain = run(**spec | dict(overlap=False, overhead_s=0.0))
    for metric in ("test_loss", "bytes_sent"):
        one, other = (r.loc[r["metric"] == metric, "value"].to_list() for r in (rows, plain))
        assert one == other
    layer_wise = run(**spec | dict(fusion=Part(name="layer_wise"), overhead_s=0.0))
    assert 0.25 < round_time(layer_wise) < round_time(plain)


def test_a_fusion_that_weighs_costs_groups_tensors_of_the_stand_in():
    slow = {"one": Link(lan=1e7, wan=1e7, lan_latency=5e-3)}
    part = Part(name="layer_fusion")
    spec = overlapping(networks=slow, fusion=part, stands_for=Part(name="lenet5"))
    whole, layer_wise = (
        round_time(run(**spec | dict(fusion=Part(name=n)))) for n in ("whole_model", "layer_wise")
    )
    session = trainer._Session(recipe(**spec), lambda message: None, trainer.load_dataset)
    groups = session.learner.groups
    assert sorted(sum(groups, [])) == list(range(10)) and 1 < len(groups) < 10
    assert round_time(run(**spec)) <= min(whole, layer_wise)
    with pytest.raises(ValueError, match="layer_fusion weighs costs: it needs overlap: true"):
        run(**spec | dict(overlap=False))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (overlapping(workers=(1, 1), timed_workers=4), "timed_workers needs workers of one site"),
        (overlapping(optimizer_at="server"), "optimizer_at: worker"),
        (dict(timed_workers=4), "need overlap: true"),
        (overlapping(levels=(Level(up=Part(name="bisparse")),)), "ring cannot carry bisparse"),
    ],
)
def test_what_cannot_overlap_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        run(**changes)


# --- codecs, learning rates and text -------------------------------------------------------------


def test_every_party_knows_its_number_and_shares_the_seed(small_data, monkeypatch):
    identity = type(compression.load("identity"))

    @dataclasses.dataclass
    class Drawing(identity):
        seed: int = 0
        party: int = 0

    def load(name, **parameters):
        return Drawing(**parameters)

    monkeypatch.setattr(learner.compression, "load", load)
    trained = make_learner(recipe(exchange=Part(name="hips")), small_data)
    codecs = [trained.codec("up", 0, node, Part(name="drawing")) for node in (*trained.nodes, -1)]
    assert [codec.party for codec in codecs] == [0, 1, 2, 3]
    assert len({codec.seed for codec in codecs}) == 1
    fixed = trained.codec("up", 1, 0, Part(name="drawing", party=9, seed=5))
    assert (fixed.party, fixed.seed) == (9, 5)


def test_learning_rates_follow_their_steps(small_data):
    spec = recipe(lr=0.4, lr_steps={2: 0.5, 4: 0.1})
    assert [spec.lr_at(update) for update in range(6)] == pytest.approx(
        [0.4, 0.4, 0.2, 0.2, 0.02, 0.02]
    )
    trained = make_learner(spec, small_data)
    ones = [torch.ones_like(p) for p in trained.parameters]
    replica = trained.server
    for _ in range(4):
        replica = trained.update(replica, ones)
    moved = trained.server.parameters[0] - replica.parameters[0]
    assert moved.flatten().tolist() == pytest.approx([1.2] * moved.numel(), rel=1e-5)


def test_clipping_is_torchs(small_data):
    trained = make_learner(recipe(), small_data)
    gradient = trained.gradient(0)
    parameters = [nn.Parameter(torch.zeros_like(g)) for g in gradient]
    for parameter, part in zip(parameters, gradient, strict=True):
        parameter.grad = part.clone()
    length = float(nn.utils.clip_grad_norm_(parameters, 0.01))
    for ours, parameter in zip(learner.clipped(gradient, 0.01), parameters, strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-3, atol=0)
    assert all(map(torch.equal, learner.clipped(gradient, 2 * length), gradient))


def test_clipping_does_not_depend_on_the_order_in_memory():
    """Torch's norm does: the transposed gradient has the same values in another order."""
    torch.manual_seed(0)
    gradient = [torch.randn(30, 150) for _ in range(20)]
    turned = [part.T.contiguous().T for part in gradient]
    norm = torch.linalg.vector_norm
    assert not all(torch.equal(norm(a), norm(b)) for a, b in zip(gradient, turned, strict=True))
    ours, other = learner.clipped(gradient, 0.5), learner.clipped(turned, 0.5)
    assert all(map(torch.equal, ours, other))


@pytest.fixture
def small_text(monkeypatch):
    """A text whose next word follows from the word before it, nine times of ten."""
    generator = torch.Generator().manual_seed(0)
    tokens = [0]
    for noise in torch.rand(2400, generator=generator).tolist():
        tokens.append((tokens[-1] * 3 + 1) % 11 if noise < 0.9 else int(noise * 1e6) % 11)
    x, y = datasets.windows(torch.tensor(tokens), 8)
    data = Dataset("text", x[:240], y[:240], x[240:], y[240:], 11, (8,))
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: data)
    return data


TEXT = overlapping(
    model=Part(name="lstm", hidden=16), batch=8, lr=2.0, momentum=0.9, clip_norm=0.5, rounds=120
)


def test_a_language_model_learns(small_text):
    rows = run(**TEXT, evaluate_every=120)
    first, last = rows.query("metric == 'test_loss'")["value"]
    assert first == pytest.approx(math.log(11), abs=0.2) and last < first - 1
    perplexity = rows.query("metric == 'test_perplexity'")["value"].to_list()
    assert perplexity == pytest.approx([math.exp(first), math.exp(last)])
    before, after = rows.query("metric == 'test_accuracy'")["value"]
    assert before < 30 and 75 < after < 95


def test_text_and_images_do_not_mix(small_text):
    with pytest.raises(ValueError, match="only images are augmented"):
        run(**TEXT, augment=True, evaluate_every=1)
    wrong = TEXT | dict(model=Part(name="lstm", words=12))
    with pytest.raises(ValueError, match="words is 12, text has 11"):
        run(**wrong, evaluate_every=1)


@pytest.mark.parametrize(
    "changes",
    [dict(sampler="sequential"), dict(augment=True), dict(augment=True, colour=0.3)],
    ids=["sequential", "augment", "colour"],
)
def test_samplers_and_augmentation_reach_training(changes):
    plain, rows = run(), run(**changes)
    assert (rows["status"] == "ok").all()
    loss = [table[table["metric"] == "test_loss"]["value"] for table in (plain, rows)]
    assert loss[0].iloc[0] == loss[1].iloc[0], "the same model begins"
    assert (loss[0].iloc[1:] != loss[1].iloc[1:]).all(), "it sees other batches"
    assert loss[1].iloc[-1] < loss[1].iloc[0]


def test_a_batch_is_augmented_by_the_workers_own_generator(small_data):
    spec = recipe(augment=True, colour=0.3)
    same = recipe()
    (images,), (labels,) = make_learner(spec, small_data)._batches([1])
    (plain,), (unchanged,) = make_learner(same, small_data)._batches([1])
    generator = torch.Generator().manual_seed(learner.fan_out(spec.seed, "augment 1"))
    raw = (plain * 0.25 + 0.5).mul(255).round().to(torch.uint8)
    expected = augmentation.augment(raw, generator, 0.3)
    torch.testing.assert_close(images, (expected / 255 - 0.5) / 0.25)
    assert torch.equal(labels, unchanged)


def test_colour_without_augment_is_refused():
    with pytest.raises(ValueError, match="colour needs augment: true"):
        recipe(colour=0.1)


@pytest.mark.parametrize("codec", ["identity", "fp16"])
@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "norm_bound"])
def test_a_server_may_have_another_rule_than_the_mean(small_data, codec, rule):
    """It combines the members' whole vectors as it decodes them."""
    spec = recipe(
        exchange=Part(name="parameter_server"),
        levels=(Level(up=Part(name=codec)),),
        workers=(5,),
        aggregation=Part(name=rule),
    )
    made = make_learner(spec, small_data)
    gradients = {rank: made.gradient(rank) for rank in range(5)}
    got, traffic = made.aggregate(list(range(5)), gradients)
    one = compression.load(codec)
    vectors = torch.stack([torch.cat([g.flatten() for g in gradients[r]]) for r in range(5)])
    decoded = one.decompress(one.compress(vectors, "all"))
    expected = aggregation.load(rule)(decoded, [0.2] * 5)
    torch.testing.assert_close(torch.cat([part.flatten() for part in got]), expected)
    mean, plain = make_learner(
        spec.model_copy(update=dict(aggregation=Part(name="mean"))), small_data
    ).aggregate(list(range(5)), gradients)
    assert [r["push/0"] for r in traffic.rounds] == [r["push/0"] for r in plain.rounds]
    assert not frame(trainer.train(spec))["value"].isna().any()


@pytest.mark.parametrize(
    "changes",
    [
        dict(exchange=Part(name="ring"), workers=(3,), levels=(IDENTITY,)),
        dict(exchange=Part(name="hips")),
        dict(
            exchange=Part(name="parameter_server"),
            levels=(Level(up=Part(name="power_sgd")),),
        ),
    ],
)
def test_a_rule_needs_a_server_that_has_all_values(small_data, changes):
    with pytest.raises(ValueError, match="aggregation: median needs a server that has every"):
        make_learner(recipe(aggregation=Part(name="median"), **changes), small_data)
