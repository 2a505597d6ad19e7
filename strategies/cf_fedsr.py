"""CF-FedSR: fewer and better chosen users, and weights that favour those who are served badly (Luo et al., 2022).

Round t on the server, Section III-B of the paper:
    eligible       1)           who may take part: enough data (λ_1), or long enough waited (λ_2)
    cluster        2)           users with like interests, by k-means or mean shift
    allocate       2)           how many of each cluster, in proportion to its size
    fair_weights   eq. 2 to 9   weights that fall with performance and rise, slowly, with size
    the new model  eq. 10       Σ_k o_k / Σ_i o_i · w_k

The paper's eq. 8 divides q by Σ q, without the hats of eq. 7, which would leave eq. 7 without effect; here it is
q̂ by Σ q̂. The epochs t_k of 1) are rounds since the start, for every user alike, so nobody is shut out for ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Mean shift compares every point with every seed: it is fitted to so many users, and the others go to the nearest mode.
_MEAN_SHIFT_USERS = 1000
# The bandwidth is the mean distance to the last of so large a share of the users, each user's nearest.
_NEAREST = 0.3
# Representations are float32, and parts of the largest that are smaller than this are rounding.
_RESOLUTION = 1e-6


def eligible(sizes: ArrayLike, epochs: ArrayLike, lambda_1: float, lambda_2: float) -> NDArray[np.bool_]:
    """Which users may take part: n_k > λ_1 or t_k > λ_2.

    Args:
        sizes: n_k, training interactions, [n].
        epochs: t_k, [n].
    Returns:
        [n].
    """
    return (np.asarray(sizes) > lambda_1) | (np.asarray(epochs) > lambda_2)


def cluster(representations: NDArray[np.floating], method: str, clusters: int, seed: int) -> NDArray[np.int64]:
    """Users with like interests.

    Args:
        representations: [n, d'], finite.
        method: "k-means" or "mean-shift", which finds the number of clusters itself.
        clusters: of k-means; fewer if there are fewer different users.
        seed: of starting points.
    Returns:
        [n] number of each user's cluster.
    """
    # scikit-learn takes a second to import, and most runs do without.
    from sklearn.cluster import KMeans

    points = np.asarray(representations, dtype=np.float64)
    different = _different(points, max(clusters, 2))
    if different < 2:
        return np.zeros(len(points), dtype=np.int64)
    if method == "k-means":
        model = KMeans(min(clusters, different), n_init=3, random_state=seed)
        return model.fit_predict(points).astype(np.int64)
    return _mean_shift(points, seed)


def _different(points: NDArray[np.float64], enough: int) -> int:
    """How many points differ, or a number from `enough` on: to sort all of them takes as long as to cluster them."""
    few = len(np.unique(points[: 10 * enough], axis=0))
    return few if few >= enough else len(np.unique(points, axis=0))


def _mean_shift(points: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Users who climb to the same mode of the density of their representations: [n], for points that differ."""
    from sklearn.cluster import MeanShift, estimate_bandwidth, get_bin_seeds
    from sklearn.neighbors import NearestNeighbors

    # As whole numbers, whose distances are exact: users who are alike but for rounding are at distance 0.
    points = points - points.mean(axis=0)
    points = np.round(points / (_RESOLUTION * np.abs(points).max()))
    few = points
    if len(points) > _MEAN_SHIFT_USERS:
        few = points[np.random.default_rng(seed).choice(len(points), _MEAN_SHIFT_USERS, replace=False)]
    different = np.unique(few, axis=0)
    if len(different) < 2:
        return np.zeros(len(points), dtype=np.int64)
    bandwidth = estimate_bandwidth(few, quantile=_NEAREST, n_samples=500, random_state=seed)
    if bandwidth == 0:
        # So many are alike, or so few are there at all: then what lies between those who differ counts, and each has
        # another one near it.
        share = min(1.0, max(_NEAREST, 2.5 / len(different)))
        bandwidth = estimate_bandwidth(different, quantile=share, n_samples=500, random_state=seed)
        seeds = different
    else:
        seeds = get_bin_seeds(few, bandwidth)
        # In many dimensions the middle of a bin can be far from all that is in it, and nobody climbs from there.
        within = NearestNeighbors(radius=bandwidth).fit(few).radius_neighbors(seeds, return_distance=False)
        seeds = seeds if any(len(near) for near in within) else different
    model = MeanShift(bandwidth=bandwidth, seeds=seeds).fit(few)
    return model.predict(points).astype(np.int64)


def allocate(cluster_sizes: ArrayLike, total: int) -> NDArray[np.int64]:
    """How many users are drawn from each cluster: in proportion to its size, by largest remainder.

    If the total is at least the number of clusters with members, each of these gives one user or more.

    Args:
        cluster_sizes: members of each cluster, [c].
        total: users to draw, exactly.
    Returns:
        [c], no entry above the cluster's size.
    Raises:
        ValueError: the clusters hold fewer than `total` users, or a size or the total is negative.
    """
    sizes = np.asarray(cluster_sizes, dtype=np.int64)
    members = int(sizes.sum())
    if total < 0 or (sizes < 0).any() or total > members:
        raise ValueError(f"{total} users cannot be drawn from clusters of {sizes.tolist()}")
    if members == 0:
        return np.zeros_like(sizes)
    quota = total * sizes / members
    drawn = np.floor(quota).astype(np.int64)
    # A stable sort: of equal remainders the first cluster's counts.
    order = np.argsort(-(quota - drawn), kind="stable")
    drawn[order[: total - int(drawn.sum())]] += 1
    if total >= (sizes > 0).sum():
        for starved in np.flatnonzero((drawn == 0) & (sizes > 0)):
            # The one that got most above its quota gives, among those that keep one.
            drawn[np.where(drawn > 1, drawn - quota, -np.inf).argmax()] -= 1
            drawn[starved] = 1
    return drawn


def fair_weights(performance: ArrayLike, sizes: ArrayLike, a: float, b: float) -> NDArray[np.float64]:
    """Aggregation weights of the users of a round (eq. 3 to 9, normalised as in eq. 10).

    p' = p / Σ p, p̂ = (1/2)^{p'}, p̂' = p̂ / Σ p̂;  q = n / Σ n, q̂ = √q, q̂' = q̂ / Σ q̂;  o = a p̂' + b q̂'.

    Args:
        performance: p, HR + NDCG on validation (eq. 2), >= 0, [k].
        sizes: n, training interactions, >= 0, [k].
        a, b: α and β of eq. 9, >= 0 and not both 0.
    Returns:
        [k], sums to 1. Where all performances (or sizes) are 0 users are alike in that factor.
    Raises:
        ValueError: shapes differ, nobody is there, or a value is negative or not finite.
    """
    p, n = np.asarray(performance, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if p.ndim != 1 or p.shape != n.shape or len(p) == 0:
        raise ValueError(f"performance and size of the same users are needed, not {list(p.shape)} and {list(n.shape)}")
    for name, values in (("performance", p), ("size", n)):
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"every {name} must be finite and at least 0")
    if not (a >= 0 and b >= 0 and a + b > 0):
        raise ValueError(f"a and b must be at least 0 and not both 0, not {a} and {b}")
    badly_served = _share(0.5 ** _share(p))
    large = _share(np.sqrt(_share(n)))
    return _share(a * badly_served + b * large)


def _share(values: NDArray[np.float64]) -> NDArray[np.float64]:
    total = values.sum()
    return values / total if total > 0 else np.full(len(values), 1 / len(values))
