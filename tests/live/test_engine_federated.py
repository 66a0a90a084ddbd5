"""Federated averaging by the live engine: models or changes, in one codec or in one each, rounds
that end when time is up, and what is told of uploads."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from slowlink.methods import aggregation, compression
from slowlink.methods.synchronization import Left, Sync
from slowlink.testbed.live.engine import settings, tasks
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.flow import Refused
from slowlink.testbed.live.engine.launch import Launched, run_all
from slowlink.testbed.live.replay import Record, replayed
from slowlink.testbed.training.recipe import Part
from tests.live import closed_form, in_process
from tests.live.closed_form import LR, MOMENTUM
from tests.live.run_documents import document as own_document
from tests.live.run_documents import functions, part
from tests.live.test_engine import document, in_virtual_time, same
from tests.live.test_engine import final as parameters
from tests.live.test_engine_exchange import Cluster, drawn, learn, recipe  # noqa: F401
from tests.live.test_engine_policies import described, final, on_paper, times

CLIENTS = ("site1/worker0", "site1/worker1", "site1/worker2")


def wide(folder, codec, workers=1, rounds=2, **changes):
    """A training of 20 weights, whose server they reach through this codec."""
    names = dict(model="make_wide", data="wide_batches", loss="loss", optimizer="plain")
    training = dict(
        levels=[dict(up=part(codec))],
        synchronization=part("fedavg"),
        workers=[workers],
        rounds=rounds,
        evaluate_every=rounds,
    )
    given = own_document(folder, functions(closed_form, **names), training, **changes)
    return settings.parse(given)


def weights(given):
    return torch.load(given.output / "model.pt", weights_only=True)["weight"]


# Models and changes -------------------------------------------------------------------------------


@pytest.mark.parametrize("sends", ["change", "weights", "weights_first"])
@pytest.mark.parametrize(
    "policy",
    [
        dict(name="fedavg", samples=[3, 1, 2, 1], fraction=0.7),
        dict(name="fedavg", local_iterations=2, min_clients=2, timeout_s=0.05, late="next"),
        dict(name="fedavg", local_iterations=2, min_clients=2, timeout_s=0.05),
        dict(name="ssp", staleness=1),
    ],
    ids=["samples", "time-out, late count", "time-out", "ssp"],
)
def test_the_servers_model_is_the_mean_of_models_or_moves_by_changes(tmp_path, policy, sends):
    """Whoever meets in turn, or misses the first meeting."""
    slow = [[0.02], [0.03], [0.02], [0.11]]
    training = dict(sends=sends, averaged_over="all")
    given = described(tmp_path, policy, training=training, iteration_s=slow)
    ended = in_process.run(given)
    assert replayed(ended.record) == 100
    value, curve = on_paper(given, ended.record)
    assert len(curve) >= 3
    assert final(given) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("sends", ["weights", "weights_first"])
def test_who_comes_later_brings_what_the_others_bring(tmp_path, sends):
    """The first meeting was without it."""
    changes = dict(on_loss="replace", begin_with=2, iteration_s=[[0.02]] * 3)
    policy = dict(name="fedavg", samples=[1, 2, 3])
    training = dict(sends=sends)
    given = described(tmp_path, policy, 3, rounds=60, training=training, **changes)
    record = in_process.run(given, late={"site1/worker1": 20}).record
    assert len(record.iterations[1]) > 5
    assert final(given) == pytest.approx(on_paper(given, record)[0], rel=1e-5)


def test_who_dies_in_the_first_meeting_is_no_part_of_the_mean_of_models(tmp_path):
    """Held anew, its members bring their models again, though these are no changes."""
    policy = dict(name="fedavg", local_iterations=2)
    training = dict(sends="weights_first", averaged_over="all")
    given = described(tmp_path, policy, 3, 1, on_loss="continue", training=training)
    in_process.run(given, {"site1/worker2": lambda head: head["kind"] == "data"})
    steps = -LR * (1 + (1 + MOMENTUM))
    assert final(given) == pytest.approx((1 + 2) / 2 * steps, rel=1e-6)


LIAR, OTHER, SERVER = "site1/worker1", "site1/worker2", "central/server"


@pytest.mark.parametrize(
    "lie",
    [
        dict(kind="bad", member=OTHER, why="it sent NaN"),
        dict(kind="rows", round=1, metrics={"test_accuracy": [100.0, "%"]}),
        dict(kind="rows", round=1, metrics={"test_loss": [math.inf, "1"]}),
        dict(kind="carried", round=1, nbytes=10**9),
        dict(kind="applied", meeting=0, attempt=0, version=9, uploads=[]),
        dict(kind="waiting", names=[SERVER, OTHER]),
    ],
    ids=lambda lie: " ".join(map(str, list(lie.values())[:2])),
)
def test_what_a_member_says_that_is_not_its_to_say_changes_nothing(tmp_path, lie):
    """Clients of a server have nothing to do with each other, and do not measure its model."""
    ended = [
        run_with(tmp_path / which, lies) for which, lies in (("one", {}), ("two", {LIAR: lie}))
    ]
    honest, other = (one.digests for one in ended)
    assert honest == other and {LIAR, OTHER, SERVER} <= honest.keys()
    kept, there = (
        sorted((row.metric, row.round, row.value) for row in one.rows if row.unit != "s")
        for one in ended
    )
    assert kept == there and kept


@pytest.mark.parametrize(
    "lie",
    [
        dict(kind="bad", member=SERVER, why="x"),
        dict(kind="bad", member="nobody", why="x"),
        dict(kind="bad", member=OTHER),
        dict(kind="rows"),
        dict(kind="rows", round=1, metrics=7),
        dict(kind="failed"),
    ],
    ids=lambda lie: " ".join(map(str, lie.values())),
)
def test_who_accuses_the_server_or_says_what_is_no_message_goes_alone(tmp_path, lie):
    ended = run_with(tmp_path, {LIAR: lie})
    (left,) = [told.event for told in ended.record.told if isinstance(told.event, Left)]
    assert left.worker == 1
    assert {OTHER, SERVER} <= ended.digests.keys() and LIAR not in ended.digests


def run_with(folder, lies):
    folder.mkdir(exist_ok=True)
    policy = dict(name="fedavg", local_iterations=2)
    given = described(folder, policy, 3, rounds=3, on_loss="continue")
    return in_process.run(given, lies=lies)


def largest(values, ratio=0.1):
    """Only the largest, the others zero; and what is left."""
    kept = torch.zeros_like(values)
    index = values.flatten().abs().topk(int(ratio * values.numel())).indices
    kept.view(-1)[index] = values.flatten()[index]
    return kept, values - kept


@pytest.mark.parametrize("feedback", [False, True])
@pytest.mark.parametrize("sends", ["change", "weights", "weights_first"])
def test_what_a_sparse_codec_keeps_of_models_and_of_changes(tmp_path, sends, feedback):
    """Changes from zero, in the first round: of the model only so much stays as was sent."""
    codec = dict(name="sparse_fp32", ratio=0.1, error_feedback=feedback)
    given = wide(tmp_path, codec, rounds=4, training=dict(sends=sends))
    in_process.run(given)
    model, left = closed_form.wide_start(), torch.zeros(1, 20)
    for number in range(4):
        own = model - LR * closed_form.wide_gradient()
        whole = sends == "weights" or (sends == "weights_first" and number == 0)
        kept, rest = largest((own if whole else own - model) + left)
        left = rest if feedback else left
        model = kept if whole else model + kept
        if number == 0 and sends != "change":
            assert int((model != 0).sum()) == 2
    torch.testing.assert_close(weights(given), model, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sends", ["weights", "weights_first"])
@pytest.mark.parametrize("dies_in", [1, 3])
def test_a_run_that_goes_on_knows_whether_its_first_meeting_is_over(tmp_path, sends, dies_in):
    """Interrupted before that, or after it, the model is the same to the bit."""
    codec = dict(name="sparse_fp32", ratio=0.1, error_feedback=True)
    more = dict(training=dict(sends=sends), workers=2, rounds=4)
    whole = wide(tmp_path / "whole", codec, **more)
    in_process.run(whole)
    cut = wide(tmp_path / "cut", codec, **more, state=str(tmp_path / "state"))
    met = []

    def dies(head):
        met.append(head["kind"] == "finished")
        return sum(met) == dies_in

    with pytest.raises(Failed, match="site1/worker1: it died"):
        in_process.run(cut, {"site1/worker1": dies})
    in_process.run(cut)
    assert torch.equal(weights(cut), weights(whole))


def test_who_meets_anew_has_the_memory_that_it_had(tmp_path):
    """Its codec was asked twice for what it brings, and remembers the second answer alone."""
    codec = dict(name="sparse_fp32", ratio=0.1, error_feedback=True)
    more = dict(on_loss="continue", training=dict(averaged_over="members"))
    given = wide(tmp_path, codec, 3, 2, **more)
    in_process.run(given, {"site1/worker2": lambda head: head["kind"] == "data"})
    model, left = closed_form.wide_start(), [torch.zeros(1, 20)] * 2
    for _ in range(math.ceil(2 * 3 / 2)):  # two workers bring two iterations of a round's three
        made = [
            largest(-LR * (rank + 1) * closed_form.wide_gradient() + left[rank])
            for rank in range(2)
        ]
        left = [rest for _, rest in made]
        model = model + sum(kept for kept, _ in made) / 2
    torch.testing.assert_close(weights(given), model, rtol=1e-5, atol=1e-6)


RULES = [dict(name="mean"), dict(name="median"), dict(name="trimmed_mean"), dict(name="krum")]
RULES += [dict(name="norm_bound")]


@pytest.mark.parametrize("rule", RULES, ids=lambda its: its["name"])
def test_rules_make_the_same_of_models_and_of_changes(tmp_path, rule):
    """Also with a worker that lies."""
    found = []
    for sends in ("change", "weights"):
        training = dict(sends=sends, aggregation=rule)
        given = wide(tmp_path / sends, "identity", 5, training=training)
        lie = {"site1/worker4": lambda body: (2 * np.frombuffer(body, np.float32)).tobytes()}
        in_process.run(given, rogues=lie if rule["name"] == "median" else None)
        found.append(weights(given))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not torch.equal(found[0], closed_form.wide_start())


def test_whose_model_alone_is_bad_is_put_out_by_name(tmp_path):
    policy = dict(name="bsp", local_iterations=2)
    changes = dict(worst=3.0, on_loss="continue", training=dict(sends="weights"))
    given = described(tmp_path, policy, 2, rounds=3, **changes)
    rogues = {"site1/worker0": times(-1000)}
    ended = in_process.run(given, rogues=rogues)
    assert ended.digests.keys() == {"site1/worker1", "central/server"}
    stops = given.model_copy(update=dict(on_loss="stop"))
    with pytest.raises(Failed, match="site1/worker0: .*its model alone makes a model that is too"):
        in_process.run(stops, rogues=rogues)


# A codec of each worker's own ---------------------------------------------------------------------

FORMATS = {
    0: dict(name="identity"),
    1: dict(name="int8_blocks", chunk=64),
    2: dict(name="sparse_fp32", ratio=0.1, error_feedback=True),
    3: dict(name="sparse_int8", ratio=0.1, chunk=64),
    4: dict(name="top_k", ratio=0.2),
}


def mixed(usual="identity", rule="mean"):
    """The trainer's recipe of five workers with a codec each."""
    given = recipe("parameter_server", "identity", (5,))
    levels = [given.levels[0].model_copy(update=dict(up=Part(name=usual)))]
    codecs = {rank: Part(**its) for rank, its in FORMATS.items() if rank}
    rule = Part(name=rule)
    return given.model_copy(update=dict(levels=tuple(levels), codecs=codecs, aggregation=rule))


