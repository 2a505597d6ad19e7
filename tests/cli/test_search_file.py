"""Files of searches: mistakes are one sentence each, and those of the project keep its protocol."""

from __future__ import annotations

import pytest

from bouquet.errors import ConfigError
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_space import Parameter
from bouquet.experiments.settings import same_as
from bouquet.methods import METHODS, PLUG_INS
from tests.cli.searches import SEARCH
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("trials = 4", "", "'trials' is missing."),
        ("trials = 4", "trials = 0", "'trials' cannot be 0"),
        ("random-trials = 2", 'sampler = "grid"', "'sampler' cannot be 'grid'"),
        ("random-trials = 2", "random-trail = 2", "there is no key 'random-trail'. Did you mean 'random-trials'?"),
        ('label = "FedAvg"', 'labl = "FedAvg"', "there is no key 'labl' in row 1. Did you mean 'label'?"),
        ('name = "even"', 'name = "plain"', "There are two rows 'plain'."),
        ('label = "FedAvg"', 'centralized = "ease"', "row 'plain' is centralized: such a row chooses its settings"),
        ("log-uniform = [0.001, 1.0]", "log-unifrom = [0.001, 1.0]", "Did you mean 'log-uniform'?"),
        ("{log-uniform = [0.001, 1.0]}", "0.1", "'learning-rate' must be searched by one of log-uniform, uniform"),
        ("[0.001, 1.0]", "[1.0, 0.001]", "'learning-rate' needs log-uniform = [lowest, highest], two numbers in this"),
        ("[0.001, 1.0]", "[0.0, 1.0]", "so its lowest value must be above 0, not 0.0."),
        ("log-uniform = [0.001", "uniform = [0.0", "Row 'plain': 'learning-rate' must be a number greater than 0"),
        ("log-uniform = [0.001", "integer = [0.5", "'learning-rate' needs integer = [lowest, highest], two whole"),
        ("choices = [2, 4, 8]", "choices = [2]", "the choices of 'embedding-size' must be two or more different"),
        ("choices = [2, 4, 8]", "choices = [2, 2.5]", "'embedding-size' must be a whole number, not 2.5."),
        ("embedding-size = {choices", "embeding-size = {choices", "There is no setting 'embeding-size'. Did you mean"),
        ("embedding-size = {choices", "split-seed = {choices", "'split-seed' is the same for all trials of a row"),
        ("embedding-size = {choices", "patience = {choices", "'patience' is the same for all trials"),
        ("embedding-size = {choices", "seed = {choices", "'seed' is the same for all trials"),
        ('{strategy = "fcf"}', '{strategy = "fcf", learning-rate = 0.1}', "'learning-rate' is set and searched"),
        ('{strategy = "fcf"}', '{strategy = "fcf", seed = 1}', "'seed' is set by the search for every trial"),
        ('{strategy = "fcf"}', '{strategy = "fcf", split-seed = 1}', "'split-seed' is 0 in row 'plain' and 1 in row"),
        ("embedding-size = {choices", "fedca-k = {choices", "'fedca-k' is a setting of fedca, and this run uses fcf"),
        ('[search]\nlearning-rate = {log-uniform = [0.001, 1.0]}', "", "Row 'plain': there is nothing to search"),
        ("evaluate-every = 1", 'split = "ratio"\nvalidation-share = 0.0', "without validation items there is nothing"),
        (
            "[search]\n",
            "[search]\nupdate-noise = {uniform = [0.1, 1.0]}\n",
            "Row 'plain': update-noise is a multiple of update-clip",
        ),
        (
            "[search]\n",
            "[search]\nupdate-noise = {uniform = [0.0, 1.0]}\n",
            "Row 'plain': with update-noise = 1.0, update-noise is a multiple of update-clip",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_the_file(tmp_path, old, new, sentence):
    path = tmp_path / "search.toml"
    assert old in SEARCH
    path.write_text(SEARCH.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        rows_of(read_search_file(path), tmp_path, [])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_that_need_each_other_can_be_searched_together(tmp_path):
    beside = "[search]\nupdate-clip = {choices = [0.5, 1.0]}\nupdate-noise = {uniform = [0.1, 1.0]}\n"
    (tmp_path / "search.toml").write_text(SEARCH.replace("[search]\n", beside, 1))
    assert "update-noise" in rows_of(read_search_file(tmp_path / "search.toml"), tmp_path, [])[0].space


def test_settings_go_over_one_another_and_a_row_can_have_its_own_range(tmp_path):
    (tmp_path / "base.toml").write_text("batch-size = 4\nlocal-epochs = 4\nlearning-rate = 0.4\n")
    text = SEARCH.replace('label = "FedAvg"', 'config = "base.toml"\nsettings = {local-epochs = 3}')
    text += "learning-rate = {uniform = [0.1, 0.2]}\n"
    (tmp_path / "search.toml").write_text(text)
    plain, even = rows_of(read_search_file(tmp_path / "search.toml"), tmp_path, ["max-users=130"])
    assert [plain.settings[key] for key in ("batch-size", "local-epochs", "max-users")] == [4, 3, 130]
    assert plain.space["learning-rate"] == Parameter("log-uniform", (0.001, 1.0))
    assert even.space["learning-rate"] == Parameter("uniform", (0.1, 0.2))


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "search").glob("*.toml")), ids=lambda path: path.stem)
def test_searches_of_the_project_are_sound(path):
    rows = rows_of(read_search_file(path), path.parent, ['data-dir="/data"'])
    assert {row.settings["data-dir"] for row in rows} == {"/data"}
    assert f"bouquet search configs/search/{path.name}" in path.read_text()


