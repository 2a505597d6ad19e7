"""Orthogonality of Fed3CR's two views of the items (eq. 17 and 18), with its gradient by hand.

L_o = (1/d) Σ_jk E_jk² of the d × d matrix E = (C^E)ᵀ V, which is printed as a sum over all m items. Three forms:

    printed    E                             its curvature grows with m and with the squares of embeddings, so that
                                             plain steps diverge where embeddings have grown
    mean       E / m                         the default; the loss is m² times less, and weights of the paper's range do
                                             next to nothing
    cosines    E_jk / (‖C^E_·j‖ ‖V_·k‖)      at most d on every catalogue, however long embeddings are, so that a weight
                                             means the same; it turns columns and lengthens none

The first two are one function here, with E divided by 1 or by m.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Columns shorter than this have no direction.
_TINY = 1e-8


def complementarity_loss(enhanced: Tensor, personal: Tensor, literal_scale: bool = False) -> Tensor:
    """L_o = (1/d) Σ_ij E_ij² with E = (C^E)ᵀ V_u / m (eq. 18).

    Args:
        enhanced, personal: [m, d].
        literal_scale: E is not divided by the number of items m, as printed.
    """
    items = torch.tensor([1.0 if literal_scale else float(len(enhanced))], dtype=enhanced.dtype, device=enhanced.device)
    return complementarity(enhanced[None], personal[None], items)[0]


def cosine_complementarity_loss(enhanced: Tensor, personal: Tensor) -> Tensor:
    """L_o = (1/d) Σ_jk R_jk² with R_jk = c_j · v_k / (‖c_j‖ ‖v_k‖) of the columns c_j and v_k (eq. 18 of directions).

    Args:
        enhanced, personal: [m, d].
    """
    return cosine_complementarity(enhanced[None], personal[None])[0]


def complementarity(enhanced: Tensor, personal: Tensor, items: Tensor) -> Tensor:
    """`complementarity_loss` of k users: [k]; E is divided by `items` [k]."""
    correlation = torch.bmm(enhanced.transpose(1, 2), personal) / items[:, None, None]
    return correlation.square().sum(dim=(1, 2)) / enhanced.shape[2]


def cosine_complementarity(enhanced: Tensor, personal: Tensor) -> Tensor:
    """`cosine_complementarity_loss` of k users: [k]."""
    correlation = torch.bmm(enhanced.transpose(1, 2), personal)
    cosines = correlation * _inverse_lengths(enhanced).unsqueeze(2) * _inverse_lengths(personal).unsqueeze(1)
    return cosines.square().sum(dim=(1, 2)) / enhanced.shape[2]


def add_slopes(
    weight: float, enhanced: Tensor, own: Tensor, items: Tensor, of_enhanced: Tensor, of_own: Tensor
) -> None:
    """Add β_o ∂L_o/∂C^E and β_o ∂L_o/∂V of `complementarity_loss` to two gradients [k, R, d]; E is divided by q, [k].

    ∂L_o/∂C^E = (2 / (d q)) V Eᵀ and ∂L_o/∂V = (2 / (d q)) C^E E.
    """
    divisor = items[:, None, None]
    correlation = torch.bmm(enhanced.transpose(1, 2), own) / divisor
    correlation = correlation * (2 * weight / own.shape[2]) / divisor
    of_enhanced.baddbmm_(own, correlation.transpose(1, 2))
    of_own.baddbmm_(enhanced, correlation)


def _inverse_lengths(table: Tensor) -> Tensor:
    """[k, d] one over the length of each column."""
    return table.square().sum(dim=1).clamp(min=_TINY**2).rsqrt()


def add_cosine_slopes(weight: float, enhanced: Tensor, own: Tensor, of_enhanced: Tensor, of_own: Tensor) -> None:
    """Add β_o ∂L_o/∂C^E and β_o ∂L_o/∂V of `cosine_complementarity_loss` to two gradients [k, R, d].

    With a_j = 1/‖c_j‖ and b_k = 1/‖v_k‖, R = diag(a) (C^E)ᵀ V diag(b):
        ∂L_o/∂V   = (2/d) (C^E diag(a) R diag(b) - V diag(b_k² Σ_j R_jk²)),
        ∂L_o/∂C^E = (2/d) (V diag(b) Rᵀ diag(a) - C^E diag(a_j² Σ_k R_jk²))
    """
    a, b = _inverse_lengths(enhanced), _inverse_lengths(own)
    scales = a.unsqueeze(2) * b.unsqueeze(1)
    cosines = torch.bmm(enhanced.transpose(1, 2), own) * scales
    strength = 2 * weight / own.shape[2]
    across, squares = strength * scales * cosines, strength * cosines.square()
    of_own.baddbmm_(enhanced, across).sub_(own * (squares.sum(dim=1) * b.square()).unsqueeze(1))
    of_enhanced.baddbmm_(own, across.transpose(1, 2))
    of_enhanced.sub_(enhanced * (squares.sum(dim=2) * a.square()).unsqueeze(1))
