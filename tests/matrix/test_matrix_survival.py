"""Live runs that are disturbed: what counts as a fault, and the record of all trials."""

import json
import math
import re
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from slowlink.testbed.live.engine import disturbed as trials
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.disturbed import Disturbance, Outcome, disturbed
from slowlink.testbed.live.fork_server import environment
from slowlink.testbed.results import coordinates, frame
from slowlink.workflow import settings
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import survival
from slowlink.workflow.matrix.survival import survived

WHOLE = {"weight": torch.tensor([1.0, 2.0])}


@pytest.fixture(scope="module")
def recipe():
    return settings.load({"scale": "desk"}).recipes["matrix"]


@pytest.fixture
def given(recipe, tmp_path):
    """Settings of a run that keeps snapshots."""
    its = recipe.survival
    return survival._settings(its, its.systems["ring"], tmp_path, 0)


class Process:
    def __init__(self, stays=False):
        self.stays, self.signals = stays, []

    def poll(self):
        return None if self.stays else 0

    def send_signal(self, number):
        self.signals.append(number)

    def kill(self):
        self.stays = False


def launched(*runs, stays=(), hangs=False):
    """A class in the place of Launched: each of its runs does what the next of ``runs`` says, a
    model, an error, or whom it goes on without."""
    left = list(runs)

    class Launched:
        def __init__(self, given, environment):
            names = [name for name in given.members if name != "coordinator"]
            self.processes = {name: Process(name in stays) for name in names}
            self.given = given

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, say):
            if hangs:
                gone = threading.Event()
                while any(its.stays for its in self.processes.values()):
                    gone.wait(0.01)
                raise Failed("everybody is gone")
            what = left.pop(0)
            if isinstance(what, str):
                raise Failed(what)
            model, *lost = what
            for name in lost:
                say(f"goes on without {name}: its process is gone")
            self.given.output.mkdir(exist_ok=True)
            torch.save(model, self.given.output / "model.pt")

    return Launched


OTHER = {"weight": torch.tensor([1.0, 2.5])}
BROKEN = {"weight": torch.tensor([1.0, math.nan])}


@pytest.mark.parametrize(
    "runs, kind",
    [
        ([(WHOLE,)], trials.OUTLASTED),
        ([(OTHER,)], trials.WRONG),
        ([(OTHER, "site1/worker1")], trials.WITHOUT),
        ([(BROKEN, "site1/worker1")], trials.WRONG),
        ([(OTHER, "site2/worker1")], trials.BLAMED),
        (["site2/worker0: silent for 2 s"], trials.BLAMED),
        (["site1/worker1: its process is gone", (WHOLE,)], trials.RESUMED),
        (["site1/worker1: its process is gone", (OTHER,)], trials.WRONG),
        (["site1/worker1: its process is gone", "site1/worker1: again"], trials.WRONG),
    ],
)
def test_what_becomes_of_a_run_is_judged(given, monkeypatch, runs, kind):
    monkeypatch.setattr(trials, "Launched", launched(*runs))
    found = disturbed(given, WHOLE, Disturbance("site1/worker1", "kill", 0.0), 10)
    assert found.kind == kind and (kind in trials.RIGHT) != (kind in trials.FAULTS)


def test_without_snapshots_an_error_that_names_the_member_is_all(given, monkeypatch):
    monkeypatch.setattr(trials, "Launched", launched("site1/worker1: its process is gone"))
    without = given.model_copy(update=dict(state=None))
    kill = Disturbance("site1/worker1", "kill", 0.0)
    assert disturbed(without, WHOLE, kill, 10).kind == trials.NAMED