# docs/results/protocol.md, "Settings" and "Rounds".
PROTOCOL = {
    "learning-rate": Parameter("log-uniform", (0.01, 1.0)),
    "user-learning-rate": Parameter("log-uniform", (0.1, 10.0)),
    "local-epochs": Parameter("integer", (1, 5)),
    "negatives-per-positive": Parameter("integer", (1, 8)),
    "embedding-size": Parameter("choices", (8, 16, 32, 64)),
    "server-optimizer": Parameter("choices", ("adam", "sgd")),
    "server-learning-rate": Parameter(
        "log-uniform", (0.003, 0.3), condition=("server-optimizer", "adam"), otherwise=1.0
    ),
}
ADAM = {
    "learning-rate": Parameter("log-uniform", (0.0003, 0.03)),
    "user-learning-rate": Parameter("log-uniform", (0.1, 10.0), times="learning-rate"),
}
# "Fewer columns and epochs, once".
NARROWER = {
    "lastfm-2k-parts": {
        "local-epochs": Parameter("integer", (1, 2)),
        "embedding-size": Parameter("choices", (8, 16, 32)),
    }
}
SERVER = {"server-optimizer", "server-learning-rate"}
# What a row cannot have, by its strategy or backbone.
WITHOUT = {
    "local": SERVER,
    "fedca": SERVER,
    "pfedgraph": SERVER,
    "hetefedrec": {"embedding-size"},
    "gru4rec": {"user-learning-rate"},
}
# All but the first look at a small scale.
DECLARED = [path for path in sorted((REPOSITORY / "configs" / "search").glob("*.toml")) if "small" not in path.stem]


def declared_rows():
    return [(path, row) for path in DECLARED for row in rows_of(read_search_file(path), path.parent, [])]


@pytest.mark.parametrize("path", DECLARED, ids=lambda path: path.stem)
def test_declared_searches_have_the_space_and_the_rounds_of_the_protocol(path):
    search = read_search_file(path)
    assert (search.trials, search.seed, search.sampler) == (30, 0, "tpe")
    for row in rows_of(search, path.parent, []):
        settings = row.settings
        few_at_once = settings["fraction-train"] < 0.05
        leaky = "leaky" in path.stem
        rounds = [100 if leaky else 500, 20 if few_at_once else 5, 6]
        assert [settings[key] for key in ("num-server-rounds", "evaluate-every", "patience")] == rounds
        assert settings["train-negatives"] == ("paper" if leaky else "honest")
        assert path.stem.startswith(settings["dataset"])
        left_out = WITHOUT.get(settings["strategy"], set()) | WITHOUT.get(settings["backbone"], set())
        shared = {key: value for key, value in PROTOCOL.items() if key not in left_out}
        if settings["optimizer"] == "adam":
            shared |= ADAM
        shared |= NARROWER.get(path.stem, {})
        assert {key: row.space.get(key) for key in shared} == shared, row.name
        assert not left_out & row.space.keys()
        own = {key for key in row.space if key not in PROTOCOL}
        methods = (settings["strategy"], settings["personalization"])
        assert {key for key in own if not key.startswith(methods)} <= {"ace-hidden-layers", "exchange"}


def test_every_private_rate_is_searched_over_what_the_protocol_says():
    """Wherever a method has such a rate, its rows search it by the same range; a plug-in without a table has none."""
    rates = {key for key, other in same_as().items() if other == "learning-rate"} - {"user-learning-rate"}
    rates -= {"ace-learning-rate"}  # of a network that travels
    assert rates == {"plgc-learning-rate", "fedrap-personal-learning-rate", "fed3cr-personal-learning-rate"}
    range_ = Parameter("log-uniform", (0.01, 100.0), times="learning-rate")
    for path, row in declared_rows():
        has = {key for key in rates if key.startswith((row.settings["strategy"], row.settings["personalization"]))}
        if row.settings["plgc-tables"] == "base" or row.settings["plgc-mixing"] == "none":
            has.discard("plgc-learning-rate")
        assert {key for key in rates if key in row.space} == has, (path.name, row.name)
        assert all(row.space[key] == range_ for key in has)


def test_every_method_that_trains_a_model_has_a_declared_search():
    searched = {row.settings["strategy"] for _, row in declared_rows()}
    searched |= {row.settings["personalization"] for _, row in declared_rows()}
    trained = {name for name, method in METHODS.items() if method.kind == "gradients"} | set(PLUG_INS)
    assert trained <= searched
