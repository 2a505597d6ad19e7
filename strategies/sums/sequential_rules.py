"""Sequential rules, the server's half (Ludewig and Jannach, 2018; docs/methods/champions.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.cells import quantized
from bouquet.methods.sequential_rules import SequentialRulesOptions
from strategies.sums.base import Largest, Sums, SumsStrategy


class SequentialRules(SumsStrategy):
    """K = D^-b (S + c Sᵀ) D^-b', with S the transitions of all users and D the counts of items."""

    options: SequentialRulesOptions

    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        steps = np.arange(1.0, self.options.sequential_rules_window + 1)
        weight = quantized(steps**-self.options.sequential_rules_decay)
        before = np.concatenate([[0.0], np.cumsum(weight)])
        each = before[np.minimum(np.maximum(sizes - 1, 0), len(weight)).astype(int)]
        most = weight.max() * (sizes > 1)
        return {"transitions": Largest(most, sizes * each), "counts": Largest(np.minimum(sizes, 1.0), sizes)}

    def weights_of(self, sums: Sums) -> sparse.csr_matrix:
        options, counts = self.options, np.asarray(sums["counts"].todense(), float).ravel()
        both = sums["transitions"] + options.sequential_rules_reverse * sums["transitions"].T
        source, target = (
            sparse.diags(np.power(counts, -power, out=np.zeros(len(counts)), where=counts > 0))
            for power in (options.sequential_rules_source, options.sequential_rules_target)
        )
        return (source @ both @ target).tocsr()
