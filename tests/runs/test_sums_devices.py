"""Methods of sums on devices: increments of a history, forgetting, a catalogue that grows, recommending."""

import subprocess
import sys

import pytest

from bouquet.cli.node import recommend_command, recommend_from_model
from bouquet.device import Device
from bouquet.errors import ConfigError, StateError
from bouquet.published import load_published
from bouquet.randomness import user_key
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import last_checkpoint, run_here
from tests.runs.sums import (
    CELLS,
    ITEMS,
    SUMS,
    append,
    assert_same,
    best_of,
    devices_in,
    model_of,
    run,
    settings_of,
    sums_of,
    sums_of_devices,
)


@pytest.mark.parametrize("strategy", CELLS)
def test_a_growing_history_is_given_in_increments(tmp_path, strategy):
    """Two people have new items in round 3, one of them with an old time; the sums are those of the whole histories."""
    grown = devices_in(tmp_path / "grown", {"ann": 12, "bob": 9, "cid": 15})

    def grow(fleet):
        append(grown[0], ["i39", "i38", "i37", "i36"])
        append(grown[2], ["i30", "i31", "i32"])

    by_and_by = run(tmp_path, grown, strategy, "grown run", {3: grow}, num_server_rounds=5)
    up = [line["bytes"]["up_per_user"] for line in by_and_by.rounds()]
    # An item more changes what a ridge has of every pair before it, and a share of each; of rules only the last few.
    assert up[2] > 0
    assert strategy in ("slist", "gf-cf") or up[0] > up[2]
    assert up[1] == up[3] == up[4] == 0
    assert_same(sums_of_devices(grown, strategy, tmp_path), sums_of(by_and_by))


@pytest.mark.parametrize("strategy", CELLS)
def test_a_history_that_is_another_one_now_is_no_lie(tmp_path, strategy):
    """What was given is taken off, and all of the new history added: twice as much as either, and exact."""
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})

    def replace(fleet):
        write_history(devices[1], [f"i{39 - place}" for place in range(14)], "bob")

    directory = run(tmp_path, devices, strategy, plan={3: replace}, num_server_rounds=4)
    assert [line["users"] for line in directory.rounds()] == [3, 3, 3, 3]
    assert_same(sums_of_devices(devices, strategy, tmp_path), sums_of(directory))


@pytest.mark.parametrize("strategy", CELLS)
@pytest.mark.parametrize("when", ["in the run", "between two runs"])
def test_who_is_forgotten_was_never_there(tmp_path, strategy, when):
    """The sums, and so the model, are to the last bit those of a run without the person."""
    three, two = ({"ann": 12, "bob": 9, "cid": 15}, {"ann": 12, "cid": 15})
    devices = devices_in(tmp_path / "three", three)
    bob = Device(devices[1])
    settings = {"num_server_rounds": 5, "min_reply_fraction": 0.3}
    if when == "in the run":
        directory = run(tmp_path, devices, strategy, "run", {3: lambda fleet: bob.forget()}, **settings)
    else:
        first = run(tmp_path, devices, strategy, "run", num_server_rounds=2)
        assert user_key("bob") in last_checkpoint(first).users
        bob.forget()
        again = {**settings, "resume": str(first.path), "state_dir": str(first.path / "nodes")}
        directory = run(tmp_path, devices, strategy, "run", **again)
    assert sum(line["nodes"]["forgotten"] for line in directory.rounds()) == 1
    assert user_key("bob") not in last_checkpoint(directory).users
    others = devices_in(tmp_path / "two", two)
    # The third device of the one run is the second of the other, with the same history.
    (others[1] / "history.csv").write_text((devices[2] / "history.csv").read_text())
    assert_same(model_of(run(tmp_path, others, strategy, "without", num_server_rounds=5)), model_of(directory))


@pytest.mark.parametrize("strategy", CELLS)
def test_items_join_the_catalogue_between_two_runs(tmp_path, strategy):
    """Ten items come at the end, which two people have met before: the sums are those of the whole catalogue."""
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    append(devices[0], ["i39", "i31", "i2x"])
    append(devices[1], ["i30", "i3", "i35"])
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS[:30])
    given = {"catalogue_file": str(catalogue), "evaluate_every": 1, "min_nodes": 3}
    settings = settings_of(tmp_path, strategy, **given)
    first = run_here(tmp_path / "run", settings, 3, Fleet, devices=devices)
    write_catalogue(catalogue, ITEMS)
    resumed = settings | {"num-server-rounds": 3, "resume": str(first.path), "out": ""}
    second = run_here(tmp_path / "run", resumed, 3, Fleet, devices=devices)
    assert second.read_summary()["items"] == 40
    assert_same(sums_of_devices(devices, strategy, tmp_path), sums_of(second))
    # An item that comes between the others moves all rows behind it.
    write_catalogue(catalogue, ["new", *ITEMS])
    with pytest.raises(ConfigError, match="The checkpoint cannot go on"):
        run_here(tmp_path / "run", resumed | {"num-server-rounds": 4}, 3, Fleet, devices=devices)


