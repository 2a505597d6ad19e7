"""The device side of FedCA (Zhang et al., TOIS 2026): every user has an item table of its own.

    interpolation     Section 5.1.3   Q_u ← ρ Q_u + (1 - ρ) Q_u^g
    training          eq. 12          BCE only; the proximal term ‖Q_u - Q_u^g‖² is an ablation (Table 9)
    privacy features  Section 5.1.1   X_u: k singular vectors of the rows of Q_u for the user's items
    protection        Tables 5 and 6  Laplace noise on Q_u and X_u before they leave

The text keeps left singular vectors. They live in R^{n_u}: their length differs between users and their coordinates
mean different items. The right ones span the same subspace of R^d for all, and are the default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, exchanged
from bouquet.config import Options, RunConfig
from bouquet.methods import only_embeddings
from bouquet.methods.fedca import FedCAOptions, interpolate, interpolate_some
from bouquet.ragged import Ragged
from bouquet.randomness import Draws, Purpose, Words, laplace
from client_app.personalization.base import Personalization
from client_app.personalization.proximal import Proximal
from client_app.personalization.round import Batch, Changes, Given, OwnArrays, Pull, Tensors, Working, checked_personal
from client_app.training.compiler import row_kernels
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor

# Gram matrices of this many values are made at once.
_GRAM_VALUES = 2**24


class MixedTable(Personalization):
    """Each user trains a model of its own, which starts between its last one and the one mixed for it."""

    options: FedCAOptions
    term: Proximal

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.mixed = exchanged(backbone.shared, only_embeddings(config))
        self.fixed = {_mixed(name): spec for name, spec in self.mixed.items()}
        self.term = Proximal(self.options.fedca_proximal, {name: _mixed(name) for name in self.mixed})
        # Who is not mixed goes on with its own.
        if self.options.fedca_rho == 0 and self.options.fedca_mix_fraction == 1:
            self.replaced = frozenset(self.mixed)

    @property
    def whole_table(self) -> bool:  # type: ignore[override]
        return self.options.fedca_proximal > 0

    @property
    def in_loss(self) -> bool:
        return self.options.fedca_proximal > 0

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        for name, spec in self.mixed.items():
            if given.addressed is None or self.options.needs_aggregates:
                aggregate = checked_personal(personal, name, spec, len(first))
                mixed = interpolate(given.own.get(name, aggregate), aggregate, self.options.fedca_rho)
                mixed[first] = aggregate[first]
            else:
                # What is mixed for the others is their own last table and nothing else, so it does not travel.
                aggregate, mixed = checked_personal(personal, name, spec, len(given.addressed)), given.own[name]
                interpolate_some(mixed, given.addressed, aggregate, self.options.fedca_rho, first)
            given = given.with_own(name, mixed, reported=True)
        if self.options.needs_aggregates:
            # What lies in a message cannot be written to, and torch takes no such memory.
            given = replace(given, anchors={_mixed(name): personal[name].copy() for name in self.mixed})
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """Recommend with the newest mixture, or with the table as training left it.

        Of users that have never taken part the server keeps nothing, and sends nothing: their table is the one that all
        start from.
        """
        nothing_mixed = not personal and bool(first.all())
        if nothing_mixed or self.options.fedca_evaluate == "trained":
            return given
        return self.start(given, personal, first)

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        """λ ‖Q_u - Q_u^g‖² over everything that is shared."""
        return self.term.penalty(arrays)

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull]:
        return self.term.forward(arrays)

    def reports(
        self, given: Given, users: Words, positives: Ragged, negatives: Ragged, round_: int, draws: Draws
    ) -> dict[str, Array]:
        options = self.options
        if options.fedca_beta == 0:
            return {}
        table = next(given.own[name] for name, spec in self.backbone.shared.items() if spec.by_item)
        if options.fedca_complementarity == "raw":
            features = mean_directions(table, positives)
        elif options.fedca_complementarity == "centred":
            owners = np.concatenate([positives.row_of_value, negatives.row_of_value])
            samples = Ragged.from_pairs(owners, np.concatenate([positives.values, negatives.values]), len(users))
            features = right_singular_vectors(table, samples, options.fedca_k, centred=True)
        else:
            features = right_singular_vectors(table, positives, options.fedca_k)
            if options.fedca_complementarity == "left":
                features = left_singular_vectors(table, positives, features)
        if options.fedca_ldp_delta_features > 0:
            for user, hidden in zip(users, features, strict=True):
                stream = draws.noise(user, round_, Purpose.FEATURE_NOISE, hidden)
                hidden += laplace(stream, hidden.size, options.fedca_ldp_delta_features).reshape(hidden.shape)
        return {"features": features.astype(np.float32)}

    def disguise(self, changes: Changes, given: Given, users: Words, round_: int, draws: Draws) -> Changes:
        """With noise the whole table goes up, as its distance from the aggregate that the server knows.

        The distance from where training started would tell the server, by its zeros, what was touched.
        """
        delta = self.options.fedca_ldp_delta
        if delta == 0:
            return changes
        members, m = changes.users, next(spec.shape[0] for spec in self.backbone.shared.values() if spec.by_item)
        by_item, dense = {}, {}
        for place, (name, spec) in enumerate(sorted(self.mixed.items())):
            values = given.own[name][members] - given.anchors[_mixed(name)][members]
            for user, hidden in zip(users[members], values, strict=True):
                stream = draws.noise(user, round_, Purpose.NOISE, hidden, place)
                hidden[:] = hidden + laplace(stream, spec.size, delta).reshape(hidden.shape)
            if spec.by_item:
                by_item[name] = values.reshape(-1, *spec.shape[1:])
            else:
                dense[name] = values
        rows = Ragged.from_lengths(np.full(len(members), m), np.tile(np.arange(m, dtype=np.int32), len(members)))
        return Changes(members, rows, by_item, dense, changes.loss)


def _mixed(name: str) -> str:
    """The name of Q_u^g beside the user's own array."""
    return f"aggregate/{name}"


