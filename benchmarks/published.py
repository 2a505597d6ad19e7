"""A round of a published code beside one of ours: `python -m benchmarks.published --implementation fedca --folder …`.

The published code runs as it is: its own entry file, its own interpreter, in a temporary copy of its folder, with the
data file where it looks for one. The time of a round is that between the lines in which it says which round begins.
Then ours runs with the same users and hyper-parameters. Both get the same number of threads. Without a folder only
ours runs.

No copy of these codes comes with this project, and what is written here about them (entry file, arguments, place of
the data, words of a round) was not tried on them; every part of it can be given on the command line.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.follow import FollowError, Mark, follow
from benchmarks.machine import describe_machine
from benchmarks.rounds import run_command
from benchmarks.tables import markdown
from bouquet.methods import METHODS, PLUG_INS
from bouquet.reporting.run_directory import RunDirectory

CONFIGS = Path(__file__).parents[1] / "configs"
OVERRIDABLE = ("entry", "place", "separator", "arguments", "marker")
ROUND = r"[Rr]ound\D{0,3}(\d+)"


class CannotCompare(Exception):
    """The published code cannot be measured; the message says why and what would help."""


@dataclass(frozen=True)
class Published:
    """What is assumed of a published code.

    Attributes:
        repository: where it is published.
        entry: the file that trains.
        place: where it looks for the ratings.
        separator: of the columns user, item, rating, time in that file.
        arguments: its command line; {rounds} is replaced.
        marker: regular expression of the line that begins a round; its group is the round's number.
        ours: our settings with the same hyper-parameters.
    """

    repository: str
    entry: str
    place: str
    separator: str
    arguments: str
    marker: str
    ours: Mapping[str, Any]


def fedca_settings() -> dict[str, Any]:
    """The settings of FedCA's code, from the ready-made configuration."""
    settings = tomllib.loads((CONFIGS / "ml-100k-fedca-code.toml").read_text())
    return {key: value for key, value in settings.items() if key not in ("dataset", "num-server-rounds")}


def like(method: str, **settings: Any) -> dict[str, Any]:
    """Settings of a method, or of plain federated matrix factorisation where this project does not have it."""
    chosen: dict[str, Any] = {"strategy": "fcf"}
    if method in METHODS:
        chosen = {"strategy": method}
    elif method in PLUG_INS:
        chosen["personalization"] = method
    return {**chosen, "train-negatives": "paper", **{key.replace("_", "-"): value for key, value in settings.items()}}


IMPLEMENTATIONS = {
    "fedca": Published(
        "hongleizhang/FedCA",
        "main.py",
        "data/ml-100k/ratings.dat",
        ",",
        "--dataset ml-100k --num_round {rounds}",
        ROUND,
        fedca_settings(),
    ),
    "pfedrec": Published(
        "Zhangcx19/IJCAI-23-PFedRec",
        "train.py",
        "data/100k/ratings.dat",
        ",",
        "--dataset 100k --num_round {rounds} --local_epoch 1",
        ROUND,
        like("pfedrec", embedding_size=32, local_epochs=1, batch_size=256, learning_rate=0.1, user_learning_rate=0.1),
    ),
    "fedrap": Published(
        "mtics/FedRAP",
        "main.py",
        "datasets/ml-100k/ratings.dat",
        ",",
        "--dataset ml-100k --num_round {rounds}",
        ROUND,
        like("fedrap", embedding_size=32, local_epochs=10, batch_size=2048, learning_rate=0.1, user_learning_rate=0.1),
    ),
}


def read_ratings(path: Path) -> pd.DataFrame:
    """A file of ratings as MovieLens-100K has them: user, item, rating, time, divided by tabs.

    Raises:
        CannotCompare: it is not such a file.
    """
    names = ["user", "item", "rating", "time"]
    try:
        return pd.read_csv(path, sep="\t", header=None, names=names, dtype="int64")
    except (OSError, ValueError) as error:
        raise CannotCompare(f"{path} cannot be read as user, item, rating and time divided by tabs: {error}") from None


def copied(code: Published, folder: Path, target: Path, ratings: pd.DataFrame) -> Path:
    """A copy of the published folder with the data file in it; returns the copy's entry file.

    Raises:
        CannotCompare: the folder has no entry file.
    """
    if not (folder / code.entry).is_file():
        raise CannotCompare(
            f"{folder} has no file {code.entry}. Give the checked-out folder of {code.repository}, or name its entry "
            "file with --entry."
        )
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    place = target / code.place
    # A link in the copy may lead out of it, and nothing may be written there.
    if not place.resolve().is_relative_to(target.resolve()):
        raise CannotCompare(f"{code.place} leads out of {folder}. Give another place with --place.")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    ratings.to_csv(place, sep=code.separator, header=False, index=False)
    return target / code.entry


def time_published(
    code: Published, folder: Path, ratings: pd.DataFrame, rounds: int, python: str, log: str, timeout: float
) -> tuple[list[Mark], list[str]]:
    """When the rounds of the published code began; one more than was asked for, which ends the last.

    Raises:
        CannotCompare: it failed, or never said that a round began.
    """
    with tempfile.TemporaryDirectory() as temporary:
        entry = copied(code, folder, Path(temporary) / "code", ratings)
        arguments = shlex.split(code.arguments.format(rounds=rounds + 1))
        command = [python, entry.name, *arguments]
        try:
            marks = follow(command, entry.parent, code.marker, rounds + 1, log=log, timeout=timeout)
        except FollowError as error:
            raise CannotCompare(f"{code.repository} did not run to the end of round {rounds}: {error}") from None
    return marks, command[1:]


