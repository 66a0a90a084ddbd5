"""What Sketch-Fusion's experiments must show, on small settings, against arithmetic."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sketch_fusion_results
import torch
from sketch_fusion_results import RECIPE, ROUNDS, SETTINGS, iteration

from slowlink.testbed import results
from slowlink.testbed.live import data_parallel
from slowlink.testbed.live.one_process import simulated
from slowlink.testbed.prices import load_codec
from slowlink.testbed.results import coordinates
from slowlink.testbed.training import pipeline
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.device import profiles
from slowlink.testbed.training.recipe import Part
from slowlink.workflow import settings
from slowlink.workflow.documents.sketch_fusion import experiments, page
from slowlink.workflow.experiment import Bench


@pytest.fixture(scope="module")
def smoke():
    return settings.load({"scale": "smoke"}).recipes["sketch_fusion"]


def run(wing, recipe, name):
    """Rows of an experiment, a column a coordinate."""
    one = wing.experiments[name]
    bench = Bench("sketch_fusion", name, recipe, "smoke", lambda text: None)
    made = one(bench, **{key: getattr(recipe, key) for key in one.sections})
    return coordinates(results.frame(made))


@pytest.mark.parametrize(
    ("method", "variant", "factor", "workers"),
    [("DGC", "flat", 1.0, (2, 4, 8, 16)), ("QSGD", "4 a server", 0.8, (8, 16))],
)
def test_gains_are_taken_where_something_is_compressed(method, variant, factor, workers, skf_rows):
    """Over layer-wise and over the baseline, both at the same number of GPUs."""
    found = coordinates(skf_rows[skf_rows["experiment"] == "gains"])
    here = found.query("method == @method and variant == @variant and model == 'resnet20'")
    ours = here.set_index("metric")["value"].to_dict()
    fused = [iteration(method, "resnet20", True, n, factor) for n in workers]
    wanted = {}
    for name, base in (("gain", method), ("gain_over_baseline", "Baseline")):
        alone = [iteration(base, "resnet20", False, n, factor) for n in workers]
        ratios = [a / b for a, b in zip(alone, fused, strict=True)]
        wanted |= {f"least_{name}": min(ratios), f"largest_{name}": max(ratios)}
    assert ours == {name: pytest.approx(value) for name, value in wanted.items()}


@pytest.fixture(scope="module")
def scaled(wing, smoke):
    """Rows of ``scaling``, by what tells them apart."""
    rows = run(wing, smoke, "scaling")
    place = ["experiment", "metric", "variant", "model", "method", "fusion", "workers"]
    return rows.set_index(place)["value"].sort_index()


@pytest.mark.slow
def test_a_shared_batch_is_a_sixteenth_a_gpu(scaled):
    """What is sent and coded stays, so that the same milliseconds are more of an iteration."""
    place = ("resnet50", "Baseline", "layer_wise")
    times, factors, speeds = (
        {read: scaled["scaling", metric, read, *place] for read in ("flat", "b of all GPUs")}
        for metric in ("iteration_time", "scaling_factor", "throughput")
    )
    alone = {read: times[read][16] * factors[read][16] for read in times}
    assert alone["flat"] == pytest.approx(16 * alone["b of all GPUs"])
    alone = scaled["baseline", "throughput", :, "resnet50", "Baseline", "layer_wise", 1]
    assert alone["b of all GPUs"] == alone["flat"]  # it has all of b
    assert speeds["b of all GPUs"][16] == pytest.approx(128 / times["b of all GPUs"][16])
    # With the tensors of the baseline fused 23 %, and 41 % of linear scaling with FP16.
    fused = scaled["baseline", "scaling_factor", "fused baseline and b of all GPUs", "resnet50"]
    assert fused["Baseline", "layer_fusion", 16] == pytest.approx(0.23, abs=0.005)
    half = scaled["scaling", "scaling_factor", "b of all GPUs", "resnet50", "FP16"]
    assert half["layer_fusion", 16] == pytest.approx(0.41, abs=0.005)


@pytest.mark.slow
def test_the_baseline_is_fused_or_not_as_it_is_read(scaled):
    for model in ("resnet20", "lstm"):
        place = "scaling", "iteration_time", "flat", model, "Baseline"
        for read, fusion in (("flat", "layer_wise"), ("fused baseline", "layer_fusion")):
            base = scaled["baseline", "iteration_time", read, model, "Baseline"]
            assert base[fusion].equals(scaled[place][fusion])


def test_sketches_cost_what_others_do_in_their_readings(scaled, smoke):
    """A ring's sum is decoded once, so that coding every tensor once is all there is."""
    known = profiles()["v100_document"].known
    for label, codec in (("SignSGD", "sign_sgd"), ("Top-k", "top_k")):
        reading = f"a sketch costs what {label} does"
        coding = scaled["scaling", "compression_time", reading, "resnet50"]
        layers = pipeline.layers(Part(name="resnet50"))
        cost = sum(known[codec].seconds(4 * n) for n in layers.sizes)
        assert coding["Sketch-Fusion", "layer_wise", 16] == pytest.approx(cost)
        others = scaled["scaling", "compression_time", "flat", "resnet50"].drop("Sketch-Fusion")
        assert coding.drop("Sketch-Fusion").equals(others)


