"""How unequal histories are: how many users have how many interactions (HeteFedRec, Fig. 1), in lines and a picture."""

from __future__ import annotations

import csv
import sys
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bouquet.extras import missing
from bouquet.files import write_atomically

CSV, PNG = "interactions.csv", "interactions.png"
BINS = 50


def histogram(lengths: NDArray[np.integer], bins: int = BINS) -> list[tuple[int, int, int]]:
    """Bins of equal width, a whole number, as narrow as `bins` of them allow: first length, last one, users."""
    width = -(-(int(lengths.max(initial=0)) + 1) // bins)
    counts = np.bincount(lengths // width)
    return [(place * width, (place + 1) * width - 1, int(count)) for place, count in enumerate(counts)]


def write_lengths(folder: Path, title: str, lengths: NDArray[np.integer]) -> list[Path]:
    """Write the histogram of interactions per user.

    The picture is left out, with a line that says so, where matplotlib is not installed.

    Args:
        lengths: [n] distinct items of each user.
    Returns:
        The files that were written.
    """
    found = histogram(lengths)
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("from", "to", "users"))
    lines.writerows(found)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CSV, text.getvalue())
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{missing('matplotlib')} {folder} has {CSV}, but no picture.", file=sys.stderr)
        return [folder / CSV]
    first, last, users = (np.array(column) for column in zip(*found, strict=True))
    picture = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = picture.subplots()
    axes.bar(first, users, width=last - first + 1, align="edge")
    axes.axvline(lengths.mean(), color="C3", linestyle=":", label=f"mean {lengths.mean():.1f}")
    axes.set(xlabel="interactions of a user", ylabel="users", title=title)
    axes.legend(frameon=False)
    image = BytesIO()
    picture.savefig(image, format="png", dpi=120, metadata={"Software": None})
    write_atomically(folder / PNG, image.getvalue())
    return [folder / CSV, folder / PNG]
