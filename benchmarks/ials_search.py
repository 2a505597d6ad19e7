"""`python -m benchmarks.ials_search --data-dir DIR --dataset NAME …`: settings of iALS, chosen on validation.

iALS is solved exactly, with all data in one place, and compared by NDCG@10 over the whole catalogue on the validation
items of at most 2,000 users of each set. No test item is looked at. A column is a setting α0 / λ; the last line is the
mean over sets of the figure divided by the best one of its set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.champions_search import NDCG, validation_users
from bouquet.config import RunConfig
from bouquet.evaluation import rank_full, user_metrics
from client_app.node.histories import Histories, histories_of, interactions_of
from models.centralized.base import binary_histories
from models.centralized.ials import IALS, IALSParameters

UNOBSERVED = (0.03, 0.1, 0.3, 1.0)
REGULARIZATION = (0.0003, 0.001, 0.003, 0.01)


def figure(histories: Histories, parameters: IALSParameters) -> float:
    """The mean NDCG@10 of the validation users."""
    train, some = histories.train, validation_users(histories)
    model = IALS(parameters).fit(binary_histories(train, histories.num_items))
    read = train.take(some)
    ranks = rank_full(model.scores_after(read), histories.validation.take(some), read)
    return float(user_metrics(ranks)[:, NDCG].mean())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="", help="folder of the data set, or of all data sets")
    parser.add_argument("--dataset", nargs="+", default=["ml-100k"])
    parser.add_argument("--rank", type=int, default=32, help="the size of vectors")
    parser.add_argument("--sweeps", type=int, default=4)
    given = parser.parse_args(arguments)
    grid = list(product(UNOBSERVED, REGULARIZATION))
    print("| set |", " | ".join(f"{a0:g} / {weight:g}" for a0, weight in grid), "|")
    print("| --- |", " | ".join("---:" for _ in grid), "|", flush=True)
    relative = []
    for name in given.dataset:
        config = RunConfig(dataset=name, data_dir=given.data_dir)
        histories = histories_of(interactions_of(config), config)
        found = np.array(
            [figure(histories, IALSParameters(given.rank, a0, weight, sweeps=given.sweeps)) for a0, weight in grid]
        )
        relative.append(found / found.max())
        print(f"| {name} |", " | ".join(f"{value:.4f}" for value in found), "|", flush=True)
    print("| of the best |", " | ".join(f"{value:.2f}" for value in np.mean(relative, axis=0)), "|")


if __name__ == "__main__":
    main()
