"""Scores of any program, evaluated as every run is: the same ranks, metrics, tests, and marks.

What a program learned from cannot be seen in its scores. Three things can, and are looked for:

reach        a figure at K says something only if K of each user's candidates have a score: others rank below them
candidates   the random items of sampled-99 rank as any other item does that the user never touched
new items    what is hidden among items that nobody has in training ranks as any other of these does
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import lookup
from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import CANDIDATE_SETS, CUTOFFS, METRICS, PARTS, ScoreBlock, evaluate_users, metric_values
from bouquet.evaluation.canaries import SINGS_AT, Preference
from bouquet.experiments.exported import read_ground
from bouquet.experiments.foreign_scores import Foreign, foreign_scores
from bouquet.experiments.ground import Ground, summary_of
from bouquet.experiments.table_cells import CENTRALIZED_KEYS
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_BYTES = 64 * 2**20
NEGATIVES = ("honest", "paper")


@dataclass(frozen=True)
class Reach:
    """How far a ranking goes of what the user with the fewest scores could be shown.

    Attributes:
        items: candidates with a score; None where every candidate of every user has one.
        user: raw id of that user.
    """

    items: int | None
    user: str = ""

    def gives(self, metric: str) -> bool:
        """Whether a metric is what it would be if all items had a score."""
        if self.items is None:
            return True
        _, _, cutoff = metric.partition("@")
        return bool(cutoff) and int(cutoff) <= self.items


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What scores reached on a split.

    Attributes:
        ground: the split.
        name: what the scores are called.
        values: [n, parts, candidate sets, metrics] per user, in the order of the split's users; NaN where a user has
            nothing hidden, and where the scores do not reach.
        summary: what `summary.json` of their folder holds.
    """

    ground: Ground
    name: str
    values: NDArray[np.float64]
    summary: Mapping[str, Any]

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per part, candidate set and metric: `mean` over users, and its `standard_error` over users."""
        import pandas as pd

        errors = self.summary["standard_error"]
        rows = [
            (part, chosen, metric, self.summary[part][chosen][metric], errors[part][chosen][metric])
            for part in PARTS
            for chosen in CANDIDATE_SETS
            for metric in METRICS
        ]
        return pd.DataFrame(rows, columns=["part", "candidates", "metric", "mean", "standard_error"])

    @property
    def per_user(self) -> pd.DataFrame:
        """One row per user and part in which something of it is hidden: `user`, `part`, and "HR@10, full" and so on."""
        import pandas as pd

        parts = []
        for part in PARTS:
            here = np.flatnonzero(self.ground.held_out[part].lengths)
            columns: dict[str, Any] = {"user": self.ground.user_ids[here], "part": part}
            for chosen in CANDIDATE_SETS:
                for metric in METRICS:
                    columns[f"{metric}, {chosen}"] = metric_values(self.values, part, chosen, metric)[here]
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def save(self, folder: str | Path) -> RunDirectory:
        """Write a folder that `bouquet compare` reads beside those of runs.

        Raises:
            ConfigError: the folder holds a run.
            OSError: it cannot be written.
        """
        directory = RunDirectory(folder)
        if directory.summary.exists():
            raise ConfigError(f"{directory.path} already holds a run. Name another folder.")
        kept = {key: value for key, value in self.ground.settings.items() if key in CENTRALIZED_KEYS}
        directory.create(kept, {"engine": "foreign", "model": self.name})
        directory.write_users(self.ground.histories.users, self.values, self.ground.histories.train.lengths)
        directory.write_summary(self.summary)
        return directory


def evaluate(scores: Any, split: Ground | str | Path, *, name: str = "", train_negatives: str = "") -> Evaluation:
    """Evaluate the scores of any program as runs are evaluated.

    Args:
        scores: a file, a table or an array, as in `foreign_scores`.
        split: a folder of `bouquet data export`, or the ground itself.
        name: what the scores are called; by default the file's name.
        train_negatives: how the program drew its training negatives, if it drew any: "honest", or "paper", never what
            the user touches later, which marks the figures as LEAKY. "" says nothing.
    Raises:
        DataError: there is no such split, the scores do not fit it, or they do not reach the smallest cutoff.
        ConfigError: train_negatives is neither.
    """
    if train_negatives:
        lookup(dict.fromkeys(NEGATIVES), "way of drawing training negatives", train_negatives)
    ground = split if isinstance(split, Ground) else read_ground(Path(split))
    is_file = isinstance(scores, str | Path)
    name = name or (Path(scores).stem if is_file else "scores")
    by_part = foreign_scores(scores, ground, Path(scores).name if is_file else name)
    values = evaluate_users({part: _scorer(by_part.get(part), ground) for part in PARTS}, **ground.for_evaluation())
    measured: dict[str, Any] = {"reach": {}, "canaries": {}}
    remarks, songs = [], []
    for place, part in enumerate(PARTS):
        if not (found := by_part.get(part)):
            values[:, place] = np.nan
            remarks.append(f"{part}: the file has no scores for this part.")
            continue
        reaches, canaries = _looked_into(found, ground, part)
        for kind, reach in reaches.items():
            lacking = [not reach.gives(metric) for metric in METRICS]
            values[:, place, CANDIDATE_SETS.index(kind), lacking] = np.nan
            remarks += _about_reach(reach, part, kind, name)
        measured["reach"][part] = {kind: reach.items for kind, reach in reaches.items()}
        measured["canaries"][part] = {canary: found.z for canary, found in canaries.items()}
        songs += _about_candidates(canaries["candidates"], part)
        remarks += _about_new_items(canaries["new items"], part)
    if train_negatives == "paper":
        songs.append("Training negatives were never what a user touches later, so what is hidden stands out.")
    summary = summary_of(ground, name, values, {}) | {"foreign": True, "seed": None, **measured, "remarks": remarks}
    summary["leaky"] = summary["leaky"] or bool(songs)
    summary["leaky_because"] = songs
    if train_negatives:
        summary["train_negatives"] = train_negatives
    return Evaluation(ground, name, values, summary)


def _scorer(scores: Foreign | None, ground: Ground) -> ScoreBlock:
    if scores is None:
        return lambda rows: np.zeros((len(rows), len(ground.item_ids)))
    return lambda rows: scores.block(rows)[0]


# -- what can be seen in scores ----------------------------------------------------------------------------------------


def _looked_into(scores: Foreign, ground: Ground, part: str) -> tuple[dict[str, Reach], dict[str, Preference]]:
    """How far scores reach, by candidate set, and what the canaries hear, for one part."""
    histories, held_out = ground.histories, ground.held_out[part]
    num_users, num_items = len(ground.user_ids), len(ground.item_ids)
    candidates, known = histories.candidates[part], ground.known[part]
    excluded = known if ground.excludes_known else Ragged.from_lengths(np.zeros(num_users), [])
    new = np.bincount(known.values, minlength=num_items) == 0
    scored = {kind: np.zeros(num_users, dtype=np.int64) for kind in CANDIDATE_SETS}
    ranked = {kind: np.zeros(num_users, dtype=np.int64) for kind in CANDIDATE_SETS}
    canaries = {"candidates": Preference(), "new items": Preference()}
    block = max(1, _BLOCK_BYTES // (8 * num_items))
    for start in range(0, num_users, block):
        rows = np.arange(start, min(start + block, num_users))
        table, there = scores.block(rows)
        hidden, sampled, touched = (_flags(cells, rows, num_items) for cells in (held_out, candidates, histories.whole))
        among = {"full": ~_flags(excluded, rows, num_items), "sampled-99": hidden | sampled}
        for kind, cells in among.items():
            scored[kind][rows] = (there & cells).sum(axis=1)
            ranked[kind][rows] = cells.sum(axis=1)
        canaries["candidates"].add(table, ~touched, sampled)
        canaries["new items"].add(table, new & (hidden | ~touched), hidden)
    evaluated = np.flatnonzero(held_out.lengths)
    reaches = {kind: _reach(scored[kind], ranked[kind], evaluated, ground) for kind in CANDIDATE_SETS}
    return reaches, canaries


def _flags(cells: Ragged, rows: NDArray[np.int64], num_items: int) -> NDArray[np.bool_]:
    here = cells.take(rows)
    table = np.zeros((len(rows), num_items), dtype=np.bool_)
    table[here.row_of_value, here.values] = True
    return table


def _reach(scored: NDArray[np.int64], ranked: NDArray[np.int64], evaluated: NDArray[np.int64], ground: Ground) -> Reach:
    short = evaluated[scored[evaluated] < ranked[evaluated]]
    if not len(short):
        return Reach(None)
    least = short[np.argmin(scored[short])]
    return Reach(int(scored[least]), str(ground.user_ids[least]))


def _about_reach(reach: Reach, part: str, kind: str, name: str) -> list[str]:
    if reach.items is None:
        return []
    among = "items that it is not known to have had" if kind == "full" else "items that its hidden one is ranked among"
    given = [cutoff for cutoff in CUTOFFS if cutoff <= reach.items]
    who = f"user '{reach.user}' has scores for only {reach.items} of the {among}"
    if part == "test" and kind == "full" and not given:
        raise DataError(f"{name}: {who}, and the smallest cutoff is {CUTOFFS[0]}. Give {CUTOFFS[-1]} or more.")
    upto = f"figures go up to @{given[-1]}" if given else "there are no figures"
    return [f"{kind}, {part}: {who}, so {upto}, and there is no MRR."]


def _about_candidates(canary: Preference, part: str) -> list[str]:
    if abs(canary.z) <= SINGS_AT:
        return []
    where, means = (
        ("above", "the file was made for these candidates, and `full` ranks among little else")
        if canary.z > 0
        else ("below", "the program was trained against what is ranked here")
    )
    return [
        f"The random candidates of {part} rank {where} other items that a user never touched (z = {canary.z:.1f}, by "
        f"chance within ±{SINGS_AT:g}): {means}."
    ]


def _about_new_items(canary: Preference, part: str) -> list[str]:
    if canary.z <= SINGS_AT:
        return []
    return [
        f"Caution. Of items that nobody has in training, those that are hidden for {part} rank above others "
        f"(z = {canary.z:.1f}, {canary.drawn} of them, by chance below {SINGS_AT:g}). Training items alone do not tell "
        "them apart; what else is known of an item, such as its text or its number, could."
    ]