def test_a_sketch_costs_one_thing_on_one_gpu():
    sketch = load_codec(SETTINGS.methods["Sketch-Fusion"].codec)
    every = [profiles()[name] for name in ("v100_document", "v100_flops", "v100_matrix")]
    assert len({one.encode_s(sketch, 1e6) + one.decode_s(sketch, 1e6) for one in every}) == 1


@pytest.mark.slow
def test_the_lead_ends_at_the_crossover(wing, smoke):
    rows = run(wing, smoke, "sketch_cost")
    swept = rows[rows["metric"] == "lead"].set_index(["model", "variant", "sketch_cost"])["value"]
    swept = swept.sort_index()
    ends = rows[rows["metric"] == "crossover"].set_index(["model", "variant"])["value"]
    assert {model for model, _ in ends.index} == {"resnet50", "lstm"}
    for place, crossover in ends.items():
        lead = swept.loc[place]
        assert (lead[lead.index < crossover] > 1).all() and (lead[lead.index > crossover] < 1).all()
    assert (swept.loc["resnet20"] < 1).all()


def test_crossings_are_found():
    assert experiments._crossing(lambda x: 6 / x, 1.0, 10.0) == pytest.approx(6, rel=2e-4)


def test_qsgd_by_the_largest_value_loses_less_at_equal_bytes(wing, smoke):
    rows = run(wing, smoke, "errors").set_index(["metric", "method"])["value"]
    lost, nbytes = rows["relative_error"], rows["bytes_a_value"]
    assert nbytes["QSGD"] == nbytes["QSGD, max norm"] == (2 + 32 / 512) / 8
    assert lost["QSGD"] == pytest.approx(17, rel=0.05)
    assert lost["QSGD, max norm"] == pytest.approx(1.6, rel=0.05)
    assert lost["Baseline"] == 0 and lost["Top-k"] < 1


def test_gains_are_those_of_every_way_of_modelling(wing):
    assert list(wing.experiments["gains"].after) == wing.makers("scaling")


def test_computing_fills_an_iteration_until_the_last_encoding(wing, smoke):
    """Streams keep their order: a message is encoded, sent and decoded, one after the other."""
    rows = run(wing, smoke, "timeline")
    times = rows.pivot(index=["fusion", "number"], columns=["stream", "metric"], values="value")
    order = [("compute", "begin"), ("compute", "end"), ("encode", "begin"), ("encode", "end")]
    order += [("network", "begin"), ("network", "end"), ("decode", "begin"), ("decode", "end")]
    for before, after in itertools.pairwise(order):
        assert (times[before] <= times[after] + 1e-12).all(), (before, after)
    assert (times["compute", "end"] == times["encode", "begin"]).all()
    assert set(times.loc["whole_model"].index) == {0}
    assert len(times.loc["layer_wise"]) > len(times.loc["layer_fusion"]) > 1


def test_theorems_hold_and_bounds_grow_with_groups(wing, smoke):
    rows = run(wing, smoke, "theory")
    sides = rows[rows["metric"] != "slope"].pivot_table(
        "value", ["theorem", "groups", "iterations"], "metric"
    )
    assert (sides["mean_square_gradient"] < sides["bound"]).all()
    second = sides.loc[2, "bound"].unstack("groups")
    assert (second[4] > second[1]).all()
    assert set(rows.loc[rows["metric"] == "slope", "theorem"]) == {1, 2}


def test_live_runs_are_held_against_the_learner(wing, smoke, monkeypatch):
    """Of runs on real processes, which are known here: step s takes s seconds."""
    given = []

    def measure_all(cases, dataset):
        for case in cases:
            given.append(case)
            groups = data_parallel.group(case.recipe, dataset, case.costs)
            moved = simulated(case.recipe, groups, case.steps, dataset)
            moved[0] += case.ordered  # one too many
            each = np.tile(np.arange(float(case.steps)), (2, 1))
            yield SimpleNamespace(
                parameters=dict(enumerate(moved)), groups=groups, step_s=each,
                payload_bytes=np.full((2, case.steps, 2), 10), launched_early=0.5,
            )  # fmt: skip

    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (64, 1, 28, 28), generator=random, dtype=torch.uint8)
    labels = torch.arange(64) % 10
    half = torch.full((1,), 0.5)
    noise = Dataset("noise", images, labels, images, labels, 10, (1, 28, 28), half, half)
    monkeypatch.setattr(experiments, "load_dataset", lambda name, limit: noise)
    monkeypatch.setattr(experiments.device, "profile", lambda name: profiles()["v100_document"])
    monkeypatch.setattr(data_parallel, "measure_all", measure_all)
    rows = run(wing, smoke, "live").set_index(["metric", "method", "variant"])["value"]
    assert [(case.ordered, case.ddp, case.recipe.fusion.name) for case in given[:3]] == [
        (False, False, "layer_fusion"), (True, False, "layer_fusion"), (False, True, "whole_model"),
    ]  # fmt: skip
    for method in smoke.live.methods:
        assert rows["difference", method, "native"] == 0 == rows["difference", method, "ddp hook"]
        assert rows["difference", method, "ordered"] == pytest.approx(1)
        assert rows["payload_bytes", method, "native"] == 20
        assert rows["step_time", method, "native"] == 1.5  # steps of 1 and 2 s; the first is apart
        assert rows["messages", method, "ddp hook"] == 1


