"""Pictures of what `bouquet diagnose` found: the figures of PLGC and Fed3CR on item tables, in one file.

singular values           PLGC, Fig. 6      of each table, all users
information abundance     PLGC, Fig. 3      of groups of users, before and after local training
overlap of two views      Fed3CR, Fig. 6    histogram over users, as a density
heat map                  Fed3CR, Fig. 7    of the one user who has agreed
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bouquet.extras import missing
from bouquet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPECTRUM, _ABUNDANCE = "singular values, ", "information abundance "


def write_picture(path: Path, told: Mapping[str, Any]) -> bool:
    """Draw what `diagnostics.json` has, a panel for each figure that it has numbers for; for its owner only.

    Returns:
        Whether there is a picture: not where matplotlib is missing, which a line then says, or nothing can be drawn.
    """
    panels = [draw for name, draw in _PANELS.items() if any(key.startswith(name) for key in told)]
    if not panels:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{missing('matplotlib')} There is no {path.name}.", file=sys.stderr)
        return False
    picture = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
    for axes, draw in zip(np.atleast_1d(picture.subplots(1, len(panels))), panels, strict=True):
        draw(axes, told)
    image = BytesIO()
    picture.savefig(image, format="png", dpi=120, metadata={"Software": None})
    write_atomically(path, image.getvalue(), private=True)
    return True


def _spectra(axes: Axes, told: Mapping[str, Any]) -> None:
    for name, groups in told.items():
        if name.startswith(_SPECTRUM):
            values = np.sort(np.array(groups["all"]))[::-1]
            axes.plot(np.arange(1, len(values) + 1), values, marker=".", label=name.removeprefix(_SPECTRUM))
    axes.set_yscale("log")
    axes.set(xlabel="number", ylabel="singular value", title="mean over users")
    axes.legend(frameon=False)


def _abundance(axes: Axes, told: Mapping[str, Any]) -> None:
    groups = [group for group in told["users"] if group != "all"]
    for name in (f"{_ABUNDANCE}before training", f"{_ABUNDANCE}after training"):
        if name in told:
            axes.plot([told[name][group] for group in groups], marker="o", label=name.removeprefix(_ABUNDANCE))
    axes.set_xticks(range(len(groups)), [group.removesuffix(" interactions") for group in groups], rotation=20)
    axes.set(xlabel="training interactions", ylabel="information abundance")
    axes.legend(frameon=False)


def _overlap(axes: Axes, told: Mapping[str, Any]) -> None:
    counts = np.array(told["overlap histogram"], dtype=np.float64)
    edges = np.linspace(0, 1, len(counts) + 1)
    # A density: the bars have area 1, as in the paper.
    axes.bar(edges[:-1], counts * len(counts) / counts.sum(), width=np.diff(edges), align="edge")
    axes.set(xlabel="RBO@50 of the two views", ylabel="density of users")


def _heat(axes: Axes, told: Mapping[str, Any]) -> None:
    values = np.array(told["heat map"])
    largest = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.set(xlabel="own view", ylabel="common view", title="E of one user")
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


_PANELS: dict[str, Callable[[Axes, Mapping[str, Any]], None]] = {
    _SPECTRUM: _spectra,
    f"{_ABUNDANCE}before": _abundance,
    "overlap histogram": _overlap,
    "heat map": _heat,
}
