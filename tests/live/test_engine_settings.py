"""What a live run is, and what it refuses by name before a process starts."""

import itertools
import json
import re
from types import SimpleNamespace

import pytest
import yaml

from slowlink.testbed.live.engine import __main__ as command
from slowlink.testbed.live.engine import on_ray, settings
from slowlink.testbed.live.identity import Keys

IDENTITY = {"up": {"name": "identity"}}


def document(**changes):
    training = dict(
        exchange={"name": "ring"},
        levels=[IDENTITY],
        synchronization={"name": "bsp"},
        model={"name": "lenet5"},
        dataset="fashion_mnist",
        workers=[2, 1],
        batch=8,
        lr=0.05,
        rounds=3,
        evaluate_every=1,
    ) | changes.pop("training", {})
    return dict(training=training, output="runs/one") | changes


def part(name, **parameters):
    return dict(name=name, **parameters)


def up(name, **parameters):
    return [{"up": part(name, **parameters)}]


SERVER = dict(exchange=part("parameter_server"))
FED = SERVER | dict(synchronization=part("fedavg"))
TEXT = dict(dataset="penn_treebank", model=part("lstm"))


@pytest.mark.parametrize(
    "levels, more, told",
    [
        (up("bisparse"), {}, "levels.0.up: bisparse sends all of lenet5 as it is, .* 48000 values"),
        (up("bisparse", lower_bound=48_000), {}, ""),
        (up("bisparse", lower_bound=48_001), {}, "fewer than lower_bound=48001"),
        # Fused, one message has what all layers have together.
        (up("bisparse", lower_bound=48_001), dict(fusion=part("whole_model")), ""),
        ([IDENTITY], {}, ""),
        ([IDENTITY], dict(codecs={"1": part("dgc", lower_bound=10**6)}), "codecs.1: dgc sends"),
    ],
)
def test_a_bound_that_leaves_all_of_the_model_dense_is_told(levels, more, told, caplog):
    parties = dict(parties=3) if levels[0]["up"]["name"] == "bisparse" else {}
    levels = [{"up": levels[0]["up"] | parties}]
    settings.parse(document(training=SERVER | dict(levels=levels) | more))
    assert [bool(re.search(told, line)) for line in caplog.messages] == [True] * bool(told)


