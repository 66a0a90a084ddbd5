"""Membership without sockets: schedulers and made-up nodes in virtual time."""

from collections import deque
from dataclasses import replace

import pytest

from slowlink.testbed.live.hips.messages import (
    GLOBAL_SCHEDULER,
    Message,
    scheduler_of,
    site_of,
    succeeding,
)
from slowlink.testbed.live.hips.scheduler import GlobalScheduler, SiteScheduler, where_to_begin

CENTRE = ["central/server", "central/master"]
SITE1 = ["site1/server", "site1/worker0", "site1/worker1"]
SITE2 = ["site2/server", "site2/worker0"]
NODES = [*CENTRE, *SITE1, *SITE2]
SERVERS = ["central/server", "site1/server", "site2/server"]
TIMEOUT, START, REJOIN = 5.0, 30.0, 20.0


class World:
    """Carries messages at once, in order; time passes when told. Who is dead or cut hears nothing
    and says nothing."""

    def __init__(self, on_loss="stop", expected=NODES, independent=False):
        self.now, self.lines, self.lives = 100.0, deque(), 0
        self.dead, self.cut = set(), set()
        self.ended: dict[str, str] = {}
        self.epochs: dict[str, list[Message]] = {}
        self.rounds = {node: [] for node in NODES}
        self.known: dict[str, tuple[int, str]] = {}
        patience = TIMEOUT if on_loss == "stop" else REJOIN
        self.top = GlobalScheduler(
            NODES, expected, SERVERS, on_loss, independent, TIMEOUT, START, REJOIN
        )
        self.schedulers = {GLOBAL_SCHEDULER: self.top}
        for site in ("central", "site1", "site2"):
            name = f"{site}/scheduler"
            self.schedulers[name] = SiteScheduler(name, TIMEOUT, START, patience)
        for node in expected:
            self.start(node)

    def start(self, node):
        self.lives += 1
        self.dead.discard(node)
        self.known[node] = (self.lives, f"tcp://host:{self.lives}")
        self.epochs[node] = []
        self.register(node)

    def register(self, node):
        life, address = self.known[node]
        number = self.epochs[node][-1].epoch if self.epochs[node] else 0
        body = dict(node=node, address=address, life=str(life))
        self.send(node, scheduler_of(node), Message("register", epoch=number, body=body))

    def send(self, source, destination, message):
        self.lines.append((source, destination, replace(message, sender=source)))

    def reach(self, source, destination):
        apart = {site_of(source), site_of(destination)}
        if self.cut & apart and len(apart) > 1:
            return False
        return not self.dead & {source, destination}

    def deliver(self):
        while self.lines:
            source, destination, message = self.lines.popleft()
            if not self.reach(source, destination):
                continue
            if destination in self.schedulers:
                for to, its in self.schedulers[destination].on(message):
                    self.send(destination, to, its)
            elif message.kind == "members":
                answer = Message("ready", epoch=message.epoch)
                rounds = self.rounds[destination]
                lineages = rounds if isinstance(rounds, dict) else dict.fromkeys(rounds, "")
                body = {"rounds": {str(number): its for number, its in lineages.items()}}
                self.send(destination, source, replace(answer, body=body))
            elif message.kind == "epoch":
                self.epochs[destination].append(message)
            elif message.kind == "left":
                self.register(destination)
            elif message.kind == "stop":
                self.ended[destination] = message.body["reason"]

    def run(self, seconds, step=0.25):
        for _ in range(round(seconds / step)):
            self.now += step
            for name, scheduler in self.schedulers.items():
                if name not in self.dead and not scheduler.finished:
                    for to, its in scheduler.tick(self.now):
                        self.send(name, to, its)
            for node in self.known:
                if node not in self.ended:
                    self.send(node, scheduler_of(node), Message("heartbeat"))
            for name, scheduler in self.schedulers.items():
                if name != GLOBAL_SCHEDULER and not scheduler.finished:
                    self.send(name, GLOBAL_SCHEDULER, Message("heartbeat"))
                    if not self.top.finished:
                        self.send(GLOBAL_SCHEDULER, name, Message("heartbeat"))
            self.deliver()

    def last(self, node):
        return self.epochs[node][-1]

    def members(self, node="central/server"):
        return [name for group in self.last(node).body["members"].values() for name in group]


def running(**options):
    world = World(**options)
    world.run(2)
    return world


def test_the_first_epoch_waits_for_all_and_names_everybody_in_order():
    world = World(expected=NODES)
    world.dead.add("site2/worker0")
    world.lines.clear()
    world.run(10)
    assert not any(world.epochs.values())
    world.dead.clear()
    world.run(2)
    for node in NODES:
        (epoch,) = world.epochs[node]
        assert (epoch.epoch, epoch.body["round"]) == (1, 0)
        assert epoch.body["members"] == {"central": CENTRE, "site1": SITE1, "site2": SITE2}
        assert epoch.body["addresses"] == {n: at for n, (_, at) in world.known.items()}


