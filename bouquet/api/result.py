"""`bouquet.Run`: what a finished run reached, and what it would recommend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bouquet.api.model import Model
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.experiments.comparison import Finished, finished
from bouquet.extras import need
from bouquet.randomness import user_keys
from bouquet.reporting.recommendations import Recommended, recommended
from bouquet.reporting.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A finished run, read from its folder; made by `bouquet.run` and `bouquet.load`.

    Attributes:
        path: the folder.
        settings: every setting, with underscores: `bouquet.run(**run.settings)` is the same run again.
        summary: `summary.json`, as docs/reference/files.md has it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._finished: Finished = finished(Path(path))
        self._directory = RunDirectory(Path(path))
        self.path: Path = self._directory.path
        self.settings: dict[str, Any] = {
            key.replace("-", "_"): value for key, value in self._directory.read_config().items()
        }
        self.summary: Mapping[str, Any] = self._finished.summary

    @property
    def best_round(self) -> int:
        """The round that is reported: the best on validation. 0 for a model on pooled data."""
        return int(self.summary.get("best_round") or 0)

    @property
    def leaky(self) -> bool:
        """Whether training or split could see what is hidden, so that figures compare with nothing honest."""
        return bool(self.summary["leaky"])

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Means over users: `part` (validation, test), `candidates` (full, sampled-99), `metric`, `value`,
        `standard_error` over users."""
        errors = self.summary["standard_error"]
        rows = [
            (part, kind, metric, value, errors[part][kind][metric])
            for part in ("test", "validation")
            for kind, metrics in self.summary[part].items()
            for metric, value in metrics.items()
        ]
        table = _frame(rows, ["part", "candidates", "metric", "value", "standard_error"])
        return table.astype({"value": float, "standard_error": float})

    @cached_property
    def per_user(self) -> pd.DataFrame:
        """The same metrics of every user: `user`, `part`, `candidates`, and a column for each metric; NaN where nothing
        of a user is hidden. Users are raw ids, or 16 hexadecimal digits where the run does not know these."""
        found = self._finished
        names = self._names()
        users = np.array([names.get(key, f"{key:016x}") for key in found.users.tolist()], dtype=object)
        parts = [(PARTS.index(part), part) for part in ("test", "validation")]
        tables = [
            _frame(found.values[:, place, kind], list(METRICS)).assign(
                user=users, part=part, candidates=CANDIDATE_SETS[kind]
            )
            for place, part in parts
            for kind in range(len(CANDIDATE_SETS))
        ]
        import pandas as pd

        return pd.concat(tables, ignore_index=True)[["user", "part", "candidates", *METRICS]]

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row per round, indexed by `round`: what `metrics.jsonl` has of it, levels joined by a slash
        ("validation/full/NDCG@10", "bytes/up_per_user", "loss"); lists as their lengths. Rounds that were not evaluated
        have no metrics."""
        lines = [_flat(line) for line in self._directory.rounds()]
        names = list(dict.fromkeys(name for line in lines for name in line))
        table = _frame([[line.get(name) for name in names] for line in lines], names)
        return table.set_index("round") if lines else table

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """The rows beside the run (`compare_with`) and the run itself: `row`, `candidates`, `metric`, `value`,
        `standard_error` at test. A row that could not be computed is left out."""
        rows = {"this run": self.summary, **self._directory.read_json("comparison.json")}
        entries = [
            (name, kind, metric, value, row["standard_error"]["test"][kind][metric])
            for name, row in rows.items()
            if "unavailable" not in row
            for kind, metrics in row["test"].items()
            for metric, value in metrics.items()
        ]
        return _frame(entries, ["row", "candidates", "metric", "value", "standard_error"])

    @cached_property
    def model(self) -> Model:
        """What all users share after the reported round, with item ids and titles.

        Raises:
            DataError: the run kept no model, or the file is damaged.
        """
        folder = self._directory.reported
        kept, catalogue = folder.read_model(self.best_round), folder.read_catalogue()
        return Model(
            arrays=dict(kept.arrays),
            items=np.array(catalogue.items if catalogue else (), dtype=np.str_),
            titles=catalogue.titles if catalogue else (),
            strategy=kept.strategy,
            settings=dict(kept.settings),
            round=kept.round,
        )

    def recommend(self, user: object, k: int = 10) -> pd.DataFrame:
        """The best items that a user does not have, as its device would show them after the reported round.

        Args:
            user: raw id, as the data set has it; a number or a text.
            k: how many, at most the setting `recommendations`.
        Returns:
            `rank` from 1, `item`, `title`, `score`.
        Raises:
            ConfigError: there is no such user, or so many items were not kept.
            DataError: the run kept no recommendations: only those of a simulation do.
        """
        rows = [(place, *entry) for place, entry in enumerate(recommended(self._directory, str(user), k), start=1)]
        return _frame(rows, ["rank", *Recommended._fields])

    def recommendations(self, k: int = 10) -> pd.DataFrame:
        """The same of all users, one under another: `user`, `rank`, `item`, `title`, `score`.

        Raises:
            ConfigError, DataError: as `recommend`.
        """
        from bouquet.reporting.recommendations import all_recommended

        return _frame(all_recommended(self._directory, k), ["user", "rank", *Recommended._fields])

    def export(self, folder: str | os.PathLike[str], k: int = 10) -> Path:
        """Write what other programs can use, as `bouquet export` does; returns the folder.

        Raises:
            ConfigError: the folder holds something.
            DataError: the run kept no model.
        """
        from bouquet.reporting.export import export

        return export(self._directory, Path(folder), k)

    def __repr__(self) -> str:
        full = self.summary["test"]["full"]
        leaky = ", LEAKY" if self.leaky else ""
        return (
            f"<Run of {self.summary['strategy']} on {self.summary['dataset']}{leaky}: HR@10 {full['HR@10']:.3f}, "
            f"NDCG@10 {full['NDCG@10']:.3f} at test, in {self.path}>"
        )

    def _names(self) -> dict[int, str]:
        """Raw id of each key, as far as the run knows."""
        ids = self._directory.reported.read_users()
        return dict(zip(user_keys(ids).tolist(), ids, strict=True)) if ids else {}


def load(path: str | os.PathLike[str]) -> Run:
    """A finished run out of its folder: of `bouquet run`, a cell of a table, or a run with plain Flower.

    Raises:
        DataError: there is no run, it is not finished, or its files are damaged.
    """
    return Run(path)


def _frame(rows: Any, columns: list[str]) -> pd.DataFrame:
    need("pandas", "A table of a run")
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)


def _flat(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A nested document by path; lists as their lengths."""
    found: dict[str, Any] = {}
    for key, part in value.items():
        if isinstance(part, Mapping):
            found |= _flat(part, f"{path}{key}/")
        else:
            found[f"{path}{key}"] = len(part) if isinstance(part, list) else part
    return found
