"""What stands above a table in words: on what, against what and when its rows were compared."""

from __future__ import annotations

from collections.abc import Sequence

from bouquet.experiments.comparison import Finished
from bouquet.experiments.table_file import TableFile
from bouquet.experiments.table_results import RowResult
from data_partition import DATASETS, has_time

HOLD_OUTS = {
    "last": "the last interaction of each user in time is for test, the one before for validation",
    "random": "one random interaction of each user is for test and one for validation",
    "last-row": "the last row of each user in the file is for test, the one before for validation, which LEAKS where "
    "the order of rows tells the future",
}
READ_AT_TEST = {
    "known": "all that is known by then, the validation item too",
    "training": "the training items alone",
}
SHARES = {
    "ratio": "a random fifth of each user's interactions is for test, {share} of the rest for validation",
    "published": "what those who published the set hold out is for test, {share} of each user's others for validation",
}


def protocol(table: TableFile, results: Sequence[RowResult]) -> str:
    """All that the rows have in common: data, split, candidates, negatives, seeds, and the round that is reported."""
    first = results[0].runs[0]
    data, settings = first.summary, first.settings
    rule = rule_of(first)
    negatives = {
        run.summary["train_negatives"] for result in results for run in result.runs if not result.row.centralized
    }
    least = settings["min-interactions"]
    dropped = f" ({data['dropped_users']:,} users with fewer than {least} items are left out)" if least else ""
    sample = " (a random sample of users)" if settings["max-users"] else ""
    words = [
        f"{_title_of(str(settings['dataset']))}: {data['users']:,} users, {data['items']:,} items, "
        f"{data['interactions']:,} interactions{sample}{dropped}.",
        f"Split {settings['split']}: {rule} (split seed {settings['split-seed']}).",
        *_share_kept(results),
        f"At test, models that read a history have read {READ_AT_TEST[str(settings['test-history'])]}.",
        "Candidates: " + "; ".join(_candidates(name, settings["repeats"] == "keep") for name in table.candidates) + ".",
    ]
    if "honest" in negatives:
        words.append("Training negatives: honest, any item but the user's own training items.")
    if "paper" in negatives:
        words.append(
            "Rows marked LEAKY draw training negatives from the items that a user never touches, hidden items "
            "excluded, as published codes do: the hidden item is then the one that is never trained as a negative."
        )
    own = "".join(
        f"; {result.row.title}{' LEAKY' if result.leaky else ''}: {', '.join(map(str, result.row.seeds))} alone"
        for result in results
        if result.row.seeds and result.row.seeds != table.seeds
    )
    words.append(
        f"Seeds {', '.join(map(str, table.seeds))}{own}; the reported round is the best on validation (NDCG@10, full)."
    )
    if table.part == "validation":
        words.append(
            "All figures are those of the validation items, which settings are chosen by, not of the test items."
        )
    words.append(
        "Figures are means over users and seeds, ± one standard error over seeds; rows that do not depend on a seed "
        "have none."
    )
    return "\n".join(words)


def _share_kept(results: Sequence[RowResult]) -> list[str]:
    """A sentence about rows that learn from less than there is, if there are any."""
    shares = {result.title: float(result.runs[0].settings.get("training-share", 1.0)) for result in results}
    fewer = {share for share in shares.values() if share < 1}
    if not fewer:
        return []
    whose = "in all rows" if len(set(shares.values())) == 1 else "in rows whose name says so"
    percent = " or ".join(f"{100 * share:g} %" for share in sorted(fewer))
    return [
        f"Of each user's training items a share of {percent} is kept {whose}, drawn at random, at least "
        "one; the others are neither learned from nor candidates."
    ]


def _candidates(name: str, repeats: bool) -> str:
    if name == "full" and repeats:
        return "full = all items, also those that the user is known to have, because users come back to items"
    if name == "full":
        return "full = all items but those that the user is known to have"
    return f"{name} = the hidden item and {name.removeprefix('sampled-')} random items that the user never touched"


def rule_of(run: Finished) -> str:
    """What is held out, in words."""
    if shares := SHARES.get(str(run.settings["split"])):
        share = float(run.settings["validation-share"])
        return shares.format(share="a tenth" if share == 0.1 else f"{100 * share:g} %" if share else "nothing")
    return HOLD_OUTS[_hold_out(run)]


def _hold_out(run: Finished) -> str:
    settings = run.settings
    if settings["hold-out"] != "auto":
        return str(settings["hold-out"])
    name = str(settings["dataset"])
    return "last" if has_time(name, str(settings["time-column"])) else "random"


def _title_of(dataset: str) -> str:
    return DATASETS[dataset].title if dataset in DATASETS else dataset
