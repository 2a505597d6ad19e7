"""`bouquet export`: the reported model of a run, in files that other programs read.

model.safetensors         the shared arrays by name; metadata: strategy, its settings, round
items.csv                 row of the arrays, item, title, where the run knows its items
recommendations.parquet   user, rank, item, title, score, where it is a simulation that kept them
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path

from safetensors.numpy import save

from bouquet.errors import ConfigError
from bouquet.extras import need
from bouquet.files import write_atomically
from bouquet.reporting.recommendations import all_recommended
from bouquet.reporting.run_directory import RunDirectory


def export(directory: RunDirectory, out: Path, k: int = 10) -> Path:
    """Write such a folder; it is there when all of it is written.

    Args:
        k: items of each user.
    Returns:
        The folder.
    Raises:
        ConfigError: the folder holds something, or more items are asked for than were kept.
        DataError: there is no finished run, or it kept no model.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already. Name a new folder.")
    reported = directory.reported
    best = int(directory.read_summary().get("best_round") or 0)
    model, catalogue = reported.read_model(best), reported.read_catalogue()
    temporary = out.absolute().with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        said = {"strategy": model.strategy, "round": str(model.round), "settings": json.dumps(dict(model.settings))}
        write_atomically(temporary / "model.safetensors", save(dict(model.arrays), said))
        if catalogue:
            text = io.StringIO(newline="")
            rows = zip(range(len(catalogue.items)), catalogue.items, catalogue.titles, strict=True)
            csv.writer(text).writerows([("row", "item", "title"), *rows])
            write_atomically(temporary / "items.csv", text.getvalue())
        if reported.lists(best).exists():
            _write_lists(directory, temporary / "recommendations.parquet", k)
        temporary.replace(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def _write_lists(directory: RunDirectory, path: Path, k: int) -> None:
    need("pyarrow", "Lists of recommendations as Parquet")
    import pyarrow
    import pyarrow.parquet

    users, ranks, items, titles, scores = zip(*all_recommended(directory, k), strict=True)
    columns = {
        "user": pyarrow.array(users, pyarrow.string()),
        "rank": pyarrow.array(ranks, pyarrow.int32()),
        "item": pyarrow.array(items, pyarrow.string()),
        "title": pyarrow.array(titles, pyarrow.string()),
        "score": pyarrow.array(scores, pyarrow.float32()),
    }
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    write_atomically(path, buffer.getvalue().to_pybytes(), private=True)
