"""What LPSP's experiments without training must show, on small settings, against closed forms."""

from collections import Counter

import numpy as np
import pytest

from methods import exchange, synchronization
from testbed import results
from testbed.network import Network, star
from testbed.training import stragglers
from testbed.training.virtual_time import Applied, Computed, Decided, OnNetwork, Received
from testbed.training.virtual_time import happenings as engine
from workflow.experiments import lpsp, rows
from workflow.recipes import schema
from workflow.settings import load

DRAWS, ITERATIONS, WORKERS = 3, 30, 8


@pytest.fixture(scope="module")
def recipe():
    return load({"scale": "smoke"}, names=False).recipes["lpsp"]


def small(recipe, *sections, **waiting):
    """The recipe as a job gets it, with short runs of few workers and ablations."""
    data = recipe.only("waiting", "mnist", "cifar10", *sections)
    shown = dict(shown=WORKERS, shown_iterations=6, bound_draws=2000)
    data["waiting"] |= dict(workers=[WORKERS], draws=DRAWS, iterations=ITERATIONS) | shown
    data["waiting"] |= waiting
    data["cifar10"]["ablated_workers"] = WORKERS
    data["ablations"] = {"s": {"s=10": {"s": 10.0}}, "reading": {"soon": {"decision": "arrival"}}}
    return data


def run(data, experiment):
    return results.frame(rows("lpsp", data, "smoke", experiment, lambda message: None))


@pytest.fixture(scope="module")
def waiting(recipe):
    return run(small(recipe), "waiting")


def value(table, metric, **fields):
    chosen = table[table["metric"] == metric]
    for name, wanted in fields.items():
        chosen = chosen[chosen[name] == wanted]
    (found,) = chosen["value"]
    return found


def test_unknown_jobs_are_refused(recipe):
    with pytest.raises(KeyError, match="figure9"):
        run(small(recipe), "figure9")


def test_the_worked_example(recipe):
    """LPSP, section 1 and Figure 1; Algorithm 1 itself decides later than is drawn."""
    table = run(recipe.only("example"), "example")
    local = [value(table, "local_time", case="BSP", variant=f"w{w}") for w in (1, 2, 3, 4)]
    assert local == pytest.approx([5.4, 10.8, 7.5, 4.5])

    def numbers(case, metric, count=3):
        variants = [str(number) for number in range(1, count + 1)]
        return [value(table, metric, case=case, variant=v) for v in variants]

    assert numbers("BSP", "sync_point", 1) == pytest.approx([10.8])
    assert value(table, "total_wait", case="BSP") == pytest.approx(15)
    assert numbers("drawn", "sync_point") == pytest.approx([3.6, 5, 8])
    assert numbers("drawn", "sync_wait") == pytest.approx([0, 0.5, 0.6])
    assert numbers("drawn", "members") == [2, 2, 3]
    assert value(table, "total_wait", case="drawn") == pytest.approx(1.1)
    for case in ("BSP", "drawn"):
        assert value(table, "iterations", case=case) == 12
        assert value(table, "total_delay", case=case) == pytest.approx(
            value(table, "total_wait", case=case)
        )
    assert numbers("Algorithm 1", "decided", 2) == pytest.approx([4.5, 8.6])
    assert numbers("Algorithm 1", "delay", 2) == pytest.approx([1.8, 7.7])
    assert numbers("on arrival", "decided", 2) == pytest.approx([3.6, 5])
    spans = table[(table["case"] == "BSP w1") & (table["metric"] == "end")]
    assert value(spans, "end", variant="compute 3") == pytest.approx(5.4)
    assert value(spans, "end", variant="wait 1") == pytest.approx(10.8)


def test_every_policy_under_every_circumstance(recipe, waiting):
    table = waiting[waiting["experiment"] == "waiting"]
    labels = [*recipe.methods, "s=10", "soon"]
    assert set(table["case"]) == {f"{label} on {WORKERS}" for label in labels}
    assert set(table["seed"]) == set(range(1, DRAWS + 1))
    counts = table.groupby(["case", "variant", "metric"]).size()
    assert set(counts) == {DRAWS}
    assert len(counts) == len(labels) * 7 * 10
    assert set(table["variant"]) == {
        "fixed", "jitter", "varying", "trace", "no communication", "constant 0.5 s", "slow server"
    }  # fmt: skip


def test_bsp_waits_for_the_slowest(waiting, recipe):
    """Without communication the share of waiting is 1 - mean(t) / max(t), and at each meeting a
    worker waits for H (max(t) - t)."""
    local = recipe.methods["BSP"].parameters["local_iterations"]
    free = dict(case=f"BSP on {WORKERS}", variant="no communication")
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


def test_asp_has_all_there_is_to_gain_and_ssp_nearly_nothing(recipe):
    """Within the iteration a worker that the window of the count may cut off at either end."""
    data = small(recipe, workers=[4, WORKERS], iterations=90)
    data["methods"] = {label: data["methods"][label] for label in ("BSP", "ASP", "SSP")}
    table = run(data, "waiting-4")  # one size alone
    assert set(table["workers"]) == {4}
    error = 1 / (0.7 * 90)
    for draw in range(1, DRAWS + 1):
        free = dict(seed=draw, variant="no communication")
        found = value(table, "over_bsp", case="ASP on 4", **free)
        assert found == pytest.approx(stragglers.removable(times(recipe, 4, draw)), rel=error)
        assert value(table, "waiting_share", case="ASP on 4", **free) == 0
        ssp = value(table, "over_bsp", case="SSP on 4", **free)
        # Everyone computes as many iterations as the slowest, but for those cut off.
        assert ssp == pytest.approx(1, abs=3 * error)


