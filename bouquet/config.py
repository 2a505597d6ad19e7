"""The configuration of a run: typed, documented, checked, with errors that a person can act on.

Keys are kebab-case, as in `[tool.flwr.app.config]`; fields are the same words with underscores. The settings
that every run has are `RunConfig`; a method's own settings are an `Options` class beside that method. The
command line checks all of them together; a server or a device reads the classes that concern it with `own`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from bouquet.errors import ConfigError

Scalar = str | int | float | bool


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Options(BaseModel):
    """A group of settings; unknown keys, wrong types and values out of range are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=_kebab, populate_by_name=True, allow_inf_nan=False
    )

    def to_flat(self) -> dict[str, Scalar]:
        """The settings as kebab-case keys and plain values."""
        return self.model_dump(by_alias=True)


class DataOptions(Options):
    """Which interactions are learned from, and what is held out."""

    dataset: str = Field("synthetic", description="Name of the data set; `bouquet data list` shows all.")
    data_dir: str = Field("", description="Folder of the data set, or of all data sets; empty: the per-user cache.")
    data_file: str = Field("", description="A CSV, TSV or Parquet file of your own, with dataset = 'file'.")
    user_column: str = Field("user", description="Column of the user ids in data-file.")
    item_column: str = Field("item", description="Column of the item ids in data-file.")
    time_column: str = Field("", description="Column of the times in data-file; empty: it has none.")
    min_interactions: int = Field(0, ge=0, description="Users with fewer distinct items are dropped (and counted).")
    max_users: int = Field(0, ge=0, description="A random sample of so many users, drawn with split-seed; 0: all.")
    repeats: Literal["drop", "keep"] = Field(
        "drop",
        description="Repeated interactions of a user with an item: drop all but the oldest, or keep them as events of "
        "their own, which sequence models may predict; evaluation then ranks among all items, known ones included.",
    )
    split: Literal["leave-one-out", "ratio"] = Field("leave-one-out", description="What is held out of each history.")
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
    train_negatives: Literal["honest", "paper"] = Field(
        "honest",
        description="Where training negatives are drawn from: all items but the user's training positives (honest), or "
        "only items never touched in the whole history (paper), which leaks the held-out items.",
    )
    negatives_per_positive: int = Field(4, ge=1, description="Training negatives drawn per positive and round.")
    partition: Literal["contiguous", "by-size", "one-per-node"] = Field(
        "contiguous", description="How users are laid over nodes."
    )


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
        "each device; 'auto' is 'embedding' for cf-fedsr and 'all' otherwise.",
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
    backend: Literal["auto", "loop", "torch", "numba"] = Field(
        "auto",
        description="How local training is computed: user by user (loop), stacked (torch) or compiled (numba), with "
        "equal results. 'auto' is numba where it is installed and fits the model, else torch.",
    )
    device: str = Field("cpu", description="Torch device of local training: 'cpu' or 'cuda'.")


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
    resume: str = Field("", description="Folder of a stopped run to go on with.")
    out: str = Field("", description="Folder for the results; empty: runs/<time>-<strategy>-<dataset>.")
    state_dir: str = Field("", description="Folder for the nodes' private state; empty: a per-user folder.")
    min_nodes: int = Field(1, ge=1, description="Nodes to wait for before the first round (simulations know better).")
    node_timeout: float = Field(120.0, gt=0, description="Seconds to wait for the nodes before the first round.")
    round_timeout: float = Field(3600.0, gt=0, description="Seconds to wait for the replies of one round.")
    enough_reply_fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="A round goes on without the others once this fraction of its users has replied; "
        "what comes later is dropped and counted.",
    )
    checkpoints_kept: int = Field(2, ge=1, description="Newest checkpoints that stay on the disk.")
    min_reply_fraction: float = Field(
        0.5, gt=0, le=1, description="The run fails when fewer of a round's users than this give a valid reply."
    )


class PrivacyOptions(Options):
    """What is done to an update before it leaves the node; docs/security.md says what it is good for."""

    update_clip: float = Field(0.0, ge=0, description="Largest L2 norm C of one user's update; 0: any.")
    update_noise: float = Field(
        0.0, ge=0, description="Gaussian noise on every row of an update, in multiples of update-clip; 0: none."
    )
    decoy_rows: int = Field(0, ge=0, description="Items that each user pretends to have, the same in every round.")
    secret_draws: bool = Field(
        False,
        description="Nodes draw negatives, batches, decoys and noise from a secret of their own, which the server "
        "cannot repeat; such a run does not equal a simulated one.",
    )


class RunConfig(DataOptions, ModelOptions, TrainingOptions, RoundOptions, PrivacyOptions):
    """Every setting that is not one method's own."""

    @property
    def only_embeddings(self) -> bool:
        """Whether networks stay on each device."""
        return self.exchange == "embedding" or (self.exchange == "auto" and self.strategy == "cf-fedsr")


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
            raise ConfigError(f"There is no setting '{key}'.{did_you_mean(key, known)}")
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


def lookup(table: Mapping[str, T], kind: str, name: str) -> T:
    """The entry of a plain dictionary of names, or a sentence that says which names there are.

    Raises:
        ConfigError: there is no such name.
    """
    if name in table:
        return table[name]
    raise ConfigError(f"There is no {kind} '{name}'.{did_you_mean(name, table)} Known: {', '.join(sorted(table))}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean …?' with the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


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
    wanted = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}[
        getattr(field.annotation, "__name__", "str")
    ]
    bound = "" if error["type"].endswith(("_type", "_number")) else f" {error['msg'].removeprefix('Input should be ')}"
    return f"'{key}' must be {wanted}{bound}, not {given!r}."
