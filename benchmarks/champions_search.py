"""`python -m benchmarks.champions_search --data-dir DIR --dataset NAME`: settings of champions, chosen on validation.

Sequential rules, sequential ridge (SLIST) and EASE, and ideas beside them, are fitted on training items and compared by
NDCG@10 over the whole catalogue, on the validation items of at most 2,000 users. The test items are ranked for the
settings that are chosen only: the defaults, and the best ones of this data set. Figures go to `--out` as they come; a
search that is started again goes on from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.champions import Ease, Mix, Popularity, Ridge, Rules, Setting, Sums
from bouquet.config import RunConfig
from bouquet.evaluation import METRICS, evaluate_users, paired_test, rank_full, summarise, user_metrics
from bouquet.ragged import one_after_another
from bouquet.randomness import Purpose, generator
from client_app.node.histories import Histories, histories_of, interactions_of

VALIDATION_USERS = 2000
NDCG = METRICS.index("NDCG@10")

# The best ones on validation over MovieLens-100K, -1M and latest-small, Wikipedia and Beauty together.
RULES = Rules(source=0.5, target=0.2)
RIDGE = Ridge(backward=0.25)
EASE = Ease(recency=0.7)


def validation_users(histories: Histories) -> NDArray[np.int64]:
    """Those who hold an item out for validation, in order; of more than 2,000 so many drawn at random."""
    some = np.flatnonzero(histories.validation.lengths)
    if len(some) <= VALIDATION_USERS:
        return some
    draws = generator(histories.split_seed, 0, Purpose.USERS, "validation")
    return np.sort(draws.choice(some, VALIDATION_USERS, replace=False))


class Search:
    """Settings on the validation items of one data set.

    Attributes:
        tried: name of a setting -> [k] NDCG@10 of the validation users.
    """

    def __init__(self, histories: Histories, path: Path) -> None:
        self.sums = Sums(histories.train, histories.num_items)
        some = validation_users(histories)
        self._read, self._wanted = histories.train.take(some), histories.validation.take(some)
        self._path = path
        self.tried: dict[str, NDArray[np.float64]] = dict(np.load(path)) if path.exists() else {}

    def values(self, setting: Setting) -> NDArray[np.float64]:
        """[k] NDCG@10 of each user."""
        name = label(setting)
        if name not in self.tried:
            scores = setting.scorer(self.sums)(self._read)
            self.tried[name] = user_metrics(rank_full(scores, self._wanted, self._read))[:, NDCG]
            print(f"{self.tried[name].mean():.4f}  {name}", flush=True)
        return self.tried[name]

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The setting of the highest mean, the first one among equals."""
        found = [float(self.values(setting).mean()) for setting in settings]
        np.savez(self._path, **self.tried)  # type: ignore[arg-type]
        return settings[int(np.argmax(found))]


def label(setting: Setting) -> str:
    """The setting with what differs from the champions' first settings, as in "Rules(window=20)"."""
    if isinstance(setting, Mix):
        return f"{label(setting.first)} + {setting.weight:g} {label(setting.second)}"
    parts = ((field, getattr(setting, field.name)) for field in fields(setting))  # type: ignore[arg-type]
    return f"{type(setting).__name__}({', '.join(f'{f.name}={value}' for f, value in parts if value != f.default)})"


def rules_grid() -> list[Setting]:
    """Window, decay, share of the other direction, and normalisation by source and target."""
    norms = ((0.2, 0.2), (0.3, 0.3), (0.5, 0.5), (0.5, 0.2), (0.7, 0.2))
    grid = product((5, 10, 20, 50), (0.3, 0.5, 0.7, 1.0), (0.0, 0.25, 0.5, 1.0), norms)
    return [Rules(window, decay, *norm, backward) for window, decay, backward, norm in grid]


def ridge_grid() -> list[Setting]:
    """Decay, λ and the share of the other direction."""
    grid = product((0.3, 0.5, 0.7, 1.0), (30.0, 100.0, 300.0, 1000.0, 3000.0), (0.0, 0.25, 0.5))
    return [Ridge(decay, ridge, backward=backward) for decay, ridge, backward in grid]


def ease_grid() -> list[Setting]:
    """λ, and the weight of newer items when a history is scored."""
    grid = product((30.0, 100.0, 300.0, 1000.0, 3000.0), (0.0, 0.3, 0.5, 0.7, 1.0))
    return [Ease(ridge, recency) for ridge, recency in grid]


def rules_ideas(base: Rules) -> Iterator[tuple[str, Setting]]:
    """Ideas beside the rules, one at a time."""
    for recency in (0.3, 0.5, 0.7, 1.0, 1.4):
        yield "another decay of scoring", replace(base, recency=recency)
    for reach in (1, 3, 5, 10, 20, 50):
        yield "another window of scoring", replace(base, reach=reach)
    for source, target in product((0.0, 0.2, 0.3, 0.5, 0.7), repeat=2):
        yield "normalisation by source and target", replace(base, source=source, target=target)
    for groups in ((1.0, 1.0, 1.0), (1.0, 0.5, 0.25), (1.0, 0.3, 0.1), (1.0, 2.0, 2.0)):
        yield "a matrix per group of lags", replace(base, groups=groups)
    for weight in (0.03, 0.1, 0.3):
        yield "popularity", Mix(base, Popularity(), weight)
        yield "late popularity", Mix(base, Popularity(late=True), weight)
    for shrinkage in (0.3, 1.0, 3.0, 10.0):
        yield "shrinkage", replace(base, shrinkage=shrinkage)
    for power in (0.1, 0.25, 0.5, 1.0):
        yield "users by n^-p", replace(base, user_power=power)
    for columns in (25, 50, 100, 200):
        yield "top columns", replace(base, columns=columns)


