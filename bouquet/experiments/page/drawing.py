"""Charts as SVG: lines over an axis, and points with their errors. They are small, so that a phone shows them whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bouquet.experiments.page.markup import text

WIDTH, HEIGHT = 400, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 40
_ROW = 40

Point = tuple[float, float]


@dataclass(frozen=True)
class Lines:
    """What a chart shows of one method.

    Attributes:
        place: of the method: its colour and shape.
        name: of the method, in plain text.
        runs: points of one line each, by x.
        marked: points that stand out.
    """

    place: int
    name: str
    runs: Sequence[Sequence[Point]]
    marked: Sequence[Point] = ()


@dataclass(frozen=True)
class Measured:
    """A point with its standard error; `at` is where it stands on the other axis, where there is one."""

    place: int
    name: str
    value: float
    error: float
    at: float = math.nan


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`, 1, 2 or 5 times a power of ten apart."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from at most `low` to at least `high`, both above 0; few of them."""
    every = [
        f * 10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for f in (1, 2, 5)
    ]
    first = max(place for place, value in enumerate(every) if value <= low * 1.0001)
    last = min(place for place, value in enumerate(every) if value >= high * 0.9999)
    found = every[first : last + 1]
    return [v for v in found if f"{v:e}"[0] == "1" or v in (found[0], found[-1])] if len(found) > 6 else found


def number(value: float) -> str:
    """A mark of an axis: as short as it can be."""
    if abs(value) >= 1:
        return f"{value:,.10g}"
    return f"{value:.10f}".rstrip("0").rstrip(".").replace("0.", ".", 1)


