"""Policies on worked examples: only times and counts, no model."""

import pytest

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Continue, Finished, Joined, Left, Sync, Synced, Wait


def play(policy, groups, durations, sync_s, until):
    """A tiny engine: worker w computes for durations[w]; a synchronization takes ``sync_s``.

    Returns the synchronizations as (start, members), the iterations finished by each worker and
    the time each of them waited for others to finish.
    """
    queue, order = [], 0
    started, finished, waited = [], [0] * len(groups), [0.0] * len(groups)
    done_at = {}

    def apply(decisions, t):
        nonlocal order
        for decision in decisions:
            order += 1
            if isinstance(decision, Continue):
                worker = decision.worker
                event = Finished(worker, finished[worker] + 1, t + durations[worker])
                queue.append((t + durations[worker], order, event))
            elif isinstance(decision, Sync):
                started.append((t, decision.members))
                for member in decision.members:
                    waited[member] += t - done_at[member]
                queue.append((t + sync_s, order, Synced(decision.members, t + sync_s)))

    apply(policy.begin(groups), 0.0)
    while queue:
        queue.sort(key=lambda item: item[:2])
        t, _, event = queue.pop(0)
        if t > until:
            break
        if isinstance(event, Finished):
            finished[event.worker] += 1
            done_at[event.worker] = t
        apply(policy.on(event), t)
    return started, finished, waited


def test_bsp_waits_for_the_slowest_every_round():
    durations = [1.8, 3.6, 2.5, 1.5]
    policy = synchronization.load("bsp")
    started, finished, waited = play(policy, [0, 0, 0, 0], durations, 0.0, until=3 * 3.6 + 0.1)
    assert [t for t, _ in started] == pytest.approx([3.6, 7.2, 10.8])
    assert all(members == (0, 1, 2, 3) for _, members in started)
    assert finished == [3, 3, 3, 3]
    # LPSP §2 prints this example: BSP meets last at 10.8 after 15 s of waiting in total.
    assert sum(waited) == pytest.approx(15.0)


def test_mixed_lets_a_fast_site_go_on():
    policy = synchronization.load("mixed")
    started, finished, _ = play(policy, [0, 0, 1], [1.0, 2.0, 5.0], 0.5, until=10.0)
    fast = [t for t, members in started if members == (0, 1)]
    slow = [t for t, members in started if members == (2,)]
    assert fast == pytest.approx([2.0, 4.5, 7.0, 9.5])
    assert slow == pytest.approx([5.0])
    assert finished[0] == finished[1] == 4


def test_mixed_with_one_site_is_bsp():
    durations = [1.0, 2.0, 1.5]
    mixed = play(synchronization.load("mixed"), [0, 0, 0], durations, 0.25, until=9.0)
    bsp = play(synchronization.load("bsp"), [0, 0, 0], durations, 0.25, until=9.0)
    assert mixed == bsp


@pytest.mark.parametrize("name", ["bsp", "mixed"])
def test_nobody_waits_for_a_worker_that_left(name):
    policy = synchronization.load(name)
    policy.begin([0, 0, 0])
    assert policy.on(Finished(0, 1, 1.0)) == [Wait(0)]
    assert policy.on(Finished(1, 1, 1.0)) == [Wait(1)]
    assert policy.on(Left(2, 2.0)) == [Sync((0, 1))]
    assert policy.on(Synced((0, 1), 3.0)) == [Continue(0), Continue(1)]


@pytest.mark.parametrize("name", ["bsp", "mixed"])
def test_a_worker_that_joins_computes_and_is_waited_for(name):
    policy = synchronization.load(name)
    policy.begin([0, 0])
    policy.on(Left(1, 0.5))
    assert policy.on(Finished(0, 1, 1.0)) == [Wait(0), Sync((0,))]
    assert policy.on(Joined(1, 1.5)) == [Continue(1)]
    assert policy.on(Finished(0, 2, 2.0)) == [Wait(0)]
    assert policy.on(Finished(1, 1, 3.0)) == [Wait(1), Sync((0, 1))]
