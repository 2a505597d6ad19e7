"""Configuration: every mistake is one sentence that says what would be right."""

import tomllib

import pytest

from bouquet.config import ModelOptions, RunConfig, check, defaults, own, parsed
from bouquet.errors import ConfigError
from bouquet.experiments.settings import option_classes, parse_pairs, resolve, validate
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"strategi": "fedavg"}, "There is no setting 'strategi'. Did you mean 'strategy'?"),
        ({"seed": -1}, "'seed' must be a whole number greater than or equal to 0, not -1."),
        ({"seed": "one"}, "'seed' must be a whole number, not 'one'."),
        ({"seed": True}, "'seed' must be a whole number, not True."),
        ({"num-server-rounds": 1.5}, "'num-server-rounds' must be a whole number, not 1.5."),
        ({"learning-rate": 0}, "'learning-rate' must be a number greater than 0, not 0."),
        ({"learning-rate": float("nan")}, "'learning-rate' must be a number, not nan."),
        ({"fraction-train": 2.0}, "'fraction-train' must be a number less than or equal to 1, not 2.0."),
        ({"split": "leave-two-out"}, "'split' cannot be 'leave-two-out'. Did you mean 'leave-one-out'? "
                                     "Allowed: leave-one-out, ratio, published."),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(settings, sentence):
    with pytest.raises(ConfigError) as error:
        check(settings, [RunConfig])
    assert str(error.value) == sentence
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"strategy": "fedavgg"}, "There is no strategy 'fedavgg'. Did you mean 'fedavg'? Known: "),
        ({"dataset": "ml-100"}, "There is no dataset 'ml-100'. Did you mean 'ml-100k'? Known: "),
        ({"backbone": "mlp"}, "There is no backbone 'mlp'."),
        ({"strategy": "local", "server-optimizer": "sgd"}, "'server-optimizer' is a setting of "),
        ({"dataset": "file"}, "dataset = 'file' needs data-file"),
        ({"data-file": "x.csv"}, "data-file is only read with dataset = 'file'"),
        ({"resume": "a", "out": "b"}, "A resumed run goes on in its own folder"),
    ],
)
def test_impossible_combinations_are_refused(settings, start):
    with pytest.raises(ConfigError) as error:
        validate(settings)
    assert str(error.value).startswith(start)


def test_pairs_are_toml_values_and_bare_words_are_text():
    pairs = parse_pairs("""strategy=fcf seed=3 learning-rate=1e-2 out="a b" data-dir='/x y'""")
    assert pairs == {"strategy": "fcf", "seed": 3, "learning-rate": 0.01, "out": "a b", "data-dir": "/x y"}
    with pytest.raises(ConfigError, match="'seed' is none"):
        parse_pairs("strategy=fcf seed")


def test_later_sources_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('strategy = "fcf"\nseed = 1\n')
    settings = resolve(file, ["seed=2"])
    assert (settings["strategy"], settings["seed"], settings["embedding-size"]) == ("fcf", 2, 16)


def test_a_damaged_or_missing_file_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("strategy = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml cannot be read as TOML"):
        resolve(tmp_path / "bad.toml", [])
    with pytest.raises(ConfigError, match=r"There is no configuration file .*gone\.toml"):
        resolve(tmp_path / "gone.toml", [])


def test_a_class_reads_its_own_keys_out_of_all():
    assert own({"seed": 4, "server-learning-rate": 0.5}, RunConfig).seed == 4


def test_the_project_file_has_every_setting_with_its_default():
    """Flower lets a key be overridden only if the project file has it."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == defaults(option_classes())


def test_every_setting_says_what_it_is():
    for part in option_classes():
        for name, field in part.model_fields.items():
            assert field.description, f"{part.__name__}.{name} has no description"
            assert len(field.description) > 15


def test_a_configuration_is_parsed_once_and_types_count():
    assert parsed({"seed": 1}) is parsed({"seed": 1})
    assert parsed({"seed": 1}).of(ModelOptions) is parsed({"seed": 1}).of(ModelOptions)
    with pytest.raises(ConfigError, match="'seed' must be a whole number"):
        parsed({"seed": 1.0})
    with pytest.raises(ConfigError, match="'seed' must be a whole number"):
        parsed({"seed": True})


def test_old_keys_are_refused_with_the_new_ones():
    with pytest.raises(ConfigError, match=r"no setting 'ldp-delta'\. It is now 'fedca-ldp-delta'\."):
        validate({"ldp-delta": 0.1})
    both = "'fed3cr-personal-learning-rate' or 'fedrap-personal-learning-rate'"
    with pytest.raises(ConfigError, match=rf"no setting 'personal-learning-rate'\. It is now {both}\."):
        validate({"personal-learning-rate": 0.1})
