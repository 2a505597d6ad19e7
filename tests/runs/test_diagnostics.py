"""`bouquet diagnose`: right means, the same on any layout, and nothing but means."""

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.cli.diagnose import diagnose_command, run_and_diagnose
from bouquet.errors import ConfigError
from bouquet.evaluation import information_abundance, on_a_plane
from bouquet.experiments.settings import literal
from bouquet.randomness import user_keys
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.diagnostics import BINS, GROUPS, Diagnosis
from client_app.node.host import host_of
from tests.runs.helpers import last_checkpoint, run_here, small_settings

METHODS = {
    "fcf": {"strategy": "fcf"},
    "pfedrec": {"strategy": "pfedrec"},
    "fedrap": {"strategy": "fedrap", "fedrap_personal_learning_rate": 1.0},
    "fed3cr": {"strategy": "fed3cr", "fed3cr_personal_learning_rate": 1.0},
    "ace": {"strategy": "fcf", "personalization": "ace"},
    "plgc": {"strategy": "fcf", "personalization": "plgc", "plgc_learning_rate": 1.0},
}


def run_of(folder, nodes=1, **changes):
    folder.mkdir(exist_ok=True)
    settings = small_settings(folder, num_server_rounds=2, learning_rate=1.0, **changes)
    return run_here(folder / f"run-{nodes}", settings, nodes)


def told_of(directory, consenting=""):
    diagnose_command(directory.path, consenting)
    return directory.read_json("diagnostics.json")


