"""What a person sees of a run: one line about what starts, one per round, and a table in plain words."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from bouquet.config import RunConfig
from bouquet.experiments.baselines import TRAINED
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.words import short, size, spent
from data_partition import Interactions, caution_of, remarks

ENGINE_NAMES = {"flower": "Flower simulation", "local": "one process"}
BAR = 24
WIDTH = 130
MANY_PER_CORE = 16

REMARKS = {
    "run": "every user's data stayed on its node",
    "local": "the same training without any federation",
    "popularity": "what most people like, the same for everybody",
    "most-recent": "a user's own items, the newest first",
    TRAINED: "federated training, the usual way",
    "itemknn": "not federated: all data in one place",
    "ease": "not federated: all data in one place",
    "mf-bce": "not federated: all data in one place",
    "mf-bpr": "not federated: all data in one place",
    "ials": "not federated: all data in one place",
    "neumf": "not federated: all data in one place",
    "lightgcn": "not federated: all data in one place",
    "gru4rec": "not federated: all histories in one place",
    "sasrec": "not federated: all histories in one place",
    "gru4rec-softmax": "not federated: all histories in one place",
    "sasrec-softmax": "not federated: all histories in one place",
    "gru4rec-averaged": "not federated: all histories in one place",
    "sasrec-averaged": "not federated: all histories in one place",
}
LABELS = {
    TRAINED: "FedAvg",
    "local": "each user alone",
    "popularity": "most popular items",
    "most-recent": "own items, newest first",
    "itemknn": "ItemKNN, all data pooled",
    "ease": "EASE, all data pooled",
    "mf-bce": "MF (BCE), all data pooled",
    "mf-bpr": "MF (BPR), all data pooled",
    "ials": "iALS, all data pooled",
    "neumf": "NeuMF, all data pooled",
    "lightgcn": "LightGCN, all data pooled",
    "gru4rec": "GRU4Rec, all data pooled",
    "sasrec": "SASRec, all data pooled",
    "gru4rec-softmax": "GRU4Rec (softmax), all data pooled",
    "sasrec-softmax": "SASRec (softmax), all data pooled",
    "gru4rec-averaged": "GRU4Rec (averaged), all data pooled",
    "sasrec-averaged": "SASRec (averaged), all data pooled",
}
READ_AT_TEST = {"known": "after all that is known by then", "training": "after the training items alone"}


def remark(interactions: Interactions) -> None:
    """Say what had to be found out about a file of one's own, and what of it is left out.

    On stderr, so that it is also told to who calls the program and leaves its table aside.
    """
    for sentence in remarks(interactions):
        print(sentence, file=sys.stderr)


class Screen:
    """Prints to the terminal; plain lines where there is none."""

    def __init__(self, console: Console | None = None) -> None:
        # A table that is cut at the assumed width of a log file helps nobody.
        width = None if sys.stdout.isatty() else WIDTH
        self.console = console or Console(highlight=False, width=width)
        self._place = 0

    def header(self, config: RunConfig, interactions: Interactions, nodes: int, engine: str) -> None:
        """What starts."""
        self._place = 0
        self.rounds = config.num_server_rounds
        plural = "node" if nodes == 1 else "nodes"
        self.console.print(
            f"bouquet · {config.strategy} on {config.dataset} ({interactions.num_users:,} users, "
            f"{interactions.num_items:,} items, {interactions.num_interactions:,} interactions) · "
            f"{nodes} {plural} · {ENGINE_NAMES[engine]}",
            soft_wrap=True,
        )
        remark(interactions)
        cores = os.cpu_count() or 1
        if engine == "flower" and nodes > MANY_PER_CORE * cores:
            self.console.print(
                f"{nodes:,} nodes are many for {cores} cores: every node's message takes its time in a simulated "
                "round, and fewer nodes give the same figures.",
                soft_wrap=True,
            )

    def deployment_header(self, config: RunConfig) -> None:
        """What starts on a deployment, whose data only the nodes can count."""
        self._place = 0
        self.rounds = config.num_server_rounds
        where = "devices" if config.catalogue_file else config.dataset
        self.console.print(
            f"bouquet · {config.strategy} on {where} · {config.min_nodes} nodes or more · SuperLink and SuperNodes",
            soft_wrap=True,
        )

    def progress(self, directory: RunDirectory) -> None:
        """A line for every evaluated round since the last call; on a terminal the last line moves with each round."""
        rounds, self._place = directory.rounds_after(self._place)
        for line in rounds:
            end = "\n" if "validation" in line or not self.console.is_terminal else "\r"
            if "validation" in line or self.console.is_terminal:
                self.console.print(self._round(line), end=end, soft_wrap=True)

    def stopped(self, directory: RunDirectory, config: RunConfig, command: str = "bouquet run") -> None:
        """How to go on after Ctrl-C."""
        rounds = len(directory.rounds())
        self.console.print(f"\nStopped after round {rounds} of {config.num_server_rounds}.")
        if any(directory.checkpoints.glob("*.safetensors")):
            self.console.print(f"Go on with: {command} -c 'resume=\"{directory.path}\"'", soft_wrap=True)

    def table(self, directory: RunDirectory) -> None:
        """How good the run is, beside what it should be compared with."""
        summary = directory.read_summary()
        foreign = summary.get("foreign", False)
        self.console.print(f"\nHow good is it? ({_ranked(summary)})\n", soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2))
        table.add_column("", no_wrap=True)
        for name in ("HR@10", "NDCG@10", "HR@10 of 100"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("")  # the only one that may be long
        leaky = "LEAKY" if summary["leaky"] else ""
        ours, remark = ("these scores", leaky) if foreign else ("this run", REMARKS["run"])
        table.add_row(f"{ours} ({summary['strategy']})", *_figures(summary), remark, style="bold")
        for name, row in directory.read_json("comparison.json").items():
            if "unavailable" in row:
                table.add_row(LABELS.get(name, name), "", "", "", row["unavailable"])
            else:
                label, remark = row.get("label", LABELS.get(name, name)), row.get("remark", REMARKS.get(name, ""))
                table.add_row(label, *_figures(row), remark)
        self.console.print(table)
        for sentence in summary.get("leaky_because", []):
            self.console.print(f"\nLEAKY. {sentence}", markup=False, soft_wrap=True)
        if remarks := summary.get("remarks"):
            self.console.print("\n" + "\n".join(remarks), markup=False, soft_wrap=True)
        if privacy := summary.get("privacy"):
            self.console.print(f"\n{_spent(privacy)}", markup=False, soft_wrap=True)
        self.caution(summary["dataset"])
        self.console.print(
            "\nHR@10: share of users whose hidden item is among the ten that they are shown. NDCG@10: the same, and "
            "more for a higher place.\nHR@10 of 100: the hidden item against 99 random ones only; ± is one standard "
            "error over users.",
            soft_wrap=True,
        )
        shown = directory.path
        self.console.print(f"\nSaved in {shown}. Look again: bouquet report {shown}", soft_wrap=True)

    def caution(self, dataset: str) -> None:
        """What must be known about every figure of a data set, if there is something."""
        if words := caution_of(dataset):
            self.console.print(f"\nCaution. {words}", markup=False, soft_wrap=True)

    def _round(self, line: dict[str, Any]) -> str:
        number, done = line["round"], round(BAR * line["round"] / self.rounds)
        width = len(str(self.rounds))
        quality = f"  validation NDCG@10 {short(line['validation']['full']['NDCG@10'])}" if "validation" in line else ""
        quality += f"  {spent(line['privacy'])}" if "privacy" in line else ""
        travelled = line["bytes"]
        failed = f"  {len(line['failures'])} nodes failed" if line["failures"] else ""
        return (
            f"round {number:>{width}}/{self.rounds}  {'█' * done}{'·' * (BAR - done)}{quality}  "
            f"users {line['users']}/{line['asked']}  {line['seconds']['total']:.1f} s  "
            f"↓ {size(travelled['down_per_user'])} ↑ {size(travelled['up_per_user'])} per user{failed}"
        )


def _spent(privacy: dict[str, Any]) -> str:
    """What a private run has cost, and what that is about."""
    return (
        f"Privacy: ε = {privacy['epsilon']:.4g} at δ = {privacy['delta']:.3g} to {privacy['neighbours']}, for all "
        f"that the server published, in {privacy['spent_rounds']} noisy sums. Noise: {privacy['noise_from']}. Metrics: "
        f"{privacy['metrics']}."
    )


def _ranked(summary: dict[str, Any]) -> str:
    """Among what, after what, and on which terms test items were ranked."""
    words = ["test items ranked among all unseen items"]
    if summary.get("foreign"):
        words.append("scores of another program, which says itself what it learned from")
    else:
        words[0] += f", {READ_AT_TEST[summary.get('test_history', 'known')]}"
        negatives = "honest" if summary["train_negatives"] == "honest" else "LEAKY (as published)"
        chosen = "the last one" if summary.get("privacy") else "chosen on validation"
        words += [f"{negatives} training negatives", f"best round {summary['best_round']} {chosen}"]
    return "; ".join(words)


def _figures(row: dict[str, Any]) -> tuple[str, str, str]:
    full, error = row["test"]["full"], row["standard_error"]["test"]["full"]
    return (
        f"{short(full['HR@10'])} ± {short(error['HR@10'])}",
        short(full["NDCG@10"]),
        short(row["test"]["sampled-99"]["HR@10"]),
    )
