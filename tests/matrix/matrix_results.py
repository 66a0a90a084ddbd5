"""Results of a small matrix, made up so that who wins where is known."""

import math

import pandas as pd

from slowlink.testbed.results import Row, coordinates, frame
from slowlink.workflow.matrix.curves import SHOWN
from slowlink.workflow.matrix.ranking import condense

METHODS = {
    # label: (group, seconds computing, bytes, rounds to the target by seed; None: never)
    "dense": ("exchange", 1.0, 1e9, [10, 11, 12]),
    "twin": ("exchange", 1.01, 1e9, [10, 11, 12]),
    "sparse": ("codec", 2.0, 1e7, [20, 22, 24]),
    "hasty": ("codec", 0.5, 1e6, [None, None, None]),
    "lucky": ("codec", 4.0, 1e7, [9, None, 10]),
    "sites only": ("system", 1.5, 1e8, [14, 16, 18]),
    "loose": ("policy", 3.0, 1e9, [11, 12, 13]),
    "elsewhere": ("combination", 1.2, 1e8, None),
}
TRAINED_AS = {label: label for label in METHODS if label != "elsewhere"} | {"twin": "dense"}
TRAINED_AT = dict.fromkeys(TRAINED_AS, ("", "")) | {"loose": ("flat", "even")}
"""It looks at the clock."""
DENSE = ["dense", "twin"]
ROUNDS, MOST_ROUNDS, GRID, TARGET = 6, 30, [0.01, 0.05], 90.0
GROUPS = {label: group for label, (group, *_) in METHODS.items()}
MODELS, WORKERS, BANDWIDTHS = ("lenet5", "resnet50"), (8, 16), (1e7, 1e9, 1e11)
KINDS = (("flat", "even"), ("sites", "even"))

STEADY = [label for label in METHODS if label != "loose"]
RESIDUAL_AS = {"dense": "dense", "twin": "dense", "sparse": "sparse"}
"""What is recorded of resnet50, where :func:`made` is asked for it."""
PLACES = GROUPS, TRAINED_AS, RESIDUAL_AS, TRAINED_AT, DENSE, ROUNDS, MOST_ROUNDS, GRID, STEADY
"""What is condensed besides the results."""


def round_s(label: str, bandwidth: float) -> float:
    _, compute, nbytes, _ = METHODS[label]
    return compute + 8 * nbytes / bandwidth


def wan_bytes(label: str) -> float:
    """In another order than what workers send: less of it leaves where there are servers inside."""
    return METHODS[label][2] / (1000 if label == "dense" else 2)


RECIPE: dict = {}


def made(reach: bool = True, trained: bool = True, residual: bool = False) -> pd.DataFrame:
    """Rows of the experiments ``cells``, ``training`` and ``tuning`` as one table, and of
    ``residual`` if asked for."""
    more = _residual() if residual else ()
    return frame([*_cells(), *(_training(reach) if trained else ()), *more])


def results(rows: pd.DataFrame | None = None, *places) -> pd.DataFrame:
    """What is condensed of rows, those made up if no others are given, and what is asked beside."""
    short = condense(made() if rows is None else rows, *(places or PLACES))
    return frame([*short, *answers(), *effort()])


def answers():
    """What each answer of ``sparse`` is worth in one cell, and who is first if a price is off."""
    at = dict(model="resnet50", workers=16, bandwidth=1e9)
    fields = dict(document="matrix", scale="smoke", evidence="simulated", device="v100", **at)
    here = dict(network="flat", speeds="even")
    chosen = {"exchange": "rat", "codec": "fp16", "fusion": "layer_fusion"}
    others = {"exchange": {"ring": 2.2, "plink": 2.02}, "codec": {"top_k": 1.8, "identity": 6.0},
              "fusion": {"layer_wise": 2.5}}  # fmt: skip
    for question, answer in chosen.items():
        for name, seconds in {answer: 2.0, **others[question]}.items():
            told = dict(method="sparse", question=question, answer=name, chosen=answer, **here)
            more = dict(experiment="worth", metric="round_time", unit="s", case=name)
            yield Row(**fields, **more, at=told, value=seconds)
    for name, seconds in (("rat", 50.0), ("ring", 60.0)):
        told = dict(method="dense", question="exchange", answer=name, chosen="rat", **here)
        more = dict(experiment="worth", metric="time_to_target", unit="s", case=name)
        yield Row(**fields, **more, at=told, value=seconds)
    told = dict(method="sparse", group="policy", best="ssp with fp16 by one server", **here)
    told["systems"] = 3.0
    more = dict(experiment="beyond", metric="times_the_best", unit="1", case="policy")
    yield Row(**fields, **more, at=told, value=4.0)
    for change, first, times in (
        ("coding twice as dear", "dense", 1.5),
        ("latency", "sparse", 1.0),
    ):
        told = dict(method="sparse", by="round", change=change, first=first, **here)
        more = dict(experiment="robust", metric="times_the_best", unit="1", case=change)
        yield Row(**fields, **more, at=told, value=times)


def effort():
    """How many systems there are, and the processor time of all in one cell."""
    base = dict(document="matrix", experiment="effort", scale="smoke", evidence="computed")
    for metric, value in (("systems", 21), ("classes", 6), ("systems_beyond", 700)):
        yield Row(**base, metric=metric, value=value, unit="1")
    for cache, seconds in (("cold", 8.0), ("warm", 0.05)):
        where = dict(at=dict(cache=cache), model="resnet50", workers=16)
        yield Row(**base, **where, metric="processor_time", value=seconds, unit="s")


