"""Rounds with samples of their own, models and changes, codecs by worker and spoiled workers, each
against a loop that knows nothing of policies, meetings and messages."""

import copy
from itertools import islice

import pytest
import torch
from torch import nn

from slowlink.methods import aggregation, compression, synchronization
from slowlink.testbed.results import frame
from slowlink.testbed.training import datasets, models, splits, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.learner import Codecs, fan_out, spoil
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe, Spoiled
from tests import small

BATCH, SUBSET, STEPS = 8, 20, 6
"""A round has batches of 8, 8 and 4 samples, twice."""


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    """242 images, so that shares are uneven."""
    data = small.prototypes(242, 60)
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: data)
    monkeypatch.setattr(trainer, "profile", lambda name: small.DEVICE)
    return data


def fedavg(**parameters) -> Part:
    return Part(name="fedavg", **(dict(local_iterations=STEPS) | parameters))


def up(codec, **parameters) -> tuple[Level]:
    return (Level(up=Part(name=codec, **parameters)),)


def recipe(rounds=1, steps=STEPS, **changes) -> Recipe:
    """So many rounds of federated averaging, each judged."""
    fields = dict(
        synchronization=fedavg(),
        fusion=Part(name="whole_model"),
        workers=(3,),
        cluster="star",
        batch=BATCH,
        momentum=0.9,
        momentum_lasts="round",
        rounds=rounds * steps,
        evaluate_every=steps,
        compute_s=0.25,
        networks={"one": Link(lan=1e7, wan=1e7)},
    )
    return small.recipe(**fields | changes)


def stepwise(rounds=1, **changes) -> Recipe:
    """Workers whose gradients travel, one by one."""
    given = dict(synchronization=Part(name="bsp"), momentum_lasts="run", momentum=0.0)
    return recipe(rounds, 1, **(given | changes))


def train(spec):
    """The server's parameters in the end, and the rows."""
    parameters = spec.synchronization.parameters
    policy = synchronization.load(spec.synchronization.name, **parameters)
    session = trainer._Session(spec, lambda message: None, trainer.load_dataset)
    course = trainer._lockstep if policy.travels == "gradient" else trainer._event_driven
    rows = frame(course(session, policy))
    return session.learner.server.parameters, rows


def make_learner(spec, data):
    session = trainer._Session(spec, lambda message: None, lambda *args, **limits: data)
    return session.learner


def generator(spec, name):
    return torch.Generator().manual_seed(fan_out(spec.seed, name))


def dealt(spec, data, name="split"):
    how, count = spec.split, sum(spec.workers)
    return splits.split(how.name, data.train_y, count, generator(spec, name), **how.parameters)


