"""Numbered messages for tests of wires, what of them has come, and who may take part no more."""

import time

from slowlink.testbed.live.identity import MEMBERS


def data(number):
    return dict(kind="data", mine=number)


def numbers(received):
    return [one.head["mine"] for one in received]


def receive(wire, count):
    """The next ``count`` messages but heartbeats."""
    found, end = [], time.monotonic() + 20.0
    while len(found) < count:
        received = wire.receive(max(0.0, end - time.monotonic()))
        assert received is not None, f"only {len(found)} of {count} messages came"
        if received.kind != "heartbeat":
            found.append(received)
    return found


def strike_off(folder, name):
    """Take a member off the list of these keys; returns the list as it was."""
    file = folder / MEMBERS
    before = file.read_text()
    lines = before.splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(f"{name} ")))
    return before