def form() -> pd.DataFrame:
    """Times of two methods at three rates, as the form for advice has them."""
    return frame(
        Row(document="matrix", experiment="advice",
            at=dict(method=label, network="flat", speeds="even"),
            model="resnet50", workers=16, bandwidth=bandwidth, scale="desk", evidence="simulated",
            unit="s", metric=f"{part}_time", value=index / bandwidth * 1e9)
        for index, label in enumerate(("ring", "top_k"), 1)
        for bandwidth in (1e7, 1e9, 1e10)
        for part in SHOWN
    )  # fmt: skip


def condensed(**how: bool) -> pd.DataFrame:
    """The same of made-up rows, with a column a coordinate."""
    return coordinates(results(made(**how)))


def _row(label: str, **fields) -> Row:
    exchange = "hips" if label == "sites only" else "ring"
    # Changes of several steps may travel uncompressed, too, and are not all of every round.
    codec = "identity" if label in ("dense", "twin", "loose") else "top_k"
    base = dict(document="matrix", case=label, at=dict(method=label), exchange=exchange)
    base |= dict(compression=codec, scale="smoke")
    base |= dict(
        synchronization="bsp",
        fusion="layer_fusion",
        evidence="simulated",
    )
    return Row(**(base | fields))


def _cells():
    for label, (_, compute, nbytes, _) in METHODS.items():
        for model in MODELS:
            for network, speeds in KINDS:
                for workers in WORKERS:
                    for bandwidth in BANDWIDTHS:
                        place = dict(experiment="cells", model=model)
                        place["at"] = dict(method=label, network=network, speeds=speeds)
                        place |= dict(workers=workers, bandwidth=bandwidth)
                        if label == "sites only" and network == "flat":
                            yield _row(label, **place, metric="round_time", unit="s",
                                       status="failed", reason="star has no sites")  # fmt: skip
                            continue
                        total = round_s(label, bandwidth)
                        seconds = dict(round_time=total, compute_time=compute, wait_time=0.0)
                        seconds |= dict(compress_time=0.0, exchange_time=total - compute)
                        for name, value in seconds.items():
                            yield _row(label, **place, metric=name, value=value, unit="s")
                        yield _row(label, **place, metric="bytes_per_round", value=nbytes, unit="B")
                        if network == "sites":
                            yield _row(label, **place, metric="wan_bytes", value=wan_bytes(label),
                                       unit="B")  # fmt: skip
                        yield _row(label, **place, metric="scaling_efficiency", unit="1",
                                   value=compute / total / workers)  # fmt: skip


def _residual():
    """Dense sends all in 100 rounds, sparse needs so many that it is later on every network."""
    for label, needed in (("dense", 100), ("sparse", 10**5)):
        place = dict(model="resnet50", workers=8, dataset="cifar10", evidence="recorded")
        place |= dict(experiment="residual", bandwidth=1e9)
        for rung, lr in ((60, 0.01), (60, 0.05), (180, 0.05)):
            yield _row(label, **place | dict(experiment="residual_rates"), seed=0, unit="%",
                       at=dict(method=label, lr=lr, rung=rung), metric="final_accuracy",
                       value=rung / 10 + lr)  # fmt: skip
        yield _row(label, **place, metric="chosen_lr", value=0.05, unit="1")
        for seed in (1, 2, 3):
            named = dict(place, seed=seed)
            yield _row(label, **named, metric="final_accuracy", value=60 + seed, unit="%", round=9)
            yield _row(label, **named, metric="target_accuracy", value=58.0, unit="%")
            yield _row(label, **named, metric="rounds_to_target", value=needed + seed,
                       unit="rounds")  # fmt: skip
            yield _row(label, **named, metric="held_accuracy", value=59 + seed, unit="%")


def _training(reach: bool):
    for label in dict.fromkeys(TRAINED_AS.values()):
        place = dict(model="lenet5", workers=8, dataset="mnist", evidence="measured")
        for lr in GRID:
            broken = dict(status="failed", reason="loss is nan", value=math.nan)
            broken = broken if (label, lr) == ("lucky", 0.05) else {}
            yield _row(label, **place, experiment="tuning", at=dict(method=label, lr=lr), seed=1,
                       unit="%", metric="final_accuracy",
                       **{"value": 50 + 100 * lr} | broken)  # fmt: skip
        place |= dict(experiment="training", bandwidth=1e9)
        yield _row(label, **place, metric="chosen_lr", value=0.05, unit="1")
        for seed, rounds in enumerate(METHODS[label][3], 1):
            for at in (5, 10):
                yield _row(label, **place, seed=seed, metric="test_accuracy", value=5.0 * at,
                           unit="%", round=at)  # fmt: skip
            accuracy = 95 - METHODS[label][1] + 0.1 * seed
            if (label, seed) == ("lucky", 2):
                yield _row(label, **place, seed=seed, metric="final_accuracy", unit="%",
                           status="failed", reason="loss is nan")  # fmt: skip
            else:
                # A policy whose rounds come several at a time is judged a little later.
                yield _row(label, **place, seed=seed, metric="final_accuracy", value=accuracy,
                           unit="%", round=ROUNDS + 2 * (label == "loose"))  # fmt: skip
            yield _row(label, **place, seed=seed, metric="target_accuracy", value=TARGET, unit="%")
            done = dict(metric="rounds_to_target", unit="rounds", seed=seed)
            if rounds is None or not reach:
                why = f"never reached {TARGET:g} % within {MOST_ROUNDS} rounds"
                yield _row(label, **place, **done, status="late", reason=why, value=math.nan)
            else:
                yield _row(label, **place, **done, value=float(rounds))
                yield _row(label, **place, seed=seed, metric="held_accuracy", unit="%",
                           value=TARGET + 1 + seed / 10)  # fmt: skip
