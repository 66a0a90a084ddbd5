"""How much of a run is done, and how long the rest takes."""

import io
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from slowlink.workflow import progress
from slowlink.workflow.progress import Progress, Seconds, duration


def job(number, log, threads=1):
    return SimpleNamespace(jobid=number, log=[log], threads=threads)


def finished(number):
    record = logging.makeLogRecord(dict(level=logging.INFO, event=LogEvent.JOB_FINISHED))
    record.job_id = number
    return record


@pytest.fixture
def timed(tmp_path, monkeypatch):
    """A folder with the times of two jobs, one of which the record has, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "RECORDED", tmp_path / "seconds.csv")
    recorded = "log,s\nelse/d.log,4.0\nlogs/a.log,7.0\nlogs/c.log,30.0\n"
    (tmp_path / "seconds.csv").write_text(recorded)
    (tmp_path / "logs").mkdir()
    for name, seconds in (("a", 10.0), ("b", 20.0)):
        (tmp_path / f"logs/{name}.tsv").write_text(f"s\tcpu_s\trss_mb\n{seconds}\t1\t2\n")
    return tmp_path


def test_the_last_run_counts_before_the_record_and_that_before_a_guess(timed):
    seconds = Seconds()
    known = [seconds.of(job(0, f"logs/{name}.log")) for name in "abcd"]
    assert known == [10.0, 20.0, 30.0, progress.UNKNOWN_S]
    assert seconds.of(SimpleNamespace(log=[])) == 0.0


def test_a_share_is_one_of_time_not_of_jobs_and_a_job_alone_takes_all_cores(timed):
    said = io.StringIO()
    line = Progress([job(1, "logs/a.log", 2), job(2, "logs/b.log")], 2, said)
    assert line.share == 0.0 and line.left_s == pytest.approx((10 * 2 + 20) / 2, rel=0.01)
    line.emit(finished(1))
    assert line.share == pytest.approx(0.5)
    line.emit(finished(2))
    assert line.share == 1.0 and line.left_s == 0.0
    assert said.getvalue().splitlines()[-1] == "100% done, 2 of 2 jobs"
    assert "50% done, 1 of 2 jobs, about " in said.getvalue()


def test_a_slower_machine_takes_longer_than_recorded(timed, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    line = Progress([job(n, "logs/c.log") for n in range(100)], 1, io.StringIO())
    now[0] = 50 * 60.0  # half of the jobs, in twice their time
    for number in range(50):
        line.emit(finished(number))
    assert line.left_s == pytest.approx(50 * 30 * (3000 + 60) / (1500 + 60))


def test_what_a_run_took_replaces_what_its_scale_did_before(timed):
    progress.record(Path("logs"))
    assert (timed / "seconds.csv").read_text().splitlines() == [
        "log,s",
        "else/d.log,4.0",
        "logs/a.log,10.0",
        "logs/b.log,20.0",
    ]


@pytest.mark.parametrize("seconds, text", [(40, "40 s"), (700, "12 min"), (12600, "3.5 h")])
def test_durations_in_words(seconds, text):
    assert duration(seconds) == text
