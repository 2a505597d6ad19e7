"""The ServerApp: reads the configuration, runs the strategy, writes what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bouquet.attacks import attack_summary
from bouquet.config import RunConfig, Scalar, lookup, parsed
from bouquet.engines.local import LocalGrid
from bouquet.errors import BouquetError
from bouquet.evaluation import fairness, standard_error
from bouquet.methods import METHODS
from bouquet.reporting.events import record_to
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.trackers import refuse_missing
from bouquet.training_part import training_summary
from server_app.told import ToldRunDirectory, say
from strategies import BaseStrategy, strategy_of, without_other_methods

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federated training.

    Raises:
        BouquetError: the run failed; `summary.json` says so too.
    """
    run(grid, context.run_config)


def run(grid: Grid, settings: Mapping[str, Scalar]) -> None:
    """What `main` does, for any grid."""
    config = parsed(settings).run
    lookup(METHODS, "strategy", config.strategy)
    directory = RunDirectory(config.resume or config.out or run_name(config))
    if not isinstance(grid, LocalGrid):  # there the screen of the same process says it
        directory = ToldRunDirectory(directory, config)
    with directory.work():
        _run(grid, settings, config, directory)


def _run(
    grid: Grid,
    settings: Mapping[str, Scalar],
    config: RunConfig,
    directory: RunDirectory,
) -> None:
    if not directory.summary.exists():
        directory.create(without_other_methods(settings, config.strategy), {"engine": "flower"})
        say(f"Results go to {directory.path}")
    elif config.resume:
        directory.write_summary({"status": "running"})
    start = time.perf_counter()
    record_to(directory.events)
    strategy: BaseStrategy | None = None
    stopped = False
    try:
        refuse_missing(config.tracker)
        strategy = strategy_of(parsed(settings), directory)
        strategy.start(grid)
        directory.write_users(strategy.roster.users, strategy.best.values, strategy.roster.sizes)
        directory.write_summary(summary(strategy, time.perf_counter() - start))
    except BouquetError as error:
        directory.write_failed(str(error))
        raise
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        reason = f"{type(error).__name__}: {error}"
        directory.write_failed(reason)
        raise
    finally:
        if strategy is not None:
            strategy.abandon(stopped)  # of one that has ended, nobody is left to tell
        record_to(None)


def summary(strategy: BaseStrategy, seconds: float) -> dict[str, object]:
    """What `summary.json` holds of a completed run."""
    config, roster, best = strategy.config, strategy.roster, strategy.best
    rounds = strategy.directory.rounds()
    errors = standard_error(best.values)
    privacy = strategy.privacy
    # Of people, what no budget was spent on: it is not said where the figures are not an experimenter's.
    unpaid = privacy is not None and not privacy.simulated

    return {
        "status": "completed",
        "strategy": config.strategy,
        "personalization": config.personalization,
        "backbone": config.backbone,
        "dataset": "devices" if config.catalogue_file else config.dataset,
        "split": config.split,
        "hold_out": config.hold_out,
        "test_history": config.test_history,
        "train_negatives": config.train_negatives,
        "leaky": config.train_negatives == "paper" or config.hold_out == "last-row",
        "seed": config.seed,
        "users": len(roster.users),
        "items": roster.num_items,
        "interactions": None if unpaid else roster.interactions,
        "dropped_users": None if unpaid else roster.dropped_users,
        "nodes": roster.nodes,
        "rounds": rounds[-1]["round"],
        "best_round": best.round,
        "test": best.means["test"],
        "validation": best.means["validation"],
        "standard_error": errors,
        "fairness": {} if unpaid else fairness(best.values),
        "bytes": traffic(rounds, best.round),
        "seconds": {"total": seconds, "per_round": sum(line["seconds"]["total"] for line in rounds) / len(rounds)},
        "failures": sum(len(line["failures"]) for line in rounds),
        **diverged(strategy),
        **attack_summary(config, roster.users, roster.num_items, rounds, best.round),
        **training_summary(rounds, best.round),
        **({"privacy": privacy.results()} if privacy else {}),
        **strategy.results(),
    }


def diverged(strategy: BaseStrategy) -> dict[str, object]:
    """What is said of a run that ended because training ran away; nothing of any other."""
    if strategy.diverged is None:
        return {}
    server_round, reason = strategy.diverged
    said = f"Training diverged in round {server_round}; the best round before it is reported. {reason}"
    return {"diverged": {"round": server_round, "reason": reason}, "remarks": [said]}


def traffic(rounds: Sequence[Mapping[str, Any]], best_round: int) -> dict[str, Any]:
    """Bytes of a run: training and evaluation, each in both directions, apart and in sum.

    Args:
        rounds: the lines of `metrics.jsonl`.
        best_round: up to which totals are counted.
    """
    training = [{**line["bytes"], "asked": line["asked"], "users": line["users"]} for line in rounds]
    looks = {line["round"]: line["bytes"]["evaluation"] for line in rounds if "evaluation" in line["bytes"]}
    trained = sum(_total(size) for line, size in zip(rounds, training, strict=True) if line["round"] <= best_round)
    looked = sum(_total(size) for round_, size in looks.items() if round_ <= best_round)
    return {
        **_means(training, "round"),
        "evaluation": _means(list(looks.values()), "evaluation"),
        "training_to_best_round": trained,
        "evaluation_to_best_round": looked,
        "to_best_round": trained + looked,
    }


def _means(sizes: Sequence[Mapping[str, float]], per: str) -> dict[str, float]:
    """Means over rounds, or over evaluations."""
    return {
        f"{name}_{per}" if name.endswith("user") else f"{name}_per_{per}": sum(size[name] for size in sizes)
        / len(sizes)
        for name in ("down_per_user", "up_per_user", "wire_down", "wire_up")
    }


def _total(size: Mapping[str, float]) -> float:
    """Of all users, each as if its messages were for it alone: to all who were asked, from all who answered."""
    return size["down_per_user"] * size["asked"] + size["up_per_user"] * size["users"]
