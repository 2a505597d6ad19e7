"""The example of another library's model: `implicit` on a split of ours, evaluated to the digit as a scorer of ours."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from bouquet.evaluation import evaluate_users
from bouquet.experiments.exported import write_ground
from bouquet.experiments.foreign import evaluate
from bouquet.experiments.ground import ground_of
from bouquet.experiments.settings import resolve
from bouquet.extras import is_there
from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "examples" / "implicit-als" / "als.py"


@pytest.mark.skipif(not is_there("implicit"), reason="the package implicit, which this example uses, is not installed")
def test_its_scores_are_evaluated_as_those_of_ours(tmp_path, real_data):
    """HR@10 .143 and NDCG@10 .075 (full) on MovieLens-100K, as its page says; rows are matched by id, not by place."""
    ground = ground_of(resolve(None, [f'dataset="ml-100k" data-dir="{real_data("ml-100k")}"']))
    write_ground(ground, tmp_path / "split")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "split"), str(tmp_path / "scores.parquet")]
    subprocess.run(command, check=True, timeout=300)
    table = pd.read_parquet(tmp_path / "scores.parquet")
    scores = table.pivot(index="user", columns="item", values="score").loc[ground.user_ids, ground.item_ids].to_numpy()
    ours = evaluate_users(lambda rows: scores[rows], **ground.for_evaluation())
    found = evaluate(tmp_path / "scores.parquet", tmp_path / "split")
    assert np.array_equal(found.values, ours, equal_nan=True)
    assert (found.summary["leaky"], found.summary["remarks"]) == (False, [])
    # Another processor sums in another order, and a few users' items change places.
    assert found.summary["test"]["full"]["HR@10"] == pytest.approx(0.143, abs=0.01)
    assert found.summary["test"]["full"]["NDCG@10"] == pytest.approx(0.075, abs=0.005)