def test_what_a_forgotten_person_gave_stays_until_the_server_has_taken_it_off(tmp_path, monkeypatch):
    """Asked again it says so once more; told that nothing is left, it keeps nothing but that."""
    from strategies.federation import membership

    monkeypatch.setattr(membership, "IDLE_SECONDS", 0.0)
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    bob = Device(devices[1])
    run(tmp_path, devices, "ease", plan={3: lambda fleet: bob.forget()}, num_server_rounds=7, min_reply_fraction=0.3)
    assert {path.name for path in bob.folder.iterdir()} - {"withdrawn", "model.safetensors"} == {
        "device.json",
        "catalogue.json",
        "history.csv",
    }
    assert list((bob.folder / "withdrawn").iterdir()) == []


def test_a_device_that_lost_what_it_gave_is_left_out_and_counted_once(tmp_path):
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})

    def lose(fleet):
        for path in devices[1].glob("private/*/*/given.safetensors"):
            path.unlink()

    settings = {"num_server_rounds": 4, "min_reply_fraction": 0.3}
    directory = run(tmp_path, devices, "ease", plan={3: lose}, **settings)
    lines = directory.rounds()
    assert [line["users"] for line in lines] == [3, 3, 2, 2]
    assert "what it gave in round 2 is not known here any more" in lines[2]["failures"][0]["reason"]
    assert_same(sums_of(run(tmp_path, devices_in(tmp_path / "b", {"ann": 12, "bob": 9, "cid": 15}), "ease", "b")),
                sums_of(directory))  # fmt: skip


def test_a_damaged_file_of_what_was_given_is_named(tmp_path):
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})

    def damage(fleet):
        (path,) = devices[1].glob("private/*/*/given.safetensors")
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    settings = {"num_server_rounds": 3, "min_reply_fraction": 0.3}
    lines = run(tmp_path, devices, "ease", plan={2: damage}, **settings).rounds()
    assert "given.safetensors is damaged" in lines[1]["failures"][0]["reason"]


def test_recommendations_follow_a_history_at_once(tmp_path, capsys):
    """Everybody walks through the items in their order, so the next one is the best; also after a new one, offline."""
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    directory = run(tmp_path, devices, "sequential-rules", sequential_rules_window=1)
    capsys.readouterr()
    recommend_command(devices[0], 1, "json")
    (before,) = best_of(capsys)
    append(devices[0], ["i20"])
    recommend_command(devices[0], 1, "json")
    assert best_of(capsys) == ["i21"]
    assert before != "i21"
    # Somebody who took part in nothing.
    (tmp_path / "new.csv").write_text("item\ni3\ni20\nnobody knows this\n")
    recommend_from_model(directory.model, tmp_path / "catalogue.csv", tmp_path / "new.csv", 1, "json")
    assert best_of(capsys) == ["i21"]


def test_recommending_from_a_model_says_what_is_wrong(tmp_path):
    directory = run(tmp_path, devices_in(tmp_path / "three", {"ann": 12, "bob": 9}), "ease")
    history, catalogue = tmp_path / "new.csv", tmp_path / "catalogue.csv"
    history.write_text("item\nelse\n")
    with pytest.raises(StateError, match="no item of the history is in the catalogue"):
        recommend_from_model(directory.model, catalogue, history, 3, "text")
    history.write_text("item\ni1\n")
    other = write_catalogue(tmp_path / "other.csv", ITEMS[1:])
    with pytest.raises(StateError, match="of another catalogue"):
        recommend_from_model(directory.model, other, history, 3, "text")
    with pytest.raises(StateError, match="damaged"):
        recommend_from_model(catalogue, catalogue, history, 3, "text")
    assert load_published(directory.model).strategy == "ease"


def test_recommending_from_a_model_needs_nothing_but_numpy(tmp_path):
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    run(tmp_path, devices, "sequential-rules")
    code = (
        "import sys; sys.argv = ['bouquet', 'recommend', '--state', sys.argv[1], '-k', '3']\n"
        "from bouquet.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'flwr', 'numba', 'pandas', 'pyarrow', 'scipy', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(devices[0])], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("strategy", SUMS)
@pytest.mark.parametrize(("key", "value"), [("update-clip", 1.0), ("decoy-rows", 3)])
def test_what_would_not_be_exact_is_refused(tmp_path, strategy, key, value):
    with pytest.raises(ConfigError, match="leave them out"):
        run_here(tmp_path / "run", settings_of(tmp_path, strategy) | {key: value}, 1)
