"""A training of one's own: what is kept, what is told apart, and what is refused by name."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from slowlink.testbed.live.engine import settings, tasks
from slowlink.testbed.live.engine.coordinator import Failed, written
from tests.live import in_process, odd_training
from tests.live.odd_training import EVERY, FACTOR, LR
from tests.live.run_documents import document, functions
from tests.live.test_engine import same


def described(folder, training=(), **changes):
    names = dict(model="linear", data="batches", loss="loss", optimizer="sgd")
    own = functions(odd_training, **names | changes.pop("own", {}))
    whole = dict(workers=[2], rounds=6, evaluate_every=3) | dict(training)
    return settings.parse(document(folder, own, whole, **changes))


def task(folder, rank=0, **own):
    return tasks.make(described(folder, own=own), rank)


def trained(task, steps):
    for _ in range(steps):
        task.step(task.gradient())
    return task


def test_what_numpy_and_python_draw_is_the_same_everywhere_and_after_a_pause(tmp_path):
    own = dict(model="drawn", data="noisy", optimizer="stepped")
    whole, other = task(tmp_path, **own), task(tmp_path, 1, **own)
    assert same(whole.values(), other.values())
    state = trained(whole, 4).state()
    assert not same(whole.values(), trained(other, 4).values())  # its data are others
    cut = task(tmp_path, **own)
    cut.restore(state)
    assert same(trained(cut, 5).values(), trained(whole, 5).values())


def test_a_scheduler_steps_with_its_optimizer_and_is_kept(tmp_path):
    """Also by a worker that comes when so many updates are done."""
    own = dict(optimizer="stepped")
    kept = task(tmp_path, **own)
    kept.restore(trained(task(tmp_path, **own), 2 * EVERY - 1).state())
    late = task(tmp_path, **own)
    late.begin_at(2 * EVERY - 1)
    for one in (kept, late):
        rates = []
        for _ in range(2):
            before = [value.clone() for value in one.values()]
            one.step([torch.ones(shape) for shape in one.shapes])
            rates.append((before[0] - one.values()[0]).mean().item())
        assert rates == pytest.approx([LR * FACTOR, LR * FACTOR**2])


def test_only_what_follows_the_batches_is_averaged(tmp_path):
    """Neither a mask nor a constant; and a model that holds an activation is evaluated."""
    own = dict(model="buffers", data="two_inputs", evaluate="total")
    one = trained(task(tmp_path, **own), 1)
    assert [tuple(its.shape) for its in one.statistics()] == [(2,)] * 4
    expected = odd_training.total(one.net)["total"]
    later = one.evaluation()
    trained(one, 1)
    assert later()["total"][0] == expected
    ended = in_process.run(described(tmp_path, own=own, training=dict(optimizer_at="server")))
    model = torch.load(tmp_path / "out/model.pt", weights_only=True)
    assert ended.rows and model["far"] == 1e9 and model["norm.running_mean"].abs().sum() > 0


@pytest.mark.parametrize("training", [dict(optimizer_at="server"), dict(workers=[3])])
def test_buffers_that_would_not_reach_the_server_are_refused_by_name(tmp_path, training):
    median = {} if "optimizer_at" in training else dict(aggregation=dict(name="median"))
    own = dict(model="centred")
    with pytest.raises(
        Failed, match="own.model: its buffers centre change with the batches, .*do$"
    ):
        in_process.run(described(tmp_path, training | median, own=own))
    in_process.run(described(tmp_path, own=own))
    assert torch.load(tmp_path / "out/model.pt")["centre"].abs().sum() > 0


def test_buffers_that_a_model_is_not_saved_with_are_kept(tmp_path):
    whole, cut = (task(tmp_path, model="centred") for _ in range(2))
    cut.restore(trained(whole, 4).state())
    assert same(trained(cut, 3).values(), trained(whole, 3).values())


SHIFTED = dict(model="shifted", data="far", optimizer="sgd", evaluate="far_loss")
KEPT = {
    "fedavg": dict(synchronization=dict(name="fedavg", local_iterations=2)),
    "local bsp": dict(synchronization=dict(name="bsp", local_iterations=2)),
    "at the server": dict(optimizer_at="server"),
    "median": dict(aggregation=dict(name="median"), workers=[3]),
    "hubs": dict(synchronization=dict(name="mll_sgd", hub_rounds=2, group_size=2), workers=[4]),
    "seconds": dict(synchronization=dict(name="bsp", local_iterations=2), rounds=None, seconds=0.3),
}


@pytest.mark.parametrize("name", KEPT)
def test_rows_are_of_the_model_with_its_own_running_statistics(tmp_path, name):
    """Those of the same meeting as its parameters, where a server keeps it."""
    given = described(tmp_path, KEPT[name], own=SHIFTED)
    ended = in_process.run(given)
    model = odd_training.shifted()
    model.load_state_dict(torch.load(tmp_path / "out/model.pt", weights_only=True))
    with torch.no_grad():
        expected = odd_training.far_loss(model.eval())["loss"]
    losses = {row.round: row.value for row in ended.rows if row.metric == "loss"}
    assert losses[max(losses)] == expected


def test_a_look_is_at_the_model_with_its_own_running_statistics(tmp_path):
    """Whoever is honest stays, and whose running statistics are wrong is put out by name."""
    policy = dict(synchronization=dict(name="fedavg", local_iterations=4), rounds=8)
    given = described(tmp_path, policy | dict(workers=[3]), own=SHIFTED, worst=1.2)
    in_process.run(given)

    def lie(body):
        statistics = len(body) == 4 * 4
        return (1e5 + 0 * np.frombuffer(body, np.float32)).tobytes() if statistics else bytes(body)

    with pytest.raises(Failed, match="site1/worker1: .*its change alone makes a model that is too"):
        in_process.run(given, rogues={"site1/worker1": lie})


def times_of(rows, metric):
    return {row.round: row.time_s for row in rows if row.metric == metric}


def at_its(count, kind):
    """Whether a member dies as it says this so often."""
    said = []
    return lambda head: said.append(head["kind"] == kind) or sum(said) == count


@pytest.mark.parametrize(
    "who, kind, optimizer_at",
    [("site1/worker1", "finished", "worker"), ("central/server", "rows", "server")],
)
def test_a_run_that_goes_on_has_the_rows_of_one_that_was_not_cut(tmp_path, who, kind, optimizer_at):
    """Those that the server evaluated when it was cut, too; time goes on, and so do bytes."""
    training, own = dict(evaluate_every=1, optimizer_at=optimizer_at), dict(evaluate="total")
    whole = in_process.run(described(tmp_path / "whole", training, own=own))
    cut = described(tmp_path / "cut", training, own=own, state=str(tmp_path / "state"))
    with pytest.raises(Failed, match=f"{who}: it died"):
        in_process.run(cut, {who: at_its(4, kind)})
    ended = in_process.run(cut)
    sent = [{(row.at["member"], row.value) for row in its.rows if row.metric == "sent_bytes"}
            for its in (whole, ended)]  # fmt: skip
    assert sent[0] == sent[1]
    for metric in ("total", "bytes_sent"):
        times = times_of(ended.rows, metric)
        assert list(times) == list(times_of(whole.rows, metric)) == list(range(7))
        assert sorted(times.values()) == list(times.values())


def test_a_run_that_goes_on_has_no_record(tmp_path):
    given = described(tmp_path, state=str(tmp_path / "state"))
    with pytest.raises(Failed, match="it died"):
        in_process.run(given, {"site1/worker1": at_its(4, "finished")}, recorded=True)
    with pytest.raises(Failed, match="goes on from round 3, .*leave out --record, or begin anew"):
        in_process.run(given, recorded=True)
    assert in_process.run(given).record is None


@pytest.mark.parametrize("exchange", ["parameter_server", "ring"])
def test_a_run_that_lost_a_worker_goes_on_without_it(tmp_path, exchange):
    """From the latest round that the others have, to the same bits as one that was not cut."""
    training = dict(workers=[3], rounds=12, exchange=dict(name=exchange))
    lost, found = "site1/worker2", []
    for folder in ("whole", "cut"):
        its = described(
            tmp_path / folder, training, on_loss="continue", state=str(tmp_path / folder / "state")
        )
        dies = {lost: at_its(3, "finished")}
        if folder == "cut":
            with pytest.raises(Failed, match="worker is left; gone: site1/worker0 .it died"):
                both = {name: at_its(14, "finished") for name in ("site1/worker0", "site1/worker1")}
                in_process.run(its, dies | both)
            (its.state / "site1-worker1.8.pt").unlink()  # it is one behind
            dies = {}
        ended = in_process.run(its, dies)
        assert lost not in ended.digests and "site1/worker1" in ended.digests
        found.append(torch.load(its.output / "model.pt").values())
    assert same(*found)


def test_who_has_no_snapshot_joins_a_run_that_goes_on(tmp_path, monkeypatch):
    """As one that comes later: with the server's model, and the updates of the others."""
    began, begin_at = [], tasks.OwnTask.begin_at
    monkeypatch.setattr(
        tasks.OwnTask, "begin_at", lambda self, n: (began.append(n), begin_at(self, n))
    )
    training = dict(workers=[3], rounds=12, optimizer_at="server")
    given = described(tmp_path, training, on_loss="replace", state=str(tmp_path / "state"))
    with pytest.raises(Failed, match="central/server: it died"):
        in_process.run(given, {"central/server": at_its(8, "kept")})
    for snapshot in given.state.glob("site1-worker2.*"):
        snapshot.unlink()
    ended = in_process.run(given)
    assert ended.digests.keys() == {*given.members} - {"coordinator"}
    assert began and began[0] >= 7


