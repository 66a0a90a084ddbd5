"""What DDS's experiments must show, on tiny settings; real processes are tests/live's affair."""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from slowlink.methods.synchronization import Sync
from slowlink.testbed import results
from slowlink.testbed.live import data_parallel
from slowlink.testbed.live.identity import Keys
from slowlink.testbed.live.one_process import evaluated, simulated, trained
from slowlink.testbed.results import Row
from slowlink.testbed.training import datasets, models, trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Part
from slowlink.workflow import documents
from slowlink.workflow.documents.dds import data_parallel as ddp_experiments
from slowlink.workflow.documents.dds import federated as federated_experiments
from slowlink.workflow.documents.dds import recorded
from slowlink.workflow.experiment import Bench
from slowlink.workflow.scripts.experiment import rows
from slowlink.workflow.settings import load

MODEL = {"name": "mlp", "hidden": 4}
VALUES = models.count(models.gradient_shapes(models.make("mlp", hidden=4)))


@pytest.fixture(scope="module")
def recipe():
    return load({"scale": "smoke"}, names=False).recipes["dds"]


@pytest.fixture(autouse=True)
def images(monkeypatch):
    """Noise, of which each class has a shade of its own."""
    random = torch.Generator().manual_seed(1)
    labels = torch.arange(200) % 10
    shades = torch.randint(0, 60, (200, 1, 28, 28), generator=random) + 18 * labels.view(
        -1, 1, 1, 1
    )
    pictures = shades.to(torch.uint8)
    data = Dataset(
        name="noise",
        train_x=pictures[:160],
        train_y=labels[:160],
        test_x=pictures[160:],
        test_y=labels[160:],
        n_classes=10,
        shape=(1, 28, 28),
        mean=torch.tensor([0.5]),
        std=torch.tensor([0.3]),
    )
    monkeypatch.setattr(trainer, "load_dataset", lambda name, **limits: data)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, **limits: data)
    return data


def run(recipe, experiment, part="", **changed):
    """Rows of a job; ``changed`` are values of its sections."""
    sections = documents.load("dds").experiments[experiment].sections
    told = {key: getattr(recipe, key).model_dump(mode="json") for key in sections}
    for key in told.keys() & {"federated", "ddp"}:
        told[key]["model"] = MODEL
    settings = {key: section | changed.pop(key, {}) for key, section in told.items()}
    assert not changed
    params = dict(wing="dds", experiment=experiment, scale="smoke", part=part)
    params["settings"] = settings | dict(threads=recipe.threads)
    made = rows(params, [], lambda message: None)
    return results.coordinates(results.frame(made))


def value(table, metric, **fields):
    chosen = table[table["metric"] == metric]
    for name, wanted in fields.items():
        chosen = chosen[chosen[name] == wanted]
    (found,) = chosen["value"]
    return found


