"""The configuration of a run: typed, documented, checked, with errors that a person can act on.

Keys are kebab-case, as in `[tool.flwr.app.config]`; fields are the same words with underscores. The settings
that every run has are `RunConfig`; a method's own settings are an `Options` class beside that method. The
command line checks all of them together; a server or a device reads the classes that concern it with `own`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from inspect import get_annotations
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from bouquet.errors import ConfigError
from bouquet.installed import Names

Scalar = str | int | float | bool


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Options(BaseModel):
    """A group of settings; unknown keys, wrong types and values out of range are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=_kebab, populate_by_name=True, allow_inf_nan=False
    )

    formerly: ClassVar[Mapping[str, str]] = {}
    """Keys that these settings once had, and those that they have."""

    def to_flat(self) -> dict[str, Scalar]:
        """The settings as kebab-case keys and plain values."""
        return self.model_dump(by_alias=True)

    def check_run(self, run: RunConfig) -> None:
        """Refuse what cannot go together with the settings of the run that these belong to; by default nothing.

        What cannot go together within one class is refused where that class is made.

        Raises:
            ConfigError: one sentence.
        """


def written(default: str, pattern: str, form: str, description: str) -> Any:
    """A field of text that has a form.

    Args:
        pattern: the form as a regular expression.
        form: the same in words, after "must be".
    """
    return Field(default, pattern=pattern, json_schema_extra={"form": form}, description=description)


def numbers(default: str, separator: str, description: str) -> Any:
    """A field of text that is made of whole numbers above 0."""
    form = f"whole numbers above 0 with '{separator}' between them, such as '{default}'"
    return written(default, rf"^[1-9][0-9]*({separator}[1-9][0-9]*)*$", form, description)


