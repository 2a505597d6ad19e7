"""The folder of one person's device, read and written without a model.

device.json            who this is, where the history is, whether it asked to be forgotten
catalogue.json         the catalogue that the server published
trained.json           every item that was ever trained on
recommendations.json   what the newest model would recommend
last-round.json        the last round that it took part in
model.safetensors      the newest published model, of a method whose devices only count
status.json, .running  by `bouquet node`: how its connection is, and a lock that it holds
private/               private state, by run series
withdrawn/             what the person had given to sums, by run series, until it was taken off again
keys/                  the device's own keys, and the authority that the SuperLink's certificate is signed with

Nobody else on the machine looks into it. What is not sealed carries a digest: a damaged file is an error that names it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bouquet.catalogue import Catalogue, load_catalogue
from bouquet.errors import StateError
from bouquet.files import digest_of, private_folder, write_atomically
from bouquet.sealing import Seal

_FORMAT = 2
GIVEN = "given.safetensors"
"""The file of a run series that says what was given to sums."""
# Of files that were written before there was a digest.
_UNCHECKED = 1


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
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise StateError(f"{path} cannot be read ({error}).") from None
        if not isinstance(document, dict) or document.get("format") not in (_UNCHECKED, _FORMAT):
            raise StateError(f"{path} is damaged, or of another version of this program.")
        found = document.pop("digest", "")
        if (found or document["format"] == _FORMAT) and found != _digest(document):
            raise StateError(f"{path} is damaged: its digest does not fit.")
        return document

    def save_settings(self, settings: Mapping[str, str]) -> None:
        """Write `device.json`."""
        private_folder(self.folder)
        document = {**settings, "format": _FORMAT}
        text = json.dumps({**document, "digest": _digest(document)}, indent=2) + "\n"
        write_atomically(self.folder / "device.json", text, private=True)

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

    def recommendations(self) -> dict[str, Any]:
        """`items`, `titles`, `scores` and `round` of the newest model, best first; empty before the first."""
        return self._read("recommendations.json", {})

    def save_recommendations(
        self, catalogue: Catalogue, rows: Sequence[int], scores: Sequence[float], round_: int
    ) -> None:
        """Keep what a model would recommend, best first; items that the person has are left out when it is shown."""
        document = {
            "items": [catalogue.items[row] for row in rows],
            "titles": [catalogue.titles[row] for row in rows],
            "scores": [round(score, 6) for score in scores],
            "round": round_,
        }
        self._write("recommendations.json", document)

    def last_round(self) -> dict[str, Any]:
        """`time`, `strategy`, `round` and `items` of the last training here; empty before the first."""
        return self._read("last-round.json", {})

    def save_last_round(self, strategy: str, round_: int, items: int) -> None:
        """Remember that the device took part in a round, with so many items, now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._write("last-round.json", {"time": now, "strategy": strategy, "round": round_, "items": items})

    def forget(self) -> None:
        """Remove everything about the person, and remember only that the server must be told."""
        settings = self.settings()
        # First the mark: killed in between, the device does not take part any more and can be asked again.
        self.save_settings({**settings, "forgotten": settings["user"], "told": ""})
        for name in ("trained.json", "recommendations.json", "last-round.json"):
            (self.folder / name).unlink(missing_ok=True)
        for given in (self.folder / "private").glob(f"*/*/{GIVEN}"):
            private_folder(self.folder / "withdrawn")
            given.replace(self.given_of(given.parent.parent.name))
        shutil.rmtree(self.folder / "private", ignore_errors=True)

    @property
    def model(self) -> Path:
        """The newest published model, of a method whose devices only count."""
        return self.folder / "model.safetensors"

    def given_of(self, series: str) -> Path:
        """Where that lies which the person had given in a run series, once it asked to be forgotten."""
        return self.folder / "withdrawn" / series

    def _read(self, name: str, default: Any) -> Any:
        path = self.folder / name
        if not path.exists():
            return default
        content = path.read_bytes()
        if self.seal:
            content = self.seal.open(content, name, path)
        try:
            document = json.loads(content)
            if not self.seal:
                found, document = document["digest"], document["content"]
        except (ValueError, KeyError, TypeError):
            raise StateError(f"{path} is damaged, or encrypted with a key that was not given.") from None
        if not isinstance(document, type(default)) or (not self.seal and found != _digest(document)):
            raise StateError(f"{path} is damaged.")
        return document

    def _write(self, name: str, document: object) -> None:
        if self.seal:
            content = self.seal.close(json.dumps(document).encode(), name)
        else:
            content = json.dumps({"digest": _digest(document), "content": document}).encode()
        write_atomically(self.folder / name, content, private=True)


def _digest(document: object) -> str:
    return digest_of(json.dumps(document, sort_keys=True).encode())