def test_a_late_decision_is_waited_for_and_an_early_one_is_not(waiting):
    """To the letter, all wait for the next candidate; decided on arrival, hardly anyone does."""
    for draw in range(1, DRAWS + 1):
        fields = dict(variant="no communication", seed=draw)
        letter, soon = (
            value(waiting, "delay", case=f"{label} on {WORKERS}", **fields)
            for label in ("LPSP", "soon")
        )
        assert letter > soon
    delay, wait = (
        waiting[waiting["metric"] == metric]["value"].to_numpy()
        for metric in ("delay", "sync_wait")
    )
    assert (delay >= wait - 1e-9).all()


def test_traces_are_recorded_times_in_units_of_the_shortest_iteration(recipe):
    recipe = schema("lpsp")(**small(recipe))
    bench = lpsp._Bench(recipe, "smoke", "waiting", print)
    drawn = lpsp._traces(bench, 20)(1)
    means = sorted(np.mean(times) for times in drawn.times)
    assert means[0] == pytest.approx(recipe.mnist.base_s) and means[-1] > 2 * means[0]
    # 20 workers were recorded; a draw deals them out without giving one twice.
    assert len(set(drawn.times)) == 20
    assert drawn.times != lpsp._traces(bench, 20)(2).times
    with pytest.raises(ValueError, match="20 recorded workers, 21 are needed"):
        lpsp._traces(bench, 21)


def test_shares_of_staleness_are_all_of_it(waiting):
    table = waiting[waiting["experiment"] == "staleness"]
    totals = table.groupby("case")["value"].sum()
    assert np.allclose(totals, 100) and f"soon on {WORKERS}" in totals
    for barrier in ("BSP", "MLL-SGD", "s=10"):
        assert value(table, "share", case=f"{barrier} on {WORKERS}", variant="0") == 100


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
        found = value(waiting, metric, case=f"{label} on {WORKERS}", variant="fixed", seed=1)
        assert found == pytest.approx(wanted), metric


def test_too_short_a_run_says_so(recipe):
    with pytest.raises(ValueError, match=r"waiting\.iterations: 1 of each worker are too few"):
        run(small(recipe, iterations=1), "waiting")


def test_charts_have_no_gaps(recipe, waiting):
    chart = waiting[waiting["experiment"] == "gantt"]
    cases = {f"{label} w{w}" for label in recipe.methods for w in range(1, WORKERS + 1)}
    assert set(chart["case"]) == cases
    end = 6 * times(recipe, WORKERS, 1).max()
    for case in sorted(cases):
        wide = chart[chart["case"] == case].pivot(index="variant", columns="metric", values="value")
        wide = wide.sort_values("begin")
        assert wide["begin"].iloc[0] == 0 and wide["end"].iloc[-1] == pytest.approx(end)
        assert np.array_equal(wide["begin"].iloc[1:], wide["end"].iloc[:-1])
        kinds = [name.split() for name in wide.index]
        numbers = Counter()
        for kind, number in kinds:
            numbers[kind] += 1
            assert int(number) == numbers[kind]


def test_what_there_is_to_gain(recipe):
    table = run(small(recipe), "bound")
    case = f"{WORKERS} workers"
    highest = recipe.stragglers.highest
    draws = {"": range(1, DRAWS + 1), "trained": recipe.mnist.seeds}
    for variant, seeds in draws.items():
        found = table[(table["variant"] == variant) & (table["case"] == case)]
        assert list(found["seed"]) == list(seeds)
        for draw, ours in zip(found["seed"], found["value"], strict=True):
            t = times(recipe, WORKERS, draw)
            assert ours == pytest.approx(t.max() * np.mean(1 / t))
    names = ["5 %", "50 %", "95 %", "99.9 %", "highest", "supremum"]
    order = [value(table, "removable", case=case, variant=name) for name in names]
    assert order == sorted(order)
    slowest = [highest] + [1.0] * (WORKERS - 1)
    assert order[-1] == pytest.approx(stragglers.removable(slowest))
    shares = table[table["metric"] == "share"]
    assert list(shares["variant"]) == [f"at least {r}" for r in (1.75, 1.87, 2.17, 2.26)]
    assert shares["value"].is_monotonic_decreasing and (shares["value"] < 5).all()
    # The mean of max(t) mean(1/t) over ever more workers, by the midpoints of even steps.
    t = 1 + (highest - 1) * (np.arange(10_000) + 0.5) / 10_000
    limit = value(table, "removable", case="many workers", variant="limit")
    assert limit == pytest.approx(highest * np.mean(1 / t), rel=1e-6)


def test_gains_of_batching_are_ratios_of_its_times(recipe):
    data = small(recipe, "batching") | {"accelerator": "cpu"}
    data["batching"] |= dict(workers=[2], batches=[3], repeats=1)
    table = run(data, "batching")
    assert set(table["case"]) == {"lenet5", "cnn3"}
    assert set(table["variant"]) == {"n=2 batch=3"}
    wide = table.pivot(index=["case", "variant"], columns="metric", values="value")
    assert len(wide) == 2 and (wide > 0).all(axis=None)
    assert np.allclose(wide["gain"], wide["one_by_one"] / wide["vmap"])


def times(recipe, workers, draw):
    """Seconds an iteration: even draws from 1 to the highest factor, times the base."""
    factors = np.random.default_rng(draw).uniform(1, recipe.stragglers.highest, workers)
    return recipe.mnist.base_s * factors
