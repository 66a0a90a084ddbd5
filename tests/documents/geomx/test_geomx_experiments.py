"""GeoMX's cells on emulated links: what is sent, which rows come of it, and the record."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from slowlink.methods import exchange
from slowlink.testbed import results, rounds
from slowlink.testbed.live import agreement
from slowlink.testbed.live.agreement import Comparison
from slowlink.testbed.live.engine.coordinator import Ended
from slowlink.testbed.network import geo_sites, simulate
from slowlink.testbed.network.counting import transfer_bytes
from slowlink.testbed.network.emulated import Measured
from slowlink.testbed.results import Row, coordinates
from slowlink.testbed.training import models
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Part
from slowlink.testbed.training.trainer import train
from slowlink.workflow import documents, settings
from slowlink.workflow.documents.geomx import experiments, links
from slowlink.workflow.experiment import Bench
from slowlink.workflow.jobs import Jobs

WING = documents.load("geomx")
SITES = geo_sites([2, 2], lan=2e8, wan=5e7)
SIZE = 4 * 23_488_010  # ResNet-50 for one channel: the 93.95 MB of Table 2


def at(scale):
    return settings.load({"scale": scale}, names=False).recipes["geomx"]


@pytest.fixture(scope="module")
def recipe():
    return at("smoke")


def changed(recipe, **changes):
    return WING.schema(**settings.merge(recipe.model_dump(mode="json"), changes))


def bench(recipe, name):
    return Bench("geomx", name, recipe, "smoke", lambda message: None)


def made(recipe, name, **given):
    one = WING.experiments[name]
    sections = {key: getattr(recipe, key) for key in one.sections}
    rows = list(one(bench(recipe, name), **sections, **given))
    assert {row.experiment for row in rows} <= {name, *one.makes}
    return rows


def run(recipe, name, **given):
    return coordinates(results.frame(made(recipe, name, **given)))


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
        return Comparison(seconds, 1.02 * seconds, 0.3, links, 1.0, 0.5)

    monkeypatch.setattr(links, "available", lambda: "")
    monkeypatch.setattr(links, "compare", fake)
    return calls


def small(recipe, systems):
    """A round of each system among two workers in each of two sites, on a small model."""
    runs = experiments.full_size(
        bench(recipe, "table2"), recipe.table2, Part(name="strided_cnn"), systems
    )
    link = recipe.link(155e6, [2, 2])
    update = dict(workers=(2, 2), networks={"any": link}, batch=2)
    return {name: one.model_copy(update=update) for name, one in runs.items()}


def test_payloads_are_the_bytes_that_traffic_counts(recipe):
    systems = ["GeoMX", "GeoMX FP16", "GeoMX BiSparse", "GeoMX BiSparse+FP16"]
    recipes = small(recipe, systems)
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
    recipes = small(recipe, ["GeoMX", "GeoMX FP16"])
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


def cells(recipe, table):
    chosen = getattr(recipe.emulated, table).of(getattr(recipe, table))
    return {(model.name, label) for model, cases in chosen for label in cases}


def test_cells_are_those_that_the_scale_chooses(recipe):
    assert cells(recipe, "table1") == {("resnet18_v1", "GeoMX-1G")}
    assert cells(recipe, "table2") == set()
    desk = at("desk")
    assert {model for model, _ in cells(desk, "table1")} == {"resnet18_v1"}
    left = {"GeoMX-155M", "GeoMX-155M FP16", "GeoMX-10M BiSparse+FP16"}
    assert set(desk.table2.cases) - {label for _, label in cells(desk, "table2")} == left
    paper = at("paper")
    assert len(cells(paper, "table1")) == 4 * 4 and len(cells(paper, "table2")) == 9


def test_dense_cells_send_full_vectors_over_the_documents_hosts(recipe, compare):
    everywhere = dict(table1=dict(models=[]), table2=dict(cases=["MXNET-1G", "GeoMX-155M"]))
    rows = run(changed(recipe, emulated=everywhere), "emulated")
    assert len(compare) == 2
    for call in compare:
        assert call.sizes == SIZE and call.bodies is None
        assert call.plan.chunks == 1 and not call.topology.link_latency.any()
        assert "site1/host" in call.topology.node_names
    cells = rows[(rows["experiment"] == "emulated") & (rows["metric"] == "communication_time")]
    assert list(cells["evidence"]) == ["simulated", "emulated"] * 2
    assert set(cells["table"]) == {"table2"} and set(cells["workers"]) == {8}
    # The emulated time stands again beside the table's simulated one, and alone.
    beside = rows[rows["experiment"] == "table2"]
    assert set(beside["evidence"]) == {"emulated"} and set(beside["variant"]) == {"testbed"}
    assert set(beside["metric"]) == {"communication_time"} and len(beside) == 2
    ratio = rows.loc[rows["metric"] == "emulated_over_simulated", "value"]
    assert list(ratio) == pytest.approx([1.02, 1.02])
    ends = rows[(rows["metric"] == "link_rate") & (rows["bandwidth"] == 155e6)]["ends"]
    assert "central/server to site2/server" in set(ends)


def test_compressed_cells_send_real_payloads(recipe, compare, monkeypatch):
    small_one = {"name": "strided_cnn"}
    chosen = ["GeoMX-155M FP16", "GeoMX-50M BiSparse+FP16", "GeoMX-10M BiSparse+FP16"]
    fewer = changed(
        recipe,
        emulated=dict(table1=dict(models=[]), table2=dict(cases=chosen)),
        table2=dict(models=[small_one]),
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

    def run_all(given, say, pairs, measured_s):
        run = given.training
        assert measured_s == recipe.links.measured_s
        assert [*run.networks.values()] == [given.network] and given.network.wan == 155e6
        assert run.exchange.name == "hips"
        assert given.network.efficiency == recipe.variants["testbed"].efficiency
        assert given.limits.meeting_s == recipe.live.timeout_s
        rows = list(train(run, load=load))
        (one,) = (row for row in rows if row.metric == "test_loss" and row.round == 2)
        rows[rows.index(one)] = one.model_copy(update=dict(value=one.value + off))
        sent = dict(metric="sent_bytes", at=one.at | {"member": "site1/server"})
        rows.append(one.model_copy(update=sent))
        return Ended(None, {}, rows, [Measured(*pair, 9e7, 9.5e7, 1e-4) for pair in pairs])

    def load(name, **limits):
        return images

    monkeypatch.setattr(links, "available", lambda: "")
    monkeypatch.setattr(links.launch, "run_all", run_all)
    monkeypatch.setattr(links.trainer, "train", lambda run, say: train(run, say, load))
    rows = run(recipe, "system")
    assert set(rows["system"]) == {"GeoMX FP16"} and set(rows["experiment"]) == {"system"}
    (apart,) = rows.loc[rows["metric"] == "live_difference", "value"]
    assert apart == 0
    losses = rows[rows["metric"] == "test_loss"].groupby("variant")["round"].apply(list)
    assert losses["live"] == losses["virtual"] == [0, 2, 4]
    live = rows[(rows["variant"] == "live") & (rows["metric"] == "test_accuracy")]
    assert set(live["evidence"]) == {"emulated"}
    metrics = rows[rows["ends"].isna()].groupby("variant")["metric"].agg(set)
    assert metrics["live"] - {"live_difference"} == metrics["virtual"]
    carried = rows[rows["ends"].notna()].groupby("metric")
    pairs = {"site2/server to central/server", "central/server to site2/server"}
    for metric, value, unit in (
        ("link_rate", 9e7, "bit/s"),
        ("link_rate_expected", 9.5e7, "bit/s"),
        ("round_trip", 1e-4, "s"),
    ):
        one = carried.get_group(metric)
        assert pairs <= set(one["ends"]) and set(one["variant"]) == {"live"}
        assert (set(one["value"]), set(one["unit"])) == ({value}, {unit})
        assert set(one["evidence"]) == {"emulated"}

    off = 0.25
    with pytest.raises(RuntimeError, match="GeoMX FP16: test losses .* are 0.25 apart, not 0"):
        run(recipe, "system")
    # Of a model with running statistics live rows say why they may differ.
    rows = run(changed(recipe, live=dict(model=dict(name="resnet8", in_channels=1))), "system")
    assert set(rows.loc[rows["variant"] == "live", "reason"]) == {links.UNLIKE}
    assert rows.loc[rows["metric"] == "live_difference", "value"].item() == 0.25

    def fails(*_, **options):
        raise RuntimeError("site1/worker0 was lost")

    monkeypatch.setattr(links.launch, "run_all", fails)
    rows = run(recipe, "system")
    (row,) = rows[rows["variant"] == "live"].itertuples()
    assert (row.status, row.reason) == ("failed", "site1/worker0 was lost")


@pytest.mark.parametrize("experiment", ["emulated", "agreement"])
def test_where_links_cannot_be_emulated_rows_say_why(recipe, monkeypatch, experiment):
    monkeypatch.setattr(links, "available", lambda: "no right to make namespaces")
    rows = run(recipe, experiment)
    failed = rows[rows["status"] == "failed"]
    assert set(failed["reason"]) == {"no right to make namespaces"} and len(failed) == 1
    assert set(rows["experiment"]) == {experiment}, "no verdict rests on a failed row"


def test_a_failed_run_is_a_row(recipe, compare, monkeypatch):
    def fails(*_, **options):
        raise RuntimeError("node site1/server died")

    monkeypatch.setattr(links, "compare", fails)
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


@pytest.fixture
def record(recipe, tmp_path, monkeypatch):
    """Emulates, keeps what it gave, and returns it."""

    def keep():
        results.write(made(recipe, "emulated"), tmp_path / "emulated.parquet")
        links.record(tmp_path / "emulated.parquet", tmp_path / "kept.json", "the command")
        return json.loads((tmp_path / "kept.json").read_text())

    monkeypatch.setattr(links, "RECORD", str(tmp_path / "kept.json"))
    return keep


def today(kept, factor):
    """Table 1 as it is simulated now: ``factor`` times what it was when recorded."""
    simulated = [row for row in kept["rows"] if row["evidence"] == "simulated"]
    ours = [
        Row(**row | dict(experiment="table1", variant="testbed", at={"system": row["at"]["system"]},
                         value=factor * row["value"]))
        for row in simulated
    ]  # fmt: skip
    other = [row.model_copy(update=dict(variant="serial", value=9 * row.value)) for row in ours]
    return results.frame([*other, *ours])


def test_a_record_comes_back_as_recorded_rows_of_any_scale(recipe, compare, record):
    kept = record()
    assert kept["command"] == "the command" and kept["cores"] > 0 and kept["processor"]
    assert {row["evidence"] for row in kept["rows"]} == {"simulated", "emulated"}
    kept["rows"] = [row | {"scale": "paper"} for row in kept["rows"]]
    Path(links.RECORD).write_text(json.dumps(kept))
    rows = run(recipe, "recorded", rows=today(kept, 1.005))
    assert set(rows["evidence"]) == {"recorded"} and set(rows["scale"]) == {"smoke"}
    (beside,) = rows[rows["experiment"] != "emulated"].itertuples()
    assert (beside.experiment, beside.variant, beside.metric) == ("table1", "testbed", links.TIME)
    assert pd.isna(beside.table)
    rows = rows[rows["experiment"] == "emulated"]
    assert set(rows["table"]) == {"table1"} and set(rows["reason"]) == {""}
    assert set(rows["metric"]) == set(links.RECORDED)
    again = run(recipe, "emulated").query("experiment == 'emulated' and evidence == 'emulated'")
    for row in rows.itertuples():
        (same,) = again[again["metric"] == row.metric]["value"]
        assert row.value == same


def test_records_have_no_gaps_and_are_records(recipe, record, monkeypatch):
    monkeypatch.setattr(links, "available", lambda: "not here")
    with pytest.raises(ValueError, match="'GeoMX-1G' failed; a record has no gaps"):
        record()
    Path(links.RECORD).write_text("[1]")
    with pytest.raises(ValueError, match="kept.json: not a record of rows"):
        made(recipe, "recorded", rows=results.frame([]))


def test_a_record_of_another_simulation_is_stale(recipe, compare, record):
    kept = record()
    rows = run(recipe, "recorded", rows=today(kept, 1.02))
    assert set(rows["experiment"]) == {"emulated"}, "it is evidence of nothing"
    (reason,) = set(rows["reason"]) - {""}
    assert reason.startswith("stale: simulated ") and reason.endswith(" s today")
    # Cells that today's tables do not have are left out.
    assert not made(recipe, "recorded", rows=today(kept, 1.0).assign(model="resnet34_v1"))


def test_the_record_of_the_repository_has_every_cell_of_the_tables():
    paper = at("paper")
    rows = links._kept(links.RECORD)
    found = {(row.at["table"], row.model, row.case) for row in rows if "ends" not in row.at}
    named = {(table, *cell) for table in ("table1", "table2") for cell in cells(paper, table)}
    assert found == named


def test_runs_of_a_training_differ_in_their_ids_and_say_what_they_train(recipe):
    for name, count in (("figure4", 2), ("figure6", 5), ("mixed", 4)):
        one = WING.trainings[name]
        sections = {key: getattr(recipe, key) for key in one.sections}
        runs = one.runs(bench(recipe, name), sections)
        assert len(runs) == count * len(recipe.seeds)
        for each in runs.values():
            assert each.at["system"] == "GeoMX" or each.system == f"{each.at['system']} bsp"
            assert each.stands_for.name == "resnet50_v1"
    links_of = {system: set(run.networks) for system, run in runs.items()}
    assert {frozenset(names) for names in links_of.values()} == {
        frozenset({name}) for name in recipe.mixed.cases
    }
    assert {run.optimizer_at for run in runs.values()} == {"server"}
    assert {run.system: run.at["slowest"] for run in runs.values()} == {
        "GeoMX bsp": 1, "GeoMX mixed": 1, "GeoMX bsp uneven": 3, "GeoMX mixed uneven": 3
    }  # fmt: skip


def summarised(experiment, **rounds):
    """What a training's summary says of systems: their rounds to the target, or that they never
    reached it."""
    told = dict(document="geomx", experiment=experiment, scale="smoke", evidence="recorded")
    for name, value in rounds.items():
        system = name.replace("_", " ").replace("and", "+")
        at = dict(case=system, at={"system": system}, seed=1)
        never = dict(status="late", reason="never reached") if np.isnan(value) else {}
        yield Row(**told, **at, metric="final_accuracy", value=90.0, unit="%")
        yield Row(**told, **at, metric="rounds_to_target", value=value, unit="rounds", **never)
        yield Row(**told, **at, metric="time_to_target", value=7.0, unit="h")


def test_hours_are_the_recorded_rounds_at_every_settings_own_round_time(recipe):
    recorded = summarised("residual", GeoMX=3600, GeoMX_BiSparse=1800, GeoMX_FP16=math.nan,
                          GeoMX_BiSparseandFP16=900)  # fmt: skip
    told = dict(
        document="geomx", scale="smoke", evidence="simulated", metric="round_time", unit="s"
    )
    priced = [
        Row(**told, case=label, experiment=experiment, variant=variant, value=seconds)
        for seconds, label in enumerate(recipe.table2.cases, 1)
        for experiment, variant in (("table2", "testbed"), ("table2", "serial"), ("x", "testbed"))
    ]
    # Only Table 2's own way of modelling counts.
    priced = [row.model_copy(update=dict(value=99.0)) if (row.experiment, row.variant)
              != ("table2", "testbed") else row for row in priced]  # fmt: skip
    given = [*recorded, *summarised("figure6", GeoMX=5), *priced]
    rows = run(recipe, "convergence", rows=results.frame(given))
    ended = rows.set_index(["case", "metric"])
    assert set(ended.loc[pd.IndexSlice[:, "final_accuracy"], "value"]) == {90.0}
    hours = ended.xs("time_to_target", level="metric")
    # MXNET trains as GeoMX does: Table 2's settings take 1 to 9 s a round here.
    assert hours["value"].dropna().to_dict() == {
        "MXNET-1G": 1.0, "GeoMX-1G": 2.0, "GeoMX-155M": 3.0, "GeoMX-155M BiSparse": 0.5 * 5,
        "GeoMX-155M BiSparse+FP16": 0.25 * 6, "GeoMX-100M BiSparse+FP16": 0.25 * 7,
        "GeoMX-50M BiSparse+FP16": 0.25 * 8, "GeoMX-10M BiSparse+FP16": 0.25 * 9,
    }  # fmt: skip
    # A run that never arrived is late in rounds, and nothing is known of its hours.
    assert hours["status"]["GeoMX-155M FP16"] == "failed"
    assert ended["status"]["GeoMX-155M FP16", "rounds_to_target"] == "late"
    assert ended["bandwidth"]["GeoMX-10M BiSparse+FP16", "rounds_to_target"] == 10e6
    assert ended["exchange"]["MXNET-1G", "rounds_to_target"] == "parameter_server"


def test_where_the_documents_own_network_is_trained_its_convergence_counts():
    paper = at("paper")
    given = [*summarised("residual", GeoMX=3600), *summarised("figure6", GeoMX=5)]
    rows = run(paper, "convergence", rows=results.frame(given))
    told = rows.set_index("metric")["value"].drop("sampled")
    assert told.to_dict() == {
        "final_accuracy": 90.0, "rounds_to_target": 5.0, "time_to_target": 7.0
    }  # fmt: skip


@pytest.mark.parametrize(("scale", "bound"), [("paper", 200_000), ("desk", 4000)])
def test_the_share_that_is_sampled_is_that_of_the_network_convergence_is_judged_by(scale, bound):
    settings = at(scale)
    given = results.frame([*summarised("residual"), *summarised("figure6", GeoMX=5)])
    told = run(settings, "convergence", rows=given).set_index("metric").loc["sampled"]
    network = models.make(told["model"], in_channels=1)
    sizes = [one.numel() for one in network.parameters() if one.numel() >= bound]
    # A tensor of 200,000 values is the smallest of which 0.5 % are a thousand.
    sampled = [max(1000, n * 5 // 1000) for n in sizes]
    assert told["value"] == pytest.approx(100 * sum(sampled) / sum(sizes))
    assert (told["value"] <= 0.5) == (scale == "paper")


def test_a_smaller_model_has_a_lower_bound_of_its_own(recipe):
    def bound(levels):
        return levels[-1].up.parameters["lower_bound"]

    assert bound(recipe.levels("GeoMX BiSparse", 2)) == recipe.bisparse.lower_bound == 200_000
    assert bound(recipe.levels("GeoMX BiSparse", 2, lower_bound=5000)) == 5000
    full = experiments.full_size(
        bench(recipe, "table2"), recipe.table2, recipe.table2.models[0], ["GeoMX BiSparse"]
    )
    assert bound(full["GeoMX BiSparse"].levels) == 200_000


def test_a_job_depends_on_the_systems_that_its_section_names():
    jobs = Jobs(settings.load({"scale": "smoke"}, names=False), {"geomx": WING})

    def codecs(name):
        sources = jobs.all["geomx", name].inputs["sources"]
        return {Path(file).stem for file in sources if file.startswith("methods/compression/")}

    assert "bisparse" in codecs("table2") and "bisparse" not in codecs("table1")
    assert set(jobs.all["geomx", "table1"].settings["systems"]) == {"GeoMX", "MXNET"}
    assert links.RECORD in jobs.all["geomx", "recorded"].inputs["sources"]
    # Its own cells do not come before the record, though both make rows of the tables.
    rows = [Path(file).stem for file in jobs.all["geomx", "recorded"].inputs["rows"]]
    assert rows == ["table1", "table2"]
    behind = {Path(file).stem for file in jobs.outputs("geomx", "table2")}
    assert behind == {"table2", "emulated", "recorded"}