def ridge_ideas(base: Ridge, rules: Rules, ease: Ease) -> Iterator[tuple[str, Setting]]:
    """Ideas beside the ridge, one at a time; those that need another factorisation last."""
    for recency in (0.3, 0.5, 0.7, 1.0, 1.4):
        yield "another decay of scoring", replace(base, recency=recency)
    for target in (-0.2, -0.1, 0.1, 0.2, 0.3):
        yield "normalisation by target", replace(base, target=target)
    for foresight in (1.0, 2.0, 3.0):
        yield "later items as targets", replace(base, foresight=foresight)
    for backward in (0.0, 0.1, 0.25, 0.5, 1.0):
        yield "backward", replace(base, backward=backward)
    for weight in (0.25, 0.5, 1.0, 2.0):
        yield "with rules", Mix(base, rules, weight)
        yield "with EASE", Mix(base, ease, weight)
    yield "zero diagonal", replace(base, no_diagonal=True)
    for columns in (25, 50, 100, 200):
        yield "top columns", replace(base, columns=columns)
    for ridge_power, factor in product((0.25, 0.5, 1.0), (0.3, 1.0, 3.0)):
        yield "λ by item", replace(base, ridge_power=ridge_power, ridge=base.ridge * factor)
    for user_power, factor in product((0.25, 0.5), (0.1, 0.3, 1.0)):
        yield "users by n^-p", replace(base, user_power=user_power, ridge=base.ridge * factor)


def searched(search: Search) -> dict[str, dict[str, Setting]]:
    """The settings that validation chose: part of the search -> idea -> its best setting, printed as they come."""
    grids = {"rules": rules_grid(), "ridge": ridge_grid(), "EASE": ease_grid()}
    found = {name: {"grid": search.best(grid)} for name, grid in grids.items()}
    rules, ridge, ease = (chosen["grid"] for chosen in found.values())
    assert isinstance(rules, Rules)
    assert isinstance(ridge, Ridge)
    assert isinstance(ease, Ease)
    for name, base, ideas in (
        ("rules", RULES, rules_ideas(RULES)),
        ("rules, best", rules, rules_ideas(rules)),
        ("ridge", RIDGE, ridge_ideas(RIDGE, RULES, EASE)),
        ("ridge, best", ridge, ridge_ideas(ridge, rules, ease)),
    ):
        by_idea: dict[str, list[Setting]] = {}
        for idea, setting in ideas:
            by_idea.setdefault(idea, []).append(setting)
        found[f"{name}, ideas"] = {"as it is": base} | {idea: search.best(tried) for idea, tried in by_idea.items()}
    return found


def idea_table(search: Search, chosen: dict[str, Setting]) -> Iterator[str]:
    """What each idea adds to the first of them, in percent, with the standard error of the paired difference."""
    base, *_ = (search.values(setting) for setting in chosen.values())
    yield "| idea | best setting | NDCG@10 | change |\n| --- | --- | --- | --- |"
    for idea, setting in chosen.items():
        difference = paired_test(search.values(setting), base, draws=1)
        change, error = (100 * figure / base.mean() for figure in (difference.mean, difference.standard_error))
        yield f"| {idea} | `{label(setting)}` | {search.values(setting).mean():.4f} | {change:+.1f} ± {error:.1f} % |"


def tested(sums: Sums, histories: Histories, setting: Setting) -> list[float]:
    """HR@10 and NDCG@10 of all users at test: after all that is known by then, and after the training items alone."""
    scores, train = setting.scorer(sums), histories.train
    figures = []
    for read in (one_after_another(train, histories.validation), train):
        values = evaluate_users(
            lambda rows, read=read: scores(read.take(rows)),  # type: ignore[misc]
            num_items=histories.num_items,
            train=train,
            validation=histories.validation,
            test=histories.test,
            candidates=histories.candidates,
        )
        means = summarise(values)["test"]["full"]  # of validation, which the first `read` holds, nothing is asked
        figures += [means["HR@10"], means["NDCG@10"]]
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="", help="folder of the data set, or of all data sets")
    parser.add_argument("--dataset", default="ml-100k", help="a set that has times")
    parser.add_argument("--max-users", type=int, default=0, help="a random sample of so many users; 0: all")
    parser.add_argument("--out", type=Path, default=Path("champions"), help="folder for the figures of each setting")
    given = parser.parse_args(arguments)
    config = RunConfig(dataset=given.dataset, data_dir=given.data_dir, max_users=given.max_users)
    histories = histories_of(interactions_of(config), config)
    if not histories.in_time:
        parser.error(f"'{given.dataset}' has no times, and all of this is about order.")
    given.out.mkdir(parents=True, exist_ok=True)
    search = Search(histories, given.out / f"{given.dataset}.npz")
    found = searched(search)
    for name, chosen in found.items():
        print(f"\n### {name}\n", *idea_table(search, chosen), sep="\n")
    print("\n| test | HR@10 | NDCG@10 | HR@10, training | NDCG@10, training |\n| --- | --- | --- | --- | --- |")
    final: list[Setting] = [RULES, RIDGE, EASE, *(found[name]["grid"] for name in ("rules", "ridge", "EASE"))]
    for setting in final:
        figures = " | ".join(f"{figure:.4f}" for figure in tested(search.sums, histories, setting))
        print(f"| `{label(setting)}` | {figures} |", flush=True)


if __name__ == "__main__":
    main()
