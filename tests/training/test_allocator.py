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
    # With a threshold that is said, glibc maps every larger block anew; by itself it learns during
    # the run which sizes come back, and on some machines it learns enough.
    surroundings = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        capture_output=True,
        text=True,
        check=True,
        env=surroundings,
    )
    return int(made.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    # At least the words' scores and their gradient are freed and made anew in every step.
    fresh = STEPS * 2 * 4 * BATCH * LENGTH * WORDS / os.sysconf("SC_PAGE_SIZE")
    assert faults("as it is") >= fresh
    assert 10 * faults("kept") < fresh