class _Frame:
    """Axes of a chart, and where a value stands in it."""

    def __init__(self, x_marks: Sequence[float], y_marks: Sequence[float], *, logarithmic: bool = False) -> None:
        self._x, self._y, self._log = x_marks, y_marks, logarithmic

    def x(self, value: float) -> float:
        scale: Callable[[float], float] = math.log if self._log else float
        low, high = scale(self._x[0]), scale(self._x[-1])
        return round(_LEFT + (scale(value) - low) / (high - low) * (WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self._y[0], self._y[-1]
        return round(HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    def axes(self, x_title: str, named: Sequence[str] = ()) -> str:
        """Args: named: words in place of the numbers on the x axis; they stand between marks 0, 1, …"""
        parts = []
        bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
        for mark in self._y:
            height = self.y(mark)
            kind = "axis" if mark == self._y[0] else "grid"
            parts.append(f'<line class="{kind}" x1="{_LEFT}" x2="{right}" y1="{height}" y2="{height}"/>')
            parts.append(f'<text x="{_LEFT - 6}" y="{height + 4}" text-anchor="end">{number(mark)}</text>')
        if named:
            for place, words in enumerate(named):
                parts.append(
                    f'<text x="{self.x(place + 0.5)}" y="{bottom + 16}" text-anchor="middle">{text(words)}</text>'
                )
        else:
            for mark in self._x:
                at = self.x(mark)
                parts.append(f'<line class="axis" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 4}"/>')
                parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{number(mark)}</text>')
        middle = (_LEFT + right) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{text(x_title)}</text>')
        return "".join(parts)


def line_chart(
    methods: Sequence[Lines], x_title: str, what: str, *, logarithmic: bool = False, from_zero: bool = True
) -> str:
    """Lines of methods; a line of one point is a point.

    Args:
        what: the chart in words, for those who do not see it.
        logarithmic: the x axis is; x are above 0 then.
        from_zero: the y axis begins at 0.
    """
    xs = [x for method in methods for run in method.runs for x, _ in run]
    ys = [y for method in methods for run in method.runs for _, y in run]
    x_marks = powers(min(xs), max(xs)) if logarithmic else ticks(min(xs), max(xs))
    if len(x_marks) == 1:
        x_marks = [x_marks[0] / 2, x_marks[0], x_marks[0] * 2]
    frame = _Frame(x_marks, ticks(min([0.0, *ys]) if from_zero else min(ys), max(ys)), logarithmic=logarithmic)
    drawn = []
    for method in methods:
        inside = []
        for run in method.runs:
            if len(run) == 1:
                inside.append(_shape(method.place, frame.x(run[0][0]), frame.y(run[0][1])))
            else:
                points = "L".join(f"{frame.x(x)} {frame.y(y)}" for x, y in run)
                inside.append(f'<path class="l" d="M{points}"/>')
        inside += [_shape(method.place, frame.x(x), frame.y(y), "best", 4) for x, y in method.marked]
        drawn.append(_group(method.place, method.name, "".join(inside), many=len(method.runs) > 1))
    return _svg(HEIGHT, what, frame.axes(x_title) + "".join(drawn))


def point_chart(points: Sequence[Measured], x_title: str, what: str, *, logarithmic: bool = False) -> str:
    """Points with errors over an axis; their `at` is x."""
    xs = [point.at for point in points]
    tops = [point.value + _known(point.error) for point in points]
    x_marks = powers(min(xs) / 1.2, max(xs) * 1.2) if logarithmic else ticks(0.0, max(xs))
    frame = _Frame(x_marks, ticks(0.0, max(tops)), logarithmic=logarithmic)
    drawn = [
        _group(point.place, f"{point.name}: {point.value:.3f}", _whisker(frame, point, frame.x(point.at)))
        for point in points
    ]
    return _svg(HEIGHT, what, frame.axes(x_title) + "".join(drawn))


def group_chart(groups: Sequence[str], methods: Sequence[Sequence[Measured]], x_title: str, what: str) -> str:
    """Each method's points in each group, side by side.

    Args:
        methods: of each method one point per group.
    """
    tops = [point.value + _known(point.error) for method in methods for point in method]
    frame = _Frame([0.0, float(len(groups))], ticks(0.0, max(tops)))
    width = 0.7 / len(methods)
    drawn = []
    for order, method in enumerate(methods):
        inside = []
        for place, point in enumerate(method):
            at = frame.x(place + 0.5 + (order - (len(methods) - 1) / 2) * width)
            inside.append(_whisker(frame, point, at))
        drawn.append(_group(method[0].place, method[0].name, "".join(inside)))
    return _svg(HEIGHT, what, frame.axes(x_title, groups) + "".join(drawn))


def row_chart(rows: Sequence[Measured], x_title: str, what: str) -> str:
    """One row per method: its name, and below it its value with its error."""
    tops = [row.value + _known(row.error) for row in rows]
    marks = ticks(0.0, max(tops))
    left, right = 8, WIDTH - 16
    bottom = 6 + _ROW * len(rows)

    def x(value: float) -> float:
        return round(left + value / marks[-1] * (right - left), 1)

    parts = [f'<line class="grid" x1="{x(mark)}" x2="{x(mark)}" y1="4" y2="{bottom}"/>' for mark in marks]
    parts += [f'<text x="{x(mark)}" y="{bottom + 15}" text-anchor="middle">{number(mark)}</text>' for mark in marks]
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 32}" text-anchor="middle">{text(x_title)}</text>')
    for place, row in enumerate(rows):
        y, at, error = 30 + _ROW * place, x(row.value), _known(row.error)
        inside = f'<line class="w" x1="{x(max(row.value - error, 0))}" x2="{x(row.value + error)}" y1="{y}" y2="{y}"/>'
        name = f'<text class="name" x="{left + 2}" y="{y - 12}">{text(row.name)}</text>'
        parts.append(name + _group(row.place, f"{row.name}: {row.value:.3f}", inside + _shape(row.place, at, y)))
    return _svg(bottom + 36, what, "".join(parts))


def key_mark(place: int) -> str:
    """The line and the point of a method, as a key shows them."""
    inside = f'<path class="l" d="M0 6L34 6"/>{_shape(place, 17, 6)}'
    return f'<svg viewBox="0 0 34 12" aria-hidden="true" class="s s{place}">{inside}</svg>'


def _known(error: float) -> float:
    return 0.0 if math.isnan(error) else error


def _whisker(frame: _Frame, point: Measured, at: float) -> str:
    error = _known(point.error)
    low, high = frame.y(max(point.value - error, 0.0)), frame.y(point.value + error)
    line = f'<line class="w" x1="{at}" x2="{at}" y1="{low}" y2="{high}"/>' if error else ""
    return line + _shape(point.place, at, frame.y(point.value))


def _shape(place: int, x: float, y: float, kind: str = "p", size: float = 4.5) -> str:
    """Circle, square, diamond, triangle, cross or bar, by method; colours having come round, shapes are others."""
    corners = [
        "",
        "-1,-1 1,-1 1,1 -1,1",
        "0,-1.3 1.3,0 0,1.3 -1.3,0",
        "0,-1.3 1.2,1 -1.2,1",
        "-.4,-1.2 .4,-1.2 .4,-.4 1.2,-.4 1.2,.4 .4,.4 .4,1.2 -.4,1.2 -.4,.4 -1.2,.4 -1.2,-.4 -.4,-.4",
        "-.5,-1.3 .5,-1.3 .5,1.3 -.5,1.3",
    ][5 if place < 0 else (place + place // 6) % 6]
    if not corners:
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="{size}"/>'
    around = " ".join(
        f"{x + float(dx) * size:.1f},{y + float(dy) * size:.1f}"
        for dx, dy in (pair.split(",") for pair in corners.split())
    )
    return f'<polygon class="{kind}" points="{around}"/>'


def _group(place: int, name: str, inside: str, *, many: bool = False) -> str:
    return f'<g class="s s{place}{" many" if many else ""}"><title>{text(name)}</title>{inside}</g>'


def _svg(height: float, what: str, inside: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{text(what)}">{inside}</svg>'
