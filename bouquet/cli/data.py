"""`bouquet data`: which data sets there are, what is in them, and how to get them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pooch
from rich.table import Table

from bouquet.cli.compare import table_of, wide_console
from bouquet.cli.screen import Screen, remark
from bouquet.config import lookup, parsed
from bouquet.errors import ConfigError
from bouquet.evaluation import PARTS
from bouquet.experiments.exported import write_ground
from bouquet.experiments.ground import ground_of
from bouquet.experiments.settings import resolve
from bouquet.extras import need
from bouquet.ragged import one_after_another
from bouquet.reporting.lengths import write_lengths
from client_app.node.histories import interactions_of
from data_partition import DATASETS, Dataset, Interactions, load, read_shard, stats, write_shards
from data_partition.catalogue import Counts
from data_partition.fetch import locate
from data_partition.readers.files import find

Measured = dict[str, int | float | str | bool]


def list_command(data_dir: str) -> None:
    """Print all data sets that are known by name."""
    table = table_of("name", "title", "time", "here", "terms", "users", "items", "interactions", left=5)
    for dataset in DATASETS.values():
        counts = dataset.published[0] if dataset.published else None
        table.add_row(
            dataset.name,
            dataset.title,
            "yes" if dataset.has_time else "no",
            _here(dataset, data_dir),
            dataset.terms,
            *([f"{n:,}" for n in (counts.users, counts.items, counts.interactions)] if counts else ["–"] * 3),
        )
    console = wide_console()
    console.print(table, markup=False)
    console.print(
        f"\nLooked in {data_dir or pooch.os_cache('bouquet')}. Counts are those printed in papers; "
        "bouquet data stats NAME counts the files.",
        markup=False,
        soft_wrap=True,
    )


def stats_command(
    name: str, data_dir: str, min_interactions: int, overrides: Sequence[str] = (), out: Path | None = None
) -> None:
    """Count a data set, and say whether papers counted the same.

    Args:
        name: of a known set, or the path of a file of one's own.
        overrides: how that file is read.
        out: folder that gets a histogram of interactions per user; None: there is none.

    Raises:
        ConfigError: there is no such data set.
        DataError: its files are missing or broken.
    """
    if not name or Path(name).suffix or os.sep in name:
        _file_stats(name, min_interactions, overrides, out)
        return
    if overrides:
        raise ConfigError(f"-c says how a file of your own is read, and '{name}' is no path of one.")
    dataset = lookup(DATASETS, "dataset", name)
    begin = time.perf_counter()
    interactions = load(name, data_dir, min_interactions=min_interactions)
    seconds = time.perf_counter() - begin
    measured = stats(interactions)
    console = wide_console()
    console.print(f"{dataset.title} ({dataset.name}); terms: {dataset.terms}\n", markup=False)
    console.print(_counts(measured, interactions, min_interactions, seconds), markup=False)
    for counts in dataset.published:
        console.print(f"\nPublished by {counts.source}: {_published(counts, measured, min_interactions)}", markup=False)
    if dataset.note:
        console.print(f"\n{dataset.note}", markup=False)
    Screen(console).caution(name)
    _write_lengths(interactions, dataset.title, out)


def _write_lengths(interactions: Interactions, title: str, out: Path | None) -> None:
    if out is not None:
        files = ", ".join(str(path) for path in write_lengths(out, title, interactions.histories.lengths))
        wide_console().print(f"\nWritten: {files}", markup=False, soft_wrap=True)


def _file_stats(path: str, min_interactions: int, overrides: Sequence[str], out: Path | None) -> None:
    given = [f'dataset="file" data-file="{path}"'] if path else []
    options = parsed(resolve(None, [*given, f"min-interactions={min_interactions}", *overrides])).run
    begin = time.perf_counter()
    interactions = interactions_of(options)
    seconds = time.perf_counter() - begin
    remark(interactions)
    wide_console().print(_counts(stats(interactions), interactions, options.min_interactions, seconds), markup=False)
    _write_lengths(interactions, path or options.data_file, out)


def _counts(measured: Measured, interactions: Interactions, min_interactions: int, seconds: float) -> Table:
    table = table_of("", "", left=1)
    table.show_header = False
    for words, value in _lines(measured, interactions, min_interactions):
        table.add_row(words, value)
    table.add_row("read in", f"{seconds:.2f} s")
    return table


def fetch_command(name: str, data_dir: str) -> None:
    """Have a data set's files where runs look for them.

    Raises:
        ConfigError: there is no such data set.
        DataError: the files cannot be had; the sentence says what to put where.
    """
    dataset = lookup(DATASETS, "dataset", name)
    console = wide_console()
    if dataset.read is None:
        console.print(f"{dataset.title} is built in; there is nothing to fetch.", markup=False)
        return
    folder = locate(dataset, data_dir)
    console.print(f"{dataset.title} is in {folder}. Terms: {dataset.terms}.", markup=False, soft_wrap=True)


def shard_command(name: str, nodes: int, out: Path, overrides: Sequence[str]) -> None:
    """Divide a data set into one folder per node.

    Raises:
        ConfigError: there is no such data set, or its users cannot be divided in this way.
        DataError: its files are missing or broken.
    """
    settings = resolve(None, [*overrides, *([f'dataset="{name}"'] if name else [])])
    options = parsed(settings).run
    interactions = interactions_of(options)
    written = write_shards(interactions, nodes, options.partition, settings, out)
    console = wide_console()
    for part in written:
        users = read_shard(part).interactions.num_users
        console.print(f"{part}: {users:,} of {interactions.num_users:,} users", markup=False, soft_wrap=True)
    console.print("On each node: bouquet serve node --shard FOLDER", markup=False)


def export_command(name: str, out: Path, overrides: Sequence[str], blind: bool) -> None:
    """Write the split of a run, for programs that are not ours.

    Args:
        blind: without what is hidden for test.
    Raises:
        ConfigError: there is no such data set, the split does not fit it, or the folder holds one.
        DataError: its files are missing or broken.
    """
    need("pyarrow", "Writing Parquet files")
    settings = resolve(None, [*overrides, *([f'dataset="{name}"'] if name else [])])
    ground = ground_of(settings)
    remark(interactions_of(parsed(settings).run))
    write_ground(ground, out, blind=blind)
    rows = {"train": ground.histories.train, **ground.held_out}
    if blind:
        del rows["test"]
    else:
        rows["candidates"] = one_after_another(*(ground.histories.candidates[part] for part in PARTS))
    console = wide_console()
    for part, found in rows.items():
        users = int((found.lengths > 0).sum())
        console.print(f"{out / part}.parquet: {len(found.values):,} rows of {users:,} users", markup=False)
    split = "with a split that is not blind" if blind else f"--split {out}"
    console.print(
        f"Learn from train.parquet, score users and items, and then: bouquet evaluate scores.parquet {split}",
        markup=False,
        soft_wrap=True,
    )


def _here(dataset: Dataset, data_dir: str) -> str:
    if dataset.read is None:
        return "built in"
    base = Path(data_dir).expanduser() if data_dir else Path(pooch.os_cache("bouquet"))
    names = (dataset.name, *dataset.aliases)
    folders = [base / name for name in names] + ([base] if base.name in names else [])
    complete = any(all(find(folder, file) is not None for file in dataset.files) for folder in folders)
    if complete:
        return "yes"
    return "no, bouquet fetches it" if dataset.download else "no"


def _lines(measured: Measured, interactions: Interactions, min_interactions: int) -> list[tuple[str, str]]:
    lines = [
        ("users", f"{measured['users']:,}"),
        ("items", f"{measured['items']:,}"),
        ("interactions", f"{measured['interactions']:,}"),
        ("per user, average", f"{measured['average']:.1f}"),
        ("per user, standard deviation", f"{interactions.histories.lengths.std():.1f}"),
        ("per user, least / median / most", f"{measured['min']} / {measured['median']:g} / {measured['max']}"),
        ("density", f"{100 * float(measured['density']):.3f} %"),
        ("order in time", "yes" if interactions.has_time else "no"),
        ("rows in the files", f"{measured['rows']:,}"),
        ("repeated rows, left out", f"{measured['duplicates']:,}"),
    ]
    if interactions.reading and interactions.reading.skipped:
        lines.append(("rows that cannot be read, left out", f"{interactions.reading.skipped:,}"))
    if min_interactions:
        lines.append((f"users below {min_interactions} items, left out", f"{measured['dropped_users']:,}"))
    return lines


def _published(counts: Counts, measured: Measured, min_interactions: int) -> str:
    printed = {"users": counts.users, "items": counts.items, "interactions": counts.interactions}
    text = ", ".join(f"{value:,} {word}" for word, value in printed.items())
    if counts.min_interactions:
        text += f", users below {counts.min_interactions} left out"
    different = [word for word, value in printed.items() if measured[word] != value]
    if not different:
        return f"{text}. Agrees."
    hint = ""
    if counts.min_interactions != min_interactions:
        hint = f" Count under the same rule with --min-interactions {counts.min_interactions}."
    return f"{text}. Differs in {', '.join(different)}.{hint}"