def cluster_of(given, learner):
    rule = aggregation.load(given.aggregation.name)
    return Cluster(given, learner, "plan", "model", rule=rule, apart=True)


def at_server(cluster, brought, shares, **more):
    """What the central server makes of what comes in any order."""
    made = cluster.meet(brought, shares, **more)
    centre = int(cluster.learner.topology.servers[0])
    assert all(made[centre, key] is None for key in range(len(cluster.learner.groups)))
    return cluster.meetings[centre].by_rule(shares)


@pytest.mark.parametrize("usual", ["identity", "top_k", "fp16", "qsgd"])
@pytest.mark.parametrize("rule", ["mean", "median", "norm_bound"])
def test_packets_of_several_formats_make_the_trainers_total(learn, usual, rule):  # noqa: F811
    given, shares = mixed(usual, rule), [0.3, 0.1, 0.2, 0.15, 0.25]
    learner = learn(given)
    cluster = cluster_of(given, learn(given))
    for number in range(3):  # codecs remember
        brought = drawn(learner, number)
        total, _ = learner.aggregate(range(5), brought, shares)
        assert same(at_server(cluster, brought, shares), total)


def test_the_total_is_the_mean_of_what_each_format_says(learn):  # noqa: F811
    given, shares = mixed(), [0.3, 0.1, 0.2, 0.15, 0.25]
    learner = learn(given)
    brought = drawn(learner, 7)
    expected = [torch.zeros(shape) for shape in learner.shapes]
    for rank, its in FORMATS.items():
        codec = compression.load(**its)
        for index, tensor in enumerate(brought[rank]):
            expected[index] += shares[rank] * codec.decompress(codec.compress(tensor, index))
    made = at_server(cluster_of(given, learner), brought, shares)
    for ours, theirs in zip(made, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("sends", FORMATS)
@pytest.mark.parametrize("whose", FORMATS)
def test_who_sends_in_anothers_format_is_named(learn, whose, sends, honest):  # noqa: F811
    """Whether its message says so or not."""
    if whose == sends:
        return
    given = mixed()
    learner = learn(given)
    culprit, codec = learner.nodes[whose], compression.load(**FORMATS[sends])
    brought = drawn(learner, 0)

    def spoil(node, sent):
        if node != culprit:
            return sent
        (its,) = sent.head["as"]
        index = next(i for i, s in enumerate(learner.shapes) if list(s) == its["shape"])
        payload = codec.compress(brought[whose][index], index)
        its = its | dict(form=payload.form, dtype=payload.dtype, size=payload.nbytes)
        its["codec"] = codec.name if honest else its["codec"]
        return replace(sent, head=sent.head | {"as": [its]}, body=payload.body)

    said = f"it sent '{codec.name}', where '{FORMATS[whose]['name']}' is due" if honest else None
    with pytest.raises(Refused, match=said) as refused:
        at_server(cluster_of(given, learner), brought, [0.2] * 5, spoil=spoil)
    assert refused.value.node == culprit


def test_a_worker_with_a_bad_packet_is_put_out_and_the_others_go_on(tmp_path):
    """Of a round with several formats, in which one lies in its own."""
    codecs = {1: dict(name="int8_blocks"), 2: dict(name="sparse_fp32", ratio=1.0)}
    given = wide(
        tmp_path,
        "identity",
        3,
        2,
        on_loss="continue",
        training=dict(codecs=codecs, averaged_over="members"),
    )
    rogues = {"site1/worker1": lambda body: b"S4" + body[2:]}
    ended = in_process.run(given, rogues=rogues)
    assert ended.digests.keys() == {CLIENTS[0], CLIENTS[2], "central/server"}
    rounds = math.ceil(2 * 3 / 2)  # of two workers
    expected = closed_form.wide_start() - rounds * LR * 2 * closed_form.wide_gradient()
    torch.testing.assert_close(weights(given), expected, rtol=1e-5, atol=1e-6)


def test_a_look_at_each_model_takes_each_codec(tmp_path):
    """``worst`` with codecs of single workers blames the one whose change is bad."""
    codecs = {0: dict(name="sparse_fp32", ratio=1.0), 1: dict(name="int8_blocks")}
    training = dict(codecs=codecs)
    policy = dict(name="bsp", local_iterations=2)
    given = described(tmp_path, policy, 2, rounds=2, worst=3.0, training=training)

    def lie(body):  # "S4", 0, 1, n and k, an index, and a value
        return body[:-4] + (-1000 * np.frombuffer(body[-4:], np.float32)).tobytes()

    in_process.run(given)
    assert final(given) == pytest.approx(on_paper(given, in_process.run(given).record)[0], rel=0.02)
    with pytest.raises(Failed, match="site1/worker0: .*its change alone makes a model"):
        in_process.run(given, rogues={"site1/worker0": lie})


# Rounds -------------------------------------------------------------------------------------------


def synchronizations(record):
    return [d for told in record.told for d in told.decisions if isinstance(d, Sync)]


def test_a_time_out_of_0_goes_on_with_the_fewest(tmp_path):
    """As the document's controller does, whoever else is still asked."""
    policy = dict(name="fedavg", min_clients=1, timeout_s=0)
    given = described(tmp_path, policy, 2, rounds=2, iteration_s=[[0.02], [4.0]])
    record = in_process.run(given).record
    assert [sync.bringing for sync in synchronizations(record)] == [(0,)] * 4
    assert record.end < 4.0 and replayed(record) == 100
    assert final(given) == pytest.approx(on_paper(given, record)[0], rel=1e-5)


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_late_client_misses_its_round(tmp_path, late):
    """What it then has counts in the round that it comes in, or not at all; it is in the one after
    that in time."""
    policy = dict(name="fedavg", min_clients=1, timeout_s=1.0, late=late)
    slow = [[0.05, 0.8, 0.05], [1.6, 0.05]]
    given = described(tmp_path, policy, 2, rounds=3, iteration_s=slow)
    record = in_process.run(given).record
    met = synchronizations(record)
    assert met[0].bringing == (0,) and met[0].members == (0,)
    assert met[1].members == (0, 1)
    assert met[1].bringing == ((0, 1) if late == "next" else (0,))
    assert met[2].bringing == (0, 1)
    ends = [told.t for told in record.told if any(isinstance(d, Sync) for d in told.decisions)]
    assert ends[0] >= 1.0
    assert replayed(record) == 100
    assert final(given) == pytest.approx(on_paper(given, record)[0], rel=1e-5)


def test_who_is_missing_is_named_where_too_few_are_left(tmp_path):
    policy = dict(name="fedavg", min_clients=2)
    given = described(tmp_path, policy, 2, rounds=9, on_loss="continue")
    said = "fedavg: nobody computes, .*; gone: site1/worker1 .it died.$"
    with pytest.raises(Failed, match=said):
        in_process.run(given, {"site1/worker1": lambda head: head["kind"] == "data"})


def test_a_meeting_whose_only_bringer_dies_ends_for_those_who_listen(tmp_path):
    """They have the model that is there, and the next round asks one of them."""
    policy, limits = dict(name="fedavg", fraction=0.4), dict(silence_s=600, meeting_s=5)
    given = described(tmp_path, policy, 3, rounds=3, on_loss="continue", limits=limits)
    sent = []

    def first(head):
        sent.append(head["kind"] == "data")
        return sent[-1] and sum(sent) == 1

    ended = in_process.run(given, dict.fromkeys(CLIENTS, first))
    assert len(ended.digests.keys() & set(CLIENTS)) == 2
    met = synchronizations(ended.record)
    assert len(met) == 1 + 3 * 3 and all(len(sync.bringing) == 1 for sync in met)
    assert ended.record.uploads[0] == {}


def test_samples_weigh(tmp_path):
    """Of 10 and 30 samples: the mean is a quarter and three quarters."""
    policy = dict(name="fedavg", samples=[10, 30])
    given = described(tmp_path, policy, 2, rounds=1)
    in_process.run(given)
    assert final(given) == pytest.approx(-LR * (10 * 1 + 30 * 2) / 40, rel=1e-6)


def test_a_model_goes_out_to_all_members_at_once(tmp_path, monkeypatch):
    """A message with several heads, where the wire has a shorter way for one body."""
    sent, send_all = [], in_process.Queues.send_all

    def count(wire, to, body):
        sent.append((sorted(to), len(body)))
        send_all(wire, to, body)

    monkeypatch.setattr(in_process.Queues, "send_all", count)
    given = wide(tmp_path, "identity", 3, rounds=2)
    in_process.run(given)
    assert sent == [(list(CLIENTS), 80)] * 2


# Uploads ------------------------------------------------------------------------------------------


def test_uploads_are_timed_from_the_first_packet_to_the_last(tmp_path):
    def slowly(body):
        time.sleep(0.05)
        return bytes(body)

    policy = dict(name="fedavg", min_clients=2, timeout_s=0.5, fraction=0.7, samples=[1, 1, 1])
    given = described(tmp_path, policy, 3, rounds=4)
    record = in_process.run(given, rogues={"site1/worker1": slowly}).record
    met = synchronizations(record)
    assert len(record.uploads) == len(record.meetings) == len(met)
    for sync, uploads, (push, _) in zip(met, record.uploads, record.meetings, strict=True):
        if math.isnan(push):
            assert uploads == {}
            continue
        assert tuple(sorted(uploads)) == sync.bringing
        assert all(0 <= seconds < push + 1e-3 for seconds in uploads.values())
        assert uploads.get(1, 0.05) >= 0.05
    assert any(1 in uploads for uploads in record.uploads)
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json").uploads == record.uploads


@pytest.mark.parametrize("since", [None, "x", 7, [1.0], math.nan, math.inf, -math.inf])
def test_who_does_not_say_when_it_began_has_no_time(tmp_path, since):
    given = described(tmp_path, "bsp", 2, rounds=2, training=dict(optimizer_at="server"))

    def changes(head):
        head |= {"since": since} if "since" in head else {}
        return False

    record = in_process.run(given, {"site1/worker1": changes}).record
    assert [sorted(uploads) for uploads in record.uploads] == [[0], [0]]


def test_uploads_of_members_elsewhere_are_not_told(tmp_path):
    """Their clocks are others."""
    given = described(tmp_path, "asp", 2, rounds=2)
    record = in_process.run(given, here=False).record
    assert record.uploads == [{}] * len(record.meetings) != []


# Real processes -----------------------------------------------------------------------------------

INT8, SPARSE = dict(name="int8_blocks", chunk=64), dict(name="sparse_fp32", error_feedback=True)
AVERAGING = dict(name="fedavg", local_iterations=3)
TIMED = AVERAGING | dict(min_clients=1, timeout_s=0.5)
EACH_ROUND = dict(deal="each_round", subset=9, momentum_lasts="round")
BY_LABEL = dict(split=dict(name="by_label", shards_each=3), subset=10, momentum_lasts="round")
COMBINED = {
    "the document's": ("identity", AVERAGING, dict(sends="weights_first") | EACH_ROUND),
    "eight bits, in one cluster": (INT8, AVERAGING, dict(workers=[2])),
    "weights in eight bits": (INT8, AVERAGING, dict(sends="weights", averaged_over="members")),
    "sparse, one after the other": (SPARSE, AVERAGING, dict(sends="weights_first", workers=[1, 1])),
    "sparse in eight bits": ("sparse_int8", AVERAGING, dict(sends="change") | BY_LABEL),
    "weights, late ones count": (
        "identity",
        TIMED | dict(late="next"),
        dict(sends="weights"),
        dict(iteration_s=[[0.02], [0.03], [0.25]]),
    ),
    "sparse, late ones are dropped": (
        SPARSE,
        TIMED,
        dict(sends="weights_first", averaged_over="members", split=dict(name="dirichlet")),
        dict(iteration_s=[[0.02], [0.03], [0.25]]),
    ),
    "a time-out of 0": (
        "identity",
        dict(name="fedavg", min_clients=2, timeout_s=0, samples=[3, 1, 2]),
        dict(momentum_lasts="round"),
        dict(iteration_s=[[0.1], [0.2], [0.6]]),
    ),
    "several formats": (
        "identity",
        AVERAGING | dict(samples=[3, 1, 2]),
        dict(codecs={1: INT8, 2: SPARSE}, sends="weights_first"),
    ),
    "several formats, median": (
        "sparse_int8",
        AVERAGING,
        dict(codecs={0: dict(name="identity")}, sends="weights", aggregation=dict(name="median")),
    ),
    "several formats, norms bounded": (
        "identity",
        AVERAGING,
        dict(codecs={1: INT8}, sends="weights", aggregation=dict(name="norm_bound")),
    ),
    "gradients in several formats": ("identity", "bsp", dict(codecs={0: INT8, 2: SPARSE})),
    "computing on, weights": (
        "fp16",
        dict(name="lpsp", computes_on=True),
        dict(sends="weights", rounds=8),
        dict(iteration_s=[[0.2], [0.3], [0.7]]),
    ),
    "over sites": ("sparse_fp32", AVERAGING, dict(exchange=dict(name="hips"), sends="weights")),
}
ON_DDS = ("the document's", "sparse, one after the other", "sparse, late ones are dropped")
ON_DDS += ("a time-out of 0", "several formats")


def federated(folder, name, rounds=6, **more):
    codec, policy, training, *rest = COMBINED[name]
    exchange = training.get("exchange", dict(name="parameter_server"))
    training = dict(fusion=dict(name="whole_model"), rounds=rounds) | training
    told = document(folder, exchange, codec, policy, training=training, order="plan")
    return settings.parse(told | dict(*rest) | more)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, dds", [*((name, None) for name in COMBINED), *((name, {}) for name in ON_DDS)]
)
def test_real_processes_come_to_the_trainers_model(fashion_mnist, tmp_path, monkeypatch, name, dds):
    given = federated(tmp_path, name, dds=dds)
    ended = run_all(given)
    assert replayed(ended.record) == 100
    assert same(parameters(given), in_virtual_time(given, monkeypatch, ended.record)[0])
    pushed = [uploads for uploads in ended.record.uploads if uploads]
    assert pushed or given.exchange.groups(given.topology)[1:]
    assert all(0 < seconds < 10 for uploads in pushed for seconds in uploads.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["the document's", "sparse in eight bits", "several formats"])
