"""Are two runs different? Paired tests over users.

Each user is measured in both runs, so the difference of its two values is what counts. With one held-out item
these values are coarse: HR@10 is 0 or 1, and most users do not change at all. Rank tests throw such ties away or
correct for them, and a t-test leans on a normal law that rare ±1 do not follow; the sign-flip permutation test
needs neither. If both runs are equally good, each user's difference could as well have had the other sign:

    p = share of sign patterns s for which |sum_u s_u d_u| >= |sum_u d_u|

over all patterns where few users differ, over random patterns (the observed one counted in) otherwise.

That says whether two runs differ. Whether two methods do, which another seed would train to another model, says
`bouquet.evaluation.seeds`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

_CHUNK_BYTES = 16 * 2**20
DRAWS = 10_000


@dataclass(frozen=True)
class PairedDifference:
    """Comparison of run a with run b over the same users.

    Attributes:
        users: users evaluated in both.
        mean: mean of a - b.
        standard_error: of that mean; NaN below 2 users.
        p_value: two-sided, in (0, 1].
        degrees: of freedom of the standard error.
        counts_seeds: whether it is known what another seed would change, and counted. Else error and p are over users
            only, and speak of these runs.
    """

    users: int
    mean: float
    standard_error: float
    p_value: float
    degrees: float
    counts_seeds: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference, by Student's t; NaN below 2 users."""
        from scipy.special import stdtrit  # loaded for tables only, not by every node

        reach = float(stdtrit(self.degrees, 0.975)) * self.standard_error if self.users > 1 else float("nan")
        return self.mean - reach, self.mean + reach


def paired_test(a: ArrayLike, b: ArrayLike, *, draws: int = DRAWS, seed: int = 0) -> PairedDifference:
    """Sign-flip permutation test of the mean difference (see the module).

    Args:
        a, b: [k] per-user values of the two runs, in the same order of users; NaN for users not evaluated.
        draws: random sign patterns; the smallest p is 1 / (draws + 1). All patterns are used if there are no more.
        seed: of the patterns; the result is a function of the arguments.
    Raises:
        ValueError: the arrays differ in shape or in the users they evaluate, or nobody is evaluated.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"values of the same users are needed, not {list(first.shape)} and {list(second.shape)}")
    if not np.array_equal(np.isnan(first), np.isnan(second)):
        raise ValueError("the two runs evaluate different users")
    difference = (first - second)[~np.isnan(first)]
    if not len(difference):
        raise ValueError("no user is evaluated")
    count = len(difference)
    error = float(difference.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
    # Users without a difference add nothing under either sign.
    p_value = _sign_flip(difference[difference != 0], draws, seed)
    return PairedDifference(count, float(difference.mean()), error, p_value, count - 1)


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Holm's step-down adjustment for several tests: adjusted p-values in the given order.

    With the p-values in ascending order p_1 <= … <= p_n, adjusted_j = max over i <= j of min(1, (n - i + 1) p_i).

    Raises:
        ValueError: a value is outside [0, 1] or NaN.
    """
    given = np.asarray(p_values, dtype=np.float64)
    if given.ndim != 1 or not ((given >= 0) & (given <= 1)).all():
        raise ValueError("p-values are a list of numbers in [0, 1]")
    order = np.argsort(given, kind="stable")
    adjusted = np.empty_like(given)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, given[order] * np.arange(len(given), 0, -1)))
    return adjusted


def _sign_flip(difference: NDArray[np.float64], draws: int, seed: int) -> float:
    """Two-sided p-value of the sum of `difference` [k], no entry 0, under random signs."""
    if not len(difference):
        return 1.0
    # Sums that are equal in exact arithmetic differ in the last bits, and ties count as "at least as extreme".
    threshold = abs(difference.sum()) - 1e-9 * np.abs(difference).sum()
    if len(difference) < 63 and 2 ** len(difference) <= draws:
        patterns = np.arange(2 ** len(difference))[:, None] >> np.arange(len(difference)) & 1
        return float((np.abs((2.0 * patterns - 1.0) @ difference) >= threshold).mean())
    generator = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_BYTES // (8 * len(difference)))
    extreme = 0
    for start in range(0, draws, chunk):
        rows = min(chunk, draws - start)
        bits = generator.integers(0, 256, size=(rows, -(-len(difference) // 8)), dtype=np.uint8)
        positive = np.unpackbits(bits, axis=1, count=len(difference)).astype(np.float64)
        sums = 2.0 * (positive @ difference) - difference.sum()
        extreme += int((np.abs(sums) >= threshold).sum())
    return (extreme + 1) / (draws + 1)
