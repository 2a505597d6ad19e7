"""What Fed3CR's Figure 4 puts in the place of its two constraints, with the gradients by hand.

The paper names them and gives no equations.

    L_s   similarity           1 - mean cos(c^E_i, v_i): the two rows of an item shall point the same way
    L_c   contrast             - mean log exp(cos(v_i, c^E_i)) / mean_j exp(cos(v_i, c^E_j)): and not that of others
    L_2   distance             - mean (c^E_i - v_i)², FedRAP's term: unbounded below
    L_m   mutual information   - (1/2d) Σ_jk log(1 - R_jk²), what it is for pairs of jointly normal dimensions j of the
                               one view and k of the other, R their correlation over items

All are means over the samples of a batch, as FedRAP's is: rows [k, b, d] of both views, weights [k, b], how often each
stands in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from client_app.personalization.columns import column_shares, correlated, standardised, through
from client_app.personalization.directions import contrast, contrast_slopes, directions, of_rows, shares

# Of correlations: of 1, which two rows always have, the information is infinite.
_LARGEST = 0.999


def similarity(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_s: [k], between 0 and 2."""
    return (shares(weights) * (1 - (directions(enhanced) * directions(own)).sum(dim=2))).sum(dim=1)


def similarity_slopes(enhanced: Tensor, own: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂/∂ĉ_i = - s_i v̂_i and the other way round, of directions."""
    share, first, second = shares(weights).unsqueeze(2), directions(enhanced), directions(own)
    return of_rows(-share * second, enhanced, first), of_rows(-share * first, own, second)


def own_contrast(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_c: [k], temperature 1."""
    return contrast(own, enhanced, weights)


def own_contrast_slopes(enhanced: Tensor, own: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Both of `contrast_slopes`, in this order."""
    of_own, of_enhanced = contrast_slopes(own, enhanced, weights)
    return of_enhanced, of_own


def distance(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_2: [k], at most 0."""
    return -(shares(weights) * (enhanced - own).square().mean(dim=2)).sum(dim=1)


def distance_slopes(enhanced: Tensor, own: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂/∂c^E_i = - 2 s_i (c^E_i - v_i) / d."""
    slope = (own - enhanced).mul_(shares(weights).unsqueeze(2) * (2 / own.shape[2]))
    return slope, -slope


def information(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_m: [k], at least 0; R is held below .999."""
    known = correlated(enhanced, own, weights).clamp(-_LARGEST, _LARGEST)
    return -0.5 * torch.log1p(-known.square()).sum(dim=(1, 2)) / enhanced.shape[2]


def information_slopes(enhanced: Tensor, own: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂/∂Â = S B̂ Gᵀ and ∂/∂B̂ = S Â G with G_jk = R_jk / (1 - R_jk²) / d of standardised columns Â, B̂."""
    share = column_shares(weights)
    (first, of_first), (second, of_second) = (standardised(v.clone(), share, 0.0) for v in (enhanced, own))
    rows = share.transpose(1, 2)
    correlation = torch.bmm((first * rows).transpose(1, 2), second)
    slope = correlation / (1 - correlation.square()) / enhanced.shape[2]
    slope = torch.where(correlation.abs() <= _LARGEST, slope, 0.0)
    return (
        through(torch.bmm(second * rows, slope.transpose(1, 2)), first, of_first, share),
        through(torch.bmm(first * rows, slope), second, of_second, share),
    )


class Alternative(NamedTuple):
    """A loss of each user, [k], and its gradients at the rows of C^E and of V, [k, b, d]."""

    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


CONSISTENCY: dict[str, Alternative] = {
    "similarity": Alternative(similarity, similarity_slopes),
    "contrast": Alternative(own_contrast, own_contrast_slopes),
}
COMPLEMENTARITY: dict[str, Alternative] = {
    "distance": Alternative(distance, distance_slopes),
    "information": Alternative(information, information_slopes),
}


def add_alternative(
    alternative: Alternative, weight: float, enhanced: Tensor, own: Tensor, samples: Tensor, *gradients: Tensor
) -> None:
    """Add a weight times the gradients at C^E and V to those of both, all [k, b, d]; samples [k, b]."""
    for gradient, slope in zip(gradients, alternative.slopes(enhanced, own, samples), strict=True):
        gradient.add_(slope, alpha=weight)
