"""Alternating least squares by the package `implicit`, on a split that `bouquet data export` wrote.

$ python als.py SPLIT scores.parquet
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from implicit.als import AlternatingLeastSquares
from scipy.sparse import csr_matrix


def main(split: Path, out: Path) -> None:
    """Learn from the training items alone, and score all items for all users."""
    users = pd.read_parquet(split / "users.parquet")["user"]
    items = pd.read_parquet(split / "items.parquet")["item"]
    train = pd.read_parquet(split / "train.parquet")
    rows = pd.Index(users).get_indexer(train["user"])
    columns = pd.Index(items).get_indexer(train["item"])
    matrix = csr_matrix((np.ones(len(train), np.float32), (rows, columns)), shape=(len(users), len(items)))

    model = AlternatingLeastSquares(factors=64, regularization=0.05, iterations=15, random_state=0, num_threads=1)
    model.fit(matrix, show_progress=False)
    scores = model.user_factors @ model.item_factors.T

    table = {"user": np.repeat(users, len(items)), "item": np.tile(items, len(users)), "score": scores.ravel()}
    pd.DataFrame(table).to_parquet(out, index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
