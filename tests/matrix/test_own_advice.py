"""Advice on files: equal to that of built-in numbers that are the same; intervals; break-even."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from slowlink.testbed import given
from slowlink.testbed.cache import VARIABLE
from slowlink.testbed.matrix import time_round
from slowlink.testbed.network import cluster as clusters
from slowlink.testbed.network.cluster import Cluster
from slowlink.testbed.training import device, own, pipeline
from slowlink.testbed.training.recipe import Level, Part
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import advice, experiments
from slowlink.workflow.matrix import own as own_advice
from slowlink.workflow.matrix.own import Asked, crossing
from slowlink.workflow.matrix.rounds import methods_of

ONLY = ["--only", "codec=identity|top_k|fp16|sign_sgd,fusion=layer_fusion|buckets|whole_model"]
BATCH = 1024  # of resnet20 in the matrix


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model and a device file that say what is built in."""
    folder = tmp_path_factory.mktemp("own")
    layers = pipeline.layers(Part(name="resnet20"))
    backward = [t.backward * 2.0 for t in layers.tensors]  # of an iteration of two seconds
    tensors = [
        own.Tensor(name=t.name, shape=t.shape, backward_s=s)
        for t, s in zip(layers.tensors, backward, strict=True)
    ]
    model = own.ModelFile(
        model="mine",
        batch=BATCH // 8,
        forward_s=2.0 - sum(backward),
        samples_per_s=BATCH / 16,
        flops=layers.flops,
        tensors=tensors,
    )
    given.write(folder / "model.yaml", "", model)
    given.write(folder / "device.yaml", "", {"gpu": device.profile("v100_matrix")})
    return folder


