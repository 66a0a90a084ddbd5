"""LPSP §3.2: how the work of a decision grows with the workers, counted on its numbers."""

import math
from collections import Counter

import pytest

from slowlink.methods import synchronization
from slowlink.methods.synchronization import Finished


class Counted(float):
    """A float that counts what is done with it."""

    done: Counter = Counter()


def _counted(name):
    plain = getattr(float, name)

    def operation(self, other):
        Counted.done[name.strip("_").removeprefix("r")] += 1
        result = plain(self, other)
        return result if isinstance(result, bool) else Counted(result)

    return operation


for _name in ("add", "sub", "mul", "truediv", "radd", "rsub", "rmul", "rtruediv"):
    setattr(Counted, f"__{_name}__", _counted(f"__{_name}__"))
for _name in ("lt", "gt", "le", "ge"):
    setattr(Counted, f"__{_name}__", _counted(f"__{_name}__"))


def gathering(workers: int):
    """LPSP with all but one of ``workers`` candidates, who tolerate any wait; the last computes."""
    policy = synchronization.load("lpsp", p_min=0.5, p_max=math.inf, s=math.inf)
    policy.begin([0] * workers)
    for worker in range(workers - 1):
        policy.on(Finished(worker, 1, Counted(1 + worker / workers)))
    return policy


def count(act) -> Counter:
    Counted.done = Counter()
    act()
    return Counted.done


SIZES = [8, 64, 512]


@pytest.mark.parametrize("workers", SIZES)
def test_a_worker_needs_two_operations_besides_finding_the_fastest(workers):
    policy = gathering(workers)
    done = count(lambda: policy._index(0, 2))
    # The fastest of the workers - 1 who have finished an iteration.
    assert done == {"lt": workers - 2, "mul": 1, "truediv": 1}


@pytest.mark.parametrize("decision", ["next", "breaks the limit"])
def test_a_decision_of_the_server_grows_at_most_with_the_workers(decision):
    totals = []
    for workers in SIZES:
        policy = gathering(workers)
        if decision == "breaks the limit":
            policy.s = 0.0
        event = Finished(workers - 1, 1, Counted(2.0))
        totals.append(count(lambda p=policy, e=event: p.on(e)).total())
    a_worker = [total / workers for total, workers in zip(totals, SIZES, strict=True)]
    assert totals[0] >= SIZES[0]  # it is counted
    assert max(a_worker[1:]) <= a_worker[0]