def test_batches_that_are_drawn_anew_are_no_iteration(tmp_path):
    """All of them together take longer than an iteration may."""
    own, training = dict(data="slow"), dict(rounds=17, evaluate_every=17)
    changes = dict(own=own, limits=dict(compute_s=2.0))
    whole = described(tmp_path / "whole", training, **changes)
    in_process.run(whole)
    cut = described(tmp_path / "cut", training, state=str(tmp_path / "state"), **changes)
    with pytest.raises(Failed, match="site1/worker1: it died"):
        in_process.run(cut, {"site1/worker1": at_its(15, "finished")})
    in_process.run(cut)
    assert same(*(torch.load(its.output / "model.pt").values() for its in (whole, cut)))


def test_an_evaluation_is_no_part_of_an_iteration(tmp_path):
    """Where a worker evaluates, for there is no server; it has a limit of its own."""
    training, own = dict(exchange=dict(name="ring"), rounds=3), dict(evaluate="slowly")
    given = described(tmp_path, training, own=own, limits=dict(compute_s=3.0))
    assert in_process.run(given).digests
    given = described(tmp_path, training, own=own, limits=dict(evaluate_s=1.0))
    with pytest.raises(Failed, match="site1/worker0: its evaluation was not over within 1 s"):
        in_process.run(given)


