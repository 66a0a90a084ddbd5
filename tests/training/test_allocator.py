"""Memory that a process frees stays its own."""

import os
import subprocess
import sys

import pytest

STEPS, BATCH, LENGTH, WORDS = 30, 16, 35, 2000
SCRIPT = f"""
import resource, sys, torch
from slowlink.testbed.training import models
from slowlink.testbed.training.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
torch.set_num_threads(1)
model = models.make("lstm", words={WORDS}, embedding=100, hidden=100)
tokens = torch.arange({BATCH} * {LENGTH}).view({BATCH}, {LENGTH})
def step():
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(tokens), tokens.flatten()).backward()
for _ in range(15):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    return int(made.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    # At least the words' scores and their gradient are freed and made anew in every step. How much
    # of it the system gives anew if it is not told depends on the step's course: by no means all.
    fresh = STEPS * 2 * 4 * BATCH * LENGTH * WORDS / os.sysconf("SC_PAGE_SIZE")
    kept = faults("kept")
    assert 10 * kept < fresh
    assert kept < faults("as it is")
