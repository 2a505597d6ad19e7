"""Devices of one person each: growing histories, a published catalogue, new devices, and being forgotten."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.catalogue import Catalogue
from bouquet.cli.node import recommend_command
from bouquet.cli.node_record import NodeRecord, read_record
from bouquet.cli.node_screen import NodeScreen
from bouquet.config import parsed
from bouquet.device import Device
from bouquet.errors import ConfigError, DataError, RunFailed, StateError
from bouquet.history import read_events
from bouquet.randomness import user_key
from bouquet.sealing import Seal
from bouquet.wire import TRAIN
from client_app.edge.growing_history import histories_of_device, oldest_first, split_history
from data_partition import from_table
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
        assert set(best) == set(ITEMS) - {item for _, item in read_events(folder / "history.csv")}
    recommend_command(devices[0], 1, "text")
    assert capsys.readouterr().out.startswith("  1  Title of i")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"split": "ratio"}, "can only hold out the last"),
        ({"training_share": 0.5}, "training-share = 1"),
        ({"repeats": "keep"}, "repeats = 'drop', not 'keep'"),
    ],
)
def test_what_a_growing_history_cannot_do_is_refused(tmp_path, changes, sentence):
    (folder,) = devices_in(tmp_path, ["ann"])
    config = parsed(settings_of(tmp_path, **changes)).run
    with pytest.raises(ConfigError, match=sentence):
        histories_of_device(Device(folder), config, folder / "history.csv", Catalogue(tuple(ITEMS), ("",) * len(ITEMS)))


def test_new_interactions_are_picked_up_and_what_is_held_out_was_never_trained_on(tmp_path, monkeypatch):
    """Three items come during the run, one of them with the oldest time of all."""
    devices = devices_in(tmp_path)
    seen = []
    import client_app.edge.handlers as module

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


def test_a_device_hears_that_its_person_is_forgotten_once_no_checkpoint_has_it(tmp_path):
    """Round 4 drops bob; a server that is killed in it goes back to round 3. The last message of the run tells it."""
    devices = devices_in(tmp_path)
    bob, told = Device(devices[1]), {}

    class Looking(Fleet):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if message.metadata.message_type == TRAIN and message.metadata.group_id == "4":
                    told[message.metadata.dst_node_id] = bob.settings()["told"]
            return super().push_messages(messages)

    settings = settings_of(tmp_path, min_nodes=3, num_server_rounds=4, checkpoint_every=1, min_reply_fraction=0.3)
    plan = {2: lambda fleet: bob.forget()}
    directory = run_here(tmp_path / "run", settings, 3, Looking, devices=devices, plan=plan)
    assert directory.rounds()[-1]["nodes"]["forgotten"] == 1
    assert told == {1000: "", 1002: ""}
    assert bob.settings()["told"] == last_checkpoint(directory).series


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
    assert oldest_first(read_events(path), "ann") == ["b", "a"]
    path.write_text("item,time\na,2\nb,1\na,3\nc,2026-01-01T00:00:00\n")
    assert oldest_first(read_events(path), "ann") == ["b", "a", "c"]


def test_events_of_one_day_are_in_the_order_of_a_data_set(tmp_path):
    """A history of one person and a table of many people decide equally between equal times, whatever the file does."""
    path = tmp_path / "h.csv"
    items = [f"i{number:02}" for number in range(40)]
    orders = {}
    for user in ("ann", "bob"):
        table = pd.DataFrame({"user": user, "item": items, "time": 20 * [1] + 20 * [2]})
        interactions = from_table("both", pd.concat([table.assign(user="somebody"), table]))
        row = interactions.histories.row(interactions.user_ids.tolist().index(user))
        orders[user] = interactions.item_ids[row].tolist()
        for rows in (table, table[::-1]):
            rows.to_csv(path, columns=["item", "time"], index=False)
            assert oldest_first(read_events(path), user) == orders[user]
        assert sorted(orders[user][:20]) == items[:20] != orders[user][:20]
    assert orders["ann"] != orders["bob"]


def test_without_times_a_history_is_in_the_order_of_its_lines(tmp_path):
    path = tmp_path / "h.csv"
    path.write_text("item\nb\nc\na\nb\nd\n")
    assert oldest_first(read_events(path), "ann") == ["b", "c", "a", "d"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("thing\na\n", "has no column 'item', only thing"),
        ("item,when\na,1\n", "has no column 'time', only item, when"),
        ("", "has no column 'item', only nothing"),
        ("\xff\n", "has no column 'item', only nothing"),
        ("item,time\n,1\na,soon\n", "has no line that can be read; line 2: it has no item"),
    ],
)
def test_a_history_without_a_column_or_any_line_is_refused(tmp_path, text, reason):
    (tmp_path / "h.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=reason):
        read_events(tmp_path / "h.csv", time_column="time" if "when" in text else "")
    with pytest.raises(DataError, match="cannot be read .*No such file"):
        read_events(tmp_path / "none.csv")


BROKEN = {
    b",3": "it has no item",
    b"  ,3": "it has no item",
    b"x,": "its time is neither a number nor an ISO 8601 date",
    b"x,soon": "its time is neither a number nor an ISO 8601 date",
    b"x,nan": "its time is neither a number nor an ISO 8601 date",
    b"x,0001-01-01T00:00:00+99:00": "its time is neither a number nor an ISO 8601 date",
    b"x": "it has 1 fields, and the header 2",
    b"x,3,4": "it has 3 fields, and the header 2",
    b"x\xff,3": "its bytes are no UTF-8",
    b'"x,3': "a quotation mark is not closed",
    b'"x"y,3': "its quotation marks, or its length, are not those of a CSV",
    b"x" * 200_000 + b",3": "its quotation marks, or its length, are not those of a CSV",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_cannot_be_read_costs_that_line_and_no_other(tmp_path, line):
    """Lines 3 and 6 are broken; line 5 is a quoted item with a line break, and lines 4, 7 and 9 are good."""
    path = tmp_path / "h.csv"
    content = b"\n".join([b"item,time", b"a,9", line, b'"b, or c",2', b'"d\ne",4', line, b"", b"f,2026-01-01\r", b""])
    path.write_bytes(content)
    said = []
    events = read_events(path, on_left_out=said.append)
    assert oldest_first(events, "ann") == ["b, or c", "d\ne", "a", "f"]
    (left_out,) = said
    assert (left_out.count, left_out.line, left_out.reason) == (2, 3, BROKEN[line])
    sentence = f"2 lines of {path} cannot be read and are left out; the first is line 3: {BROKEN[line]}."
    assert str(left_out) == sentence


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=8))
def test_no_bytes_in_a_history_stop_it(lines):
    """Whatever stands between two good lines, the first is read, and every line that is left out is counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h.csv"
        path.write_bytes(b"item,time\nfirst,1\n" + b"".join(line + b"\n" for line in lines) + b"last,1e300\n")
        said = []
        events = read_events(path, on_left_out=said.append)
    assert events[0] == (1, "first")
    assert sum(left_out.count for left_out in said) <= len(lines) + 1


