"""What LPSP's experiments without training must show, on small settings, against closed forms."""

import contextlib
import itertools
from collections import Counter

import numpy as np
import pytest

from slowlink.methods import exchange, synchronization
from slowlink.testbed import results
from slowlink.testbed.live.engine.coordinator import Ended
from slowlink.testbed.live.replay import Record
from slowlink.testbed.network import Network, star
from slowlink.testbed.results import Row, coordinates
from slowlink.testbed.training import stragglers
from slowlink.testbed.training.virtual_time import Applied, Computed, Decided, OnNetwork, Received
from slowlink.testbed.training.virtual_time import happenings as engine
from slowlink.workflow import documents, recorded
from slowlink.workflow.documents.lpsp import experiments, training
from slowlink.workflow.experiment import Bench
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.settings import SettingsError, load

DRAWS, ITERATIONS, WORKERS = 3, 30, 8
VARIANTS = {"fixed", "jitter", "varying", "trace", "no communication", "constant", "slow server"}


@pytest.fixture(scope="module")
def recipe():
    return load({"scale": "smoke"}, names=False).recipes["lpsp"]


def small(recipe, **waiting):
    """The recipe with short runs of few workers, and few ablations."""
    data = recipe.model_dump(mode="json")
    data["waiting"] |= dict(workers=[WORKERS], draws=DRAWS, iterations=ITERATIONS) | waiting
    data["gantt"] = dict(workers=WORKERS, iterations=6)
    data["cifar10"]["ablated_workers"] = WORKERS
    lpsp = data["methods"]["LPSP"]
    other = {"s=10": lpsp | {"s": 10.0}, "soon": lpsp | {"decision": "arrival"}}
    data["ablations"] = {"formula": other}
    return documents.load("lpsp").schema(**data)


def run(recipe, name, **given):
    one = documents.load("lpsp").experiments[name]
    given |= {key: getattr(recipe, key) for key in one.sections}
    rows = one(Bench("lpsp", name, recipe, "smoke", lambda text: None), **given)
    return results.coordinates(results.frame(rows))


@pytest.fixture(scope="module")
def waiting(recipe):
    return run(small(recipe), "waiting", part=str(WORKERS))


def value(table, metric, **fields):
    chosen = table[table["metric"] == metric]
    for name, wanted in fields.items():
        chosen = chosen[chosen[name] == wanted]
    (found,) = chosen["value"]
    return found


def test_the_worked_example(recipe):
    """LPSP, section 1 and Figure 1; Algorithm 1 itself decides later than is drawn."""
    table = run(recipe, "example")
    local = [value(table, "local_time", method="BSP", worker=w) for w in (1, 2, 3, 4)]
    assert local == pytest.approx([5.4, 10.8, 7.5, 4.5])

    def numbers(method, metric, count=3):
        meetings = range(1, count + 1)
        return [value(table, metric, method=method, meeting=number) for number in meetings]

    assert numbers("BSP", "sync_point", 1) == pytest.approx([10.8])
    assert value(table, "total_wait", method="BSP") == pytest.approx(15)
    assert numbers("drawn", "sync_point") == pytest.approx([3.6, 5, 8])
    assert numbers("drawn", "sync_wait") == pytest.approx([0, 0.5, 0.6])
    assert numbers("drawn", "members") == [2, 2, 3]
    assert value(table, "total_wait", method="drawn") == pytest.approx(1.1)
    for method in ("BSP", "drawn"):
        assert value(table, "iterations", method=method) == 12
        assert value(table, "total_delay", method=method) == pytest.approx(
            value(table, "total_wait", method=method)
        )
    assert numbers("LPSP", "decided", 2) == pytest.approx([4.5, 8.6])
    assert numbers("LPSP", "delay", 2) == pytest.approx([1.8, 7.7])
    assert numbers("LPSP on arrival", "decided", 2) == pytest.approx([3.6, 5])
    assert numbers("LPSP by the clock", "decided") == pytest.approx([4.14, 4.8, 5.5])
    assert numbers("LPSP computing on", "decided", 2) == pytest.approx([4.5, 7.2])
    first = dict(method="BSP", worker=1)
    assert value(table, "end", activity="compute", number=3, **first) == pytest.approx(5.4)
    assert value(table, "end", activity="wait", number=1, **first) == pytest.approx(10.8)


