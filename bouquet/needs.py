"""What a run needs of a machine, and what the machine has: looked at before the first round, not when it is too late.

Needs are counted from below, from arrays that are certainly there at once, so that what fits is not refused.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.config import TrainingOptions
from bouquet.errors import RunFailed, StateError

_GROUPS_OF_PROCESS, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

# The GNU library reserves so many addresses for the heap of a thread.
_THREAD_ADDRESSES, _THREADS = 2**26, 6
# A thread's stack, as systems give it by default.
_STACK_BYTES = 2**23


def bytes_of(specs: Specs) -> int:
    """Bytes of one copy of these arrays, in float32."""
    return sum(4 * spec.size for spec in specs.values())


def update_bytes(specs: Specs, touched: NDArray[np.float64]) -> float:
    """Bytes of the updates of single users, by rows.

    Args:
        specs: the arrays whose changes are reported.
        touched: [k] rows that each user changes.
    """
    by_item = [spec for spec in specs.values() if spec.by_item]
    row = sum(4 * (1 + spec.size // spec.shape[0]) for spec in by_item)
    return float(touched.sum()) * row + len(touched) * sum(4 * s.size for s in specs.values() if not s.by_item)


def expected_rows(
    sizes: NDArray[np.integer], num_items: int, negatives_per_positive: float, options: TrainingOptions
) -> NDArray[np.float64]:
    """[k] how many rows of a table by item a round of training changes, for users with so many training items.

    They are the positives and as many different rows as the negatives hit; with weight decay every row.
    """
    if options.weight_decay > 0:
        return np.full(len(sizes), float(num_items))
    left = np.maximum(num_items - sizes, 0)
    hit = -np.expm1(-negatives_per_positive * sizes / np.maximum(left, 1))
    return np.minimum(sizes + left * hit, num_items)


def trained_at_least(times: int, rounds: int, fraction: float) -> list[float]:
    """For 1, 2, … `times` the share of users who train so often in so many rounds with this fraction of all users."""
    exactly = [math.comb(rounds, k) * fraction**k * (1 - fraction) ** (rounds - k) for k in range(min(times, rounds))]
    return [max(0.0, 1 - sum(exactly[: k + 1])) for k in range(len(exactly))]


def free_memory(*, of_process: bool = True) -> int:
    """Bytes that can still be had: of the machine, of the control groups of this process, and under its own limit.

    Args:
        of_process: whether the limit on this process's addresses counts (`ulimit -v`).
    """
    import psutil  # only where a run begins; a device at rest does without

    free = [psutil.virtual_memory().available, *_free_in_groups()]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if of_process and limit != resource.RLIM_INFINITY:
        used = psutil.Process().memory_info().vms
        free.append(max(limit - used - reserved_addresses(), 0))
    return min(free)


def hold_to_free_memory() -> None:
    """Have the kernel refuse this process more than is free now: it fails by itself, and no other is killed for it.

    Linux alone counts what a process fills (`RLIMIT_DATA`); elsewhere nothing is done.
    """
    if sys.platform != "linux":
        return
    import psutil

    most = psutil.Process().memory_info().data + free_memory() + _STACK_BYTES * ((os.cpu_count() or 1) + _THREADS)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    given = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *given]), hard))


def reserved_addresses() -> int:
    """Bytes of addresses that threads reserve for their heaps and never fill; a few threads, and one for each core."""
    return _THREAD_ADDRESSES * ((os.cpu_count() or 1) + _THREADS)


def _free_in_groups() -> list[int]:
    """What the groups of this process, up to the root, leave of their limits; cached files do not count as used."""
    found = []
    try:
        lines = [line.split(":", 2) for line in _GROUPS_OF_PROCESS.read_text().splitlines()]
    except OSError:
        return []
    for _, controllers, path in lines:
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        version_2 = controllers == ""
        base = _CGROUPS if version_2 else _CGROUPS / "memory"
        names = ("memory.max", "memory.current") if version_2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        inside = Path(path.lstrip("/"))
        for group in (inside, *inside.parents):
            found += _free_in_group(base / group, *names, "inactive_file" if version_2 else "total_inactive_file")
    return found


def _free_in_group(folder: Path, limit: str, used: str, cached: str) -> list[int]:
    try:
        most, now = (folder / limit).read_text().strip(), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return [] if most == "max" else [max(int(most) - now + int(stat.get(cached, 0)), 0)]
    except (OSError, ValueError):
        return []


def refuse_memory(need: float, who: str, advice: str, *, of_process: bool = True) -> None:
    """Refuse what does not fit into memory.

    Args:
        need: bytes.
        who: what needs them, as the beginning of a sentence.
        advice: what to change.
    Raises:
        RunFailed: more is needed than can be had.
    """
    free = free_memory(of_process=of_process)
    if need > free:
        raise RunFailed(
            f"{who} needs about {in_words(need)} of memory, and this machine has {in_words(free)} free: {advice}"
        )


def refuse_disk(need: float, folder: Path, who: str, advice: str) -> None:
    """Refuse what does not fit on the disk of a folder, or a folder that cannot be written.

    Args:
        need: bytes that will be there, those that lie there already included.
    Raises:
        StateError: the folder cannot be written.
        RunFailed: more is needed than there is room for.
    """
    at = writable(folder)
    there = sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) if at == folder else 0
    free = shutil.disk_usage(at).free + there
    if need > free:
        raise RunFailed(
            f"{who} needs about {in_words(need)} of disk under {folder}, and there is room for {in_words(free)}: "
            f"{advice}"
        )


def writable(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there.

    Raises:
        StateError: nothing can be written into it.
    """
    at = folder.absolute()
    while not at.exists():
        at = at.parent
    if not at.is_dir():
        raise StateError(f"{folder} cannot be a folder: {at} is a file. Name another one.")
    if not os.access(at, os.W_OK | os.X_OK):
        raise StateError(f"{folder} cannot be written: this user may not write into {at}. Name another one.")
    return at


def in_words(count: float) -> str:
    """Bytes as a person reads them, in powers of 1,000."""
    for unit in ("B", "KB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} GB" if count >= 99.5 else f"{count:.1f} GB"
