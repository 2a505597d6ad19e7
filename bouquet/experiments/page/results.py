"""How good the methods are, and whether they differ: the first part of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bouquet.evaluation import PairedDifference
from bouquet.experiments.comparison import differences_of, how_tested
from bouquet.experiments.figures import figure as in_digits
from bouquet.experiments.figures import probability
from bouquet.experiments.page import drawing, markup
from bouquet.experiments.page.content import Content, Shown
from bouquet.experiments.page.markup import text

COLUMNS = (("full", "HR@10"), ("full", "NDCG@10"), ("sampled-99", "HR@10"), ("sampled-99", "NDCG@10"))
TESTED = ("full", "NDCG@10")
_ALPHA = 0.05


def title_of(shown: Shown) -> str:
    """A method's name as HTML."""
    return text(shown.label) + (markup.LEAKY if shown.leaky else "")


def heading(candidates: str, metric: str) -> str:
    """A metric as the heading of a column."""
    return metric if candidates == "full" else f"{metric} of {int(candidates.removeprefix('sampled-')) + 1}"


def with_error(value: float, error: float) -> str:
    """A figure and its standard error."""
    return in_digits(value) if math.isnan(error) else f"{in_digits(value)} ± {in_digits(error)}"


def results_section(content: Content) -> str:
    """The table, the same as a picture, and paired tests."""
    parts = [
        markup.paragraph(
            "Test items, in the round that is best on validation. HR@10 is the share of users of whom a hidden item is "
            "among the ten that they are shown; NDCG@10 is more the higher it stands. “Of 100” ranks it against 99 "
            "random items only. ± is one standard error over users."
        ),
        _table(content),
        '<div class="group"><div class="figures">'
        + "".join(_row_figure(content, *c) for c in COLUMNS[:2])
        + "</div></div>",
    ]
    if len(content.methods) > 1:
        parts.append(_tests(content))
    return markup.section("results", "Results", *parts)


def _table(content: Content) -> str:
    seeds = any(len(shown.result.runs) > 1 for shown in content.methods)
    backbones = {shown.first.summary.get("backbone") for shown in content.methods}
    header = ["method", *(heading(*column) for column in COLUMNS)]
    header += ["NDCG@10 over seeds"] * seeds + ["best round", "seed"] + ["backbone"] * (len(backbones) > 1)
    lines = []
    for shown in content.methods:
        line = [title_of(shown), *(with_error(shown.value(*column), shown.error(*column)) for column in COLUMNS)]
        if seeds:
            spread = shown.result.seed_error(TESTED)
            line.append("–" if math.isnan(spread) else f"± {in_digits(spread)}")
        line += [shown.result.best_rounds() or "–", ", ".join(str(run.summary["seed"]) for run in shown.result.runs)]
        if len(backbones) > 1:
            line.append(text(shown.first.summary.get("backbone") or "–"))
        lines.append(line)
    for row in content.beside:
        figures = [with_error(_or_nan(row.test[c][m]), _or_nan(row.errors[c][m])) for c, m in COLUMNS]
        lines.append([text(row.label), *figures, *(["–"] * (len(header) - 1 - len(figures)))])
    caption = "Means over users, and over seeds where there are several."
    if content.beside:
        caption += " The last rows are what a run was compared with."
    return markup.table(caption, header, lines)


def _row_figure(content: Content, candidates: str, metric: str) -> str:
    rows = [
        drawing.Measured(shown.place, shown.name, shown.value(candidates, metric), shown.error(candidates, metric))
        for shown in content.methods
    ]
    # What stands beside has no colour of its own.
    rows += [
        drawing.Measured(-1, row.label, _or_nan(row.test[candidates][metric]), _or_nan(row.errors[candidates][metric]))
        for row in content.beside
    ]
    rows = [row for row in rows if not math.isnan(row.value)]
    if not rows:
        return ""
    words = "; ".join(f"{row.name} {row.value:.3f}" for row in rows)
    chart = drawing.row_chart(rows, heading(candidates, metric), f"{metric} at test: {words}")
    return markup.figure(f"{metric} at test", "± one standard error over users", chart)


def _or_nan(value: float | None) -> float:
    """A figure of a JSON document, where one that does not exist is null."""
    return math.nan if value is None else value


def _tests(content: Content) -> str:
    metric = TESTED[1]
    against, *others = content.methods
    values = [shown.result.by_user(TESTED) for shown in content.methods]
    samples = [shown.result.sample(TESTED) for shown in content.methods]
    tests = differences_of([(sample, samples[0]) for sample in samples[1:]])
    lines = []
    for shown, value, (difference, adjusted) in zip(others, values[1:], tests, strict=True):
        counts = _counts(value - values[0])
        line = [title_of(shown), with_error(difference.mean, difference.standard_error), probability(adjusted)]
        lines.append([*line, *(f"{count:,}" for count in counts)])
    caption = (
        f"Difference to {title_of(against)} in {metric} among all items, user by user: {how_tested(tests)}, p adjusted "
        f"for {len(others)} {'tests' if len(others) > 1 else 'test'} (Holm)."
    )
    header = ["method", "difference", "p", "users better", "worse", "the same"]
    return markup.table(caption, header, lines) + markup.paragraph(_verdict(content, tests), "note")


def _counts(difference: np.ndarray) -> Sequence[int]:
    known = difference[~np.isnan(difference)]
    return int((known > 1e-9).sum()), int((known < -1e-9).sum()), int((np.abs(known) <= 1e-9).sum())


def _verdict(content: Content, tests: Sequence[tuple[PairedDifference, float]]) -> str:
    """What the tests say, in a sentence; a leaky run is never called better."""
    against, *others = content.methods
    honest = [(s, d, p) for s, (d, p) in zip(others, tests, strict=True) if s.leaky == against.leaky]
    better = [title_of(s) for s, d, p in honest if p < _ALPHA and d.mean > 0]
    worse = [title_of(s) for s, d, p in honest if p < _ALPHA and d.mean < 0]
    said = []
    if better:
        said.append(f"At the 5 % level better than {title_of(against)}: {', '.join(better)}.")
    if worse:
        said.append(f"{'Worse' if better else f'At the 5 % level worse than {title_of(against)}'}: {', '.join(worse)}.")
    if honest and not said:
        said.append(f"No method differs from {title_of(against)} at the 5 % level.")
    if len(honest) < len(others):
        said.append("Leaky and honest figures are not compared in this sentence: a leak is no merit.")
    return " ".join(said)
