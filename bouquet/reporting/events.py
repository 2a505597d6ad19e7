"""What happened, one JSON object per line, for whoever runs this.

The server writes to `events.jsonl` in the folder of the run. With BOUQUET_LOG=json every process, a node's too, prints
to its standard error.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_log: Path | None = None


def record_to(path: Path | None) -> None:
    """Append the events of this process to a file; None: to none."""
    global _log
    _log = path


def event(name: str, **fields: Any) -> None:
    """Say that something happened."""
    printed = os.environ.get("BOUQUET_LOG") == "json"
    if not (printed or _log):
        return
    line = json.dumps(
        {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": name, **fields}, default=str
    )
    if printed:
        print(line, file=sys.stderr, flush=True)
    if _log:
        with _log.open("a") as file:
            file.write(line + "\n")
