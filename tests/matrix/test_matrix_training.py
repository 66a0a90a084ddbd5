"""How long a method of the matrix trains, and what its curves arrive at."""

import itertools
import math

import pytest

from slowlink.testbed.results import Row, frame
from slowlink.testbed.training.pipeline import layers
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import advice, experiments
from slowlink.workflow.matrix.experiments import arrivals, until_target

TARGET, ROUNDS, WINDOW = 90.0, 40, 3
POINT = Row(
    document="matrix",
    experiment="training",
    case="m",
    seed=1,
    scale="smoke",
    evidence="measured",
    metric="test_accuracy",
    value=0.0,
    unit="%",
)


def run(*accuracies: float, seed: int = 1, every: float = 10):
    """A run evaluated every so many rounds, as the trainer tells it."""
    for number, accuracy in enumerate(accuracies):
        for metric, value in (("test_accuracy", accuracy), ("bytes_sent", 8.0 * number)):
            update = dict(metric=metric, value=value, round=int(every * number), seed=seed)
            yield POINT.model_copy(update=update)
    yield POINT.model_copy(update=dict(metric="mean_round_time", value=1.0, round=-1, seed=seed))


def rounds_of(rows):
    return [row.round for row in rows if row.metric == "test_accuracy"]


@pytest.mark.parametrize(
    ("accuracies", "last"),
    [
        ((10, 95, 95, 95, 95, 95, 95, 95), 60),  # there at 30, and three evaluations more
        ((95, 95, 95, 95, 95, 95), 40),  # there early: all rounds that are compared
        # The mean of three arrives at 70, and is looked at until 100.
        ((10, 20, 30, 40, 50, 99, 99, 99, 99, 99, 10, 10), 100),
        ((10, 20, 30, 40, 50, 99, 10, 10, 10), 80),  # one lucky evaluation is no arrival
        ((10, 20), 10),  # the run's own end
    ],
)
def test_a_run_ends_when_it_has_arrived_but_not_before_the_rounds_that_are_compared(
    accuracies, last
):
    rows = list(until_target(run(*accuracies), TARGET, ROUNDS, WINDOW))
    assert rounds_of(rows) == list(range(0, last + 1, 10))
    assert {row.metric for row in rows} == {"test_accuracy", "bytes_sent"}
    assert rows[-1].metric == "bytes_sent"


def test_nothing_is_trained_beyond_the_end():
    def endless():
        yield from itertools.islice(run(*[99] * 6), 2 * 5)  # two rows for each of rounds 0 to 40
        raise AssertionError("trained on")

    assert rounds_of(until_target(endless(), TARGET, ROUNDS, WINDOW)) == [0, 10, 20, 30, 40]


def test_a_run_that_breaks_is_kept():
    update = dict(value=math.nan, status="failed", reason="test loss is nan; lower lr")
    broken = POINT.model_copy(update=update)
    assert list(until_target([broken], TARGET, ROUNDS, WINDOW)) == [broken]
    told = list(arrivals([broken], TARGET, ROUNDS, WINDOW))
    assert {(row.metric, row.status) for row in told} == {
        ("final_accuracy", "failed"),
        ("rounds_to_target", "failed"),
    }


def test_accuracies_are_compared_at_the_same_round_and_the_target_counts_later():
    late = [*run(10, 20, 30, 40, 50, 84, 90, 96), *run(10, 60, 90, 93, 96, seed=2)]
    told = {(row.metric, row.seed): row for row in arrivals(late, TARGET, ROUNDS, WINDOW)}
    assert told["final_accuracy", 1].value == pytest.approx((30 + 40 + 50) / 3)
    assert told["final_accuracy", 2].value == pytest.approx((90 + 93 + 96) / 3)
    # Means of three: …, 58, 74.67, 90 at round 70; and 53.3, 81, 93 at round 40.
    assert told["rounds_to_target", 1].value == pytest.approx(70)
    assert told["rounds_to_target", 2].value == pytest.approx(30 + 10 * (90 - 81) / (93 - 81))
    # Both arrive with their last evaluation, after which nothing shows whether they hold it.
    assert "held_accuracy" not in {metric for metric, _ in told}


