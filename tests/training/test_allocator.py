"""Memory that a process frees stays its own."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from slowlink.testbed.training import models
from slowlink.testbed.training.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
torch.set_num_threads(1)
model = models.make("lstm", words=2000, embedding=100, hidden=100)
tokens = torch.arange(16 * 35).view(16, 35)
def step():
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(tokens), tokens.flatten()).backward()
for _ in range(15):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    return int(made.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    assert 10 * faults("kept") < faults("as it is")
