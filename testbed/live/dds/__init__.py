"""Processes that exchange messages over Eclipse Cyclone DDS.

From the bottom:

- :mod:`~testbed.live.dds.domain`: where to look for others (:class:`DomainConfig`) and QoS;
- :mod:`~testbed.live.identity`: who may take part;
- :mod:`~testbed.live.dds.segments`: messages as typed, checked samples;
- :mod:`~testbed.live.dds.sessions`: the handshake of a pair, and what is sent under its keys;
- :mod:`~testbed.live.dds.channel`: :class:`Channel`, messages of any length from each member of a
  topic to all others, who may come and go;
- :mod:`~testbed.live.dds.collectives`: :class:`Group`, ranks that all do the same::

    with Group(rank, size, run="a name of its own", domain=7, keys="folder") as group:
        handles = [group.all_gather(payload, label) for label, payload in payloads]
        ...  # compute meanwhile
        for handle in handles:
            handle.wait(timeout_s=30)  # RankLost names who died, is late or is out of step
            by_rank = handle.collect()
        total = group.all_reduce(values)  # a handle too; the sum in the order of ranks
        group.barrier(timeout_s=30)

- :mod:`~testbed.live.dds.data_parallel`: the live training step on such a group;
- :mod:`~testbed.live.dds.board`: what one member publishes once for several others;
- :mod:`~testbed.live.dds.wire`: the live engine's messages, on a topic a pair and on boards.

Delivery is reliable and slow readers hold writers up, to a limit. Whoever dies is noticed after
``DomainConfig.lease_s``; a shorter pause or partition only delays.

Everything is encrypted and authenticated for each receiver. With identities, which processes on
several hosts need unless told otherwise, nobody can pass for a member whose private key he does not
hold, be he another member, nor repeat, reflect or cut short what was sent. Strangers can still get
in the way: see who talks to whom and how much, hold writers up to that limit by not reading, and
forge the protocol under DDS (RTPS), which only DDS Security would prevent.
"""

from slowlink.testbed.live.dds.channel import Channel, Delivery
from slowlink.testbed.live.dds.collectives import Group, Handle, RankLost, Reduction
from slowlink.testbed.live.dds.domain import DomainConfig, connect
from slowlink.testbed.live.dds.sessions import Access
from slowlink.testbed.live.identity import Keys

__all__ = [
    "Access",
    "Channel",
    "Group",
    "Handle",
    "Keys",
    "Delivery",
    "DomainConfig",
    "RankLost",
    "Reduction",
    "connect",
]
