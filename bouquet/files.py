"""Files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str, *, durable: bool = True) -> None:
    """Replace a file by new content, so that a reader sees the old or the new and never a part.

    Args:
        durable: force the content to the disk before the old file goes.
    Raises:
        OSError: the disk is full or not writable; the old file stays.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