def test_a_metric_that_is_no_number_is_a_failed_row(tmp_path):
    """Other than a loss, by which the training itself has gone wrong."""
    rows = in_process.run(described(tmp_path, own=dict(evaluate="undefined"))).rows
    for metric, said in (("precision", "nan"), ("recall", "inf")):
        found = {row.round: (row.status, row.reason) for row in rows if row.metric == metric}
        assert found == dict.fromkeys((0, 3, 6), ("failed", f"own.evaluate gave {said}"))
    assert written(tmp_path / "out") and times_of(rows, "total").keys() == {0, 3, 6}
    with pytest.raises(Failed, match="round 0: loss is nan; lower the learning rate"):
        in_process.run(described(tmp_path, own=dict(evaluate="no_loss")))


def test_two_threads_evaluate_one_after_the_other(tmp_path):
    one, found = task(tmp_path, evaluate="bias"), []
    later = []
    for number in range(3):
        one.adopt([torch.full(shape, float(number)) for shape in one.shapes])
        later.append(one.evaluation())
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda number: later[number % 3]()["bias"][0], range(300)))
    assert found == [2.0 * (number % 3) for number in range(300)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "function, said, line",
    [
        ("missing", "KeyError: 'no such key'", 'return {}["no such key"]'),
        ("gives_up", "SystemExit: no more", 'sys.exit("no more")'),
        (
            "wrong_shape",
            "ValueError: Expected input batch_size",
            "nn.functional.cross_entropy(scores, labels)",
        ),
    ],
)
def test_errors_in_functions_have_their_place(tmp_path, caplog, function, said, line):
    """That in the user's own file, though it came up in torch; and all others in the log."""
    source = Path(odd_training.__file__).resolve()
    (number,) = (n for n, its in enumerate(source.read_text().split("\n"), 1) if line in its)
    place = rf"\({re.escape(str(source))}:{number}\)$"
    with pytest.raises(Failed, match=rf"(?s)site1/worker\d: {re.escape(said)}.*{place}"):
        in_process.run(described(tmp_path, own=dict(loss=function)))
    assert f"in {function}" in caplog.text and "Traceback" in caplog.text