def test_a_drawn_meeting_has_workers_that_there_are(recipe):
    with pytest.raises(ValueError, match=r"drawn\.1: there is no worker 4"):
        experiments.Example(**recipe.example.model_dump() | {"drawn": [{0: 1}, {4: 2}]})


@pytest.mark.slow
def test_every_policy_under_every_circumstance(recipe, waiting):
    table = waiting[waiting["experiment"] == "waiting"]
    methods = [*recipe.methods, "s=10", "soon"]
    assert set(table["method"]) == set(methods) and set(table["workers"]) == {WORKERS}
    assert set(table["seed"]) == set(range(1, DRAWS + 1))
    counts = table.groupby(["method", "variant", "metric"]).size()
    assert set(counts) == {DRAWS}
    assert len(counts) == len(methods) * len(VARIANTS) * 10
    assert set(table["variant"]) == VARIANTS
    seconds = table.loc[table["variant"] == "constant", "seconds"]
    assert set(seconds) == {recipe.waiting.constant}


@pytest.mark.slow
def test_bsp_waits_for_the_slowest(waiting, recipe):
    """Without communication the share of waiting is 1 - mean(t) / max(t), and at each meeting a
    worker waits for H (max(t) - t)."""
    local = recipe.methods["BSP"].parameters["local_iterations"]
    free = dict(method="BSP", variant="no communication")
    for draw in range(1, DRAWS + 1):
        t = times(recipe, WORKERS, draw)
        share = value(waiting, "waiting_share", seed=draw, **free)
        assert share == pytest.approx(100 * (1 - t.mean() / t.max()))
        delay = local * (t.max() - t.mean())
        assert value(waiting, "delay", seed=draw, **free) == pytest.approx(delay)
        assert value(waiting, "iterations_per_s", seed=draw, **free) == pytest.approx(
            WORKERS / t.max()
        )
        for metric, known in {"over_bsp": 1, "staleness": 0, "local_iterations": local}.items():
            assert value(waiting, metric, seed=draw, **free) == pytest.approx(known)


@pytest.mark.slow
def test_asp_has_all_there_is_to_gain_and_ssp_nearly_nothing(recipe):
    """Within the iteration a worker that the window of the count may cut off at either end."""
    changed = small(recipe, iterations=90).model_dump(mode="json")
    changed["methods"] = {label: changed["methods"][label] for label in ("BSP", "ASP", "SSP")}
    table = run(documents.load("lpsp").schema(**changed), "waiting", part="4")
    assert set(table["workers"]) == {4}
    error = 1 / (0.7 * 90)
    for draw in range(1, DRAWS + 1):
        free = dict(seed=draw, variant="no communication")
        found = value(table, "over_bsp", method="ASP", **free)
        assert found == pytest.approx(stragglers.removable(times(recipe, 4, draw)), rel=error)
        assert value(table, "waiting_share", method="ASP", **free) == 0
        ssp = value(table, "over_bsp", method="SSP", **free)
        # Everyone computes as many iterations as the slowest, but for those cut off.
        assert ssp == pytest.approx(1, abs=3 * error)


@pytest.mark.slow
def test_a_late_decision_is_waited_for_and_an_early_one_is_not(waiting):
    """To the letter, all wait for the next candidate; decided on arrival, hardly anyone does."""
    for draw in range(1, DRAWS + 1):
        fields = dict(variant="no communication", seed=draw)
        letter, soon = (
            value(waiting, "delay", method=label, **fields) for label in ("LPSP", "soon")
        )
        assert letter > soon
    delay, wait = (
        waiting[waiting["metric"] == metric]["value"].to_numpy()
        for metric in ("delay", "sync_wait")
    )
    assert (delay >= wait - 1e-9).all()


def test_traces_are_recorded_times_in_units_of_the_shortest_iteration():
    drawn = experiments._traces(0.5, 20)(1)
    means = sorted(np.mean(times) for times in drawn.times)
    assert means[0] == pytest.approx(0.5) and means[-1] > 2 * means[0]
    # A draw deals the recorded workers out without giving one twice.
    assert len(set(drawn.times)) == 20
    assert drawn.times != experiments._traces(0.5, 20)(2).times
    with pytest.raises(ValueError, match="28 recorded workers, 29 are needed"):
        experiments._traces(0.5, 29)