@pytest.mark.parametrize(
    "training, said",
    [
        (dict(exchange=part("hips")), "levels: hips has 2 levels, the recipe codecs for 1"),
        (dict(levels=up("top_k")), "ring cannot carry top_k: its payloads combine by merge"),
        (dict(levels=up("nothing")), "levels.0.up: no compression method 'nothing'"),
        (dict(synchronization=part("asp")), "ring cannot carry asp: some of the workers meet"),
        (dict(exchange=part("ring", chunks=4)), "exchange: chunks must be 1"),
        (dict(exchange=part("ring", overlap=False)), "exchange: overlap must be true"),
        (dict(optimizer_at="server"), "optimizer_at: must be worker: ring has no server"),
        (dict(overlap=True), "overlap: must be false"),
        (dict(uneven={"sites": [1.0, 0.5]}), "uneven: factors below 1"),
        (dict(uneven={"highest": 2.0, "jitter": 0.1}), "uneven: factors below 1"),
        (dict(averaged_over="some"), "averaged_over: Input should be 'members' or 'all'"),
        (dict(rounds=None), "give either rounds or seconds"),
        (dict(accelerator="cuda"), "accelerator: must be cpu"),
        (dict(synchronization=part("lpsp", computes_on=True)), "to a server, and here is none"),
        (
            dict(aggregation=part("median")),
            "aggregation: median needs a server that has every worker's values, which ring with "
            "identity gives to none",
        ),
        (
            SERVER | dict(levels=up("sign_sgd"), aggregation=part("median")),
            "aggregation: median needs .* parameter_server with sign_sgd gives to none",
        ),
        (
            SERVER
            | dict(
                aggregation=part("median"),
                levels=[{"up": part("terngrad"), "down": part("int8_blocks")}],
            ),
            "levels: down would code the model",
        ),
        (
            SERVER | dict(aggregation=part("krum")),
            "aggregation: krum needs 5 workers that bring something to a meeting, bsp has 3",
        ),
        (
            SERVER | dict(synchronization=part("asp"), aggregation=part("krum"), workers=[5, 1]),
            "aggregation: krum needs 5 workers that bring something to a meeting, asp has 1",
        ),
        (
            SERVER | dict(synchronization=part("asp"), levels=up("power_sgd")),
            "levels: power_sgd needs several rounds, and a server that keeps the model is no party",
        ),
        (
            SERVER
            | dict(synchronization=part("mll_sgd", hub_rounds=2, group_size=2), levels=up("fp16")),
            "exchange: mll_sgd averages at several levels, and fp16 would keep one memory",
        ),
        (
            dict(exchange=part("parameter_server", shards="colocated"), levels=up("top_k")),
            "exchange: colocated servers cannot merge top_k: a shard of a payload is none",
        ),
        (
            SERVER
            | dict(exchange=part("hips"), levels=[*up("bisparse"), IDENTITY], workers=[3, 2]),
            "levels: bisparse padded: 3 payloads .* set parties to all of them",
        ),
        (
            SERVER | dict(levels=up("bisparse")),
            "levels: bisparse padded: 3 payloads .* set parties to all of them",
        ),
        (
            dict(exchange=part("rat"), levels=[IDENTITY, *up("fp16")]),
            "rat adds payloads on their way through all levels, which need one codec that adds",
        ),
        (
            dict(exchange=part("k_nomial_tree"), synchronization=part("asp")),
            "k_nomial_tree cannot carry asp: .* not with a server that keeps a model",
        ),
        (dict(exchange=part("butterfly")), "training.exchange: butterfly: needs a power of 2"),
        (dict(exchange=part("rign")), "training.exchange: no exchange method 'rign'"),
        (
            SERVER | dict(synchronization=part("fedavg", min_clients=9)),
            "training.synchronization: fedavg: nobody computes and nobody meets",
        ),
        (
            SERVER | dict(synchronization=part("fedavg", samples=[1, 2])),
            "training.synchronization: fedavg: samples has 2 counts for 3 workers",
        ),
        (dict(synchronization=part("bsp", local=2)), "training.synchronization: bsp: unknown para"),
        (SERVER | dict(aggregation=part("men")), "training.aggregation: no aggregation method"),
        (dict(fusion=part("zzz")), "training.fusion: no fusion method 'zzz'"),
        (dict(fusion=part("buckets", bogus=1)), "training.fusion: buckets: unknown parameter"),
        (dict(fusion=part("mg_wfbp")), "training.fusion: mg_wfbp weighs costs"),
        (dict(gradients="vmap"), "training.gradients: vmap takes the gradients of several"),
        (dict(compute_s=5.0), "training.compute_s: .* `iteration_s` paces them"),
        (dict(model=part("lenett")), "training.model: no model 'lenett'; there are: cnn3"),
        (dict(model=part("lenet5", hiden=3)), "training.model: .*'hiden'"),
        (dict(dataset="fashion"), "training.dataset: no data set 'fashion'; there are: mnist"),
        (dict(dataset="penn_treebank"), "training.model: lenet5 is not for penn_treebank, .* text"),
        (
            dict(model=part("lstm")),
            "training.model: lstm is not for fashion_mnist, .* images",
        ),
        (TEXT | dict(augment=True), "training.augment: penn_treebank is text"),
        (TEXT | dict(validation=9), "training.validation: penn_treebank is text"),
        (dict(limit=100, validation=100), "validation: 100 .* leave none of limit: 100 to train"),
        (dict(words=50), "training.words: fashion_mnist has none"),
        (TEXT | dict(subset=9), "training.subset: penn_treebank is text"),
        (TEXT | dict(split=part("by_label")), "training.split: penn_treebank is text"),
        (TEXT | dict(deal="each_round"), "training.deal: penn_treebank is text"),
        (FED | dict(split=part("by_lable")), "split: no split 'by_lable'"),
        (SERVER | dict(sends="weights"), "sends: weights needs a policy whose changes travel"),
        (
            dict(synchronization=part("fedavg"), sends="weights_first"),
            "sends: weights_first needs a server that keeps the model, and ring has none",
        ),
        (
            FED | dict(exchange=part("k_nomial_tree"), sends="weights"),
            "exchange: k_nomial_tree has no server that could keep the model",
        ),
        (
            SERVER
            | dict(synchronization=part("mll_sgd", hub_rounds=2, group_size=2), sends="weights"),
            "sends: weights goes to the one server .* mll_sgd averages at several levels",
        ),
        (FED | dict(spoiled=dict(workers=1, factor=-1)), "training.spoiled: must be null"),
        (FED | dict(codecs={3: part("fp16")}), "codecs: there is no worker 3, ranks are 0 to 2"),
        (FED | dict(codecs={0: part("nothing")}), "training.codecs.0: no compression method"),
        (FED | dict(codecs={0: part("fp16", x=1)}), "training.codecs.0: fp16: unknown parameter"),
        (
            FED | dict(codecs={1: part("power_sgd")}),
            "training.codecs.1: parameter_server with power_sgd has no server that decodes what",
        ),
        (
            FED | dict(codecs={1: part("fp16")}, levels=up("sign_sgd")),
            "training.codecs.1: parameter_server with sign_sgd has no server that decodes what",
        ),
        (
            dict(codecs={1: part("fp16")}),
            "training.codecs.1: ring with fp16 has no server that decodes what each worker sends; "
            "take parameter_server",
        ),
        (
            FED | dict(exchange=part("hips"), levels=[IDENTITY] * 2, codecs={1: part("fp16")}),
            "training.codecs.1: hips with fp16 has no server that decodes what each worker sends",
        ),
        (
            SERVER | dict(codecs={1: part("fp16")}, levels=[IDENTITY | {"down": part("fp16")}]),
            "levels: down would code the model",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(training, said):
    with pytest.raises(ValueError, match=said):
        settings.parse(document(training=training))


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(state="runs/state", training=SERVER | dict(synchronization=part("asp"))),
         "state: asp has no moment at which all stand still"),
        (dict(state="runs/state", training=dict(rounds=None, seconds=3.0)),
         "state: a run of so many seconds cannot be resumed"),
        (dict(on_loss="replace"), "on_loss: replace needs a server that keeps the model"),
        (dict(iteration_s=[[0.1], [0.2]]), "iteration_s: give those of 3 workers"),
        (dict(iteration_s=[[0.1]] * 3, training=dict(uneven={"highest": 2.0})),
         "iteration_s: .* and no training.uneven"),
        (dict(addresses={"site9/worker0": "tcp://a:1"}), "addresses: no member 'site9/worker0'"),
        (dict(addresses={"coordinator": "a:1"}), "coordinator must be at tcp://host:port"),
        (dict(addresses={"coordinator": "tcp://a:1", "site1/worker0": "tcp://b:1"}),
         "keys: name a folder, since other hosts reach the members"),
        (dict(addresses={"coordinator": "tcp://192.0.2.1:1"}), "keys: name a folder, since other"),
        (dict(dds={"interface": "eth0"}), "keys: name a folder, since other hosts reach"),
        (dict(dds={}, addresses={"coordinator": "tcp://a:1"}), "addresses: .* not with dds"),
        (dict(dds={}, network={"lan": 1e9, "wan": 1e8}), "network: .* not with dds"),
        (dict(worst=2.0), "worst: ring with identity has no server that knows whose is bad"),
        (dict(worst=0.5), "worst: .*greater than or equal to 1"),
        (dict(limits={"largest": 1e39}), "limits.largest: .*less than or equal"),
        (dict(begin_with=1), "begin_with: needs on_loss: replace"),
        (dict(begin_with=4, on_loss="replace", training=SERVER | dict(optimizer_at="server")),
         "begin_with: there are 3 workers"),
        (dict(kept=1), "kept: .*greater than or equal to 2"),
        (dict(networks={}), "networks: no such key; there are: training, network, own, order"),
        (dict(limits={"tensor": 3}), "limits.tensor: no such key; there are: join_s"),
        (dict(training=dict(networks={})), "training.networks: leave it out"),
    ],
)  # fmt: skip
def test_settings_are_refused_by_field(changes, said):
    with pytest.raises(ValueError, match=said):
        settings.parse(document(**changes))


