"""What happened, one JSON object per line, for whoever runs this: set BOUQUET_LOG=json to have it on standard error."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any


def event(name: str, **fields: Any) -> None:
    """Say that something happened; nothing is said unless BOUQUET_LOG is json."""
    if os.environ.get("BOUQUET_LOG") != "json":
        return
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": name, **fields}
    print(json.dumps(line, default=str), file=sys.stderr, flush=True)