def test_who_does_not_come_to_the_start_is_named():
    world = World()
    world.dead = {"site1/worker1", "site2/worker0"}
    world.run(START + 2)
    reason = "not there after 30 s: site1/worker1, site2/worker0"
    assert world.top.reason == reason
    assert set(world.ended.values()) == {reason}
    assert set(world.ended) == set(NODES) - world.dead


@pytest.mark.parametrize("victim", NODES)
def test_a_loss_stops_all_with_the_name_within_the_timeout(victim):
    world = running()
    world.dead.add(victim)
    world.run(TIMEOUT + 0.5)
    assert world.top.reason == f"lost {victim}: silent for 5 s"
    assert world.ended == dict.fromkeys(set(NODES) - {victim}, world.top.reason)


@pytest.mark.parametrize("victim", NODES)
def test_a_loss_goes_on_without_who_cannot_take_part(victim):
    world = running(on_loss="continue")
    world.dead.add(victim)
    world.run(TIMEOUT + 2)
    without = (
        set(SITE2) if victim in SITE2 else set(SITE1) if victim == "site1/server" else {victim}
    )
    if victim in CENTRE:
        assert world.top.reason == f"lost {victim}: silent for 5 s"
    else:
        assert not world.ended
        assert world.members() == [node for node in NODES if node not in without]
        assert world.last("central/server").epoch == 2


def test_losses_together_make_one_epoch():
    world = running(on_loss="continue")
    world.dead |= {"site1/worker0", *SITE2}
    world.run(TIMEOUT + 2)
    assert world.last("central/server").epoch == 2
    assert world.members() == [*CENTRE, "site1/server", "site1/worker1"]


def test_without_any_worker_all_stops():
    world = running(on_loss="continue")
    world.dead |= {"site1/worker0", "site1/worker1", "site2/server"}
    world.run(TIMEOUT + 2)
    assert world.top.reason.startswith("no worker remains: lost site1/worker0: silent")


@pytest.mark.parametrize("on_loss", ["continue", "wait"])
def test_a_restarted_worker_is_back_with_the_next_epoch(on_loss):
    world = running(on_loss=on_loss)
    world.rounds |= dict.fromkeys(NODES, [6, 7])
    world.dead.add("site1/worker0")
    world.run(TIMEOUT + 2)
    assert world.last("central/server").epoch == (2 if on_loss == "continue" else 1)
    world.rounds["site1/worker0"] = [5, 6]  # from disk
    world.start("site1/worker0")
    world.run(2)
    assert world.members() == NODES
    assert world.last("site1/worker0").epoch == world.last("central/server").epoch > 1
    assert {world.last(node).body["round"] for node in NODES} == {6}


def test_a_worker_restarted_before_its_loss_was_seen_makes_a_new_epoch():
    world = running(on_loss="continue")
    world.start("site1/worker0")
    world.run(2)
    assert world.last("site1/worker0").epoch == 2
    assert world.members() == NODES


def test_waiting_ends():
    world = running(on_loss="wait")
    world.dead.add("site1/worker0")
    world.run(TIMEOUT + REJOIN - 1)
    assert not world.ended
    world.run(3)
    reason = "lost site1/worker0: silent for 5 s; it did not come back in 20 s"
    assert world.top.reason == reason
    assert set(world.ended) == set(NODES) - {"site1/worker0"}


@pytest.mark.parametrize("on_loss", ["continue", "wait"])
def test_a_site_that_was_cut_off_comes_back(on_loss):
    world = running(on_loss=on_loss)
    world.cut.add("site2")
    world.run(TIMEOUT + 2)
    assert not world.ended
    world.cut.clear()
    world.run(3)
    assert not world.ended
    assert world.members() == NODES
    assert len({world.last(node).epoch for node in NODES}) == 1
    assert world.last("site2/worker0").epoch == (3 if on_loss == "continue" else 2)


def test_a_site_that_stays_cut_off_ends_and_says_why():
    world = running(on_loss="continue")
    world.cut.add("site2")
    world.run(REJOIN + 1)
    reason = "site2/scheduler: lost global/scheduler: silent for 20 s"
    assert world.ended == dict.fromkeys(SITE2, reason)


def test_a_site_is_lost_with_its_scheduler():
    world = running()
    world.dead.add("site2/scheduler")
    world.run(TIMEOUT + 0.5)
    assert world.top.reason == "lost site2/server: of site2/scheduler: silent for 5 s"