OWN = dict(model="a.py:b", data="a.py:c", loss="a.py:d", optimizer="a.py:e")
PLAIN = dict(
    exchange=part("ring"),
    levels=[IDENTITY],
    synchronization=part("bsp"),
    workers=[2],
    rounds=3,
    evaluate_every=1,
)


@pytest.mark.parametrize(
    "field, value",
    [
        ("momentum", 0.9),
        ("lr", 0.1),
        ("batch", 32),
        ("model", part("lenet5")),
        ("dataset", "mnist"),
        ("validation", 100),
        ("augment", True),
        ("lr_steps", {10: 0.1}),
        ("split", part("by_label")),
        ("subset", 5),
        ("deal", "each_round"),
        ("momentum_lasts", "round"),
    ],
)
def test_what_ones_own_functions_say_is_not_said_twice(field, value):
    given = settings.parse(dict(training=PLAIN, own=OWN, output="runs/one"))
    assert settings.parse(given.model_dump(exclude={"training": {"networks"}})).run == given.run
    training = PLAIN | dict(synchronization=part("bsp", local_iterations=2)) | {field: value}
    with pytest.raises(ValueError, match=f"training.{field}: leave it out"):
        settings.parse(dict(training=training, own=OWN, output="runs/one"))


@pytest.mark.parametrize(
    "policy",
    [
        dict(name="fedavg", local_iterations=94),
        dict(name="mll_sgd", local_iterations=10, hub_rounds=8, group_size=1),
        dict(name="lpsp"),
    ],
)
def test_policies_that_meet_seldom_are_no_error(policy):
    given = document(training=SERVER | dict(synchronization=policy))
    assert settings.parse(given).mode == "model"


