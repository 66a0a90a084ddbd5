"""Table 1 of RAT as formulas: traffic out of regions and dependency chains of every exchange.

What the document's table printed is lost; these formulas are derived here, from the text of its
sections 2 and 3. They hold on a :func:`testbed.network.topology.tree` of any ``shape`` (workers of
a rack, racks of a pod, …), and counts on plans are compared with them. Traffic is in units of the
exchanged vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod

from slowlink.methods.exchange import load
from slowlink.testbed.network.topology import LAYERS

Shape = Sequence[int]


@dataclass(frozen=True)
class Form:
    """Formulas of one exchange, with ``n`` workers, ``w`` a rack, and ``s`` in a region.

    Attributes
    ----------
    egress: (s, n, w) -> vectors that leave the busiest region of ``s`` workers, both halves.
    chain: shape -> transfers on the longest chain of dependencies that moves partial sums.
    card: (n,) -> vectors that the busiest worker sends.
    halves: 2, or 1 where there is no half that moves finished sums.
    """

    egress: Callable[[int, int, int], float]
    chain: Callable[[Shape], int]
    card: Callable[[int], float] = lambda n: 2 * (n - 1) / n
    halves: int = 2


def least(s: int, n: int, w: int) -> float:
    """All of ``n / s`` regions but one send their sum, and all but one are sent the total, once;
    shared evenly. No all-reduce sends less: :func:`testbed.network.counting.least_egress`."""
    return 2 * (n - s) / n


def direct(s: int, n: int, w: int) -> float:
    """Each of ``s`` workers sends ``1/n`` to each of ``n - s`` outside, as pushes and as pulls."""
    return 2 * s * (n - s) / n


def one_edge(s: int, n: int, w: int) -> float:
    """One edge of the ring leaves the region and carries what each edge carries."""
    return 2 * (n - 1) / n if s < n else 0.0


def racks_direct(s: int, n: int, w: int) -> float:
    """Each of ``s / w`` racks sends ``w/n`` to each of ``(n - s) / w`` outside, both ways."""
    return 2 * (s / w) * (n - s) / n


def tree_children(n: int, k: int) -> int:
    """Children of the root of a k-nomial tree of ``n``: ranks with one non-zero digit.

    Nobody has more edges: a rank whose lowest non-zero digit is at place ``p`` has one parent and
    at most ``(k - 1) p`` children, and the root has one more than that at least.
    """
    return sum(min(k - 1, -(-n // k**place) - 1) for place in range(n.bit_length()))


def tree_depth(n: int, k: int) -> int:
    """Most non-zero digits of a rank below ``n`` in base ``k``: where 1…1 is the first of them.

    That is ``log_k n`` rounded up, or one less where ``n`` is not far above a power of ``k``.
    """
    depth = 0
    while sum(k**place for place in range(depth + 1)) < n:
        depth += 1
    return depth


def stages(shape: Shape) -> int:
    """One a level where more than one party meets: levels of a tree, dimensions of a grid."""
    return sum(size > 1 for size in shape)


def two_levels(shape: Shape) -> int:
    """The stages in the rack, and between racks."""
    return stages((shape[0], prod(shape[1:])))


def rings(shape: Shape) -> int:
    """A ring of ``g`` takes ``g - 1`` steps, and the rings of a level follow those inside."""
    return sum(size - 1 for size in shape)


def one_ring(shape: Shape) -> int:
    return prod(shape) - 1


def doublings(shape: Shape) -> int:
    """Steps of the largest binary block, which all others fit beside: floor(log2 n).

    A block of ``2**j`` workers hands over after ``j`` steps, to one that has as many or more to do.
    """
    return prod(shape).bit_length() - 1


def halved(n: int) -> float:
    """What the busiest worker sends of ``n`` in binary blocks of ``b``: ``2 (1 - 1/b)`` in its
    block, and ``1/b`` each to the next larger one and to the next smaller one, where there are."""
    blocks = [1 << bit for bit in range(n.bit_length()) if n >> bit & 1]
    ends = {blocks[0], blocks[-1]} if len(blocks) > 1 else set()
    more = {b: 2 - (b in ends) if len(blocks) > 1 else 0 for b in blocks}
    return max(2 - (2 - more[b]) / b for b in blocks)


FORMS = {
    # Every worker pushes to every shard at once.
    ("parameter_server", "colocated"): Form(direct, lambda shape: int(prod(shape) > 1)),
    ("ring", "rack"): Form(one_edge, one_ring),
    # An edge of a random ring leaves with probability (n - s) / (n - 1): s edges of 2(n - 1)/n.
    ("ring", "oblivious"): Form(direct, one_ring),
    # At the log2(n / s) stages between partners at least s apart, all s send all of it.
    ("butterfly", None): Form(lambda s, n, w: s * log2(n / s), doublings, log2, halves=1),
    # What crosses comes first: 1/2 + 1/4 + … + s/n of the vector, from each of s.
    ("halving_doubling", "far"): Form(direct, doublings, halved),
    # What crosses comes last: 1/(2s) + … + 1/n of the vector, from each of s.
    ("halving_doubling", "near"): Form(least, doublings, halved),
    # What crosses was shrunk to 1/s a worker before, and is summed among the n/s of a place.
    ("blue_connect", None): Form(least, rings),
    ("geng_hips", "ps"): Form(least, stages),
    ("geng_hips", "ring"): Form(least, rings),
    # Helpers, or masters, share the work with no regard to what lies above the racks.
    ("parameter_hub", None): Form(
        racks_direct, lambda shape: two_levels((2, *shape[1:])), lambda n: 1
    ),
    ("plink", None): Form(racks_direct, two_levels),
    # Every tree crosses once up from each of the other n/s - 1 regions, and once down to each;
    # rotation gives every region equally many of these edges.
    ("rat", None): Form(least, stages),
}
"""Formulas by exchange and by the option that changes what is sent to whom."""


def k_nomial(k: int) -> Form:
    """Regions that are subtrees (``s`` a power of ``k``) form a k-nomial tree of their own."""
    return Form(
        lambda s, n, w: tree_children(n // s, k),
        lambda shape: tree_depth(prod(shape), k),
        lambda n: tree_children(n, k),
    )


def table1(exchange: str, options: Mapping[str, object], shape: Shape) -> dict[str, float]:
    """What the formulas give for ``exchange`` on a tree of ``shape``.

    Parameters
    ----------
    options: parameters of the exchange, as for :func:`methods.exchange.load`.
    shape: workers of a rack, racks of a pod, …; whole numbers >= 1.

    Returns
    -------
    ``egress_rack``, ``egress_pod``, … (vectors, the busiest region of each layer), ``chain`` (the
    half that moves partial sums), ``chain_whole`` and ``node_egress`` (vectors, the busiest
    worker). The egress of an oblivious ring is the mean over orders. A k-nomial tree has no closed
    form for layers whose regions are no subtrees, nor have binary blocks (halving and doubling of
    workers that are no power of two) for any layer; they are left out.

    Raises
    ------
    ValueError
        There is no formula for this choice, or none for that many workers.
    """
    form, n = _form(exchange, options), prod(shape)
    if exchange == "butterfly" and not _is_power(n, 2):
        raise ValueError(f"closed forms: {exchange} needs a power of 2 workers, not {n}")
    found = {}
    for layer in range(len(shape) - 1):
        s = prod(shape[: layer + 1])
        if _has_egress(exchange, options, s, n):
            name = LAYERS[layer] if layer < len(LAYERS) else f"layer{layer}"
            found[f"egress_{name}"] = float(form.egress(s, n, shape[0]))
    chain = form.chain(shape)
    found |= dict(chain=chain, chain_whole=form.halves * chain, node_egress=form.card(n))
    return found


def pipelined_rat(w: int, r: int, uplinks: float, chunks: int) -> float:
    """Time of pipelined RAT on ``r`` racks of ``w``, in times that a card takes for the vector.

    Cards have rate 1, a rack ``uplinks`` of them. A chunk of the vector goes through four levels,
    up and down: in racks a card takes (1 - 1/w) times the chunk for each, between racks the slower
    of card and uplinks. Either the cards are busy from start to end, with 2 (n - 1)/n of the
    vector; or the levels between racks follow each other without a gap, and the first chunk's way
    through its rack comes before them and the last one's after: 2 (1 - 1/w)/chunks.

    The larger of the two is a lower bound. It is attained where uplinks limit clearly, and where
    cards do with an even number of chunks; else it is up to 0.6/chunks of itself short
    (tests/exchange/test_rat.py).
    """
    n = r * w
    between = max((r - 1) / n, (r - 1) / (r * uplinks))
    return max(2 * (n - 1) / n, 2 * between + 2 * (1 - 1 / w) / chunks)


def _form(exchange: str, options: Mapping[str, object]) -> Form:
    method = load(exchange, **options)
    if exchange == "k_nomial_tree":
        return k_nomial(method.k)
    choices = ("shards", "order", "first", "mode")
    key = exchange, next((getattr(method, name) for name in choices if hasattr(method, name)), None)
    if key not in FORMS or getattr(method, "weights", None) is not None:
        raise ValueError(f"closed forms: there is none for {exchange} with {dict(options)}")
    return FORMS[key]


def _has_egress(exchange: str, options: Mapping[str, object], s: int, n: int) -> bool:
    if exchange == "k_nomial_tree":
        return _is_power(s, int(options.get("k", 2)))
    return exchange != "halving_doubling" or _is_power(n, 2)


def _is_power(s: int, k: int) -> bool:
    while s % k == 0:
        s //= k
    return s == 1
