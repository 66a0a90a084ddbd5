"""Plans with codecs, all nodes in one process, messages in any order: the trainer's own bits."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slowlink.methods import aggregation, compression, exchange
from slowlink.testbed.live.engine.delivery import Delivery
from slowlink.testbed.live.engine.exchange import Meeting, Place
from slowlink.testbed.live.engine.flow import ANSWER, Bundles, Due, Refused, Sums, flow
from slowlink.testbed.live.engine.flow import Part as Share
from slowlink.testbed.network.execution import execute
from slowlink.testbed.training.learner import Codecs, Learner
from slowlink.testbed.training.models import make
from slowlink.testbed.training.recipe import Level, Link, Part
from slowlink.testbed.training.trainer import topology
from tests import small

ROUNDS = 3
CODECS = dict(
    identity={},
    fp16={},
    top_k=dict(ratio=0.05),
    bisparse=dict(ratio=0.05, lower_bound=100, format="tight"),
    power_sgd=dict(rank=2),
    count_sketch={},
    qsgd={},
    random_k=dict(ratio=0.1),
)
WHOLE = ("ring", "halving_doubling", "double_tree", "allgather", "butterfly")
SERVED = ("parameter_server", "hips")


def recipe(name, codec, workers, **parameters):
    inner = [Level(up=Part(name="identity"))]
    last = [Level(up=Part(name=codec, **CODECS[codec]))]
    depth = {"hips": 2, "rat": 2}.get(name, 1)
    return small.recipe(
        exchange=Part(name=name, **parameters),
        levels=tuple(inner * (depth - 1) + last),
        workers=workers,
        batch=4,
        lr=0.1,
        rounds=1,
        evaluate_every=1,
        seed=3,
        device="reference",
    )


@pytest.fixture(scope="module")
def learn():
    """Makes the trainer's learner of a recipe."""
    data = small.noise(64, 64)

    def build(given):
        between = exchange.load(given.exchange.name, **given.exchange.parameters)
        sites = topology(given.workers, given.networks["one"])
        model = make("lenet5", 1, hidden=[20, 16])
        return Learner(given, model, data, between, sites)

    return build


class Cluster:
    """All nodes of a system, each with codecs of its own; messages are delivered at random."""

    def __init__(self, given, learner, order, mode="sum", **more):
        self.learner, self.mode, self.random = learner, mode, random.Random(5)
        sites, between = learner.topology, learner.exchange
        plan = between(sites)
        self.active = sorted({*plan.src.tolist(), *plan.dst.tolist()})
        shared = (sites, between)
        self.places = {
            node: Place(
                node,
                *shared,
                Codecs(given.levels, given.seed, learner.rank, given.codecs),
                learner.groups,
                learner.shapes,
                order,
                2**30,
                **more,
            )
            for node in self.active
        }

    def meet(self, gradients, weights=None, spoil=lambda node, sent: sent):
        """By node and key, what the members' generators return."""
        nodes = self.learner.nodes
        travels, self.meetings = {}, {}
        for node in self.active:
            meeting = Meeting(self.places[node], self.mode, nodes, nodes)
            self.meetings[node] = meeting
            for key in range(len(self.learner.groups)):
                if node in nodes:
                    rank = nodes.index(node)
                    weight = weights[rank] if weights else 1 / len(nodes)
                    travels[node, key] = meeting.bring(gradients[rank], weight, key)
                elif node == self.learner.topology.servers[0]:
                    travels[node, key] = meeting.serve(key)
                else:
                    travels[node, key] = meeting.relay(0, key)
        return self.deliver(travels, spoil)

    def deliver(self, travels, spoil=lambda node, sent: sent):
        """By node and key, what ``travels`` end with."""
        deliveries, flight = {node: Delivery() for node in self.active}, []
        for (node, key), travel in travels.items():
            deliveries[node].running[key] = travel

        def go_on(node, key, arrival=None):
            for tag, sent in deliveries[node].go_on(key, arrival):
                flight.append((tag, spoil(node, sent)))

        for node, key in travels:
            go_on(node, key)
        while flight:
            tag, sent = flight.pop(self.random.randrange(len(flight)))
            arrival = sent.t, sent.head, sent.body
            if (key := deliveries[sent.to].take(tag, arrival)) is not None:
                go_on(sent.to, key, arrival)
        assert not {node: its.waiting for node, its in deliveries.items() if its.running}, "stuck"
        return {(n, key): end for n, its in deliveries.items() for key, end in its.results.items()}

    def mean(self, vectors):
        """By node, what becomes of a vector of each worker."""
        nodes = self.learner.nodes
        travels = {}
        for node in self.active:
            meeting = Meeting(self.places[node], self.mode, nodes, nodes)
            own = vectors[nodes.index(node)] if node in nodes else None
            travels[node, "mean"] = meeting.mean(own)
        found = self.deliver(travels)
        return {node: vector for (node, _), vector in found.items()}


