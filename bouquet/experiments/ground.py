"""The ground that figures stand on: whose items are hidden, and against what they are ranked.

Two scorers can be compared if they stand on one ground. It is made from the settings of a run, or read from the folder
that `bouquet data export` wrote for programs that are not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import DataOptions, RunConfig, Scalar, parsed
from bouquet.evaluation import fairness, standard_error, summarise
from bouquet.ragged import Ragged, one_after_another
from client_app.node.histories import Histories, histories_of, interactions_of

# Where the files lie, what items are called, who trains where and on what negatives is not decided here.
NOT_OF_THE_GROUND = ("data-dir", "title-column", "train-negatives", "negatives-per-positive", "partition")


@dataclass(frozen=True, eq=False)
class Ground:
    """Data, split and candidates, as every run with these settings has them.

    Attributes:
        settings: what they depend on, in kebab-case; a file of one's own by its name alone.
        user_ids: [n] raw ids, in the order of the rows of `histories`.
        item_ids: [m] raw ids, in the order of item numbers.
        titles: [m], "" where unknown.
        histories: of all users: training, validation and test items, and the sampled candidates.
    """

    settings: Mapping[str, Scalar]
    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    titles: tuple[str, ...]
    histories: Histories

    @cached_property
    def config(self) -> RunConfig:
        """The settings, and the defaults of all others."""
        return parsed(self.settings).run

    @property
    def interactions(self) -> int:
        """How many there are, hidden ones included."""
        return len(self.histories.whole.values)

    @property
    def held_out(self) -> dict[str, Ragged]:
        """[n rows] what is hidden, by part."""
        return {"validation": self.histories.validation, "test": self.histories.test}

    @cached_property
    def known(self) -> dict[str, Ragged]:
        """[n rows] what a user is known to have had by then, by part."""
        had = self.histories.had
        return {"validation": had, "test": one_after_another(had, self.histories.validation)}

    @property
    def excludes_known(self) -> bool:
        """Whether `full` leaves out what a user is known to have had; not where users come back to items."""
        return self.config.repeats == "drop"

    def for_evaluation(self) -> dict[str, Any]:
        """What `evaluate_users` takes beside a scorer."""
        return {
            "num_items": self.histories.num_items,
            "train": self.histories.had,
            **self.held_out,
            "candidates": self.histories.candidates,
            "exclude_known": self.excludes_known,
        }


def ground_of(settings: Mapping[str, Scalar]) -> Ground:
    """The ground of a run with these settings.

    Raises:
        ConfigError: there is no such data set, or the split does not fit it.
        DataError: its files are missing or broken.
    """
    options = parsed(settings).run
    interactions = interactions_of(options)
    flat = {key: settings[key] for key in DataOptions().to_flat() if key not in NOT_OF_THE_GROUND and key in settings}
    if flat.get("data-file"):
        flat["data-file"] = Path(str(flat["data-file"])).name
    return Ground(
        flat, interactions.user_ids, interactions.item_ids, interactions.titles, histories_of(interactions, options)
    )


def summary_of(ground: Ground, name: str, values: NDArray[np.float64], chosen: Mapping[str, float]) -> dict[str, Any]:
    """What `summary.json` holds of a scorer that was not trained by a federation.

    Args:
        values: [n, parts, candidate sets, metrics] per-user metrics.
        chosen: the settings that validation chose.
    """
    config = ground.config
    return {
        "status": "completed",
        "federated": False,
        "strategy": name,
        "dataset": config.dataset,
        "split": config.split,
        "hold_out": config.hold_out,
        "test_history": config.test_history,
        "leaky": config.hold_out == "last-row",
        "seed": config.seed,
        "users": len(ground.user_ids),
        "items": len(ground.item_ids),
        "interactions": ground.interactions,
        "dropped_users": ground.histories.dropped_users,
        "chosen": dict(chosen),
        **summarise(values),
        "standard_error": standard_error(values),
        "fairness": fairness(values),
    }