def test_data_parallel_runs_are_the_documents():
    recipe = load({"scale": "desk"}, names=False).recipes["dds"]
    bench, ddp = Bench("dds", "ddp", recipe, "desk"), recipe.ddp
    whole = recipe.ddp_recorded.of(ddp)
    assert whole.methods == ddp.methods
    runs = {label: ddp_experiments._recipe(bench, whole, label, 1) for label in ddp.methods}
    assert {run.rounds for run in runs.values()} == {2810}
    assert recipe.ddp_recorded.judged_steps == 2700
    assert load({"scale": "paper"}, names=False).recipes["dds"].ddp.steps == 2810
    # What is repeated of DGC goes past an epoch, at whose end its ratio changes.
    checked = {label: ddp.checked(label) for label in runs}
    assert checked["DGC"] == checked["DGC momentum"] == 113 and checked["fp32"] == 20
    dgc = runs["DGC"].levels[0].up.parameters
    assert (dgc["ratio"], dgc["warmup"], dgc["steps_per_epoch"]) == (0.001, 3, 281)
    momenta = {
        label: (run.momentum, run.levels[0].up.parameters.get("momentum"))
        for label, run in runs.items()
    }
    assert momenta["DGC"] == (0.9, 0.0) and momenta["DGC momentum"] == (0.0, 0.9)
    assert momenta["baseline"] == (0.9, None)
    # Heads of the document's messages: 24 bytes, the job, and the tensor with an end to its name.
    tensors = [f"net.{layer}.{part}" for layer in (1, 3) for part in ("weight", "bias")]
    for label, ends in {"baseline": [".dense"], "DGC": [".t0", ".t1"]}.items():
        names = [tensor + end for tensor in tensors for end in ends]
        heads = sum(24 + len("job-20250908-01") + len(name) for name in names)
        assert ddp.methods[label].heads == heads
    assert ddp.methods["fp32"].heads == ddp.methods["baseline"].heads
    assert ddp.methods["DGC momentum"].heads == ddp.methods["DGC"].heads
    # One process sees as many samples a step as two.
    alone, two = runs["centralised"], runs["fp32"]
    assert sum(alone.workers) * alone.batch == sum(two.workers) * two.batch == 256


@pytest.mark.slow
def test_bytes_are_those_of_the_formulas(recipe):
    """And with its own model, the document's to the byte (formulas of its code and its logs)."""
    n, k = VALUES, VALUES // 10
    known = {
        "fp32_dense": 4 * n,
        "int8_dense": 20 + n + 4 * math.ceil(n / 1024),
        "fp32_sparse": 12 + 8 * k,
        "int8_sparse": 20 + 5 * k + 4 * math.ceil(k / 1024),
        "int8_dense C=8192": 20 + n + 4 * math.ceil(n / 8192),
    }
    table = run(recipe, "federated_bytes")
    assert set(table["experiment"]) == {"federated_bytes"} and set(table["evidence"]) == {
        "computed"
    }
    for label, nbytes in known.items():
        assert value(table, "uplink_bytes", mode=label) == nbytes
        assert value(table, "downlink_bytes", mode=label) == 4 * n
        assert value(table, "uplink_mib", mode=label) == pytest.approx(nbytes / 2**20)
        ratio = value(table, "up_and_down_ratio", mode=label)
        assert ratio == pytest.approx((nbytes + 4 * n) / (8 * n))
        sizes = [value(table, m, mode=label) for m in ("uplink_bytes", "frame_bytes", "link_bytes")]
        assert sizes == sorted(set(sizes))
    printed = dict(fp32_dense=4_799_528, int8_dense=1_204_590, fp32_sparse=959_916)
    printed |= {"int8_sparse": 600_432, "int8_dense C=8192": 1_200_490}
    table = run(recipe, "federated_bytes", federated=dict(model={"name": "mnist_cnn"}, batch=2))
    for label, nbytes in printed.items():
        assert value(table, "uplink_bytes", mode=label) == nbytes


TRAINS = {"fp32_dense": 1.0, "int8_dense": 2.0, "fp32_sparse": 3.0, "int8_sparse": 4.0}
"""Seconds for which the slower client trains in a round, by mode."""


