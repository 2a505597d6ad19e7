"""The definitions, spelled out user by user: what the fast code must equal."""

from __future__ import annotations

from itertools import permutations
from math import log2

from bouquet.evaluation import CUTOFFS


def metrics_of_one_user(scores: list[float], held_out: list[int], candidates: set[int]) -> dict[str, float]:
    """Metrics of one user by listing all tie orders of every held-out item's candidates.

    Args:
        scores: [m].
        held_out: at least one item.
        candidates: all items that are ranked, held-out items included.
    """
    places = {item: _positions_over_tie_orders(scores, item, candidates) for item in held_out}
    rank = {item: sum(seen) / len(seen) for item, seen in places.items()}
    result = {"MRR": 1 / min(rank.values())}
    for cutoff in CUTOFFS:
        hits = [item for item in held_out if rank[item] <= cutoff]
        gain = sum(sum(1 / log2(p + 1) for p in places[item] if p <= cutoff) / len(places[item]) for item in hits)
        ideal = sum(1 / log2(p + 1) for p in range(1, min(len(held_out), cutoff) + 1))
        result |= {
            f"HR@{cutoff}": float(bool(hits)),
            f"Recall@{cutoff}": len(hits) / len(held_out),
            f"NDCG@{cutoff}": gain / ideal,
        }
    return result


def _positions_over_tie_orders(scores: list[float], item: int, candidates: set[int]) -> list[int]:
    """The position of `item` in the sorted list, once for every order of the items that tie with it."""
    higher = [other for other in candidates if scores[other] > scores[item]]
    tied = [other for other in candidates if scores[other] == scores[item]]
    return [len(higher) + 1 + order.index(item) for order in permutations(tied)]
