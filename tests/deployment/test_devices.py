"""Devices of one person each: growing histories, a published catalogue, new devices, and being forgotten."""

import json
import subprocess
import sys
import time

import pytest

from bouquet.cli.node import recommend_command
from bouquet.device import Device
from bouquet.errors import DataError, RunFailed, StateError
from bouquet.history import read_history
from bouquet.randomness import user_key
from bouquet.sealing import Seal
from client_app.edge import split_history
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import last_checkpoint, run_here, small_settings

ITEMS = [f"i{number}" for number in range(30)]
PEOPLE = ("ann", "bob", "cid")


def devices_in(folder, people=PEOPLE):
    return [write_history(folder / name, ITEMS[n : n + 12], name) for n, name in enumerate(people)]


def settings_of(tmp_path, **changes):
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    return small_settings(tmp_path, catalogue_file=str(catalogue), evaluate_every=1, **changes)


def run(tmp_path, devices, plan=None, name="run", **changes):
    settings = settings_of(tmp_path, **{"min_nodes": 3, **changes})
    nodes = len(devices)
    return run_here(tmp_path / name, settings, nodes, Fleet, devices=devices, plan=plan)


def recommended(folder, capsys, k=5):
    capsys.readouterr()
    recommend_command(folder, k, "json")
    return [entry["item"] for entry in json.loads(capsys.readouterr().out)]


def append(folder, *rows):
    with (folder / "history.csv").open("a") as file:
        file.writelines(f"{item},{time_}\n" for item, time_ in rows)


def test_a_device_takes_the_catalogue_trains_and_recommends_what_it_does_not_have(tmp_path, capsys):
    devices = devices_in(tmp_path)
    summary = run(tmp_path, devices).read_summary()
    assert (summary["users"], summary["items"], summary["nodes"]) == (3, 30, 3)
    for folder in devices:
        best = recommended(folder, capsys, k=30)
        assert set(best) == set(ITEMS) - set(read_history(folder / "history.csv"))
    recommend_command(devices[0], 1, "text")
    assert capsys.readouterr().out.startswith("  1  Title of i")


def test_new_interactions_are_picked_up_and_what_is_held_out_was_never_trained_on(tmp_path, monkeypatch):
    """Three items come during the run, one of them with the oldest time of all."""
    devices = devices_in(tmp_path)
    seen = []
    import client_app.device as module

    real = module.histories_of_device

    def spy(device, config, history, catalogue):
        histories = real(device, config, history, catalogue)
        if device.folder == devices[0]:
            parts = (histories.train, histories.validation, histories.test)
            seen.append((device.trained(), *({catalogue.items[i] for i in part.values} for part in parts)))
        return histories

    monkeypatch.setattr(module, "histories_of_device", spy)
    plan = {
        3: lambda fleet: append(devices[0], ("i20", 100), ("i21", -5)),
        4: lambda fleet: append(devices[0], ("i22", 101)),
    }
    run(tmp_path, devices, plan)
    for trained, train, validation, test in seen:
        assert not trained & (validation | test)
        assert not train & (validation | test)
    assert seen[0][2:] == ({"i10"}, {"i11"})
    assert seen[-1][3] == {"i22"}
    assert {"i10", "i11", "i21"} <= seen[-1][1]


def test_an_item_that_the_catalogue_does_not_have_waits_for_one_that_does(tmp_path, capsys):
    devices = devices_in(tmp_path)
    append(devices[0], ("new", 100))
    run(tmp_path, devices)
    assert Device(devices[0]).catalogue().items == tuple(ITEMS)
    assert "new" not in Device(devices[0]).trained()

    newer = write_catalogue(tmp_path / "newer.csv", [*ITEMS, "new", "other"])
    settings = settings_of(tmp_path, min_nodes=3) | {"catalogue-file": str(newer)}
    append(devices[0], ("i25", 101), ("i26", 102))
    summary = run_here(tmp_path / "second", settings, 3, Fleet, devices=devices).read_summary()
    assert summary["items"] == 32
    assert "new" in Device(devices[0]).trained()
    assert "other" in recommended(devices[0], capsys, k=40)


def test_a_run_goes_on_only_with_the_catalogue_that_it_began_with(tmp_path):
    devices = devices_in(tmp_path)
    directory = run(tmp_path, devices, num_server_rounds=2)
    newer = write_catalogue(tmp_path / "newer.csv", [*ITEMS, "new"])
    settings = settings_of(tmp_path, min_nodes=3, num_server_rounds=4)
    settings |= {"catalogue-file": str(newer), "resume": str(directory.path)}
    with pytest.raises(Exception, match=r"'item_embedding' was \[30, 4\] and is now \[31, 4\]"):
        run_here(tmp_path / "run", settings, 3, Fleet, devices=devices)


def test_a_run_without_a_catalogue_says_what_is_missing(tmp_path):
    settings = small_settings(tmp_path, node_timeout=1.0)
    with pytest.raises(RunFailed, match="give the run a catalogue-file to publish"):
        run_here(tmp_path / "run", settings, 3, Fleet, devices=devices_in(tmp_path))


def test_a_new_device_joins_a_run_that_is_going_on(tmp_path):
    devices = devices_in(tmp_path, (*PEOPLE, "dee"))

    def grid(*arguments, **others):
        fleet = Fleet(*arguments, **others)
        fleet.hidden = {3}
        return fleet

    settings = settings_of(tmp_path, min_nodes=3)
    plan = {2: lambda fleet: fleet.hidden.clear()}
    directory = run_here(tmp_path / "run", settings, 4, grid, devices=devices, plan=plan)
    users = [line["users"] for line in directory.rounds()]
    assert users[:2] == [3, 3]
    assert users[-1] == 4
    assert directory.read_summary()["users"] == 4
    assert len(directory.read_users()[1]) == 4
    assert last_checkpoint(directory).users[-1] == user_key("dee"), "new users stand at the end"


