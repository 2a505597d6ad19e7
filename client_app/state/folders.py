"""Where a node keeps what is private: a folder by run series, which one process at a time works on."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from bouquet.errors import StateError
from bouquet.files import locked, private_folder
from bouquet.reporting.events import event

# Names of run series, as the server draws them.
_SERIES = re.compile("[0-9a-f]{32}")
# How long a message waits for another one of the same node and series.
BUSY_SECONDS = 60.0


@dataclass(frozen=True)
class StateFolders:
    """The folders of one node.

    Attributes:
        root: folder of all series.
        node: name of the node in the folder of a series.
        keep_series: of how many run series private state is kept; 0: of all.
    """

    root: Path
    node: str
    keep_series: int = 0

    def of_series(self, series: str) -> Path:
        """Where the state of a run series is."""
        return series_folder(self.root, series)

    def of_node(self, series: str) -> Path:
        """Where this node's part of it is."""
        return self.of_series(series) / self.node

    def alone(self, series: str) -> AbstractContextManager[None]:
        """Be the only process that works on the private state of these users in one run series.

        Flower and Ray start processes of their own: one of a run that was ended may still be busy.

        Raises:
            StateError: another process does, and goes on for longer than a message may take to end.
        """
        folder = self.of_node(series)
        private_folder(folder.parent)
        occupied = StateError(f"Another process is at work on {folder}; it was waited for {BUSY_SECONDS:g} s.")
        return locked(folder.with_name(f"{folder.name}.lock"), occupied, BUSY_SECONDS)

    def drop_old(self, series: str) -> None:
        """Keep private state of the run series that were trained last, `keep_series` with this one, and no other."""
        if not self.keep_series:
            return
        current = self.of_series(series)
        os.utime(current)
        folders = [path for path in self.root.iterdir() if path != current and _SERIES.fullmatch(path.name)]
        folders.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in folders[self.keep_series - 1 :]:
            shutil.rmtree(path, ignore_errors=True)
            event("old series removed", series=path.name, kept=self.keep_series)


def series_folder(root: Path, series: str) -> Path:
    """The folder of a run series in a state folder, and never elsewhere, whatever the server calls the series."""
    if not _SERIES.fullmatch(series):
        series = blake2b(series.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return root / series


def default_state_root() -> Path:
    """Where private state is kept when nobody says so: the user's own state folder."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "bouquet"
