"""A cluster as its owner describes it in a file: sites, racks, workers, links, speeds.

::

    title: a hospital and its branch
    sites:
      - {name: hospital, workers: 4, card: 10G, wan: {up: 1G, down: 1G, latency: 5ms}}
      - {name: branch, workers: 2, card: 1G, wan: {up: 20M, down: 100M, latency: 12ms},
         speeds: [1, 0.5]}

A rate is a number of bit/s or a text (``155M``); a latency a number of seconds or a text
(``5ms``). Where one was measured it is ``{low, median, high}``: the quartiles. A link is a rate,
or ``{up, down, latency}`` as its lower end sees it. A site may have ``racks`` instead of workers,
each with workers, their card, and an ``uplink`` or how much it is ``oversubscription``. A rack may
be a host with several accelerators: its workers' cards are then what joins these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_serializer,
    model_validator,
)

from slowlink.methods.exchange import Topology
from slowlink.testbed import given, units
from slowlink.testbed.given import Measured
from slowlink.testbed.network.fluid import tcp_efficiency
from slowlink.testbed.network.topology import CENTRAL, Cables

REMEDY = "docs/measuring.md shows a cluster file"

End = Literal["fast", "slow"]
"""An end of what was measured: rates at their upper quartile and latencies at their lower one, or
the other way round."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Quartiles(_Part):
    """A median between its quartiles; all one number where nothing was measured."""

    low: NonNegativeFloat
    median: NonNegativeFloat
    high: NonNegativeFloat

    @model_validator(mode="after")
    def _ordered(self) -> Quartiles:
        if not self.low <= self.median <= self.high:
            raise ValueError(f"low, median and high must ascend, not {self.values}")
        return self

    @model_serializer
    def _plain(self) -> Any:
        spread = {"low": self.low, "median": self.median, "high": self.high}
        return self.median if self.low == self.high else spread

    @property
    def values(self) -> tuple[float, float, float]:
        return self.low, self.median, self.high

    def times(self, factor: float) -> Quartiles:
        low, median, high = (factor * value for value in self.values)
        return Quartiles(low=low, median=median, high=high)

    def at(self, which: Literal["low", "high"]) -> Quartiles:
        value = getattr(self, which)
        return Quartiles(low=value, median=value, high=value)


def quartiles(samples: Sequence[float]) -> Quartiles:
    """The quartiles of measurements, as numpy interpolates them."""
    import numpy as np

    found = np.percentile(list(samples), [25, 50, 75]).tolist()
    low, median, high = (float(f"{value:.6g}") for value in found)
    return Quartiles(low=low, median=median, high=high)


def _read(parse: Any, least: float, what: str) -> Any:
    def read(value: Any) -> Any:
        if isinstance(value, Quartiles):
            return value
        if isinstance(value, dict):
            return {key: number(one) for key, one in value.items()}
        value = number(value)
        return {"low": value, "median": value, "high": value}

    def number(value: Any) -> float:
        value = parse(value) if isinstance(value, str) else value
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not (plain and least <= value < math.inf) or (least == 0 and value < 0):
            raise ValueError(f"{value!r} is no {what}")
        return float(value)

    return BeforeValidator(read)


Rate = Annotated[Quartiles, _read(units.bits_per_s, 1.0, "rate in bit/s; say 155M or 1G")]
Latency = Annotated[Quartiles, _read(units.seconds, 0.0, "time in seconds; say 5ms or 0.005")]


class Link(_Part):
    """``up``: from the lower end (a worker, a rack, a site) into the network; ``down``: to it.

    ``latency``: seconds that a message spends on it one way, whatever its size.
    """

    up: Rate
    down: Rate
    latency: Latency = Quartiles(low=0.0, median=0.0, high=0.0)

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, value: Any) -> Any:
        if isinstance(value, Link):
            return value
        if not isinstance(value, dict) or "median" in value:
            return {"up": value, "down": value}
        if "rate" in value:
            if "up" in value or "down" in value:
                raise ValueError("give rate, or up and down, not both")
            rest = {key: one for key, one in value.items() if key != "rate"}
            return {"up": value["rate"], "down": value["rate"], **rest}
        return value

    @model_serializer
    def _short(self) -> Any:
        up, down, latency = (one.model_dump() for one in (self.up, self.down, self.latency))
        if self.up != self.down:
            found = {"up": up, "down": down}
        elif latency or isinstance(up, dict):
            found = {"rate": up}
        else:
            return up
        return found | ({"latency": latency} if latency else {})

    def times(self, factor: float) -> Link:
        return self.model_copy(
            update={"up": self.up.times(factor), "down": self.down.times(factor)}
        )

    def at(self, end: End) -> Link:
        rate, latency = ("high", "low") if end == "fast" else ("low", "high")
        return Link(up=self.up.at(rate), down=self.down.at(rate), latency=self.latency.at(latency))

    def __str__(self) -> str:
        up, down = units.said_rate(self.up.median), units.said_rate(self.down.median)
        return up if up == down else f"{up} up and {down} down"


