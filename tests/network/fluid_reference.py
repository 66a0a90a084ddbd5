"""A second fluid simulator, slow and literal, in exact arithmetic: the oracle of the fast one.

It looks at every piece of every plan at every instant, and asks a function for the rates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

WAITING, ASKED, WRITING, WRITTEN, READY, LATENT, FLOWING, ARRIVED = range(8)


@dataclass
class Piece:
    plan: int
    transfer: int
    chunk: int
    src: int
    dst: int
    size: Fraction
    latency: Fraction
    links: list[int]
    state: int = WAITING
    asked: Fraction | None = None
    written: Fraction | None = None
    ready: Fraction | None = None
    began: Fraction | None = None
    enters: Fraction | None = None
    remaining: Fraction = Fraction(0)
    arrived: Fraction | None = None
    slot: int = -1


@dataclass
class Job:
    """A plan with the bytes of each transfer, its start, and when own values exist."""

    plan: object
    nbytes: list[float]
    at: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)


def water_filling(flows, capacity, cap):
    """Exact max-min rates: raise all, freeze at the first full link, repeat."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(flows):
        tightest = None
        for link, total in capacity.items():
            crossing = [i for i, links in enumerate(flows) if link in links]
            free = [i for i in crossing if i not in rates]
            if free:
                share = (total - sum(rates[i] for i in crossing if i in rates)) / len(free)
                if tightest is None or share < tightest[0]:
                    tightest = share, free
        if tightest is None or (cap is not None and cap <= tightest[0]):
            rates |= {i: cap for i in range(len(flows)) if i not in rates}
        else:
            rates |= dict.fromkeys(tightest[1], tightest[0])
    return [rates[i] for i in range(len(flows))]


def lexicographic(flows, capacity, cap):
    """Max-min rates by linear programs: raise the lowest rate, fix who cannot rise, repeat."""
    n, links = len(flows), sorted(capacity)
    crosses = np.array([[link in path for path in flows] for link in links], float)
    limits = np.array([float(capacity[link]) for link in links])
    top = None if cap is None else float(cap)
    fixed: dict[int, float] = {}

    def solve(objective, lowest):
        bounds = [(fixed[i],) * 2 if i in fixed else (lowest, top) for i in range(n)]
        if len(objective) == n:
            return linprog(-objective, crosses, limits, bounds=bounds)
        # One more variable: the level that every free rate reaches.
        free = [i for i in range(n) if i not in fixed]
        above = np.zeros((len(free), n + 1))
        above[np.arange(len(free)), free], above[:, n] = -1, 1
        rows = np.vstack([np.hstack([crosses, np.zeros((len(links), 1))]), above])
        ceiling = np.concatenate([limits, np.zeros(len(free))])
        return linprog(-objective, rows, ceiling, bounds=[*bounds, (0, top)])

    while len(fixed) < n:
        level = solve(np.eye(n + 1)[n], 0.0).x[n]
        stuck = {}
        for i in range(n):
            if i not in fixed:
                best = solve(np.eye(n)[i], level * (1 - 1e-12)).x[i]
                if best <= level * (1 + 1e-9):
                    stuck[i] = level
        fixed |= stuck
    return [Fraction(fixed[i]) for i in range(n)]