def test_members_that_begin_with_different_models_are_named(tmp_path):
    with pytest.raises(Failed, match="begins with other parameters than .*; own.model must give"):
        in_process.run(described(tmp_path, own=dict(model="another")))


def test_who_comes_later_counts_the_updates_of_the_others(tmp_path, monkeypatch):
    began, begin_at = [], tasks.OwnTask.begin_at
    monkeypatch.setattr(
        tasks.OwnTask, "begin_at", lambda self, n: (began.append(n), begin_at(self, n))
    )
    policy = dict(name="bsp", local_iterations=2)
    brought = []

    def dies(head):
        brought.append(head.get("tag", [""])[0].startswith("push"))
        return sum(brought) == 3  # two parameters a meeting: in the second

    given = described(tmp_path, dict(synchronization=policy, rounds=8), on_loss="replace")
    in_process.run(given, deaths={"site1/worker1": dies})
    assert began and began[0] >= 4 and began[0] % 2 == 0


@pytest.mark.parametrize(
    "name, said",
    [("ring", "payloads side by side"), ("k_nomial_tree", "payloads side by side")]
    + [("parameter_server", "")],
)
def test_rows_say_where_payloads_travel_side_by_side(tmp_path, name, said):
    given = described(tmp_path, dict(exchange={"name": name}), order="rank")
    assert {row.variant for row in in_process.run(given).rows} == {said}


def test_a_server_has_no_statistics_of_its_own(tmp_path):
    own = dict(model="normed")
    given = described(tmp_path, dict(optimizer_at="server"), statistics="own", own=own)
    with pytest.raises(ValueError, match="statistics: own leaves the server's model"):
        in_process.run(given)
    assert in_process.run(described(tmp_path, statistics="own", own=own)).digests


@pytest.mark.parametrize(
    "own, said",
    [
        (dict(model="lazy"), "own.model: has lazy layers"),
        (dict(model="double"), "own.model: parameters must be float32, not torch.float64"),
        (dict(model="no_module"), r"own.model: must give a torch.nn.Module, not \[3\]"),
        (dict(model="frozen"), "own.model: has no parameters to train"),
        (dict(model="sparse"), "own.model: has layers whose gradients are sparse"),
        (dict(optimizer="lbfgs"), "own.optimizer: LBFGS"),
        (dict(optimizer="plateau"), "own.optimizer: ReduceLROnPlateau"),
        (dict(data="number"), "own.data: must give batches to iterate over, not 3"),
        (dict(data="dicts"), r"own.data: a batch must be a pair \(x, y\), not a dict"),
        (dict(data="triples"), r"own.data: a batch must be a pair \(x, y\), not a tuple of 3"),
        (dict(data="generator"), "own.data: .* gave no batch when iterated over again; a gener"),
        (dict(loss="unreduced"), r"own.loss: must give a tensor of one number, not \(2,\)"),
        (dict(evaluate="nothing"), "own.evaluate: must give numbers by name, not None"),
        (dict(evaluate="many"), "own.evaluate: must give numbers by name, not {'loss'"),
    ],
)
def test_what_functions_cannot_give_is_refused_by_name(tmp_path, own, said):
    with pytest.raises(ValueError, match=said):
        trained(task(tmp_path, **own), 2).evaluation()()
