"""The trials of a search, kept by Optuna in one SQLite file: a study per row.

A trial has a number of its own, from 1 within its row, and its sampler is seeded by that number: a search that was
stopped goes on as if it had not been. The first one has the settings that the row has without a search, so that what
is chosen is not worse on validation than these. A trial whose process ended under it is marked as interrupted, and
another one takes its number; if all its settings were known, it has them too.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bouquet.config import Scalar
from bouquet.errors import ConfigError, DataError
from bouquet.experiments.search_file import SearchFile, SearchRow
from bouquet.experiments.search_space import Parameter, draw, is_whole, settled, without_search
from bouquet.experiments.settings import same_as
from bouquet.files import digest_of

if TYPE_CHECKING:
    import optuna

_LOCK_SECONDS = 120


@dataclass(frozen=True)
class Trial:
    """What came of one trial.

    Attributes:
        number: from 1, within its row.
        state: "complete", "pruned", "failed" or "running".
        settings: those that are searched.
        drawn: what they were made of: without those that others leave out, and factors as such.
        validation: NDCG@10 (full) on the validation items in the best round; None where none was evaluated.
        best_round: 0 where none was evaluated.
        rounds: how many were run.
        seconds: wall time.
        error: why it failed.
    """

    number: int
    state: str
    settings: Mapping[str, Scalar]
    drawn: Mapping[str, Scalar] = field(default_factory=dict)
    validation: float | None = None
    best_round: int = 0
    rounds: int = 0
    seconds: float = 0.0
    error: str = ""


class RowStudy:
    """The trials of one row.

    Args:
        storage: of `open_storage`.
        same: the settings under which its trials are compared; they must be what they were when the search began.
    Raises:
        ConfigError: the row was searched under other settings.
    """

    def __init__(self, search: SearchFile, row: SearchRow, storage: Any, same: Mapping[str, Scalar]) -> None:
        import optuna

        self.search, self.row, self._storage = search, row, storage
        study = optuna.create_study(study_name=row.name, storage=storage, direction="maximize", load_if_exists=True)
        self._require_same(study, same)
        self._running: dict[int, optuna.trial.Trial] = {}

    def _require_same(self, study: optuna.Study, same: Mapping[str, Scalar]) -> None:
        options = self.search.model_dump(by_alias=True, exclude={"title", "trials", "settings", "search", "rows"})
        ranges = {key: parameter.written for key, parameter in self.row.space.items()}
        now = {
            **{f"{key}": value for key, value in same.items()},
            **{f"[search] {key}": value for key, value in ranges.items()},
            **{f"the search's {key}": value for key, value in options.items()},
        }
        before = study.user_attrs.get("searched-under")
        if before is None:
            study.set_user_attr("searched-under", json.dumps(now))
            return
        then = json.loads(before)
        for key in {**then, **now}:
            if then.get(key) != now.get(key):
                raise ConfigError(
                    f"Row '{self.row.name}' was searched with {key} = {then.get(key)!r}, and the file now says "
                    f"{now.get(key)!r}. Change it back, or name another --out."
                )

    def mark_interrupted(self) -> None:
        """Mark the trials whose processes ended under them; nobody else may be at work."""
        import optuna

        for trial in self._study().get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            self._storage.set_trial_user_attr(trial._trial_id, "interrupted", True)
            self._storage.set_trial_state_values(trial._trial_id, state=optuna.trial.TrialState.FAIL)

    def claim(self) -> Trial | None:
        """A new trial, which is running from now on; None where the row has all its trials.

        One process at a time may claim.
        """
        import optuna

        found = self._study().get_trials(deepcopy=False)
        taken = {trial.user_attrs.get("number") for trial in found if not trial.user_attrs.get("interrupted")}
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        if number > self.search.trials:
            return None
        before: dict[str, Any] = base_of(self.row) if number == 1 else {}
        for trial in found:
            if trial.user_attrs.get("number") == number and is_whole(self.row.space, trial.params):
                before = trial.params
        sampler = self._sampler(number)
        if before:
            sampler = optuna.samplers.PartialFixedSampler(before, sampler)
        asked = self._study(sampler).ask()
        drawn = draw(self.row.space, lambda key, parameter: _suggested(asked, key, parameter))
        asked.set_user_attr("number", number)
        self._running[number] = asked
        return Trial(number, "running", settled(self.row.space, drawn, self.row.settings), drawn)

    def prune(self, number: int, server_round: int, validation: float) -> bool:
        """Take the figure of one round of a running trial, and say whether it is worth no other one."""
        trial = self._running[number]
        trial.report(validation, server_round)
        return trial.should_prune()

    def end(self, trial: Trial) -> None:
        """Record what came of a running trial."""
        import optuna

        asked = self._running.pop(trial.number)
        for key in ("validation", "best_round", "rounds", "seconds", "error"):
            asked.set_user_attr(key, getattr(trial, key))
        state = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL"}[trial.state]
        value = trial.validation if trial.state == "complete" else None
        self._study().tell(asked, value, optuna.trial.TrialState[state])

    def trials(self) -> list[Trial]:
        """All trials by number, those that were interrupted left out."""
        names = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
        found = []
        for trial in self._study().get_trials(deepcopy=False):
            kept = trial.user_attrs
            if "number" not in kept or kept.get("interrupted"):
                continue
            state = names.get(trial.state.name, "running")
            drawn = {key: trial.params[key] for key in self.row.space if key in trial.params}
            settings = settled(self.row.space, drawn, self.row.settings)
            figures = {key: kept[key] for key in ("validation", "best_round", "rounds", "seconds", "error")
                       if key in kept and state != "running"}  # fmt: skip
            found.append(Trial(kept["number"], state, settings, drawn, **figures))
        return sorted(found, key=lambda trial: trial.number)

    def _study(self, sampler: Any = None) -> optuna.Study:
        import optuna

        pruner: Any = optuna.pruners.NopPruner()
        if self.search.pruner == "median":
            pruner = optuna.pruners.MedianPruner(self.search.prune_after_trials, self.search.prune_after_rounds)
        return optuna.load_study(study_name=self.row.name, storage=self._storage, sampler=sampler, pruner=pruner)

    def _sampler(self, number: int) -> Any:
        import optuna

        seed = int(digest_of(f"{self.search.seed}/{self.row.name}/{number}".encode())[:8], 16)
        if self.search.sampler == "random":
            return optuna.samplers.RandomSampler(seed)
        return optuna.samplers.TPESampler(n_startup_trials=self.search.random_trials, seed=seed)


def base_of(row: SearchRow) -> dict[str, Scalar]:
    """What is searched, as the row has it without a search, as far as these values are among the searched."""
    return without_search(row.space, row.settings, same_as())


def open_storage(path: Path) -> Any:
    """The SQLite file of a search, made if it is not there.

    Raises:
        DataError: it cannot be read.
    """
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # Processes write in turn; a busy machine may take its time.
    options = {"connect_args": {"timeout": _LOCK_SECONDS}}
    try:
        return optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=options)
    except (SQLAlchemyError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as the trials of a search ({reason}).") from None


def _suggested(asked: Any, key: str, parameter: Parameter) -> Scalar:
    """A value of a setting, by the sampler of a trial that has been asked for."""
    value: Scalar
    if parameter.kind == "choices":
        value = asked.suggest_categorical(key, parameter.values)
    elif parameter.kind == "integer":
        value = asked.suggest_int(key, *parameter.values)
    else:
        value = asked.suggest_float(key, *parameter.values, log=parameter.kind == "log-uniform")
    return value