def time_ours(code: Published, ratings: pd.DataFrame, rounds: int) -> dict[str, Any]:
    """What our rounds took, evaluation included, in one process; the first is not counted.

    The seconds are those that the run records of itself: a round may be shorter than the time between two looks at it.

    Raises:
        CannotCompare: our run failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        ratings.to_csv(Path(temporary) / "ratings.csv", index=False)
        data = {"dataset": "file", "data-file": str(Path(temporary) / "ratings.csv"), "time-column": "time"}
        length = {"num-server-rounds": rounds + 1, "evaluate-every": 1, "checkpoint-every": 0}
        command = run_command({**code.ours, **data, **length}, "local", 1, "run")
        try:
            marks = follow(command, Path(temporary), r'"round": (\d+)', rounds + 1, log="run/metrics.jsonl")
        except FollowError as error:
            raise CannotCompare(f"Our run failed: {error}") from None
        lines = RunDirectory(str(Path(temporary) / "run")).rounds()[1:]
    return {**per_round(marks, "our"), "our_seconds": [round(line["seconds"]["total"], 4) for line in lines]}


def per_round(marks: Sequence[Mark], whose: str) -> dict[str, Any]:
    """Seconds between marks, and processor time per round."""
    seconds = [round(after.seconds - before.seconds, 4) for before, after in pairwise(marks)]
    used = (marks[-1].cpu_seconds - marks[0].cpu_seconds) / len(seconds)
    return {f"{whose}_seconds": seconds, f"{whose}_cpu_seconds_per_round": round(used, 4)}


def compare(
    code: Published,
    folder: Path | None,
    data: Path,
    rounds: int,
    python: str = sys.executable,
    log: str = "",
    timeout: float = 3600.0,
) -> dict[str, Any]:
    """Both codes on the same data, one after the other; ours alone where no folder is given.

    Raises:
        CannotCompare: one of them cannot be measured.
    """
    ratings = read_ratings(data)
    found: dict[str, Any] = {"repository": code.repository, "users": int(ratings["user"].nunique())}
    if folder is not None:
        marks, found["published_command"] = time_published(code, folder, ratings, rounds, python, log, timeout)
        found |= per_round(marks, "published")
    found["our_settings"] = dict(code.ours)
    # Ours are short: more of them for the same certainty.
    found |= time_ours(code, ratings, max(8, rounds))
    if folder is not None:
        found["ratio"] = round(
            statistics.median(found["published_seconds"]) / statistics.median(found["our_seconds"]), 1
        )
        found["ratio_min"] = round(min(found["published_seconds"]) / max(found["our_seconds"]), 1)
        if used := found["our_cpu_seconds_per_round"]:
            found["cpu_ratio"] = round(found["published_cpu_seconds_per_round"] / used, 1)
    return found


def show(found: Mapping[str, Any]) -> str:
    """The result for a reader."""
    rows = [
        {
            "code": name,
            "rounds": len(each),
            "seconds per round": f"{statistics.median(each):.3f}",
            "shortest": f"{min(each):.3f}",
            "processor time": f"{found[f'{name}_cpu_seconds_per_round']:.3f}",
        }
        for name in ("published", "our")
        if (each := found.get(f"{name}_seconds"))
    ]
    settings = " ".join(f"{key}={value}" for key, value in found["our_settings"].items())
    parts = [f"{found['repository']}, {found['users']} users", markdown(rows), f"Our settings: {settings}"]
    if "ratio" in found:
        parts[0] += (
            f": {found['ratio']} times as long per round (at least {found['ratio_min']}: its shortest round beside our "
            f"longest), {found.get('cpu_ratio', 'unknown')} times the processor time"
        )
        parts[2] += f"\nPublished command: {shlex.join(found['published_command'])}"
        parts.append("Equal are the data file, the threads per process, and what command and settings say.")
    return "\n\n".join(parts)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--implementation", required=True, choices=sorted(IMPLEMENTATIONS))
    made.add_argument("--folder", type=Path, help="the checked-out code, copied and never changed; without: only ours")
    made.add_argument("--data", required=True, type=Path, help="u.data of MovieLens-100K, or a file like it")
    made.add_argument("--rounds", type=int, default=3, help="rounds of the published code that are timed")
    made.add_argument("--python", default=sys.executable, help="interpreter that has what the published code imports")
    made.add_argument("--threads", type=int, default=1, help="threads that either code may use")
    made.add_argument(
        "--log", default="", help="pattern of a file in the copy that tells the rounds, if no output does"
    )
    made.add_argument("--timeout", type=float, default=3600.0, help="seconds after which the published code is ended")
    for name in OVERRIDABLE:
        shown = {key: getattr(code, name) for key, code in IMPLEMENTATIONS.items()}
        made.add_argument(f"--{name}", help=f"instead of {json.dumps(shown)}".replace("%", "%%"))
    made.add_argument("--settings", default="{}", help="JSON of our settings to change")
    made.add_argument("--json", action="store_true", help="print JSON only")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    code = IMPLEMENTATIONS[options.implementation]
    given = {name: vars(options)[name] for name in OVERRIDABLE if vars(options)[name] is not None}
    code = replace(code, **given, ours={**code.ours, **json.loads(options.settings)})
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    try:
        found = compare(
            code, options.folder, options.data, options.rounds, options.python, options.log, options.timeout
        )
    except CannotCompare as error:
        sys.exit(str(error))
    found = {"implementation": options.implementation, **found, "machine": describe_machine()}
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