class Clients:
    """Local training by torch's own optimizer, one a worker."""

    def __init__(self, spec, data):
        self.spec, self.data, self.round = spec, data, 0
        self.model = models.make(spec.model.name, spec.seed, **spec.model.parameters)
        self.own = [copy.deepcopy(self.model) for _ in range(sum(spec.workers))]
        self.optimizers = [self.optimizer(model) for model in self.own]

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), self.spec.lr, self.spec.momentum)

    def server(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def samples(self, rank):
        share = dealt(self.spec, self.data)[rank]
        draw = generator(self.spec, f"subset {rank} {self.round}")
        return share[torch.randperm(len(share), generator=draw)][: self.spec.subset]

    def batches(self, rank):
        some = self.samples(rank)
        draw = generator(self.spec, f"order {rank} {self.round}")
        for _ in range(STEPS):
            yield from some[torch.randperm(len(some), generator=draw)].split(BATCH)

    def train(self):
        """A round of all; their models."""
        self.round += 1
        for rank, model in enumerate(self.own):
            with torch.no_grad():
                for own, parameter in zip(model.parameters(), self.server(), strict=True):
                    own.copy_(parameter)
            if self.spec.momentum_lasts == "round":
                self.optimizers[rank] = self.optimizer(model)
            for index in islice(self.batches(rank), STEPS):
                self.optimizers[rank].zero_grad()
                scores = model(self.data.prepare(self.data.train_x[index]))
                nn.functional.cross_entropy(scores, self.data.train_y[index]).backward()
                self.optimizers[rank].step()
        return [[p.detach().clone() for p in model.parameters()] for model in self.own]

    @torch.no_grad()
    def take(self, parameters):
        for own, parameter in zip(self.model.parameters(), parameters, strict=True):
            own.copy_(parameter)


def less(one, other):
    return [a - b for a, b in zip(one, other, strict=True)]


def plus(one, other):
    return [a + b for a, b in zip(one, other, strict=True)]


def mean(members, weights):
    """Added in the order of the members."""
    total = [weights[0] * part for part in members[0]]
    for member, weight in zip(members[1:], weights[1:], strict=True):
        total = plus(total, [weight * part for part in member])
    return total


def flat(parts):
    return torch.cat([part.flatten() for part in parts])


def same(one, other):
    return all(map(torch.equal, one, other))


# Rounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [None, [10, 20, 50]], ids=["alike", "by samples"])
@pytest.mark.parametrize("sends", ["change", "weights", "weights_first"])
@pytest.mark.parametrize("lasts", ["run", "round"])
def test_rounds_are_federated_averaging(small_data, sends, samples, lasts):
    """To the bit, with torch's optimizer made anew each round or going on."""
    policy = fedavg(samples=samples) if samples else fedavg()
    given = dict(synchronization=policy, sends=sends, momentum_lasts=lasts)
    spec = recipe(rounds=3, subset=SUBSET, **given)
    found, rows = train(spec)
    clients = Clients(spec, small_data)
    weights = [count / sum(samples) for count in samples] if samples else [1 / 3] * 3
    for number in range(3):
        start, trained = clients.server(), clients.train()
        if sends == "weights" or (sends == "weights_first" and number == 0):
            clients.take(mean(trained, weights))
        else:
            changes = [less(own, start) for own in trained]
            clients.take(plus(start, mean(changes, weights)))
    assert same(found, clients.server())
    assert rows["round"].dropna().max() == 3 * STEPS


def test_what_workers_send_decides_in_rounding_alone():
    given = dict(rounds=2, subset=SUBSET)
    found = [train(recipe(sends=sends, **given))[0] for sends in ("change", "weights")]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    assert not same(*found)


def test_momentum_that_lasts_is_another_training():
    given = dict(rounds=2, subset=SUBSET)
    assert not same(*(train(recipe(momentum_lasts=its, **given))[0] for its in ("run", "round")))


@pytest.mark.parametrize("average", ["members", "all"])
def test_models_are_not_scaled_by_who_is_missing(small_data, average):
    """Where each meets alone, the server's model is that of the last who came."""
    policy = Part(name="asp", local_iterations=STEPS)
    given = dict(synchronization=policy, averaged_over=average, subset=SUBSET)
    found, _ = train(recipe(sends="weights", **given))
    assert any(same(found, own) for own in Clients(recipe(**given), small_data).train())


def test_models_first_are_those_of_who_begins_before_the_first_have_come():
    """Workers that each meet alone have all begun with the first model."""
    policy = Part(name="asp", local_iterations=STEPS)
    given = dict(synchronization=policy, subset=SUBSET, averaged_over="members")
    first, later = (train(recipe(n, sends="weights_first", **given))[0] for n in (1, 2))
    only = train(recipe(sends="weights", **given))[0]
    assert same(first, only) and not same(first, later)


@pytest.mark.parametrize(
    "split",
    [dict(name="by_label", shards_each=2), dict(name="dirichlet", alpha=0.5), dict(name="even")],
    ids=lambda split: split["name"],
)
@pytest.mark.parametrize("subset", [None, 16])
def test_workers_train_on_their_shares(small_data, split, subset):
    spec = recipe(split=Part(**split), subset=subset, batch=4)
    shares, made = dealt(spec, small_data), make_learner(spec, small_data)
    for rank, share in enumerate(shares):
        taken = list(islice(made._streams[rank], 2 * STEPS))
        assert set(torch.cat(taken).tolist()) <= set(share.tolist())
        if subset:  # 4 batches are all of a round's samples
            first, again, second = (
                set(torch.cat(taken[i:j]).tolist()) for i, j in ((0, 4), (4, 6), (6, 10))
            )
            assert len(first) == len(second) == min(subset, len(share))
            assert again < first and (first != second or len(share) <= subset)
    if split["name"] != "even":
        held = [len(small_data.train_y[share].unique()) for share in shares]
        assert min(held) < 10
    assert not train(spec)[1]["value"].isna().any()


def test_shares_dealt_anew_cover_the_data_in_each_round(small_data):
    spec = recipe(deal="each_round", synchronization=fedavg(local_iterations=11))
    made = make_learner(spec, small_data)
    seen = []
    for number in range(1, 4):
        shares = dealt(spec, small_data, f"split {number}")
        # 81, 81 and 80 samples are 11, 11 and 10 batches, one of which comes once more.
        for rank, share in enumerate(shares):
            batches = list(islice(made._streams[rank], 11))
            epoch = torch.cat(batches[: -(-len(share) // BATCH)])
            assert torch.equal(epoch.sort().values, share.sort().values)
        assert torch.cat(shares).sort().values.tolist() == list(range(242))
        seen.append(shares[0])
    assert not torch.equal(*seen[:2]) and not torch.equal(*seen[1:])


def test_a_subset_of_what_is_dealt_anew_is_its_first_samples(small_data):
    spec = recipe(deal="each_round", subset=SUBSET)
    made = make_learner(spec, small_data)
    for number in (1, 2):
        share = dealt(spec, small_data, f"split {number}")[1]
        assert torch.equal(made._samples(1, number), share[:SUBSET])


def test_a_subset_of_shares_by_label_has_each_of_their_labels(small_data):
    """Those are in the order of labels, of which the first samples would have one."""
    split = Part(name="by_label", shards_each=3)
    spec = recipe(split=split, deal="each_round", subset=40)
    made = make_learner(spec, small_data)
    for number in range(1, 4):
        share = dealt(spec, small_data, f"split {number}")[0]
        some = made._samples(0, number)
        assert len(some.unique()) == 40 and set(some.tolist()) <= set(share.tolist())
        whole, found = (small_data.train_y[its].unique() for its in (share, some))
        assert torch.equal(whole, found) and len(found) >= 3


def test_a_subset_may_be_more_than_there_is(small_data):
    spec = recipe(subset=1000)
    made, share = make_learner(spec, small_data), dealt(spec, small_data)[2]
    assert torch.equal(made._samples(2, 1).sort().values, share.sort().values)


@pytest.mark.parametrize("deal", ["once", "each_round"])
def test_a_stream_begins_anew_in_the_middle_of_a_round(small_data, deal):
    spec = recipe(subset=SUBSET, deal=deal)
    whole = list(islice(make_learner(spec, small_data)._streams[1], 20))
    made = make_learner(spec, small_data)
    list(islice(made._streams[1], 15))
    made.rewind(1, 9)
    assert same(list(islice(made._streams[1], 11)), whole[9:])


def test_rounds_of_one_iteration_where_gradients_travel(tmp_path):
    """And a run of them goes on from its checkpoint to the bit."""
    spec = stepwise(rounds=6, subset=5, split=Part(name="by_label"))
    whole, begun, checkpoint = list(trainer.train(spec)), [], tmp_path / "run"
    for row in trainer.train(spec, checkpoint=checkpoint):
        begun.append(row)
        if row.round == 4:
            break
    assert begun == whole[: len(begun)]
    assert list(trainer.train(spec, checkpoint=checkpoint)) == whole
    assert whole != list(trainer.train(spec.model_copy(update=dict(subset=None))))


# Codecs -------------------------------------------------------------------------------------------


def test_weights_first_keep_only_what_a_sparse_codec_sends():
    """The changes of the first round are from zero, those of the next from the model."""
    given = dict(workers=(1,), subset=SUBSET)
    sparse = given | dict(levels=up("sparse_fp32"), sends="weights_first")
    found, dense = flat(train(recipe(**sparse))[0]), flat(train(recipe(**given))[0])
    assert int((found != 0).sum()) == len(found) // 10
    kept = found != 0
    torch.testing.assert_close(found[kept], dense[kept], rtol=1e-4, atol=1e-6)
    assert dense.abs()[~kept].max() <= found.abs()[kept].min() + 1e-6
    later = flat(train(recipe(rounds=2, **sparse))[0])
    assert len(found) // 10 < int((later != 0).sum()) <= 2 * (len(found) // 10)
    always = flat(train(recipe(rounds=2, **(sparse | dict(sends="weights"))))[0])
    assert int((always != 0).sum()) == len(found) // 10


MIXED = {0: Part(name="sparse_fp32", ratio=0.2), 2: Part(name="int8_blocks")}


@pytest.mark.parametrize("sends", ["change", "weights"])
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_the_server_decodes_each_by_its_own_codec(small_data, sends, rule):
    samples = [10, 20, 50]
    given = dict(sends=sends, aggregation=Part(name=rule), subset=SUBSET)
    spec = recipe(levels=up("fp16"), codecs=MIXED, synchronization=fedavg(samples=samples), **given)
    found, rows = train(spec)
    clients = Clients(spec, small_data)
    start, trained = clients.server(), clients.train()
    order = range(len(start))[::-1]  # as backward makes them
    brought = trained if sends == "weights" else [less(own, start) for own in trained]
    decoded, nbytes = [], 0
    for rank, own in enumerate(brought):
        part = MIXED.get(rank, Part(name="fp16"))
        codec = compression.load(part.name, **part.parameters)
        payload = codec.compress(flat([own[i] for i in order]), 0)
        nbytes += payload.nbytes
        decoded.append(codec.decompress(payload).flatten())
    weights = [count / 80 for count in samples]
    made = aggregation.load(rule)(torch.stack(decoded), weights)
    base = flat([start[i] for i in order])
    expected = made if sends == "weights" else base + made
    assert torch.equal(flat([found[i] for i in order]), expected)
    assert frame(trainer.train(spec)).equals(rows)
    # In the mean over workers, what each has sent and the model that came back.
    sent = rows.query(f"metric == 'bytes_sent' and round == {STEPS}")["value"].item()
    assert sent == pytest.approx(nbytes / 3 + 4 * len(expected))


def test_rules_that_look_at_changes_know_what_models_have_changed_from(small_data):
    spec = recipe(aggregation=Part(name="norm_bound"), sends="weights", subset=SUBSET)
    found, _ = train(spec)
    clients = Clients(spec, small_data)
    start, trained = clients.server(), clients.train()
    changes = torch.stack([flat(less(own, start)) for own in trained])
    norms = changes.norm(dim=1)
    scales = (norms.median() / norms).clamp(max=1)
    assert scales.min() < 1
    expected = flat(start) + (scales[:, None] * changes).mean(0)
    torch.testing.assert_close(flat(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer_at", ["worker", "server"])
def test_gradients_come_in_several_codecs(small_data, optimizer_at):
    spec = stepwise(codecs=MIXED, optimizer_at=optimizer_at)
    gradients = make_learner(spec, small_data).gradients(range(3))
    start, (found, rows) = make_learner(spec, small_data).server.parameters, train(spec)
    order = range(len(start))[::-1]
    decoded, nbytes = [], 0
    for rank, gradient in gradients.items():
        part = MIXED.get(rank, Part(name="identity"))
        codec = compression.load(part.name, **part.parameters)
        payload = codec.compress(flat([gradient[i] for i in order]), 0)
        nbytes += payload.nbytes
        decoded.append(codec.decompress(payload).flatten())
    step = aggregation.load("mean")(torch.stack(decoded), [1 / 3] * 3)
    base = flat([start[i] for i in order])
    expected = torch.sub(base, step, alpha=spec.lr)
    assert torch.equal(flat([found[i] for i in order]), expected)
    sent = rows.query("metric == 'bytes_sent' and round == 1")["value"].item()
    assert sent == pytest.approx(nbytes / 3 + 4 * len(expected))


def test_codecs_of_the_same_kind_are_the_rule_that_they_would_be_anyway():
    """A worker whose own codec is that of its level changes rounding alone."""
    given = dict(levels=up("fp16"), subset=SUBSET)
    found = [train(recipe(codecs=own, **given))[0] for own in ({}, {1: Part(name="fp16")})]
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-3)


def test_recipes_survive_being_written_down():
    spec = recipe(codecs=MIXED, spoiled=Spoiled(workers=1, factor=-1.0), subset=SUBSET)
    assert Recipe.model_validate_json(spec.model_dump_json()) == spec


def test_codecs_go_on_from_their_states():
    part = Part(name="sparse_fp32", error_feedback=True)
    first, second = (Codecs(up("int8_blocks"), 7, {10: 0, 11: 1}, {1: part}) for _ in range(2))
    assert [first.up(0, node).name for node in (10, 11, -1)] == [
        "int8_blocks", "sparse_fp32", "int8_blocks"
    ]  # fmt: skip
    values = torch.linspace(-1, 1, 50)
    first.up(0, 11).compress(values, 0)
    second.load(first.states())
    one, other = (codecs.up(0, 11).compress(values, 0) for codecs in (first, second))
    assert one.body == other.body and second.up(0, 11).name == "sparse_fp32"


def test_the_server_waits_for_the_slowest_codec_and_decodes_each(monkeypatch):
    spec = recipe(levels=up("identity"), codecs=MIXED)
    session = trainer._Session(spec, lambda message: None, trainer.load_dataset)
    price = {"encode": 10.0, "decode": 1.0}, {"identity": 0.0, "sparse_fp32": 1, "int8_blocks": 2}

    def priced(steps, values):
        return sum(price[0][step.what] * price[1][step.codec.name] for step in steps)

    monkeypatch.setattr(session, "coding_s", priced)
    traffic = trainer.Traffic(values=[100])
    assert session.push_s([0, 1, 2], traffic) == 20 + 3
    assert session.push_s([0, 1], traffic) == 10 + 1
    assert session.push_s([], traffic) == 0


# Spoiled ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["mean", "median"])
@pytest.mark.parametrize("sends", ["change", "weights"])
def test_spoiled_workers_bring_something_else(small_data, rule, sends):
    spoiled = Spoiled(workers=1, factor=-10.0)
    given = dict(aggregation=Part(name=rule), sends=sends, subset=SUBSET)
    spec = recipe(rounds=2, spoiled=spoiled, **given)
    found, _ = train(spec)
    clients = Clients(spec, small_data)
    for _ in range(2):
        start, trained = clients.server(), clients.train()
        changes = [less(own, start) for own in trained]
        changes[0] = [-10.0 * part for part in changes[0]]
        by_tensor = [torch.stack(parts) for parts in zip(*changes, strict=True)]
        middle = [
            parts.mean(0) if rule == "mean" else parts.sort(0).values[1] for parts in by_tensor
        ]
        clients.take(plus(start, middle))
    torch.testing.assert_close(found, clients.server(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_spoiled_gradients(small_data, rule):
    spoiled = Spoiled(workers=2, factor=-3.0)
    spec = stepwise(spoiled=spoiled, aggregation=Part(name=rule), workers=(5,))
    made = make_learner(spec, small_data)
    start, gradients = made.server.parameters, made.gradients(range(5))
    brought = [
        [(-3.0 if rank < 2 else 1.0) * part for part in gradient]
        for rank, gradient in gradients.items()
    ]
    by_tensor = [torch.stack(parts) for parts in zip(*brought, strict=True)]
    middle = [parts.mean(0) if rule == "mean" else parts.median(0).values for parts in by_tensor]
    expected = less(start, [spec.lr * part for part in middle])
    torch.testing.assert_close(train(spec)[0], expected, rtol=1e-5, atol=1e-7)
    # As the server's optimizer gets them where iterations take different times.
    later = spec.model_copy(update=dict(optimizer_at="server", synchronization=Part(name="bsp")))
    session = trainer._Session(later, lambda message: None, trainer.load_dataset)
    list(trainer._event_driven(session, synchronization.load("bsp")))
    torch.testing.assert_close(session.learner.server.parameters, expected, rtol=1e-5, atol=1e-7)


def test_noise_is_as_long_as_asked_and_drawn_for_each_worker_and_iteration():
    spec = recipe(spoiled=Spoiled(workers=2, factor=0.5, noise=3.0))
    learned = [torch.full((40, 50), 0.1), torch.linspace(-1, 1, 700)]
    noises = {}
    for rank, iteration in ((0, 1), (0, 2), (1, 1)):
        brought = spoil(spec, rank, iteration, learned)
        assert same(brought, spoil(spec, rank, iteration, learned))
        noises[rank, iteration] = noise = flat(brought) - 0.5 * flat(learned)
        assert noise.norm().item() == pytest.approx(3 * flat(learned).norm().item(), rel=1e-5)
        standard = noise / noise.std()
        # Gaussian: of the mean, and of the fourth moment within 5 standard deviations.
        assert abs(standard.mean()) < 5 / 2700**0.5
        assert abs(standard.pow(4).mean() - 3) < 5 * (96 / 2700) ** 0.5
    for one, other in ((0, 1), (0, 2)), ((0, 1), (1, 1)):
        cosine = nn.functional.cosine_similarity(noises[one], noises[other], dim=0)
        assert abs(cosine) < 5 / 2700**0.5
    assert same(spoil(spec, 2, 1, learned), learned)


def test_a_spoiled_model_is_what_it_began_with_and_its_spoiled_change():
    spec = recipe(spoiled=Spoiled(workers=1, factor=-2.0, noise=1.0))
    origin, change = [torch.linspace(0, 1, 30)], [torch.linspace(1, 3, 30)]
    expected = plus(origin, spoil(spec, 0, 5, change))
    brought = spoil(spec, 0, 5, plus(origin, change), origin)
    torch.testing.assert_close(brought, expected, rtol=1e-5, atol=1e-5)
    honest = plus(origin, change)
    assert same(spoil(spec, 1, 5, honest, origin), honest), "not even rounding"


def test_nothing_but_noise(small_data):
    spec = recipe(spoiled=Spoiled(workers=3, factor=0.0, noise=1.0), subset=SUBSET, workers=(3,))
    clients = Clients(spec, small_data)
    start, trained = clients.server(), clients.train()
    found, _ = train(spec)
    noise = [spoil(spec, rank, STEPS, less(own, start)) for rank, own in enumerate(trained)]
    torch.testing.assert_close(found, plus(start, mean(noise, [1 / 3] * 3)), rtol=1e-4, atol=1e-6)


# What cannot be -----------------------------------------------------------------------------------

BSP, LPSP = Part(name="bsp"), Part(name="lpsp")
HUBS = Part(name="mll_sgd", local_iterations=2, hub_rounds=2, group_size=2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(split=Part(name="sorted")), "split: no split 'sorted'; there are: even, by_label"),
        (dict(split=Part(name="even", alpha=1.0)), "split: even: unknown parameter 'alpha'"),
        (dict(split=Part(name="dirichlet", alpha=0)), "split: dirichlet: alpha must be a finite"),
        (dict(subset=8, synchronization=LPSP), "subset needs rounds .* lpsp has not; take one"),
        (dict(deal="each_round", synchronization=LPSP), "deal: each_round needs rounds"),
        (dict(subset=8, gradients="vmap"), "subset: a round's last batch .* take one_by_one"),
        (dict(subset=0), "subset"),
        (dict(momentum_lasts="round", synchronization=BSP), "momentum_lasts: round needs a policy"),
        (dict(sends="weights", synchronization=BSP, momentum_lasts="run"), "sends: weights needs"),
        (
            dict(sends="weights_first", exchange=Part(name="ring")),
            "ring has none; take an exchange",
        ),
        (dict(sends="weights", synchronization=HUBS), "averages at several levels; take sends"),
        (dict(codecs={3: Part(name="fp16")}), "codecs: there is no worker 3, ranks are 0 to 2"),
        (dict(codecs={-1: Part(name="fp16")}), "codecs"),
        (dict(spoiled=Spoiled(workers=4, factor=1.0)), "spoiled: 4 workers of 3"),
        (dict(spoiled=dict(workers=1, factor=float("inf"))), "spoiled.factor"),
        (dict(spoiled=dict(workers=1, factor=1.0, noise=-1.0)), "spoiled.noise"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        recipe(**changes)


FLAT = dict(exchange=Part(name="ring"), momentum_lasts="run")
SITES = dict(exchange=Part(name="hips"), cluster="sites", workers=(2, 1), levels=up("fp16") * 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(codecs={1: Part(name="fp32")}), r"codecs\.1: no compression method 'fp32'"),
        (dict(codecs={1: Part(name="power_sgd")}), r"codecs\.1: power_sgd needs a server that"),
        (dict(codecs={1: Part(name="sign_sgd")}), r"codecs\.1: sign_sgd needs a server that"),
        (
            dict(codecs={1: Part(name="fp16")}, levels=up("sign_sgd")),
            r"codecs\.1: fp16 needs a server .* with sign_sgd gives it only",
        ),
        (FLAT | dict(codecs={1: Part(name="fp16")}), r"codecs\.1: .* ring with identity gives it"),
        (SITES | dict(codecs={1: Part(name="fp16")}), r"codecs\.1: .* hips with fp16 gives it"),
        (
            dict(split=Part(name="by_label"), batch=100),
            "split: by_label gives worker 0 8. samples, no batch of 100; take a smaller batch",
        ),
        (dict(split=Part(name="by_label", shards_each=81)), "too few for 243 shards"),
    ],
)
def test_what_a_learner_cannot_do_is_refused(small_data, changes, said):
    with pytest.raises(ValueError, match=said):
        make_learner(recipe(**changes), small_data)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(split=Part(name="by_label")), "split: text is text, only images are split by label"),
        (dict(subset=8), "subset: text is text, only images are drawn for a round"),
        (dict(deal="each_round"), "deal: text is text, only images are dealt anew"),
    ],
)
def test_text_is_dealt_once_and_evenly(changes, said):
    x, y = datasets.windows(torch.arange(1000) % 11, 8)
    data = Dataset("text", x[:80], y[:80], x[80:], y[80:], 11, (8,))
    spec = recipe(model=Part(name="lstm", hidden=16), dataset="text", **changes)
    with pytest.raises(ValueError, match=said):
        make_learner(spec, data)