def drawn(learner, number):
    generator = torch.Generator().manual_seed(number)
    return {
        rank: [torch.randn(shape, generator=generator) for shape in learner.shapes]
        for rank in range(len(learner.nodes))
    }


def compare(given, learn, order, weights=None):
    """Over some rounds, as codecs remember: every worker holds the trainer's total."""
    learner = learn(given)
    cluster = Cluster(given, learn(given), order)
    for number in range(ROUNDS):
        gradients = drawn(learner, number)
        total, _ = learner.aggregate(range(len(learner.nodes)), gradients, weights)
        results = cluster.meet(gradients, weights)
        for node in learner.nodes:
            for key, group in enumerate(learner.groups):
                flat = torch.cat([total[i].flatten() for i in group])
                assert torch.equal(results[node, key].flatten(), flat), (node, key, number)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", [*WHOLE, *SERVED, "k_nomial_tree"])
def test_any_plan_with_any_codec_in_the_order_of_ranks_is_the_trainer(learn, name, codec):
    given = recipe(name, codec, (2, 2) if name == "butterfly" else (3, 2))
    try:
        learn(given)
    except ValueError as error:
        assert "cannot carry" in str(error)
        return
    compare(given, learn, "rank")


@pytest.mark.parametrize(
    "name, mode",
    [("ring", "sum"), ("hips", "sum"), ("hips", "model"), ("parameter_server", "model")],
)
def test_all_get_the_mean_of_running_statistics(learn, name, mode):
    given = recipe(name, "identity", (3, 2))
    vectors = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    cluster = Cluster(given, learn(given), "plan", mode)
    for node, found in cluster.mean(list(vectors)).items():
        assert node not in cluster.learner.nodes or torch.allclose(
            found, vectors.mean(0), atol=1e-6
        )


def test_a_rule_combines_running_statistics_too(learn):
    given = recipe("parameter_server", "identity", (3, 2))
    vectors = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    vectors[4] = 1e5
    rule = aggregation.load("median")
    found = Cluster(given, learn(given), "plan", "model", rule=rule, apart=True).mean(list(vectors))
    assert len(found) == 6
    assert all(torch.equal(its, vectors.median(0).values) for its in found.values())


@pytest.mark.parametrize("codec", ["identity", "fp16", "power_sgd", "count_sketch"])
@pytest.mark.parametrize("name", WHOLE)
def test_sums_of_two_are_the_trainers_in_the_order_of_the_plan(learn, name, codec):
    compare(recipe(name, codec, (2,)), learn, "plan")


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["identity", "fp16", "power_sgd", "count_sketch", "random_k"])
@pytest.mark.parametrize("workers", [(2, 2), (3, 2)])
@pytest.mark.parametrize("name", ["rat", "hips"])
def test_one_codec_that_adds_goes_through_all_levels(learn, name, workers, codec):
    given = recipe(name, codec, workers)
    given = given.model_copy(update=dict(levels=given.levels[-1:] * 2))
    compare(given, learn, "rank")


