"""The trials of a search: each is a real run, watched from round to round and ended early where it is pruned."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bouquet.cli.run import execute
from bouquet.cli.screen import Screen
from bouquet.config import CIRCUMSTANCES, RunConfig
from bouquet.errors import BouquetError, ConfigError, RunFailed
from bouquet.experiments.figures import figure
from bouquet.experiments.search_file import SearchFile, SearchRow
from bouquet.experiments.search_report import DIGITS, pairs, write_report
from bouquet.experiments.search_study import RowStudy, Trial, open_storage
from bouquet.files import locked
from bouquet.reporting.run_directory import RunDirectory
from data_partition import Interactions

_SELECTED_BY = ("validation", "full", "NDCG@10")
_CLAIM_SECONDS = 300.0


class Pruned(KeyboardInterrupt):
    """Ends the run of a trial, as a Ctrl-C does."""


class TrialScreen(Screen):
    """Watches the run of a trial: tells the study of every evaluated round, and stops the run when it is pruned.

    Rounds are told in their order, and none after the one in which a trial is pruned, so that what is recorded does
    not depend on how often somebody looked.

    Attributes:
        trial: with the best round so far, as the run itself chooses it.
    """

    def __init__(self, study: RowStudy, trial: Trial, console: Console) -> None:
        super().__init__(console)
        self._study, self.trial = study, trial

    def header(self, config: RunConfig, interactions: Interactions, nodes: int, engine: str) -> None:
        """Nothing: a trial has one line, when it has ended."""

    def stopped(self, directory: RunDirectory, config: RunConfig, command: str = "bouquet search") -> None:
        """Nothing: the search says how to go on."""

    def progress(self, directory: RunDirectory) -> None:
        """Take the rounds since the last call.

        Raises:
            Pruned: the trial is not worth another round.
        """
        rounds, self._place = directory.rounds_after(self._place)
        for line in rounds:
            self.trial = replace(self.trial, rounds=int(line["round"]))
            part, candidates, metric = _SELECTED_BY
            value = line.get(part, {}).get(candidates, {}).get(metric)
            if value is None:
                continue
            if self.trial.validation is None or value > self.trial.validation:
                self.trial = replace(self.trial, validation=value, best_round=self.trial.rounds)
            last = int(self._study.row.settings["num-server-rounds"])
            if self._study.prune(self.trial.number, self.trial.rounds, value) and self.trial.rounds < last:
                raise Pruned


class Search:
    """A search in its folder, as one of the processes at work sees it.

    Args:
        command: what goes on with it.
        only: the rows whose trials are run; empty: all.

    Attributes:
        studies, asked: of all rows, and of those whose trials are run.
    """

    def __init__(
        self,
        search: SearchFile,
        rows: Sequence[SearchRow],
        out: Path,
        nodes: int,
        engine: str,
        command: str,
        only: Sequence[str] = (),
    ) -> None:
        self.search, self.rows, self.out = search, rows, out
        self.nodes, self.engine, self.command = nodes, engine, command
        self.console = Console(highlight=False, soft_wrap=True, markup=False)
        storage = open_storage(out / "search.db")
        self.studies = [
            RowStudy(search, row, storage, {k: v for k, v in row.settings.items() if k not in CIRCUMSTANCES})
            for row in rows
        ]
        self.only = tuple(only) or tuple(row.name for row in rows)
        self.asked = [study for study in self.studies if study.row.name in self.only]

    def begin(self) -> None:
        """Put away what a search that was stopped has left.

        Raises:
            ConfigError: a row has more trials than it shall have.
        """
        shutil.rmtree(self.out / "runs", ignore_errors=True)
        (self.out / "runs").mkdir()
        for study in self.studies:
            study.mark_interrupted()
            done = len(study.trials())
            if done > self.search.trials:
                raise ConfigError(
                    f"Row '{study.row.name}' has {done} trials in {self.out}, and the file now says "
                    f"{self.search.trials}."
                )
            if done:
                self.console.print(f"{study.row.name}: {done} of {self.search.trials} trials are done")

    def work(self) -> None:
        """Run trials until none is left to begin.

        Raises:
            BouquetError: something is wrong that would be wrong with every other trial, too.
        """
        for study in self.asked:
            while (trial := self._claim(study)) is not None:
                self._run(study, trial)

    def report(self) -> str:
        """Write what is known by now; the main part of it."""
        import optuna

        all_rows = [(study.row, study.trials()) for study in self.studies]
        found = [(row, trials) for row, trials in all_rows if trials or row.name in self.only]
        return write_report(self.search, found, self.out, self.command, optuna.__version__)

    def end(self) -> str:
        """Write what came of all trials; the main part of it."""
        (self.out / "runs").rmdir()
        for path in (self.out / ".claim", *self.out.glob(".worker-*")):
            path.unlink(missing_ok=True)
        return self.report()

    def _alone(self) -> Any:
        occupied = RunFailed(f"Another process of the search keeps {self.out} for itself.")
        return locked(self.out / ".claim", occupied, _CLAIM_SECONDS)

    def _claim(self, study: RowStudy) -> Trial | None:
        with self._alone():
            return study.claim()

    def _run(self, study: RowStudy, trial: Trial) -> None:
        row = study.row
        folder = (self.out / "runs" / f"{row.name}-{trial.number}").absolute()
        screen = TrialScreen(study, trial, self.console)
        settings = {**row.settings, **trial.settings, "out": str(folder)}
        begin = time.perf_counter()
        state, error = "complete", ""
        try:
            execute(settings, self.nodes, self.engine, screen)
            if ran_away := RunDirectory(folder).read_summary().get("diverged"):
                state, error = "failed", f"Training diverged in round {ran_away['round']}: {ran_away['reason']}"
        except Pruned:
            state = "pruned"
        except BouquetError as failed:
            if isinstance(failed, ConfigError) and not any(t.state in ("complete", "pruned") for t in study.trials()):
                raise ConfigError(f"Row '{row.name}', {pairs(trial.settings)}: {failed}") from failed
            state, error = "failed", str(failed).splitlines()[0]
        finally:
            # Nothing of the test items stays.
            shutil.rmtree(folder, ignore_errors=True)
        if state == "complete" and screen.trial.validation is None:
            state, error = "failed", "No round was evaluated on a validation item."
        ended = replace(screen.trial, state=state, error=error, seconds=time.perf_counter() - begin)
        with self._alone():
            study.end(ended)
            self.report()
        self._say(row, ended)

    def _say(self, row: SearchRow, trial: Trial) -> None:
        what = f": {trial.error}" if trial.error else ""
        if trial.validation is not None:
            what = f", validation NDCG@10 {figure(trial.validation, DIGITS)} in round {trial.best_round}{what}"
        self.console.print(
            f"[{row.name} {trial.number}/{self.search.trials}] {trial.state} after round {trial.rounds}{what} · "
            f"{pairs(trial.settings)} · {trial.seconds:.1f} s"
        )
