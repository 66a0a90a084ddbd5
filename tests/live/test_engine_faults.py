"""A live run when something goes wrong: who is to blame is named, and nothing waits for ever."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import slowlink
from slowlink.testbed.live import fork_server
from slowlink.testbed.live.engine import __main__ as command
from slowlink.testbed.live.engine import launch, own, settings, tasks
from slowlink.testbed.live.engine.coordinator import Failed
from slowlink.testbed.live.engine.disturbed import model_of
from slowlink.testbed.live.engine.launch import Launched, run_all
from slowlink.testbed.live.engine.node import Node
from slowlink.testbed.live.identity import Keys, make
from slowlink.testbed.live.replay import replayed
from tests.live import odd_training, own_training
from tests.live.run_documents import document as own_document
from tests.live.run_documents import functions, part
from tests.live.waiting import all_end, descendants

pytestmark = pytest.mark.slow

MAIN = f"{launch.PACKAGE}.__main__"
SOURCE = str(Path(own_training.__file__).resolve())
OWN = functions(own_training, model="make_model", data="batches", optimizer="make_optimizer")
OWN |= functions(own_training, evaluate="accuracy") | {"loss": "torch.nn.functional:cross_entropy"}


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    """A file of data for each site."""
    monkeypatch.setenv("OWN_TRAINING", str(tmp_path))
    monkeypatch.setattr(own_training, "FOLDER", tmp_path)
    for number, site in enumerate(("site1", "site2")):
        torch.save(own_training.drawn(number), tmp_path / f"{site}.pt")


def document(folder, exchange="ring", policy="bsp", rounds=12, **changes):
    training = dict(
        exchange=part(exchange),
        levels=[{"up": part("identity")}] * (1 + (exchange == "hips")),
        synchronization=part(policy),
        workers=[2, 1],
        rounds=rounds,
        evaluate_every=4,
    )
    limits = dict(silence_s=3, meeting_s=20, compute_s=60, join_s=120)
    limits |= changes.pop("limits", {})
    return own_document(folder, OWN, training, limits=limits, **changes)


def parsed(folder, *arguments, **changes):
    return settings.parse(document(folder, *arguments, **changes))


def same_model(one, other):
    ours, theirs = model_of(one), model_of(other)
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def rounds_in(given):
    lines = (given.output / "rows.jsonl").read_text().splitlines()
    return [line for line in lines if '"accuracy"' in line]


def run_until(given, words, act, said=None):
    """Run, and do ``act(launched)`` once progress says ``words``; ``said`` keeps what it says."""
    said = [] if said is None else said
    with Launched(given) as launched:

        def say(line):
            said.append(line)
            if words in line:
                act(launched)

        return launched.run(say)


def keep_out(launched, member):
    """Let a run start without this member; returns what starts it."""
    start = launched.start
    launched.start = lambda name: name == member or start(name)
    return lambda: start(member)


@pytest.mark.parametrize("exchange", ["hips", "ring"])
def test_a_killed_run_goes_on_to_the_same_bits_and_keeps_its_rows(tmp_path, exchange):
    """Dropout, a shuffled order, Adam, running statistics and a codec's memory included."""
    top_k = [{"up": {"name": "top_k", "ratio": 0.3}}]
    identity = [{"up": {"name": "identity"}}]
    levels = identity + top_k if exchange == "hips" else identity
    its = dict(training=dict(levels=levels), snapshot_every=2)
    whole = parsed(tmp_path / "whole", exchange, **its)
    run_all(whole)
    cut = parsed(tmp_path / "cut", exchange, state=str(tmp_path / "state"), **its)
    with pytest.raises(Failed, match=r"site1/worker1: (its process is gone|silent)"):
        run_until(cut, "round 8", lambda run: run.processes["site1/worker1"].kill())
    before = rounds_in(cut)
    assert len(before) == 3
    said = []
    run_all(cut, said.append)
    assert any("going on from round" in line for line in said)
    assert same_model(cut, whole)
    assert len(rounds_in(cut)) == 4 and rounds_in(cut)[:2] == before[:2]


