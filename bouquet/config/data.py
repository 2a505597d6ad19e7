"""Settings of data: which set, how it is read, and what of it is held out."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from bouquet.config.options import Options
from bouquet.errors import ConfigError


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