def test_who_hangs_or_stays_is_found(given, monkeypatch):
    monkeypatch.setattr(trials, "LEAVE_S", -given.limits.join_s)
    kill = Disturbance("site1/worker1", "kill", 0.0)
    monkeypatch.setattr(trials, "Launched", launched(hangs=True, stays=["site2/worker0"]))
    assert disturbed(given, WHOLE, kill, 0.2).kind == trials.HUNG
    monkeypatch.setattr(trials, "Launched", launched((WHOLE,), stays=["site2/worker0"]))
    found = disturbed(given, WHOLE, kill, 10)
    assert found.kind == trials.LEFT and "site2/worker0 did not end" in found.said
    # Whom the signal was for may stay: it is held.
    monkeypatch.setattr(trials, "Launched", launched((WHOLE,), stays=["site1/worker1"]))
    assert disturbed(given, WHOLE, kill, 10).kind == trials.OUTLASTED


def test_a_clock_that_steps_is_nobodys_fault(given):
    step = Disturbance("site2/worker1", "step", 0.0, 1.0, 60.0)
    assert not trials._names("site2/worker1: silent for 2 s", step, given)


def test_of_a_full_disk_the_file_is_told(given):
    fill = Disturbance("site2/worker1", "fill", 0.0, 1.0)
    assert trials._names("site2/worker1: cannot be written: File too large: 'x'", fill, given)
    assert not trials._names("site2/worker1: silent for 2 s", fill, given)
    assert not trials._names("site2/worker0: cannot be written: File too large", fill, given)


def test_of_a_site_that_is_cut_off_anybody_is_to_blame(given):
    cut = Disturbance("site2/worker0", "cut", 0.0, 1.0)
    assert trials._names("site2/worker1: silent for 2 s", cut, given)
    assert not trials._names("site1/worker1: silent for 2 s", cut, given)


@pytest.mark.slow
def test_a_real_worker_that_is_killed_or_full_is_named_and_the_run_resumes(recipe, tmp_path):
    its = recipe.survival.model_copy(update=dict(rounds=30))
    whole, run_s = survival._undisturbed(its, its.systems["ring"], tmp_path)
    for number, how in enumerate(["kill", "fill"], 1):
        given = survival._settings(its, its.systems["ring"], tmp_path, number)
        found = disturbed(given, whole, Disturbance("site2/worker1", how, 0.3 * run_s), 120)
        assert found.kind == trials.RESUMED and "site2/worker1" in found.said
    assert re.search(r"cannot be written, .*: File too large: .*site2-worker1", found.said)


STEPPED = """
import sys, time
from pathlib import Path
from slowlink.testbed.live import fork_server
from slowlink.testbed.live.engine import disturbed as trials
from slowlink.workflow import settings
from slowlink.workflow.matrix import survival

trials.clocks_that_step()
its = settings.load({"scale": "desk"}).recipes["matrix"].survival
its = its.model_copy(update=dict(rounds=20))
system, folder = its.systems["all-gather + top_k"], Path(sys.argv[1])
whole, run_s = survival._undisturbed(its, system, folder)
for number, by_s in enumerate([3000.0, -3000.0], 1):
    given = survival._settings(its, system, folder, number)
    step = trials.Disturbance("site2/worker1", "step", 0.3 * run_s, 0.3 * run_s, by_s)
    print(trials.disturbed(given, whole, step, 120).kind)

    # What a member's clock says in such a step, and what times waits.
    trials._clock(given, step.member).write_text(f"{by_s:+}")
    look = "import time; said = f'{time.time()} {time.monotonic()}'; "
    look += f"open({str(folder / 'time')!r}, 'w').write(said)"
    own, shared = trials._clocks(given)[step.member], fork_server.shared()
    assert shared.start("look", "timeit", ["-n1", "-r1", look], environment=own).wait(60) == 0
    told, steady = map(float, (folder / "time").read_text().split())
    assert abs(told - time.time() - by_s) < 60 and abs(steady - time.monotonic()) < 60
"""


