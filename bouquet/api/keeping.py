"""`bouquet.kept_cells`: what `bouquet table --cells` kept, as DataFrames."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bouquet.errors import DataError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.experiments.kept_cells import KeptCell, cell_files, read_cell
from bouquet.extras import need

if TYPE_CHECKING:
    import pandas as pd


def kept_cells(folder: str | os.PathLike[str], *, per_user: bool = False) -> pd.DataFrame:
    """The cells of tables that are kept in a folder, each a method under one seed.

    Args:
        folder: such as `docs/results/cells`, or that of one data set in it.
        per_user: the metrics of every user in place of means.
    Returns:
        One row per cell: `file`, which `bouquet.compare` takes as a run, `dataset`, `method`, `federated`, `seed`,
        `leaky`, `best_round`, `down_per_user_round` and `up_per_user_round` in bytes, the settings in which the cells
        differ (underscores for hyphens; empty where a method has no such setting), and the means at test, as
        "full/NDCG@10". With `per_user` as `bouquet.Run.per_user`, and `file` beside it; users are keys.
    Raises:
        DataError: there is no cell, or one is damaged.
    """
    need("pandas", "bouquet.kept_cells")
    import pandas as pd

    cells = {path: read_cell(path) for path in cell_files(Path(folder))}
    if not cells:
        raise DataError(f"There are no kept cells in {folder}.")
    if per_user:
        return pd.concat([_people(path, cell) for path, cell in cells.items()], ignore_index=True)
    every = dict.fromkeys(key for cell in cells.values() for key in cell.settings)
    given = {key: {repr(cell.settings[key]) for cell in cells.values() if key in cell.settings} for key in every}
    differing = [key for key, found in given.items() if len(found) > 1 and key not in ("dataset", "strategy", "seed")]
    return pd.DataFrame([_line(path, cell, differing) for path, cell in cells.items()]).astype({"best_round": "Int64"})


def _line(path: Path, cell: KeptCell, differing: list[str]) -> dict[str, Any]:
    summary = cell.summary
    size = summary.get("bytes", {})
    return {
        "file": str(path),
        "dataset": summary["dataset"],
        "method": summary["strategy"],
        "federated": summary.get("federated", True),
        "seed": summary["seed"],
        "leaky": summary["leaky"],
        "best_round": summary.get("best_round"),
        **{f"{way}_per_user_round": size.get(f"{way}_per_user_round") for way in ("down", "up")},
        **{key.replace("-", "_"): cell.settings.get(key) for key in differing},
        **{f"{kind}/{metric}": summary["test"][kind][metric] for kind in CANDIDATE_SETS for metric in METRICS},
    }


def _people(path: Path, cell: KeptCell) -> pd.DataFrame:
    import pandas as pd

    users = [f"{user:016x}" for user in cell.users.tolist()]
    tables = [
        pd.DataFrame(cell.values[:, PARTS.index(part), place], columns=list(METRICS)).assign(
            file=str(path), user=users, part=part, candidates=kind
        )
        for part in ("test", "validation")
        for place, kind in enumerate(CANDIDATE_SETS)
    ]
    return pd.concat(tables, ignore_index=True)[["file", "user", "part", "candidates", *METRICS]]
