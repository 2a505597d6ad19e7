"""Who is served how well: the distribution over users, and groups of users by how active they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bouquet.experiments.figures import figure as in_digits
from bouquet.experiments.page import drawing, markup
from bouquet.experiments.page.content import Activity, Content, Shown
from bouquet.experiments.page.drawing import Measured, Point
from bouquet.experiments.page.results import TESTED, title_of, with_error
from bouquet.experiments.page.training import key_of

# More steps than a chart has dots.
_MOST_STEPS = 200


def users_section(content: Content) -> str:
    """The distribution of NDCG@10 over users, the same by activity, and variances."""
    methods = content.methods
    lines = [drawing.Lines(s.place, s.name, [survival(_of_all_seeds(s))]) for s in methods]
    chart = drawing.line_chart(
        lines, "NDCG@10 of a user, all items", "Share of users whose NDCG@10 is at least so much"
    )
    drawings = [
        markup.figure("Share of users who have at least so much", "higher is better; the left end is HR@10", chart)
    ]
    words = "A mean hides for whom a method works."
    if content.activity:
        groups = [activity.words for activity in content.activity]
        points = [[_of_group(shown, activity) for activity in content.activity] for shown in methods]
        chart = drawing.group_chart(groups, points, "training interactions of a user", "NDCG@10 by activity of users")
        drawings.append(
            markup.figure("NDCG@10 by activity", "quarters of the users; ± one standard error", chart, _behind(content))
        )
    else:
        words += " How active users are is not in these folders: an older version wrote them."
    return markup.section(
        "users",
        "Users",
        markup.paragraph(words),
        markup.figures(key_of(methods), drawings),
        _spread(content),
    )


def _of_all_seeds(shown: Shown) -> NDArray[np.float64]:
    """[seeds n] values of users: a mean over seeds would be of nobody."""
    return np.concatenate([run.per_user(*TESTED) for run in shown.result.runs])


def survival(values: NDArray[np.float64]) -> list[Point]:
    """(x, share of users with a value of at least x) for every value above 0 that a user has, from left to right.

    Args:
        values: [n] in [0, 1], NaN for users not evaluated.
    """
    known = np.sort(values[~np.isnan(values)])
    steps = np.unique(known[known > 0])
    if not len(steps):
        return [(0.0, 0.0), (1.0, 0.0)]
    if len(steps) > _MOST_STEPS:
        steps = steps[np.linspace(0, len(steps) - 1, _MOST_STEPS).round().astype(int)]
    share = 1.0 - np.searchsorted(known, steps, side="left") / len(known)
    points, before = [(0.0, float(share[0]))], float(share[0])
    for x, y in zip(steps.tolist(), share.tolist(), strict=True):
        # The share stays until x and falls behind it.
        points += [(last_x, y) for last_x in [points[-1][0]] if y != before]
        points.append((x, y))
        before = y
    return [*points, (points[-1][0], 0.0)]


def _of_group(shown: Shown, activity: Activity) -> Measured:
    values = shown.result.by_user(TESTED)[activity.members]
    values = values[~np.isnan(values)]
    mean = float(values.mean()) if len(values) else 0.0
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return Measured(shown.place, shown.name, mean, error)


def _behind(content: Content) -> str:
    lines = []
    for activity in content.activity:
        points = [_of_group(shown, activity) for shown in content.methods]
        figures = [with_error(point.value, point.error) for point in points]
        lines.append([activity.words, f"{len(activity.members):,}", *figures])
    header = ["training interactions", "users", *(title_of(shown) for shown in content.methods)]
    return markup.table("NDCG@10 among all items.", header, lines)


def _spread(content: Content) -> str:
    lines: list[Sequence[str]] = []
    header = ["method", "variance, all items", "of 100"]
    if content.activity:
        header += ["NDCG@10, least active", "most active", "gap"]
    for shown in content.methods:
        line = [title_of(shown), *(in_digits(shown.result.fairness(kind)) for kind in ("full", "sampled-99"))]
        if content.activity:
            least, most = (_of_group(shown, content.activity[end]).value for end in (0, -1))
            line += [in_digits(least), in_digits(most), in_digits(most - least)]
        lines.append(line)
    return markup.table(
        "Fairness: variance over users of HR@10 + NDCG@10, lower is fairer at the same mean; and groups by activity.",
        header,
        lines,
    )