@pytest.mark.parametrize("left", [True, False])
def test_who_has_died_before_its_first_snapshot_stops_nobody(tmp_path, left):
    """It has the one of the beginning, and others the next one, too; or it has none, and others
    that of the beginning."""
    whole = parsed(tmp_path / "whole", "hips", snapshot_every=4)
    run_all(whole)
    cut = parsed(tmp_path / "cut", "hips", state=str(tmp_path / "state"), snapshot_every=4)
    with pytest.raises(Failed, match="site1/worker1"):
        run_until(cut, "round 4", lambda run: run.processes["site1/worker1"].kill())
    for file in (tmp_path / "state").iterdir():
        later, mine = ".0." not in file.name, file.name.startswith("site1-worker1.")
        if later and (mine or not left) or mine and not left:
            file.unlink()
    run_all(cut)
    assert same_model(cut, whole)


def test_a_site_alone_reads_its_data_and_a_model_comes_out(tmp_path):
    given = document(tmp_path, rounds=40, training=dict(evaluate_every=40))
    del given["own"]
    trained = slowlink.run(
        own_training.make_model,
        own_training.batches,
        torch.nn.functional.cross_entropy,
        own_training.make_optimizer,
        given,
        evaluate=own_training.accuracy,
        say=lambda line: None,
    )
    read = sorted((tmp_path / "read.log").read_text().splitlines())
    assert read == [f"site1/worker{n} site1.pt" for n in (0, 1)] + ["site2/worker0 site2.pt"]
    scores = [row.value for row in trained.rows if row.metric == "accuracy"]
    trained.model.eval()
    assert own_training.accuracy(trained.model)["accuracy"] == scores[-1] > scores[0]


@pytest.mark.parametrize(
    "exchange, policy",
    [
        ("ring", "bsp"),
        ("parameter_server", "bsp"),
        ("parameter_server", "asp"),
        pytest.param("parameter_server", dict(name="lpsp", computes_on=True), id="computing on"),
    ],
)
def test_a_killed_worker_is_named_and_the_others_go_on(tmp_path, exchange, policy):
    changes = dict(on_loss="continue", iteration_s=[[0.1]] * 3)
    given = parsed(tmp_path, exchange, policy, rounds=24, **changes)
    said = []

    def act(run):
        run.processes["site1/worker1"].kill()

    with Launched(given) as run:

        def say(line):
            said.append(line)
            # Of policies that meet as they like, several rounds may end at a time.
            if " of 24" in line and "round 0" not in line:
                act(run)

        ended = run.run(say)
    assert any("goes on without site1/worker1: its process is gone" in line for line in said)
    assert "site1/worker1" not in ended.digests and "site2/worker0" in ended.digests
    # Of those two may end in one meeting, at the end, too.
    assert len(rounds_in(given)) in ((7,) if isinstance(policy, str) else (6, 7))


def test_workers_that_computed_on_wait_for_a_server_that_pauses(tmp_path):
    """Now and then all have come to their limit, and their meetings have not ended."""
    policy = dict(name="lpsp", computes_on=True)
    given = parsed(tmp_path, "parameter_server", policy, rounds=16, iteration_s=[[0.05]] * 3)

    def pause(run):
        server = run.processes["central/server"]
        server.send_signal(signal.SIGSTOP)
        time.sleep(1)
        server.send_signal(signal.SIGCONT)

    run_until(given, " of 16", lambda run: threading.Thread(target=pause, args=[run]).start())
    assert len(rounds_in(given)) == 5


def test_a_server_that_is_lost_ends_the_run(tmp_path):
    given = parsed(tmp_path, "parameter_server", rounds=1000, on_loss="continue")
    with pytest.raises(Failed, match="central/server: (its process is gone|silent)"):
        run_until(given, "round 4", lambda run: run.processes["central/server"].kill())


@pytest.mark.parametrize("on_loss", ["stop", "continue"])
def test_a_worker_that_hangs_is_noticed_and_named(tmp_path, on_loss):
    given = parsed(tmp_path, rounds=16, on_loss=on_loss)
    said = []

    def hang(run):
        run.processes["site2/worker0"].send_signal(signal.SIGSTOP)

    begun = time.monotonic()
    if on_loss == "stop":
        with pytest.raises(Failed, match="site2/worker0: silent for"):
            run_until(given, "round 4", hang)
    else:
        run_until(given, "round 4", hang, said)
        assert any("goes on without site2/worker0: silent" in line for line in said)
    assert time.monotonic() - begun < 120