def test_recommending_and_training_say_once_what_they_leave_out(tmp_path, capsys, monkeypatch):
    devices = devices_in(tmp_path)
    monkeypatch.setenv("BOUQUET_LOG", "json")
    append(devices[0], ("", 50), ("i29", 51), ("i28", "soon"))
    run(tmp_path, devices, num_server_rounds=1)
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    left_out = [entry for entry in events if entry["event"] == "history lines left out"]
    assert left_out
    assert {(entry["lines"], entry["first"], entry["why"]) for entry in left_out} == {(2, 14, "it has no item")}
    recommend_command(devices[0], 30, "json")
    said = capsys.readouterr()
    assert "i29" not in said.out
    path = devices[0] / "history.csv"
    sentence = f"2 lines of {path} cannot be read and are left out; the first is line 14: it has no item."
    assert said.err.splitlines() == [sentence]


def test_what_tells_about_the_person_is_encrypted(tmp_path):
    folder = write_history(tmp_path / "ann", ITEMS[:5], "ann")
    device = Device(folder, Seal(bytes(32)))
    # Long enough that it cannot stand in a ciphertext by chance.
    device.mark_trained(["the first item", "i2"])
    assert device.trained() == {"the first item", "i2"}
    assert b"the first item" not in (folder / "trained.json").read_bytes()
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


