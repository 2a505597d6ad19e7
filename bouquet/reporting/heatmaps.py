"""Pictures of matrices between users: as arrays for others to use, and as one figure to look at."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.checked import checked_tensors
from bouquet.extras import missing
from bouquet.files import write_atomically


def write_heatmaps(folder: Path, matrices: Mapping[str, NDArray[Any]]) -> None:
    """Write `matrices.safetensors`, `matrices.csv` and `matrices.png`; one-dimensional arrays go into the first only.

    The picture is left out, with a line that says so, where matplotlib is not installed.

    Args:
        matrices: name -> [k, k], and other arrays that say what the rows are.
    """
    if not matrices:
        return
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(values) for name, values in matrices.items()}
    write_atomically(folder / "matrices.safetensors", checked_tensors(arrays, {}), private=True)
    shown = {name: values for name, values in matrices.items() if values.ndim == 2}
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("matrix", "u", "v", "value"))
    for name, values in shown.items():
        lines.writerows((name, u, v, repr(float(value))) for (u, v), value in np.ndenumerate(values))
    write_atomically(folder / "matrices.csv", text.getvalue(), private=True)
    try:
        # Heavy, and only wanted at the end of a run.
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{missing('matplotlib')} {folder} has matrices.safetensors, but no picture.", file=sys.stderr)
        return
    figure = Figure(figsize=(4.2 * len(shown), 3.8), layout="constrained")
    for axes, (name, values) in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown.items(), strict=True):
        image = axes.imshow(values, cmap="viridis")
        axes.set_title(name)
        axes.set_xlabel("user v")
        axes.set_ylabel("user u")
        figure.colorbar(image, ax=axes, shrink=0.8)
    figure.savefig(folder / "matrices.png", dpi=120)
