"""`bouquet.split` and `bouquet.evaluate`: any program on the ground that runs stand on, from a notebook."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from bouquet.api.result import Run, load
from bouquet.api.running import call, data_settings, plain
from bouquet.api.tables import write_table
from bouquet.config import Scalar
from bouquet.errors import ConfigError, DataError
from bouquet.extras import need

if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("users", "items", "train", "validation", "test", "candidates")


class Split:
    """A data set as runs see it: who is there, what is hidden of whom, and what it is ranked against.

    Made by `bouquet.split`; its folder is that of `bouquet data export`, for programs of any language.

    Attributes:
        path: the folder.
        about: settings and counts (`split.json`).
    Raises:
        DataError: the folder holds no split.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.about: Mapping[str, Any] = json.loads((self.path / "split.json").read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path} is not the folder of a split ({error}).") from None

    @cached_property
    def users(self) -> pd.DataFrame:
        """One row per user."""
        return self._table("users")

    @cached_property
    def items(self) -> pd.DataFrame:
        """One row per item, with titles where the data has them."""
        return self._table("items")

    @cached_property
    def train(self) -> pd.DataFrame:
        """What may be trained with: one row per interaction, a user's oldest first."""
        return self._table("train")

    @cached_property
    def validation(self) -> pd.DataFrame:
        """What settings and rounds are chosen on."""
        return self._table("validation")

    @cached_property
    def test(self) -> pd.DataFrame:
        """What is hidden. Not there where the split was made blind."""
        return self._table("test")

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """The random items that hidden ones are ranked against in `sampled-99`."""
        return self._table("candidates")

    def _table(self, name: str) -> pd.DataFrame:
        """One of the files.

        Raises:
            DataError: it is not there.
        """
        need("pandas", "Reading a split as a DataFrame")
        import pandas as pd

        path = self.path / f"{name}.parquet"
        if not path.exists():
            raise DataError(f"{path} is not there: a blind split has neither test nor its candidates.")
        return pd.read_parquet(path)


def split(
    dataset: str | os.PathLike[str] | pd.DataFrame | None = None,
    *,
    out: str | os.PathLike[str],
    blind: bool = False,
    **settings: Scalar,
) -> Split:
    """Write the split and the candidates that a run with these settings has.

    Args:
        dataset: as for `bouquet.run`.
        out: new folder for the files.
        blind: leave out what is hidden for test.
        settings: those of the data, as for `bouquet.run`: `split="ratio"`, `test_history="training"`, …
    Raises:
        ConfigError: a setting is unknown or impossible, or the folder holds a split.
        DataError: the data cannot be read.
    """
    folder = Path(out)
    given = {key.replace("_", "-"): plain(key, value) for key, value in settings.items()} | data_settings(dataset)
    if dataset is not None and not isinstance(dataset, str | os.PathLike):
        if (folder / "split.json").exists():
            raise ConfigError(f"{folder} already holds a split. Name another folder.")
        given |= write_table(dataset, folder, given)
    pairs = [word for key, value in given.items() for word in ("-c", f"{key}={_literal(value)}")]
    call(["data", "export", "--out", str(folder), *(["--blind"] if blind else []), *pairs])
    return Split(folder)


def evaluate(
    scores: pd.DataFrame | str | os.PathLike[str],
    split: Split | str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    name: str = "",
    train_negatives: str = "",
    compare_with: Sequence[str] = (),
) -> Run:
    """Evaluate the scores of any program as runs are, canaries and marks included.

    Args:
        scores: columns `user`, `item` and `score` or `rank`, and `part` where validation and test have scores of their
            own; a DataFrame, or a Parquet, CSV or TSV file.
        split: whose users and items these are.
        out: new folder for the results, which is that of a run: `bouquet.compare` takes it.
        name: what the scores are called.
        train_negatives: how the program drew them: "honest", or "paper", which is marked LEAKY; "": not told.
        compare_with: rows of pooled data, and folders of runs, to test against.
    Raises:
        ConfigError: the folder holds a run, or a row cannot be compared with.
        DataError: the scores do not fit the split.
    """
    ground = str(split.path if isinstance(split, Split) else split)
    with tempfile.TemporaryDirectory(prefix="bouquet-") as folder:
        file = scores
        if not isinstance(scores, str | os.PathLike):
            need("pandas", "A DataFrame of scores")
            file = Path(folder) / "scores.parquet"
            scores.to_parquet(file, index=False)
        words = ["--name", name or "scores", "--train-negatives", train_negatives]
        words += ["--compare-with", " ".join(compare_with)]
        call(["evaluate", str(file), "--split", ground, "--out", str(out), *words])
    return load(out)


def _literal(value: Scalar) -> str:
    """A value as the command line takes it."""
    return tomli_w.dumps({"value": value}).partition("=")[2].strip()
