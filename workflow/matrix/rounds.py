"""Methods and clusters of the matrix's recipe as they are timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slowlink.testbed.matrix import Cluster, Method
from slowlink.testbed.training.recipe import Part

if TYPE_CHECKING:
    from slowlink.workflow.matrix.experiments import Matrix
    from slowlink.workflow.matrix.systems import System


def methods_of(label: str, system: System) -> list[Method]:
    """A system as it is timed, on each of its exchanges."""
    rest = system.synchronization, system.fusion, system.group, system.codec_scope
    return [Method(label, carrier, tuple(system.levels), *rest) for carrier in system.exchange]


def said(part: Part) -> str:
    """A method with its parameters: ``parameter_server (shards: colocated)``."""
    options = ", ".join(f"{name}: {value}" for name, value in part.parameters.items())
    return f"{part.name} ({options})" if options else part.name


def clusters(settings: Matrix) -> Iterator[tuple[str, Cluster]]:
    """The speeds of workers, and every cluster with every size and bandwidth."""
    networks = settings.networks
    for kind in ("flat", "sites"):
        for speeds, highest in settings.speeds.items():
            for workers in settings.workers:
                for bandwidth in settings.bandwidths:
                    yield (
                        speeds,
                        Cluster(
                            kind,
                            workers,
                            bandwidth,
                            per_site=networks.per_site[workers],
                            lan=networks.lan,
                            latency=networks.latency,
                            wan_latency=networks.wan_latency,
                            uneven=highest,
                            efficiency=networks.efficiency,
                            overhead_s=networks.overhead_s,
                            pieces=networks.pieces,
                        ),
                    )
