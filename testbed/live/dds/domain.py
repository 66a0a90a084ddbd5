"""Where processes find each other: the network of a DDS domain and the QoS of its endpoints.

Source: DDS 1.4 §2.2.3 (QoS policies); RTPS 2.5 §9.6.1.1 (ports); Cyclone DDS 11.0 configuration
reference. What the DDS document leaves to the defaults of its middleware is explicit here.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary
from xml.sax.saxutils import quoteattr

from cyclonedds.core import DDSException, InstanceState, SampleState, ViewState
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.qos import Policy, Qos
from cyclonedds.util import duration

from slowlink.testbed.live import identity
from slowlink.testbed.live.dds.segments import CUT, HEADS

LAST_DOMAIN = 232
"""Ports of higher domains would lie above 65535."""

DRAWN = range(1, 101)
"""Domains to draw from: the ports of higher ones (7400 + 250 for each) lie above 32768, where Linux
gives ports to whoever asks for any, and a domain cannot start while another process has its own."""

LOOPBACK = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "127.0.0.1")
"""The loopback interface: ``lo`` on Linux, ``lo0`` on BSD and macOS; elsewhere by address."""

UNREAD = 1024
"""Segments a reader holds before its writers must wait.

Cyclone then delivers nothing to the whole participant, signs of life included: a reader that is
full for longer than the lease takes the others for dead. So whoever reads must go on reading.
"""

BLOCK_S = 0.5
"""A blocked write returns this often, to see whether it is still wanted."""

ANY = SampleState.Any | ViewState.Any | InstanceState.Any
"""What a reader is woken up by: whatever comes."""


@dataclass(frozen=True)
class DomainConfig:
    """How processes reach each other.

    Attributes
    ----------
    interface: name or address of the network interface; the loopback unless told.
    peers: addresses of the other hosts where multicast does not reach (a routed network); empty
        finds everybody by multicast.
    lease_s: a process that gives no sign of life for so long counts as dead.
    """

    interface: str = LOOPBACK
    peers: tuple[str, ...] = ()
    lease_s: float = 5.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> DomainConfig:
        """From ``SLOWLINK_INTERFACE``, ``SLOWLINK_PEERS`` (by commas) and ``SLOWLINK_LEASE_S``.

        Raises
        ------
        ValueError
            A lease that is no number of seconds above 0.
        """
        lease = environment.get("SLOWLINK_LEASE_S", str(cls.lease_s))
        try:
            lease_s = float(lease)
        except ValueError:
            lease_s = 0.0
        if not 0 < lease_s < float("inf"):
            raise ValueError(f"SLOWLINK_LEASE_S: {lease!r} is not a number of seconds above 0")
        peers = environment.get("SLOWLINK_PEERS", "").split(",")
        return cls(
            environment.get("SLOWLINK_INTERFACE", cls.interface),
            tuple(peer.strip() for peer in peers if peer.strip()),
            lease_s,
        )


def configuration(network: DomainConfig, run: str = "") -> str:
    """Cyclone DDS's XML for ``network`` and the members of ``run``, or for whoever names none.

    Who names another run is not discovered: else its readers, on topics of the same names, would be
    sent all that is said, and could hold it up.

    The loopback gets datagrams of the largest size; elsewhere Cyclone's own size stays, which fits
    an Ethernet frame, as one lost IP fragment would cost the whole datagram. What is longer than a
    segment can be is dropped before memory is taken for it.
    """
    sizes = "<MaxMessageSize>65500B</MaxMessageSize><FragmentSize>64000B</FragmentSize>"
    listed = "".join(f"<Peer Address={quoteattr(peer)}/>" for peer in network.peers)
    tag = hashlib.sha256(run.encode()).hexdigest()[:16] if run else ""
    kind = "address" if network.interface.replace(".", "").isdigit() else "name"
    multicast = str(not network.peers).lower()
    return (
        '<CycloneDDS><Domain Id="any"><General><Interfaces><NetworkInterface '
        f'{kind}={quoteattr(network.interface)} multicast="{multicast}"/></Interfaces>'
        f"<AllowMulticast>{multicast}</AllowMulticast>"
        + (sizes if network.interface == LOOPBACK else "")
        + "</General><Discovery>"
        + (f"<ParticipantIndex>auto</ParticipantIndex><Peers>{listed}</Peers>" if listed else "")
        + (f"<Tag>{tag}</Tag>" if tag else "")
        + f"<LeaseDuration>{network.lease_s:f}s</LeaseDuration></Discovery>"
        # Whoever leaves has waited for what was sent to arrive, as long as it would.
        "<Internal><WriterLingerDuration>0s</WriterLingerDuration>"
        '<SocketReceiveBufferSize min="default" max="16MB"/>'
        f"<MaxSampleSize>{CUT + HEADS}B</MaxSampleSize></Internal>"
        "</Domain></CycloneDDS>"
    )


_entered: WeakValueDictionary[int, Domain] = WeakValueDictionary()
"""The domains that this process is in: also those that nobody uses any more, until the collector
comes by."""


def connect(domain: int, network: DomainConfig, run: str = "") -> DomainParticipant:
    """Enter a domain, until what is returned is no longer referred to, to meet those who name the
    same run.

    Raises
    ------
    ValueError
        A domain out of range.
    ConnectionError
        Cyclone refuses: no such interface, bad peer, or this process is already in the domain.
    """
    if not 0 <= domain <= LAST_DOMAIN:
        raise ValueError(f"domain: {domain} must be from 0 to {LAST_DOMAIN}")
    try:
        entered = Domain(domain, configuration(network, run))
        participant = DomainParticipant(domain)
    except DDSException as error:
        raise ConnectionError(
            f"domain {domain}: cannot start on interface {network.interface!r} with peers "
            f"{list(network.peers)}; is the interface up, has no other process the domain's ports "
            f"(a risk above domain {DRAWN[-1]}), and does this process enter it only once? "
            f"({error.msg})"
        ) from error
    participant.entered = _entered[domain] = entered  # the domain ends with the object
    return participant


@functools.cache
def _order() -> Iterator[int]:
    return itertools.cycle(random.SystemRandom().sample(DRAWN, len(DRAWN)))


def draw() -> int:
    """A domain at random, for a run that nobody else has to find.

    A process enters each only once at a time: it is one that this process is not in and, as whoever
    drew it may be about to enter it, not one of the last drawn.

    Raises
    ------
    RuntimeError
        This process is in every domain.
    """
    for domain in itertools.islice(_order(), len(DRAWN)):
        if domain not in _entered:
            return domain
    raise RuntimeError(f"this process is in every domain from {DRAWN[0]} to {DRAWN[-1]}")


RELIABLE = Policy.Reliability.Reliable(duration(seconds=BLOCK_S)), Policy.IgnoreLocal.Participant
"""Of all readers and writers here: they lose nothing, and do not hear their own process."""


def qos(user_data: bytes) -> Qos:
    """For the readers and writers of a topic of segments.

    Reliable, and everything is kept until it is read; a reader that holds :data:`UNREAD` segments
    takes no more, and its writers wait.

    Parameters
    ----------
    user_data: what other processes see of this one before any message.
    """
    return Qos(
        *RELIABLE,
        Policy.History.KeepAll,
        Policy.ResourceLimits(UNREAD, -1, -1),
        Policy.Userdata(user_data),
    )


def matched(handles: Callable[[], list[int]]) -> list[int] | None:
    """The endpoints that a reader or writer is matched with; None where that changed meanwhile:
    Cyclone's wrapper trips over one more that comes while it counts."""
    try:
        return handles()
    except IndexError:
        return None


OFF = "none"
"""What to give for a folder where members of several hosts shall do without identities."""


def keys_folder(folder: str | Path | None, network: DomainConfig) -> Path | None:
    """The folder of keys to use: ``folder``, else ``SLOWLINK_KEYS``; None for no identities.

    Raises
    ------
    ValueError
        No folder where members of other hosts may come; :data:`OFF` says that this is meant.
    """
    folder = folder or os.environ.get("SLOWLINK_KEYS")
    if folder is not None:
        return None if str(folder) == OFF else Path(folder)
    here = network.interface in (LOOPBACK, "127.0.0.1", "::1")
    if here and all(peer == "localhost" or peer.startswith("127.") for peer in network.peers):
        return None
    raise ValueError(
        f"keys: needs a folder of identities, as interface {network.interface!r} and peers "
        f"{list(network.peers)} reach other hosts; make one with {identity.COMMAND}, or give "
        f"{OFF!r} to do without: anybody on the network can then take part"
    )
