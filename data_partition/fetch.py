"""The folder of a data set: where it is looked for, and how it gets there."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import pooch

from bouquet.errors import DataError
from data_partition.catalogue import DATASETS, Dataset, Download
from data_partition.readers.files import find

_CHUNK = 2**20


def locate(dataset: Dataset, data_dir: str = "") -> Path:
    """The folder with the files of a data set, downloaded if need be and possible.

    Args:
        dataset: what is wanted.
        data_dir: folder of the set, or a folder with a sub-folder of the set's name (or an alias); "": the per-user
            cache.
    Raises:
        DataError: the files are not there and cannot be had.
    """
    base = Path(data_dir).expanduser() if data_dir else Path(pooch.os_cache("bouquet"))
    if data_dir and not base.is_dir():
        raise DataError(f"data-dir {data_dir} is not a folder.")
    names = (dataset.name, *dataset.aliases)
    folders = [base / name for name in names]
    if data_dir and not _is_of_another_set(base, dataset):
        folders.insert(0, base)
    for folder in folders:
        if _complete(folder, dataset):
            return folder
    # A folder of the set that is there but lacks a file is where the missing file belongs.
    present = [folder for folder in folders if folder.is_dir() and folder.name in names]
    target = present[0] if present else base / dataset.name
    if dataset.download is None:
        raise _missing(dataset, target, "cannot be downloaded automatically")
    _download(dataset, dataset.download, target)
    return target


def _complete(folder: Path, dataset: Dataset) -> bool:
    return all(find(folder, name) is not None for name in dataset.files)


def _is_of_another_set(folder: Path, dataset: Dataset) -> bool:
    # FilmTrust, Douban-Book and MovieLens-1M all call their file ratings.dat.
    name = folder.resolve().name
    return any(name in (other.name, *other.aliases) for other in DATASETS.values() if other is not dataset)


def _download(dataset: Dataset, download: Download, target: Path) -> None:
    """Download, check, and only then put the files into place, the needed ones last.

    Raises:
        DataError: no network, no room, or the content is not what was published.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target) as temporary:
            fetched = _retrieve(dataset, download, Path(temporary), target)
            files = _unpack(dataset, fetched, Path(temporary) / dataset.name)
            _verify(dataset, download, files)
            for path in sorted(files, key=lambda path: path.name in dataset.files):
                path.replace(target / path.name)
    except OSError as error:
        raise DataError(f"{dataset.title} cannot be stored in {target} ({error.strerror or error}).") from None


def _retrieve(dataset: Dataset, download: Download, temporary: Path, target: Path) -> Path:
    pooch.get_logger().setLevel("WARNING")
    try:
        # The archives have no published SHA-256; what they hold is checked by `_verify`.
        return Path(
            pooch.retrieve(
                download.url,
                known_hash=None,
                fname=PurePosixPath(download.url).name,
                path=temporary,
                progressbar=sys.stderr.isatty(),
            )
        )
    except OSError as error:
        answer = getattr(error, "response", None)
        if answer is not None:
            reason = f"the server answered {answer.status_code}"
        else:
            broke_off = type(error).__name__ in ("ChunkedEncodingError", "ReadTimeout")
            reason = "the connection broke off" if broke_off else "no network"
        raise _missing(dataset, target, f"the download failed ({reason})") from None


def _unpack(dataset: Dataset, fetched: Path, folder: Path) -> list[Path]:
    """The files of the set out of an archive, or the fetched file itself; all in `folder`."""
    folder.mkdir()
    if fetched.suffix != ".zip":
        return [fetched.rename(folder / fetched.name)]
    wanted = {*dataset.files, *dataset.extras}
    files = []
    try:
        with zipfile.ZipFile(fetched) as archive:
            for member in archive.infolist():
                name = PurePosixPath(member.filename).name
                if name in wanted:
                    wanted.discard(name)
                    (folder / name).write_bytes(archive.read(member))
                    files.append(folder / name)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"The download of {dataset.title} is damaged ({error}); try again.") from None
    if wanted & set(dataset.files):
        raise DataError(f"The download of {dataset.title} lacks {', '.join(sorted(wanted & set(dataset.files)))}.")
    return files


def _verify(dataset: Dataset, download: Download, files: list[Path]) -> None:
    """Raises: DataError: a file does not have the published SHA-256, or the set not the published counts."""
    for path in files:
        expected = download.sha256.get(path.name)
        if expected is not None and _sha256(path) != expected:
            raise DataError(
                f"The download of {dataset.title} is not what was published: the SHA-256 of {path.name} is "
                f"{_sha256(path)} and should be {expected}."
            )
    if download.counts is not None and dataset.read is not None:
        table = dataset.read(files[0].parent).table
        found = (table["user"].nunique(), table["item"].nunique(), len(table))
        if found != download.counts:
            raise DataError(
                f"The download of {dataset.title} is not what was published: users, items and rows are "
                f"{_listed(found)} instead of {_listed(download.counts)}."
            )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _listed(counts: tuple[int, int, int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)


def _missing(dataset: Dataset, target: Path, reason: str) -> DataError:
    names = list(dataset.files)
    files = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    home, shown = str(Path.home()), str(target)
    if shown.startswith(home + "/"):
        shown = "~" + shown[len(home) :]
    return DataError(
        f"{dataset.title} is not in {shown} and {reason}. Put {files} into that folder, or name its folder "
        "with data-dir."
    )
