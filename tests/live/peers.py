"""What test ranks do; a module of its own, because ranks import it by name."""

import os
import signal
import time
from datetime import timedelta


def answer(value, rank, tell):
    return value * rank


def die(rank, tell):
    tell("about to die")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise ConnectionError("nobody there")


def hang(rank, tell):
    tell("hanging")
    time.sleep(600)


def lose(rank, tell):
    raise ConnectionError("nobody there")


def lose_while_another_talks(rank, tell):
    if rank == 0:
        raise ConnectionError("nobody there")
    while True:
        tell("talking")
        time.sleep(0.1)


def fail_late(rank, tell):
    """Rank 1 is to blame, but rank 0 reports first that it lost contact."""
    if rank == 1:
        time.sleep(0.5)
        raise OSError("disk full")
    raise ConnectionError("nobody there")


def combine(port, jobs, rank, tell):
    """Each job's payloads (one a rank) as they combine over gloo; an error as its text."""
    import torch.distributed as dist  # here: the other functions start faster without

    from slowlink.methods import compression
    from slowlink.torch import messenger
    from slowlink.torch.wire import ProcessGroup

    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(jobs[0][0]))
    wire = ProcessGroup()
    answers = []
    for payloads, how, ordered in jobs:
        codec = compression.load(payloads[0].codec)
        try:
            flight = wire.begin([payloads[rank]], [how], ["key"], ordered=ordered)
            (arrived,), _ = flight.wait()
            answers.append(messenger.combine(arrived, how, codec, "key"))
        except ValueError as error:
            answers.append(str(error))
    return answers
