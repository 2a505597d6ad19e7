"""A device of one person: its own growing history file, the published catalogue, and what it may be evaluated on.

Everything that the device remembers lies in one folder:

device.json            who this is, where the history is, whether it asked to be forgotten
catalogue.json         the catalogue that the server published
trained.json           every item that was ever trained on
recommendations.json   what the newest model would recommend
private/               private state, by run series

A held-out item must never have been trained on. A history grows while rounds go on, so "the last two" changes; and a
row can be added with an old time. Therefore every item that is trained on is written down before, and only items that
never were can be held out: the newest of them for test, the one before for validation.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from bouquet.catalogue import Catalogue, load_catalogue
from bouquet.config import RunConfig, Scalar
from bouquet.errors import ConfigError, DataError, StateError
from bouquet.files import write_atomically
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.sealing import Seal
from client_app.host import Histories

_FORMAT = 1
# Recommendations kept for `bouquet recommend`: more than anyone scrolls through.
KEPT_RECOMMENDATIONS = 1000


@dataclass(frozen=True)
class Device:
    """The folder of one device.

    Args:
        folder: see the module.
        seal: encrypts what tells about the person; None: it is stored as it is.
    """

    folder: Path
    seal: Seal | None = None

    def settings(self) -> dict[str, str]:
        """`device.json`.

        Raises:
            StateError: it is missing, damaged, or of another version.
        """
        path = self.folder / "device.json"
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise StateError(f"{path} cannot be read ({error}).") from None
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise StateError(f"{path} is of another version of this program.")
        return document

    def save_settings(self, settings: Mapping[str, str]) -> None:
        """Write `device.json`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "device.json", json.dumps({**settings, "format": _FORMAT}, indent=2) + "\n")

    def catalogue(self) -> Catalogue | None:
        """The published catalogue, if the device has one."""
        path = self.folder / "catalogue.json"
        return load_catalogue(path) if path.exists() else None

    def trained(self) -> set[str]:
        """Every item that was ever trained on."""
        return set(self._read("trained.json", []))

    def mark_trained(self, items: Sequence[str]) -> None:
        """Remember items, before they are trained on."""
        known = self.trained()
        if not known.issuperset(items):
            self._write("trained.json", sorted(known | set(items)))

    def recommendations(self) -> dict[str, list]:
        """`items`, `titles`, `scores` and `round` of the newest model, best first; empty before the first."""
        return self._read("recommendations.json", {})

    def save_recommendations(self, catalogue: Catalogue, scores: np.ndarray, round_: int) -> None:
        """Keep what a model would recommend, known items included: the history may lose some of them."""
        order = np.argsort(-scores, kind="stable")[:KEPT_RECOMMENDATIONS]
        document = {
            "items": [catalogue.items[row] for row in order],
            "titles": [catalogue.titles[row] for row in order],
            "scores": [round(float(scores[row]), 6) for row in order],
            "round": round_,
        }
        self._write("recommendations.json", document)

    def forget(self) -> None:
        """Remove everything about the person, and remember only that the server must be told."""
        import shutil

        settings = self.settings()
        # First the mark: killed in between, the device does not take part any more and can be asked again.
        self.save_settings({**settings, "forgotten": settings["user"], "told": ""})
        for name in ("trained.json", "recommendations.json"):
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "private", ignore_errors=True)

    def _read(self, name: str, default: object) -> object:
        path = self.folder / name
        if not path.exists():
            return default
        content = path.read_bytes()
        if self.seal:
            content = self.seal.open(content, name, path)
        try:
            document = json.loads(content)
        except ValueError:
            raise StateError(f"{path} is damaged, or encrypted with a key that was not given.") from None
        if not isinstance(document, type(default)):
            raise StateError(f"{path} is damaged.")
        return document

    def _write(self, name: str, document: object) -> None:
        content = json.dumps(document).encode()
        write_atomically(self.folder / name, self.seal.close(content, name) if self.seal else content)


def read_history(path: Path, item_column: str = "item", time_column: str = "") -> list[str]:
    """The distinct items of a history file, oldest first.

    A last line without its end is being written at this moment, and counts from the next time on.

    Args:
        path: CSV with a header.
        time_column: numbers or ISO 8601 dates; "": a column `time` if there is one, else the order of the file.
    Raises:
        DataError: the file is missing or a line is broken; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    columns = list(rows.fieldnames or [])
    time_column = time_column or ("time" if "time" in columns else "")
    for column in filter(None, (item_column, time_column)):
        if column not in columns:
            raise DataError(f"{path} has no column '{column}', only {', '.join(columns) or 'nothing'}.")
    events: list[tuple[float, str]] = []
    for row in rows:
        item = (row[item_column] or "").strip()
        if not item:
            raise DataError(f"{path}, line {rows.line_num}: no item.")
        events.append((_time(path, rows.line_num, row[time_column]) if time_column else 0.0, item))
    return list(dict.fromkeys(item for _, item in sorted(events, key=lambda event: event[0])))


def split_history(items: Sequence[str], trained: set[str]) -> tuple[list[str], list[str], list[str]]:
    """Training, validation and test items of one history; see the module for the rule."""
    fresh = [item for item in items if item not in trained]
    if len(items) < 3 or not fresh:
        return list(items), [], []
    held_out = fresh[-2:]
    return [item for item in items if item not in held_out], held_out[:-1], held_out[-1:]


def histories_of_device(device: Device, config: RunConfig, history: Path, catalogue: Catalogue) -> Histories:
    """The one user of this device, with the items that the catalogue knows.

    Raises:
        ConfigError: the run splits histories in a way that a growing one cannot be.
        DataError: the history file is missing or broken.
    """
    if config.split != "leave-one-out" or config.hold_out not in ("auto", "last"):
        raise ConfigError("A device with a growing history can only hold out the last: split = 'leave-one-out'.")
    known = [item for item in read_history(history, config.item_column, config.time_column) if item in catalogue.rows]
    parts = split_history(known, device.trained())
    here = bool(parts[0])
    rows = [
        Ragged.from_lengths(
            np.array([len(part)] * here, np.int64), np.array([catalogue.rows[i] for i in part], np.int64)
        )
        for part in parts
    ]
    return Histories(
        users=user_keys([device.settings()["user"]][: int(here)]),
        train=rows[0],
        validation=rows[1],
        test=rows[2],
        num_items=len(catalogue.items),
        catalogue=catalogue.fingerprint,
        partition=0,
        num_partitions=0,
        dropped_users=0,
        split_seed=config.split_seed,
    )


def is_device(node_config: Mapping[str, Scalar]) -> bool:
    """Whether a node is one person's device."""
    return "history" in node_config


def _time(path: Path, line: int, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        raise DataError(f"{path}, line {line}: '{text}' is no time.") from None