def test_what_a_server_calls_an_item_gives_no_orders_to_a_terminal(tmp_path, capsys):
    """ESC [ 2 J would empty the person's screen, and a line break would write a line of the server's own."""
    device = write_history(tmp_path / "ann", ["i0"], "ann")
    catalogue = Catalogue(("i0", "i1", "i\x1b2"), ("", "no\x1b[2J\x9b1mway\n 9  really\there", ""))
    Device(device).save_recommendations(catalogue, [1, 2], [2.0, 1.0], 1)
    recommend_command(device, 5, "text")
    assert capsys.readouterr().out == "  1  no?[2J?1mway? 9  really?here\n  2  i?2\n"
    recommend_command(device, 5, "json")
    assert "\x1b" not in capsys.readouterr().out


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert time.perf_counter() - begin < 5, "a fraction of a second on an idle machine"


REFUSED = """[92mINFO [0m:      Starting Flower SuperNode
[91mERROR [0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
[code: 2004] Failed to activate SuperNode.
The SuperNode could not establish a connection to the SuperLink.

For more information, visit: <https://flower.ai/docs/framework/1.39/en/ref-exit-codes/305.html>
"""


def test_what_a_person_sees_of_a_device_that_is_not_let_in(tmp_path, capsys):
    """Who must do what once, then a line per try; once it was let in, it may only have to wait for a minute."""
    # The SHA-256 of the three bytes "abc" (FIPS 180-2, B.1) as base64 without its padding.
    public = tmp_path / "node.pub"
    public.write_text("ecdsa-sha2-nistp384 YWJj")
    digest = "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
    key = (
        f"the operator must register this device's key, {public} ({digest}), with:\n  bouquet deploy register {public}"
    )
    record = NodeRecord(tmp_path, "hub:9092")
    screen = NodeScreen("hub:9092", tmp_path, tmp_path / "flower.log", record, known=False)

    def attempt(text, pause):
        screen.starts()
        for line in text.splitlines():
            screen.said(line)
        screen.alive(1.0)
        screen.ended("flower-supernode", 1, pause)
        return capsys.readouterr().err

    rarely = "Later tries come more rarely, at least every 60 s."
    waiting = f"Waiting to be let in by the SuperLink at hub:9092: {key}\nNext try in 2 s. {rarely}\n"
    assert attempt(REFUSED, 2.0) == waiting
    assert attempt(REFUSED, 4.0) == "Not let in yet. Next try in 4 s.\n"
    assert read_record(tmp_path)["connection"] == "waiting"
    assert attempt("INFO: SuperNode ID: 17\n", 8.0).startswith("Connected: the SuperLink at hub:9092 has let")
    assert "for up to a minute it may take this device for still connected. If it goes on, the op" in attempt(
        REFUSED, 2.0
    )
    broken = "Exit Code: 305\nFailed to initialize the connection to the SuperLink.\nwrong certificate\nmore\n"
    assert attempt(broken, 2.0) == (
        "No connection to the SuperLink at hub:9092: Failed to initialize the connection to the SuperLink. wrong "
        f"certificate. All of it: {tmp_path / 'flower.log'}. Next try in 2 s.\n"
    )
    assert attempt("INFO: Starting Flower SuperNode\nOSError: No space left on device\n", 4.0) == (
        "No connection to the SuperLink at hub:9092: the SuperNode ended with status 1, after OSError: No space left "
        f"on device. All of it: {tmp_path / 'flower.log'}. Next try in 4 s.\n"
    )
    for _ in range(2):
        screen.alive(21.0)
    assert capsys.readouterr().err == (
        f"The SuperLink at hub:9092 does not answer; trying on. Flower's own words: {tmp_path / 'flower.log'}\n"
    )
