"""Live runs of many members: what is counted while they run, and the record of it."""

import contextlib
import json
import math
import os
from types import SimpleNamespace

import pytest

from slowlink.testbed.live import fork_server
from slowlink.testbed.results import coordinates, frame
from slowlink.workflow import settings
from slowlink.workflow.experiment import Bench
from slowlink.workflow.matrix import crowd
from slowlink.workflow.matrix.crowd import Load, crowded


@pytest.fixture(scope="module")
def recipe():
    return settings.load({"scale": "desk"}).recipes["matrix"]


class Process:
    def __init__(self, pss):
        self.pss = pss

    def memory_full_info(self):
        return SimpleNamespace(pss=self.pss)


def test_what_a_round_takes_is_counted_between_the_first_and_the_last_look(recipe, monkeypatch):
    """A round every second of a clock that stands still between looks: the centre takes 0.1 s of
    it, three others 0.3 s each."""
    its = recipe.crowd.model_copy(update=dict(rounds=10))
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds):
        clock.now += 0.5

    others = {f"site1/worker{n}": Process(30) for n in range(3)}
    processes = {"centre": Process(100), **others}
    spent = {processes["centre"]: 0.1} | dict.fromkeys(others.values(), 0.3)
    monkeypatch.setattr(crowd, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(crowd, "_processes", lambda: processes)
    monkeypatch.setattr(crowd, "_cpu_s", lambda one: 5.0 + spent[one] * clock.now)
    monkeypatch.setattr(crowd.os, "sched_getaffinity", lambda pid: {0, 1})
    load = crowd._watched(lambda: clock.now < 10.2, lambda: int(clock.now), "centre", its)
    # Rounds are whole numbers: seen from 2 at 2.0 s to 9 at 9.5 s, so in 7.5 s there are 7.
    found = 7.5 / 7
    expected = Load(found, 0.1 * found, 0.9 * found, 0.5, 100, 30, 1.0)
    assert vars(load) == pytest.approx(vars(expected))


def test_a_run_that_is_over_too_soon_is_no_measurement(recipe, monkeypatch):
    monkeypatch.setattr(crowd, "LOOK_S", 0.0)
    with pytest.raises(RuntimeError, match="too few were seen"):
        crowd._watched(iter([True, False]).__next__, lambda: 40, "centre", recipe.crowd)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["HiPS", "DDS federated"])
def test_a_real_run_is_watched(recipe, tmp_path, label, monkeypatch):
    # As the command records it: what an earlier test has had imported would be shared by all.
    fresh = fork_server.ForkServer()
    monkeypatch.setitem(fork_server._SHARED, os.getpid(), fresh)
    system = recipe.crowd.systems[label]
    its = recipe.crowd.model_copy(update=dict(rounds=120))  # so few members are soon done
    with contextlib.closing(fresh):
        load = crowd._run(its, system, 4, tmp_path)
    assert 0 < load.round_s < load.start_s and 0 < load.busy <= 1
    assert 1e6 < load.member_bytes < load.centre_bytes < 1e9 and load.centre_cpu_s > 0


@pytest.fixture
def recorded(recipe, tmp_path, monkeypatch):
    """A system of two sizes, whose runs take no time, and how often each was run."""
    ran = []

    def run(its, system, members, folder):
        ran.append(members)
        return Load(
            0.1 * members, 1e-3 * members, 0.1, 0.95 if members > 10 else 0.2, 9e7, 2e7, 3.0
        )

    systems = {"HiPS": recipe.crowd.systems["HiPS"].model_copy(update=dict(members=[4, 32]))}
    its = recipe.crowd.model_copy(update=dict(systems=systems))
    made = recipe.model_copy(update=dict(crowd=its))
    monkeypatch.setattr(crowd, "RECORD", str(tmp_path))
    monkeypatch.setattr(crowd, "_run", run)
    told = SimpleNamespace(recipes={"matrix": made})
    monkeypatch.setattr(settings, "load", lambda given: told)
    return made, ran


def rows_of(made):
    bench = Bench("matrix", "crowded", made, "desk")
    return coordinates(frame(crowded.function(bench, made.crowd)))


def test_the_record_goes_on_and_the_table_has_it(recorded, tmp_path):
    made, ran = recorded
    assert set(rows_of(made)["status"]) == {"failed"}
    crowd.record()
    crowd.record()
    assert ran == [4, 32]
    table = crowd.crowd_table.make(rows_of(made), None).set_index("members")
    assert table["processors busy (%)"].to_dict() == {4: 20, 32: 95}
    assert table["round (s)"].to_dict() == {4: 0.4, 32: 3.2}
    assert table["centre's processor time (ms)"].to_dict() == {4: 4.0, 32: 32.0}
    assert table["centre's memory (MB)"].to_dict() == {4: 90, 32: 90}
    file = tmp_path / "HiPS.json"
    kept = json.loads(file.read_text())
    del kept["runs"]["32"]
    file.write_text(json.dumps(kept))
    lost = rows_of(made).query("status == 'failed'")
    assert lost["workers"].tolist() == [32] and all(map(math.isnan, lost["value"]))