@pytest.mark.parametrize(
    ("accuracies", "held"),
    [
        ((88, 91, 94, 80, 81, 82, 99), (80 + 81 + 82) / 3),  # there at 20: what follows counts
        ((88, 91, 90.5, 92, 96), 96),  # means of three: 89.8, 91.2 at 30, and one is left
        ((95, 80, 84, 88), (80 + 84 + 88) / 3),  # there from the beginning
    ],
)
def test_what_is_held_are_the_evaluations_after_the_one_that_arrived(accuracies, held):
    told = {row.metric: row for row in arrivals(list(run(*accuracies)), TARGET, 30, WINDOW)}
    assert told["rounds_to_target"].status == "ok"
    assert told["held_accuracy"].value == pytest.approx(held)


def test_rounds_that_come_several_at_a_time_are_judged_from_the_round_that_is_compared():
    rows = list(until_target(run(10, 20, 91, 94, 97, 99, every=10.5), TARGET, ROUNDS, WINDOW))
    assert rounds_of(rows) == [0, 10, 21, 31, 42, 52]  # it arrives at 42, and trains on
    told = {row.metric: row for row in arrivals(rows, TARGET, ROUNDS, WINDOW)}
    assert told["final_accuracy"].value == pytest.approx((91 + 94 + 97) / 3)
    assert told["final_accuracy"].round == 42


@pytest.mark.parametrize(
    ("accuracies", "final", "arrived"),
    [
        ((10, 95, 95, 95, 95, 95), 95.0, "ok"),  # after the round that is compared, and there
        ((10, 20, 30, 40, 50, 60), 40.0, "failed"),
        ((10, 95, 95, 95), None, "ok"),
    ],
)
def test_what_diverges_keeps_what_it_had_reached(accuracies, final, arrived):
    update = dict(value=math.nan, status="failed", reason="test loss is nan; lower lr")
    rows = [row for row in run(*accuracies) if row.round >= 0]
    rows.append(POINT.model_copy(update=update))
    told = {row.metric: row for row in arrivals(rows, 90, 40, WINDOW)}
    accuracy = told["final_accuracy"]
    assert (accuracy.value if accuracy.status == "ok" else None) == final
    assert told["rounds_to_target"].status == arrived
    assert "lower lr" in told["rounds_to_target"].reason + accuracy.reason or arrived == "ok"


def test_what_never_arrives_says_after_how_many_rounds():
    (_, _, never) = arrivals(list(run(10, 20, 30)), TARGET, ROUNDS, WINDOW)
    assert never.status == "late" and never.reason == "never reached 90 % within 20 rounds"


def test_rates_are_chosen_on_images_that_no_run_trains_on(monkeypatch):
    made = []

    def train(recipe, *_):
        made.append(recipe)
        yield from run(*[95 if recipe.lr == 0.05 else 50] * 4, seed=recipe.seed)

    monkeypatch.setattr(experiments, "train", train)
    recipe = advice.recipe("smoke")
    how, bench = recipe.training, Bench("matrix", "training", recipe, "smoke")
    list(experiments.training.function(bench, "ring", how))
    tried, judged = (
        [one for one in made if one.experiment == kind] for kind in ("tuning", "training")
    )
    assert {one.judged_on for one in tried} == {"validation"}
    assert {(one.judged_on, one.lr) for one in judged} == {("test", 0.05)}
    assert [one.lr for one in tried] == how.grid and [one.seed for one in judged] == how.seeds
    assert {one.validation for one in made} == {how.validation}


