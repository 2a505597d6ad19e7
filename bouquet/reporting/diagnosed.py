"""Pictures of what `bouquet diagnose` found, in one file, and their numbers: figures of PLGC and Fed3CR on item tables.

singular values           PLGC, Fig. 6      of each table, all users
information abundance     PLGC, Fig. 5      of each table, all users
                          PLGC, Fig. 3      of groups of users, before and after local training
overlap of two views      Fed3CR, Fig. 6    histogram over users, as a density
heat map                  Fed3CR, Fig. 7    of the one user who has agreed
map of the items          PLGC, Fig. 6      of each table, of the same user
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bouquet.extras import missing
from bouquet.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPECTRUM, _ABUNDANCE, _OF_TABLE = "singular values, ", "information abundance ", "information abundance, "
_MAP, _KINDS = "map, ", "items of the map"
_COLOURS = {"other": "C0", "training": "C3", "held out": "C1"}
_COLUMNS = ("figure", "of", "row", "column", "value")


def write_numbers(path: Path, told: Mapping[str, Any]) -> None:
    """Write every number of `diagnostics.json` as a line: figure, of whom or of which item, row, column, value.

    Rows are the numbers of singular values from 1, the lower ends of a histogram's bins, or items from 0.
    """
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for name, found in told.items():
        if name != _KINDS:
            lines.writerows((name, *line[:-1], repr(line[-1])) for line in _lines(name, found, told))
    write_atomically(path, text.getvalue(), private=True)


def _lines(name: str, found: Any, told: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Of one figure: of, row, column, value."""
    if name.startswith(_MAP):
        yield "all", "", "share of the spread", found["share of the spread"]
        for item, (kind, point) in enumerate(zip(told[_KINDS], found["points"], strict=True)):
            yield kind, item, "x", point[0]
            yield kind, item, "y", point[1]
    elif isinstance(found, dict):
        for group, values in found.items():
            several = isinstance(values, list)
            for number, value in enumerate(values if several else [values], start=1):
                yield group, number if several else "", "", value
    elif name == "heat map":
        for row, values in enumerate(found):
            yield from (("one user", row, column, value) for column, value in enumerate(values))
    elif isinstance(found, list):
        yield from (("all", bin_ / len(found), "", value) for bin_, value in enumerate(found))
    else:
        yield "all", "", "", found


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
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    picture = Figure(figsize=(4.6 * across, 3.6 * down), layout="constrained")
    for number, draw in enumerate(panels, start=1):
        draw(picture.add_subplot(down, across, number), told)
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


def _of_tables(axes: Axes, told: Mapping[str, Any]) -> None:
    names = [name for name in told if name.startswith(_OF_TABLE)]
    axes.bar(range(len(names)), [told[name]["all"] for name in names], width=0.6)
    axes.set_xticks(range(len(names)), [name.removeprefix(_OF_TABLE) for name in names])
    axes.set(ylabel="information abundance", title="mean over users")


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


def _map(axes: Axes, told: Mapping[str, Any], *, name: str) -> None:
    points, kinds = np.array(told[name]["points"]), np.array(told[_KINDS])
    for kind, colour in _COLOURS.items():  # what is the user's own lies above
        mine = points[kinds == kind]
        axes.scatter(mine[:, 0], mine[:, 1], s=4 if kind == "other" else 12, color=colour, label=kind)
    share = told[name]["share of the spread"]
    axes.set(xlabel="first component", ylabel="second component")
    axes.set_title(f"{name.removeprefix(_MAP)}, one user ({100 * share:.0f} % of its spread)")
    axes.legend(frameon=False)


_PANELS: dict[str, Callable[[Axes, Mapping[str, Any]], None]] = {
    _SPECTRUM: _spectra,
    _OF_TABLE: _of_tables,
    f"{_ABUNDANCE}before": _abundance,
    "overlap histogram": _overlap,
    "heat map": _heat,
    **{name: partial(_map, name=name) for name in (f"{_MAP}{table} table" for table in ("common", "own", "seen"))},
}
