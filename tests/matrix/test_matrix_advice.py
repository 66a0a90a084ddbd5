"""Advice: parsing, ranking, the sentence, the form's data, and that form and command agree."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from slowlink.testbed import results
from slowlink.testbed.matrix import Round
from slowlink.testbed.results import Row
from slowlink.workflow.matrix import advice, ranking
from slowlink.workflow.matrix.advice import Offer, packed, ranked, rate, reason
from slowlink.workflow.matrix.curves import BENT, SHOWN, between, refined
from slowlink.workflow.matrix.worth import Choice

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "reports" / "assets" / "advise.js"


def page(rows):
    return advice.page(results.coordinates(rows.reset_index(drop=True)))


def spent(compute=0.1, compress=0.0, exchange=0.1, wait=0.0):
    return Round(8, compute, compress, exchange, wait, 1e6, 0.0, 0.8)


@pytest.mark.parametrize(
    "text, value",
    [
        ("155M", 155e6),
        ("1G", 1e9),
        ("2.5Gbit/s", 2.5e9),
        ("10Gbit", 1e10),
        ("1e9", 1e9),
        ("64k", 64e3),
    ],
)
def test_rates(text, value):
    assert rate(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "fast", "0", "-1M", "1.2.3M", "5 MB/s", "100MB"])
def test_what_is_no_rate_says_how_to_write_one(text):
    with pytest.raises(Exception, match="no rate; say 155M"):
        rate(text)


def test_ties_share_a_rank_and_are_counted():
    times = {"a": 1.0, "b": 1.019, "c": 1.021, "d": 1.04, "e": 2.0}
    offers = [Offer(label, spent(0.0, exchange=s)) for label, s in times.items()]
    assert [(rank, offer.label) for rank, offer in ranked(offers[::-1])] == [
        (1, "a"), (1, "b"), (3, "c"), (3, "d"), (5, "e"),
    ]  # fmt: skip


def test_the_reason_names_the_part_that_the_runner_up_spends_more_on():
    offers = [Offer("thin", spent(compress=0.05)), Offer("fat", spent(exchange=0.9))]
    said = reason(ranked(offers))
    assert said.startswith("thin is first: 250 ms against 1 s of fat")
    assert "800 ms longer exchanging (900 ms, not 100 ms)" in said
    assert "itself" not in said  # 50 ms are little of 750 ms
    close = [Offer("thin", spent(compress=0.05)), Offer("fat", spent(exchange=0.19))]
    assert "it is itself 50 ms longer coding" in reason(ranked(close))
    assert "tied with twin" in reason(ranked([*offers, Offer("twin", spent(compress=0.05))]))


def test_rounds_to_a_target_change_the_order():
    quick = Offer("quick", spent(exchange=0.1), 300.0)
    slow = Offer("slow", spent(exchange=0.2), 100.0)
    places = ranked([quick, slow])
    assert [offer.label for _, offer in places] == ["slow", "quick"]
    assert "30 s to the target (100 rounds) against 60 s (300 rounds) of quick" in reason(places)


def curve(label, seed, values, status="ok"):
    row = dict(
        document="matrix", experiment="training", at=dict(method=label), seed=seed, scale="smoke",
        metric="test_accuracy", unit="%", evidence="computed",
    )  # fmt: skip
    return [Row(**row, value=value, round=10 * i) for i, value in enumerate(values)]


def test_rounds_are_counted_on_curves_of_all_seeds():
    rows = curve("a", 1, [0.0, 100.0, 100.0, 100.0, 100.0]) + curve("b", 1, [0.0, 99.0, 99.0, 99.0])
    rows += curve("a", 2, [0.0, *[100.0] * 4]) + curve("b", 2, [0.0] * 4)
    found = advice.rounds_to(90.0, results.frame(rows), 3)
    assert found["b"] is None  # one seed never arrives
    assert found["a"] == pytest.approx(27)  # means of three are 0, 50, 66.7 and 100
    for seed, begins in ((3, 10.2), (4, 9.0)):  # chance, of ten classes
        rows += curve("a", seed, [begins, 99.0, 99.0, 99.0])
    for target in (9.0, 10.0):
        with pytest.raises(ValueError, match=f"--target: {target:g} % is met before the first"):
            advice.rounds_to(target, results.frame(rows), 3)
    assert advice.rounds_to(10.3, results.frame(rows), 3)["a"] > 0


def test_only_rounds_that_count_do_and_what_diverges_later_has_arrived():
    rows = curve("late", 1, [0.0] * 10 + [100.0] * 5)
    assert advice.rounds_to(90.0, results.frame(rows), 3)["late"] > 100
    assert advice.rounds_to(90.0, results.frame(rows), 3, within=100)["late"] is None
    broken = dict(value=math.nan, status="failed", reason="loss is nan", round=60)
    for label, values in (("after", [0.0, *[100.0] * 4]), ("before", [0.0] * 5)):
        made = curve(label, 1, values)
        rows += [*made, made[-1].model_copy(update=broken)]
    found = advice.rounds_to(90.0, results.frame(rows), 3)
    assert found["after"] is not None and found["before"] is None


def test_the_command_counts_rounds_where_they_hold(capsys, tmp_path):
    same = advice.recipe().trained_as()
    rows = []
    for label in ("ring", "top_k", "LPSP"):
        # top_k, which had not arrived by then, went on for longer than the others.
        values = [50.0, 91.0, 91.0, 91.0] if label != "top_k" else [50.0] * 15 + [95.0] * 4
        rows += curve(same[label], 1, values)
    results.write(rows, tmp_path / "trained.parquet")
    said = ask(capsys, "--all", "--lan", "1G", "--target", "90", "--trained", str(tmp_path))
    table, missing = said.split("Not ranked:")
    assert "top_k" in table and "ring" in table and "Above" not in table
    (why,) = [line for line in missing.splitlines() if "LPSP," in line]
    assert "looks at the clock: its rounds hold only where" in why
    said = ask(capsys, "--all", "--lan", "1G", "--target", "93", "--trained", str(tmp_path))
    (why,) = [line for line in said.splitlines() if " top_k" in line and "did not reach" in line]
    assert why.endswith("did not reach 93 % within 130 rounds")
    assert "Above the matrix's target of 90 % only the first 130 rounds count" in said


def written(folder, **curves):
    """A folder with the training of systems, each of the class that has its label."""
    same = advice.recipe().trained_as()
    rows = [row for label, values in curves.items() for row in curve(same[label], 1, values)]
    results.write(rows, folder / "trained.parquet")
    return "--trained", str(folder)


def test_a_target_that_nobody_reaches_is_not_told_as_if_nobody_could_run(capsys, tmp_path):
    asked = ["--lan", "1G", "--json", *written(tmp_path, ring=[9.8, 91.0, 91.0, 91.0])]
    for only, says in (
        ("codec=identity,synchronization=bsp", "No method reaches 99 %."),
        ("synchronization=lpsp", "No method is ranked by the time to 99 %."),
    ):
        made = json.loads(ask(capsys, *asked, "--target", "99", "--only", only))
        assert made["answer"] == says and made["methods"] == [] and made["not_ranked"]
    with pytest.raises(SystemExit) as stopped:
        ask(capsys, *asked, "--target", "9")
    assert stopped.value.code == 2 and "met before the first round" in capsys.readouterr().err


def test_rounds_of_the_recorded_model_are_counted_in_its_record(capsys):
    """Beside a count by hand over the recorded curves of top_k."""
    goal, needed = 40.0, []
    asked = ["--json", "--lan", "1G", "--model", "resnet8", "--target", str(goal)]
    said = ask(capsys, *asked, "--only", "codec=top_k,exchange=allgather")
    offers = {one["method"]: one for one in json.loads(said)["methods"]}
    for file in sorted(advice.RECORDED.glob("top_k-seed*.parquet")):
        curve = pd.read_parquet(file).query("metric == 'test_accuracy'").sort_values("round")
        values, rounds = curve["value"].to_numpy(), curve["round"].to_numpy()
        window = advice.recipe().residual.window
        means = [values[max(0, i + 1 - window) : i + 1].mean() for i in range(len(values))]
        at = next(i for i, mean in enumerate(means) if mean >= goal)
        share = (goal - means[at - 1]) / (means[at] - means[at - 1])
        needed.append(rounds[at - 1] + share * (rounds[at] - rounds[at - 1]))
    assert len(needed) == 3
    assert offers["top_k"]["rounds_to_target"] == pytest.approx(stats.gmean(needed), rel=1e-3)


def test_who_is_recommended_hangs_on_a_status_and_no_word(tmp_path, monkeypatch):
    kept = pd.read_csv(advice.LEARNED)
    assert (kept["late"] > 0).equals(kept["status"] == "late")
    assert kept["rounds"].isna().equals(kept["status"] == "late")
    given = advice.recipe()
    assert advice.learned(given, given.found())["ring"]["resnet8"].status == "ok"
    there = advice.Trained("ok", 166.0, 91.8, late=0, diverged=0, seeds=3)
    lost = advice.Trained("late", math.nan, math.nan, late=1, diverged=1, seeds=3)
    unsure = replace(there, status="unsure")
    assert there.needs() == unsure.needs() == "166 rounds"
    assert lost.reaches() == "diverges with 1 of 3 seeds"
    assert {one.status == "ok" for one in (lost, unsure)} == {False}


def test_who_was_not_trained_with_every_model_is_not_compared_with_another():
    """With a model that was trained, that one counts."""
    both = {"lenet5", "resnet8"}
    for its, there in (
        ({}, (0, 0, 0)),
        ({"lenet5": True}, (1, 0, 0)),
        ({"lenet5": True, "resnet8": False}, (1, 0, 0)),
        ({"lenet5": True, "resnet8": True}, (1, 1, 1)),
    ):
        found = tuple(ranking.arrives(its, name, both) for name in ("lenet5", "resnet8", "vgg16"))
        assert found == there
    assert not ranking.arrives({}, "vgg16", set())


def test_a_restriction_loses_no_training_and_no_permitted_method(capsys, tmp_path):
    """RAT + fp16 is of a class that another system gives its name, which may not run there."""
    same, rows = advice.recipe().trained_as(), []
    for label in ("ring", "RAT + fp16", "identity every 8"):
        rows += curve(same[label], 1, [50.0, 91.0, 91.0, 91.0])
    results.write(rows, tmp_path / "trained.parquet")
    asked = ["--lan", "1G", "--target", "90", "--trained", str(tmp_path), "--json"]
    free, bound = (
        json.loads(ask(capsys, *asked, *more)) for more in ([], ["--only", "exchange=rat"])
    )
    there = {one["method"]: one["to_target_s"] for one in bound["methods"]}
    assert {"RAT", "RAT + fp16", "identity every 8"} <= set(there)
    for made in (free, bound):
        times = [one["to_target_s"] for one in made["methods"]]
        assert times == sorted(times) and made["answer"].startswith(made["methods"][0]["method"])
    for label, time in there.items():
        (whole,) = [one["to_target_s"] for one in free["methods"] if one["method"] == label] or [0]
        assert whole <= time * (1 + 1e-9)


def test_a_fusion_that_is_asked_for_makes_no_system_that_is_there():
    given = advice.recipe()
    space, names = given.found(), {"whole_model", "layer_wise"}
    made = advice.fused(space, given, names)
    answers = [one.answers for one in made.values()]
    assert all(answers.count(one) == 1 for one in answers)
    assert not any(one.answers in answers for one in space.values())
    # Nothing that was asked for is missing: every row has each of the fusions, by some label, but
    # for those that send one message, in which fusion has no say: they are allowed as they are.
    there = answers + [one.answers for one in space.values()]
    whole = {label for label, one in space.items() if not one.grouped}
    assert {"identity every 3", "fedavg", "asp"} < whole and "torch DDP" not in whole
    for name in names:
        part = given.part(name)
        for label in space.keys() - whole:
            assert space[label].model_copy(update={"fusion": part}).answers in there
        allowed = advice.restricted(space | made, {"fusion": {name}})
        assert whole < allowed.keys()
        assert all(one.fusion == part for label, one in allowed.items() if label not in whole)


def test_what_is_worth_can_be_asked_for(capsys):
    """A fusion that no row has, an exchange by its label; and nothing is no text in JSON."""
    asked = ["--lan", "1G", "--json", "--only"]
    for only, said in (
        ("codec=fp16,fusion=layer_wise,exchange=rat,synchronization=bsp", "layer_wise"),
        ("codec=identity,exchange=sharded PS", "colocated"),
    ):
        made = json.loads(ask(capsys, *asked, only))["methods"]
        assert said in str(next(one for one in made if one["fusion"]))
        assert all(one["fusion"] for one in made if one["synchronization"] == "bsp")
    made = json.loads(ask(capsys, *asked, "codec=dgt,exchange=ring"))
    assert made["methods"] == [] and made["answer"] == "No method has all of these answers."


def test_a_codec_is_worth_it_below_the_rate_at_which_plain_values_do_as_well_where_they_may(capsys):
    """On a slow tree, while a ring, which is not allowed, would carry plain values faster."""
    only = "codec=fp16|identity,exchange=k_nomial_tree,fusion=whole_model,synchronization=bsp"

    def times(rate):
        told = json.loads(ask(capsys, "--only", only, "--json", "--lan", f"{rate:g}"))["methods"]
        told = {"fp16" in one["codecs"]: one for one in told if one["synchronization"] == "bsp"}
        return told[True]["worth_below_bit_s"], told[True]["round_s"], told[False]["round_s"]

    below, coded_s, plain_s = times(1e9)
    assert coded_s < plain_s and below > 1e9
    _, coded_s, plain_s = times(below)
    assert coded_s == pytest.approx(plain_s, rel=1e-3)


@pytest.mark.parametrize("target", [None, 90])
def test_answers_are_worth_what_methods_that_have_them_are_ranked_by(capsys, tmp_path, target):
    """And those of no other method are left out: not allowed, or no part of what is compared."""
    rounds = dict(ring=4, fp16=5, power_sgd=9)
    curves = {label: [50.0] * count + [95.0] * 4 for label, count in rounds.items()}
    only = "codec=fp16|identity|power_sgd,exchange=ring|rat,synchronization=bsp"
    asked = ["--lan", "100M", "--only", only, *written(tmp_path, **curves)]
    asked += [] if target is None else ["--target", str(target)]
    made = json.loads(ask(capsys, *asked, "--json"))
    key = "round_s" if target is None else "to_target_s"
    first, *rest = (one for one in made["methods"] if one["rank"])
    answers = {one["question"]: one for one in made["answers_of_the_first"]}
    allowed = {"exchange": {"ring", "rat"}, "codec": {"fp16", "identity", "power_sgd"}}
    for question, names in allowed.items():
        assert set(answers[question][key]) < names
    four = dict(exchange="exchange", codec="codecs", fusion="fusion", meetings="synchronization")
    seen = set()
    for one in rest:
        differs = [question for question, field in four.items() if one[field] != first[field]]
        # Meetings in every round come with the matrix's fusion, and whole_model stays a method.
        if len(differs) == 1 and (differs, one["method"]) != (["meetings"], "whole_model"):
            told = answers[differs[0]][key].values()
            assert any(seconds == pytest.approx(one[key]) for seconds in told)
            seen |= {*differs}
    assert seen
    said = ask(capsys, *asked)
    assert ("is worth in a round," if target is None else "in the time to 90 %,") in said


def test_an_answer_that_takes_less_is_not_told_as_if_it_took_longer():
    def said(*times):
        others = {f"other{i}": seconds for i, seconds in enumerate(times)}
        return advice._worth_said("ring", [Choice("fusion", "layer_wise", 1.0, others)], None)

    assert said(0.9).endswith("it may be less (-) with an answer that no method here has beside "
                              "these three.")  # fmt: skip
    assert said(1.1, 1.2).endswith("among what is allowed and ranked:") and said(1 - 1e-9) == said()


def test_the_answer_is_the_first_line_and_what_choices_are_worth_is_told(capsys):
    said = ask(capsys, "--lan", "1G", "--only", "codec=fp16|identity,exchange=ring")
    assert " is first" in said.splitlines()[0]
    assert "What each answer of" in said and "next best" in said


def test_json_has_the_answer_and_the_time_to_the_target_of_what_is_allowed(capsys):
    asked = ["--lan", "1G", "--only", "codec=fp16|identity,exchange=ring", "--json"]
    made = json.loads(ask(capsys, *asked))
    assert " is first" in made["answer"]
    assert all(one["exchange"].split()[0] == "ring" for one in made["methods"])
    assert {codec for one in made["methods"] for codec in one["codecs"]} <= {"fp16", "identity"}
    counted = [one for one in made["methods"] if one["rounds_to_target"]]
    assert counted and all(one["accuracy"] > 50 for one in counted)
    for one in counted:
        assert one["to_target_s"] == pytest.approx(one["rounds_to_target"] * one["round_s"])


def test_the_rows_that_are_shown_differ_in_kind():
    found = advice.recipe().found()
    offers = [
        Offer(label, spent(exchange=1.0 + place), None, system)
        for place, (label, system) in enumerate(found.items())
    ]
    chosen = [offer.method for _, offer in advice.several(ranked(offers), 5)]
    kinds = {
        (
            one.levels[-1].up.name,
            one.synchronization.name,
            "local_iterations" in one.synchronization.parameters,
        )
        for one in chosen[:5]
    }
    assert len(kinds) == 5


def ask(capsys, *arguments):
    advice.main(["--model", "lenet5", "--workers", "4", *arguments])
    return capsys.readouterr().out


@pytest.mark.slow
def test_the_command_ranks_every_method_or_says_why_not(capsys):
    said = ask(capsys, "--all", "--lan", "100M")
    labels = advice.recipe().found()
    assert all(label in said for label in labels)
    table, missing = said.split("Not ranked:")
    assert "hips: star has no sites" in missing
    assert "lenet5, 256 samples a round, 4 workers" in table and "100 Mbit/s" in table
    with_sites = ask(capsys, "--lan", "1G", "--wan", "50M", "--sites", "2", "--uneven", "1.5")
    assert "2 sites of 2, 1 Gbit/s inside, 50 Mbit/s between" in with_sites


@pytest.mark.slow
def test_break_evens_are_looked_for_of_the_best_of_each_kind_even_of_all(capsys):
    asked = ["--only", "codec=fp16|sign_sgd,fusion=whole_model", "--lan", "1G", "--json"]
    few, every = (json.loads(ask(capsys, *asked, *more))["methods"] for more in ([], ["--all"]))
    found, all_found = ({one["method"] for one in many if one["worth_it"]} for many in (few, every))
    assert found == all_found and 0 < len(found) < len(every)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--lan", "1G", "--model", "lenet6"], "invalid choice: 'lenet6'"),
        ([], "say how fast the links are"),
        (["--lan", "1G", "--sites", "2"], "need --wan"),
        (["--wan", "1G", "--sites", "3"], "4 workers do not divide into 3"),
        (["--lan", "1G", "--wan-latency", "1"], "--wan-latency is between sites, and needs --wan"),
        (["--lan", "1G", "--target", "150"], "'150' is no percentage; at least 0, at most 100"),
        (["--lan", "1G", "--only", "codec=fp16,codec=dgc"], "codec is given twice; say codec=a|b"),
        (["--wan", "1G", "--workers", "5"], "say --sites"),
        (["--lan", "1G", "--latency", "soon"], "'soon' is no time in seconds, such as 5ms or"),
        (["--lan", "1G", "--latency", "-1"], "'-1' is no time in seconds"),
        (["--lan", "1G", "--latency", "4e6ms"], "'4e6ms' is no time"),
        (["--lan", "1G", "--batch", "0"], "'0' is no number of them; at least 1"),
        (["--lan", "1G", "--batch", "2"], "4 workers share only 2 samples a round"),
        (["--lan", "1G", "--model", "mlp"], "say --batch"),
        (["--lan", "1G", "--model", "resnet50", "--target", "90"], "those of resnet50 are unknown"),
        (["--lan", "1G", "--target", "90", "--trained", "nowhere"], "no training results in now"),
    ],
)  # fmt: skip
def test_errors_name_the_option(capsys, arguments, said):
    with pytest.raises(SystemExit) as stopped:
        ask(capsys, *arguments)
    assert stopped.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["5ms", "0.005", "5000us", "5e-3 s"])
def test_latencies_are_written_as_in_files(text):
    asked = ["--model", "lenet5", "--workers", "4", "--lan", "1G", "--wan", "1M", "--sites", "1"]
    options = advice.parser(advice.recipe()).parse_args([*asked, "--latency", text])
    where = advice.cluster(options, advice.recipe().networks)
    assert where.latency == 0.005
    question = advice.own.asked(options, advice.recipe(), advice.cluster)
    assert "4 workers" in advice._setting(question, options)
    assert "1 site of 4, 1 Gbit/s inside" in advice._setting(question, options)


# The form ---------------------------------------------------------------------------------------


def kinked(seed):
    """Rounds of backward and messages that overlap: the longest of a few chains."""
    chance = np.random.default_rng(seed)
    fixed, grows = chance.uniform(0.01, 1, 4), 10 ** chance.uniform(5, 9, 4)

    def timed(bandwidth):
        round_s = float(max(fixed + grows / bandwidth))
        return round_s, 0.001, round_s - 0.01

    return timed


BANDWIDTHS = [10e6, 50e6, 155e6, 1e9, 10e9, 40e9]


@pytest.mark.parametrize("seed", range(10))
def test_refined_curves_tell_rounds_at_any_bandwidth(seed):
    timed, asked = kinked(seed), []
    full = refined({b: timed(b) for b in BANDWIDTHS}, lambda b: asked.append(b) or timed(b), 4)
    chance = np.random.default_rng(seed)
    for bandwidth in np.exp(chance.uniform(math.log(10e6), math.log(40e9), 50)):
        assert between(full, bandwidth)[0] == pytest.approx(timed(bandwidth)[0], rel=2 * BENT)
    assert {10e6, 40e9} <= set(full)


def test_straight_curves_need_their_ends_only():
    def timed(bandwidth):
        return 0.2 + 1e8 / bandwidth, 0.0, 1e8 / bandwidth

    def never(bandwidth):
        raise AssertionError(bandwidth)

    assert sorted(refined({b: timed(b) for b in BANDWIDTHS}, never, 4)) == [10e6, 40e9]


def test_packed_numbers_come_back():
    for value in (1e-6, 0.00314, 1.0, 40.0, 5e5):
        code = int(packed(value), 36)
        assert advice.LEAST * 10 ** (code / advice.STEPS) == pytest.approx(value, rel=4e-4)
    assert packed(0.0) == "000"
    with pytest.raises(ValueError, match="too large"):
        packed(1e7)


def grid():
    """Rows of the experiment ``advice`` of three methods, and what they came from."""
    rows, timed = [], {}
    kinds, counts = ("flat", "sites"), (4, 8)
    for seed, (label, kind, workers) in enumerate(
        (label, kind, workers) for label in "abc" for kind in kinds for workers in counts
    ):
        row = dict(
            document="matrix", experiment="advice",
            at=dict(method=label, network=kind, speeds="even"),
            model="lenet5", workers=workers, scale="smoke", evidence="simulated", unit="s",
        )  # fmt: skip
        if (label, kind) == ("c", "flat"):
            failed = dict(metric="round_time", status="failed", reason="no </script> sites")
            rows.append(Row(**row, **failed, bandwidth=1e7))
            continue
        timed[label, kind, workers] = kinked(seed)
        for bandwidth in BANDWIDTHS:
            for part, value in zip(SHOWN, kinked(seed)(bandwidth), strict=True):
                rows.append(Row(**row, metric=f"{part}_time", value=value, bandwidth=bandwidth))
    return results.frame(rows), timed


def test_nothing_to_show_without_the_matrix():
    table, _ = grid()
    assert page(table[table["experiment"] == "cells"]) is None


def learned(**by_label):
    """Rows of how many rounds each seed of a method needs; None where it never arrives."""
    rows = [
        Row(
            document="matrix", experiment="arrived", at=dict(method=label, network=""),
            metric="rounds_to_target", unit="rounds", seed=seed, scale="smoke", evidence="measured",
            model="lenet5",
            **(dict(value=value) if value else dict(status="late", reason="never")),
        )
        for label, values in by_label.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return results.frame(rows)


def test_the_form_says_the_samples_that_the_scale_of_the_rows_has():
    table, _ = grid()
    assert page(table)["models"] == {"lenet5": 64}
    assert page(table.assign(scale="desk"))["models"] == {"lenet5": 256}


def test_the_form_tells_who_never_arrives():
    table, _ = grid()
    trained = learned(a=(80, 90, 100), b=(80, None, None))
    made = json.loads(page(pd.concat([table, trained]))["data"])
    assert made["rounds"] == {"a": "90", "b": "2 of 3 seeds never"}
    assert made["to_target"] == {"a": pytest.approx(stats.gmean([80, 90, 100]))}
    assert made["compared"] == {"lenet5": ["a"]}
    assert made["late"] == {"b": "2 of 3 seeds never reached the target"}
    assert json.loads(page(table)["data"])["rounds"] == {}
    assert not page(table)["ranks_targets"]


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
def test_the_form_ranks_as_the_command_does(tmp_path):
    table, timed = grid()
    rounds = {"a": 300.0, "b": 100.0}
    trained = learned(a=(250, 300, 350), b=(100, 100, 100), c=(50, None, 60))
    made = page(pd.concat([table, trained]))
    assert "</" not in made["data"]
    data = json.loads(made["data"])
    questions = [
        dict(model="lenet5", kind=kind, workers=workers, rate=rate, by=by)
        for by in ("round", "target")
        for kind in ("flat", "sites")
        for workers in (4, 8)
        for rate in (10e6, 33e6, 155e6, 2e9, 40e9)
    ]
    code = (
        f"const {{ ranked, reason, passed }} = require({json.dumps(str(SCRIPT))});"
        f"const data = {json.dumps(data)}; const asked = {json.dumps(questions)};"
        "console.log(JSON.stringify(asked.map((q) => {"
        "  const made = ranked(data, q);"
        "  const said = [reason(made.offers, q.by), passed(made.offers)];"
        "  return [made.offers, made.missing, ...said]; })))"
    )
    other = f"ranked({{ ...data, trained: 'vgg16' }}, {json.dumps(questions[-1])})"
    code += f";console.log(JSON.stringify({other}));"
    (tmp_path / "ask.js").write_text(code)
    done = subprocess.run(["node", tmp_path / "ask.js"], capture_output=True, text=True, check=True)
    answers, elsewhere = map(json.loads, done.stdout.splitlines())
    assert elsewhere["offers"] == []  # rounds of one model say nothing of another's
    assert ["a", "only vgg16 was trained"] in elsewhere["missing"]
    assert len({bool(more) for *_, more in answers}) == 2  # both are asked below
    for question, (offers, missing, why, more) in zip(questions, answers, strict=True):
        here = {
            label: between({b: time(b) for b in BANDWIDTHS}, question["rate"])
            for (label, kind, workers), time in timed.items()
            if (kind, workers) == (question["kind"], question["workers"])
        }
        to_target = question["by"] == "target"
        known = set(here) & set(rounds) if to_target else set(here)
        assert {offer["label"] for offer in offers} == known
        for offer in offers:
            got = [offer["round"], offer["coding"], offer["exchanging"]]
            assert got == pytest.approx(list(here[offer["label"]]), rel=3e-3, abs=1e-4)
        first = replace(spent(), exchange_s=0.0)
        mine = ranked(
            [
                Offer(
                    o["label"],
                    replace(first, compute_s=0.0, exchange_s=o["round"]),
                    rounds[o["label"]] if to_target else None,
                )
                for o in offers
                if to_target or o["label"] != "c"
            ]
        )
        # What does not reach the target with every seed has no rank.
        here_too = [(o["rank"], o["label"]) for o in offers if o["rank"] != ""]
        assert [(rank, o.label) for rank, o in mine] == here_too
        assert [o["label"] for o in offers[len(mine) :]] == ["c"] * (len(offers) > len(mine))
        assert why.startswith(offers[0]["label"])
        assert ("to the target" in why) == to_target
        shorter = offers[-1]["rank"] == "" and offers[-1]["time"] < offers[0]["time"]
        assert more.endswith("hold only where they were trained: c.") == shorter == bool(more)
        if question["kind"] == "flat":
            assert missing == [["c", "no </script> sites"]]
        else:
            assert missing == [["c", "1 of 3 seeds never reached the target"]][:to_target]