def numbers(value):
    """Everything in a document, one after another."""
    if isinstance(value, dict):
        return [number for entry in value.values() for number in numbers(entry)]
    return [number for entry in value for number in numbers(entry)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_same_on_one_node_and_on_forty(tmp_path, method):
    one, many = (told_of(run_of(tmp_path, nodes, **METHODS[method])) for nodes in (1, 40))
    assert one.keys() == many.keys()
    assert one["users"]["all"] == 40
    np.testing.assert_allclose(numbers(many), numbers(one), rtol=1e-3, atol=1e-6)


def test_a_common_model_has_one_table(tmp_path):
    """What all users recommend with is the checkpoint's table, and where the next training starts."""
    directory = run_of(tmp_path, **METHODS["fcf"])
    told = told_of(directory)
    expected = information_abundance(last_checkpoint(directory).shared["item_embedding"])
    for name in ("information abundance, common table", "information abundance, seen table"):
        assert told[name]["all"] == pytest.approx(expected, rel=1e-5)
    assert told["information abundance before training"]["all"] == pytest.approx(expected, rel=1e-5)
    assert abs(told["information abundance after training"]["all"] - expected) > 1e-6
    assert not any("RBO" in name for name in told)


def test_two_views_and_the_heat_map_of_one_user(tmp_path):
    """FedRAP: E = Cᵀ D_u / m, from the checkpoint and from the private state of user 7."""
    directory = run_of(tmp_path, **METHODS["fedrap"])
    told = told_of(directory, "7")
    checkpoint = last_checkpoint(directory)
    (folder,) = (directory.path / "nodes").glob("*/node-0-of-1")
    common, stored = checkpoint.shared["item_embedding"], np.load(folder / "personal_item_embedding.npy")
    at = load_file(folder / "index.safetensors")["users"].tolist().index(int(user_keys(["7"])[0]))
    expected = [common.T @ version[at] / len(common) for version in stored]
    distances = [np.abs(np.array(told["heat map"]) - heat).max() for heat in expected]
    assert min(distances) < 1e-6
    assert 0 <= told["RBO@50 of the two views"]["all"] <= 1
    assert sum(told["overlap histogram"]) == 40
    picture = directory.path / "diagnostics.png"
    with_heat = picture.read_bytes()
    assert with_heat.startswith(b"\x89PNG")
    assert picture.stat().st_mode & 0o077 == 0
    assert "heat map" not in told_of(directory)
    assert picture.read_bytes() != with_heat, "the person's picture does not stay where it was not asked for again"


def test_the_map_of_one_user(tmp_path):
    """Own and common table of user 7 on a plane, its items marked; every number in the lines, too, and not kept."""
    directory = run_of(tmp_path, **METHODS["fedrap"])
    told = told_of(directory, "7")
    points, share = on_a_plane(last_checkpoint(directory).shared["item_embedding"])
    np.testing.assert_allclose(told["map, common table"]["points"], points, atol=1e-6)
    assert told["map, common table"]["share of the spread"] == pytest.approx(share)
    assert {"map, own table", "map, seen table"} <= set(told)
    histories = host_of(small_settings(tmp_path), {}).histories
    at = histories.users.tolist().index(int(user_keys(["7"])[0]))
    kinds = np.array(told["items of the map"])
    assert set(np.flatnonzero(kinds == "training")) == set(histories.train.row(at).tolist())
    hidden = {*histories.validation.row(at).tolist(), *histories.test.row(at).tolist()}
    assert set(np.flatnonzero(kinds == "held out")) == hidden
    lines = lines_of(directory)
    mapped = [line for line in lines if line["figure"] == "map, own table" and line["column"] == "y"]
    assert [float(line["value"]) for line in mapped] == [point[1] for point in told["map, own table"]["points"]]
    assert [line["of"] for line in mapped] == told["items of the map"]
    assert any(line["figure"] == "heat map" for line in lines)
    for name in ("diagnostics.json", "diagnostics.csv"):
        assert (directory.path / name).stat().st_mode & 0o077 == 0
    told_of(directory)
    assert not {"one user", "training", "held out"} & {line["of"] for line in lines_of(directory)}


def lines_of(directory):
    with (directory.path / "diagnostics.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_lines_have_every_mean(tmp_path):
    directory = run_of(tmp_path, **METHODS["plgc"])
    told, lines = told_of(directory), lines_of(directory)
    assert len(lines) == len(numbers({name: value for name, value in told.items() if name != "digest"}))
    found = {(line["figure"], line["of"], line["row"]): float(line["value"]) for line in lines}
    name = "information abundance, own table"
    assert found[name, "all", ""] == told[name]["all"]
    assert found["singular values, common table", "all", "2"] == told["singular values, common table"]["all"][1]
    assert found["overlap histogram", "all", "0.95"] == told["overlap histogram"][19]


def test_settings_make_the_run_first(tmp_path):
    """One command gives what a run and a look give; a folder that has a run is not run again."""
    settings = small_settings(tmp_path, num_server_rounds=2, learning_rate=1.0, strategy="fcf")
    here = tmp_path / "both"
    run_and_diagnose(here, "", None, [f"{key}={literal(value)}" for key, value in settings.items()], 1, "local")
    apart = run_here(tmp_path / "apart", settings, 1)
    found = RunDirectory(here).read_json("diagnostics.json")
    np.testing.assert_allclose(numbers(found["users"]), numbers(told_of(apart)["users"]))
    np.testing.assert_allclose(
        numbers(found["singular values, common table"]),
        numbers(apart.read_json("diagnostics.json")["singular values, common table"]),
        rtol=1e-5,
    )
    with pytest.raises(ConfigError, match="both has a run already"):
        run_and_diagnose(here, "", None, ["seed=1"], 1, "local")


def test_only_means_are_told(tmp_path):
    """No list is as long as there are users, and nothing that the nodes keep is written to."""
    directory = run_of(tmp_path, **METHODS["plgc"])
    files = {path: path.read_bytes() for path in (directory.path / "nodes").rglob("*") if path.is_file()}
    told = told_of(directory)
    assert files == {path: path.read_bytes() for path in (directory.path / "nodes").rglob("*") if path.is_file()}
    assert len(told["overlap histogram"]) == BINS
    for means in told.values():
        if isinstance(means, dict):
            assert set(means) <= set(told["users"])
            assert all(np.size(mean) in (1, 4) for mean in means.values())


def test_small_groups_are_not_told():
    """4 users in the first group, 5 in the second: the means of both together, and of the second, by hand."""
    diagnosis = Diagnosis()
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])
    np.add.at(diagnosis.users, groups, 1)
    diagnosis.count("figure", groups, np.arange(9.0))
    told = diagnosis.told()
    assert told["users"] == {"all": 9, "20 to 49 interactions": 5}
    assert told["figure"] == {"all": 4.0, "20 to 49 interactions": 6.0}
    alone = Diagnosis(users=np.array([4] + [0] * (len(GROUPS) - 1)))
    with pytest.raises(ConfigError, match="fewer than 5 users"):
        alone.told()


def test_runs_that_cannot_be_looked_at(tmp_path):
    with pytest.raises(ConfigError, match="no checkpoint"):
        diagnose_command(run_of(tmp_path / "a", strategy="fcf", checkpoint_every=0).path, "")
    for strategy in ("fedca", "hetefedrec"):
        directory = run_of(tmp_path / strategy, strategy=strategy)
        with pytest.raises(ConfigError, match=r"not at sequence models, nor at .*\bfedca or .*hetefedrec"):
            diagnose_command(directory.path, "")
    directory = run_of(tmp_path / "c", strategy="fcf")
    with pytest.raises(ConfigError, match="Nothing can be told of user 'nobody'"):
        diagnose_command(directory.path, "nobody")
