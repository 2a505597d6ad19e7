"""The day of a researcher from Python: `python day.py ROWS`, in whatever folder."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import bouquet

T = TypeVar("T")
HERE = Path(__file__).resolve().parent
ORDERS = {
    "dataset": "orders.csv",
    "user_column": "customer",
    "item_column": "article",
    "time_column": "bought at",
    "title_column": "title",
    "skip_broken_rows": True,
    "min_interactions": 5,
    "engine": "local",
    "progress": False,
}


def step(name: str, work: Callable[[], T]) -> T:
    """Do something, and say how long it took."""
    begin = time.perf_counter()
    done = work()
    print(f"{name:12} {time.perf_counter() - begin:6.1f} s", flush=True)
    return done


def program(*arguments: str) -> None:
    """What is for the command line alone."""
    subprocess.run([sys.executable, "-m", "bouquet", *arguments], check=True, stdout=subprocess.DEVNULL)


def main(rows: str) -> None:
    """From a file to figures, lists and a model."""
    step("data", lambda: subprocess.run([sys.executable, HERE / "make_data.py", "orders.csv", rows], check=True))
    step("search", lambda: program("search", str(HERE / "search.toml"), "--out", "search", "--engine", "local"))
    chosen = {"config": "search/chosen/fedavg.toml", "max_users": 0, "engine": "local", "progress": False}
    tuned = step("run", lambda: bouquet.run(out="fedavg", compare_with=["popularity", "ease"], **chosen))
    counts = step("counts", lambda: bouquet.run("sequential-rules", out="counts", **ORDERS))
    print(step("compare", lambda: bouquet.compare([counts, tuned])))
    step("report", lambda: program("report", str(counts.path), str(tuned.path), "--html", "report.html"))
    print(step("recommend", lambda: counts.recommend("c00001", 5)))
    step("export", lambda: counts.export("model"))


if __name__ == "__main__":
    main(sys.argv[1])
