"""How alike two rankings are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_biased_overlap(
    first: NDArray[np.integer], second: NDArray[np.integer], p: float = 0.99
) -> NDArray[np.float64]:
    """The extrapolated rank-biased overlap (Webber et al., 2010, eq. 32) of two lists of equal depth k.

    RBO = A_k p^k + ((1 - p) / p) Σ_{d=1..k} A_d p^d, A_d = |first d of one ∩ first d of the other| / d.

    Args:
        first, second: [..., k] items, best first, none twice in one list.
        p: the weight of depth d falls as p^d; 0 < p < 1.
    Returns:
        [...]: 1 for equal lists, 0 for lists without a common item.
    Raises:
        ValueError: the lists differ in shape or are empty, or p is not between 0 and 1.
    """
    if first.shape != second.shape or first.shape[-1] == 0:
        raise ValueError(f"Two lists of equal length are compared, not {list(first.shape)} and {list(second.shape)}.")
    if not 0 < p < 1:
        raise ValueError(f"p is between 0 and 1, not {p}.")
    k = first.shape[-1]
    same = first[..., :, None] == second[..., None, :]
    # An item is common to both lists from the depth on at which the second of its two places is reached.
    depth = np.maximum(np.arange(k)[:, None], np.arange(k)[None, :])
    common = np.stack([(same & (depth == d)).sum(axis=(-2, -1)) for d in range(k)], axis=-1).cumsum(axis=-1)
    agreement = common / np.arange(1, k + 1)
    weights = p ** np.arange(1, k + 1)
    return np.asarray(agreement[..., -1] * weights[-1] + (1 - p) / p * (agreement * weights).sum(axis=-1))
