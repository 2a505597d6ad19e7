"""The settings that every run has."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.config.data import DataOptions
from bouquet.config.options import Options, or_same, written
from bouquet.config.protection import (
    AttackOptions,
    DifferentialPrivacyOptions,
    PrivacyOptions,
    RobustOptions,
)
from bouquet.errors import ConfigError

# Where things are and how long to wait for them: a run is the same run whatever these are.
CIRCUMSTANCES = {
    "out",
    "resume",
    "state-dir",
    "data-dir",
    "checkpoint-every",
    "min-nodes",
    "node-timeout",
    "round-timeout",
    "tracker",
}


class ModelOptions(Options):
    """What is learned."""

    backbone: str = Field("mf", description="The scoring model.")
    embedding_size: int = Field(16, ge=1, description="Embedding size d of users and items.")
    init_scale: float = Field(0.01, gt=0, description="Standard deviation of the initial embeddings.")


class TrainingOptions(Options):
    """How a device learns in one round."""

    exchange: Literal["auto", "all", "embedding"] = Field(
        "auto",
        description="Which of the model's shared arrays travel: all, or only those by item, so that networks stay on "
        "each device; 'auto' is what the strategy's paper does.",
    )
    personalization: str = Field("none", description="The device-side method; 'none' uses the shared model as it is.")
    local_epochs: int = Field(2, ge=1, description="Passes over the user's samples in one round (E).")
    batch_size: int = Field(2048, ge=1, description="Samples per step (B); a user with fewer takes one step per epoch.")
    learning_rate: float = Field(0.1, gt=0, description="Local learning rate of shared parameters.")
    user_learning_rate: float = or_same("learning-rate", "Local learning rate of private parameters", 2.0)
    learning_rate_decay: float = Field(1.0, gt=0, le=1, description="Factor on both local learning rates per round.")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="Local optimiser, created fresh in every round.")
    weight_decay: float = Field(0.0, ge=0, description="L2 decay of all trained parameters (added to the gradient).")
    network_weight_decay: float = Field(
        0.0, ge=0, description="L2 decay of shared networks, such as the MLP of 'ncf', on top of weight-decay."
    )
    early_stop_tolerance: float = Field(
        0.0,
        ge=0,
        description="A user ends its local epochs when one of them changed its loss by no more than this share; "
        "0: all epochs are run.",
    )
    backend: Literal["auto", "loop", "numpy", "torch", "numba"] = Field(
        "auto",
        description="How local training is computed: user by user (loop, and numpy for 'mf' without torch), stacked "
        "(torch) or compiled (numba), with equal results. 'auto' is the first of numba, numpy and torch that is "
        "installed and fits the run.",
    )
    device: str = written(
        "cpu",
        r"^(cpu|cuda(:[0-9]+)?)$",
        "'cpu', 'cuda', or 'cuda:N' with the number of a GPU",
        "Torch device of local training: 'cpu', 'cuda', or 'cuda:N' with the number of a GPU.",
    )

    @model_validator(mode="after")
    def _backend_runs_on_device(self) -> Self:
        if self.device != "cpu" and self.backend not in ("auto", "torch"):
            raise ConfigError(
                f"backend '{self.backend}' runs on the CPU only, and device is '{self.device}': take backend 'torch' "
                "or device 'cpu'."
            )
        return self


class RoundOptions(Options):
    """How many rounds, with whom, and what is kept."""

    strategy: str = Field("fedavg", description="The server-side method.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the run: initial values, negatives, sampling of users.")
    num_server_rounds: int = Field(60, ge=1, description="Rounds of training (T).")
    fraction_train: float = Field(1.0, gt=0, le=1, description="Fraction of all users that trains in a round (r).")
    evaluate_every: int = Field(5, ge=1, description="Rounds between evaluations; the last round is always evaluated.")
    evaluate_training: bool = Field(
        False,
        description="Rank each training item in the place of the hidden one, too, in a simulation: `training` in its "
        "summary.",
    )
    patience: int = Field(
        0,
        ge=0,
        description="The run ends after so many evaluations without a new best on validation, and where training "
        "diverges after an evaluation; 0: never.",
    )
    checkpoint_every: int = Field(10, ge=0, description="Rounds between checkpoints; 0: none.")
    catalogue_file: str = Field(
        "",
        description="A CSV of items and titles that the server publishes to devices with histories of their own; "
        "empty: nodes know the catalogue from their data set.",
    )
    model_digest: str = Field(
        "",
        description="Digest of the arrays that all nodes share, their names, shapes and initial values; a node that "
        "has others is refused. `bouquet deploy run` computes it where the catalogue file lies; empty: what most "
        "nodes have.",
    )
    resume: str = Field("", description="Folder of a stopped run to go on with.")
    out: str = Field("", description="Folder for the results; empty: runs/<time>-<strategy>-<dataset>.")
    state_dir: str = Field("", description="Folder for the nodes' private state; empty: a per-user folder.")
    tracker: Literal["none", "tensorboard", "mlflow", "wandb"] = Field(
        "none",
        description="Another program that is told of every round: event files, a SQLite store or an offline run in the "
        "folder of the run, unless MLFLOW_TRACKING_URI or WANDB_API_KEY names a server.",
    )
    min_nodes: int = Field(1, ge=1, description="Nodes to wait for before the first round (simulations know better).")
    node_timeout: float = Field(120.0, gt=0, description="Seconds to wait for the nodes before the first round.")
    round_timeout: float = Field(
        3600.0,
        gt=0,
        description="Seconds to wait for the replies of one round at most. Once min-reply-fraction of its users have "
        "replied, the others of a deployment have five times as long as the slowest reply of this round and the last "
        "four took, and a minute at least.",
    )
    reply_poll_interval: float = Field(
        1.0,
        gt=0,
        description="Longest pause in seconds between two looks of the server for replies; the first looks of a round "
        "come after milliseconds.",
    )
    registered_nodes: bool = Field(
        True,
        description="Nodes of a deployment come back under the ids that they had, as SuperNodes with registered keys "
        "do: over resumes, too, a user stays with the node that first brought it. Nodes of a simulation never do.",
    )
    users_per_node: int = Field(
        0,
        ge=0,
        description="Most users that a node of a deployment may bring; one that brings more is refused. 0: one where "
        "there is a catalogue-file, for devices of one person each, and any number elsewhere.",
    )
    enough_reply_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="A round goes on without the others once this fraction of its users has replied; "
        "what comes later is dropped and counted.",
    )
    recommendations: int = Field(
        100,
        ge=0,
        description="In a simulation, how many of the best items of each user are kept of the reported round, for "
        "`bouquet recommend --run`; 0: none.",
    )
    checkpoints_kept: int = Field(2, ge=1, description="Newest checkpoints that stay on the disk.")
    min_reply_fraction: float = Field(
        0.5, gt=0, le=1, description="The run fails when fewer of a round's users than this give a valid reply."
    )

    update_bound: float = Field(
        -1.0,
        ge=-1,
        description="Largest change of one user, in multiples of the round's median, by array and by row: what is "
        "above is scaled down, what is a hundred times above is refused. 0: any; -1: 10, and any in a simulation, "
        "where nobody lies and honest users of one to three items can differ by more.",
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if -1 < self.update_bound < 0:
            raise ConfigError(f"update-bound must be -1, or at least 0; got {self.update_bound:g}.")
        return self

    @model_validator(mode="after")
    def _waits_for_enough(self) -> Self:
        if self.enough_reply_fraction < self.min_reply_fraction:
            raise ConfigError(
                f"A round that goes on with {self.enough_reply_fraction:g} of its users' replies "
                f"(enough-reply-fraction) would fail for want of {self.min_reply_fraction:g} (min-reply-fraction): "
                "the first must not be below the second."
            )
        return self


class RunConfig(
    DataOptions,
    ModelOptions,
    TrainingOptions,
    RoundOptions,
    PrivacyOptions,
    DifferentialPrivacyOptions,
    RobustOptions,
    AttackOptions,
):
    """Every setting that is not one method's own."""

    @model_validator(mode="after")
    def _nothing_looks_under_masks(self) -> Self:
        if self.secure_sums and (self.robust_aggregation != "none" or self.attack_fraction > 0):
            key = "attack-fraction" if self.attack_fraction > 0 else "robust-aggregation"
            raise ConfigError(f"{key} looks at single users, and secure-sums hides them: leave one of the two out.")
        return self

    @model_validator(mode="after")
    def _privacy_holds(self) -> Self:
        if not self.private:
            return self
        if self.changes_updates:
            raise ConfigError(
                "With dp-epsilon or dp-noise-multiplier devices are held to dp-clip and the server adds the noise: "
                "leave update-clip, update-noise and decoy-rows out."
            )
        if self.update_bound > 0:
            raise ConfigError(
                "update-bound holds users to the median of their round, so that each of them changes what the others "
                "may give; with differential privacy dp-clip is the limit: leave update-bound out."
            )
        if self.dp_noise_from == "nodes" and not self.secure_sums:
            raise ConfigError(
                "With dp-noise-from = 'nodes' each node adds a share of the noise, which is too little for its own sum "
                "without masks: set secure-sums = true, or take dp-noise-from = 'server'."
            )
        if self.secure_sums and self.dp_clip_quantile > 0:
            raise ConfigError(
                "dp-clip-quantile asks each user whether it was within the limit, and secure-sums hides single users: "
                "leave one of the two out."
            )
        if self.robust_aggregation != "none":
            raise ConfigError(
                "robust-aggregation sets each user's change against those of others, so that one user moves it by more "
                "than its own; the noise of differential privacy is for sums: leave robust-aggregation out."
            )
        if self.patience > 0:
            raise ConfigError(
                "patience looks at metrics that no budget is spent on; with differential privacy the last round "
                "counts: leave patience out."
            )
        return self