def test_the_example_of_the_module_is_a_run():
    text = settings.__doc__.partition("for instance::\n\n")[2].partition("\nWith ``own``")[0]
    given = settings.parse(yaml.safe_load(text))
    assert given.training.workers == (2, 2) and given.network is None


@pytest.mark.parametrize("form", [json.dumps, yaml.safe_dump])
def test_json_and_yaml_say_the_same(tmp_path, form):
    file = tmp_path / "run.yaml"
    file.write_text(form(document()))
    assert settings.read(file).model_dump() == settings.parse(document()).model_dump()


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "run.yaml: cannot be read as JSON or YAML"),
        ("[1]", "run.yaml: Input should be"),
        ("output: a\noutput: b", "run.yaml: .*key 'output' is given twice"),
    ],
)
def test_files_that_are_none_are_named(tmp_path, text, said):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        settings.read(file)


def test_the_network_is_that_of_the_recipe():
    """Written down and read again, it is the same run; another network is another run."""
    given = settings.parse(document(network=dict(lan=1e9, wan=50e6, colocated=1)))
    (link,) = given.training.networks.values()
    assert link == given.network and "site1/host" in given.topology.node_names
    text = given.model_dump_json(exclude={"training": {"networks"}})
    assert settings.parse(json.loads(text)).run == given.run != settings.parse(document()).run


