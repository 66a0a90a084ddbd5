"""Mixed synchronization: BSP inside a site, asynchronous between sites."""

from __future__ import annotations

from dataclasses import dataclass

from slowlink.methods.synchronization._barrier import Barrier


@dataclass
class Mixed(Barrier):
    """Workers of a site meet after ``local_iterations``; their site exchanges with the global
    server without waiting for other sites (GeoMX §2, mixed synchronization)."""

    summary = "BSP inside a site, asynchronous between sites"
    source = "GeoMX §2 (mixed synchronization)"
    asynchronous = True
