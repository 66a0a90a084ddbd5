"""What is trained once and read ever after."""

import json
import math
from concurrent.futures import ThreadPoolExecutor as Threads

import pytest
import torch

from slowlink.testbed.results import frame
from slowlink.testbed.training import trainer
from slowlink.testbed.training.datasets import Dataset
from slowlink.testbed.training.recipe import Level, Link, Part, Recipe
from slowlink.workflow import recorded, settings
from slowlink.workflow.closure import ROOT as CHECKOUT
from slowlink.workflow.jobs import recorded_in


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """A small data set, and a repository that is empty."""
    labels = torch.arange(120) % 10
    images = torch.randint(0, 256, (120, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    images = images.to(torch.uint8)
    data = Dataset(
        "mnist", images[:80], labels[:80], images[80:], labels[80:], 10, (1, 28, 28),
        torch.tensor([0.5]), torch.tensor([0.25]),
    )  # fmt: skip
    monkeypatch.setattr(trainer, "load_dataset", lambda *args, **kwargs: data)
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    return tmp_path


def run(**changes) -> Recipe:
    fields = dict(
        document="geomx",
        experiment="residual",
        system="GeoMX BiSparse",
        exchange=Part(name="hips", overlap=False),
        levels=(Level(up=Part(name="identity")), Level(up=Part(name="bisparse"))),
        synchronization=Part(name="bsp"),
        model=Part(name="lenet5", hidden=[20, 16]),
        dataset="mnist",
        workers=(1, 1),
        batch=8,
        lr=0.05,
        rounds=6,
        evaluate_every=2,
        seed=1,
        scale="desk",
        device="geomx_k40m",
        networks={"one": Link(lan=1e9, wan=1e8), "other": Link(lan=1e9, wan=1e7)},
    )
    return Recipe(**fields | changes)


def read(asked: Recipe):
    return list(recorded.read("geomx", "residual", [asked]))


def test_what_was_recorded_is_read_with_the_scale_of_who_asks(small):
    plain = frame(trainer.train(run()))
    said = recorded._record("geomx", "residual", run().model_dump_json())
    assert said.startswith("data/recorded/geomx_residual/GeoMX_BiSparse-seed1.parquet: ")
    for scale in ("smoke", "paper"):
        rows = frame(read(run(scale=scale)))
        assert set(rows["scale"]) == {scale} and set(rows["evidence"]) == {"recorded"}
        other = ["scale", "evidence"]
        assert rows.drop(columns=other).equals(plain.drop(columns=other))
    about = json.loads(next(small.rglob("*.json")).read_text())
    assert about["command"] == "python -m slowlink.workflow.recorded geomx residual"
    assert about["versions"]["torch"] == torch.__version__
    assert not list((small / "results").rglob("*.*"))  # no checkpoint is left


def test_a_run_that_was_ended_goes_on(small, monkeypatch):
    """The second process does not repeat what the first one's checkpoint has."""
    train, seen = trainer.train, []

    def ended(*given, **named):
        for row in train(*given, **named):
            if row.round == 4:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(trainer, "train", ended)
    with pytest.raises(KeyboardInterrupt):
        recorded._record("geomx", "residual", run().model_dump_json())
    assert not list(small.rglob("*.parquet"))
    monkeypatch.setattr(trainer, "train", train)
    monkeypatch.setattr("builtins.print", lambda text, **named: seen.append(text))
    recorded._record("geomx", "residual", run().model_dump_json())
    assert [text.partition(":")[2].split(",")[0].strip() for text in seen] == ["round 6/6"]
    assert (
        frame(read(run()))
        .drop(columns="evidence")
        .equals(frame(train(run())).drop(columns="evidence"))
    )


def test_what_is_not_there_or_is_another_run_is_told(small):
    rows = read(run())
    assert [(row.case, row.bandwidth, row.status) for row in rows] == [
        ("one", 1e8, "failed"), ("other", 1e7, "failed")
    ]  # fmt: skip
    why = "not recorded yet (python -m slowlink.workflow.recorded geomx residual does)"
    assert {row.reason for row in rows} == {why}
    recorded._record("geomx", "residual", run().model_dump_json())
    assert {row.reason for row in read(run(lr=0.1, batch=4))} == {"recorded with another batch, lr"}
    assert {row.status for row in read(run(accelerator="cpu"))} == {"ok"}


def test_what_comes_next_follows_from_how_runs_ended(small, monkeypatch):
    """A second run is known only after the first, and no run is made twice."""
    monkeypatch.setattr(recorded, "ProcessPoolExecutor", lambda jobs, *_, **__: Threads(jobs))
    asked = []

    def runs():
        ends = recorded.ended("geomx", "residual", run())
        asked.append(ends)
        return [run()] if ends is None else [run(), run(seed=2)]

    recorded.record("geomx", "residual", runs, jobs=1)
    files = {file.stem for file in small.rglob("*.parquet")}
    assert files == {"GeoMX_BiSparse-seed1", "GeoMX_BiSparse-seed2"}
    last = [row.value for row in trainer.train(run()) if row.metric == "test_accuracy"][-1]
    assert asked == [None, pytest.approx(last), pytest.approx(last)]


def test_a_run_that_diverges_ended_below_all_others(small):
    recorded._record("geomx", "residual", run(lr=1e30).model_dump_json())
    assert recorded.ended("geomx", "residual", run(lr=1e30)) == -math.inf


def test_a_file_that_is_not_the_recorded_one_is_refused(small):
    recorded._record("geomx", "residual", run().model_dump_json())
    file = next(small.rglob("*.parquet"))
    frame(trainer.train(run(seed=2))).to_parquet(file, index=False)
    with pytest.raises(ValueError, match="is not the file that"):
        read(run())


def test_only_what_is_declared_as_recorded_is(monkeypatch):
    runs = recorded.runs_of("geomx", "residual", {"scale": "desk"})
    smoke = recorded.runs_of("geomx", "residual", {"scale": "smoke"})
    assert [one.model_copy(update={"scale": "desk"}) for one in smoke] == runs
    with pytest.raises(SystemExit, match="not a training that is recorded"):
        recorded.runs_of("geomx", "figure6", {"scale": "desk"})


@pytest.mark.slow
def test_everything_recorded_is_read(monkeypatch):
    # Which runs there are follows from how some ended.
    monkeypatch.setattr(recorded, "ROOT", CHECKOUT)
    for name, wing in settings.wings().items():
        for one in wing.trainings.values():
            if one.recorded:
                runs = {run.id for run in recorded.runs_of(name, one.name, {"scale": "desk"})}
                folder = CHECKOUT / recorded_in(name, one.name)
                assert {file.stem for file in folder.glob("*.*")} <= runs, folder
