"""RAT results in closed form, roughly what the simulators give, for tests of the report only."""

from __future__ import annotations

import math
from itertools import accumulate, product
from operator import mul

import numpy as np
import pandas as pd

from slowlink.testbed.results import Row, frame
from slowlink.workflow import settings

# The recipe with everything as RAT prints it.
RECIPE = settings.load({"scale": "paper"}, names=False).recipes["rat"].model_dump(mode="json")
MB, RACKS, SPINES = 97.0, 4, 2
BARRIER = {4: 2.25, 8: 2.50, 16: 2.62, 32: 2.69, 64: 2.72}
LAYERS = ["rack", "pod", "zone"]
DRAWS = 5
# How a pause of one per cent of an exchange hits: the power of k that it grows with.
FRAGILE = {"Ring": 1.0, "BlueConnect": 0.9, "RAT": 0.45, "RAT barrier": 0.55, "PS": 0.43}


def normalised(method: str, w: int, racks: int = RACKS) -> float:
    """Completion time on ``racks`` racks of ``w``, in units of vector over a card's rate."""
    n = w * racks
    ring = 2 * (n - 1) / n
    times = {
        "PS": max(ring, 0.75 * w),
        "Ring": ring * 1.018,
        "RAT": ring * 1.02,
        "RAT barrier": BARRIER.get(w, 2.7),
        "k-nomial tree": 2 * math.log2(n),
        "Butterfly full mix": math.log2(n) * max(1, w / 2),
        "Ring oblivious": max(ring, 0.7 * w),
        "Halving-doubling far": max(ring, 0.75 * w),
        "ParameterHub": 2.0,
        "PLink": 1.0 * w,
    }
    return times.get(method, ring)


