"""DDS domains for tests; a module of its own."""

import contextlib

from cyclonedds.domain import DomainParticipant

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds import wire as dds_wire
from slowlink.testbed.live.dds.domain import DomainConfig, connect, draw
from slowlink.testbed.live.dds.wire import DdsWire
from slowlink.testbed.live.identity import Keys


@contextlib.contextmanager
def wires(names, folder, monkeypatch):
    """Makes wires of members of these names in one domain, whose keys, in this folder, are known to
    each other; all are closed at the end. ``make.participant()`` is a stranger's."""
    identity.make(folder, names)
    domain, network = draw(), DomainConfig(lease_s=1.0)
    entered = connect(domain, network)  # a process may do so only once
    monkeypatch.setattr(dds_wire, "connect", lambda domain, *_: DomainParticipant(domain))
    with contextlib.ExitStack() as stack:

        def make(name, run="one", **options):
            options = dict(keys=Keys(folder, name), heartbeat_s=0.1) | options
            wire = DdsWire(name, domain, network, run, names, **options)
            stack.callback(wire.close, 0.0)
            return wire

        make.participant = lambda: DomainParticipant(domain)
        yield make
    del entered


def meet(one, other):
    """Let two members be connected with each other."""
    one.connect({other.name: other.address})
    other.connect({one.name: one.address})