@pytest.fixture
def as_live(monkeypatch):
    """Stands in for real processes: the same training, with times that are known, on a machine that
    becomes slower from mode to mode."""
    told = []

    def live(bench, timeout_s, recipe):
        assert timeout_s == 600.0
        told.append(recipe)
        takes = TRAINS.get(recipe.system, 0.0)
        rows, weights = list(trainer.train(recipe)), trained(recipe)
        rounds = range(1, recipe.rounds // recipe.evaluate_every + 1)
        return federated_experiments.Live(
            rows,
            [3.0 * number + takes for number in rounds],
            [[takes - client for _ in rounds] for client in range(2)],
            [[float(client + number) for number in rounds] for client in range(2)],
            weights,
        )

    monkeypatch.setattr(federated_experiments, "_live", live)
    return told


@pytest.mark.slow
def test_live_runs_of_the_modes(recipe, as_live):
    """Rounds 1 and 2 take 3 s and 6 s more than training; client c is under way for c + 1 and c + 2
    s."""
    table = run(recipe, "federated")
    live = table[table["experiment"] == "federated"]
    variants = recipe.federated.variants
    assert set(live["mode"]) == {*recipe.federated.live, *variants}
    # And one mode with feedback, for its check alone.
    assert len(as_live) == len(recipe.federated.live) + len(variants) + 1
    assert as_live[-1].levels[0].up.parameters["error_feedback"]
    for label in recipe.federated.live:
        for client in (0, 1):
            own = live[(live["mode"] == label) & (live["client"] == client)]
            sent = own[own["metric"] == "communication_time"]
            assert sent.set_index("seed")["value"].to_dict() == {1: client + 1, 2: client + 2}
        timed = live[live["mode"] == label].set_index(["metric", "seed"])["value"]
        takes = TRAINS[label]
        assert timed["round_time"].to_dict() == {1: 3.0 + takes, 2: 6.0 + takes}
        assert timed["train_time"].to_dict() == {1: takes - 0.5, 2: takes - 0.5}
        curve = live[(live["mode"] == label) & (live["metric"] == "test_accuracy")]
        ends = [3.0 + takes, 9.0 + 2 * takes]
        assert curve["round"].tolist() == [1, 2] and curve["time_s"].tolist() == ends
        assert value(table, "live_difference", mode=label, experiment="federated_seeds") == 0
        assert value(live, "final_accuracy", mode=label) > 0
    of = {(one.levels[0].up.name, one.sends) for one in as_live[:-1]}
    dense = {(codec, "weights") for codec in ("identity", "int8_blocks")}
    assert of == dense | {(codec, "weights_first") for codec in ("sparse_fp32", "sparse_int8")}
    # With the text's chunk: sent for its bytes alone.
    sizes = ["uplink_bytes", "frame_bytes", "link_bytes"]
    for label, nbytes in {
        "int8_dense C=8192": 20 + VALUES + 4 * math.ceil(VALUES / 8192),
        "int8_sparse C=8192": 20 + 5 * (VALUES // 10) + 4,
    }.items():
        assert value(live, "uplink_bytes", mode=label) == nbytes
        assert set(live[live["mode"] == label]["metric"]) == set(sizes)
        assert value(table, "live_difference", mode=label) == 0
    # Only what was sent is measured; what is put around it is counted.
    counted = live[live["metric"].isin(sizes)].groupby("metric")["evidence"]
    computed = dict.fromkeys(sizes[1:], ["computed"])
    assert counted.unique().map(list).to_dict() == computed | {"uplink_bytes": ["measured"]}


@pytest.mark.slow
def test_live_runs_are_recorded_once(recipe, as_live, monkeypatch, tmp_path):
    """Seeds one by one, whoever is first going round; a cut leaves what was there; read back, a
    round has all modes' mean time for training (2.5 s) in the place of its own."""
    monkeypatch.chdir(tmp_path)
    dense, sparse = "fp32_dense", "int8_sparse"
    chosen = recipe.federated_recorded.model_copy(
        update=dict(modes=[dense, sparse], seeds=[4, 7], rounds=2, subset=16)
    )
    small = recipe.federated.model_copy(update=dict(model=Part(**MODEL)))
    bench = Bench("dds", "federated_recorded", recipe, "smoke", lambda message: None)
    read = partial(federated_experiments.federated_recorded, bench, small, chosen)
    assert {(row.status, row.reason) for row in read()} == {("failed", recorded.LACKS)}
    record = partial(federated_experiments.record, bench, small)
    record(chosen.model_copy(update=dict(seeds=[4])))
    record(chosen)
    record(chosen)
    order = [(one.seed, one.system) for one in as_live]
    assert order == [(4, dense), (4, sparse), (7, sparse), (7, dense)]
    table = results.coordinates(results.frame(list(read())))
    assert set(table["evidence"]) == {"recorded"} and set(table["status"]) == {"ok"}
    for one in as_live:
        label = one.system
        of = partial(value, table, mode=label, seed=one.seed)
        assert [of("communication_time", client=client) for client in (0, 1)] == [1.5, 2.5]
        assert of("round_time") == 4.5 + TRAINS[label] and of("round_time_alike") == 4.5 + 2.5
        assert of("round_time_sd") == pytest.approx(3 / math.sqrt(2), rel=1e-4)
        assert of("train_time") == TRAINS[label] - 0.5
        curve = federated_experiments._curve(list(trainer.train(one)))
        ends = [3.0 + TRAINS[label], 9.0 + 2 * TRAINS[label]]
        for number, (accuracy, end) in enumerate(zip(curve, ends, strict=True), start=1):
            found = of("test_accuracy", round=number, time_s=end)
            assert found == pytest.approx(accuracy, rel=1e-4)
        whole = evaluated(one.model_copy(update=dict(test_limit=None)), trained(one))
        assert of("final_accuracy") == pytest.approx(whole, rel=1e-4)
    # Other settings are no part of the record.
    other = chosen.model_copy(update=dict(subset=32))
    again = federated_experiments.federated_recorded(bench, small, other)
    assert {row.status for row in again} == {"failed"}


def test_a_live_run_is_the_engines_with_fresh_identities(recipe, monkeypatch):
    """Of two clients with one iteration a round, and 2 rounds: what the record says of them."""
    found = []

    def run_all(settings):
        found.append([Keys(settings.keys, name).allowed()[name] for name in settings.members])
        assert settings.dds is not None
        assert settings.training.model_copy(update=dict(networks=short.networks)) == short
        settings.output.mkdir()
        torch.save(dict(a=torch.ones(2), b=torch.zeros(1)), settings.output / "model.pt")
        told = [SimpleNamespace(decisions=[Sync((0, 1))], t=t) for t in (2.5, 8.0)]
        told.insert(1, SimpleNamespace(decisions=[], t=4.0))
        uploads = [{0: 0.5, 1: 0.25}, {0: 0.75, 1: 0.125}]
        pushed = [(0.5, 0.1), (1.0, math.nan)]
        record = SimpleNamespace(
            told=told, meetings=pushed, iterations=[[1.0, 4.0], [2.0, 5.0]], uploads=uploads
        )
        return SimpleNamespace(rows=[], record=record)

    monkeypatch.setattr(federated_experiments.launch, "run_all", run_all)
    bench = Bench("dds", "federated", recipe, "smoke", lambda message: None)
    short = federated_experiments._recipe(bench, recipe.federated, "fp32_dense", 1, subset=64)
    for _ in range(2):
        live = federated_experiments._live(bench, 60.0, short)
    assert len({key for keys in found for key in keys}) == 2 * len(found[0])
    assert live.round_s == [3.0, 6.0] and live.train_s == [[1.0, 4.0], [2.0, 5.0]]
    assert live.upload_s == [[0.5, 0.75], [0.25, 0.125]]
    assert [one.tolist() for one in live.weights] == [[1.0, 1.0], [0.0]]


def test_error_feedback_and_its_control_differ_in_the_feedback_alone(recipe):
    bench, chosen = Bench("dds", "federated_seeds", recipe, "smoke"), recipe.federated
    for mode in ("fp32_sparse", "int8_sparse"):
        control, with_ef = (
            federated_experiments._recipe(bench, chosen, label, 1)
            for label in (f"{mode} from model", f"{mode} EF")
        )
        level = with_ef.levels[0].up.parameters
        assert level == control.levels[0].up.parameters | {"error_feedback": True}
        assert with_ef.sends == control.sends == "change"
        same = dict(levels=control.levels, at=control.at, system=control.system)
        assert with_ef.model_copy(update=same | dict(networks=control.networks)) == control


@pytest.mark.slow
def test_other_rounds_than_those_of_the_run_are_run_once_more(recipe, as_live):
    run(recipe, "federated", federated=dict(checked_rounds=1))
    modes = len(recipe.federated.live)
    again = modes + len(recipe.federated.variants) + 1
    rounds = [one.rounds // one.evaluate_every for one in as_live]
    assert rounds == [2] * modes + [1] * again


@pytest.mark.slow
def test_a_live_run_that_differs_from_one_process_fails(recipe, as_live, monkeypatch):
    honest = federated_experiments._live

    def off(*given):
        done = honest(*given)
        return replace(done, weights=[weight + 1e-6 for weight in done.weights])

    monkeypatch.setattr(federated_experiments, "_live", off)
    with pytest.raises(
        RuntimeError, match="fp32_dense: real processes and one process are .* apart"
    ):
        run(recipe, "federated")


def test_recorded_seeds_train_as_the_recorded_runs_on_real_processes(recipe):
    desk = load({"scale": "desk"}, names=False).recipes["dds"]
    bench = Bench("dds", "federated_seeds", desk, "desk")
    sections = dict(federated=desk.federated, federated_seeds=desk.federated_seeds)
    runs = list(documents.load("dds").experiments["federated_seeds"].runs(bench, sections).values())
    assert len(runs) == len(desk.federated_seeds.modes) * len(desk.federated_seeds.seeds)
    live = federated_experiments._recorded(bench, desk.federated, desk.federated_recorded)
    assert runs[0] == live[1]["fp32_dense"].model_copy(update=dict(test_limit=None))
    rows = [
        Row(**run.told, case=run.system, metric="test_accuracy", value=90.0 + number, unit="%",
            round=number * run.evaluate_every, evidence="recorded")
        for run in runs for number in range(11)
    ]  # fmt: skip
    made = list(federated_experiments._summary(results.frame(rows), desk))
    ends = [row for row in made if row.metric == "final_accuracy"]
    assert len(ends) == len(made) == len(runs) and {row.value for row in ends} == {100.0}


@pytest.mark.slow
def test_unlike_clients(recipe, monkeypatch):
    seen, train = [], trainer.train
    monkeypatch.setattr(
        federated_experiments, "train", lambda recipe: seen.append(recipe) or train(recipe)
    )
    table = run(recipe, "non_iid", "1")
    assert [(one.split.name, one.deal) for one in seen] == [
        ("even", "each_round"),
        ("by_label", "once"),
        ("dirichlet", "once"),
    ]
    assert seen[2].split.parameters == {"alpha": 0.1}
    final = table[table["metric"] == "final_accuracy"]
    assert final["split"].tolist() == ["alike", "by label", "dirichlet 0.1"]


@pytest.mark.slow
def test_attackers_are_the_first_clients(recipe, monkeypatch):
    seen, train = [], trainer.train
    monkeypatch.setattr(
        federated_experiments, "train", lambda recipe: seen.append(recipe) or train(recipe)
    )
    rules = {"mean": {"name": "mean"}, "median": {"name": "median"}}
    table = run(recipe, "attack", attack=dict(rules=rules, clients=5, attackers=2, subset=16))
    attacks = {name: (its.factor, its.noise) for name, its in recipe.attack.attacks.items()}
    spoiled = [(one.spoiled.workers, one.spoiled.factor, one.spoiled.noise) for one in seen
               if one.spoiled]  # fmt: skip
    assert spoiled == [(2, *how) for how in attacks.values()] * 2
    assert [one.aggregation.name for one in seen] == ["mean"] * 4 + ["median"] * 4
    assert table["attackers"].tolist() == [0, 2, 2, 2] * 2
    assert set(table["metric"]) == {"final_accuracy"}


def test_data_parallel_methods(recipe, images, monkeypatch):
    """Ranks in place of processes: parameters are the learner's, payloads and times known."""
    asked, found = [], []

    def measure_all(runs, dataset, keys):
        found.append(Keys(Path(keys), "rank-0").allowed()["rank-0"])
        assert len({sum(one.recipe.workers) for one in runs}) == 1
        asked.extend(runs)
        return [known_run(one, dataset) for one in runs]

    monkeypatch.setattr(ddp_experiments.over_dds, "measure_all", measure_all)
    small = dict(batch=4, images=16, epochs=2, evaluate_every=2, checked_steps=2)
    small |= dict(seed=2)
    dgc = {"name": "dgc", "ratio": 0.1, "warmup": 1, "lower_bound": 0}
    methods = dict(baseline={"codec": {"name": "int8_blocks"}}, DGC={"codec": dgc, "heads": 5})
    small |= dict(methods=methods | {"alone": {"codec": {"name": "identity"}, "alone": True}})
    table = run(recipe, "ddp", ddp=small)
    # No run that counts is the first on its processes. What is checked of DGC is an epoch more.
    assert [one.steps for one in asked] == [2, 8, 6, 8, 2, 8]
    assert {one.recipe.seed for one in asked} == {2}
    assert all(one.ordered for one in asked)
    assert len(set(found)) == 2
    main = table[table["experiment"] == "ddp"]
    # Step s sends 10 (s + 1) bytes: 8 steps on the mean 45, after 4 of warm-up 65.
    assert value(main, "bytes_per_step", method="baseline") == 45
    assert value(main, "bytes_per_step", method="DGC") == 65
    assert value(main, "bytes_per_step_with_warm_up", method="DGC") == 45
    assert value(main, "bytes_counted_as_printed", method="baseline") == 3 * 45
    assert value(main, "bytes_counted_as_printed", method="DGC") == 3 * (65 + 5)
    assert value(main, "bytes_per_step", method="alone") == 0
    assert value(main, "received_bytes", method="DGC") == 65 + 1
    assert value(main, "max_wait", method="DGC") == 7
    assert value(main, "mean_wait", method="DGC") == 3.5
    assert value(main, "final_accuracy", method="DGC") == 90
    for label in methods:
        assert value(main, "live_difference", method=label) == 0


def test_data_parallel_runs_are_recorded_once(recipe, images, monkeypatch, tmp_path):
    asked = []

    def measure_all(runs, dataset, keys):
        asked.extend((one.recipe.seed, one.recipe.system) for one in runs if one.evaluate)
        return [known_run(one, dataset) for one in runs]

    monkeypatch.setattr(ddp_experiments.over_dds, "measure_all", measure_all)
    monkeypatch.chdir(tmp_path)
    methods = ["baseline", "fp32", "centralised"]
    chosen = ddp_experiments.DataParallelRecorded(
        methods=methods, seeds=[2, 3], batch=4, images=16, epochs=2, evaluate_every=2,
        judged_steps=6, test_limit=None,
    )  # fmt: skip
    ddp = recipe.ddp.model_copy(update=dict(model=Part(**MODEL)))
    bench = Bench("dds", "ddp_recorded", recipe, "smoke", lambda message: None)
    read = partial(ddp_experiments.ddp_recorded, bench, ddp, chosen)
    assert {(row.status, row.reason) for row in read()} == {("failed", recorded.LACKS)}
    for seeds in ([2], [2, 3], [2, 3]):
        ddp_experiments.record(bench, ddp, chosen.model_copy(update=dict(seeds=seeds)))
    first, second = [(2, one) for one in methods], [(3, one) for one in methods]
    assert asked == [*first, second[1], second[0], second[2]]
    table = results.coordinates(results.frame(list(read())))
    assert set(table["evidence"]) == {"recorded"} and set(table["status"]) == {"ok"}
    for label, seed in product(methods, (2, 3)):
        of = partial(value, table, method=label, seed=seed)
        assert (of("max_wait"), of("mean_wait")) == (7, 3.5)
        assert (of("judged_accuracy"), of("final_accuracy")) == (85, 90)


@pytest.mark.parametrize("scale", ["smoke", "desk", "paper"])
def test_the_record_stands_for_every_scale(scale):
    recipe = load({"scale": scale}, names=False).recipes["dds"]
    for name in ("ddp_recorded", "federated_recorded"):
        one = documents.load("dds").experiments[name]
        read = list(
            one(Bench("dds", name, recipe, scale), *(getattr(recipe, k) for k in one.sections))
        )
        assert {(row.status, row.evidence, row.scale) for row in read} == {
            ("ok", "recorded", scale)
        }
        chosen = getattr(recipe, name)
        ran = {(row.case, row.seed) for row in read if row.metric == "final_accuracy"}
        labels = chosen.methods if name == "ddp_recorded" else chosen.modes
        assert ran == set(product(labels, chosen.seeds)) and len(chosen.seeds) >= 5


def known_run(live, dataset):
    """A run of 2 ranks or 1 whose step s waits s seconds and sends 10 (s + 1) bytes."""
    recipe = live.recipe
    groups = data_parallel.group(recipe, dataset)
    ranks, steps = sum(recipe.workers), np.arange(float(live.steps))
    each = np.tile(steps, (ranks, 1))
    nbytes = 10 * (each + 1).astype(np.int64)
    # Of whole runs nobody asks for the parameters.
    short = not live.evaluate
    parameters = dict(enumerate(simulated(recipe, groups, short * live.steps, dataset)))
    known = dict(parameters=parameters, payload_bytes=nbytes[..., None], frame_bytes=nbytes + 1)
    known |= dict(received_bytes=(ranks - 1) * (nbytes + 1))
    known |= dict(groups=groups, tests=[(4, 1.0, 80.0), (6, 1.5, 85.0), (8, 2.0, 90.0)])
    return data_parallel.Run(
        **known, **dict.fromkeys(data_parallel.TIMES, each),
        launched_early=0.0,
    )  # fmt: skip


def test_transport_is_held_against_raw_writes(recipe, monkeypatch):
    took = {"raw dds": [1.0, 9.0, 2.0], "dds": [4.0, 5.0, 0.1], "gloo": [8.0, 8.0, 8.0]}
    monkeypatch.setattr(ddp_experiments.throughput, "measure", lambda ranks, nbytes, rounds: took)
    table = run(recipe, "transport")
    fields = dict(nbytes=2**20, workers=2)
    assert value(table, "time", way="dds", **fields) == 4.0
    assert value(table, "share_of_raw", way="dds", **fields) == 0.5
    assert value(table, "share_of_raw", way="gloo", **fields) == 0.25
    rate = value(table, "throughput", way="gloo", **fields)
    assert rate == pytest.approx(2 * 2**20 / 8 / 1e9)


def test_rules_under_attack(recipe):
    """Each rule without attackers and under each attack; who attacks has trained as all do."""
    rules = dict(mean={"name": "mean"}, median={"name": "median"})
    small = dict(model=MODEL, rounds=4, lr=0.1, rules=rules)
    table = run(recipe, "attack", attack=small)
    of = table.set_index(["rule", "attack"])["value"]
    assert set(of.index) == {(r, a) for r in rules for a in ["none", *recipe.attack.attacks]}
    assert of["mean", "-10 times"] < of["median", "-10 times"]
    assert set(table["attackers"]) == {0, recipe.attack.attackers}
    with pytest.raises(ValueError, match="attackers: must be fewer than half"):
        run(recipe, "attack", attack=dict(attackers=5))
    with pytest.raises(ValueError, match="attacks: 'none'"):
        run(recipe, "attack", attack=dict(attacks={"none": {"factor": 1.0}}))