def test_two_devices_of_one_name_cannot_both_take_part(tmp_path):
    devices = devices_in(tmp_path, (*PEOPLE, "ann"))
    write_history(tmp_path / "other", ITEMS[:12], "ann")
    devices[3] = tmp_path / "other"

    def grid(*arguments, **others):
        fleet = Fleet(*arguments, **others)
        fleet.hidden = {3}
        return fleet

    plan = {2: lambda fleet: fleet.hidden.clear()}
    directory = run_here(tmp_path / "run", settings_of(tmp_path, min_nodes=3), 4, grid, devices=devices, plan=plan)
    refused = [entry for line in directory.rounds() for entry in line["nodes"]["refused"]]
    assert [entry["node"] for entry in refused] == [1003]
    assert directory.rounds()[-1]["users"] == 3


def test_a_person_who_wants_to_be_forgotten_is(tmp_path):
    """On the device at once; at the server as soon as it asks again: roster, metrics, every checkpoint on the disk."""
    devices = devices_in(tmp_path)
    plan = {3: lambda fleet: Device(devices[1]).forget()}
    directory = run(tmp_path, devices, plan, min_reply_fraction=0.3)
    assert [line["users"] for line in directory.rounds()][:2] == [3, 3]
    assert directory.rounds()[-1]["users"] == 2
    assert sum(line["nodes"]["forgotten"] for line in directory.rounds()) == 1
    bob = user_key("bob")
    assert bob not in last_checkpoint(directory).users
    assert bob not in directory.read_users()[0]
    needle = bob.to_bytes(8, "little")
    for path in directory.checkpoints.iterdir():
        assert needle not in path.read_bytes(), path.name
    assert Device(devices[1]).settings()["told"]
    left = {path.name for path in devices[1].iterdir()}
    assert left == {"device.json", "catalogue.json", "history.csv"}
    with pytest.raises(StateError, match="asked to be forgotten"):
        recommend_command(devices[1], 5, "text")


# -- files -----------------------------------------------------------------------------------------------------------


def test_what_is_held_out_by_hand():
    """The newest never trained item is for test, the one before for validation; with fewer there is less of it."""
    assert split_history(list("abcd"), set()) == (["a", "b"], ["c"], ["d"])
    assert split_history(list("abcde"), {"a", "b"}) == (["a", "b", "c"], ["d"], ["e"])
    assert split_history(list("abcd"), set("abc")) == (["a", "b", "c"], [], ["d"])
    assert split_history(list("abcd"), set("abcd")) == (list("abcd"), [], [])
    assert split_history(list("ab"), set()) == (["a", "b"], [], [])
    # An old row that comes late: x is the oldest and was never trained on, d and e are newer.
    assert split_history(list("xabcde"), set("abc")) == (list("xabc"), ["d"], ["e"])


def test_a_line_that_is_being_written_counts_later(tmp_path):
    path = tmp_path / "h.csv"
    path.write_text("item,time\na,2\nb,1\na,3\nc,")
    assert read_history(path) == ["b", "a"]
    path.write_text("item,time\na,2\nb,1\na,3\nc,2026-01-01T00:00:00\n")
    assert read_history(path) == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("thing\na\n", "has no column 'item', only thing"),
        ("item,time\na,1\n,2\n", "line 3: no item"),
        ("item,time\na,soon\n", "line 2: 'soon' is no time"),
        ("", "has no column 'item', only nothing"),
    ],
)
def test_a_broken_history_is_named_with_its_line(tmp_path, text, reason):
    (tmp_path / "h.csv").write_text(text)
    with pytest.raises(DataError, match=reason):
        read_history(tmp_path / "h.csv")


def test_what_tells_about_the_person_is_encrypted(tmp_path):
    folder = write_history(tmp_path / "ann", ITEMS[:5], "ann")
    device = Device(folder, Seal(bytes(32)))
    device.mark_trained(["i1", "i2"])
    assert device.trained() == {"i1", "i2"}
    assert b"i1" not in (folder / "trained.json").read_bytes()
    with pytest.raises(StateError, match="trained.json cannot be decrypted"):
        Device(folder, Seal(bytes([1] * 32))).trained()
    with pytest.raises(StateError, match="trained.json is damaged, or encrypted"):
        Device(folder).trained()


def test_a_damaged_catalogue_is_named(tmp_path):
    devices = devices_in(tmp_path)
    run(tmp_path, devices, num_server_rounds=1)
    path = devices[0] / "catalogue.json"
    path.write_text(path.read_text().replace('"i3"', '"i99"'))
    with pytest.raises(StateError, match=r"catalogue\.json is damaged"):
        Device(devices[0]).catalogue()


def test_recommending_needs_no_model_no_flower_and_little_time(tmp_path):
    devices = devices_in(tmp_path)
    run(tmp_path, devices, num_server_rounds=1)
    code = (
        "import sys; sys.argv = ['bouquet', 'recommend', '--state', sys.argv[1], '-k', '3']\n"
        "from bouquet.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'flwr', 'numpy', 'pandas', 'pydantic', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", code, str(devices[0])]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert time.perf_counter() - begin < 5, "a fraction of a second on an idle machine"
