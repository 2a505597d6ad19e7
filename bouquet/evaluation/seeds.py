"""Are two methods different? Tests over users and seeds.

A seed trains another model, which serves all users a little better or worse: what its users have in common does not
average out however many they are. Users are crossed with seeds (the same users under each), so with x_su the metric of
user u under seed s, of k users and S seeds of a method,

    x_su = μ + t_s + a_u + e_su             what the seed does to all, what the user is, and the rest

and the difference of two methods' means, d_u being user u's after the seeds are averaged, has the variance

    V = s²(d_u) / k + Σ max(0, s²(x_s.) - s²(e) / k) / S          over the methods that depend on seeds

with s² unbiased variances, x_s. the mean of seed s, s²(e) that of what is left of x_su when the means of its seed and
its user are taken off, on (S - 1)(k - 1) degrees. The first part holds e already, so it is taken out of the second.
Student's t has Satterthwaite's degrees of freedom, V² / (users² / (k - 1) + Σ (s²(x_s.) / S)² / (S - 1)), and no fewer
than the least S - 1: where nearly all of s²(x_s.) is taken out again, the formula comes near none at all.

Why no hierarchical bootstrap: of 2 to 5 seeds it draws too small a spread, by 1 - 1 / S, and treats it as known. Where
nothing differs but seeds, it finds a difference in 27 % of the tests of two seeds at the 5 % level; this one in 5.
Seeds of two methods are taken as independent: seed 1 of the one has nothing to do with seed 1 of the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation.significance import DRAWS, PairedDifference, paired_test


def seeded_test(
    a: NDArray[np.float64], b: NDArray[np.float64], *, seedless: tuple[bool, bool] = (False, False)
) -> PairedDifference:
    """Mean difference a - b of two methods (see the module).

    Its p-value is not below that of the sign-flip test over users, which needs no normal law, as far as its random
    patterns tell. With one seed of a
    method that depends on seeds nothing says what another would change, and the test is that over users alone; where
    neither depends on seeds, it is all there is to ask.

    Args:
        a, b: [seeds, k] values of the two methods, columns in the same order of users, all of them evaluated.
        seedless: whether another seed gives the same values, of a and of b.
    Raises:
        ValueError: users differ in number, or there is none.
    """
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"values by seed and user are needed, not {list(a.shape)} and {list(b.shape)}")
    over_users = paired_test(a.mean(axis=0), b.mean(axis=0))
    known = all(len(values) > 1 or same for values, same in zip((a, b), seedless, strict=True))
    if not known or len(a) == len(b) == 1 or over_users.users < 2:
        return replace(over_users, counts_seeds=known)
    error, degrees = standard_error(a, b)
    if error == 0:
        return replace(over_users, counts_seeds=True)
    from scipy.special import stdtr  # loaded for tables only, not by every node

    p_value = 2 * float(stdtr(degrees, -abs(over_users.mean) / error))
    # Where none of the random patterns was as extreme, their number is no lower bound for p.
    if over_users.p_value > 1 / (DRAWS + 1):
        p_value = max(p_value, over_users.p_value)
    return replace(over_users, standard_error=error, p_value=p_value, degrees=degrees, counts_seeds=True)


def standard_error(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    """√V of the mean difference, and its degrees of freedom; NaN if V is 0.

    Args:
        a, b: [seeds, k], k above 1; one seed of a method that does not depend on any.
    """
    users = float((a.mean(axis=0) - b.mean(axis=0)).var(ddof=1)) / a.shape[1]
    parts = [seed_variance(values) for values in (a, b) if len(values) > 1]
    variance = users + sum(part for part, _, _ in parts)
    if variance == 0:
        return 0.0, float("nan")
    spread = users**2 / (a.shape[1] - 1) + sum(whole**2 / degrees for part, whole, degrees in parts if part > 0)
    least = min((degrees for part, _, degrees in parts if part > 0), default=0)
    return float(np.sqrt(variance)), max(variance**2 / spread, float(least))


def seed_variance(values: NDArray[np.float64]) -> tuple[float, float, int]:
    """What seeds add to the variance of a method's mean.

    Args:
        values: [S, k], S and k above 1.
    Returns:
        max(0, s²(x_s.) - s²(e) / k) / S, s²(x_s.) / S, and the degrees of freedom S - 1.
    """
    seeds, users = values.shape
    means = values.mean(axis=1)
    rest = values - means[:, None] - values.mean(axis=0) + values.mean()
    noise = float((rest**2).sum()) / ((seeds - 1) * (users - 1)) / users
    whole = float(means.var(ddof=1))
    return max(0.0, whole - noise) / seeds, whole / seeds, seeds - 1