def ask(capsys, *arguments):
    advice.main([*map(str, arguments), *ONLY, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, text",
    [
        (
            ["--lan", "1G", "--uneven", "1"],
            "sites: [{workers: 8, card: {rate: 1G, latency: 10us}}]",
        ),
        (
            ["--lan", "10G", "--wan", "50M", "--sites", "2"],
            "sites: [&site {workers: 4, card: {rate: 10G, latency: 10us}, "
            "wan: {rate: 50M, latency: 5ms}}, *site]",
        ),
        (
            ["--lan", "1G", "--wan", "1M", "--sites", "1"],
            "sites: [{workers: 8, card: &card {rate: 1G, latency: 10us}, "
            "wan: &wan {rate: 1M, latency: 5ms}}]\ncenter: {card: *card, wan: *wan}",
        ),
    ],
    ids=["flat", "sites", "one site"],
)
def test_files_that_say_what_is_built_in_get_the_same_advice(capsys, files, options, text):
    (files / "cluster.yaml").write_text(f"{text}\nefficiency: 0.9564\n")
    built_in = ask(capsys, "--model", "resnet20", "--workers", 8, *options)
    mine = ask(
        capsys,
        *("--model-file", files / "model.yaml", "--device-file", files / "device.yaml"),
        *("--cluster-file", files / "cluster.yaml"),
    )
    assert mine["setting"].startswith("mine, 1024 samples a round")
    assert len(mine["methods"]) == len(built_in["methods"]) > 5
    for one, other in zip(mine["methods"], built_in["methods"], strict=True):
        assert one["method"] == other["method"] and one["rank"] == other["rank"]
        assert one["worth_it"] == other["worth_it"]
        for key in ("round_s", "compute_s", "compress_s", "exchange_s", "wait_s", "sent_bytes"):
            assert one[key] == pytest.approx(other[key], rel=1e-6)
        assert one["round_s_within"] is None  # nothing in these files was measured
    assert mine["first_at"] == {}


def asked(cluster, machine="v100_matrix", model="resnet20", batch=BATCH):
    layers = pipeline.layers(Part(name=model))
    cluster = Cluster(**cluster, overhead_s=1e-4, pieces=8, efficiency=1.0)
    return Asked(model, layers, batch, cluster, device.profile(machine), machine)


def spread(value):
    return {"low": 0.8 * value, "median": value, "high": 1.3 * value}


SITES = [
    {"workers": 2, "card": 1e10, "wan": {"rate": spread(2e8), "latency": spread(0.004)}},
    {"workers": 3, "card": spread(1e9), "wan": {"up": spread(5e7), "down": 1e8, "latency": 0.01}},
]


def methods(*labels):
    """Each on the first of its exchanges."""
    found = advice.recipe().found()
    return {label: methods_of(label, found[label])[0] for label in labels}


def test_what_was_timed_is_kept_until_anything_it_depends_on_changes(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    one = asked(dict(sites=SITES))
    several = methods("ring", "power_sgd", "torch DDP").values()
    alone = [time_round(m, one.tensors, one.cluster, one.machine, one.batch) for m in several]
    several, least = list(several), min(made.round_s for made in alone)
    first = one.best(several)
    assert first[1].round_s == least and [one.timed(m) for m in several] == alone
    monkeypatch.setattr(own_advice, "best_round", refuse)
    monkeypatch.setattr(own_advice, "time_round", refuse)
    again = asked(dict(sites=SITES))
    assert again.best(several) == first and [again.timed(m) for m in several] == alone
    for other in (
        replace(one, batch=2 * one.batch),
        replace(one, machine=device.profile("a100")),
        one.with_rate(2 * one.rate),
    ):
        with pytest.raises(AssertionError):
            other.best(several)


def refuse(*_):
    raise AssertionError("timed again")


def test_all_methods_take_less_time_when_they_are_asked_for_again():
    """The second of two processes finds the rounds of the first."""
    recipe = advice.recipe("smoke")
    rows = experiments.effort.function(Bench("matrix", "effort", recipe, "smoke"))
    found = {(row.metric, row.at.get("cache", "")): row.value for row in rows}
    # GeoMX, LPSP, a codec between sites and the ring have one exchange each.
    exchanges = [len(one.exchange) for one in recipe.found().values()]
    assert found["systems", ""] == sum(exchanges) and exchanges.count(1) == 4
    assert found["classes", ""] == len(recipe.found()) == 6
    assert 0 < found["processor_time", "warm"] < found["processor_time", "cold"]


def test_intervals_hold_whatever_lies_between_the_quartiles():
    machine = device.profile("v100_matrix")
    known = {
        name: cost.model_copy(update={"spread": (0.7, 1.5)}) for name, cost in machine.known.items()
    }
    machine = device.Device(**dict(machine) | {"known": known, "spread": (0.9, 1.2)})
    question = replace(asked({"sites": SITES}), machine=machine)
    rounds = {
        label: (method, question.timed(method))
        for label, method in methods("ring", "top_k", "sign_sgd", "power_sgd every 3").items()
    }
    found, corners = own_advice.intervals(question, rounds, ["ring", "top_k"])
    assert len(corners) == 4 and set(corners.values()) <= {"ring", "top_k"}
    chance = random.Random(0)

    def drawn(quartiles):
        value = chance.uniform(quartiles.low, quartiles.high)
        return clusters.Quartiles(low=value, median=value, high=value)

    for label, (method, made) in rounds.items():
        assert found[label].low < made.round_s < found[label].high
        for _ in range(3):
            sites = []
            for site in question.cluster.sites:
                links = {"wan": site.wan, "card": site.racks[0].card[0]}
                links = {
                    name: {way: drawn(getattr(link, way)) for way in ("up", "down", "latency")}
                    for name, link in links.items()
                }
                sites.append({"workers": site.racks[0].workers, **links})
            kept = dict(overhead_s=1e-4, pieces=8, efficiency=1.0)
            computes, codes = chance.uniform(0.9, 1.2), chance.uniform(0.7, 1.5)
            coding = {name: cost.times(codes) for name, cost in known.items()}
            update = {"flops": machine.flops / computes, "known": coding}
            there = replace(
                question,
                cluster=Cluster(sites=sites, **kept),
                machine=device.Device(**dict(machine) | update),
            )
            # A search for groups may find slightly better ones somewhere between.
            assert found[label].low * 0.99 < there.timed(method).round_s < found[label].high * 1.01


def test_nothing_measured_no_interval():
    question = asked({"sites": [{"workers": 4, "card": 1e9}]})
    assert question.corners() == {}
    assert own_advice.intervals(question, {}, []) == ({}, {})


# Break-even ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [2e6, 3.3e7, 1e9, 7e10, 5e11])
@pytest.mark.parametrize("start", [1e6, 1e8, 1e12])
@pytest.mark.parametrize("kind", ["smooth", "kinked", "jump"])
def test_a_crossing_is_found_from_anywhere(at, start, kind):
    def difference(rate):
        x = math.log(rate / at)
        return {"smooth": math.tanh(x), "kinked": x if x < 0 else 9 * x, "jump": -0.1 + (x >= 0)}[
            kind
        ]

    asks = []
    found = crossing(lambda rate: asks.append(rate) or difference(rate), start)
    assert found == pytest.approx(at, rel=own_advice.EXACT)
    assert len(asks) < 40


def test_what_always_or_never_wins_has_no_crossing():
    assert crossing(lambda rate: -1.0, 1e9) == math.inf
    assert crossing(lambda rate: 1.0, 1e9) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster",
    [
        {"sites": [{"workers": 6, "card": {"rate": 1e9, "latency": 1e-5}}]},
        {"sites": [{"workers": 3, "card": 1e10, "wan": 1e8}, {"workers": 3, "card": 1e10,
         "wan": {"up": 2e7, "down": 1e8, "latency": 0.005}}]},
    ],
    ids=["flat", "sites"],
)  # fmt: skip
def test_break_even_is_where_brute_force_finds_it(cluster):
    question, matrix = asked(cluster), advice.recipe()
    coded = methods("sign_sgd", "top_k")
    found = dict(own_advice.break_evens(question, coded, matrix.found()))
    assert set(found) == set(coded)
    for label, method in coded.items():
        plain, _ = question.best(own_advice.plain_methods(method, matrix.found()))
        assert plain.levels[0] == Level(up=Part(name="identity"))
        step = 1.3
        rates = [1e6 * step**n for n in range(53)]

        def faster(rate, method=method, plain=plain):
            there = question.with_rate(rate)
            return there.timed(method).round_s < there.timed(plain).round_s

        won = [faster(rate) for rate in rates]
        changes = [n for n in range(1, len(rates)) if won[n] != won[n - 1]]
        if not changes:
            assert found[label].below == (math.inf if won[0] else 0.0)
        else:
            near = [rates[n - 1] / 1.01 <= found[label].below <= rates[n] * 1.01 for n in changes]
            assert any(near), (label, found[label].below, [rates[n] for n in changes])


def test_plain_values_have_no_break_even():
    question, matrix = asked({"sites": [{"workers": 4, "card": 1e9}]}), advice.recipe()
    plain = methods("ring", "torch DDP")
    assert dict(own_advice.break_evens(question, plain, matrix.found())) == {}


# The command --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--model", "resnet20"], "how many workers are there? say --workers 8, or give --cluster"),
        (["--lan", "1G"], "one of the arguments --model --model-file is required"),
        (["--model-file", "none.yaml", "--workers", "4", "--lan", "1G"], "none.yaml: No such file"),
        (["--model", "resnet20", "--workers", "4", "--lan", "1G", "--device-file", "none.yaml"],
         "none.yaml: No such file"),
        (["--model", "resnet20", "--cluster-file", "c.yaml", "--lan", "1G"],
         "--lan: --cluster-file says what the cluster is; leave it out"),
        (["--model", "resnet20", "--cluster-file", "none.yaml"], "docs/measuring.md shows"),
        (["--model", "resnet20", "--workers", "4", "--lan", "1G", "--device", "a100",
          "--device-file", "d.yaml"], "--device-file or --device, not both"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_the_option(capsys, arguments, says):
    with pytest.raises(SystemExit) as stopped:
        advice.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and says in said and "Traceback" not in said


def test_a_device_that_cannot_time_the_model_is_refused(capsys, files):
    given.write(files / "slow.yaml", "", {"gpu": device.Device(
        **dict(device.profile("v100_matrix")) | {"flops": None, "samples_per_s": {}}
    )})  # fmt: skip
    arguments = ["--model", "resnet20", "--workers", "4", "--lan", "1G"]
    with pytest.raises(SystemExit) as stopped:
        advice.main([*arguments, "--device-file", str(files / "slow.yaml")])
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "neither samples_per_s nor operations a second are" in said


@pytest.mark.slow
def test_measured_spreads_are_told(capsys, files):
    (files / "spread.yaml").write_text(
        "sites: [{workers: 4, card: {low: 40M, median: 50M, high: 60M}}]\n"
    )
    arguments = ["--model-file", files / "model.yaml", "--cluster-file", files / "spread.yaml"]
    mine = ask(capsys, *arguments)
    shown = [one for one in mine["methods"] if one["round_s_within"]]
    assert shown and set(mine["first_at"]) == {"fast links", "slow links"}
    for one in shown:
        low, high = one["round_s_within"]
        assert low <= one["round_s"] <= high
    # Plain values wait for the links, whose rates are 20 % off either way.
    plain = next(one for one in shown if one["method"] == "torch DDP")
    low, high = (seconds / plain["round_s"] for seconds in plain["round_s_within"])
    assert 1 / 1.21 < low < 0.95 and 1.05 < high < 1.26
    advice.main([*map(str, arguments), *ONLY])
    said = capsys.readouterr().out
    assert "within" in said and "at both quartiles of all that was measured" in said
    assert "4 workers with cards of 50 Mbit/s" in said
