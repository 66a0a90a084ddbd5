"""Jobs in processes of their own."""

import importlib
import threading

import pytest

from slowlink.workflow import pool


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that runs the body of a job's ``main`` and returns its log."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(body):
        name = f"job_{len(list(tmp_path.glob('job_*.py')))}"
        (tmp_path / f"{name}.py").write_text(f"def main(say, out):\n    {body}\n")
        log = tmp_path / "logs" / f"{name}.log"
        pool.run(name, str(log), threads=1, out=str(tmp_path / "out"))
        return log

    return run


@pytest.mark.slow
def test_a_job_says_writes_and_is_timed(job, tmp_path):
    log = job("say('hello'); import torch; open(out, 'w').write(str(torch.get_num_threads()))")
    assert log.read_text() == "hello\n" and (tmp_path / "out").read_text() == "1"
    head, told = log.with_suffix(".tsv").read_text().splitlines()
    assert head.split("\t") == ["s", "cpu_s", "rss_mb"]
    assert all(float(value) > 0 for value in told.split("\t"))


@pytest.mark.slow
def test_jobs_start_with_the_heavy_imports_done_and_share_nothing_else(job, tmp_path):
    body = "import sys; open(out, 'w').write(' '.join(sorted(sys.modules)))"
    job(body)
    loaded = (tmp_path / "out").read_text().split()
    # The fork server passes over what it cannot import without a word.
    assert {"slowlink.workflow.warm", "torch", "numba", "seaborn"} <= set(loaded)
    assert "job_0" in loaded
    job(body)
    assert "job_0" not in (tmp_path / "out").read_text().split()


@pytest.mark.slow
def test_a_job_that_fails_is_an_error_with_its_traceback_in_the_log(job, tmp_path):
    with pytest.raises(RuntimeError, match=r"the job failed \(log: .*job_0.log\)"):
        job("raise ValueError('no such thing')")
    assert "ValueError: no such thing" in (tmp_path / "logs/job_0.log").read_text()


@pytest.mark.slow
def test_a_job_that_is_killed_says_by_what(job):
    with pytest.raises(RuntimeError, match="ended by signal 9"):
        job("import os; os.kill(os.getpid(), 9)")


@pytest.mark.slow
def test_jobs_that_end_at_once_are_not_taken_for_failures(job, tmp_path, monkeypatch):
    """How a process ended can be read once, and threads that start one read it of all."""
    (tmp_path / "nothing.py").write_text("def job(*given): pass\n")
    monkeypatch.setattr(pool, "_job", importlib.import_module("nothing").job)
    failed = []

    def several():
        try:
            for _ in range(40):
                pool.run("", "")
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=several) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