@pytest.mark.parametrize("network", [None, dict(lan=1e9, wan=50e6)])
def test_workers_that_die_and_hang_are_replaced(tmp_path, request, network):
    if network:
        request.getfixturevalue("shaped")
    changes = dict(on_loss="replace", iteration_s=[[0.1]] * 3, network=network)
    given = parsed(tmp_path, "parameter_server", "asp", rounds=120, **changes)
    said = []

    def act(line):
        said.append(line)
        if line.startswith("round 4 "):
            run.processes["site1/worker1"].kill()
        if line.startswith("round 8 "):
            run.processes["site2/worker0"].send_signal(signal.SIGSTOP)

    with Launched(given) as run:
        ended = run.run(act)
    for name, why in (("site1/worker1", "its process is gone"), ("site2/worker0", "silent for")):
        assert any(f"goes on without {name}: {why}" in line for line in said)
        assert f"goes on with {name} again" in said
    if not network:  # there the coordinator keeps no record
        assert ended.digests.keys() == {*given.members} - {"coordinator"}
        assert replayed(ended.record) == 100
    read = (tmp_path / "read.log").read_text().splitlines()
    assert read.count("site1/worker1 site1.pt") == read.count("site2/worker0 site2.pt") == 2


@pytest.mark.parametrize("dds", [None, {}])
def test_a_process_joins_a_run_that_has_begun(tmp_path, dds):
    """With a key and the address of the coordinator, which does not know where it is."""
    keys = dict(keys=str(tmp_path / "keys"), dds=dds)
    changes = dict(on_loss="replace", begin_with=2, iteration_s=[[0.1]] * 3, rounds=40, **keys)
    given = parsed(tmp_path, "parameter_server", "asp", **changes)
    make(given.keys, given.members)
    said, name = [], "site2/worker0"
    launched = Launched(given)
    start = keep_out(launched, name)

    def act(line):
        said.append(line)
        if line.startswith("round 4 "):
            start()

    with launched:
        ended = launched.run(act)
    assert said.index(f"goes on without {name}: it has not come yet") < said.index(
        f"goes on with {name} again"
    )
    assert ended.digests.keys() == {*given.members} - {"coordinator"}
    assert replayed(ended.record) == 100


def test_a_worker_that_keeps_dying_is_given_up(tmp_path):
    limits = dict(replacements=1)
    changes = dict(on_loss="replace", iteration_s=[[0.1]] * 3, limits=limits)
    given = parsed(tmp_path, "parameter_server", "asp", rounds=80, **changes)
    said = []

    def act(line):
        said.append(line)
        if line.startswith("round 4 ") or line == "goes on with site1/worker1 again":
            run.processes["site1/worker1"].kill()

    with Launched(given) as run:
        ended = run.run(act)
    assert said.count("goes on with site1/worker1 again") == 1
    assert "site1/worker1" not in ended.digests and "site1/worker0" in ended.digests


def test_an_iteration_without_an_end_is_noticed_and_named(tmp_path):
    given = parsed(
        tmp_path,
        own=dict(data=f"{SOURCE}:Stalling"),
        limits=dict(compute_s=3.0),
        on_loss="continue",
    )
    said = []
    run_all(given, said.append)
    assert any("without site2/worker0: no iteration finished within 3 s" in line for line in said)
    assert len(rounds_in(given)) == 4