def right_singular_vectors(table: Array, items: Ragged, k: int, *, centred: bool = False) -> NDArray[np.float64]:
    """The first k right singular vectors of each user's rows: unit vectors of R^d, by falling singular value.

    They are the eigenvectors of the Gram matrix Σ_i q_i q_iᵀ, which is d by d however many rows there are.

    Args:
        table: [n, m, d] item table of each user.
        items: [n] rows of items.
        k: at most d are given; what is missing (a user with fewer rows) is zero.
        centred: subtract the mean row first, as a principal component analysis does.
    Returns:
        [n, k, d].
    """
    d, kept = table.shape[2], min(k, table.shape[2])
    features = np.zeros((len(items), k, d))
    vectors = np.linalg.eigh(gram_matrices(table, items, centred=centred))[1]
    largest = vectors[:, :, ::-1][:, :, :kept].transpose(0, 2, 1)
    there = np.arange(kept) < items.lengths[:, None]
    features[:, :kept] = largest * there[:, :, None]
    return features


def gram_matrices(table: Array, items: Ragged, *, centred: bool = False) -> NDArray[np.float64]:
    """Σ_i q_i q_iᵀ over each user's rows of its table, less their mean if `centred`: [n, d, d]."""
    n, _, d = table.shape
    grams = np.zeros((n, d, d))
    if (code := row_kernels()) is not None:
        code.gram(table, items.indptr, items.values, centred, grams)
        return grams
    block = max(1, _GRAM_VALUES // (d * max(d, int(items.lengths.max(initial=1)))))
    for start in range(0, n, block):
        part = items.between(slice(start, min(start + block, n)))
        lengths, owner = part.lengths, part.row_of_value
        padded = np.zeros((len(lengths), int(lengths.max(initial=1)), d))
        place = np.arange(len(part.values)) - np.repeat(part.indptr[:-1], lengths)
        padded[owner, place] = table[start + owner, part.values]
        if centred:
            means = padded.sum(axis=1) / np.maximum(lengths, 1)[:, None]
            padded[owner, place] -= means[owner]
        grams[start : start + len(lengths)] = padded.transpose(0, 2, 1) @ padded
    return grams


def left_singular_vectors(table: Array, items: Ragged, right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The left singular vectors that belong to right ones: x^l = Q v^l / σ_l, zero-padded to the longest history.

    Args:
        table, items: as for `right_singular_vectors`.
        right: [n, k, d].
    Returns:
        [n, k, longest].
    """
    left = np.zeros((len(items), right.shape[1], int(items.lengths.max(initial=1))))
    for user in range(len(items)):
        rows = items.row(user)
        image = right[user] @ table[user, rows].T.astype(np.float64)
        norms = np.linalg.norm(image, axis=1, keepdims=True)
        left[user, :, : len(rows)] = np.divide(image, norms, out=np.zeros_like(image), where=norms > 0)
    return left


def mean_directions(table: Array, items: Ragged) -> NDArray[np.float64]:
    """The direction of each user's mean row, which hides nothing: [n, 1, d] unit vectors, zero without rows."""
    sums = np.zeros((len(items), table.shape[2]))
    np.add.at(sums, items.row_of_value, table[items.row_of_value, items.values].astype(np.float64))
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)[:, None, :]
