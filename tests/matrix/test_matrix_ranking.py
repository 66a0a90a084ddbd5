"""Ranks, ties, profiles and fronts of the matrix against brute force and worked examples."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slowlink.reports.charts import Missing
from slowlink.reports.evidence import Estimate
from slowlink.testbed import results
from slowlink.workflow.matrix import experiments, pictures, ranking
from tests.matrix import matrix_results
from tests.matrix.matrix_results import (
    GROUPS,
    KINDS,
    METHODS,
    PLACES,
    RESIDUAL_AS,
    TRAINED_AS,
    made,
    round_s,
)


@pytest.fixture(scope="module")
def whole():
    return made()


@pytest.fixture(scope="module")
def short(whole):
    return condensed(whole)


def condensed(table, labels=METHODS):
    groups = {label: GROUPS[label] for label in labels}
    trained = {label: one for label, one in TRAINED_AS.items() if label in labels}
    return results.coordinates(matrix_results.results(table, groups, trained, *PLACES[2:]))


def test_condensing_loses_no_round_time_and_says_what_cannot_run(whole, short, tmp_path):
    cells = results.coordinates(whole).query("metric == 'round_time' and status == 'ok'")
    times = ranking.metric(short, "round_time")
    found = cells.pivot(index=ranking.CELL, columns="method", values="value")
    pd.testing.assert_frame_equal(found[times.columns], times)
    assert (ranking.of(short, "round_times")["status"] == "ok").all()
    (lost,) = ranking.of(short, "cannot_run").itertuples()
    assert (lost.method, lost.network, lost.value) == ("sites only", "flat", 12)
    assert lost.reason == "star has no sites"
    runs = ranking.info(short)["value"]
    assert runs.to_dict() == {label: 24 - 12 * (label == "sites only") for label in METHODS}
    assert len(short) < len(whole)
    beside = [*experiments.answers.makes, "robust", "effort"]
    mine = short[~short["experiment"].isin(beside)]
    assert set(mine["experiment"]) == set(experiments.condensed.makes)
    results.write(ranking.condense(whole, *PLACES), tmp_path / "rows.parquet")
    assert len(results.read([tmp_path / "rows.parquet"])) == len(mine)


def test_guessed_prices_of_coding_are_known_by_method(whole, short):
    assert ranking.guessed(short) == set()
    cells = whole[(whole["case"] == "sparse") & (whole["metric"] == "round_time")]
    marks = cells.assign(metric="guessed_price", value=1.0, unit="1")
    marked = condensed(pd.concat([whole, marks], ignore_index=True))
    assert ranking.guessed(marked) == {"sparse"} and len(marked) == len(short) + 1


def test_shared_training_stands_under_every_name_that_shares_it(short):
    rounds = ranking.arrived(short, "rounds_to_target")
    assert rounds["twin"].by_seed.tolist() == rounds["dense"].by_seed.tolist() == [10, 11, 12]
    told = ranking.of(short, "arrived").drop_duplicates("method").set_index("method")
    assert told["trained_as"].to_dict() == TRAINED_AS
    assert "elsewhere" not in rounds


def test_the_best_of_a_cell_and_who_ties_it(short):
    times = ranking.metric(short, "round_time")
    first = ranking.best(times[["dense", "twin", "sparse"]])
    for (*_, bandwidth), row in first.iterrows():
        least = min(round_s(label, bandwidth) for label in row.index)
        for label, wins in row.items():
            assert wins == (round_s(label, bandwidth) <= 1.02 * least)
    at = first.xs(1e11, level="bandwidth").iloc[0]
    assert at["dense"] and at["twin"] and not at["sparse"]  # 1.08 s, 1.09 s and 2.0 s


def test_profiles_count_cells_that_a_method_loses_or_cannot_run_in(short):
    times = ranking.metric(short, "round_time")
    shares = ranking.profile(times, [1.0, 2.0, 1e9])
    for label, factor in itertools.product(times, shares.index):
        won = 0
        for _, row in times.iterrows():
            won += row[label] <= factor * row.min()
        assert shares.at[factor, label] == pytest.approx(won / len(times))
    assert shares["sites only"].iloc[-1] == 0.5
    assert (shares.drop(columns="sites only").iloc[-1] == 1).all()
    assert (shares.diff().dropna() >= 0).all().all()


def test_the_front_is_what_nothing_dominates():
    points = np.random.default_rng(1).integers(0, 6, (60, 3)).astype(float)
    points[7, 1] = math.nan
    got = ranking.front(pd.DataFrame(points))
    for i, mine in enumerate(points):
        dominated = any(
            all(a <= b for a, b in zip(other, mine, strict=True))
            and any(a < b for a, b in zip(other, mine, strict=True))
            for other in points
        )
        assert got[i] == (not dominated and not np.isnan(mine).any())
    assert got.duplicated().any() and got.sum() > 1


def estimate(*values):
    return Estimate.of(pd.Series(values, index=range(1, len(values) + 1), dtype=float))


def test_what_seeds_do_not_separate_ties():
    times = {
        "slow": estimate(20, 21, 22),
        "as fast": estimate(10.5, 10.6, 12.2),  # minus fast: 0.5, -0.4, 0.2
        "fast": estimate(10, 11, 12),
        "never": estimate(math.inf, math.inf, math.inf),
        "once": estimate(1, math.inf, 1),
    }
    assert ranking.first(times) == ["fast", "as fast"]
    assert ranking.first({"never": times["never"]}) == []
    # Of one seed nobody could be surely faster.
    assert ranking.first(times | {"tried once": estimate(0.1)}) == ["fast", "as fast"]
    # A constant difference is certain, however wide the intervals of the two are,
    assert ranking.first({"a": estimate(1, 5, 9), "b": estimate(1.2, 5.2, 9.2)}) == ["a"]
    # but one below what a round time can tell apart is none.
    assert ranking.first({"a": estimate(1, 5, 9), "b": estimate(1.01, 5.05, 9.09)}) == ["a", "b"]


def test_only_methods_that_always_reach_the_target_win_by_their_rounds(short):
    known = ranking.qualified(short, "lenet5")
    assert set(known) == {"dense", "twin", "sparse", "sites only", "loose"}
    table = ranking.ranked(short).set_index("method")
    times = ranking.metric(short, "round_time")[known]
    least = times.min(axis=1)
    shares = {
        label: np.mean([(times[label] <= factor * least).mean() for factor in ranking.FACTORS])
        for label in known
    }
    assert table.loc[known, "score"].to_dict() == pytest.approx(shares)
    assert list(table.index[:5]) == sorted(known, key=shares.get, reverse=True)
    # What runs in half of the cells is first in none of the others, however good it is there.
    assert table.at["sites only", "score"] < table.at["sites only", "cells"] / len(times)
    assert (
        table.loc[["hasty", "lucky", "elsewhere"], ["wins alone", "ties for first"]]
        .eq(0)
        .all(axis=None)
    )
    wins = (ranking.ratios(times) <= 1.02).sum(axis=1).eq(1).sum()
    assert table["wins alone"].sum() == wins
    assert table.at["sites only", "cells"] == 12
    assert table.at["hasty", "times the best"] < 1


def test_without_anyone_at_the_target_all_are_compared():
    untrained = condensed(made(trained=False))
    nobody = condensed(made(reach=False))
    for table in (untrained, nobody):
        assert set(ranking.qualified(table, "lenet5")) == set(METHODS)
        said = ranking.headline(table)
        assert said.startswith(f"Of {len(METHODS)} methods, one is fastest everywhere.")
        assert "accuracy" not in said and "Accuracies" not in said
        ranked = ranking.ranked(table)
        assert ranked["qualified"].all() and ranked["score"].is_monotonic_decreasing
        # hasty, which sends least and computes fastest, is first in every cell.
        assert ranked.at[0, "method"] == "hasty" and ranked.at[0, "wins alone"] == 24


def test_time_to_the_target_is_rounds_times_the_round(short):
    places = ranking.times_to_target(short)
    assert set(places) == {(*kind, rate) for kind in KINDS for rate in (1e7, 1e9, 1e11)}
    at = places["sites", "even", 1e9]
    assert at["sparse"].mean == pytest.approx(stats.gmean([20, 22, 24]) * round_s("sparse", 1e9))
    assert at["sites only"].by_seed.tolist() == pytest.approx(
        [rounds * round_s("sites only", 1e9) for rounds in (14, 16, 18)]
    )
    assert "sites only" not in places["flat", "even", 1e9] and "elsewhere" not in at
    assert at["hasty"].never == 3 and at["lucky"].never == 1
    at = [place for place, there in places.items() if "loose" in there]
    assert at == [("flat", "even", 1e9)]


def test_the_headline_follows_the_rows(whole, short):
    said = ranking.headline(short)
    assert said.startswith(
        "Of 5 methods that bring LeNet-5 to 90 % with every seed within 30 rounds and hold it, "
        "sparse is first there in the mean on 3 of 6 networks; on the median one, no other may "
        "be as fast, by the seeds. By the time of a round alone, none is fastest everywhere."
    )
    assert said.endswith("Accuracies are compared after 6 rounds.")
    # Only dense and twin send everything in every round: loose sends changes of several steps.
    assert ranking.dense(short) == ["dense", "twin"]
    labels = ["dense", "twin", "sparse", "loose"]
    least = {b: min(round_s(m, b) for m in [*labels, "sites only"]) for b in (1e7, 1e9, 1e11)}
    gains = {b: min(round_s(m, b) for m in labels[:2]) / least[b] for b in least}
    assert gains[1e7] > gains[1e9] > gains[1e11]
    # The middle of cells with and without sites, where another may be the fastest.
    assert f"most at 10 Mbit/s, {gains[1e7]:.3g} times the shortest round in the median" in said
    assert f"least at 100 Gbit/s, {gains[1e11]:.3g} times." in said
    # Of three bandwidths sparse is first at two, dense and twin tie at the third.
    assert "On flat clusters, sparse has the shortest round in 67 % of 12 cells" in said
    # Without the slowest links all three are first in half of the cells, and all are named.
    fast = condensed(whole[whole["bandwidth"] != 1e7])
    said = ranking.headline(fast)
    assert "flat clusters, dense, twin and sparse each have the shortest round in 50 % of 8" in said
    # With a method that is fastest in every cell, another sentence.
    wins = whole["case"].eq("sparse") & whole["metric"].eq("round_time")
    faster = whole.assign(value=whole["value"].where(~wins, 1e-3))
    assert "one is fastest everywhere" in ranking.headline(condensed(faster))


def test_rounds_are_interpolated_between_ratios_and_never_beyond(whole):
    """loose, which looks at the clock, trained at 10 Mbit/s and 100 Gbit/s besides."""
    mine = whole[(whole["case"] == "loose") & (whole["experiment"] == "training")]
    rounds = mine["metric"] == "rounds_to_target"
    slow = mine.assign(bandwidth=1e8, value=mine["value"].where(~rounds, mine["value"] + 10))
    fast = mine.assign(bandwidth=1e11, value=mine["value"].where(~rounds, mine["value"] - 4))
    table = condensed(pd.concat([whole, slow, fast], ignore_index=True))
    assert ranking.arrived(table, "rounds_to_target")["loose"].by_seed.tolist() == [11, 12, 13]
    at = {b: ranking.rounds_at(table, "loose", b).by_seed.tolist() for b in (1e8, 1e9, 1e10, 1e11)}
    assert at[1e8] == [21, 22, 23] and at[1e9] == [11, 12, 13] and at[1e11] == [7, 8, 9]
    assert at[1e10] == pytest.approx([9, 10, 11])  # half way, of the logarithm
    fewer = fast[fast["seed"] != 3]
    fewer = condensed(pd.concat([whole, slow, fewer], ignore_index=True))
    assert ranking.rounds_at(fewer, "loose", 1e10).by_seed.tolist() == pytest.approx([9, 10])
    assert ranking.rounds_at(fewer, "loose", 1e11).seeds == 2
    for bandwidth, there in ((1e7, False), (1e8, True), (5e9, True), (1e11, True), (2e11, False)):
        assert ("loose" in ranking.holding(table, "flat", "even", bandwidth)) == there
        assert "loose" not in ranking.holding(table, "sites", "even", bandwidth)
    assert ranking.guesses(table, "flat", "even", 5e9, "lenet5") == {"loose"}
    assert ranking.guesses(table, "flat", "even", 1e9, "lenet5") == set()
    times = ranking.times_to_target(table)
    assert "loose" not in times["flat", "even", 1e7]
    expected = stats.gmean([7, 8, 9]) * round_s("loose", 1e11)
    assert times["flat", "even", 1e11]["loose"].mean == pytest.approx(expected)


def test_regret_is_the_round_over_the_best_there_by_hand(short):
    found = ranking.regret(short, ["sites only", "hasty", "dense"]).set_index("method")
    known = ["dense", "twin", "sparse", "sites only", "loose"]
    for label, row in found.iterrows():
        over = {}
        for (network, _), bandwidth in itertools.product(KINDS, (1e7, 1e9, 1e11)):
            there = [k for k in known if k != "sites only" or network == "sites"]
            if label != "sites only" or network == "sites":
                best = min(round_s(k, bandwidth) for k in there)
                over[network, bandwidth] = round_s(label, bandwidth) / best
        values = np.array(list(over.values()))
        assert row["mean"] == pytest.approx(np.exp(np.log(values).mean()))
        assert row["worst"] == pytest.approx(values.max())
        assert over[row["where"][1], row["where"][4]] == pytest.approx(values.max())
        assert row["cannot"] == (12 if label == "sites only" else 0)
    assert found.at["hasty", "mean"] < 1  # it does not arrive, and is held against those that do
    assert list(found["mean"]) == sorted(found["mean"])


def test_a_second_trained_model_stands_beside_the_first():
    both = condensed(made(residual=True))
    assert ranking.trained_models(both) == ["lenet5", "resnet50"]
    assert set(ranking.arrived(both, "rounds_to_target", "resnet50")) == set(RESIDUAL_AS)
    assert ranking.target(both) == 90 and ranking.target(both, "resnet50") == 58
    places = ranking.times_to_target(both, model="resnet50")
    for (*_, bandwidth), times in places.items():
        assert times["sparse"].mean == pytest.approx(100002 * round_s("sparse", bandwidth))
    # Nothing of the first model changes by the second one.
    alone = condensed(made())
    assert str(ranking.times_to_target(both)) == str(ranking.times_to_target(alone))
    assert ranking.qualified(both, "lenet5") == ranking.qualified(alone, "lenet5")


def test_rounds_are_compared_of_methods_that_arrived_with_the_model_or_with_all_that_were_trained():
    """Sites only and loose were trained with LeNet-5 alone, sparse never arrives with ResNet-50."""
    rows = made(residual=True)
    late = (rows["case"] == "sparse") & (rows["experiment"] == "residual")
    late &= (rows["metric"] == "rounds_to_target") & (rows["seed"] == 2)
    never = {"value": math.nan, "status": "late", "reason": "never"}
    both = condensed(rows.assign(**{k: rows[k].where(~late, v) for k, v in never.items()}))
    assert ranking.qualified(both, "lenet5") == ["dense", "twin", "sparse", "sites only", "loose"]
    assert ranking.qualified(both, "resnet50") == ["dense", "twin"]
    assert ranking.qualified(both, "vgg16") == ["dense", "twin"]
    times = ranking.comparable(both)
    for (model, network, _, _, bandwidth), row in times.iterrows():
        known = [
            k for k in ranking.qualified(both, model) if k != "sites only" or network != "flat"
        ]
        assert row.dropna().to_dict() == {label: round_s(label, bandwidth) for label in known}
    shown = pictures.first_rounds(both)
    assert set(shown.loc[shown["model"] == "resnet50", "method"]) == {"dense", "twin"}
    assert "sparse" in set(shown.loc[shown["model"] == "lenet5", "method"])


def test_the_headline_says_where_the_two_models_differ():
    said = ranking.headline(condensed(made(residual=True)))
    # With LeNet-5 sparse is first at the two slower rates, of those that both were trained with.
    assert (
        "Among the methods trained with both LeNet-5 and ResNet-50, the first to their targets "
        "differ on 4 of 6 networks: with "
        "flat, even speeds, 10 Mbit/s, sparse for LeNet-5, dense for ResNet-50." in said
    )
    assert ranking.apart(condensed(made())) == ""


def test_the_target_is_met_by_a_test_over_seeds():
    both = condensed(made(residual=True))
    values = [60, 61, 62]  # after they arrived, of the test data
    expected = stats.ttest_1samp(values, 58, alternative="greater").pvalue
    found = ranking.met(both, "resnet50")
    assert found["sparse"] == found["twin"] == pytest.approx(expected)
    assert math.isnan(ranking.met(both)["lucky"])  # a seed never arrived


def test_who_reaches_the_target_and_does_not_hold_it_is_first_nowhere(whole):
    """sparse, which is first at two of three rates, falls back after it was there."""
    fell = (whole["case"] == "sparse") & (whole["metric"] == "held_accuracy")
    below = condensed(whole.assign(value=whole["value"].where(~fell, whole["value"] - 1.2)))
    assert stats.ttest_1samp([89.9, 90.0, 90.1], 90, alternative="greater").pvalue > 0.05
    assert ranking.holds_not(below) == {"sparse"}
    assert "sparse" not in ranking.qualified(below, "lenet5")
    at = ranking.times_to_target(below)["flat", "even", 1e7]
    assert not at["sparse"].never and "sparse" in ranking.first(at)
    assert "sparse" not in ranking.first(at, ranking.holds_not(below)) != []
    # With two seeds nothing can be told, so that it counts as before.
    two = condensed(whole[~fell | (whole["seed"] != 3)])
    assert ranking.holds_not(two) == set() and "sparse" in ranking.qualified(two, "lenet5")


def test_nothing_to_condense_is_an_error(whole):
    failed = whole[(whole["status"] == "failed") & (whole["experiment"] == "cells")]
    with pytest.raises(ValueError, match="no cell of the matrix could run"):
        list(ranking.condense(failed, *PLACES))
    with pytest.raises(Missing, match="no wan_bytes of any cell"):
        ranking.metric(condensed(whole[whole["metric"] != "wan_bytes"]), "wan_bytes")


@pytest.mark.parametrize(
    "changed, value, said",
    [
        ("lr", 0.1, "sparse was tried with rates 0.05, 0.1, not 0.01, 0.05"),
        ("target_accuracy", 93.0, "differs in its target .*dense: 90, sparse: 93"),
        ("final_accuracy", 7, "differs in its rounds .*dense: 6, sparse: 7"),
    ],
)
def test_training_of_another_recipe_is_refused(whole, changed, value, said):
    column = {"lr": "at", "target_accuracy": "value", "final_accuracy": "round"}[changed]
    trained = whole["metric"].eq(changed) & (whole["experiment"] == "training")
    old = (whole["case"] == "sparse") & (trained | whole["at"].str.contains('"lr": 0.01'))
    if column == "at":
        value = f'{{"lr": {value}, "method": "sparse"}}'
    else:
        old &= trained
    table = whole.assign(**{column: whole[column].where(~old, value)})
    with pytest.raises(ValueError, match=said):
        condensed(table)