def test_members_know_whom_they_exchange_with():
    """Every pair that sends each other anything in some meeting, and not all pairs."""
    hips = SERVER | dict(exchange=part("hips"), levels=[IDENTITY, IDENTITY], workers=[3, 2])
    for given in (SERVER, hips, dict(workers=[4])):
        run = settings.parse(document(training=given))
        names = run.topology.node_names
        partners = {node: run.partners(node) for node in (*run.servers, *run.workers)}
        ranks = range(len(run.workers))
        for some in itertools.chain.from_iterable(
            itertools.combinations(ranks, count) for count in range(1, len(ranks) + 1)
        ):
            plan = run.exchange(run.topology, [run.workers[rank] for rank in some])
            for src, dst in zip(plan.src.tolist(), plan.dst.tolist(), strict=True):
                assert src == dst or names[dst] in partners[src] and names[src] in partners[dst]
        counts = {len(partners[worker]) for worker in run.workers}
        assert counts == {len(partners) - 1 if run.exchange.whole else 1}


def test_workers_sleep_so_long():
    """By a factor for each worker of a site, or until an iteration has taken what is given."""
    slowed = settings.parse(document(training=dict(uneven={"sites": [1.0, 3.5]})))
    assert [slowed.pause_s(rank, 1, 0.2) for rank in range(3)] == [0, 0, 0.5]
    paced = settings.parse(document(iteration_s=[[0.5, 0.125], [1.0], [1.0]]))
    assert [paced.pause_s(0, number, 0.25) for number in (1, 2, 3)] == [0.25, 0, 0.25]
    assert settings.parse(document()).pause_s(0, 1, 0.2) == 0


def test_what_ray_cannot_place_is_refused():
    hosts = [dict(NodeManagerAddress=host, Alive=True) for host in ("192.0.2.1", "192.0.2.2")]
    ray = SimpleNamespace(nodes=lambda: hosts)
    with pytest.raises(ValueError, match="keys: name a folder, since Ray's nodes are on several"):
        on_ray.Placed(settings.parse(document()), ray)
    with pytest.raises(ValueError, match="network: must be null, for Ray's processes"):
        on_ray.Placed(settings.parse(document(network=dict(lan=1e9, wan=50e6))), ray)


def test_members_are_the_coordinator_the_servers_that_take_part_and_the_workers():
    workers = ("site1/worker0", "site1/worker1", "site2/worker0")
    assert settings.parse(document()).members == ("coordinator", *workers)
    star = settings.parse(document(training=SERVER))
    assert star.members == ("coordinator", "central/server", *workers)
    hips = dict(exchange=part("hips"), levels=[IDENTITY] * 2)
    sites = ("central/server", "site1/server", "site2/server")
    assert settings.parse(document(training=hips)).members == ("coordinator", *sites, *workers)


@pytest.mark.parametrize(
    "training, mode",
    [
        ({}, "sum"),
        (SERVER, "sum"),
        (SERVER | dict(optimizer_at="server"), "model"),
        (SERVER | dict(synchronization=part("bsp", local_iterations=2)), "model"),
        (dict(synchronization=part("bsp", local_iterations=2)), "sum"),
        (SERVER | dict(synchronization=part("asp")), "model"),
        (SERVER | dict(codecs={0: part("fp16")}), "model"),
    ],
)
def test_a_server_keeps_the_model_where_there_is_one_and_it_must(training, mode):
    assert settings.parse(document(training=training)).mode == mode


def test_command_refuses_bad_files_and_makes_keys(tmp_path, capsys):
    file = tmp_path / "run.yaml"
    assert command.main([str(file)]) == 2
    assert "run.yaml" in capsys.readouterr().err
    file.write_text("training: 3\n")
    assert command.main([str(file)]) == 2
    assert f"{file}: training" in capsys.readouterr().err
    file.write_text(yaml.safe_dump(document()))
    assert command.main([str(file), "--record", str(tmp_path / "none/run.json")]) == 2
    assert "--record: there is no folder for" in capsys.readouterr().err
    keys = tmp_path / "keys"
    file.write_text(yaml.safe_dump(document(keys=str(keys))))
    assert command.main([str(file), "--make-keys"]) == 0
    assert Keys(keys, "coordinator").allowed().keys() == set(settings.read(file).members)
    assert command.main([str(file), "--node", "site1/worker0"]) == 1
    assert "addresses: give that of the coordinator" in capsys.readouterr().err
