"""`bouquet evaluate`: what the scores of another program reach, beside rows of pooled data and beside runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.cli.beforehand import refuse_folder
from bouquet.cli.compare import differences, tests_against_first, wide_console
from bouquet.cli.resume import refuse_held
from bouquet.cli.screen import Screen
from bouquet.config import RunConfig, Scalar, defaults, lookup
from bouquet.errors import BouquetError, ConfigError, DataError
from bouquet.evaluation import CANDIDATE_SETS, METRICS
from bouquet.experiments.baselines import evaluate_centralized, simple_rows
from bouquet.experiments.comparison import Compared, Finished, finished, how_tested, require_same_data
from bouquet.experiments.exported import read_ground
from bouquet.experiments.foreign import Evaluation, evaluate
from bouquet.experiments.ground import Ground, ground_of, summary_of
from bouquet.experiments.settings import option_classes, resolve
from bouquet.extras import need
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import IN_ORDER, POOLED, WITH_TORCH

# Of what is trained honestly here nothing is this much above the better of popularity and pooled EASE.
TOO_GOOD = 3.0


def evaluate_command(
    scores: Path,
    split: Path | None,
    overrides: Sequence[str],
    out: str,
    name: str,
    train_negatives: str,
    compare_with: Sequence[str] | None,
    metric: str,
    candidates: str,
) -> None:
    """Evaluate, write the folder, print the table and the tests.

    Args:
        split: a folder of `bouquet data export`; None: the split of a run with the settings `overrides`.
        compare_with: names of rows of pooled data, and folders of runs; None: the usual rows.
    Raises:
        ConfigError: a name is unknown, the folder is taken, or a run stands on other ground.
        DataError: the split, the scores or a run cannot be used; the sentence says why.
    """
    lookup(dict.fromkeys(METRICS), "metric", metric)
    lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", candidates)
    rows, folders = _named(compare_with or ())
    ground = _ground(split, overrides)
    if compare_with is None:
        rows = list(simple_rows(ground.config.repeats))
    runs = [finished(folder) for folder in folders]
    for run in runs:
        require_same_data(run, _finished(ground, "These scores", {}, np.zeros(0)))
    directory = RunDirectory(out or run_name(ground.config.model_copy(update={"strategy": name or scores.stem})))
    refuse_held(directory, RunConfig())
    refuse_folder(directory.path)
    evaluation = evaluate(scores, ground, name=name, train_negatives=train_negatives)
    others = {row: _row(ground, row) for row in rows}
    shown = {row: _shown(found) for row, found in others.items()} | {run.name: _shown(run) for run in runs}
    evaluation = _with_caution(evaluation, others)
    evaluation.save(directory.path)
    if shown:
        directory.write_json("comparison.json", shown)
    Screen().table(directory)
    tested = [found for found in others.values() if isinstance(found, Finished)] + runs
    if tested:
        _tests([finished(directory.path), *tested], candidates, metric)


def _named(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Rows and folders.

    Raises:
        ConfigError: a word is neither.
    """
    rows, folders = [], []
    for word in words:
        if word in POOLED:
            if word in WITH_TORCH:
                need("torch", f"The row {word}")
            rows.append(word)
        elif Path(word).is_dir():
            folders.append(Path(word))
        else:
            raise ConfigError(
                f"--compare-with takes folders of finished runs and rows of pooled data ({', '.join(sorted(POOLED))}), "
                f"and '{word}' is neither."
            )
    return rows, folders


def _ground(split: Path | None, overrides: Sequence[str]) -> Ground:
    if split is None and not overrides:
        raise ConfigError(
            "Name the split that the scores are for: --split with a folder of bouquet data export, or the settings of "
            "the data with -c."
        )
    if split is not None and overrides:
        raise ConfigError("The split in the folder of --split has its settings; leave -c out.")
    return read_ground(split) if split is not None else ground_of(resolve(None, overrides))


def _finished(ground: Ground, name: str, summary: Mapping[str, Any], values: Any) -> Finished:
    """Something on a ground, as if it had been read from a folder."""
    settings: dict[str, Scalar] = defaults(option_classes()) | dict(ground.settings)
    counts = {"users": len(ground.user_ids), "items": len(ground.item_ids), "interactions": ground.interactions}
    order = np.argsort(ground.histories.users)
    there = values[order] if len(values) else values
    return Finished(name, settings, {**counts, **summary}, ground.histories.users[order], there)


def _row(ground: Ground, name: str) -> Finished | str:
    """A row of pooled data, or why it cannot be computed."""
    if name in IN_ORDER and not ground.histories.in_time:
        return "it reads histories in the order of time, and there are no times"
    try:
        values, chosen = evaluate_centralized(POOLED[name](), ground.histories, ground.config)
    except (ValueError, BouquetError) as error:
        return str(error)
    # Values of single users in single precision, as those that are read from a folder.
    single = values.astype(np.float32).astype(np.float64)
    return _finished(ground, name, summary_of(ground, name, values, chosen), single)


def _shown(found: Finished | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"unavailable": found}
    row = {key: found.summary[key] for key in ("test", "validation", "standard_error")}
    if found.name in POOLED:
        return {**row, "chosen": found.summary["chosen"]}
    words = [str(found.summary["strategy"]), *(["LEAKY"] if found.summary["leaky"] else [])]
    # A whole path would leave no room for the figures; the tests below name it, and so does the key of this row.
    return {**row, "label": ", ".join(words), "remark": "/".join(Path(found.name).parts[-2:])}


def _with_caution(evaluation: Evaluation, rows: Mapping[str, Finished | str]) -> Evaluation:
    """Says so where the figures are far above what is known of such data."""
    reached = evaluation.summary["test"]["full"]["HR@10"]
    usual = [row.summary["test"]["full"]["HR@10"] for row in rows.values() if isinstance(row, Finished)]
    if not usual or not reached > TOO_GOOD * max(usual):
        return evaluation
    caution = (
        f"Caution. HR@10 (full) is more than {TOO_GOOD:g} times that of any row beside it, as where a program has seen "
        "what is hidden: in its training data, in its choice of negatives, or in its choice of what to score."
    )
    return replace(evaluation, summary={**evaluation.summary, "remarks": [*evaluation.summary["remarks"], caution]})


def _tests(runs: Sequence[Finished], candidates: str, metric: str) -> None:
    console = wide_console()
    try:
        found = [Compared(run.name, [run]) for run in runs]
        tests = tests_against_first(found, candidates, metric)
    except DataError:
        console.print(f"\nNo tests: the scores do not reach {metric} ({candidates}).", soft_wrap=True)
        return
    console.print(
        f"\nDifference to these scores in {metric} ({candidates}), user by user ({how_tested(tests)}, p adjusted "
        f"for {len(runs) - 1} tests)\n",
        soft_wrap=True,
    )
    console.print(differences(found, tests))
