"""FedCA (Zhang et al., TOIS 2026): its settings, and the interpolation that device and server both compute."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bouquet.config import Options, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods.manifest import Method


class FedCAOptions(Options):
    """Composite aggregation: how similar and complementary users share their item tables."""

    formerly: ClassVar = {"ldp-delta": "fedca-ldp-delta", "ldp-delta-features": "fedca-ldp-delta-features"}

    fedca_alpha: float = Field(0.5, ge=0, description="Weight α of the similarity of two users' item tables (eq. 5).")
    fedca_beta: float = Field(0.4, ge=0, description="Weight β of the complementarity of two users' items (eq. 5).")
    fedca_rho: float = Field(
        0.8, ge=0, le=1, description="Share ρ of a user's own previous table in the table that it uses next."
    )
    fedca_k: int = Field(4, ge=1, description="Singular vectors k that stand for a user's items (eq. 7).")
    fedca_prior: Literal["size", "uniform"] = Field(
        "size",
        description="The weights p that aggregation starts from (eq. 5): by training interactions, or all alike.",
    )
    fedca_objective: Literal["eq5", "eq8"] = Field(
        "eq5", description="The objective of the weights: eq. 5 expanded, or eq. 8 as printed, without 1 + α."
    )
    fedca_solver: Literal["projection", "cvxpy"] = Field(
        "projection", description="How the weights are found: exact projection, or a quadratic programme per user."
    )
    fedca_similarity: Literal["eq6", "components"] = Field(
        "eq6",
        description="Similarity of two tables: eq. 6, or from the distance of the scores on first components, "
        "as in the authors' code.",
    )
    fedca_complementarity: Literal["right", "left", "centred", "raw"] = Field(
        "right",
        description="What stands for a user's items: right singular vectors of their embeddings, left ones (as "
        "printed), right ones of centred positives and negatives (the authors' code), or the mean embedding (raw).",
    )
    fedca_complementarity_pairing: Literal["index", "greedy"] = Field(
        "index", description="Which singular vectors of two users are compared: equal places, or the best match."
    )
    fedca_complementarity_sign: Literal["printed", "orthogonal"] = Field(
        "printed", description="What is rewarded: cos φ as in eq. 7, or 1 - cos φ, which is what the text says."
    )
    fedca_complementarity_measure: Literal["cos", "sin"] = Field(
        "cos", description="Function of the angle φ between two users' items (Table 11)."
    )
    fedca_proximal: float = Field(0.0, ge=0, description="Weight of the proximal term ‖Q_u - Q_u^g‖² (Table 9).")
    fedca_mix_all_users: bool = Field(
        False, description="Mix the tables of all users, not only of those that trained in this round."
    )
    fedca_mix_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a round's users whose tables are mixed; the others go on with their own. The authors' "
        "code trains all users and takes its participation ratio for this.",
    )
    fedca_neighbours: int = Field(
        0, ge=0, description="Keep only this many of the largest weights of a user, beside its own; 0: all."
    )
    fedca_drawn_neighbours: int = Field(
        0,
        ge=0,
        description="In the place of eq. 5: the mean, weighted by the prior p, over a user itself and so many others, "
        "drawn among its fedca-nearest most similar ones (Section 3, Fig. 3); 0: eq. 5.",
    )
    fedca_nearest: int = Field(
        100, ge=1, description="How many most similar users fedca-drawn-neighbours draws among (Section 3)."
    )
    fedca_global_share: float = Field(
        0.0, ge=0, le=1, description="Share of the prior p that is mixed into every user's weights afterwards."
    )
    fedca_weight_cap: float = Field(
        0.0,
        ge=0,
        le=1,
        description="The most that any single weight may be; 0: no bound. At least 1 / users is allowed.",
    )
    fedca_server_learning_rate: float = Field(
        1.0, gt=0, description="Factor η on what training changed in the tables that are mixed for others."
    )
    fedca_evaluate: Literal["mixed", "trained"] = Field(
        "mixed",
        description="The table that a device recommends with: mixed with the newest aggregate, or as it came out of "
        "the device's last training.",
    )
    fedca_ldp_delta: float = Field(0.0, ge=0, description="Scale δ of Laplace noise on uploaded tables (Table 5).")
    fedca_ldp_delta_features: float = Field(
        0.0, ge=0, description="Scale δ' of Laplace noise on uploaded singular vectors (Table 6)."
    )

    @property
    def needs_aggregates(self) -> bool:
        """Whether a device reads Q_u^g for more than the interpolation, so that every user is sent one."""
        return self.fedca_proximal > 0 or self.fedca_ldp_delta > 0

    def check_run(self, run: RunConfig) -> None:
        if run.changes_updates:
            raise ConfigError(
                "fedca's server must know what a device's table has become, so update-clip, update-noise and "
                "decoy-rows do not fit it. Use its own noise, fedca-ldp-delta and fedca-ldp-delta-features."
            )
        if self.fedca_beta == 0 and self.fedca_ldp_delta_features > 0:
            raise ConfigError(
                "With fedca-beta = 0 no singular vectors are uploaded, so fedca-ldp-delta-features has nothing to "
                "protect: leave it out, or raise fedca-beta."
            )
        if self.fedca_drawn_neighbours and (self.fedca_alpha > 0 or self.fedca_beta > 0 or self.fedca_neighbours):
            raise ConfigError(
                "fedca-drawn-neighbours takes the place of the composite weights: set fedca-alpha and fedca-beta to 0, "
                "and leave fedca-neighbours out."
            )
        if self.fedca_drawn_neighbours > self.fedca_nearest:
            raise ConfigError(
                f"fedca-drawn-neighbours draws {self.fedca_drawn_neighbours} users among fedca-nearest = "
                f"{self.fedca_nearest}: take fewer, or draw among more."
            )
        vectors = self.fedca_beta > 0 and self.fedca_complementarity != "raw"
        if vectors and self.fedca_k > run.embedding_size:
            raise ConfigError(
                f"A table of embedding-size {run.embedding_size} has no {self.fedca_k} singular vectors: fedca-k must "
                f"be at most embedding-size, not {self.fedca_k}."
            )


def interpolate(previous: NDArray[np.float32], aggregate: NDArray[np.float32], rho: float) -> NDArray[np.float32]:
    """ρ · previous + (1 - ρ) · aggregate (Section 5.1.3), to the bit the same on every side."""
    if rho == 0.0:
        return aggregate.copy()
    mixed = np.empty_like(aggregate)
    part = np.empty_like(aggregate[0]) if len(aggregate) else aggregate
    for user in range(len(aggregate)):  # one user's table stays in the cache
        np.multiply(aggregate[user], np.float32(1.0 - rho), out=mixed[user])
        np.multiply(previous[user], np.float32(rho), out=part)
        mixed[user] += part
    return mixed


def interpolate_some(
    tables: NDArray[np.float32],
    places: NDArray[np.int64],
    aggregates: NDArray[np.float32],
    rho: float,
    first: NDArray[np.bool_],
) -> None:
    """`interpolate` in place, for some of the users; who has no previous table takes the aggregate.

    Args:
        tables: [n, …] the previous ones.
        places: [k] the users among them.
        aggregates: [k, …].
        first: [n] users without a previous table.
    """
    part = np.empty(tables.shape[1:], np.float32)
    for place, aggregate in zip(places.tolist(), aggregates, strict=True):
        if rho == 0.0 or first[place]:
            tables[place] = aggregate
            continue
        np.multiply(aggregate, np.float32(1.0 - rho), out=part)
        tables[place] *= np.float32(rho)
        tables[place] += part


FEDCA = Method(
    name="fedca",
    title="FedCA (Zhang et al., 2026)",
    options=FedCAOptions,
    strategy="strategies.fedca_strategy:FedCA",
    device="client_app.personalization.fedca:MixedTable",
    sends="its whole model, and singular vectors of its items",
    keeps="the user embedding",
    plug_ins=False,
    item_table="own",
)