@pytest.mark.slow
@pytest.mark.skipif(trials.faketime() is None, reason="libfaketime is not installed")
def test_a_real_worker_whose_clock_steps_changes_nothing(tmp_path):
    # In a process of its own, since the clocks of all that it starts are set from the beginning.
    command = [sys.executable, "-c", STEPPED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert not done.returncode, done.stderr[-3000:]
    assert done.stdout.splitlines() == [trials.OUTLASTED] * 2


# The record ---------------------------------------------------------------------------------------


def test_trials_are_the_same_whenever_they_are_drawn_and_fall_on_everybody(recipe):
    its, counts = recipe.survival, Counter()
    for label, system in its.systems.items():
        drawn = survival.trials_of(its, label, 4.0)
        assert drawn == survival.trials_of(its, label, 4.0)
        for trial in drawn:
            counts[trial["how"]] += 1
            assert 0 <= trial["at_s"] <= 4
            longest = its.longest * its.limits.silence_s
            assert (
                trial["for_s"] == math.inf if trial["how"] == "kill" else trial["for_s"] < longest
            )
        # One more does not change those before.
        more = system.model_copy(update=dict(kills=system.kills + 1))
        again = its.model_copy(update=dict(systems={label: more}))
        assert {one["trial"]: one for one in survival.trials_of(again, label, 4.0)}.items() >= {
            one["trial"]: one for one in drawn
        }.items()
        if system.wire == "shaped":
            roles = {"worker", "central server", "coordinator", "site"}
            inside = {"server"} if system.exchange.name == "hips" else set()
            assert {one["role"] for one in drawn} == roles | inside
    assert counts == dict(kill=120, hold=120, cut=40, fill=50, step=50)


@pytest.fixture
def recorded(recipe, tmp_path, monkeypatch):
    """Two systems of few trials whose runs take no time, and how often each was run."""
    ran = []

    def one(given, whole, what, limit_s):
        ran.append((given.training.exchange.name, what.how))
        lost = what.how == "hold" and given.training.exchange.name == "ring"
        return Outcome(trials.HUNG if lost else trials.OUTLASTED, 2.0 + len(ran), "")

    few = dict(kills=2, holds=1, cuts=0, fills=0, steps=0)
    systems = {
        label: recipe.survival.systems[label].model_copy(update=few)
        for label in ("ring", "all-gather + top_k")
    }
    its = recipe.survival.model_copy(update=dict(systems=systems, at_once=1))
    monkeypatch.setattr(survival, "RECORD", str(tmp_path))
    monkeypatch.setattr(survival, "disturbed", one)
    monkeypatch.setattr(survival, "_undisturbed", lambda *_: (WHOLE, 1.0))
    made = recipe.model_copy(update=dict(survival=its))
    told = SimpleNamespace(recipes={"matrix": made})
    monkeypatch.setattr(settings, "load", lambda given: told)
    return made, ran


def rows_of(made):
    return coordinates(
        frame(survived.function(Bench("matrix", "survived", made, "desk"), made.survival))
    )


def test_the_record_goes_on_where_it_was_and_faults_are_counted(recorded, tmp_path):
    made, ran = recorded
    assert set(rows_of(made)["status"]) == {"failed"}
    survival.record()
    assert len(ran) == 6
    survival.record()
    assert len(ran) == 6
    file = tmp_path / "ring.json"
    kept = json.loads(file.read_text())
    kept["trials"].pop(0)
    file.write_text(json.dumps(kept))
    survival.record()
    assert len(ran) == 7
    table = survival.survival_table.make(rows_of(made), None).set_index(["system", "disturbed"])
    assert table["faults"].to_dict() == {
        ("ring", "hold"): 1,
        ("ring", "kill"): 0,
        ("all-gather + top_k", "hold"): 0,
        ("all-gather + top_k", "kill"): 0,
    }
    assert table.loc[("all-gather + top_k", "kill"), trials.OUTLASTED] == 2
    assert table["trials"].sum() == 6
    # With other settings nothing of it counts.
    other = made.survival.model_copy(update=dict(rounds=61))
    assert set(rows_of(made.model_copy(update=dict(survival=other)))["status"]) == {"failed"}