def test_without_the_global_scheduler_all_end_within_the_timeout():
    world = running()
    world.dead.add(GLOBAL_SCHEDULER)
    world.run(TIMEOUT + 0.5)
    assert set(world.ended) == set(NODES)
    assert "lost global/scheduler: silent for 5 s" in world.ended["site1/worker0"]


def test_another_global_scheduler_cannot_take_over():
    world = running(on_loss="continue")
    world.top = GlobalScheduler(NODES, NODES, SERVERS, "continue", False, TIMEOUT, START, REJOIN)
    world.schedulers[GLOBAL_SCHEDULER] = world.top
    for node in NODES:
        world.send(node, scheduler_of(node), Message("leave"))
    world.run(1)
    for node in NODES:
        world.register(node)
    world.run(2)
    assert world.top.reason == "global/scheduler was replaced, and the membership with it is lost"


def test_a_scheduler_that_was_held_up_blames_nobody():
    world = running()
    for _ in range(3):
        world.now += 3 * TIMEOUT
        world.run(1)
    assert not world.ended and world.members() == NODES


def test_leaving_is_no_loss():
    world = running()
    world.send("site1/worker0", "site1/scheduler", Message("leave"))
    world.known.pop("site1/worker0")
    world.run(TIMEOUT + 2)
    assert not world.ended
    assert world.members() == [node for node in NODES if node != "site1/worker0"]


def test_a_late_node_joins():
    world = running(expected=[node for node in NODES if node != "site1/worker1"])
    assert "site1/worker1" not in world.members()
    world.rounds |= dict.fromkeys(world.members(), [3, 4])
    world.start("site1/worker1")
    world.run(2)
    assert world.members("site1/worker1") == NODES
    assert world.last("site1/worker1").body["round"] == 4


def test_a_failure_stops_whatever_losses_may_do():
    world = running(on_loss="continue")
    failed = Message("failed", body={"reason": "loss is nan"})
    world.send("site1/worker0", "site1/scheduler", failed)
    world.run(1)
    assert world.top.reason == "site1/worker0 failed: loss is nan"
    assert set(world.ended) == set(NODES)


def test_the_end_comes_with_the_masters_word():
    world = running()
    world.send("site1/worker0", "site1/scheduler", Message("done", epoch=1))
    world.run(1)
    assert not world.ended
    world.send("central/master", "central/scheduler", Message("done", epoch=1))
    world.run(1)
    assert world.ended == dict.fromkeys(NODES, "")
    assert all(scheduler.finished for scheduler in world.schedulers.values())


def test_a_change_while_members_stand_by_asks_again():
    world = running(on_loss="continue")
    world.rounds["site1/worker0"] = [9]
    top, present = world.top, dict(world.top._present)
    assert (
        top.on(Message("left", "site2/scheduler", body={"node": "site2/worker0", "reason": ""}))
        == []
    )
    asked = top.tick(world.now + 0.4)
    assert {message.kind for _, message in asked} == {"members"}
    number = asked[0][1].epoch
    top.on(Message("left", "site1/scheduler", body={"node": "site1/worker1", "reason": ""}))
    again = top.tick(world.now + 0.8)
    assert {message.epoch for _, message in again} == {number + 1}
    for node in present:
        ready = Message("ready", scheduler_of(node), number, body={"node": node, "rounds": {}})
        assert top.on(ready) == []  # to the question before


def test_in_mixed_mode_each_site_has_its_own_round():
    world = running(independent=True, on_loss="continue")
    world.rounds |= dict.fromkeys(CENTRE[:1], [40, 41])
    world.rounds |= dict.fromkeys(SITE1, [10, 11]) | dict.fromkeys(SITE2, [29, 30])
    world.dead.add("site1/worker1")
    world.run(TIMEOUT + 2)
    rounds = {"central": 41, "site1": 11, "site2": 30}
    for node in set(NODES) - {"site1/worker1"}:
        assert world.last(node).body["rounds"] == rounds
        assert world.last(node).body["round"] == rounds[site_of(node)]