def recorded_of(given):
    """The record of the policy of these settings."""
    records = map(Record.load, experiments.ROOT.glob(experiments.RECORDED))
    part = given.training.synchronization
    policy = synchronization.load(part.name, **part.parameters)
    (found,) = (
        one for one in records if synchronization.load(one.policy, **one.parameters) == policy
    )
    return found


class Placed:
    """Ray's launcher, whose runs are recorded ones, and whose accuracy rises evenly to 90 %."""

    given = []

    def __init__(self, given, ray):
        self.given.append(given)
        self.record = recorded_of(given)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, say):
        told = self.given[-1].training.told | dict(metric="test_accuracy", unit="%")
        points = [(90 * share, self.record.end * share) for share in (0, 0.5, 1)]
        rows = [results.Row(**told, evidence="measured", value=v, time_s=t) for v, t in points]
        return Ended(self.record, {}, rows)


@pytest.fixture
def placed(monkeypatch):
    """The settings that Ray's launcher was given."""
    monkeypatch.setattr(Placed, "given", [])
    monkeypatch.setattr(experiments.on_ray, "Placed", Placed)
    monkeypatch.setattr(
        experiments.on_ray, "cluster", lambda address, workers: contextlib.nullcontext()
    )
    return Placed.given


@pytest.mark.slow
def test_real_workers_are_slowed_and_told_when_they_arrive(recipe, placed):
    rows = run(recipe, "ray")
    labels = [*recipe.ray.methods, *recipe.ray.readings]
    for label, given in zip(labels, placed, strict=True):
        assert given.training.uneven.sites == tuple(recipe.ray.slow) and set(given.groups) == {0}
        assert given.mode == "model" and given.training.averaged_over == recipe.averaged_over
        part, own = given.training.synchronization, given.policy()
        seed = dict(seed=own.seed) if hasattr(own, "seed") else {}  # the run's, of what is drawn
        assert own == experiments._policy(part, **seed)
        end = recorded_of(given).end
        value = rows[(rows["method"] == label) & (rows["metric"] == "time_to_target")]["value"]
        assert value.item() == pytest.approx(end * recipe.ray.target / 90)
    assert (rows[rows["metric"] == "replayed"]["value"] == 100).all()


@pytest.mark.slow
def test_a_target_that_is_not_reached_is_late(recipe, placed):
    ray = recipe.ray.model_copy(update=dict(target=95.0))
    rows = run(recipe.model_copy(update=dict(ray=ray)), "ray")
    times = rows[rows["metric"] == "time_to_target"]
    assert len(times) and set(times["status"]) == {"late"} and times["value"].isna().all()