def run(topology, paths, jobs, faults, cap=None, rates_of=water_filling, message=0, sums=None):
    """Arrival of every transfer of every job: ``ends[job][transfer]`` in exact seconds.

    ``paths`` maps (src, dst) to links; ``cap`` is bytes/s. A node writes what it sends, ``message``
    seconds a piece and one at a time, and adds up ``sums`` bytes/s of what it gets to be added.
    """
    whole = {
        link: Fraction(rate) / 8
        for link, rate in enumerate(topology.link_rate.tolist())
        if rate < float("inf")
    }
    if sums is not None:
        whole |= {len(topology.link_rate) + node: Fraction(sums) for node in topology.workers}
    latency = [Fraction(value) for value in topology.link_latency.tolist()]
    pauses = [(node, Fraction(begin), Fraction(end)) for node, begin, end in faults.pauses]
    every_fault = [*faults.pauses, *faults.rates, *faults.bursts]
    edges = [Fraction(edge) for fault in every_fault for edge in fault[1:3]]
    pieces: dict[tuple[int, int, int], Piece] = {}
    slots: dict[tuple[int, int, int], list[Fraction | None]] = {}
    for j, job in enumerate(jobs):
        plan = job.plan
        for t in range(len(plan)):
            src, dst = int(plan.src[t]), int(plan.dst[t])
            links = paths[src, dst]
            seconds = sum((latency[link] for link in links), Fraction(0))
            if sums is not None and plan.op[t] == 0:
                links = [*links, len(topology.link_rate) + dst]
            for c in range(plan.chunks):
                pieces[j, t, c] = Piece(
                    *(j, t, c, src, dst, Fraction(job.nbytes[t]) / plan.chunks),
                    seconds,
                    links,
                )
            slots.setdefault((j, src, dst), [Fraction(-1)] * plan.window)

    def before(piece):
        return pieces[piece.plan, piece.transfer, piece.chunk - 1]

    def is_written(piece):
        return message > 0 and piece.src != piece.dst

    def waits_until(piece):
        """The time from which ``piece`` may be written, or sent where nothing is; None if that is
        not known yet."""
        job = jobs[piece.plan]
        plan, t = job.plan, piece.transfer
        times = [Fraction(job.at)]
        needed = [(piece.plan, int(d), piece.chunk) for d in plan.dependencies(t)]
        if not plan.overlap:
            needed += [
                key for key in pieces if key[0] == piece.plan and plan.phase[key[1]] < plan.phase[t]
            ]
        copied = any(plan.op[d] == 1 for d in plan.dependencies(t))
        if piece.src in plan.contributors and not copied:
            times.append(Fraction(job.ready.get(piece.src, 0)))
        for key in needed:
            if pieces[key].state != ARRIVED:
                return None
            times.append(pieces[key].arrived)
        if piece.chunk and is_written(piece):
            if before(piece).state < WRITTEN:
                return None
            times.append(before(piece).written)
        elif piece.chunk:
            if before(piece).state != ARRIVED:
                return None
            times.append(before(piece).arrived - piece.latency)
        return max(times)

    def paused(node, now):
        return any(n == node and begin <= now < end for n, begin, end in pauses)

    def at(now, of_links):
        return [(fault[0], fault[3]) for fault in of_links if fault[1] <= now < fault[2]]

    def capacity(now):
        left = dict(whole)
        for link, rate in at(now, faults.rates):
            left[link] = min(left[link], Fraction(rate) / 8)
        return left

    def shares(flowing, now):
        """Rates of the pieces that flow; background flows cross their own link and no other."""
        background = [[link] for link, flows in at(now, faults.bursts) for _ in range(flows)]
        crossed = [piece.links for piece in flowing] + background
        return rates_of(crossed, capacity(now), cap)[: len(flowing)] if flowing else []

    def arrive(piece, now):
        piece.state, piece.arrived = ARRIVED, now
        if piece.slot >= 0:
            slots[piece.plan, piece.src, piece.dst][piece.slot] = now - piece.latency

    def settle(now):
        """Everything that happens at ``now``, until nothing more does."""
        moved = True
        while moved:
            moved = False
            for piece in pieces.values():
                if piece.state == WAITING:
                    when = waits_until(piece)
                    if when is not None and when <= now:
                        if is_written(piece):
                            piece.state, piece.asked = ASKED, when
                        else:
                            piece.state, piece.ready = READY, when
                        if piece.src == piece.dst:
                            arrive(piece, now)
                        moved = True
                elif piece.state == WRITING and piece.written <= now:
                    piece.state = WRITTEN
                    moved = True
                elif piece.state == WRITTEN:
                    if not piece.chunk or before(piece).state == ARRIVED:
                        piece.state, piece.ready = READY, piece.written
                        if piece.chunk:
                            left = before(piece).arrived - piece.latency
                            piece.ready = max(piece.ready, left)
                        moved = True
                elif piece.state == LATENT and piece.enters <= now:
                    piece.state, piece.remaining = FLOWING, piece.size
                    moved = True
                elif piece.state == FLOWING:
                    free = cap is None and not any(link in whole for link in piece.links)
                    if free or piece.remaining == 0:
                        arrive(piece, now)
                        moved = True
            if moved:
                continue
            # Each node writes what it was asked for first; then first chunks, then lowest numbers.
            for node in topology.workers.tolist():
                mine = [(key, piece) for key, piece in pieces.items() if piece.src == node]
                asked = [
                    (piece.asked, key[2], key[0], key[1])
                    for key, piece in mine
                    if piece.state == ASKED
                ]
                writes = any(piece.state == WRITING for _, piece in mine)
                if asked and not writes and not paused(node, now):
                    _, c, j, t = min(asked)
                    pieces[j, t, c].state, pieces[j, t, c].written = WRITING, now + message
                    moved = True
            # Of those that could begin, who can first; then first chunks, then lowest numbers.
            could = []
            for key, piece in pieces.items():
                if piece.state != READY or paused(piece.src, now):
                    continue
                times, slot = [piece.ready], -1
                if jobs[piece.plan].plan.window:
                    mine = slots[piece.plan, piece.src, piece.dst]
                    free = [k for k, since in enumerate(mine) if since is not None]
                    if not free:
                        continue
                    slot = min(free, key=lambda k: (mine[k], k))
                    times.append(mine[slot])
                times += [end for n, _, end in pauses if n == piece.src and end <= now]
                could.append((max(times), key[0], key[2], key[1], slot))
            if could:
                began, j, c, t, slot = min(could)
                piece = pieces[j, t, c]
                piece.began, piece.slot = began, slot
                if slot >= 0:
                    slots[j, piece.src, piece.dst][slot] = None
                piece.state, piece.enters = LATENT, began + piece.latency
                moved = True

    now = Fraction(0)
    while True:
        settle(now)
        if all(piece.state == ARRIVED for piece in pieces.values()):
            return [
                [pieces[j, t, job.plan.chunks - 1].arrived for t in range(len(job.plan))]
                for j, job in enumerate(jobs)
            ]
        flowing = [
            piece
            for piece in pieces.values()
            if piece.state == FLOWING and not paused(piece.src, now)
        ]
        rates = shares(flowing, now)
        times = [now + p.remaining / rate for p, rate in zip(flowing, rates, strict=True) if rate]
        times += [piece.enters for piece in pieces.values() if piece.state == LATENT]
        times += [piece.written for piece in pieces.values() if piece.state == WRITING]
        times += edges
        for piece in pieces.values():
            if piece.state == WAITING and (when := waits_until(piece)) is not None:
                times.append(when)
        then = min(time for time in times if time > now)
        for piece, rate in zip(flowing, rates, strict=True):
            piece.remaining -= rate * (then - now)
            if rates_of is lexicographic and abs(piece.remaining) < Fraction(1, 10**9):
                piece.remaining = Fraction(0)
        now = then
