"""A mistake in the code flips the verdicts that rest on it: experiments run whole, and are judged.

That other *results* flip every claim that holds, or make the report call it weak, is asked of all
claims elsewhere (``tests/reports/test_verdicts.py``); here one mistake of each kind starts where it
would be made: in an exchange, a plan, a policy, a clock, a codec.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

from slowlink.methods import exchange, synchronization
from slowlink.methods.compression import bisparse
from slowlink.methods.compression.pieces import sampling
from slowlink.reports import verdicts
from slowlink.testbed import prices, results
from slowlink.testbed.training.stragglers import Fixed
from slowlink.workflow import settings
from slowlink.workflow.jobs import Jobs
from slowlink.workflow.scripts import experiment
from slowlink.workflow.verdicts import claims_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs():
    return Jobs(settings.load({"scale": "smoke"}, names=False), settings.wings())


@pytest.fixture(scope="module")
def judged(jobs):
    """By claim, the verdict on what an experiment makes of the code as it is at this moment."""

    def judge(wing: str, name: str, claims: set[str]) -> dict[str, str]:
        made = experiment.rows(jobs.all[wing, name].params, [], lambda message: None)
        recipe = jobs.settings.recipes[wing].model_dump(mode="json")
        every = claims_of(settings.wing_of(wing))
        table = verdicts.judge(every, results.frame(made), recipe, "smoke", claims)
        return dict(zip(table["id"], table["verdict"], strict=True))

    return judge


def swapped(room, name, other):
    """Whoever asks for one method gets another."""

    def tamper(patch):
        load = room.load
        given = {name: lambda **options: load(other)}
        patch.setattr(room, "load", lambda one, **told: given.get(one, partial(load, one))(**told))

    return tamper


def nobody_waits(patch):
    build = exchange.PlanBuilder.build

    def without_dependencies(self, *args, **named):
        plan = build(self, *args, **named)
        return dataclasses.replace(plan, dep_ptr=np.zeros_like(plan.dep_ptr), dep_idx=[])

    patch.setattr(exchange.PlanBuilder, "build", without_dependencies)


def slower_workers(patch):
    patch.setattr(Fixed, "__call__", lambda self, worker, *when: 1.1 * self.times[worker])


def one_in_a_hundred_more(patch):
    share = sampling.share_of_any
    patch.setattr(sampling, "share_of_any", lambda n, ratio: share(n, ratio + 0.01))


def every_tensor_sparse(patch):
    patch.setattr(bisparse.BiSparse, "sparse", lambda self, n: self.most(n) >= 1)


SPARSE = {"DDS-FL-fp32_sparse-MB", "DDS-FL-int8_sparse-MB"}
MISTAKES = {
    "another exchange": ("rat", "table1", swapped(exchange, "rat", "ring"), {"RAT-O3"}),
    "a dependency dropped": ("rat", "chain_blocking", nobody_waits, {"RAT-E3"}),
    "another policy": ("lpsp", "example", swapped(synchronization, "bsp", "asp"), {"LPSP-X02"}),
    "a time scaled": ("lpsp", "example", slower_workers, {"LPSP-X02"}),
    "a bound left out": ("geomx", "table2", every_tensor_sparse, {"GEO-T2-G155B-up"}),
    "more values kept": ("dds", "federated_bytes", one_in_a_hundred_more, SPARSE),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_flips_the_claims_that_rest_on_it(mistake, judged, monkeypatch):
    wing, name, tamper, claims = MISTAKES[mistake]
    assert set(judged(wing, name, claims).values()) == {"holds"}
    monkeypatch.setattr(prices, "_known", {})  # what is simulated is kept by the plan's name
    tamper(monkeypatch)
    assert set(judged(wing, name, claims).values()) == {"fails"}
