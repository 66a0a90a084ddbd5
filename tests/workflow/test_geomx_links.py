"""GeoMX's cells on emulated links: what is sent, which rows come of it, and the record."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from methods import exchange
from testbed import results, rounds
from testbed.live import agreement
from testbed.live.agreement import Compared
from testbed.network import geo_sites, simulate, tcp_efficiency
from testbed.network.counting import transfer_bytes
from testbed.network.emulated import Measured
from testbed.results import Row
from testbed.training.datasets import Dataset
from testbed.training.recipe import Part
from testbed.training.trainer import train
from workflow.experiments import _links, geomx
from workflow.recipes import Check, SettingsError
from workflow.recipes.geomx import GeoMX
from workflow.settings import load, merge

SITES = geo_sites([2, 2], lan=2e8, wan=5e7)
SIZE = 4 * 23_488_010  # ResNet-50 for one channel: the 93.95 MB of Table 2


@pytest.fixture(scope="module")
def recipe():
    return load({"scale": "smoke"}, names=False).recipes["geomx"]


def changed(recipe, **changes):
    return GeoMX(**merge(recipe.model_dump(mode="json"), changes))


@pytest.fixture(autouse=True)
def images(monkeypatch):
    """Noise in place of pictures."""
    random = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 256, (80, 1, 28, 28), generator=random, dtype=torch.uint8)
    labels = torch.arange(80) % 10
    data = Dataset(
        name="noise",
        train_x=pictures,
        train_y=labels,
        test_x=pictures[:10],
        test_y=labels[:10],
        n_classes=10,
        shape=(1, 28, 28),
        mean=torch.tensor([0.5]),
        std=torch.tensor([0.3]),
    )
    monkeypatch.setattr(rounds, "load_dataset", lambda name, **limits: data)
    return data


@pytest.fixture
def compare(monkeypatch):
    """Links that are always there and take 2 % longer than simulated; keeps what it was given."""
    calls = []

    def fake(plan, topology, sizes, *, efficiency, say, **options):
        seconds = simulate(plan, topology, sizes, efficiency=efficiency).completion_s
        calls.append(SimpleNamespace(plan=plan, topology=topology, sizes=sizes, **options))
        links = [Measured(*pair, 9e7, 9.5e7, 1e-4) for pair in agreement.pairs(plan)]
        return Compared(seconds, 1.02 * seconds, 0.3, links, 1.0, 0.5)

    monkeypatch.setattr(_links.emulated, "available", lambda: "")
    monkeypatch.setattr(_links.agreement, "compare", fake)
    return calls


def run(recipe, experiment):
    return results.frame(geomx.rows(recipe, "smoke", experiment, lambda message: None))


def small(recipe, system):
    """A round of ``system`` among two workers in each of two sites, on a small model."""
    one = geomx._full_size(recipe, recipe.table2, system, Part(name="strided_cnn"), "smoke")
    link = recipe.link(recipe.table2.cases["GeoMX-155M"], [2, 2])
    return one.model_copy(update=dict(workers=(2, 2), networks={"any": link}, batch=2))


def test_payloads_are_the_bytes_that_traffic_counts(recipe):
    systems = ["GeoMX", "GeoMX FP16", "GeoMX BiSparse", "GeoMX BiSparse+FP16"]
    recipes = {system: small(recipe, system) for system in systems}
    counted = rounds.real_traffic(recipes)
    plan = exchange.load("hips")(SITES)
    for system, traffic, bodies in rounds.real_payloads(recipes):
        assert traffic == counted[system]
        ((sizes),) = traffic.rounds
        for slot, size in sizes.items():
            if isinstance(size, dict):
                assert {node: len(body) for node, body in bodies[slot].items()} == size
            else:
                assert [len(body) for body in bodies[slot].values()] == [size]
        sent = rounds.bound(plan, bodies)
        of = {slot: {n: len(body) for n, body in by.items()} for slot, by in sent.items()}
        assert np.array_equal(transfer_bytes(plan, of), transfer_bytes(plan, sizes))


def test_payloads_are_those_of_real_gradients(recipe):
    """Dense ones add up to the answer; half precision is the same in half the bytes."""
    recipes = {system: small(recipe, system) for system in ("GeoMX", "GeoMX FP16")}
    bodies = {system: bodies for system, _, bodies in rounds.real_payloads(recipes)}

    def values(system, slot, dtype):
        return [np.frombuffer(body, dtype) for body in bodies[system][slot].values()]

    pushed = values("GeoMX", "push/0", np.float32)
    assert len(pushed) == 4 and all(np.abs(one).max() > 0 for one in pushed)
    assert len({one.tobytes() for one in pushed}) == 4, "every worker has its own batch"
    for slot in ("pull/1", "pull/0"):
        (answer,) = values("GeoMX", slot, np.float32)
        np.testing.assert_allclose(answer, sum(pushed), rtol=1e-4, atol=1e-6)
    halves = values("GeoMX FP16", "push/0", np.float16)
    for whole, half in zip(pushed, halves, strict=True):
        np.testing.assert_array_equal(whole.astype(np.float16), half)


def test_cells_are_those_that_the_scale_chooses(recipe):
    (only,) = recipe.cells("table1")
    assert only[0].name == "resnet18_v1" and list(only[1]) == ["GeoMX-1G"]
    assert list(recipe.cells("table2")) == []
    desk = load({"scale": "desk"}, names=False).recipes["geomx"]
    assert [network.name for network, _ in desk.cells("table1")] == ["resnet18_v1"]
    ((_, cases),) = desk.cells("table2")
    left = {"GeoMX-155M", "GeoMX-155M FP16", "GeoMX-10M BiSparse+FP16"}
    assert set(desk.table2.cases) - set(cases) == left
    paper = load({"scale": "paper"}, names=False).recipes["geomx"]
    cells = [cell for t in ("table1", "table2") for _, cases in paper.cells(t) for cell in cases]
    assert len(cells) == 4 * 4 + 9


def test_dense_cells_send_full_vectors_over_the_documents_hosts(recipe, compare):
    everywhere = dict(table1=dict(models=[]), table2=dict(cases=["MXNET-1G", "GeoMX-155M"]))
    rows = run(changed(recipe, emulated=everywhere), "emulated")
    assert len(compare) == 2
    for call in compare:
        assert call.sizes == SIZE and call.bodies is None
        assert not call.plan.overlap and not call.topology.link_latency.any()
        assert "site1/host" in call.topology.node_names
    cells = rows[(rows["experiment"] == "emulated") & (rows["metric"] == "communication_time")]
    assert list(cells["evidence"]) == ["simulated", "emulated"] * 2
    assert set(cells["variant"]) == {"table2"} and set(cells["workers"]) == {8}
    # The emulated time stands again beside the table's simulated one, and alone.
    beside = rows[rows["experiment"] == "table2"]
    assert set(beside["evidence"]) == {"emulated"} and set(beside["variant"]) == {"testbed"}
    assert set(beside["metric"]) == {"communication_time"} and len(beside) == 2
    ratio = rows.loc[rows["metric"] == "emulated_over_simulated", "value"]
    assert list(ratio) == pytest.approx([1.02, 1.02])
    ends = rows.loc[rows["metric"] == "link_rate", "case"]
    assert "GeoMX-155M: central/server to site2/server" in set(ends)


def test_compressed_cells_send_real_payloads(recipe, compare, monkeypatch):
    small_one = {"name": "strided_cnn"}
    chosen = ["GeoMX-155M FP16", "GeoMX-50M BiSparse+FP16", "GeoMX-10M BiSparse+FP16"]
    fewer = changed(
        recipe,
        emulated=dict(table1=dict(models=[]), table2=dict(cases=chosen)),
        table2=dict(model=small_one),
    )
    rows = run(fewer, "emulated")
    cells = rows[rows["metric"] == "emulated_over_simulated"]
    assert sorted(cells["case"]) == sorted(chosen) and set(cells["model"]) == {"strided_cnn"}
    assert len(compare) == 3
    for call in compare:
        sent = {slot: {n: len(body) for n, body in by.items()} for slot, by in call.bodies.items()}
        assert np.array_equal(
            transfer_bytes(call.plan, sent), transfer_bytes(call.plan, call.sizes)
        )


def test_the_system_is_compared_with_virtual_time(recipe, images, monkeypatch):
    """Here the processes are the trainer itself, once more, with one loss off by what is told."""
    off = 0.0

    def run_all(cluster, timeout_s, say, pairs, measured_s):
        run = cluster.training
        assert measured_s == recipe.emulated.measured_s
        assert run.networks["emulated"] == cluster.network and cluster.network.wan == 155e6
        assert run.exchange.parameters == recipe.default_variant.exchange
        assert cluster.network.efficiency == recipe.default_variant.efficiency
        rows = [row.model_copy(update=dict(evidence="emulated")) for row in train(run, load=load)]
        (one,) = (row for row in rows if row.metric == "test_loss" and row.round == 2)
        rows[rows.index(one)] = one.model_copy(update=dict(value=one.value + off))
        results.write(rows, cluster.output / "rows.parquet")
        return [Measured(*pair, 9e7, 9.5e7, 1e-4) for pair in pairs]

    def load(name, **limits):
        return images

    monkeypatch.setattr(_links.emulated, "available", lambda: "")
    monkeypatch.setattr("testbed.live.hips.launch.run_all", run_all)
    monkeypatch.setattr(geomx, "train", lambda run, say: train(run, say, load))
    rows = run(recipe, "system")
    assert set(rows["case"]) == {"GeoMX FP16"} and set(rows["experiment"]) == {"system"}
    (apart,) = rows.loc[rows["metric"] == "live_difference", "value"]
    assert apart == 0
    losses = rows[rows["metric"] == "test_loss"].groupby("variant")["round"].apply(list)
    assert losses["live"] == losses["virtual"] == [0, 2, 4]
    live = rows[(rows["variant"] == "live") & (rows["metric"] == "test_accuracy")]
    assert set(live["evidence"]) == {"emulated"}
    links = rows[rows["variant"].str.startswith("live: ")].groupby("metric")
    pairs = {"site2/server to central/server", "central/server to site2/server"}
    for metric, value, unit in (
        ("link_rate", 9e7, "bit/s"),
        ("link_rate_expected", 9.5e7, "bit/s"),
        ("round_trip", 1e-4, "s"),
    ):
        one = links.get_group(metric)
        assert pairs <= set(one["variant"].str.removeprefix("live: "))
        assert (set(one["value"]), set(one["unit"])) == ({value}, {unit})
        assert set(one["evidence"]) == {"emulated"}

    off = 0.25
    with pytest.raises(RuntimeError, match="GeoMX FP16: test losses .* are 0.25 apart, not 0"):
        run(recipe, "system")

    def fails(cluster, timeout_s, say, pairs, measured_s):
        raise RuntimeError("site1/worker0 was lost")

    monkeypatch.setattr("testbed.live.hips.launch.run_all", fails)
    rows = run(recipe, "system")
    (row,) = rows[rows["variant"] == "live"].itertuples()
    assert (row.status, row.reason) == ("failed", "site1/worker0 was lost")


@pytest.mark.parametrize("experiment", ["emulated", "agreement"])
def test_where_links_cannot_be_emulated_rows_say_why(recipe, monkeypatch, experiment):
    monkeypatch.setattr(_links.emulated, "available", lambda: "no right to make namespaces")
    rows = run(recipe, experiment)
    failed = rows[rows["status"] == "failed"]
    assert set(failed["reason"]) == {"no right to make namespaces"} and len(failed) == 1
    assert set(rows["experiment"]) == {experiment}, "no verdict rests on a failed row"


def test_a_failed_run_is_a_row(recipe, compare, monkeypatch):
    def fails(*_, **options):
        raise RuntimeError("node site1/server died")

    monkeypatch.setattr(_links.agreement, "compare", fails)
    (row,) = run(recipe, "emulated").itertuples()
    assert (row.status, row.reason) == ("failed", "node site1/server died")


def test_agreement_runs_what_the_recipe_lists(recipe, compare):
    every = changed(recipe, agreement=dict(chosen=None, repeats=2))
    rows = run(every, "agreement")
    times = rows[rows["metric"] == "completion_time"]
    assert list(times["case"][::2]) == list(every.agreement.cases)
    assert len(compare) == len(every.agreement.cases) and {c.repeats for c in compare} == {2}
    for case, call in zip(every.agreement.cases, compare, strict=True):
        assert call.fair == ("one queue a link" not in case)
    assert sum(not call.fair for call in compare) == 2
    assert rows.loc[rows["metric"] == "vector", "value"].between(2, 10).all()
    assert rows.loc[rows["metric"] == "completion_time", "bandwidth"].between(1e7, 1.55e8).all()


def test_a_record_comes_back_as_recorded_rows_of_any_scale(recipe, compare, tmp_path):
    file = tmp_path / "emulated.parquet"
    results.write(geomx.rows(recipe, "smoke", "emulated", lambda message: None), file)
    _links.record(file, tmp_path / "kept.json", "the command")
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["command"] == "the command" and kept["cores"] > 0 and kept["processor"]
    assert {row["evidence"] for row in kept["rows"]} == {"simulated", "emulated"}
    rows = results.frame(_links.recorded(tmp_path / "kept.json", today(kept, 1.005), "desk"))
    assert set(rows["evidence"]) == {"recorded"} and set(rows["scale"]) == {"desk"}
    (beside,) = rows[rows["experiment"] != "emulated"].itertuples()
    assert (beside.experiment, beside.variant, beside.metric) == ("table1", "testbed", _links.TIME)
    rows = rows[rows["experiment"] == "emulated"]
    assert set(rows["variant"]) == {"table1"} and set(rows["reason"]) == {""}
    assert set(rows["metric"]) == set(_links.RECORDED)
    again = run(recipe, "emulated").query("experiment == 'emulated' and evidence == 'emulated'")
    for row in rows.itertuples():
        (same,) = again[(again["case"] == row.case) & (again["metric"] == row.metric)]["value"]
        assert row.value == same


def test_records_have_no_gaps_and_are_records(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(_links.emulated, "available", lambda: "not here")
    file = tmp_path / "emulated.parquet"
    results.write(geomx.rows(recipe, "smoke", "emulated", lambda message: None), file)
    with pytest.raises(ValueError, match="'GeoMX-1G' failed; a record has no gaps"):
        _links.record(file, tmp_path / "kept.json", "")
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(ValueError, match="b.json: not a record of rows"):
        list(_links.recorded(tmp_path / "b.json", results.frame([]), "desk"))


def today(kept, factor):
    """Table 1 as it is simulated now: ``factor`` times what it was when recorded."""
    simulated = [row for row in kept["rows"] if row["evidence"] == "simulated"]
    change = dict(experiment="table1", variant="testbed")
    ours = [Row(**row | change | dict(value=factor * row["value"])) for row in simulated]
    other = [row.model_copy(update=dict(variant="serial", value=9 * row.value)) for row in ours]
    return results.frame([*ours, *other])


def test_a_record_of_another_simulation_is_stale(recipe, compare, tmp_path):
    file = tmp_path / "emulated.parquet"
    results.write(geomx.rows(recipe, "smoke", "emulated", lambda message: None), file)
    _links.record(file, tmp_path / "kept.json", "the command")
    kept = json.loads((tmp_path / "kept.json").read_text())
    rows = results.frame(_links.recorded(tmp_path / "kept.json", today(kept, 1.02), "desk"))
    assert set(rows["experiment"]) == {"emulated"}, "it is evidence of nothing"
    (reason,) = set(rows["reason"]) - {""}
    assert reason.startswith("stale: simulated ") and reason.endswith(" s today")
    # Cells that today's tables do not have are left out.
    gone = today(kept, 1.0).assign(model="resnet34_v1")
    assert not list(_links.recorded(tmp_path / "kept.json", gone, "desk"))


@pytest.mark.parametrize(
    ("key", "changes", "said"),
    [
        ("emulated.table1.models", dict(table1=dict(models=["resnet19"])), "resnet101_v1"),
        ("emulated.table2.cases", dict(table2=dict(cases=["GeoMX-2G"])), "GeoMX-10M BiSparse"),
    ],
)
def test_cells_that_are_none_are_refused(recipe, key, changes, said):
    with pytest.raises(SettingsError, match=rf"file: {key}: .*allowed: .*{said}"):
        changed(recipe, emulated=changes).check(Check(lambda key: "file"))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (dict(network=dict(name="leaf_spine")), r"network.name: 'leaf_spine'; allowed: geo_sites"),
        (dict(network=dict(name="star", workers=0, rate=1e8)), "network: star: needs at least"),
        (dict(exchange=dict(name="rung")), "exchange.name: 'rung'"),
        (dict(network=dict(name="star", workers=2, rate=1e8)), "hips: star has no sites"),
    ],
)
def test_exchanges_that_cannot_be_compared_are_refused(recipe, case, said):
    name = "HiPS, WAN 155M"
    with pytest.raises(SettingsError, match=said):
        changed(recipe, agreement=dict(cases={name: case})).check(Check(lambda key: "file"))


def test_one_pair_of_nodes_a_slot_is_measured():
    plan = exchange.load("hips")(SITES)
    names = [[SITES.node_names[node] for node in pair] for pair in agreement.pairs(plan)]
    assert names == [
        ["site2/worker1", "site2/server"],
        ["site2/server", "central/server"],
        ["central/server", "site2/server"],
        ["site2/server", "site2/worker1"],
    ]


@pytest.mark.parametrize(
    ("emulated_s", "busy", "held", "rate", "uneven", "said"),
    [
        (1.09, 0.99, 0.5, 0.5, 2.0, ""),
        (0.91, 0.99, 0.5, 0.5, 2.0, ""),
        (1.2, 0.9, 0, 0.99, 1.1, "processors 90 % busy (30 % with the exchange)"),
        (1.2, 0.3, 0, 0.5, 1.1, "before the round links carried 50 % of their rate"),
        (1.2, 0.3, 0.05, 0.99, 1.1, "a quota held threads back for 5 % of the time"),
        (1.2, 0.3, 0, 0.99, 1.25, "against simulation, the slowest of the first messages took "
         "1.25 times as long as the fastest"),
        (1.2, 0.9, np.nan, 0.5, 1.1, "processors 90 % busy (30 % with the exchange), before the "
         "round links carried 50 % of their rate"),
        (1.2, np.nan, np.nan, 0.99, 1.15, "processors 30 % busy (30 % with the exchange), links "
         "carried their rate: not explained"),
    ],
)  # fmt: skip
def test_what_was_measured_is_told_where_times_differ(emulated_s, busy, held, rate, uneven, said):
    links = [Measured(0, 1, 1e8, 1e8, 0), Measured(1, 0, rate, 1, 0)]
    both = Compared(1.0, emulated_s, 0.3, links, uneven, busy, held)
    assert both.why == (f"measured: {said}" if said else "")


def test_the_same_plan_runs_for_real_and_in_simulation(monkeypatch):
    """On loopback, which has no limit: real processes, shared by all that this file needs."""

    class Loopback:
        def __init__(self, topology, fair):
            assert fair
            self.topology = topology

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def address(self, node):
            return "127.0.0.1"

        def command(self, node, argv):
            return argv

        def measure(self, pairs, seconds):
            return [Measured(*pair, 1e9, 1e9, 1e-5) for pair in pairs]

    monkeypatch.setattr(agreement, "Emulated", Loopback)
    sites = geo_sites([1, 1])
    plan = exchange.load("hips", overlap=False)(sites)
    sent = {slot: dict.fromkeys(range(5), bytes(5_000)) for slot in plan.slots}
    bodies = rounds.bound(plan, sent)
    sizes = dict.fromkeys(plan.slots, 5_000)
    said = []
    both = agreement.compare(
        plan, sites, sizes, efficiency=tcp_efficiency(), bodies=bodies, repeats=3, say=said.append
    )
    # Messages of 5 kB up and down: each site's one at 1 Gbit/s, both sites' two at 155 Mbit/s.
    expected = (2 * 4e4 / 1e9 + 2 * 8e4 / 155e6) / tcp_efficiency()
    assert both.simulated_s == pytest.approx(expected)
    assert 0 < both.emulated_s < 2 and both.cpu_share > 0 and both.uneven >= 1
    assert np.isnan(both.busy_share) or 0 <= both.busy_share <= 1
    assert len(both.links) == 4 and "site2/server to central/server: 1000.0 of" in " ".join(said)