def test_the_better_half_of_the_grid_is_tried_for_longer(monkeypatch):
    """What is best at first need not be in the end; nobody trains on after it was dropped."""
    curves = {
        0.001: [10, 20, 90, 91],
        0.01: [10, 80, 92, 95],
        0.1: [10, 85, 80, 70],
        1.0: [10, math.nan],  # at its end, as a failed row
        0.03: [10, 60, 94, 99],
    }
    reached = dict.fromkeys(curves, 0)

    def train(recipe, *_):
        rows = run(*curves[recipe.lr], seed=recipe.seed)
        for row in rows if recipe.judged_on == "validation" else run(*[95] * 8, seed=recipe.seed):
            if math.isnan(row.value):
                yield row.model_copy(update=dict(status="failed", reason="diverged"))
                return
            if recipe.judged_on == "validation":
                reached[recipe.lr] = max(reached[recipe.lr], row.round)
            yield row

    monkeypatch.setattr(experiments, "train", train)
    recipe = advice.recipe("smoke")
    changes = dict(grid=list(curves), rungs=[10, 30], window=1)
    how = recipe.training.model_copy(update=changes)
    rows = list(
        experiments.training.function(Bench("matrix", "training", recipe, "smoke"), "ring", how)
    )
    assert reached == {0.001: 10, 0.01: 30, 0.1: 30, 1.0: 0, 0.03: 30}
    tried = {row.at["lr"]: row for row in rows if "lr" in row.at}
    assert {lr: (row.value, row.round) for lr, row in tried.items() if lr != 1.0} == {
        0.001: (20, 10), 0.01: (95, 30), 0.1: (70, 30), 0.03: (99, 30)
    }  # fmt: skip
    assert list(tried) == how.grid and tried[1.0].status == "failed"
    assert {row.value for row in rows if row.metric == "chosen_lr"} == {0.03}
    assert how.tried_for() == [30, 30, 30, 10, 10]


# A residual network, recorded ---------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch):
    """The runs of the recorded training that are known, of two methods, and how runs ended."""
    recipe = advice.recipe("smoke")
    taught = recipe.residual.model_copy(update=dict(classes=["ring", "asp"], seeds=[1, 2]))
    bench = Bench("matrix", "residual", recipe, "smoke")
    ends: dict[str, float] = {}
    monkeypatch.setattr(experiments, "ended", lambda wing, name, run: ends.get(run.id))
    return ends, lambda: list(experiments.residual.runs(bench, dict(residual=taught)).values())


def test_the_better_half_of_the_rates_goes_on_and_the_best_one_trains(planned):
    ends, runs = planned
    first = runs()
    assert [(r.at["method"], r.lr, r.rounds) for r in first] == [
        (label, lr, 60) for label in ("ring", "asp") for lr in (0.003, 0.01, 0.03, 0.1)
    ]
    assert {r.judged_on for r in first} == {"validation"} and {r.seed for r in first} == {0}
    ends |= {
        run.id: accuracy for run, accuracy in zip(first, (20, 40, 30, -math.inf), strict=False)
    }
    second = [r for r in runs() if r.at["method"] == "ring" and r.rounds == 180]
    assert [r.lr for r in second] == [0.01, 0.03]
    ends |= {second[0].id: 41, second[1].id: 50}
    goal, *judged = [r for r in runs() if r.rounds == 1600]
    assert (goal.at["method"], goal.lr, goal.seed, goal.judged_on) == (
        "ring",
        0.03,
        0,
        "validation",
    )
    assert [(r.system, r.lr, r.seed, r.judged_on) for r in judged] == [
        ("ring", 0.03, 1, "test"), ("ring", 0.03, 2, "test")
    ]  # fmt: skip
    assert {r.validation for r in runs()} == {2500}


def test_what_looks_at_the_clock_is_recorded_at_every_ratio(planned):
    """At the rate that the middle one found; each run is a file of its own."""
    ends, runs = planned
    for accuracy in (30.0, 40.0):
        ends |= {run.id: accuracy for run in runs() if run.rounds < 1600 and run.id not in ends}
    tried = {run.at["ratio"] for run in runs() if run.at["method"] == "asp" and run.rounds < 1600}
    made = [run for run in runs() if run.at["method"] == "asp" and run.rounds == 1600]
    assert tried == {1.0} and {run.lr for run in made} == {0.003}
    assert [(run.seed, run.at["ratio"]) for run in made] == [
        (seed, ratio) for seed in (1, 2) for ratio in (1.0, 0.1, 10.0)
    ]
    assert len({run.id for run in runs()}) == len(runs())


