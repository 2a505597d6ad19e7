"""What Fed3CR's Figure 4 puts in the place of its two constraints; the paper names them and gives no equations.

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

import torch
import torch.nn.functional as F
from torch import Tensor

Constraint = Callable[[Tensor, Tensor, Tensor], Tensor]

_TINY = 1e-8
# Of correlations: of 1, which two rows always have, the information is infinite.
_LARGEST = 0.999


def similarity(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_s: [k], between 0 and 2."""
    return (_share(weights) * (1 - (_direction(enhanced) * _direction(own)).sum(dim=2))).sum(dim=1)


def contrast(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_c: [k], temperature 1."""
    share = _share(weights)
    cosines = torch.bmm(_direction(own), _direction(enhanced).transpose(1, 2))
    others = torch.bmm(cosines.exp(), share.unsqueeze(2)).squeeze(2).clamp(min=1e-30).log()
    return (share * (others - torch.diagonal(cosines, dim1=1, dim2=2))).sum(dim=1)


def distance(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_2: [k], at most 0."""
    return -(_share(weights) * (enhanced - own).square().mean(dim=2)).sum(dim=1)


def information(enhanced: Tensor, own: Tensor, weights: Tensor) -> Tensor:
    """L_m: [k], at least 0; R is held below .999."""
    share = _share(weights).unsqueeze(1)
    views = []
    for values in (enhanced, own):
        centred = values - torch.bmm(share, values)
        views.append(centred / torch.bmm(share, centred.square()).clamp(min=_TINY**2).sqrt())
    correlation = torch.bmm((views[0] * share.transpose(1, 2)).transpose(1, 2), views[1])
    known = correlation.clamp(-_LARGEST, _LARGEST)
    return -0.5 * torch.log1p(-known.square()).sum(dim=(1, 2)) / enhanced.shape[2]


CONSISTENCY: dict[str, Constraint] = {"similarity": similarity, "contrast": contrast}
COMPLEMENTARITY: dict[str, Constraint] = {"distance": distance, "information": information}


def _direction(rows: Tensor) -> Tensor:
    return F.normalize(rows, dim=2, eps=_TINY)


def _share(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)