@pytest.mark.slow
def test_runs_of_real_workers_are_kept_with_their_command(placed, tmp_path, monkeypatch):
    paths = experiments.ROOT.glob(experiments.RECORDED)
    kept = {path.name: Record.load(path) for path in paths}
    whole, loads = experiments.ROOT, Placed.__init__
    (tmp_path / "data" / "recorded").mkdir(parents=True)

    def elsewhere(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(experiments, "ROOT", whole)
            loads(self, *arguments)

    monkeypatch.setattr(Placed, "__init__", elsewhere)
    monkeypatch.setattr(experiments, "ROOT", tmp_path)
    experiments.record("make record-ray")
    made = {path.name: Record.load(path) for path in tmp_path.glob(experiments.RECORDED)}
    assert made.keys() == kept.keys() and len(made) == 7
    for name, record in made.items():
        assert record.told == kept[name].told and record.about["command"] == "make record-ray"


def test_shares_of_staleness_are_all_of_it(waiting):
    table = waiting[waiting["experiment"] == "staleness"]
    totals = table.groupby("method")["value"].sum()
    assert np.allclose(totals, 100) and "soon" in totals
    for barrier in ("BSP", "MLL-SGD", "MLL-SGD barrier", "s=10"):
        assert value(table, "share", method=barrier, staleness=0) == 100


@pytest.mark.parametrize("label", ["LPSP", "GSSP"])
def test_rows_are_those_of_a_plain_count(recipe, waiting, label):
    """Counted anew from the engine's happenings, by hand, on a network built here."""
    part, network = recipe.methods[label], recipe.network
    topology = star(WORKERS, network.rate, latency=network.latency)
    server, nodes = exchange.load("parameter_server"), topology.workers.tolist()
    communication = OnNetwork(
        Network(topology, efficiency=network.efficiency),
        lambda members, phase: server(topology, [nodes[rank] for rank in members], phase),
        lambda sync, phase: 4 * 61706,  # LeNet-5 in float32
    )
    speeds = stragglers.Fixed(tuple(times(recipe, WORKERS, 1)))
    policy = synchronization.load(part.name, **part.parameters)
    start = None
    version, held = 0, Counter()
    last, since, ended = {}, Counter(), []
    staleness, delays, brought, sizes, waited = {}, {}, {}, [], 0.0
    for event in engine(policy, speeds, communication, groups=[0] * WORKERS):
        match event:
            case Computed(worker=worker, t=t):
                ended.append(t)
                last[worker] = t
                since[worker] += 1
                if len(ended) == 0.3 * ITERATIONS * WORKERS:
                    start = t
                if len(ended) == ITERATIONS * WORKERS:
                    break
            case Decided(meeting=meeting, t=t):
                members = meeting.sync.members
                delays[meeting.number] = [t - last[w] for w in members]
                brought[meeting.number] = [since.pop(w, 0) for w in members]
            case Applied(meeting=meeting):
                members, reads = meeting.sync.members, meeting.sync.weights == (0.0,)
                staleness[meeting.number] = [] if reads else [version - held[w] for w in members]
                version += not reads
                held.update({w: version - held[w] for w in members})
            case Received(meeting=meeting, members=members, t=t):
                last.update(dict.fromkeys(members, t))
                if start is not None:
                    waited += sum(delays[meeting.number])
                    if meeting.sync.weights != (0.0,):  # else it only reads once more
                        sizes.append((meeting.number, len(meeting.sync.members)))
    seconds = ended[-1] - start
    count = sum(size for _, size in sizes)
    known = {
        "iterations_per_s": sum(t > start for t in ended) / seconds,
        "staleness": sum(sum(staleness[k]) for k, _ in sizes) / count,
        "delay": waited / count,
        "local_iterations": sum(sum(brought[k]) for k, _ in sizes) / count,
        "meeting_size": count / len(sizes),
        "sync_interval": seconds / len(sizes),
    }
    for metric, wanted in known.items():
        found = value(waiting, metric, method=label, variant="fixed", seed=1)
        assert found == pytest.approx(wanted), metric


def test_too_short_a_run_says_so(recipe):
    with pytest.raises(ValueError, match=r"waiting\.iterations: 1 of each worker are too few"):
        run(small(recipe, iterations=1), "waiting", part=str(WORKERS))


@pytest.fixture(scope="module")
def by_reading(recipe):
    data = recipe.model_dump(mode="json")
    data["by_reading"] = dict(workers=[WORKERS], draws=3, iterations=60)
    data["cifar10"] |= dict(ablated_workers=WORKERS, ablations=["s"])
    return run(documents.load("lpsp").schema(**data), "by_reading", part=str(WORKERS))


@pytest.mark.slow
def test_every_reading_meets_every_model_of_speed(recipe, by_reading):
    table = by_reading[by_reading["metric"] == "over_bsp"]
    read = ["LPSP", *recipe.readings]
    options = ["", *recipe.ablations["s"]]
    assert set(table["variant"]) == set(experiments.SPEEDS)
    counts = table.groupby(["reading", "option", "variant"]).size()
    assert set(counts.index) == {
        (a, b, c) for a in read for b in options for c in experiments.SPEEDS
    }
    assert set(counts) == {3}
    assert (table.loc[table["method"] == "BSP", "value"] == 1).all()
    # ASP has all that there is to gain; computing on has nearly that, to the letter not.
    for draw in (1, 2, 3):

        def ratio(method, draw=draw):
            return value(by_reading, "over_bsp", method=method, variant="fixed", seed=draw)

        most = stragglers.removable(times(recipe, WORKERS, draw))
        assert ratio("ASP") == pytest.approx(most, rel=0.04)
        assert ratio("LPSP") < ratio("LPSP on arrival") < ratio("ASP") * 1.02
        assert ratio("LPSP by the clock") < ratio("ASP") * 1.02


def test_what_is_recorded_is_not_trained_at_desk_scale():
    for name in ("cifar10_recorded", "mnist_12", "control", "control_rivals", "control_rate"):
        runs = recorded.runs_of("lpsp", name, {"scale": "desk"})
        rows = results.frame(recorded.read("lpsp", name, runs))
        assert set(rows["status"]) == {"ok"}, name
        assert set(rows["experiment"]) == {name.removesuffix("_recorded")}
    assert not recorded.runs_of("lpsp", "cifar10_recorded", {"scale": "paper"})
    for scale in ("desk", "paper"):
        chosen = load({"scale": scale}, names=False).recipes["lpsp"]
        given = {key: getattr(chosen, key) for key in training.cifar10.sections}
        runs = training.cifar10.runs(Bench("lpsp", "cifar10", chosen, scale), given)
        assert bool(runs) == (scale == "paper")


LABELS = ["BSP", "SSP", "GSSP", "MLL-SGD", "LPSP", "LPSP on arrival", "LPSP computing on"]


def full_length(recipe):
    sections = {key: getattr(recipe, key) for key in training.mnist.sections}
    return list(training.mnist.runs(Bench("lpsp", "mnist", recipe, "smoke"), sections).values())


def test_every_method_is_trained_by_its_best_rate_on_held_out_images(recipe, monkeypatch):
    grid = recipe.mnist_rates.grid
    labels = [*recipe.mnist.methods, *recipe.mnist.readings]
    best = {label: grid[number % len(grid)] for number, label in enumerate(labels)}

    def ended(wing, name, run):
        return 97 + (run.lr == best[run.at["method"]])

    monkeypatch.setattr(training, "ended", ended)
    runs = full_length(recipe)
    tried = [run for run in runs if run.judged_on == "validation"]
    judged = [run for run in runs if run.judged_on == "test"]
    assert Counter((run.at["method"], run.lr) for run in tried) == Counter(
        itertools.product(labels, grid)
    )
    assert all(run.validation and run.seconds < recipe.mnist.seconds for run in tried)
    assert {run.seed for run in tried}.isdisjoint(run.seed for run in judged)
    sizes, seeds = len(recipe.mnist.workers), len(recipe.mnist.seeds)
    assert len(judged) == len(labels) * sizes * seeds
    assert all(run.lr == best[run.at["method"]] and run.validation is None for run in judged)
    # What is not known yet holds up its method alone.
    monkeypatch.setattr(
        training, "ended", lambda *place: None if place[2].at["method"] == "SSP" else ended(*place)
    )
    few = [run.at["method"] for run in full_length(recipe) if run.judged_on == "test"]
    assert set(few) == {*labels} - {"SSP"}


def curve(method, experiment, values, **place):
    return [
        Row(document="lpsp", experiment=experiment, case=f"{method} on 12", metric="test_accuracy",
            value=value, unit="%", round=n, time_s=100.0 * n, scale="desk", evidence="recorded",
            workers=12, **place)
        for n, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize("known", [["BSP", "SSP"], ["BSP"], []])
def test_what_is_not_known_yet_fails_and_the_rest_does_not(recipe, known):
    rows = [
        row
        for method in ("BSP", "SSP")
        for lr in (0.1, 0.2)
        for row in curve(method, training.RATES, [50.0, 90.0 + lr], at=dict(method=method, lr=lr))
    ]
    values = [90.0] * 4 + [98.0 + n / 100 for n in range(20)]
    for method, seed in itertools.product(known, (1, 2)):
        rows += curve(method, "mnist", values, at=dict(method=method), seed=seed)
    made = coordinates(results.frame(training.mnist.summarise(results.frame(rows), recipe)))
    tried = made[made["experiment"] == training.RATES].set_index(["metric", "method", "lr"])
    tried = tried.sort_index()
    each = [(m, lr) for m in ("BSP", "SSP") for lr in (0.1, 0.2)]
    assert dict(tried.loc["final_accuracy", "value"]) == {(m, lr): 90.0 + lr for m, lr in each}
    # No rate got to the target: each was late after its 100 s.
    assert dict(tried.loc["time_to_target", "value"]) == dict.fromkeys(each, 100.0)
    assert set(tried.loc["time_to_target", "status"]) == {"late"}
    final = made[(made["experiment"] == "mnist") & (made["metric"] == "final_accuracy")]
    good = final[final["status"] == "ok"]
    assert set(good["method"]) == set(known) and good["value"].eq(98.17).all()
    lost = final[final["status"] == "failed"]
    every = {f"{method} on {n}" for method in ("BSP", "SSP") for n in recipe.mnist.workers}
    assert set(lost["case"]) == every - {f"{method} on 12" for method in known}
    assert lost.groupby("case")["seed"].nunique().eq(len(recipe.mnist.seeds)).all()
    assert lost["reason"].str.contains(training.COMMAND).all()


def test_mnist_is_recorded_at_full_length():
    runs = recorded.runs_of("lpsp", "mnist", {"scale": "desk"})
    rows = coordinates(results.frame(recorded.read("lpsp", "mnist", runs)))
    assert rows["status"].eq("ok").all()
    whole = rows["experiment"] == "mnist"
    assert {run.seconds for run in runs if run.experiment == "mnist"} == {3000}
    for workers in (8, 12, 16):
        there = rows[whole & (rows["workers"] == workers)]
        assert there.groupby("method")["seed"].nunique().to_dict() == dict.fromkeys(LABELS, 5)


def test_recorded_runs_are_the_methods_that_they_were(recipe):
    found = run(recipe, "recorded")
    assert set(found["method"]) == {*recipe.ray.methods, *recipe.ray.readings}
    told = found.pivot_table("value", "method", "metric")
    used = told["capacity_used"]
    assert list(used) == pytest.approx(list(100 * told["iterations_per_s"] / told["capacity"]))
    assert (used < 100).all()


def test_charts_have_no_gaps(recipe):
    chart = run(small(recipe), "gantt")
    lanes = chart.groupby(["method", "worker"])
    assert set(lanes.groups) == {(m, w) for m in recipe.methods for w in range(1, WORKERS + 1)}
    end = 6 * times(recipe, WORKERS, 1).max()
    for _, lane in lanes:
        wide = lane.pivot(index=["activity", "number"], columns="metric", values="value")
        for _, same in wide.groupby(level="activity"):
            assert list(same.sort_values("begin").index.get_level_values("number")) == list(
                range(1, len(same) + 1)
            )
        wide = wide.sort_values("begin")
        assert wide["begin"].iloc[0] == 0 and wide["end"].iloc[-1] == pytest.approx(end)
        assert np.array_equal(wide["begin"].iloc[1:], wide["end"].iloc[:-1])


def test_what_there_is_to_gain(recipe):
    table = run(small(recipe), "bound")
    highest = recipe.stragglers.highest
    draws = {"waiting": range(1, DRAWS + 1), "trained": recipe.mnist.seeds}
    for name, seeds in draws.items():
        found = table[table["draws"] == name]
        assert list(found["seed"]) == list(seeds)
        for draw, ours in zip(found["seed"], found["value"], strict=True):
            t = times(recipe, WORKERS, draw)
            assert ours == pytest.approx(t.max() * np.mean(1 / t))
    quantiles = table.dropna(subset="quantile")
    assert list(quantiles["quantile"]) == [0.05, 0.5, 0.95, 0.999, 1]
    supremum = value(table, "removable_supremum")
    assert quantiles["value"].is_monotonic_increasing and quantiles["value"].max() < supremum
    assert supremum == pytest.approx(stragglers.removable([highest] + [1.0] * (WORKERS - 1)))
    shares = table[table["metric"] == "share"]
    assert list(shares["ratio"]) == recipe.bound.ratios
    assert shares["value"].is_monotonic_decreasing and (shares["value"] < 5).all()
    # The mean of max(t) mean(1/t) over ever more workers, by the midpoints of even steps.
    t = 1 + (highest - 1) * (np.arange(10_000) + 0.5) / 10_000
    assert value(table, "removable_limit") == pytest.approx(highest * np.mean(1 / t), rel=1e-6)


def test_gains_of_batching_are_ratios_of_its_times(recipe):
    changed = recipe.model_copy(
        update=dict(
            accelerator="cpu",
            batching=experiments.Batching(workers=[2], batches=[3], repeats=1),
        )
    )
    table = run(changed, "batching")
    assert set(table["model"]) == {"lenet5", "cnn3"}
    assert set(table["workers"]) == {2} and set(table["batch"]) == {3}
    wide = table.pivot(index="model", columns="metric", values="value")
    assert len(wide) == 2 and (wide > 0).all(axis=None)
    assert np.allclose(wide["gain"], wide["one_by_one"] / wide["vmap"])


def test_trained_runs_differ_in_what_their_experiments_say(recipe):
    runs = {}
    for name, one in documents.load("lpsp").trainings.items():
        given = {key: getattr(recipe, key) for key in one.sections}
        runs[name] = list(one.runs(Bench("lpsp", name, recipe, "smoke"), given).values())
    seeds = len(recipe.cifar10.seeds)
    sizes, ablated, read = recipe.cifar10.workers, 5, len(recipe.cifar10.readings)
    each = len(recipe.cifar10.methods) * len(sizes) + read * len(recipe.cifar10.readings_on)
    assert len(runs["cifar10"]) == seeds * (each + ablated)
    rivals = {run.at["method"] for run in runs["control_rivals"]}
    assert rivals == {"GSSP breaks", "MLL-SGD barrier"}
    averaged = {name: {run.averaged_over for run in some} for name, some in runs.items()}
    assert averaged["mnist_12"] == averaged["control_rivals"] == {"all"}
    assert averaged["control"] == averaged["control_rate"] == {"members"}
    assert {run.lr for run in runs["control"]} == {recipe.mnist_12.lr}
    assert {run.lr for run in runs["control_rate"]} == {recipe.control_rate.lr}
    changed = next(run for run in runs["cifar10"] if run.at["method"] == "s=0.4")
    own = recipe.methods["LPSP"].parameters
    assert changed.synchronization.parameters == own | {"s": 0.4}
    assert changed.at == {"method": "s=0.4", "reading": "LPSP", "option": "s=0.4"}
    read = next(run for run in runs["mnist_12"] if run.at["method"] == "LPSP computing on")
    assert read.synchronization.parameters == own | {"computes_on": True}
    assert read.at == {"method": "LPSP computing on", "reading": "LPSP computing on", "option": ""}


def test_only_those_who_train_need_the_data(recipe):
    jobs = Jobs(load({"scale": "smoke"}), {"lpsp": documents.load("lpsp")}).all.values()
    data = {job.experiment.name: job.inputs["data"] for job in jobs if not job.summary}
    mnist, cifar10 = "results/data/mnist.json", "results/data/cifar10.json"
    assert {name: files for name, files in data.items() if files} == {
        "ray": [mnist],
        "cifar10": [cifar10],
    }


def test_settings_that_do_not_fit_are_named(tmp_path):
    text = (documents.load("lpsp").folder / "recipe.yaml").read_text()
    for old, new, message in (
        (
            "dataset: cifar10",
            "dataset: cifar100",
            r"cifar10\.dataset: 'cifar100'; allowed: cifar10",
        ),
        ("ablated_workers: 12", "ablated_workers: 13", r"13 is not among cifar10\.workers"),
        (
            "methods: [GSSP breaks,",
            "methods: [GSSP fixed,",
            r"control_rivals\.methods: 'GSSP fixed'",
        ),
        (
            "ablations: [p_min, s]",
            "ablations: [p_max]",
            r"cifar10\.ablations: 'p_max'; allowed: formula, p_min",
        ),
        (
            "readings_on: [8, 12, 16]",
            "readings_on: [8, 13]",
            r"mnist\.readings_on: not all are among mnist\.workers",
        ),
        (
            "readings: [LPSP on arrival, LPSP computing on]",
            "readings: [LPSP at once]",
            r"mnist\.readings: 'LPSP at once'",
        ),
        ("<<: *lpsp, s: 0.4", "<<: *lpsp, S: 0.4", r"s=0\.4: lpsp: unknown parameter 'S'"),
    ):
        assert old in text
        (tmp_path / "recipe.yaml").write_text(text.replace(old, new))
        with pytest.raises(SettingsError, match=message):
            load({"scale": "paper"}, {"lpsp": tmp_path})


def test_every_ablation_is_lpsp_with_other_values_of_its_options(recipe):
    own = recipe.methods["LPSP"]
    for group in recipe.ablations.values():
        for label, part in group.items():
            assert part.name == own.name and part.parameters != own.parameters, label
            assert own.parameters.keys() <= part.parameters.keys(), label


def times(recipe, workers, draw):
    """Seconds an iteration: even draws from 1 to the highest factor, times the base."""
    factors = np.random.default_rng(draw).uniform(1, recipe.stragglers.highest, workers)
    return recipe.mnist.base_s * factors
