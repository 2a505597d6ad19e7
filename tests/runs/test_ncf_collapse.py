"""Training of small networks does not collapse: the most popular items stay apart whatever the seed."""

import pytest

from tests.runs.helpers import run_here, small_settings


@pytest.mark.parametrize("seed", [1, 2])
def test_a_small_network_ranks_whatever_the_seed(tmp_path, seed):
    """FedNCF with Adam on the server, which moves a network of 8 units as fast as a table.

    Without a bias of the output, the same settings end at NDCG@10 .010 and .007 (chance: .006), though the loss falls:
    what scored best was what no unit answered to. With it they end at .055 and .060, and popularity has .045.
    """
    settings = small_settings(
        tmp_path,
        dataset="synthetic",
        data_file="",
        time_column="",
        batch_size=2048,
        strategy="fcf",
        backbone="ncf",
        ncf_hidden="8,8",
        embedding_size=8,
        init_scale=0.1,
        num_server_rounds=60,
        evaluate_every=60,
        seed=seed,
    )
    directory = run_here(tmp_path / "run", settings, 1)
    assert directory.read_summary()["validation"]["full"]["NDCG@10"] > 0.045
