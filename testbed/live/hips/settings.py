"""The one file that describes a cluster: what it trains, who takes part, how losses are met.

JSON or YAML, for instance::

    training:
      exchange: {name: hips}            # parameter_server: no servers in the sites
      levels: [{up: {name: identity}}, {up: {name: bisparse}}]
      synchronization: {name: bsp}      # or mixed, with optimizer_at: server
      model: {name: lenet5}
      dataset: fashion_mnist
      workers: [2, 2]
      batch: 32
      lr: 0.05
      rounds: 100
      evaluate_every: 10
    on_loss: continue
    output: runs/first
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    field_validator,
    model_validator,
)

from slowlink.testbed.live import documents
from slowlink.testbed.live.hips.messages import (
    ADDRESS,
    CENTRAL_SCHEDULER,
    GLOBAL_SCHEDULER,
    GLOBAL_SERVER,
    MASTER,
)
from slowlink.testbed.training.recipe import Link, Recipe

USUAL: dict[str, Any] = dict(
    document="",
    experiment="cluster",
    system="hips",
    seed=0,
    scale="desk",
    device="this machine",
    accelerator="cpu",
)
"""Fields of a recipe that a live run has no use for, or that are seldom others."""

Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]


class ClusterSettings(BaseModel):
    """The content of the file.

    Attributes
    ----------
    training: see :class:`testbed.training.recipe.Recipe`; :data:`USUAL` may be left out, and
        ``networks``, which is ``network`` here.
    network: shape links by these rates on this machine; null for the machine's own loopback.
    late: nodes that the start does not wait for; they join when they come.
    on_loss: when a node is lost, ``stop`` everything with an error, ``continue`` without it, or
        ``wait`` for its return. Without the global server, its scheduler or the master all stops.
    rejoin_s: how long to wait for who was lost, and a site that was cut off for the centre.
    heartbeat_timeout_s: who is silent for longer is lost; heartbeats come five times as often.
    stall_s: a node whose work does not come up for messages for so long falls silent, as it may
        hang; more than the longest step or evaluation takes.
    start_s: how long to wait for all at the start.
    slice_bytes: payloads travel in pieces of at most so many bytes.
    limit_bytes: largest tensor that is taken, in bytes of float32.
    state: folder for each node's latest snapshots, from which it can go on; null for none, which
        ``wait`` does not allow.
    output: folder for logs (``*.log``), the configuration with all addresses (``cluster.json``)
        and the result rows (``rows.parquet``).
    addresses: ``tcp://host:port`` by node. Where nodes are on several machines, all schedulers
        need one; others listen at any free port.
    keys: folder with the keys of all (:func:`testbed.live.identity`), by which connections
        are encrypted and authenticated; where addresses name several hosts, there must be one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    training: Recipe
    network: Link | None = None
    late: tuple[str, ...] = ()
    on_loss: Literal["stop", "continue", "wait"] = "stop"
    rejoin_s: Finite = 60.0
    heartbeat_timeout_s: Annotated[float, Field(ge=0.5, le=600)] = 5.0
    stall_s: Annotated[float, Field(ge=0.5, allow_inf_nan=False)] = 1800.0
    start_s: Finite = 120.0
    slice_bytes: Annotated[int, Field(ge=2**10, le=2**28)] = 2**20
    limit_bytes: Annotated[int, Field(ge=2**10, le=2**33)] = 2**30
    state: Path | None = None
    output: Path
    addresses: dict[str, str] = {}
    keys: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("training"), dict):
            return given
        training = given["training"]
        if "networks" in training:
            raise ValueError("training.networks: leave it out, `network` says what there is")
        link = given.get("network") or dict(lan=1.0, wan=1.0)
        case = "emulated" if given.get("network") else "this machine"
        return given | {"training": USUAL | training | {"networks": {case: link}}}

    @field_validator("addresses")
    @classmethod
    def _well_formed(cls, addresses: dict[str, str]) -> dict[str, str]:
        for node, address in addresses.items():
            if not ADDRESS.match(address):
                raise ValueError(f"{node} must be at tcp://host:port, not {address!r}")
        return addresses

    @model_validator(mode="after")
    def _known(self) -> Self:
        for field, names in (("late", self.late), ("addresses", self.addresses)):
            for name in names:
                if name not in self.everybody:
                    raise ValueError(
                        f"{field}: no node {name!r}; there are: {', '.join(self.everybody)}"
                    )
        if missing := {GLOBAL_SERVER, MASTER} & set(self.late):
            raise ValueError(f"late: {', '.join(sorted(missing))} must be there from the start")
        if schedulers := [name for name in self.late if name.endswith("/scheduler")]:
            raise ValueError(f"late: {schedulers[0]} comes with its nodes; name these")
        hosts = {address.rpartition(":")[0] for address in self.addresses.values()}
        if len(hosts) > 1 and self.keys is None and self.network is None:
            raise ValueError(
                "keys: name a folder, since addresses are of several hosts; --make-keys fills it"
            )
        if self.on_loss == "wait" and self.state is None:
            raise ValueError("state: name a folder; who is waited for comes back with its state")
        return self

    @property
    def mixed(self) -> bool:
        """Whether sites count their own rounds."""
        return self.training.synchronization.name != "bsp"

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(f"site{number}" for number in range(1, len(self.training.workers) + 1))

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes but the schedulers, in the order in which sums are taken."""
        found = [GLOBAL_SERVER, MASTER]
        for site, workers in zip(self.sites, self.training.workers, strict=True):
            if self.training.exchange.name != "parameter_server":
                found.append(f"{site}/server")
            found += [f"{site}/worker{rank}" for rank in range(workers)]
        return tuple(found)

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(name for name in self.nodes if name.endswith("/server"))

    @property
    def schedulers(self) -> tuple[str, ...]:
        return (GLOBAL_SCHEDULER, CENTRAL_SCHEDULER, *(f"{site}/scheduler" for site in self.sites))

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.schedulers + self.nodes


def read(path: str | Path, runnable: bool = True) -> ClusterSettings:
    """The cluster that a file describes.

    Parameters
    ----------
    runnable: whether to refuse training that real nodes cannot do; this imports torch.

    Raises
    ------
    ValueError
        What is wrong, a line each: the file, the field and what is allowed.
    OSError
        No such file.
    """
    return documents.read(path, lambda document: parse(document, runnable))


def parse(document: Any, runnable: bool = True) -> ClusterSettings:
    """The cluster that plain data describe; raises ValueError as :func:`read`."""
    cluster = documents.validated(ClusterSettings, document, training=Recipe, network=Link)
    if runnable:
        from slowlink.testbed.live.hips import (
            party,  # only here: schedulers need not wait for torch
        )

        try:
            party.check(cluster.training)
        except ValueError as error:
            raise ValueError(f"training.{error}") from None
    return cluster
