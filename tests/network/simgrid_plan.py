"""Runs under the system's Python: plays transfers in SimGrid and prints when each one arrived.

Reads from standard input, as JSON: ``links`` as (bytes/s, seconds), ``hosts``, ``routes`` as
(source, destination, links), ``transfers`` as (source, destination, bytes, start, those it
follows).
"""

from __future__ import annotations

import json
import sys

import simgrid


def main() -> None:
    scene = json.load(sys.stdin)
    engine = simgrid.Engine(["oracle", *sys.argv[1:]])
    zone = simgrid.NetZone.create_full_zone("zone")
    hosts = {node: zone.create_host(f"h{node}", 1e9) for node in scene["hosts"]}
    links = [
        zone.create_link(f"l{i}", rate).set_latency(latency).seal()
        for i, (rate, latency) in enumerate(scene["links"])
    ]
    for src, dst, path in scene["routes"]:
        zone.add_route(
            *(hosts[src].netpoint, hosts[dst].netpoint, None, None),
            *([simgrid.LinkInRoute(links[link]) for link in path], False),
        )
    zone.seal()

    transfers = scene["transfers"]
    arrived = [simgrid.Semaphore(0) for _ in transfers]
    followers = [0] * len(transfers)
    for _, _, _, _, after in transfers:
        for other in after:
            followers[other] += 1
    ends = [0.0] * len(transfers)

    def play(t: int) -> None:
        src, dst, nbytes, start, after = transfers[t]
        for other in after:
            arrived[other].acquire()
        if start > engine.clock:
            simgrid.this_actor.sleep_until(start)
        if src != dst:
            simgrid.Comm.sendto(hosts[src], hosts[dst], nbytes)
        ends[t] = engine.clock
        for _ in range(followers[t]):
            arrived[t].release()

    for t, transfer in enumerate(transfers):
        simgrid.Actor.create(f"t{t}", hosts[transfer[0]], play, t)
    engine.run()
    json.dump(ends, sys.stdout)


main()