class DataOptions(Options):
    """Which interactions are learned from, and what is held out."""

    dataset: str = Field("synthetic", description="Name of the data set; `bouquet data list` shows all.")
    data_dir: str = Field("", description="Folder of the data set, or of all data sets; empty: the per-user cache.")
    data_file: str = Field("", description="A CSV, TSV or Parquet file of your own, with dataset = 'file'.")
    user_column: str = Field("user", description="Column of the user ids in data-file.")
    item_column: str = Field("item", description="Column of the item ids in data-file.")
    time_column: str = Field("", description="Column of the times in data-file; empty: it has none.")
    title_column: str = Field("", description="Column of the items' titles in data-file; empty: it has none.")
    skip_broken_rows: bool = Field(
        False,
        description="Rows of data-file that cannot be read are left out, counted and told; otherwise the first of them "
        "ends the run.",
    )
    min_interactions: int = Field(0, ge=0, description="Users with fewer distinct items are dropped (and counted).")
    max_users: int = Field(0, ge=0, description="A random sample of so many users, drawn with split-seed; 0: all.")
    repeats: Literal["drop", "keep"] = Field(
        "drop",
        description="Repeated interactions of a user with an item: drop all but the oldest, or keep them as events of "
        "their own, which sequence models may predict; evaluation then ranks among all items, known ones included.",
    )
    split: Literal["leave-one-out", "ratio", "published"] = Field(
        "leave-one-out",
        description="What is held out of each history; 'published' is the test part of those who published the set, "
        "where it has one.",
    )
    validation_share: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of each user's interactions outside the test that 'ratio' and 'published' hold out for "
        "validation; 0: none, as where papers train on all of a published split, and the last round is reported.",
    )
    training_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of each user's training items that is kept, at least one, drawn with split-seed; the others "
        "are neither learned from nor ranked against. What is held out, and its candidates, stay the same.",
    )
    hold_out: Literal["auto", "last", "last-row", "random"] = Field(
        "auto",
        description="Which interaction leave-one-out holds out: the last by time, or a random one where a set has no "
        "time (auto); 'last-row' is the papers' rule for sets without time and can leak.",
    )
    split_seed: int = Field(
        0,
        ge=0,
        description="Seed of everything that belongs to the protocol and not to the run: "
        "random hold-outs and the candidates of sampled-99.",
    )
    test_history: Literal["known", "training"] = Field(
        "known",
        description="What a model may read of a user when the test item is ranked: everything that is known by then, "
        "the validation item too (known), or the training items alone (training).",
    )
    train_negatives: Literal["honest", "paper"] = Field(
        "honest",
        description="Where training negatives are drawn from: all items but the user's training positives (honest), or "
        "only items never touched in the whole history (paper), which leaks the held-out items.",
    )
    negatives_per_positive: int = Field(4, ge=1, description="Training negatives drawn per positive and round.")
    partition: Literal["contiguous", "by-size", "one-per-node"] = Field(
        "contiguous", description="How users are partitioned over nodes."
    )

    @model_validator(mode="after")
    def _shares_and_hold_outs_fit_the_split(self) -> Self:
        if self.split != "leave-one-out" and self.hold_out != "auto":
            raise ConfigError(
                f"hold-out says which interaction 'leave-one-out' holds out, and split is '{self.split}': leave "
                f"hold-out '{self.hold_out}' out, or take the other split."
            )
        if self.split == "leave-one-out" and self.validation_share != 0.1:
            raise ConfigError(
                "validation-share says how much 'ratio' and 'published' hold out, and split is 'leave-one-out', which "
                "holds out one: leave validation-share out, or take another split."
            )
        return self


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
    user_learning_rate: float = Field(
        2.0, ge=0, description="Local learning rate of private parameters; 0: the same as learning-rate."
    )
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
    patience: int = Field(
        0, ge=0, description="The run ends after so many evaluations without a new best on validation; 0: never."
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
                raise ConfigError(f"{_kebab(key)} belongs to a private run: set dp-epsilon, for example to 4.0.")
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


OptionsT = TypeVar("OptionsT", bound=Options)
T = TypeVar("T")


def check(raw: Mapping[str, Any], parts: Iterable[type[Options]]) -> list[Options]:
    """Parse `raw` into one object per class, refusing keys that no class has.

    Args:
        raw: kebab-case keys to plain values; keys that are left out take their defaults.
        parts: the classes that are allowed to have keys.
    Raises:
        ConfigError: one sentence about the first thing that is wrong.
    """
    parts = list(parts)
    known = [_kebab(field) for part in parts for field in part.model_fields]
    for key in raw:
        if key not in known:
            now = " or ".join(sorted({f"'{part.formerly[key]}'" for part in parts if key in part.formerly}))
            hint = f" It is now {now}." if now else did_you_mean(key, known)
            raise ConfigError(f"There is no setting '{key}'.{hint}")
    return [own(raw, part) for part in parts]


def own(raw: Mapping[str, Any], part: type[OptionsT]) -> OptionsT:
    """The settings of one class, out of a configuration that may hold those of others.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
    """
    keys = {_kebab(field) for field in part.model_fields}
    try:
        return part.model_validate({key: value for key, value in raw.items() if key in keys})
    except ValidationError as error:
        raise ConfigError(_sentence(error.errors()[0], part)) from None


class Settings:
    """A run's configuration, parsed: what travels through the program in place of plain keys and values.

    Args:
        flat: kebab-case keys to plain values; keys that are left out take their defaults.
    Raises:
        ConfigError: a value of those that every run has is of the wrong type or out of range.

    Attributes:
        flat: as given.
        run: the settings that every run has.
    """

    def __init__(self, flat: Mapping[str, Scalar]) -> None:
        self.flat = dict(flat)
        self._parts: dict[type[Options], Options] = {}
        self.run = self.of(RunConfig)

    def of(self, part: type[OptionsT]) -> OptionsT:
        """The settings of one class.

        Raises:
            ConfigError: one of them is of the wrong type or out of range.
        """
        if part not in self._parts:
            self._parts[part] = own(self.flat, part)
        found = self._parts[part]
        assert isinstance(found, part)
        return found


def parsed(flat: Mapping[str, Scalar]) -> Settings:
    """The settings of a configuration, which a process parses once.

    Raises:
        ConfigError: as `Settings`.
    """
    # 1, 1.0 and true are equal, and not the same setting.
    return _parsed(tuple(sorted((key, type(value).__name__, value) for key, value in flat.items())))


@lru_cache(maxsize=64)
def _parsed(items: tuple[tuple[str, str, Scalar], ...]) -> Settings:
    return Settings({key: value for key, _, value in items})


def lookup(table: Mapping[str, T], kind: str, name: str) -> T:
    """The entry of a table of names, or a sentence that says which names there are.

    Raises:
        ConfigError: there is no such name, or the package that has it did something wrong.
    """
    if name in table:
        return table[name]
    refuse_broken(table, kind, name)
    raise ConfigError(f"There is no {kind} '{name}'.{did_you_mean(name, table)} Known: {', '.join(sorted(table))}.")


def refuse_broken(table: Mapping[str, Any], kind: str, name: str) -> None:
    """Refuse a name that a package has installed in a way that cannot be used, or that is not its own to give.

    Raises:
        ConfigError: which package, which entry, what is wrong.
    """
    if isinstance(table, Names) and name in table.refused:
        raise ConfigError(f"The {kind} '{name}' {table.refused[name]}")


def wrong_options(name: str, options: object, taken: Iterable[str] = ()) -> str:
    """What is wrong with the settings of a method or a backbone that is not ours, or "".

    Its keys begin with its name, so that no two methods mean different things by one key. A class that builds on one
    of ours has that one's keys as well, with their meaning.

    Args:
        taken: fields that others have, beside those of every run.
    """
    if not (isinstance(options, type) and issubclass(options, Options)):
        return "its options are no class of Options"
    for field in options.model_fields:
        home = next(part for part in options.__mro__ if field in get_annotations(part))
        if home.__module__.partition(".")[0] in ("bouquet", "models"):
            continue
        key = _kebab(field)
        if not key.startswith(f"{name}-"):
            return f"its setting '{key}' must begin with its name, as in '{name}-{key}'"
        if field in RunConfig.model_fields or field in taken:
            return f"its setting '{key}' means something else already"
    try:
        options()
    except ValidationError as error:
        return f"its setting '{error.errors()[0]['loc'][0]}' has no default that is allowed"
    return ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest known name, in whatever case, or nothing."""
    by_letters = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), list(by_letters), n=1, cutoff=0.6)
    return f" Did you mean '{by_letters[near[0]]}'?" if near else ""


def defaults(parts: Iterable[type[Options]]) -> dict[str, Scalar]:
    """Every setting with its default, in the order of the classes."""
    flat: dict[str, Scalar] = {}
    for part in parts:
        flat |= part().to_flat()
    return flat


def _sentence(error: ErrorDetails, part: type[Options]) -> str:
    key = str(error["loc"][0])
    given = error["input"]
    field = part.model_fields[key.replace("-", "_")]
    choices = get_args(field.annotation)
    if choices:
        near = did_you_mean(given, choices) if isinstance(given, str) else ""
        return f"'{key}' cannot be {given!r}.{near} Allowed: {', '.join(map(str, choices))}."
    if error["type"] == "string_pattern_mismatch" and isinstance(field.json_schema_extra, dict):
        return f"'{key}' must be {field.json_schema_extra['form']}, not {given!r}."
    wanted = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}[
        getattr(field.annotation, "__name__", "str")
    ]
    bound = "" if error["type"].endswith(("_type", "_number")) else f" {error['msg'].removeprefix('Input should be ')}"
    return f"'{key}' must be {wanted}{bound}, not {given!r}."