@pytest.mark.parametrize("name", ["k_nomial_tree", "ring"])
def test_in_the_order_of_ranks_a_sum_is_the_trainers(learn, name):
    compare(recipe(name, "identity", (3, 2)), learn, "rank")


@pytest.mark.parametrize("codec", CODECS)
def test_weights_are_taken_at_the_workers(learn, codec):
    compare(recipe("parameter_server", codec, (3,)), learn, "plan", [0.5, 0.125, 0.375])


@pytest.mark.parametrize("name", [*WHOLE, "rat", "parameter_server", "blue_connect"])
def test_partial_sums_are_those_of_the_plan_run_on_arrays(learn, name):
    """The independent executor of the same plan adds in the same order, to the bit."""
    given = recipe(name, "identity", (2, 2))
    if name in ("rat", "blue_connect"):
        given = given.model_copy(update=dict(levels=given.levels[-1:] * 2))
    learner = learn(given)
    cluster = Cluster(given, learner, "plan")
    gradients = drawn(learner, 1)
    results = cluster.meet(gradients)
    if cluster.places[learner.nodes[0]].exchange.whole and name == "allgather":
        return compare(given, learn, "plan")  # takes the order of ranks, so that all agree
    plan = learner.exchange(learner.topology)
    for key, (index,) in enumerate(learner.groups):
        arrays = [np.asarray(gradients[rank][index] * 0.25) for rank in range(4)]
        for node, total in execute(plan, arrays).items():
            assert np.array_equal(results[node, key].numpy(), total)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("codec", ["identity", "fp16", "top_k", "bisparse", "qsgd"])
def test_a_server_that_keeps_the_model_gets_the_trainers_total(learn, name, codec):
    given = recipe(name, codec, (2, 2))
    learner, cluster = learn(given), None
    cluster = Cluster(given, learn(given), "plan", "model")
    gradients = drawn(learner, 0)
    total, _ = learner.aggregate(range(4), gradients)
    results = cluster.meet(gradients)
    centre = int(learner.topology.servers[0])
    for key, (index,) in enumerate(learner.groups):
        assert torch.equal(results[centre, key].flatten(), total[index].flatten())


@pytest.mark.parametrize("codec", ["identity", "fp16", "top_k", "qsgd"])
@pytest.mark.parametrize("name", ["ring", "parameter_server", "hips", "allgather"])
def test_poison_names_the_node_that_sent_it(learn, name, codec):
    given = recipe(name, codec, (2, 2))
    try:
        learner = learn(given)
    except ValueError:
        return
    cluster = Cluster(given, learner, "plan")
    culprit = learner.nodes[1]
    gradients = drawn(learner, 0)

    def spoil(node, sent):
        if node != culprit or not sent.body:
            return sent
        body = bytearray(sent.body)
        body[-8:] = b"\xff" * min(8, len(body))
        return type(sent)(sent.t, sent.to, sent.head, bytes(body))

    with pytest.raises(Refused) as refused:
        cluster.meet(gradients, spoil=spoil)
    assert refused.value.node == culprit


@pytest.mark.parametrize("whose", [ANSWER, "another", "its own twice", "nobody"])
@pytest.mark.parametrize("name", ["allgather", "parameter_server", "hips"])
def test_nobody_speaks_for_another_nor_for_all(learn, name, whose):
    """A codec whose payloads lie side by side: each message is of those that the plan says."""
    given = recipe(name, "top_k", (2, 2))
    learner = learn(given)
    culprit, other = learner.nodes[:2]
    if name == "hips":
        culprit, other = learner.topology.servers[1:3]

    def spoil(node, sent):
        if node != culprit or sent.head.get("of") != [culprit]:
            return sent
        head = dict(sent.head)
        if whose == "its own twice":
            head["parts"] = [[0, 0]] * len(head["parts"])
        elif whose == "nobody":
            head |= {"of": [], "as": [], "parts": [[]] * len(head["parts"])}
        else:
            head["of"] = [other if whose == "another" else whose]
        return type(sent)(sent.t, sent.to, head, sent.body)

    with pytest.raises(Refused, match="it sent what is of") as refused:
        Cluster(given, learner, "plan").meet(drawn(learner, 0), spoil=spoil)
    assert refused.value.node == culprit


