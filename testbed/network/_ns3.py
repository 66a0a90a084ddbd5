"""Runs in a process of its own: the scene of ``scene.npz`` in ns-3, to ``result.npz``.

ns-3 keeps its clock and defaults for a whole process, and a failed assertion ends it. Only what a
simulation needs is loaded: ns-3's own module loads all of its models, and takes several times as
long. It is compiled on import, which takes seconds, so that who imports it once can be forked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

os.environ["EXTRA_CLING_ARGS"] = "-O2"
warnings.filterwarnings("ignore", "CPyCppyy API not found")  # headers that nothing here includes
import cppyy  # noqa: E402

LIBRARIES = ("core", "network", "stats", "bridge", "traffic-control", "point-to-point", "internet")
ETHERNET_BYTES = 38
"""Around an IP packet on a wire: preamble, header, check sequence and gap."""


def main(argv: Sequence[str]) -> int:
    """Simulate what is in the folder ``argv``."""
    os.chdir(*argv)
    with np.load("scene.npz") as file:
        scene = {key: file[key] for key in file.files}
    settings = PACKET.Settings()
    for key, value in json.loads(str(scene["tcp"])).items():
        setattr(settings, key, value)
    settings.frame_bytes = ETHERNET_BYTES
    phases = int(scene["phase"].max(initial=0)) + 1
    sizes = (int(scene[key]) for key in ("n_nodes", "chunks"))
    simulation = PACKET.Simulation(settings, *sizes, phases, int(scene["window"]))

    for node in scene["hosts"].tolist():
        simulation.Host(node)
    for link in columns(scene, "link_src", "link_dst", "link_rate", "link_latency"):
        simulation.Link(*link)
    links = cut(scene["path_ptr"], scene["path_links"])
    for (src, dst), path in zip(scene["pairs"].tolist(), links, strict=True):
        simulation.Path(src, dst, path)
    for node, begin, end in scene["pauses"].tolist():
        simulation.Pause(int(node), begin, end)
    dependencies = cut(scene["dep_ptr"], scene["dep_idx"])
    transfers = columns(scene, "src", "dst", "nbytes", "phase")
    for transfer, after in zip(transfers, dependencies, strict=True):
        simulation.Transfer(*transfer, after)

    try:
        simulation.Run()
    except Exception as error:  # a C++ exception; its traceback would say nothing more
        print(str(error).rpartition("runtime_error: ")[2])
        return 1
    n = len(scene["src"])
    times = [[time(i) for i in range(n)] for time in (simulation.Start, simulation.End)]
    counts = {
        key: getattr(simulation, key)
        for key in ("drops", "timeouts", "recoveries", "events", "wall_s")
    }
    np.savez("result.npz", times=np.array(times).reshape(2, n), counts=json.dumps(counts))
    return 0


def load():
    """The compiled simulation, in ns-3's C++."""
    (root,) = importlib.util.find_spec("ns3").submodule_search_locations
    cppyy.add_include_path(str(Path(root, "include")))
    for name in LIBRARIES:
        (library,) = Path(root, "lib64").glob(f"libns3.[0-9]*[0-9]-{name}.so")
        cppyy.load_library(str(library))
    cppyy.include(str(Path(__file__).with_name("packet.cc")))
    # Cling would print a debugger's lines after those that say what went wrong.
    for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        signal.signal(number, signal.SIG_DFL)
    return cppyy.gbl.slowlink


def columns(scene: dict[str, np.ndarray], *keys: str):
    return zip(*(scene[key].tolist() for key in keys), strict=True)


def cut(ptr: np.ndarray, items: np.ndarray) -> list[list[int]]:
    return [items[a:b].tolist() for a, b in zip(ptr[:-1], ptr[1:], strict=True)]


PACKET = load()
