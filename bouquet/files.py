"""Files that are either whole or not there, folders that nobody else looks into, and one process at a time in them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EPERM
from hashlib import blake2b
from pathlib import Path
from typing import Any

from bouquet.reporting.events import event

_POLL_SECONDS = 0.05

Content = bytes | str | Sequence[bytes | memoryview]


def write_atomically(path: Path, content: Content, *, durable: bool = True, private: bool = False) -> None:
    """Replace a file by new content, so that a reader sees the old or the new and never a part.

    Args:
        content: in one part or in several.
        durable: force the content to the disk before the old file goes.
        private: nobody else may read it, from its first moment on and whatever the umask says.
    Raises:
        OSError: the disk is full or not writable; the old file stays.
    """
    parts = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open_private(temporary) if private else temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_private(path: Path) -> Any:
    """A new file, opened for writing, that only its owner reads and writes; what had its name is gone."""
    # What a killed process of the same number left may be anybody's to read, and open already.
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def private_folder(path: Path) -> Path:
    """A folder of ours into which only its owner looks, made or repaired; folders above it are left as they are.

    Raises:
        OSError: it cannot be made, or somebody else has made it, who looks into it whenever he likes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    found, us = path.stat(), os.geteuid()
    # Root may look after another user's folders, and has nothing to hide from its owner.
    if us not in (0, found.st_uid):
        raise PermissionError(EPERM, f"it belongs to another user of this machine ({found.st_uid})", str(path))
    if found.st_mode & 0o077 and found.st_uid == us:
        path.chmod(0o700)
        event("folder closed to others", folder=str(path), mode=f"{found.st_mode & 0o777:04o}")
    return path


# -- one process at a time ---------------------------------------------------------------------------------------------


@contextmanager
def locked(path: Path, occupied: Exception, seconds: float = 0.0) -> Iterator[None]:
    """Be the only one who holds this file; the kernel frees it when the process ends, however it ends.

    Args:
        path: made where it is not there, and never removed: whoever waits for it would hold another one.
        occupied: raised where somebody else holds it, and still does after so many seconds.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while not _lock(file):
            if time.monotonic() >= deadline:
                raise occupied
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(file)


def is_locked(path: Path) -> bool:
    """Whether somebody holds this file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(file)
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def digest_of(content: bytes) -> str:
    """32 hexadecimal digits that change with every bit."""
    return blake2b(content, digest_size=16).hexdigest()
