"""The ServerApp: reads the configuration, runs the strategy, writes what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bouquet.config import RunConfig, Scalar, lookup, own
from bouquet.errors import BouquetError
from bouquet.evaluation import fairness, standard_error
from bouquet.reporting.events import record_to
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from strategies import STRATEGIES, BaseStrategy, without_other_methods

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
    config = own(settings, RunConfig)
    method = lookup(STRATEGIES, "strategy", config.strategy)
    directory = RunDirectory(config.resume or config.out or run_name(config))
    if not directory.summary.exists():
        directory.create(without_other_methods(settings, config.strategy), {"engine": "flower"})
        print(f"Results go to {directory.path}")
    start = time.perf_counter()
    record_to(directory.events)
    try:
        strategy = method(config, own(settings, method.options_class), directory)
        strategy.start(grid)
        directory.write_users(strategy.roster.users, strategy.best.values)
        directory.write_summary(summary(strategy, time.perf_counter() - start))
    except BouquetError as error:
        directory.write_summary({"status": "failed", "error": str(error)})
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        directory.write_summary({"status": "failed", "error": reason})
        raise
    finally:
        record_to(None)


def summary(strategy: BaseStrategy, seconds: float) -> dict[str, object]:
    """What `summary.json` holds of a completed run."""
    config, roster, best = strategy.config, strategy.roster, strategy.best
    rounds = strategy.directory.rounds()
    errors = standard_error(best.values)

    def mean(group: str, key: str) -> float:
        return sum(line[group][key] for line in rounds) / len(rounds)

    return {
        "status": "completed",
        "strategy": config.strategy,
        "personalization": config.personalization,
        "backbone": config.backbone,
        "dataset": "devices" if config.catalogue_file else config.dataset,
        "split": config.split,
        "hold_out": config.hold_out,
        "train_negatives": config.train_negatives,
        "leaky": config.train_negatives == "paper" or config.hold_out == "last-row",
        "seed": config.seed,
        "users": len(roster.users),
        "items": roster.num_items,
        "interactions": roster.interactions,
        "dropped_users": roster.dropped_users,
        "nodes": roster.nodes,
        "rounds": rounds[-1]["round"],
        "best_round": best.round,
        "test": best.means["test"],
        "validation": best.means["validation"],
        "standard_error": errors,
        "fairness": fairness(best.values),
        "bytes": {
            "down_per_user_round": mean("bytes", "down_per_user"),
            "up_per_user_round": mean("bytes", "up_per_user"),
            "wire_down_per_round": mean("bytes", "wire_down"),
            "wire_up_per_round": mean("bytes", "wire_up"),
            "to_best_round": sum(
                (line["bytes"]["down_per_user"] + line["bytes"]["up_per_user"]) * line["users"]
                for line in rounds
                if line["round"] <= best.round
            ),
        },
        "seconds": {"total": seconds, "per_round": mean("seconds", "total")},
        "failures": sum(len(line["failures"]) for line in rounds),
        **strategy.results(),
    }
