"""Numbered messages for tests of wires, and what of them has come."""

import time


def data(number):
    return dict(kind="data", mine=number)


def numbers(received):
    return [one.head["mine"] for one in received]


def receive(wire, count, timeout_s=20.0):
    """The next ``count`` messages but heartbeats."""
    found, end = [], time.monotonic() + timeout_s
    while len(found) < count:
        received = wire.receive(max(0.0, end - time.monotonic()))
        assert received is not None, f"only {len(found)} of {count} messages came"
        if received.kind != "heartbeat":
            found.append(received)
    return found