@pytest.mark.parametrize(
    "rounds, begin",
    [
        ({}, 0),
        ({"s": [], "a": [], "b": []}, 0),
        ({"s": [4, 5], "a": [4, 5], "b": [4, 5]}, 5),
        ({"s": [5, 6], "a": [5, 6], "b": [4, 5]}, 5),
        ({"s": [4, 5], "a": [5, 6], "b": [5, 6]}, 5),
        ({"s": [5, 6], "a": [5, 6], "b": []}, 6),  # b is new
        ({"s": [5, 6], "a": [5, 6], "b": [1, 2]}, 6),  # b was away for long
        ({"s": [], "a": [5, 6], "b": [4, 5]}, 5),
        ({"s": [7, 8], "a": [1], "b": [1]}, 8),  # what the server has no state of cannot be
        # Rounds of another history do not count, whoever has them:
        ({"s": {4: "x", 5: "y"}, "a": {4: "x", 5: "z"}, "b": {4: "x", 5: "z"}}, 4),
        ({"s": {5: "y", 6: "y"}, "a": {4: "x", 5: "z"}, "b": {5: "y", 6: "y"}}, 6),
    ],
)
def test_where_to_begin(rounds, begin):
    named = {
        node: its if isinstance(its, dict) else {number: f"round {number}" for number in its}
        for node, its in rounds.items()
    }
    assert where_to_begin(named, ["s"]) == (begin, named.get("s", {}).get(begin) or ANY[begin])


ANY = {0: "", 5: "round 5"}


def test_lineages_follow_from_all_epochs_members_and_rounds_before():
    members = {"site1": SITE1, "site2": SITE2}
    once = succeeding("", 1, members)
    others = (
        succeeding("", 2, members),
        succeeding("", 1, {"site1": SITE1}),
        succeeding(once, 1, members),
    )
    assert once == succeeding("", 1, dict(reversed(members.items())))
    assert len({once, *others}) == 4


@pytest.mark.parametrize("independent", [False, True])
def test_who_begins_anew_is_named(independent):
    world = running(on_loss="continue", independent=independent)
    world.rounds |= dict.fromkeys(world.members(), {6: "x", 7: "y"})
    world.rounds["central/master"] = {}
    for node, rounds in (("site1/worker0", {}), ("site2/server", {7: "z"})):
        world.rounds[node] = rounds
        world.start(node)
    world.run(2)
    body = world.last("site2/worker0").body
    begin = {"central": 7, "site1": 7, "site2": 7}
    assert (body["rounds"], body["anew"]) == (
        (begin, ["site1/worker0"] + ["site2/worker0"])
        if independent
        else (begin, ["site1/worker0", "site2/server"])
    )
    assert (body["round"], body["lineage"]) == (7, "z" if independent else "y")


@pytest.mark.parametrize("unseen", [False, True], ids=["while asking", "while running"])
def test_a_replaced_site_scheduler_makes_a_new_epoch(unseen):
    world = running(on_loss="continue")
    if not unseen:  # dies with the question that it was to pass on
        world.dead.add("site1/worker1")
        world.run(TIMEOUT + 0.25)
        assert world.top.tick(world.now + 0.4) and world.top._asking
    fresh = SiteScheduler("site2/scheduler", TIMEOUT, START, REJOIN)
    world.schedulers["site2/scheduler"] = fresh
    before = world.last("central/server").epoch
    world.run(TIMEOUT + 2)
    there = [node for node in NODES if node not in world.dead]
    assert world.members() == there and not world.top._asking
    assert {world.last(node).epoch > before for node in there} == {True}


def test_a_replaced_site_scheduler_does_not_hide_who_died_with_the_one_before():
    world = running(on_loss="continue")
    world.dead.add("site1/worker1")
    world.schedulers["site1/scheduler"] = SiteScheduler("site1/scheduler", TIMEOUT, START, REJOIN)
    world.run(TIMEOUT + 2)
    assert world.members() == [node for node in NODES if node != "site1/worker1"]


def test_a_global_scheduler_that_is_gone_is_not_waited_for():
    world = running(on_loss="continue")
    world.dead.add(GLOBAL_SCHEDULER)
    for name in world.schedulers.keys() - {GLOBAL_SCHEDULER}:
        gone = Message("left", GLOBAL_SCHEDULER, body={"reason": "its process is gone"})
        for to, its in world.schedulers[name].on(gone):
            world.send(name, to, its)
    world.deliver()
    assert set(world.ended) == set(NODES)
    assert world.ended["site1/server"].endswith("lost global/scheduler: its process is gone")


@pytest.mark.parametrize("node", CENTRE)
def test_all_stops_when_the_centre_leaves(node):
    world = running(on_loss="continue")
    world.send(node, "central/scheduler", Message("leave"))
    world.known.pop(node)
    world.run(1)
    assert world.top.reason == f"{node} has left, and nothing goes on without it"
    assert set(NODES) - {node} <= set(world.ended)


def test_a_node_counts_for_its_own_scheduler_alone():
    world = running(on_loss="continue")
    body = dict(node="site2/worker0", address="tcp://host:1", life="x")
    for to in ("site1/scheduler", GLOBAL_SCHEDULER):
        for kind in ("register", "leave", "failed", "stop", "epoch"):
            world.send("site2/worker0", to, Message(kind, epoch=1, body=body))
    world.run(2)
    assert not world.ended and world.last("central/server").epoch == 1
