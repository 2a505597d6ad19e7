"""How the methods got there: learning curves, and what was sent for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bouquet.experiments.figures import figure as in_digits
from bouquet.experiments.figures import kilobytes
from bouquet.experiments.page import drawing, markup
from bouquet.experiments.page.content import Content, Shown
from bouquet.experiments.page.drawing import Point
from bouquet.experiments.page.results import TESTED, title_of

Line = Mapping[str, Any]
# An axis of megabytes is logarithmic where methods are so far apart.
_FAR = 20


def key_of(methods: Sequence[Shown]) -> str:
    """Which line is whose; nothing to say of one method."""
    if len(methods) == 1:
        return ""
    entries = [
        f'<li tabindex="0" class="k{shown.place}">{drawing.key_mark(shown.place)}<span>{title_of(shown)}</span></li>'
        for shown in methods
    ]
    words = "Key: point at a method, or go there by Tab, to see it alone"
    return f'<ul class="key" aria-label="{words}">{"".join(entries)}</ul>'


def curves_section(content: Content) -> str:
    """Validation and loss by round."""
    methods = [shown for shown in content.methods if shown.federated]
    rounds = {shown.place: [folder.rounds() for folder in shown.folders] for shown in methods}
    lines = [_by_round(shown, rounds[shown.place], ("validation", *TESTED), best=True) for shown in methods]
    chart = _chart(lines, "round", "NDCG@10 on validation by round")
    drawings = [
        markup.figure("NDCG@10 on validation", "all items; a ring is the reported round", chart, _behind(lines))
    ]
    losses = [_by_round(shown, rounds[shown.place], ("loss",)) for shown in methods]
    if any(run for line in losses for run in line.runs):
        chart = _chart(losses, "round", "Training loss by round")
        drawings.append(markup.figure("Training loss", "mean over users, last local epoch", chart))
    words = []
    if any(len(shown.folders) > 1 for shown in methods):
        words.append("Thin lines are seeds.")
    if len(methods) > 1:
        words.append(
            'Losses of different methods need not mean the same. <span class="hint">Point at a name, or go there by '
            "Tab, to see it alone.</span>"
        )
    return markup.section(
        "learning",
        "Learning curves",
        markup.paragraph(" ".join(words)) if words else "",
        markup.figures(key_of(methods), drawings),
    )


def traffic_section(content: Content) -> str:
    """What all users sent and were sent, and what it brought."""
    methods = [shown for shown in content.methods if shown.federated]
    lines = []
    for shown in methods:
        runs = [_by_bytes(folder.rounds(), shown.first) for folder in shown.folders]
        lines.append(drawing.Lines(shown.place, shown.name, runs))
    counted = [(shown, shown.result.traffic("training"), shown.result.traffic("evaluation")) for shown in methods]
    points = [
        drawing.Measured(shown.place, shown.name, shown.value(*TESTED), shown.error(*TESTED), (down + looked) / 1e6)
        for shown, down, looked in counted
        if down is not None and looked is not None and not math.isnan(shown.value(*TESTED))
    ]
    drawings = [
        markup.figure(
            "NDCG@10 on validation by traffic",
            "all items; megabytes of all users so far",
            _chart(lines, "MB, all users together", "NDCG@10 on validation by megabytes", far=_FAR),
        )
    ]
    if len(points) > 1 and all(point.at > 0 for point in points):
        at = [point.at for point in points]
        chart = drawing.point_chart(
            points, "MB to the reported round", "NDCG@10 at test by megabytes", logarithmic=max(at) > _FAR * min(at)
        )
        drawings.append(markup.figure("NDCG@10 at test by traffic", "± one standard error over users", chart))
    return markup.section(
        "traffic",
        "Traffic",
        markup.paragraph(
            "Bytes of training and evaluation, in both directions, as if every user were on a device of its own."
        ),
        markup.figures(key_of(methods), drawings),
        _costs(methods),
    )


def _costs(methods: Sequence[Shown]) -> str:
    lines = []
    for shown in methods:
        summaries = [run.summary for run in shown.result.runs]
        seconds = [summary["seconds"]["per_round"] for summary in summaries if "seconds" in summary]
        totals = [shown.result.traffic(part) for part in ("training", "evaluation")]
        lines.append(
            [
                title_of(shown),
                kilobytes(shown.result.bytes("down")),
                kilobytes(shown.result.bytes("up")),
                *("–" if total is None else f"{total / 1e6:,.1f} MB" for total in totals),
                f"{np.mean(seconds):.2f}" if seconds else "–",
            ]
        )
    header = [
        "method",
        "down per user and round",
        "up",
        "training to the reported round",
        "evaluation",
        "seconds per round",
    ]
    return markup.table("Cost. Seconds are those of the machine that simulated it.", header, lines)


def _by_round(
    shown: Shown, runs: Sequence[Sequence[Line]], path: Sequence[str], *, best: bool = False
) -> drawing.Lines:
    drawn, marked = [], []
    for lines, run in zip(runs, shown.result.runs, strict=True):
        points = [(float(line["round"]), value) for line in lines if (value := _at(line, path)) is not None]
        drawn.append(points)
        if best:
            marked += [point for point in points if point[0] == run.summary.get("best_round")]
    return drawing.Lines(shown.place, shown.name, drawn, marked)


def _by_bytes(lines: Sequence[Line], run: Any) -> list[Point]:
    """Megabytes so far, and validation, of evaluated rounds."""
    points, total = [], 0.0
    for line in lines:
        size = line["bytes"]
        total += size["down_per_user"] * line["asked"] + size["up_per_user"] * line["users"]
        if looked := size.get("evaluation"):
            total += looked["down_per_user"] * looked["asked"] + looked["up_per_user"] * looked["users"]
        value = _at(line, ("validation", *TESTED))
        if value is not None:
            points.append((total / 1e6, value))
    return points


def _at(line: Line, path: Sequence[str]) -> float | None:
    found: Any = line
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and math.isfinite(found) else None


def _chart(lines: Sequence[drawing.Lines], x_title: str, what: str, far: float = math.inf) -> str:
    shown = [line for line in lines if any(line.runs)]
    if not shown:
        return markup.paragraph("Nothing was evaluated.", "note")
    xs = [x for line in shown for run in line.runs for x, _ in run]
    ends = [run[-1][0] for line in shown for run in line.runs if run]
    logarithmic = min(xs) > 0 and max(ends) > far * min(ends)
    shown = [drawing.Lines(s.place, s.name, [run for run in s.runs if run], s.marked) for s in shown]
    return drawing.line_chart(shown, x_title, what, logarithmic=logarithmic, from_zero="loss" not in what)


def _behind(lines: Sequence[drawing.Lines]) -> str:
    """The figures of a chart by round, seeds averaged where all have the round."""
    rounds = sorted({x for line in lines for run in line.runs for x, _ in run})
    table = []
    for at in rounds:
        cells = []
        for line in lines:
            values = [y for run in line.runs for x, y in run if x == at]
            cells.append(in_digits(float(np.mean(values))) if values and len(values) == len(line.runs) else "–")
        table.append([f"{at:.0f}", *cells])
    return markup.table("By round; means over seeds.", ["round", *(markup.text(line.name) for line in lines)], table)
