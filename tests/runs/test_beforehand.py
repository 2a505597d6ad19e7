"""What cannot work is refused before the first round by server or nodes alone, as under a plain `flwr run`."""

import pytest

from bouquet.engines.local import LocalGrid
from bouquet.errors import BouquetError, ConfigError
from bouquet.experiments.settings import validate
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TRAIN
from tests.runs.helpers import run_here, small_settings

IMPOSSIBLE = {
    "noise without a scale": (
        {"update-noise": 1.0},
        "update-noise is a multiple of update-clip: set update-clip, for example to 1.0.",
    ),
    "a weight of nobody": (
        {"strategy": "cf-fedsr", "cf-fedsr-a": 0.0, "cf-fedsr-b": 0.0},
        "With cf-fedsr-a and cf-fedsr-b both 0 every user weighs nothing (eq. 9)",
    ),
    "a long term that is short": (
        {"strategy": "cf-fedsr", "cf-fedsr-long-term": 5, "cf-fedsr-short-term": 5},
        "cf-fedsr-long-term must be above cf-fedsr-short-term, and 5 is not above 5.",
    ),
    "more vectors than dimensions": (
        {"strategy": "fedca", "fedca-k": 9, "embedding-size": 8},
        "A table of embedding-size 8 has no 9 singular vectors: fedca-k must be at most embedding-size, not 9.",
    ),
    "noise on features that stay": (
        {"strategy": "fedca", "fedca-beta": 0.0, "fedca-ldp-delta-features": 0.1},
        "With fedca-beta = 0 no singular vectors are uploaded",
    ),
    "protections of fedca": (
        {"strategy": "fedca", "update-clip": 1.0},
        "fedca's server must know what a device's table has become",
    ),
    "protections of nothing": (
        {"strategy": "local", "decoy-rows": 3},
        "With strategy 'local' no update leaves a node",
    ),
    "a group of nobody": (
        {"strategy": "hetefedrec", "hetefedrec-ratio": "5:0:5"},
        "'hetefedrec-ratio' must be whole numbers above 0 with ':' between them, such as '5:3:2', not '5:0:5'.",
    ),
    "sizes that fall": (
        {"strategy": "hetefedrec", "hetefedrec-sizes": "8,4,16"},
        "hetefedrec-sizes must rise, and '8,4,16' does not.",
    ),
    "a group without a size": (
        {"strategy": "hetefedrec", "hetefedrec-sizes": "8,16"},
        "hetefedrec-ratio '5:3:2' makes 3 groups, and hetefedrec-sizes '8,16' has 2 sizes",
    ),
    "networks of a size": (
        {"strategy": "hetefedrec", "exchange": "embedding"},
        "hetefedrec's networks belong to a size and travel with it, so exchange must be 'all'.",
    ),
    "score functions that travel": (
        {"strategy": "pfedrec", "exchange": "all"},
        "pfedrec's networks are part of a user's score function and stay: leave exchange out.",
    ),
    "two item tables": (
        {"strategy": "fedca", "personalization": "plgc"},
        "fedca already decides how a device uses its item table",
    ),
    "heads of unequal width": (
        {"backbone": "sasrec", "sasrec-heads": 3, "embedding-size": 16},
        "sasrec-heads must divide embedding-size, and 3 does not divide 16.",
    ),
    "a hidden layer of nothing": (
        {"backbone": "ncf", "ncf-hidden": "16,0"},
        "'ncf-hidden' must be whole numbers above 0 with ',' between them, such as '16,8', not '16,0'.",
    ),
    "words for widths": (
        {"backbone": "lightgcn", "lightgcn-hidden": "wide"},
        "'lightgcn-hidden' must be whole numbers above 0 with ',' between them, such as '8,8', not 'wide'.",
    ),
    "a device that is none": (
        {"device": "banana"},
        "'device' must be 'cpu', 'cuda', or 'cuda:N' with the number of a GPU, not 'banana'.",
    ),
    "a backend of another device": (
        {"device": "cuda", "backend": "numba"},
        "backend 'numba' runs on the CPU only, and device is 'cuda'",
    ),
    "rounds that end too early": (
        {"enough-reply-fraction": 0.3},
        "A round that goes on with 0.3 of its users' replies (enough-reply-fraction) would fail for want of 0.5",
    ),
    "a rule of the other split": (
        {"split": "ratio", "hold-out": "random"},
        "hold-out says which interaction 'leave-one-out' holds out, and split is 'ratio'",
    ),
}
# What only the place where training happens can know.
OF_THE_NODE = {
    "a GPU that is not there": ({"device": "cuda:99"}, "device is 'cuda:99', and where training would happen there is"),
    "a secret that is not there": ({"secret-draws": True}, "secret-draws needs a secret on every node"),
}


class Untrained(LocalGrid):
    """Nodes that nobody may ask to train."""

    def _answer(self, message):
        assert message.metadata.message_type != TRAIN, "training has begun"
        return super()._answer(message)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_the_command_line_refuses_it_in_one_sentence(name):
    settings, sentence = IMPOSSIBLE[name]
    with pytest.raises(ConfigError) as error:
        validate(settings)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [*IMPOSSIBLE, *OF_THE_NODE])
def test_server_or_nodes_refuse_it_before_training(tmp_path, name):
    changes, sentence = {**IMPOSSIBLE, **OF_THE_NODE}[name]
    settings = small_settings(tmp_path) | {"hetefedrec-sizes": "2,3,4"} | changes
    with pytest.raises(BouquetError) as error:
        run_here(tmp_path / "run", settings, 2, Untrained)
    assert sentence in str(error.value)
    assert RunDirectory(tmp_path / "run").rounds() == []