def test_what_is_recorded_at_several_ratios_arrives_at_each(planned):
    ends, runs = planned
    for accuracy in (30.0, 40.0):
        ends |= {run.id: accuracy for run in runs() if run.rounds < 1600 and run.id not in ends}
    rows = []
    for one in runs():
        reached = one.at.get("ratio") != 10.0
        for number in range(8):
            value = 60.0 if number and reached else 10.0
            point = dict(metric="test_accuracy", value=value, unit="%", round=200 * number)
            link = one.networks[one.at["method"]].wan
            rows.append(Row(**one.told, evidence="recorded", case="one", bandwidth=link, **point))
    made = experiments.residual.summarise(frame(rows), advice.recipe("smoke"))
    found = {
        (row.at["ratio"], row.seed): row.status
        for row in made
        if row.at["method"] == "asp" and row.metric == "rounds_to_target"
    }
    assert found == {
        (ratio, seed): "late" if ratio == 10 else "ok" for ratio in (0.1, 1, 10) for seed in (1, 2)
    }


def test_what_is_recorded_is_held_against_a_share_of_plain_values(planned):
    ends, runs = planned
    first = runs()
    ends |= dict.fromkeys((one.id for one in first), 30.0)
    ends |= dict.fromkeys((one.id for one in runs()), 30.0)
    rows = []
    for one in runs():
        seed = one.seed
        if one.at["method"] == "ring" and seed < 2:  # the second seed is not recorded yet
            curve = [10.0, 50.0, 60.0, 60.0, 60.0, 60.0, 60.0]
            for number, value in enumerate(curve):
                point = dict(metric="test_accuracy", value=value, unit="%", round=300 * number)
                rows.append(Row(**one.told, evidence="recorded", case="ring", **point))
        else:
            why = dict(value=math.nan, status="failed", reason="not recorded yet")
            told = dict(metric="test_accuracy", unit="%", evidence="recorded", case=one.system)
            rows.append(Row(**one.told, **told, **why))
    made = list(experiments.residual.summarise(frame(rows), advice.recipe("smoke")))
    mine = [row for row in made if row.experiment == "residual"]
    assert {row.at["method"] for row in mine} == {"ring"} and {row.seed for row in mine} == {-1, 1}
    found = {row.metric: row for row in mine}
    assert found["target_accuracy"].value == pytest.approx(0.91 * 60)
    assert found["chosen_lr"].value == 0.003 and found["final_accuracy"].value == 60
    # The mean of five evaluations is 54.6 % between the fourth (48) and the fifth (58).
    assert found["rounds_to_target"].value == pytest.approx(300 * 4.66)
    tried = [row for row in made if row.experiment == "residual_rates"]
    assert [(row.at["rung"], row.at["lr"], row.value) for row in tried][:2] == [
        (60, 0.003, 60), (60, 0.01, 60)
    ]  # fmt: skip


def test_policies_that_look_at_the_clock_are_trained_at_the_ratios_that_are_stated():
    """Both ways of the model on a link of its own, in times of an iteration of the fastest."""
    recipe = advice.recipe()
    bench, how = Bench("matrix", "training", recipe, "desk"), recipe.training
    for ratio in how.ratios:
        made = experiments.run(bench, how, "ssp", 0.1, 1, 100, "training", ratio=ratio)
        link = made.networks["ssp"]
        values = sum(math.prod(t.shape) for t in layers(how.model).tensors)
        seconds = 2 * 32 * values / (link.lan * link.efficiency)
        assert seconds == pytest.approx(ratio * made.compute_s) and link.lan == link.wan
        assert made.at == {"method": "ssp", "ratio": ratio}
    assert len(how.ratios) == 3


@pytest.mark.parametrize("scale", ["smoke", "desk"])
def test_the_job_that_condenses_finds_what_is_recorded_of_its_methods(scale):
    """It gets the methods as they were found, without the recipe's systems."""
    recipe = advice.recipe(scale)
    plain = recipe.model_dump(mode="json", include=set(experiments.Matrix.model_fields))
    sections = dict(training=recipe.training, residual=recipe.residual)
    narrowed = recipe.narrowed(plain, experiments.condensed, None, sections)
    found = experiments.Matrix(**narrowed).recorded_as(recipe.residual)
    assert found == recipe.recorded_as(recipe.residual) and found["ring"] == "ring"