def test_a_killed_run_goes_on_to_the_same_bits(fashion_mnist, tmp_path, name):
    """Samples dealt anew, momentum, a codec's memory, and whether it was the first meeting."""
    whole = federated(tmp_path / "whole", name, rounds=12)
    run_all(whole)
    more = dict(state=str(tmp_path / "state"), iteration_s=[[0.1]] * 3)
    cut = federated(tmp_path / "cut", name, rounds=12, **more)
    with Launched(cut) as launched, pytest.raises(Failed, match="site1/worker1"):
        launched.run(lambda line: "round 6 " in line and launched.processes[CLIENTS[1]].kill())
    said = []
    run_all(cut, said.append)
    assert any("going on from round" in line for line in said)
    assert same(parameters(cut), parameters(whole))


@pytest.mark.slow
def test_samples_and_momentum_of_a_round_are_as_after_a_pause(fashion_mnist, tmp_path):
    """What a snapshot restores draws the batches that were to come; its momentum is at zero when a
    model has come."""
    given = federated(tmp_path, "the document's")
    one, other = tasks.make(given, 1), tasks.make(given, 1)
    for number in range(5):
        one.step(one.gradient())
        if number == 2:
            assert one.replica.velocity is not None
            one.adopt(one.values())
            assert one.replica.velocity is None
    other.restore(one.state())
    for _ in range(4):
        ours, theirs = one.gradient(), other.gradient()
        assert same(ours, theirs)
        one.step(ours), other.step(theirs)
    assert same(one.values(), other.values())