def test_runs_train_small_models_in_the_time_of_the_documents(wing):
    recipe = settings.load({"scale": "desk"}).recipes["sketch_fusion"]
    one = wing.experiments["figure6"]
    bench = Bench("sketch_fusion", "figure6", recipe, "desk")
    sections = {key: getattr(recipe, key) for key in one.sections}
    runs = list(one.runs(bench, sections).values())
    assert len(runs) == len(ROUNDS) and {run.at["method"] for run in runs} == set(ROUNDS)
    for run in runs:
        assert (run.model.name, run.stands_for.name) == ("resnet8", "resnet20")
        assert (run.timed_workers, run.timed_batch, run.batch) == (16, 128, 16)
        # Momentum is kept once: by the codec that keeps what it does not send, or the optimizer.
        kept = run.levels[0].up.parameters.get("momentum", 0.0)
        in_codec = run.at["method"] not in ("Baseline", "Sketch-Fusion no EF")
        assert (kept, run.momentum) == ((0.9, 0.0) if in_codec else (0.0, 0.9))


def test_what_is_recorded_is_the_documents_training_with_smaller_batches(wing):
    recipe = settings.load({"scale": "desk"}).recipes["sketch_fusion"]
    one = wing.experiments["figure6_recorded"]
    sections = {key: getattr(recipe, key) for key in one.sections}
    runs = list(one.runs(Bench("sketch_fusion", one.name, recipe, "desk"), sections).values())
    printed = ("model", "dataset", "workers", "lr", "lr_steps", "momentum", "rounds", "limit")
    assert {k: RECIPE["figure6"][k] for k in printed} == {
        k: RECIPE[one.name][k] for k in printed
    }  # fmt: skip
    assert {(run.batch, run.timed_batch, run.augment) for run in runs} == {(16, 128, True)}
    order = set(itertools.product((1, 2, 3), ROUNDS))
    assert {(run.seed, run.at["method"]) for run in runs} == order and len(runs) == len(order)


def test_epochs_follow_from_rounds_and_batches():
    trainings = settings.load({"scale": "desk"}).recipes["sketch_fusion"]
    recorded = trainings.figure6_recorded
    seen = recorded.rounds * recorded.workers * recorded.batch / 50_000
    assert recorded.epochs == pytest.approx(seen, rel=1e-3) == pytest.approx(140 / 8, rel=1e-3)
    assert f"makes {recorded.epochs:g} epochs of the printed 140" in page.figure6_recorded.shows
    assert RECIPE["figure6"]["epochs"] == 140 and RECIPE["lstm"]["epochs"] is None
    desk = trainings.figure6  # of a part of the images
    assert desk.epochs == pytest.approx(desk.rounds * desk.workers * desk.batch / desk.limit)


@pytest.mark.parametrize(
    ("scale", "counts"),
    [("smoke", "figure6_recorded"), ("desk", "figure6_recorded"), ("paper", "figure6")],
)
def test_the_nearest_training_to_the_documents_counts(wing, scale, counts):
    recipe = settings.load({"scale": scale}).recipes["sketch_fusion"]
    rows = sketch_fusion_results.results().query("experiment in ['figure6', 'figure6_recorded']")
    one = wing.experiments["convergence"]
    bench = Bench("sketch_fusion", one.name, recipe, "desk")
    found = results.frame(one(bench, rows=rows, convergence=recipe.convergence))
    expected = rows[(rows["experiment"] == counts) & (rows["round"] == -1)]
    assert set(found["experiment"]) == {"convergence"} and len(found) == len(expected)
    assert set(found["model"]) == set(expected["model"])
    pd.testing.assert_series_equal(
        found["value"], expected["value"].reset_index(drop=True), check_names=False
    )


def test_paper_scale_trains_what_the_document_trained():
    figure6, cluster = RECIPE["figure6"], RECIPE["cluster"]
    assert (figure6["model"], figure6["limit"]) == ({"name": "resnet20"}, None)
    samples = figure6["rounds"] * figure6["workers"] * figure6["batch"]
    assert samples / 50_000 == pytest.approx(140, rel=1e-3)  # epochs, Table 3
    lstm = RECIPE["lstm"]
    tokens = lstm["rounds"] * lstm["workers"] * lstm["batch"] * 35
    assert tokens / 929_589 == pytest.approx(65, rel=1e-3)
    assert max(cluster["workers"]) == 16 and SETTINGS.accelerator == "cuda"