def share_of_two():
    """What one of two has to do in a ring, and the other's node."""
    plan = exchange.load("ring")(topology((2,), Link(lan=1, wan=1)))
    node, other = plan.contributors.tolist()
    return Share(plan, node), other


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(sum=None), "does not say what it carries"),
        (dict(sum=dict(form="dense", dtype="float32", shape=[5], size=-1)), "no payload"),
        (dict(sum=dict(form="dense", dtype="float32", shape=[2**40], size=5)), "over the limit"),
        (dict(sum=dict(form="dense", dtype="float16", shape=[5], size=5)), "others have"),
        (dict(sum=dict(form="dense", dtype="float32", shape=[4], size=4)), "others have"),
    ],
)
def test_what_describes_itself_wrongly_is_refused(change, said):
    share, _ = share_of_two()
    sums = Sums(share, Due("identity", 4096))
    own = sums.own(compression.load("identity").compress(torch.arange(5.0), 0))
    run = flow(share, sums, own)
    while (sent := run.send(None)) is not None:
        pass
    t = share.arriving[0]
    with pytest.raises(Refused, match=said):
        run.send((t, change, b"\0" * 8))
    assert sent is None


def test_too_few_or_too_many_bytes_are_refused():
    share, _ = share_of_two()
    sums = Sums(share, Due("identity", 4096))
    sums.own(compression.load("identity").compress(torch.arange(6.0), 0))
    head = dict(sum=dict(form="dense", dtype="float32", shape=[6], size=6))
    for length in (0, 8, 11, 16):
        with pytest.raises(Refused, match=f"it sent {length} bytes, and not 12"):
            sums.unpack(share.arriving[0], head, bytes(length))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), adds=st.booleans())
def test_a_message_that_was_changed_is_refused_or_read_never_a_crash(data, adds):
    """Any field of a true head may be anything, and the body any bytes."""
    share, other = share_of_two()
    due = Due("identity", 4096, (6,), 24)
    described = dict(form="dense", dtype="float32", shape=[6], size=6 if adds else 24)
    if adds:
        algebra, head, path = Sums(share, due), {"sum": described}, ["sum"]
    else:
        head = {"of": [1], "as": [described | dict(codec="identity")], "parts": [[0]]}
        algebra, path = Bundles(share, due, share.carried(merges=False)), ["as", 0]
    whole = data.draw(st.booleans())
    target = head
    for step in [] if whole else path:
        target = target[step]
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    body = data.draw(st.binary(max_size=40) | st.just(bytes(12)))
    try:
        value = algebra.unpack(share.arriving[0], head, body)
    except Refused as refused:
        assert refused.node == other
        return
    if adds:
        assert sum(map(len, value.values())) == 3
    else:
        assert [(list(item), len(item[1])) for item in value.values()] == [([1], 12)]


def test_contributions_larger_than_their_codec_makes_are_refused(learn):
    """A server takes no one's word for how large a tensor is, not even of who comes first."""
    given = recipe("parameter_server", "identity", (2, 2))
    learner = learn(given)
    cluster = Cluster(given, learner, "plan")
    culprit = learner.nodes[0]

    def spoil(node, sent):
        if node != culprit:
            return sent
        its = sent.head["sum"]
        head = {"sum": its | {"size": its["size"] + 1}}
        return type(sent)(sent.t, sent.to, head, bytes(sent.body) + bytes(4))

    with pytest.raises(Refused, match="are the most") as refused:
        cluster.meet(drawn(learner, 0), spoil=spoil)
    assert refused.value.node == culprit