Speed = Annotated[float, Field(ge=1e-3, le=1e3)]


def _several(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


class Rack(_Part):
    """Workers around one switch.

    Attributes
    ----------
    card: of every worker, or a list with one a worker.
    uplink: from the switch to the rest of the site; without a limit if None.
    oversubscription: what the cards can send over what the uplink carries, instead of ``uplink``.
    speeds: of the workers' computing, 1 for the device that was measured, 0.5 for half as fast; a
        number, or a list with one a worker.
    """

    workers: PositiveInt
    card: Annotated[tuple[Link, ...], BeforeValidator(_several)]
    uplink: Link | None = None
    oversubscription: PositiveFloat | None = None
    speeds: Annotated[tuple[Speed, ...], BeforeValidator(_several)] = (1.0,)

    @model_validator(mode="after")
    def _fits(self) -> Rack:
        for name in ("card", "speeds"):
            if (found := len(getattr(self, name))) not in (1, self.workers):
                raise ValueError(
                    f"{name} has {found} entries for {self.workers} workers; one, or one a worker"
                )
        if self.uplink and self.oversubscription:
            raise ValueError("give uplink or oversubscription, not both")
        return self

    @model_serializer
    def _short(self) -> dict[str, Any]:
        cards = [card.model_dump() for card in self.card]
        found = {"workers": self.workers, "card": cards if len(cards) > 1 else cards[0]}
        if self.uplink:
            found["uplink"] = self.uplink.model_dump()
        if self.oversubscription:
            found["oversubscription"] = self.oversubscription
        if self.speeds != (1.0,):
            found["speeds"] = list(self.speeds) if len(self.speeds) > 1 else self.speeds[0]
        return found

    @property
    def cards(self) -> tuple[Link, ...]:
        """One a worker."""
        return self.card * (self.workers // len(self.card))

    @property
    def up(self) -> Link | None:
        """The uplink, given or by the oversubscription."""
        if self.oversubscription is None:
            return self.uplink
        sums = {
            way: Quartiles(**{
                at: sum(getattr(getattr(card, way), at) for card in self.cards)
                for at in ("low", "median", "high")
            })
            for way in ("up", "down")
        }  # fmt: skip
        return Link(**sums).times(1 / self.oversubscription)


class Site(_Part):
    """Racks, or workers around one switch; and the link to the other sites."""

    name: str = ""
    wan: Link | None = None
    racks: Annotated[tuple[Rack, ...], Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _one_rack(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "racks" in value:
            return value
        inner = [key for key in Rack.model_fields if key != "uplink" and key in value]
        if not inner:
            return value
        rest = {key: one for key, one in value.items() if key not in inner}
        # Checked here, so that what is wrong is told by the fields that the file has.
        return rest | {"racks": [Rack.model_validate({key: value[key] for key in inner})]}

    @model_serializer
    def _short(self) -> dict[str, Any]:
        found = {"name": self.name} if self.name else {}
        found |= {"wan": self.wan.model_dump()} if self.wan else {}
        racks = [rack.model_dump() for rack in self.racks]
        alone = len(racks) == 1 and "uplink" not in racks[0]
        return found | (racks[0] if alone else {"racks": racks})

    @property
    def cards(self) -> tuple[Link, ...]:
        return sum((rack.cards for rack in self.racks), ())


class Center(_Part):
    """Where the central server stands: its card, and the link of its place to the others. Of one
    site with a wide-area link it is at the other end of that."""

    card: Link
    wan: Link


class Cluster(_Part):
    """Workers and their links, from a file; stands where :class:`testbed.matrix.Cluster` does.

    Attributes
    ----------
    center: the central server's, as good as the best of the others where it is not given.
    efficiency: share of the links' rates that payload gets; 1 where payload was measured.
    overhead_s: seconds of each message besides its transfers; as in the matrix if None.
    pieces: nothing larger than 1/``pieces`` of a message is waited for; as in the matrix if None.
    measured: when and with what the rates were measured, if they were.
    """

    title: str = ""
    source: str = ""
    sites: Annotated[tuple[Site, ...], Field(min_length=1)]
    center: Center | None = None
    efficiency: Annotated[float, Field(gt=0, le=1)] = tcp_efficiency()
    overhead_s: NonNegativeFloat | None = None
    pieces: PositiveInt | None = None
    measured: Measured | None = None

    def __eq__(self, other: object) -> bool:
        # By its fields alone: the topology that is made of them has arrays.
        return isinstance(other, Cluster) and self.model_dump_json() == other.model_dump_json()

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @model_validator(mode="after")
    def _joined(self) -> Cluster:
        names = [site.name for site in self.sites if site.name]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"sites: two are called {twice[0]!r}; give each a name of its own")
        for number, site in enumerate(self.sites):
            if len(self.sites) > 1 and site.wan is None:
                raise ValueError(
                    f"sites.{number}.wan: is missing; say how fast the site's link to the others "
                    "is, such as wan: 100M"
                )
        if len(self.sites) == 1 and self.sites[0].wan and not self.center:
            raise ValueError(
                "sites.0.wan: leads nowhere, as there is one site; leave it out, or give center, "
                "which is at its other end"
            )
        if self.center and not self.layers:
            raise ValueError(
                "center.wan: joins nothing, as the one site has no link to it; give sites.0.wan"
            )
        return self

    @property
    def racks(self) -> Iterator[Rack]:
        return (rack for site in self.sites for rack in site.racks)

    @property
    def workers(self) -> int:
        return sum(rack.workers for rack in self.racks)

    def seconds(self, compute_s: float) -> tuple[float, ...]:
        """What an iteration takes each worker, if one of speed 1 takes ``compute_s``."""
        each = (rack.speeds * (rack.workers // len(rack.speeds)) for rack in self.racks)
        return tuple(compute_s / speed for speeds in each for speed in speeds)

    @property
    def apart(self) -> bool:
        """Whether there are wide-area links: between sites, or from the only one to the center."""
        return all(site.wan for site in self.sites)

    @property
    def layers(self) -> tuple[str, ...]:
        """The kinds of regions, innermost first."""
        racks = any(len(site.racks) > 1 or site.racks[0].up for site in self.sites)
        return ("rack",) * racks + ("site",) * self.apart

    @cached_property
    def topology(self) -> Topology:
        """Alike workers in alike sites are :func:`testbed.network.geo_sites`, and one site's
        :func:`testbed.network.star`. Every region has a server, with the best card in it."""
        return _topology(self)

    @property
    def slow(self) -> str:
        """Between what the outermost links are that have a rate: those that decide."""
        if self.apart:
            return "sites"
        return "racks" if any(rack.up for rack in self.racks) else "workers"

    @property
    def slow_rate(self) -> float:
        """The slowest of these links, bit/s."""
        return min(min(link.up.median, link.down.median) for link in self._slow_links())

    def _slow_links(self) -> list[Link]:
        if self.slow == "sites":
            return [site.wan for site in self.sites]
        if self.slow == "racks":
            return [rack.up for rack in self.racks if rack.up]
        return [card for rack in self.racks for card in rack.cards]

    def with_slow(self, rate: float) -> Cluster:
        """The cluster if the slowest of the :attr:`slow` links had this rate, and the others of
        them as many times theirs."""
        factor, update = rate / self.slow_rate, {}
        if self.slow != "workers" and self.center:
            wan = self.center.wan.times(factor)
            update["center"] = self.center.model_copy(update={"wan": wan})
        return self._changed(lambda link, where: link.times(factor) if where else link, update)

    def at(self, end: End) -> Cluster:
        """The cluster with every link at one end of what was measured."""
        update = {}
        if self.center:
            update["center"] = Center(card=self.center.card.at(end), wan=self.center.wan.at(end))
        return self._changed(lambda link, where: link.at(end), update)

    def _changed(self, change: Any, update: dict[str, Any]) -> Cluster:
        """A copy with every link changed; ``change`` is told whether a link is a slow one."""
        slow = self.slow

        def rack_of(rack: Rack) -> Rack:
            cards = tuple(change(card, slow == "workers") for card in rack.card)
            up = rack.up and change(rack.up, slow == "racks")
            return rack.model_copy(update={"card": cards, "uplink": up, "oversubscription": None})

        def site_of(site: Site) -> Site:
            wan = site.wan and change(site.wan, slow == "sites")
            return Site(name=site.name, wan=wan, racks=tuple(map(rack_of, site.racks)))

        sites = tuple(map(site_of, self.sites))
        return Cluster(**{name: getattr(self, name) for name in _kept(self)} | update, sites=sites)

    def __str__(self) -> str:
        everybody = units.counted(self.workers, "worker")
        cards = _range([card for rack in self.racks for card in rack.cards])
        if self.apart:
            wans = _range([site.wan for site in self.sites])
            if len(self.sites) == 1:
                return f"a site of {everybody}, {cards} inside, {wans} to the center"
            counts = [str(sum(rack.workers for rack in site.racks)) for site in self.sites]
            return f"sites of {_and(counts)} workers, {cards} inside, {wans} between"
        if self.layers:
            counts = [str(rack.workers) for rack in self.racks]
            several = f"racks of {_and(counts)} workers"
            racks = several if len(counts) > 1 else f"a rack of {everybody}"
            if self.slow == "racks":
                cards += f", uplinks of {_range(self._slow_links())}"
            return f"{racks}, cards of {cards}"
        return f"{everybody} with cards of {cards}"


def _kept(cluster: Cluster) -> set[str]:
    return set(Cluster.model_fields) - {"sites"}


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _range(links: Sequence[Link]) -> str:
    """Their slowest and fastest rate in words."""
    rates = [rate for link in links for rate in (link.up.median, link.down.median)]
    low, high = units.said_rate(min(rates)), units.said_rate(max(rates))
    return low if low == high else f"{low} to {high}"


def _best(links: Sequence[Link]) -> Link:
    """The fastest in each direction, with the shortest latency."""
    return Link(
        up=max((link.up for link in links), key=lambda one: one.median),
        down=max((link.down for link in links), key=lambda one: one.median),
        latency=min((link.latency for link in links), key=lambda one: one.median),
    )


def _topology(cluster: Cluster) -> Topology:
    cables, layers = Cables(), cluster.layers
    everybody = [card for site in cluster.sites for card in site.cards]

    def join(node: int, switch: int, link: Link) -> None:
        cables.join(node, switch, link.up.median, link.latency.median, link.down.median)

    if not layers:
        ranks = [cables.node(f"worker{rank}") for rank in range(len(everybody))]
        server, switch = cables.node("server"), cables.node("switch")
        for node, card in zip(ranks, everybody, strict=True):
            join(node, switch, card)
        join(server, switch, _best(everybody))
        return cables.build("cluster", ranks, [server])

    # The innermost regions, each with the racks and the site that it is in.
    places: list[tuple[Site, Rack, str, list[int]]] = []
    for number, site in enumerate(cluster.sites, start=1):
        for index, rack in enumerate(site.racks):
            own = {"rack": len(places) + 1, "site": number}
            name = f"site{number}" if "site" in layers else f"rack{len(places) + 1}"
            name += f"/rack{index + 1}" if layers == ("rack", "site") else ""
            places.append((site, rack, name, [own[layer] for layer in layers]))
    center = cluster.center or Center(
        card=_best(everybody), wan=_best([link for link in cluster._slow_links() if link])
    )
    central, nowhere = [CENTRAL] * len(layers), [-1] * len(layers)
    servers = [cables.node("central/server", central)]
    servers += [cables.node(f"{name}/server", regions) for _, _, name, regions in places]
    members = [
        [cables.node(f"{name}/worker{rank}", regions) for rank in range(rack.workers)]
        for _, rack, name, regions in places
    ]
    core, hub = cables.node("core", nowhere), cables.node("central/switch", central)
    join(servers[0], hub, center.card)
    join(hub, core, center.wan)
    above: dict[int, int] = {}
    for (site, rack, name, regions), server, ranks in zip(
        places, servers[1:], members, strict=True
    ):
        switch = cables.node(f"{name}/switch", regions)
        if layers == ("rack", "site"):
            if regions[1] not in above:
                above[regions[1]] = cables.node(f"site{regions[1]}/switch", [-1, regions[1]])
                join(above[regions[1]], core, site.wan)
            over, uplink = above[regions[1]], rack.up
        else:
            over, uplink = core, site.wan if layers == ("site",) else rack.up
        if uplink:
            join(switch, over, uplink)
        else:
            cables.join(switch, over, math.inf)
        join(server, switch, _best(rack.cards))
        for node, card in zip(ranks, rack.cards, strict=True):
            join(node, switch, card)
    return cables.build("cluster", sum(members, []), servers, layers)


def load(path: str | Path) -> Cluster:
    """The cluster of a file. Raises ValueError, in one line with file, field and remedy."""
    return given.read(path, Cluster, REMEDY)


def save(cluster: Cluster, path: str | Path) -> None:
    given.write(path, "A cluster, for slowlink advise --cluster-file; docs/measuring.md.", cluster)


# From nvidia-smi ---------------------------------------------------------------------------------

NVLINK = 25e9 * 8
"""bit/s of one NVLink each way, of generations 2 to 4 (Volta to Hopper). Source: NVIDIA's A100 and
H100 white papers: 12 links 600 GB/s and 18 links 900 GB/s, both ways together."""

PCIE = 31.5e9 * 8
"""bit/s of 16 lanes of PCI Express 4 each way: 16 GT/s, 128 of 130 bits. Source: PCI-SIG."""

BETWEEN_SOCKETS = 20.8e9 * 8
"""bit/s of one UPI link between two sockets each way: 10.4 GT/s, two bytes. Source: Intel's Xeon
Scalable technical overview. Guessed: that one link carries what crosses."""

CLASSES = {
    "PIX": PCIE,
    "PXB": PCIE,
    "PHB": PCIE,
    "NODE": PCIE,
    "SYS": BETWEEN_SOCKETS,
    "SOC": BETWEEN_SOCKETS,
}
"""What nvidia-smi calls a path, and the rate of its slowest link; SOC is the old name of SYS."""


def from_topo(text: str) -> Cluster:
    """The GPUs of one host, from what ``nvidia-smi topo -m`` prints: a site whose racks are the
    GPUs that reach each other without crossing between sockets. Rates are those of the link
    standards, not measured.

    Raises
    ------
    ValueError
        No such table, or a word in it that is not known.
    """
    rows = [re.sub(r"\x1b\[[0-9;]*m", "", line).split() for line in text.splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) > 1 and re.fullmatch(r"GPU\d+", row[0])}
    heads = [row for row in rows if row and row[0] == "GPU0" and "X" not in row[1:2]]
    count = len(table)
    if not count or [f"GPU{i}" for i in range(count)] != list(table) or not heads:
        raise ValueError(
            "this is no table of nvidia-smi topo -m: rows and columns GPU0, GPU1 … are missing; "
            "pass what it prints, unchanged"
        )

    def rate(one: int, other: int) -> float:
        row = table[f"GPU{one}"]
        word = row[other] if other < len(row) else "nothing"
        if found := re.fullmatch(r"NV(\d+)", word):
            return NVLINK * int(found[1])
        if word not in CLASSES:
            raise ValueError(
                f"GPU{one} to GPU{other}: {word!r} is none of NV#, {', '.join(CLASSES)}; pass what "
                "nvidia-smi topo -m prints, unchanged"
            )
        return CLASSES[word]

    rates = {(a, b): rate(a, b) for a in range(count) for b in range(count) if a != b}
    words = {pair: table[f"GPU{pair[0]}"][pair[1]] for pair in rates}
    groups: list[list[int]] = []
    for gpu in range(count):
        near = [
            group for group in groups if any(words[gpu, one] not in ("SYS", "SOC") for one in group)
        ]
        merged = sorted([gpu, *(one for group in near for one in group)])
        groups = [group for group in groups if group not in near] + [merged]
    racks = []
    for group in sorted(groups):
        inside = [rates[a, b] for a in group for b in group if a != b]
        card = min(inside, default=PCIE)
        uplink = {"uplink": BETWEEN_SOCKETS} if len(groups) > 1 else {}
        racks.append({"workers": len(group), "card": card, **uplink})
    return Cluster(
        title=f"{units.counted(count, 'GPU')} of one host",
        source="nvidia-smi topo -m; rates of the link standards, each way, not measured",
        sites=[{"name": "host", "racks": racks}],
        efficiency=1.0,
    )
