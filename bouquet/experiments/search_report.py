"""From trials to `trials.csv`, `search.md`, `chosen.toml` and `chosen/`.

There is no figure of the test items in any of them, nor anywhere else in the folder of a search.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from bouquet.config import CIRCUMSTANCES, Scalar, check
from bouquet.errors import ConfigError
from bouquet.experiments.chosen import METHOD_KEYS, ChosenRow, write_chosen
from bouquet.experiments.figures import figure
from bouquet.experiments.search_file import SearchFile, SearchRow
from bouquet.experiments.search_space import Parameter
from bouquet.experiments.search_study import Trial
from bouquet.experiments.settings import literal, option_classes
from bouquet.experiments.table_cells import SHARED_KEYS
from bouquet.experiments.table_report import markdown
from bouquet.files import write_atomically

DIGITS = 4
AS_RUNS = "chosen"
"""The folder with a configuration file for each row."""
# A chosen value in this share of a range, at either end, lies at its edge.
_EDGE = 0.05

Found = Sequence[tuple[SearchRow, Sequence[Trial]]]


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The complete trial with the highest figure, the earliest among equals."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: (trial.validation or 0.0, -trial.number), default=None)


def at_edge(key: str, parameter: Parameter, value: Scalar) -> str:
    """ "lowest" or "highest" where a better value may lie beyond what was searched, else "".

    Nothing lies beyond where the setting itself ends, and words have no order.
    """
    if isinstance(value, bool | str):
        return ""
    if parameter.kind == "choices":
        if len(parameter.values) < 3 or any(isinstance(choice, bool | str) for choice in parameter.values):
            return ""
        numbers = sorted(float(choice) for choice in parameter.values)
    else:
        numbers = [float(choice) for choice in parameter.values]
    low, high = numbers[0], numbers[-1]
    place = (value - low) / (high - low)
    if parameter.kind == "log-uniform":
        place = math.log(value / low) / math.log(high / low)
    margin = _EDGE if parameter.kind in ("uniform", "log-uniform") else 0.0
    whole = parameter.kind == "integer" or all(isinstance(choice, int) for choice in parameter.values)
    step = 1 if whole else 1e-6 * (high - low)
    if place <= margin and parameter.kind == "log-uniform":
        return "lowest"
    if place <= margin and _is_allowed(key, (int(low) if whole else low) - step):
        return "lowest"
    if place >= 1 - margin and _is_allowed(key, (int(high) if whole else high) + step):
        return "highest"
    return ""


def _is_allowed(key: str, value: Scalar) -> bool:
    try:
        check({key: value}, option_classes())
    except ConfigError:
        return False
    return True


def edges_of(row: SearchRow, best: Trial) -> list[str]:
    """The chosen settings that lie at an edge, in words; the last round counts as one."""
    found = []
    for key, parameter in row.space.items():
        if key in best.drawn and (side := at_edge(key, parameter, best.drawn[key])):
            found.append(f"{key} = {_short(best.settings[key])}, near the {side} searched ({parameter.shown})")
    rounds = int(row.settings["num-server-rounds"])
    if best.best_round == rounds > 1:
        found.append(f"the best round is the last, {rounds}")
    return found


def write_report(search: SearchFile, found: Found, out: Path, command: str, version: str) -> str:
    """Write all three files.

    Args:
        command: what goes on with this search, or repeats it.
        version: of Optuna.
    Returns:
        The main part of `search.md`: what was chosen.
    """
    chosen = {row.name: _chosen(search, row, trials) for row, trials in found}
    main = _main_table(search, found) + _said_of_edges(found, chosen)
    parts = [f"# {search.title}", _protocol(search, found, version), main]
    parts += [f"## {row.title}\n\n{_trial_table(row, trials)}" for row, trials in found]
    parts.append(f"Made with:\n\n```\n{command}\n```")
    write_atomically(out / "trials.csv", _csv(found))
    write_atomically(out / "search.md", "\n\n".join(parts) + "\n")
    write_chosen(out, chosen)
    (out / AS_RUNS).mkdir(exist_ok=True)
    for row, trials in found:
        if best := best_of(trials):
            write_atomically(out / AS_RUNS / f"{row.name}.toml", _as_run(search, row, best))
    return main


def _as_run(search: SearchFile, row: SearchRow, best: Trial) -> str:
    """A configuration file with what was chosen."""
    said = (
        f"# Trial {best.number} of {search.trials} of '{row.name}': {figure(best.validation, DIGITS)} on validation.\n"
    )
    return said + tomli_w.dumps({**row.base, **best.settings})


def _chosen(search: SearchFile, row: SearchRow, trials: Sequence[Trial]) -> ChosenRow:
    count = {state: sum(trial.state == state for trial in trials) for state in ("pruned", "failed", "running")}
    base = {key: row.settings[key] for key in (*METHOD_KEYS, *SHARED_KEYS)} | dict(row.base)
    best = best_of(trials)
    return ChosenRow(
        trials=search.trials,
        ended=len(trials) - count["running"],
        pruned=count["pruned"],
        failed=count["failed"],
        validation=(best.validation or 0.0) if best else 0.0,
        best_round=best.best_round if best else 0,
        edges=edges_of(row, best) if best else [],
        settings=dict(best.settings) if best else {},
        base={key: value for key, value in base.items() if key not in CIRCUMSTANCES},
    )


def _protocol(search: SearchFile, found: Found, version: str) -> str:
    settings = found[0][0].settings
    ways = {
        "random": "drawn at random",
        "tpe": f"drawn at random in the first {search.random_trials} trials, and by TPE (Optuna {version}) after them",
    }
    pruning = {
        "none": "No trial is ended early.",
        "median": "A trial is pruned after a round in which its best figure so far is below the median of the row's "
        f"complete trials in this round: from round {search.prune_after_rounds} on, once "
        f"{search.prune_after_trials} trials are complete.",
    }
    return "\n".join(
        [
            f"{settings['dataset']}, split {settings['split']} (split seed {settings['split-seed']}). Every row has "
            f"{search.trials} trials, with settings {ways[search.sampler]}; seed {search.seed}. The first trial has "
            "the settings of the row without a search, where they lie in what is searched.",
            pruning[search.pruner],
            "All figures are NDCG@10 (full) on the validation items, in the best round of a trial. Test items had no "
            "part in this search. The best of many trials is an optimistic figure: a table with `settings-from` shows "
            "what the chosen settings reach.",
        ]
    )


def _main_table(search: SearchFile, found: Found) -> str:
    header = [
        "",
        "chosen",
        "validation NDCG@10",
        "trial",
        "best round",
        "of",
        "complete",
        "pruned",
        "failed",
        "seconds",
    ]
    lines = []
    for row, trials in found:
        best = best_of(trials)
        counts = [str(sum(trial.state == state for trial in trials)) for state in ("complete", "pruned", "failed")]
        missing = search.trials - sum(trial.state != "running" for trial in trials)
        title = row.title + (f" ({missing} of {search.trials} trials to come)" if missing else "")
        chosen = ["–", "–", "–", "–"]
        if best:
            chosen = [pairs(best.settings), figure(best.validation, DIGITS), str(best.number), str(best.best_round)]
        seconds = f"{sum(trial.seconds for trial in trials):.0f}"
        lines.append([title, *chosen, str(row.settings["num-server-rounds"]), *counts, seconds])
    return markdown(header, lines)


def _said_of_edges(found: Found, chosen: Mapping[str, ChosenRow]) -> str:
    lines = [f"- {row.title}: {edge}" for row, _ in found for edge in chosen[row.name].edges]
    if not lines:
        return ""
    return "\n\n**At an edge of what was searched**; better settings may lie beyond it:\n\n" + "\n".join(lines)


def _trial_table(row: SearchRow, trials: Sequence[Trial]) -> str:
    """All trials, the best first."""
    keys = list(row.space)
    searched = "\n".join(f"- {key}: {parameter.shown}" for key, parameter in row.space.items())
    lines = [
        [
            str(trial.number),
            figure(trial.validation, DIGITS),
            str(trial.best_round or "–"),
            str(trial.rounds or "–"),
            f"{trial.seconds:.1f}",
            trial.state,
            *(_short(trial.settings[key]) for key in keys),
        ]
        for trial in sorted(trials, key=_rank)
    ]
    failures = "".join(f"\n\nTrial {trial.number} failed: {trial.error}" for trial in trials if trial.state == "failed")
    header = ["trial", "validation NDCG@10", "best round", "rounds", "seconds", "state", *keys]
    return f"Searched:\n\n{searched}\n\n{markdown(header, lines)}{failures}"


def _rank(trial: Trial) -> tuple[bool, float, int]:
    return trial.state != "complete", -(trial.validation or 0.0), trial.number


def _csv(found: Found) -> str:
    keys = list(dict.fromkeys(key for row, _ in found for key in row.space))
    names = [
        "row",
        "label",
        "trial",
        "state",
        "validation_ndcg@10",
        "best_round",
        "rounds",
        "seconds",
        "chosen",
        "error",
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*names, *keys])
    for row, trials in found:
        best = best_of(trials)
        for trial in trials:
            validation = "" if trial.validation is None else f"{trial.validation:.6g}"
            line = [
                row.name,
                row.title,
                trial.number,
                trial.state,
                validation,
                trial.best_round or "",
                trial.rounds or "",
            ]
            line += [f"{trial.seconds:.2f}", str(trial is best).lower(), trial.error]
            writer.writerow([*line, *(_exact(trial.settings.get(key, "")) for key in keys)])
    return text.getvalue()


def _exact(value: Scalar) -> str:
    return value if isinstance(value, str) else literal(value)


def pairs(settings: Mapping[str, Scalar]) -> str:
    """Settings in one line, as a person reads them."""
    return ", ".join(f"{key} = {_short(value)}" for key, value in settings.items())


def _short(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _exact(value)
