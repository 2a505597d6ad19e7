"""Settings of what protects users from the server and from each other, and of those who attack."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.config.options import Options, kebab
from bouquet.errors import ConfigError


class SecureSumsOptions(Options):
    """Masks under which nodes send their sums; docs/reference/secure-sums.md says how, and against whom."""

    secure_sums: bool = Field(
        False, description="Nodes mask what they send, so that the server can read the sum over them and nothing else."
    )
    secure_sums_neighbors: int = Field(
        0,
        ge=0,
        description="With how many others each node shares masks; 0: with all. Takes time where nodes are many.",
    )
    secure_sums_threshold: float = Field(
        0.667,
        gt=0,
        lt=1,
        description="More than this share of a round's nodes must be left at its end, or the run fails. A server that "
        "lies learns nothing while fewer than 2 x this - 1 of the nodes help it.",
    )
    secure_sums_clip: float = Field(
        8.0,
        gt=0,
        description="Largest value in a node's sum, per unit of its users' weight; what is beyond is clipped.",
    )
    secure_sums_bits: Literal[32, 64] = Field(
        32, description="Of each number that travels: of 32 the smallest step is about 4e-9 of secure-sums-clip."
    )
    secure_sums_authority: str = Field(
        "",
        description="The certificate of the authority of a deployment (ca.crt), on the server's machine: nodes that it "
        "has not certified are left out of secure sums, which certified nodes would refuse.",
    )


class PrivacyOptions(SecureSumsOptions):
    """What is done to an update before it leaves the node; docs/security.md says what it is good for."""

    update_clip: float = Field(0.0, ge=0, description="Largest L2 norm C of one user's update; 0: any.")
    update_noise: float = Field(
        0.0, ge=0, description="Gaussian noise on every row of an update, in multiples of update-clip; 0: none."
    )
    decoy_rows: int = Field(
        0,
        ge=0,
        description="Items that each user pretends to have: what leaves is trained on them too, what stays is not.",
    )
    secret_draws: bool = Field(
        False,
        description="Nodes draw negatives, batches, decoys and noise from a secret of their own, which the server "
        "cannot repeat; such a run does not equal a simulated one.",
    )

    @property
    def changes_updates(self) -> bool:
        """Whether anything is done to an update before it leaves."""
        return self.update_clip > 0 or self.update_noise > 0 or self.decoy_rows > 0

    @model_validator(mode="after")
    def _noise_has_a_scale(self) -> Self:
        if self.update_noise > 0 and self.update_clip == 0:
            raise ConfigError("update-noise is a multiple of update-clip: set update-clip, for example to 1.0.")
        return self


class RobustOptions(Options):
    """How the server makes one change out of those of users, some of whom may lie."""

    robust_aggregation: Literal["none", "norm-bound", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "none",
        description="What takes the place of the mean over users, for methods that need no more than sums: the mean of "
        "changes that are held to robust-bound one by one (norm-bound), the median or the trimmed mean of every "
        "coordinate, the change that is nearest to the others (krum), or the mean of those that are (multi-krum). "
        "Every user's change then travels on its own.",
    )
    robust_fraction: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="Share f of a round's users that may lie: so many changes are taken off on both sides of a "
        "coordinate, and so many the farthest are left out by krum and multi-krum.",
    )
    robust_bound: float = Field(
        2.0, gt=0, description="With norm-bound, the value of update-bound where that is left at -1."
    )


class AttackOptions(Options):
    """Users who lie, in a simulation: a probe of what a method and its defences withstand."""

    attack: Literal["none", "noise", "sign-flip", "push", "replace", "align"] = Field(
        "none",
        description="What lying users of a simulation send: random numbers (noise), the opposite (sign-flip), a push "
        "of attack-target along what moves their own items (push), all of such an update blown up (replace), or the "
        "target as popular items are (align); 'none': they are honest, and measured as in an attack.",
    )
    attack_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability of each user of a simulation to be a liar; their accuracy is not counted. 0: nobody "
        "is drawn and nothing of an attack is measured.",
    )
    attack_target: int = Field(
        -1, ge=-1, description="Number of the promoted item in the catalogue; -1: one that the seed draws."
    )
    attack_strength: float = Field(
        10.0, gt=0, description="How large the lie is, in multiples of what is honest; docs/security.md has each."
    )

    @model_validator(mode="after")
    def _somebody_attacks(self) -> Self:
        if self.attack != "none" and self.attack_fraction == 0:
            raise ConfigError(f"attack '{self.attack}' needs liars: set attack-fraction, for example to 0.05.")
        return self


class DifferentialPrivacyOptions(Options):
    """User-level differential privacy of what the server publishes; docs/reference/differential-privacy.md."""

    dp_epsilon: float = Field(
        0.0,
        ge=0,
        description="Budget ε of the whole run: so much noise is added to every sum over users that all planned rounds "
        "cost no more, and none is run beyond it. 0: no limit, and no privacy without dp-noise-multiplier.",
    )
    dp_delta: float = Field(
        0.0, ge=0, lt=1, description="δ that belongs to ε; 0: one over the number of users, which is taken as known."
    )
    dp_noise_multiplier: float = Field(
        0.0,
        ge=0,
        description="Noise on every sum in multiples of dp-clip, instead of what dp-epsilon and the planned rounds "
        "need; 0: that.",
    )
    dp_noise_from: Literal["server", "nodes"] = Field(
        "server",
        description="Who adds the noise: the server, which then sees sums without it, or each node its share under the "
        "masks of secure-sums, so that nobody does. Nodes read how much from dp-noise-multiplier.",
    )
    dp_clip: float = Field(
        1.0,
        gt=0,
        description="Largest L2 norm of what one user adds to a sum, over all arrays together; of a matrix its "
        "Frobenius norm. Devices scale down what is above.",
    )
    dp_clip_quantile: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="The limit begins at dp-clip and follows this quantile of the users' norms (0.5: the median), at "
        "the cost of a little more noise; 0: it stays.",
    )
    dp_rank: int = Field(
        64, ge=1, description="Of a noisy matrix of pairs of items so many leading eigenvectors are kept."
    )
    dp_metrics_noise: float = Field(
        10.0,
        gt=0,
        description="Noise on the sums of users' metrics in a deployment, in multiples of what one user can change; "
        "paid for out of dp-epsilon.",
    )

    @property
    def private(self) -> bool:
        """Whether sums get noise that is accounted for."""
        return self.dp_epsilon > 0 or self.dp_noise_multiplier > 0

    @property
    def noise_of_nodes(self) -> float:
        """Standard deviation of the noise that nodes add to a sum together; 0 where they add none."""
        return self.dp_noise_multiplier * self.dp_clip if self.dp_noise_from == "nodes" else 0.0

    @model_validator(mode="after")
    def _belongs_to_a_private_run(self) -> Self:
        if self.dp_noise_from == "nodes" and not self.private:
            raise ConfigError("dp-noise-from belongs to a private run: set dp-noise-multiplier, for example to 1.0.")
        for key in ("dp_delta", "dp_clip_quantile"):
            if getattr(self, key) > 0 and not self.private:
                raise ConfigError(f"{kebab(key)} belongs to a private run: set dp-epsilon, for example to 4.0.")
        return self
