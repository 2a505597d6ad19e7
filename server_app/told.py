"""What the ServerApp says while it runs: a line per round, for `flwr log` and `flwr run --stream`.

Flower keeps what a ServerApp prints. Whoever has no access to the folder of the run reads there how it goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from bouquet.config import RunConfig
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.words import short, size, spent

MOST_LETTERS = 200


class ToldRunDirectory(RunDirectory):
    """The folder of a run that says every round when it is written.

    Args:
        config: the run's.
    """

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        super().__init__(directory.path)
        self._rounds = config.num_server_rounds

    def append_round(self, server_round: int, record: Mapping[str, Any], *, durable: bool = False) -> None:
        super().append_round(server_round, record, durable=durable)
        say(round_line(server_round, self._rounds, record))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        super().write_summary(summary)
        if summary["status"] == "completed":
            say(f"completed after round {summary['rounds']}; best round {summary['best_round']}: {_test(summary)}")


def round_line(server_round: int, rounds: int, line: Mapping[str, Any]) -> str:
    """One round in words.

    Args:
        line: as in `metrics.jsonl`.
    """
    parts = [f"round {server_round}/{rounds}", f"users {line['users']}/{line['asked']}"]
    if (loss := line.get("loss")) is not None and loss == loss:  # a round without any loss has NaN
        parts.append(f"loss {loss:.4g}")
    if "validation" in line:
        full = line["validation"]["full"]
        parts.append(f"validation HR@10 {short(full['HR@10'])}, NDCG@10 {short(full['NDCG@10'])}")
    if "privacy" in line:
        parts.append(spent(line["privacy"]))
    down, up = (size(line["bytes"][f"{way}_per_user"]) for way in ("down", "up"))
    parts += [f"{line['seconds']['total']:.1f} s", f"{down} down and {up} up per user"]
    nodes = line["nodes"]
    parts.append(f"nodes {nodes['present']} there, {nodes['absent']} absent, {len(nodes['resting'])} resting")
    if line["failures"]:
        # A node can say much, and in several lines.
        reason = " ".join(line["failures"][0]["reason"].split())[:MOST_LETTERS]
        parts.append(f"{len(line['failures'])} failed, the first: {reason}")
    return "; ".join(parts)


def say(text: str) -> None:
    """Print a line. Where nobody can hear it, the run goes on all the same."""
    with contextlib.suppress(OSError, ValueError):
        # Paths and reasons can have letters that the log's encoding has not.
        print(text.replace("–", "-").encode("ascii", "backslashreplace").decode(), flush=True)


def _test(summary: Mapping[str, Any]) -> str:
    full = summary["test"]["full"]
    return f"test HR@10 {short(full['HR@10'])}, NDCG@10 {short(full['NDCG@10'])}"