def counts(method: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Table 1 as inferred: largest egress of a region by layer in vectors, and chains."""
    sizes = list(accumulate(shape, mul))
    n, layers = sizes[-1], len(shape) - 1
    least = [2 * (n // s - 1) / (n // s) for s in sizes[:-1]]
    direct = [2 * s * (n - s) / n for s in sizes[:-1]]
    once = [2 * (n - 1) / n] * layers
    racks = [value * s / shape[0] for value, s in zip(least, sizes, strict=False)]
    steps, logs = sum(side - 1 for side in shape), math.ceil(math.log2(n))
    egress, chain = {
        "PS": (direct, 1),
        "Ring": (once, n - 1),
        "Ring oblivious": (direct, n - 1),
        "k-nomial tree": ([logs] * layers, logs),
        "Butterfly full mix": ([s * math.log2(n / s) for s in sizes[:-1]], logs),
        "Halving-doubling": (least, logs),
        "Halving-doubling far": (direct, logs),
        "BlueConnect": (least, steps),
        "HiPS PS": (least, layers + 1),
        "HiPS ring": (least, steps),
        "ParameterHub": (racks, 2),
        "PLink": (racks, 2),
        "RAT": (least, layers + 1),
        "RAT barrier": (least, layers + 1),
    }[method]
    found = {"chain": chain, "chain_whole": 2 * chain, "node_egress": 2 * (n - 1) / n}
    for layer, sent, needed in zip(LAYERS, egress, least, strict=False):
        found |= {f"egress_{layer}": sent, f"egress_{layer}_formula": sent}
        found[f"least_{layer}"] = needed
    return found | {"chain_formula": chain}


def slowed(method: str, paused: int, period: float, draw: int) -> float:
    """How many times slower an exchange of 38 ms is with pausing nodes."""
    power = FRAGILE.get(method, 0.8)
    random = np.random.default_rng([len(method), paused, int(1e5 * period), draw])
    return (1 + (period / 0.0045) ** 0.75 * paused**power / 2.2) * random.lognormal(0, 0.02)


def called(at: dict) -> str:
    """What a person calls the place of a row."""
    return " ".join(str(value) for value in at.values())


def results(scale: str = "desk") -> pd.DataFrame:
    """Every row that RAT's experiments write."""
    rows: list[Row] = []

    def add(experiment: str, at: dict, metric: str, value: float, unit: str = "1", **more) -> None:
        base = {"model": "resnet50", "synchronization": "bsp", "compression": "identity"}
        base |= {"evidence": "simulated", "scale": scale, "case": called(at)}
        at = {key: one if isinstance(one, str) else float(one) for key, one in at.items()}
        rows.append(Row(document="rat", experiment=experiment, at=at, metric=metric,
                        value=float(value), unit=unit, **(base | more)))  # fmt: skip

    def refuse(experiment: str, at: dict, metric: str, **more) -> None:
        rows.append(Row(document="rat", experiment=experiment, at=at, metric=metric, unit="1",
                        scale=scale, evidence="simulated", status="failed", model="resnet50",
                        case=called(at), reason=f"{at['method']} needs a power of two",
                        **more))  # fmt: skip

    _figure6(add)
    _faults(add)
    _table1(add, refuse)
    _packet(add)
    for chunks, o in product([1, 2, 4, 8, 16, 32, 64], [8]):
        formula = 2 * 63 / 64 + 0.65 / chunks
        at = {"method": "RAT", "oversubscription": o, "chunks": chunks}
        add("pipelining", at, "normalised_time", formula * 1.001, workers=64)
        for metric, value in (("limit", 2 * 63 / 64), ("fill_formula", formula)):
            add("pipelining", at, metric, value, evidence="computed", workers=64)
    for what, method in product(RECIPE["disturbances"]["kinds"], RECIPE["disturbances"]["methods"]):
        hit = {"failed cable": 1.4, "burst": 1.2, "priority": 1.9}[what]
        at = {"method": method, "kind": what}
        for place in range(RACKS):
            value = hit * FRAGILE.get(method, 0.8) + 1 + place / 100
            add("disturbances", at, "slowdown", value, seed=place)
    chosen = RECIPE["granularity"]
    for method, cost, pieces in product(RECIPE["methods"], chosen["costs"], chosen["pieces"]):
        at = {"method": method, "pieces": pieces, "cost": cost}
        value = normalised(method, chosen["per_rack"]) * (1 + 1 / pieces + (cost != "none"))
        add("granularity", at, "normalised_time", value)
    for number, name in enumerate(RECIPE["asymmetric"]["scenarios"]):
        for kind, loss in (("even", 1.4 + number / 5), ("weighted", 1.05)):
            at = {"method": "RAT", "split": kind, "scenario": name}
            add("asymmetric", at, "completion_time", 0.04 * loss, "s", workers=64)
            add("asymmetric", at, "bound_time", 0.04 * loss * 0.97, "s", evidence="computed")
    for method, n in product(["PS", "Ring", "RAT"], RECIPE["scale"]["workers"]):
        at, transfers = {"method": method}, 2 * n * (n - 1)
        add("scale", at, "transfers", transfers, workers=n, evidence="computed")
        add("scale", at, "wall_time", 0.002 + transfers / 2.5e6, "s", workers=n,
            evidence="measured")  # fmt: skip
        add("scale", at, "peak_memory", 200 + transfers / 2e3, "MB", workers=n,
            evidence="measured")  # fmt: skip
    return frame(rows)


def _figure6(add) -> None:
    for w, g in product(RECIPE["figure6"]["per_rack"], (10, 40)):
        o, unit_s = w // SPINES, MB * 8e6 / (g * 1e9)
        place = {"workers": RACKS * w, "bandwidth": g * 1e9}
        for method in ("PS", "Ring", "RAT", "RAT barrier"):
            at, value = {"method": method, "oversubscription": o}, normalised(method, w)
            for variant, factor in (("balanced", 1.0), ("ecmp", 1.3)):
                here = place | {"variant": variant}
                add("figure6", at, "completion_time", value * factor * unit_s, "s", **here)
                add("figure6", at, "normalised_time", value * factor, **here)
            add("figure6", at, "bound_time", value * 0.98 * unit_s, "s", evidence="computed",
                **place)  # fmt: skip
        at, needed = {"oversubscription": o}, 0.16 * unit_s / (RACKS * w)
        add("latency", at, "needed_latency", needed, "s", **place)
        for hop in RECIPE["latency_needed"]["hops"]:
            add("latency", at | {"hop": hop}, "ring_over_rat", 0.98 + 0.16 * hop / needed, **place)
        if g == 40:
            for method in RECIPE["methods"]:
                value, here = normalised(method, w), place | {"variant": "balanced"}
                at = {"method": method, "oversubscription": o}
                add("exchanges", at, "completion_time", value * unit_s, "s", **here)
                add("exchanges", at, "normalised_time", value, **here)

    unsaid = ["as in Figure 6", "paths by hashing", "RAT waits at every level"]
    for name in [*unsaid, *RECIPE["silent"]["taken"]]:
        chain = 1.16 if name == "Ring's messages whole, 10 µs a cable" else 1.0
        least = 0.8 if name == "RAT waits at every level" else 1.0
        told = {"ring_over_rat": chain, "least_ring_over_rat": least, "least_ps_over_ring": 1.5}
        told |= {"largest_ring_over_rat": 1.5 * chain}
        for metric, value in told.items():
            add("silent", {"taken": name}, metric, value)

    ratios = {w: normalised("PS", w) / normalised("RAT", w) for w in RECIPE["figure6"]["per_rack"]}
    highest = ratios[max(ratios)]
    over = {"all settings": np.mean(list(ratios.values())), "the largest": max(ratios.values())}
    over["bandwidths, at the highest oversubscription"] = highest
    for what, value in over.items():
        add("gains", {"over": what}, "ps_over_rat", value)


def _faults(add) -> None:
    figure, place = RECIPE["figure7"], {"workers": 64, "bandwidth": 40e9}
    free = MB * 8e6 / 40e9 * 2
    for method in figure["methods"]:
        add("figure7", {"method": method, "k": 0}, "completion_time", free, "s", **place)
    cells = {}
    for k, d, draw in product(figure["paused"], figure["periods"], range(DRAWS)):
        times = {method: slowed(method, k, d, draw) for method in figure["methods"]}
        for method, value in times.items():
            at = {"method": method, "k": k, "d": d}
            add("figure7", at, "completion_time", value * free, "s", seed=draw, **place)
            add("figure7", at, "slowdown", value, seed=draw, **place)
        cells.setdefault((k, d), []).append(times)
    for metric, ours, theirs in [
        *(("ring_over", "Ring", other) for other in ("PS", "RAT", "itself")),
        ("rat_over", "RAT", "PS"),
    ]:
        ratio = {
            cell: [t[ours] / t.get(theirs, 1.0) for t in draws] for cell, draws in cells.items()
        }
        worst = max(ratio, key=lambda cell: np.mean(ratio[cell]))
        parts = {"mean": list(ratio), "worst": [worst]}
        for index, (half, rest) in enumerate(
            [("few paused", "many paused"), ("short periods", "long periods")]
        ):
            middle = np.median([figure["paused"], figure["periods"]][index])
            parts[f"mean of {half}"] = [cell for cell in ratio if cell[index] <= middle]
            parts[f"mean of {rest}"] = [cell for cell in ratio if cell[index] > middle]
        for part, chosen in parts.items():
            at = {"against": theirs, "over": part}
            for draw in range(DRAWS):
                add("joint", at, metric, np.mean([ratio[c][draw] for c in chosen]), seed=draw)
        add("joint", at | {"over": "worst"}, f"{metric}_paused", worst[0])
        add("joint", at | {"over": "worst"}, f"{metric}_period", worst[1], "s")
    mean = {
        cell: (np.mean([t["Ring"] for t in seeds]), np.mean([t["Ring"] / t["RAT"] for t in seeds]))
        for cell, seeds in cells.items()
    }
    off = {cell: np.abs(np.log(np.divide(value, (12, 5.7)))) for cell, value in mean.items()}
    best = min(off, key=lambda cell: math.hypot(*off[cell]))
    add("joint", {"over": "nearest"}, "paused_nodes", best[0])
    add("joint", {"over": "nearest"}, "redraw_period", best[1], "s")
    near = np.array(list(off.values())) < math.log(1.1)
    shares = {"itself": near[:, 0], "RAT": near[:, 1], "both": near.all(axis=1)}
    for against, inside in shares.items():
        add("joint", {"against": against, "over": "share"}, "near", 100 * inside.mean(), "%")
    for method in RECIPE["methods"]:
        at = {"method": method, "faults": "free"}
        add("survival", at, "completion_time", free, "s", **place)
        for draw in range(DRAWS):
            value, at = slowed(method, 16, 0.008, draw), {"method": method, "faults": "paused"}
            add("survival", at, "completion_time", value * free, "s", seed=draw, **place)
            add("survival", at, "slowdown", value, seed=draw, **place)


def _table1(add, refuse) -> None:
    for shape, method in product(RECIPE["table1"]["shapes"], RECIPE["methods"]):
        at = {"method": method, "shape": "x".join(map(str, shape))}
        if method == "Butterfly full mix" and math.prod(shape) & (math.prod(shape) - 1):
            refuse("table1", at, "chain")
            continue
        for metric, value in counts(method, tuple(shape)).items():
            add("table1", at, metric, value, evidence="computed")
    for n in RECIPE["chain_blocking"]["workers"]:
        for j in range(1, n + 1):
            at = {"method": "Ring", "node": j}
            add("chain_blocking", at, "sent_share", (j - 1) / n, workers=n)
        lost = (n - 1) / (2 * n)
        add("chain_blocking", {"method": "Ring"}, "utilisation_loss", lost, workers=n)
    for metric, value in {"cross_flows": 16, "in_rack_flows": 7, "extra_load": 9 / 7}.items():
        add(
            "cross_load",
            {"method": "PS", "racks": 2, "per_rack": 4},
            metric,
            value,
            evidence="computed",
        )


def _packet(add) -> None:
    large = RECIPE["packet_large"]
    for method in large["methods"]:
        at = {"method": method, "oversubscription": large["oversubscription"], "faults": "free"}
        for evidence, seconds in (("simulated", 0.01), ("packet", 0.0101)):
            add("packet_large", at, "completion_time", seconds, "s", evidence=evidence, workers=64)
        for simulator, seconds in (("ns-3", 8.0), ("fluid", 0.004)):
            add("packet_large", at, "wall_time", seconds, "s", variant=simulator,
                evidence="measured", workers=64)  # fmt: skip
    chosen = RECIPE["packet"]
    cells = [(o, "free", [-1]) for o in chosen["oversubscription"]]
    cells += [(o, "paused", range(3)) for o in chosen["paused_oversubscription"]]
    for (o, fault, seeds), method in product(cells, chosen["methods"]):
        crosses = 6.0 if method == "PS" else 1.5
        for seed in seeds:
            free = max(2 * 15 / 16, crosses * o / 4) * 32 * 8e6 / 10e9
            fluid = free * (slowed(method, 4, 0.01, seed) if fault == "paused" else 1)
            packets = fluid * (1.03 + 0.04 * (method == "PS") * o / 8)
            at = {"method": method, "oversubscription": o, "faults": fault}
            place = {"seed": seed, "workers": 16}
            why = "incast fills the switch buffer" if packets > 1.1 * fluid else ""
            add("packet", at, "completion_time", fluid, "s", **place)
            add("packet", at, "completion_time", packets, "s", evidence="packet", reason=why,
                **place)  # fmt: skip
            for simulator, seconds in (("ns-3", 8.0), ("fluid", 0.004)):
                add("packet", at, "wall_time", seconds, "s", variant=simulator,
                    evidence="measured", **place)  # fmt: skip
