"""A card for every method: what it sends, what it costs, how to load and run it.

Methods are found in their rooms, so a new file has its card with nothing else touched. Every number
is computed here and now, by the codec's own formula, by counting on the plan, or by
:func:`testbed.matrix.time_round`: no results are needed.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pandas as pd

from slowlink.methods import compression, exchange, fusion, synchronization
from slowlink.reports import bibliography
from slowlink.reports.bibliography import Reference
from slowlink.testbed.matrix import Cluster, Method, time_round
from slowlink.testbed.network import longest_chain, node_traffic, region_traffic
from slowlink.testbed.prices import DENSE, System, load_codec
from slowlink.testbed.training import device as devices
from slowlink.testbed.training import pipeline
from slowlink.testbed.training.device import Device
from slowlink.testbed.training.recipe import Level, Part

ROOMS: dict[str, tuple[ModuleType, str]] = {
    "exchange": (exchange, "Who sends to whom?"),
    "compression": (compression, "What is sent?"),
    "synchronization": (synchronization, "When do workers meet?"),
    "fusion": (fusion, "Which tensors travel together?"),
}
MODEL, BATCH, DEVICE = "resnet50", 256, "v100_matrix"
NETWORKS = {
    "8 workers at 1 Gbit/s": Cluster("flat", 8, 1e9, latency=1e-5),
    "2 sites of 4 at 10 Gbit/s, 155 Mbit/s between": Cluster(
        "sites", 8, 155e6, per_site=4, lan=10e9, latency=1e-5, wan_latency=5e-3
    ),
}
TENSORS = {
    "a bias, 64": (64,),
    "a convolution, 64 × 64 × 3 × 3": (64, 64, 3, 3),
    "a matrix, 1024 × 1024": (1024, 1024),
}
_REST = {
    "exchange": "Nothing is compressed, workers meet in every round, each tensor travels alone.",
    "compression": "Carried by a ring where payloads add, else everybody gets all of them; workers "
    "meet in every round, each tensor travels alone.",
    "synchronization": "Nothing is compressed, and a server keeps the model.",
    "fusion": "Nothing is compressed, a ring carries the sums, workers meet in every round.",
}


@dataclass(frozen=True)
class Card:
    """What the page of one method shows.

    Attributes
    ----------
    room, name: where its file is.
    source: where it is from, with labels of the ``references`` that it cites.
    facts: what the contract of its room says of it, name -> text.
    parameters: name, default.
    sends: what it sends, as its room counts it. ``sends_says``: what is counted.
    rounds: a round of ``MODEL`` on ``NETWORKS``, or why there is none.
    coding: seconds on every device profile; empty but for codecs.
    load, run: Python that loads and uses it; the command that ranks it.
    """

    room: str
    name: str
    summary: str
    source: str
    references: list[Reference]
    about: str
    facts: dict[str, str]
    parameters: pd.DataFrame
    sends: pd.DataFrame
    sends_says: str
    rounds: pd.DataFrame
    coding: pd.DataFrame
    load: str
    run: str

    @property
    def rest(self) -> str:
        """The other answers of the rounds it is in."""
        return _REST[self.room]

    @property
    def device(self) -> str:
        """What the rounds are computed and coded on."""
        return _device().title

    @property
    def file(self) -> str:
        return f"methods/{self.room}/{self.name}.py"

    @property
    def page(self) -> str:
        return f"methods/{self.room}-{self.name}.html"


def names() -> list[tuple[str, str]]:
    """Room and name of every method, room by room."""
    return [(room, name) for room in ROOMS for name in ROOMS[room][0].names()]


@cache
def card(room: str, name: str) -> Card:
    module = ROOMS[room][0]
    method = module.load(name)
    sends, says = {
        "exchange": _travels,
        "compression": _payloads,
        "synchronization": _meetings,
        "fusion": _messages,
    }[room](name)
    fields = [field for field in dataclasses.fields(method) if field.init]
    defaults = [[field.name, str(getattr(method, field.name))] for field in fields]
    return Card(
        room,
        name,
        method.summary,
        bibliography.readable(method.source),
        bibliography.cited(method.source),
        _prose(inspect.getdoc(type(method)) or ""),
        _facts(room, method),
        pd.DataFrame(defaults, columns=["parameter", "default"]),
        sends,
        says,
        _rounds(room, name),
        _coding(name) if room == "compression" else pd.DataFrame(),
        _load(room, name),
        f"snakemake --cores 2 matrix --config only={name}",
    )


def _prose(docstring: str) -> str:
    """A docstring without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?([^`]+)`", r"\1", docstring).replace("``", "")


def _facts(room: str, method: Any) -> dict[str, str]:
    def yes(value: bool) -> str:
        return "yes" if value else "no"

    if room == "compression":
        combined = {
            "sum": "they add, so a ring or tree can carry them",
            "merge": "a server merges them, or everybody gets all",
            "gather": "everybody gets all of them",
        }
        return {
            "payloads of several workers": combined[method.combine],
            "rounds of communication": "one" if method.one_shot else "several",
            "bytes known beforehand": "exactly" if method.exact_bytes else "at most",
        }
    if room == "exchange":
        return {"carries payloads that combine by": ", ".join(sorted(method.combines))}
    if room == "synchronization":
        return {
            "what travels": "a gradient"
            if method.travels == "gradient"
            else "a change of the model",
            "workers compute on while it travels": yes(method.continues_after_upload),
            "the server applies each as it comes": yes(method.asynchronous),
            "decides without looking at the clock": yes(method.clock_free),
        }
    return {"looks at costs": yes(method.needs_costs)}


# What it sends ------------------------------------------------------------------------------------


def _payloads(name: str) -> tuple[pd.DataFrame, str]:
    codec = compression.load(name)
    shapes = {what: [shape] for what, shape in TENSORS.items()}
    shapes["ResNet-50, tensor by tensor"] = [tensor.shape for tensor in _layers().tensors]
    rows = []
    for what, tensors in shapes.items():
        payload = sum(sum(codec.payload_bytes(shape)) for shape in tensors)
        dense = sum(4 * math.prod(shape) for shape in tensors)
        rows.append([what, dense, payload, payload / dense])
    most = "" if codec.exact_bytes else "; the data decide, and this is the most it can be"
    return (
        pd.DataFrame(rows, columns=["tensor", "float32, B", "payload, B", "share"]),
        f"Bytes that one worker sends for one gradient, with the defaults below{most}.",
    )


def _travels(name: str) -> tuple[pd.DataFrame, str]:
    rows = []
    for network, cluster in NETWORKS.items():
        topology = cluster.topology
        try:
            plan = exchange.load(name)(topology)
        except ValueError as error:
            rows.append([network, *[math.nan] * 4, str(error)])
            continue
        traffic = node_traffic(plan, topology)
        both = (traffic.egress + traffic.ingress)[topology.workers].mean()
        outside = math.nan
        if topology.layers:
            outside = region_traffic(plan, topology)[topology.layers[0]].egress.sum()
        messages = int((plan.src != plan.dst).sum())
        rows.append([network, messages, longest_chain(plan), both, outside, ""])
    columns = ["network", "messages", "one after another", "vectors a worker", "between sites"]
    return (
        _told(rows, columns, "cannot run because"),
        "Counted on its plan: transfers in all, the longest chain of those that wait for each "
        "other, vectors that a worker sends and receives, and vectors that leave the sites.",
    )


def _meetings(name: str) -> tuple[pd.DataFrame, str]:
    rows = []
    for network, cluster in NETWORKS.items():
        uneven = dataclasses.replace(cluster, uneven=2.0)
        try:
            spent = _round("synchronization", name, uneven)
        except ValueError as error:
            rows.append([network, *[math.nan] * 4, str(error)])
            continue
        share = 100 / spent.round_s
        rows.append(
            [
                network,
                spent.sent_bytes / 1e6,
                spent.wan_bytes / 1e6,
                share * spent.wait_s,
                share * spent.exchange_s,
                "",
            ]
        )
    columns = ["network", "MB a worker", "MB between sites", "% waiting", "% sending"]
    return (
        _told(rows, columns, "cannot run because"),
        "ResNet-50 where iterations take workers from 1 to 2 times as long: what a worker sends "
        "and receives in a round, and how much of the time it waits for others and for the "
        "network. A round is one iteration a worker.",
    )


def _messages(name: str) -> tuple[pd.DataFrame, str]:
    sizes = _layers().sizes
    rows = []
    for codec in ("identity", "top_k", "ef_sign_sgd"):
        system = System(
            exchange.load(_carrier(codec)),
            [load_codec(Part(name=codec))],
            NETWORKS["8 workers at 1 Gbit/s"].topology,
        )
        compute_s = pipeline.single_gpu_s(_device(), _layers(), BATCH / 8)
        costs = system.costs(_device(), _layers(), compute_s)
        groups = fusion.load(name)(sizes, costs)
        largest = max(sum(sizes[i] for i in group) for group in groups)
        rows.append([codec, len(sizes), len(groups), 4 * largest / 1e6])
    return (
        pd.DataFrame(rows, columns=["codec", "tensors", "messages", "largest, MB of float32"]),
        "Groups of ResNet-50's tensors for 8 workers at 1 Gbit/s, by codec.",
    )


def _told(rows: list[list[Any]], columns: list[str], remark: str) -> pd.DataFrame:
    """A table whose last column, a remark, is left out where nobody has one."""
    table = pd.DataFrame(rows, columns=[*columns, remark])
    return table if (table[remark] != "").any() else table[columns]


# What it costs ------------------------------------------------------------------------------------


def _coding(name: str) -> pd.DataFrame:
    matrix, codec = 4 * 1024 * 1024, compression.load(name)
    sizes = [4 * values for values in _layers().sizes]
    rows = []
    for profile in devices.profiles().values():
        whole = sum(profile.encode_s(codec, s) + profile.decode_s(codec, s) for s in sizes)
        rows.append(
            [
                profile.title,
                1e3 * profile.encode_s(codec, matrix),
                1e3 * profile.decode_s(codec, matrix),
                1e3 * whole,
                "guessed from its work" if profile.guesses(codec) else "",
            ]
        )
    heads = ["device", "encode, ms", "decode, ms", "ResNet-50 both, ms"]
    return _told(rows, heads, "remark")


def _rounds(room: str, name: str) -> pd.DataFrame:
    rows = []
    for network, cluster in NETWORKS.items():
        try:
            spent = _round(room, name, cluster)
        except ValueError as error:
            rows.append([network, *[math.nan] * 7, "", str(error)])
            continue
        parts = [spent.compute_s, spent.compress_s, spent.exchange_s, spent.wait_s]
        efficiency = 100 * spent.scaling_efficiency
        guessed = "guessed" if spent.guessed else ""
        rows.append(
            [network, spent.round_s, *parts, spent.sent_bytes / 1e6, efficiency, guessed, ""]
        )
    columns = ["network", "round, s", "computing", "coding", "sending", "waiting", "MB a worker"]
    return _told(rows, [*columns, "% of linear", "price of coding"], "cannot run because")


def _round(room: str, name: str, cluster: Cluster) -> Any:
    answers = {
        "exchange": Part(name="parameter_server" if room == "synchronization" else "ring"),
        "synchronization": Part(name="bsp"),
        "fusion": Part(name="layer_wise"),
    }
    codec = DENSE
    if room == "compression":
        codec = Part(name=name)
        answers["exchange"] = Part(name=_carrier(name))
    else:
        answers[room] = Part(name=name)
    method = Method(name, levels=(Level(up=codec),), **answers)
    return time_round(method, _layers(), cluster, _device(), BATCH)


def _carrier(codec: str) -> str:
    """The exchange as in the matrix: a ring where payloads add, else everybody gets all."""
    return "ring" if load_codec(Part(name=codec)).combine == "sum" else "allgather"


@cache
def _layers() -> pipeline.Layers:
    return pipeline.layers(Part(name=MODEL))


@cache
def _device() -> Device:
    return devices.profile(DEVICE)


# How to use it ------------------------------------------------------------------------------------

_USES = {
    "exchange": [
        "from slowlink.testbed.network import geo_sites, simulate",
        "network = geo_sites([4, 4], lan=10e9, wan=155e6)",
        "plan = method(network)",
        "simulate(plan, network, 100e6).completion_s",
    ],
    "compression": [
        "import torch",
        "gradient = torch.randn(1024, 1024)",
        'payload, combine = next(method.encode(gradient, key="weight"))',
        "len(payload.body)",
    ],
    "synchronization": ["method.begin([0, 0, 0, 0])"],
    "fusion": [
        "from slowlink.testbed.training import pipeline",
        "from slowlink.testbed.training.recipe import Part",
        'sizes = pipeline.layers(Part(name="resnet20")).sizes',
    ],
}


def _load(room: str, name: str) -> str:
    lines = [
        f"from slowlink.methods import {room}",
        f'method = {room}.load("{name}")',
        *_USES[room],
    ]
    if room == "fusion":
        lines += _fusion_use(name)
    return "\n".join(lines)


def _fusion_use(name: str) -> Iterator[str]:
    if not fusion.load(name).needs_costs:
        yield "method(sizes)"
        return
    yield "from slowlink.methods.fusion import Costs"
    yield "cost = lambda values: 1e-4 + 1e-9 * values  # seconds of a message"
    yield "costs = Costs.by_values(sizes, [1e-4] * len(sizes), cost, cost, cost)"
    yield "method(sizes, costs)"