def test_members_are_started_by_hand_on_several_hosts(tmp_path, capsys):
    """From one file; addresses of two hosts, so that there must be keys."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    addresses = {"coordinator": f"tcp://127.0.0.1:{port}", "site2/worker0": "tcp://127.0.0.2:0"}
    file = tmp_path / "run.yaml"
    given = document(tmp_path, rounds=4, addresses=addresses, keys=str(tmp_path / "keys"))
    file.write_text(yaml.safe_dump(given))
    assert command.main([str(file), "--make-keys"]) == 0
    members = settings.read(file).members[1:]
    nodes = [
        fork_server.shared().start(
            name, MAIN, [str(file), "--node", name], tmp_path / f"{name[-1]}{name[4]}.log"
        )
        for name in members
    ]
    try:
        assert command.main([str(file), "--node", "coordinator"]) == 0
        assert "round 4 of 4" in capsys.readouterr().out
        assert [node.wait(60) for node in nodes] == [0, 0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.stdin.close()


def test_who_diverges_is_named(tmp_path):
    given = parsed(tmp_path, own=dict(loss=f"{SOURCE}:diverges"))
    with pytest.raises(Failed, match=r"site\d/worker\d: Diverged: loss is"):
        run_all(given)


class Rogue:
    """A wire on which data leave changed."""

    def __init__(self, wire, change):
        self.wire, self.change = wire, change

    def __getattr__(self, name):
        return getattr(self.wire, name)

    def send(self, to, head, body=b""):
        if head["kind"] == "data":
            head, body = self.change(head, bytes(body))
        self.wire.send(to, head, body)


def not_finite(head, body):
    return head, b"\xff" * len(body)


def too_large(head, body):
    """Finite values, which would destroy the model."""
    return head, np.full(len(body) // 4, 1e30, np.float32).tobytes()


def too_long(head, body):
    return head, body + body


def other_shape(head, body):
    return head | {"sum": head["sum"] | {"shape": [7, 7, 7]}}, body


def no_exchange(head, body):
    return head | {"tag": "x"}, body


@pytest.mark.parametrize("exchange", ["ring", "parameter_server"])
@pytest.mark.parametrize("change", [not_finite, too_large, too_long, other_shape, no_exchange])
def test_poison_puts_its_sender_out_and_the_others_go_on(tmp_path, exchange, change):
    given = parsed(tmp_path, exchange, rounds=4, on_loss="continue")
    culprit, said = "site1/worker1", []
    launched = Launched(given)
    keep_out(launched, culprit)
    with launched:
        wire = launch._wire(launched.settings, culprit)
        wire.connect({"coordinator": launched.wire.address})
        rogue = Node(launched.settings, culprit, Rogue(wire, change))

        def take_part():
            with contextlib.suppress(Exception):
                rogue.run()

        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        ended = launched.run(said.append)
        thread.join(10)
        wire.close(0.0)
    assert any(f"goes on without {culprit}: it sent what cannot be" in line for line in said), said
    assert culprit not in ended.digests
    assert all(value.isfinite().all() for value in model_of(given).values())


def test_strangers_stay_out_of_a_run_with_keys(tmp_path):
    given = parsed(tmp_path, keys=str(tmp_path / "keys"), rounds=4)
    make(given.keys, given.members)
    make(tmp_path / "others", ["site1/worker1"])
    stolen = Keys(tmp_path / "others", "site1/worker1")
    assert stolen.curve() != Keys(given.keys, "site1/worker1").curve()
    launched = Launched(given)
    late = threading.Timer(2.0, keep_out(launched, "site1/worker1"))
    with launched:
        late.start()
        launched.run()
        late.join()
    assert (given.output / "model.pt").is_file()


def test_a_member_that_does_not_come_is_named(tmp_path):
    given = parsed(tmp_path, limits=dict(join_s=6.0))
    launched = Launched(given)
    keep_out(launched, "site2/worker0")
    with launched, pytest.raises(Failed, match="site2/worker0 did not come within 6 s"):
        launched.run()


SHAPED = dict(lan=1e9, wan=50e6)


def the_cable(launched):
    names = launched.links.topology.node_names
    return names.index("site2/switch"), names.index("core")


def test_a_site_that_is_cut_off_for_a_while_changes_nothing(shaped, tmp_path):
    its = dict(network=SHAPED, limits=dict(silence_s=60, meeting_s=200))
    whole, cut = (parsed(tmp_path / name, "hips", **its) for name in ("whole", "cut"))
    run_all(whole)

    def act(run):
        run.links.cut(*the_cable(run))
        time.sleep(1)
        run.links.mend(*the_cable(run))

    run_until(cut, "round 4", act)
    assert same_model(cut, whole)


def test_a_site_that_stays_cut_off_is_named(shaped, tmp_path):
    given = parsed(tmp_path, "hips", network=SHAPED, rounds=100_000)
    with pytest.raises(Failed, match=r"site2/(server|worker0): silent for"):
        run_until(given, "round 4", lambda run: run.links.cut(*the_cable(run)))


@pytest.mark.parametrize(
    "number, said",
    [
        (signal.SIGKILL, "coordinator died of signal 9"),
        (signal.SIGSTOP, "coordinator goes on without anybody"),
    ],
)
def test_without_a_coordinator_all_end(shaped, tmp_path, number, said):
    given = parsed(tmp_path, network=SHAPED, rounds=100_000)
    with Launched(given) as run:

        def act(line):
            if "round 4" in line:
                run.processes["coordinator"].send_signal(number)

        with pytest.raises(Failed, match=said):
            run.run(act)
        for name, process in run.processes.items():
            if name != "coordinator":
                assert process.wait(30) == 1
                assert "the coordinator was silent for 3 s" in run.said(name)


@pytest.mark.parametrize(
    "number, status, network",
    [
        (signal.SIGINT, 130, None),
        (signal.SIGKILL, -signal.SIGKILL, None),
        (signal.SIGINT, 130, SHAPED),
    ],
    ids=["interrupted", "killed", "interrupted on shaped links"],
)
def test_nothing_outlives_the_command(tmp_path, request, number, status, network):
    if network:
        request.getfixturevalue("shaped")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(document(tmp_path, rounds=100_000, network=network)))
    argv = [sys.executable, "-m", launch.PACKAGE, str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        while "round 4 of" not in (line := running.stdout.readline()):
            assert line, "it ended"
        names = descendants(running.pid)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (running.pid, *names)]
        running.send_signal(number)
        running.stdout.read()
        assert running.wait(60) == status
    assert {"site1/worker0", "site1/worker1", "site2/worker0"} <= {*names.values()}
    # All are forks of the command, and import nothing anew; links have processes of their own.
    assert network or len(set(commands)) == 1
    all_end(names, 60)


def test_members_share_no_sockets(tmp_path):
    held = []

    def look(run):
        pids = [process.pid for process in run.processes.values()]
        held.extend(handles(pid) for pid in (*pids, fork_server.shared().pid))

    run_until(parsed(tmp_path), "round 4 of", look)
    assert len(held) >= 4 and all(held)
    once = held[:4]
    assert len(set().union(*once)) == sum(map(len, once))


def handles(pid):
    """Sockets and pipes that a process has open."""
    found = {os.readlink(at) for at in Path(f"/proc/{pid}/fd").iterdir()}
    return {name for name in found if name.startswith(("socket:", "pipe:"))}


@pytest.mark.parametrize("field", ["output", "state"])
def test_a_second_run_in_the_same_folder_is_refused(tmp_path, field):
    """While the first goes on, and no longer."""
    folders = dict(output=str(tmp_path / "out"), state=str(tmp_path / "state"))
    first = parsed(tmp_path, rounds=4, **folders)
    other = parsed(
        tmp_path, rounds=4, **{f: f"{its}2" for f, its in folders.items()} | {field: folders[field]}
    )
    refused = []

    def begin(line):
        if "round 0" in line:
            with pytest.raises(ValueError, match=f"{field}: another run is going on in") as error:
                run_all(other)
            refused.append(error)

    run_all(first, begin)
    assert refused
    if field == "output":
        run_all(other)


def test_an_output_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="output: .*out is no folder to write to"):
        run_all(parsed(tmp_path))


def test_functions_find_their_neighbours(tmp_path, monkeypatch):
    """Modules beside their file, as where it is run itself, and those of the working directory."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/only_neighbour.py").write_text("from torch.nn.functional import mse_loss\n")
    (tmp_path / "beside/mine.py").write_text("from only_neighbour import mse_loss\n")
    (tmp_path / "only_here.py").write_text("from torch.nn.functional import l1_loss\n")
    monkeypatch.chdir(tmp_path)
    for reference in ("beside/mine.py:mse_loss", "only_here:l1_loss"):
        assert callable(tasks.named("loss", reference))


@pytest.mark.parametrize(
    "change, said",
    [
        (dict(data="none.py:batches"), "own.data: none.py cannot be imported"),
        (dict(loss=f"{SOURCE}:nothing"), "own.loss: .* has no function 'nothing'"),
        (dict(loss=f"{SOURCE}:not_a_function"), "has no function 'not_a_function'"),
    ],
)
def test_functions_that_are_not_there_are_named(tmp_path, change, said):
    with pytest.raises(ValueError, match=said):
        tasks.make(parsed(tmp_path, own=change), 0)


def test_functions_without_a_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="loss: <function .* has no name"):
        own._reference("loss", lambda a, b: a)
    with pytest.raises(ValueError, match="loss: <bound method Owner.loss .* has no name"):
        own._reference("loss", odd_training.Owner().loss)
    with pytest.raises(ValueError, match="own.loss: must be module:name"):
        parsed(tmp_path, own=dict(loss="cross_entropy"))


def test_a_run_inside_a_worker_is_refused(monkeypatch):
    monkeypatch.setattr(tasks, "loading", True)
    with pytest.raises(RuntimeError, match="__main__"):
        slowlink.run(None, None, None, None, {})
