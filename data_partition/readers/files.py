"""Finding and opening raw files, which may be plain or compressed with gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from bouquet.errors import DataError


def find(folder: Path, *names: str) -> Path | None:
    """The first of the named files that the folder has, plain or as .gz, in whatever case; None if it has none."""
    if not folder.is_dir():
        return None
    present = {path.name.lower(): path for path in sorted(folder.iterdir(), reverse=True) if path.is_file()}
    for name in names:
        for candidate in (name.lower(), f"{name.lower()}.gz"):
            if candidate in present:
                return present[candidate]
    return None


def require(folder: Path, *names: str) -> Path:
    """Like `find`, for a file that must be there.

    Raises:
        DataError: none of the names is there.
    """
    path = find(folder, *names)
    if path is None:
        raise DataError(f"{' or '.join(names)} is not in {folder}.")
    return path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked.

    Raises:
        DataError: the file cannot be read, or is damaged; also when that shows inside the `with` block.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast(BinaryIO, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path.name} is damaged or incomplete ({error}).") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None


def plain_name(path: Path) -> str:
    """The name of the file without .gz."""
    return path.name.removesuffix(".gz")
