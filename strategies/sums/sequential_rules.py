"""Sequential rules, the server's half (Ludewig and Jannach, 2018; docs/methods/champions.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.arrays import Arrays
from bouquet.cells import quantized
from bouquet.methods.sequential_rules import SequentialRulesOptions
from strategies.sums.base import Largest, Sums, SumsStrategy
from strategies.sums.private import PrivatePairs

# So many times the largest eigenvalue of noise alone: on MovieLens-100K sums of rows hurt at 1.8 and help at 4.7.
_CLEAR = 3.0
# Of the largest sum of a row: less is nothing to divide by.
_NO_COUNT = 1e-6


class SequentialRules(SumsStrategy):
    """K = D^-b (S + c Sᵀ) D^-b', with S the transitions of all users and D the counts of items."""

    options: SequentialRulesOptions

    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        steps = np.arange(1.0, self.options.sequential_rules_window + 1)
        weight = quantized(steps**-self.options.sequential_rules_decay)
        before = np.concatenate([[0.0], np.cumsum(weight)])
        each = before[np.minimum(np.maximum(sizes - 1, 0), len(weight)).astype(int)]
        most = weight.max() * (sizes > 1)
        # An item stands once in a history: of what comes before it, or after it, there is so much and no more.
        return {"transitions": Largest(most, sizes * each, each), "counts": Largest(np.minimum(sizes, 1.0), sizes)}

    def weights_of(self, sums: Sums) -> sparse.csr_matrix:
        options, counts = self.options, np.asarray(sums["counts"].todense(), float).ravel()
        both = sums["transitions"] + options.sequential_rules_reverse * sums["transitions"].T
        source, target = (
            sparse.diags(np.power(counts, -power, out=np.zeros(len(counts)), where=counts > 0))
            for power in (options.sequential_rules_source, options.sequential_rules_target)
        )
        return (source @ both @ target).tocsr()


class PrivateSequentialRules(PrivatePairs):
    """K of what is left of a noisy sum of transitions in both directions."""

    options: SequentialRulesOptions

    def factors_of(self, values: NDArray[np.float64], vectors: NDArray[np.float64], edge: float) -> Arrays:
        """K = D̂^-b M̂ D̂^-b', with D̂ the sums of M̂'s rows; counts of items would cost a budget of their own.

        A row's sum grows with how often its item is had, and costs nothing. Below the median it is mostly noise, and
        counts as the median. Where no eigenvalue stands out from the noise's by much, D̂ is noise, and K = M̂.
        """
        factors = vectors * np.sqrt(values)
        counts = factors @ factors.sum(axis=0)
        counts = np.maximum(counts, max(float(np.median(counts)), _NO_COUNT * float(counts.max(initial=0.0))))
        counts = counts / counts.mean() if counts.any() else np.ones(len(counts))
        clear = values[0] > _CLEAR * edge
        source, target = (
            power if clear else 0.0
            for power in (self.options.sequential_rules_source, self.options.sequential_rules_target)
        )
        factors *= (counts**-source)[:, None]
        return {"factors": factors.astype(np.float32), "scales": (counts ** (source - target)).astype(np.float32)}
