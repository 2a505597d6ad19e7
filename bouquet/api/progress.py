"""The rounds of a run as they come: a bar in a terminal or a notebook, and nothing where nobody looks."""

from __future__ import annotations

import time
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.words import short

_LOOK_SECONDS = 0.2


class Progress:
    """Follows the folder of a run.

    Args:
        directory: of the run, which may not be there yet.
        shown: whether anything is shown.
    """

    def __init__(self, directory: RunDirectory, *, shown: bool = True) -> None:
        from rich.console import Console

        self._directory, self._console = directory, Console()
        # A bar in a notebook is a widget; without widgets every evaluated round gets a line.
        self._lines = shown and self._console.is_jupyter and find_spec("ipywidgets") is None
        self._bar = shown and not self._lines and (self._console.is_terminal or self._console.is_jupyter)
        self._place, self._rounds, self._last = 0, 0, 0.0
        self._quality = ""

    def __enter__(self) -> Self:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._shown = Bar(*columns, TextColumn("{task.fields[quality]}"), console=self._console, disable=not self._bar)
        self._task = self._shown.add_task("bouquet", total=None, quality="")
        self._shown.start()
        # What was there before a run is resumed is counted with the first look.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look()
        self._shown.stop()

    def look(self) -> None:
        """Show what has come since the last look; cheap, so it can be called often."""
        if time.monotonic() - self._last >= _LOOK_SECONDS:
            self._look()

    def _look(self) -> None:
        self._last = time.monotonic()
        if not (self._bar or self._lines) or not self._directory.metrics.exists():
            return
        if not self._rounds:
            settings = self._directory.read_config()
            self._rounds = int(settings.get("num-server-rounds", 0))
            self._shown.update(
                self._task, total=self._rounds, description=f"{settings['strategy']} on {settings['dataset']}"
            )
        lines, self._place = self._directory.rounds_after(self._place)
        for line in lines:
            if "validation" in line:
                self._quality = f"validation NDCG@10 {short(line['validation']['full']['NDCG@10'])}"
                if self._lines:
                    print(f"round {line['round']}/{self._rounds}  {self._quality}", flush=True)
            self._shown.update(self._task, completed=line["round"], quality=self._quality)
