"""Invariant 5: a failed run fails, a node that fails does not take the run with it, and nothing stays behind."""

import os
import signal
import subprocess

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from bouquet.engines.local import LocalGrid
from bouquet.errors import RunFailed
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import Faulty
from bouquet.testing.runs import raises, trained
from bouquet.wire import EVALUATE, TRAIN
from tests.runs.helpers import (
    await_condition,
    bouquet,
    pairs,
    run_here,
    small_settings,
    start_bouquet,
)


def random_arrays(message, answer):
    arrays = {"update": ArrayRecord({"item_embedding/values": Array(np.ones(3, dtype=np.float32))})}
    return Message(RecordDict(arrays), reply_to=message)


def changed_reply(change):
    """A fault that damages a good reply."""

    def fault(message, answer):
        reply = answer()
        change(reply.content)
        return reply

    return fault


def put(record, name, change):
    """Replace an array of a reply by a changed copy."""

    def apply(content):
        records = content.array_records
        values = change(records[record][name].numpy().copy())
        records[record][name] = Array(values)

    return changed_reply(apply)


def with_nan(values):
    values[1] = np.nan
    return values


def drop(record):
    def apply(content):
        del content[record]

    return changed_reply(apply)


def smuggle(content):
    content.array_records["update"]["user_embedding/values"] = Array(np.zeros((13, 4), dtype=np.float32))


FAULTS = {
    "raises": (raises, "the battery is empty"),
    "garbage": (random_arrays, "has no record 'config'"),
    "values that are not finite": (put("update", "item_embedding/values", with_nan), "not finite"),
    "an array of another shape": (
        put("update", "item_embedding/values", lambda v: v[:, :2].copy()),
        "should have shape",
    ),
    "other users": (put("users", "user", lambda v: v + np.uint64(1)), "about other users than those asked for"),
    "a user twice": (put("users", "user", lambda v: np.repeat(v[:1], len(v))), "a user stands twice"),
    "no users": (drop("users"), "has no record 'users'"),
    "a private array": (changed_reply(smuggle), "'user_embedding/values' that is not shared"),
    "seconds below zero": (
        changed_reply(lambda content: content["config"].update({"seconds": -1.0})),
        "-1.0 seconds are impossible",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_node_that_fails_is_left_out_and_counted(tmp_path, name):
    fault, reason = FAULTS[name]
    directory = run_here(tmp_path / "run", small_settings(tmp_path), 3, Faulty, fault=fault, bad={1})
    summary = directory.read_summary()
    assert summary["status"] == "completed"
    assert summary["failures"] == 6
    for line in directory.rounds():
        assert line["users"] == 27
        assert line["asked"] == 40
        assert reason in line["failures"][0]["reason"]
        assert line["failures"][0]["users"] == 13


def test_the_round_goes_on_as_if_only_the_others_were_there(tmp_path):
    """Node 1 raises: the shared arrays are what the 27 users of the other nodes give alone."""
    log = []

    class Both(Faulty):
        def _answer(self, message):
            reply = super()._answer(message)
            if not reply.has_error():
                log.append((message, reply))
            return reply

    settings = small_settings(tmp_path, num_server_rounds=1, server_optimizer="sgd", server_learning_rate=1.0)
    directory = run_here(tmp_path / "run", settings, 3, Both, fault=raises, bad={1})
    from bouquet.records import unpack
    from strategies.averaging import mean_change
    from tests.runs.helpers import last_checkpoint

    shared = unpack(next(m.content["shared"] for m, _ in log if m.metadata.message_type == TRAIN))
    replies = trained(log)
    assert len(replies) == 2
    expected = shared["item_embedding"] + mean_change(shared, replies)["item_embedding"]
    np.testing.assert_allclose(last_checkpoint(directory).shared["item_embedding"], expected, atol=1e-7)


@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_all_nodes_failing_is_a_failed_run(tmp_path, kind):
    with pytest.raises(RunFailed, match="only 0 of 40 users gave a valid reply.*the battery is empty"):
        run_here(tmp_path / "run", small_settings(tmp_path), 3, Faulty, fault=raises, bad={0, 1, 2}, kind=kind)
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert summary["status"] == "failed"
    assert "battery" in summary["error"]
    assert "test" not in summary


def test_too_few_valid_replies_fail_the_run(tmp_path):
    settings = small_settings(tmp_path, min_reply_fraction=0.8)
    with pytest.raises(RunFailed, match="Round 1: only 27 of 40 users"):
        run_here(tmp_path / "run", settings, 3, Faulty, fault=raises, bad={1})


def test_nodes_that_never_come_are_waited_for_and_counted(tmp_path):
    class Late(LocalGrid):
        def get_node_ids(self):
            return super().get_node_ids()[:2]

    with pytest.raises(RunFailed, match="Only 2 of 3 nodes came within 0.5 s"):
        run_here(tmp_path / "run", small_settings(tmp_path, node_timeout=0.5), 3, Late)


def test_a_protocol_of_another_version_is_refused(tmp_path):
    def old(message, answer):
        reply = answer()
        reply.content["config"] = ConfigRecord({**reply.content["config"], "protocol": 0})
        return reply

    with pytest.raises(RunFailed, match="speaks protocol 0, this server speaks 2"):
        run_here(tmp_path / "run", small_settings(tmp_path), 2, Faulty, fault=old, bad={0, 1}, kind="query.roster")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["-c", "dataset=ml-100"], 2, "There is no dataset 'ml-100'. Did you mean 'ml-100k'?"),
        (["-c", "strategy=fedcaa"], 2, "There is no strategy 'fedcaa'."),
        (["--engine", "cloud"], 2, "There is no engine 'cloud'. Known: flower, local."),
        (["-c", "seed=x"], 2, "'seed' must be a whole number, not 'x'."),
        (["-c", "partition=one-per-node"], 2, "'one-per-node' needs as many nodes as users: 600 users, 4 nodes."),
        (["--nodes", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_bad_input_is_one_sentence_and_status(tmp_path, arguments, status, sentence):
    done = bouquet("run", *arguments, cwd=tmp_path)
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing may be left on the disk"


def test_a_damaged_data_file_is_named_with_its_line(tmp_path):
    data = tmp_path / "u.data"
    data.write_text("1\t2\t3\t881250949\n1\t3\t4\n")
    done = bouquet("run", *pairs({"dataset": "ml-100k", "data-dir": str(tmp_path)}), cwd=tmp_path)
    assert done.returncode == 1
    assert "u.data, line 2" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [data]


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path), 2)
    before = directory.summary.read_bytes()
    done = bouquet("run", "--engine", "local", "--out", str(directory.path))
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert directory.summary.read_bytes() == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs rights that this user lacks")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("strategy", ["fedavg", "local"])
def test_a_full_disk_fails_the_run_in_words(small_disk, strategy):
    """Others fill the disk while checkpoints (fedavg) or private tables (local) are written; nothing looks complete."""
    given = {"strategy": strategy, "num-server-rounds": 5000, "checkpoint-every": 1, "embedding-size": 4}
    out = RunDirectory(small_disk / "run")
    process = start_bouquet("run", "--engine", "local", "--compare-with", "", *pairs(given), "--out", str(out.path))
    await_condition(lambda: len(out.rounds()) >= 1)
    with (small_disk / "film").open("wb") as film, pytest.raises(OSError, match="No space left"):
        film.write(bytes(2**26))
    _, error = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "No space left on device" in error.strip().splitlines()[-1]
    assert out.read_summary()["status"] in ("failed", "running")
    for file in out.path.rglob("*.tmp"):
        pytest.fail(f"{file} was left half-written")


def test_a_disk_that_is_too_small_is_refused_before_the_first_round(small_disk):
    """600 tables of 800 x 64 float32 are 123 MB, in three versions 369 MB."""
    given = {"strategy": "local", "num-server-rounds": 60, "embedding-size": 64}
    done = bouquet("run", "--engine", "local", *pairs(given), "--out", str(small_disk / "run"))
    assert done.returncode == 1
    assert "needs about 369 MB of disk under" in done.stderr
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_run_and_says_how_to_go_on(tmp_path, sign):
    out = RunDirectory(tmp_path / "run")
    given = {"num-server-rounds": 5000, "checkpoint-every": 1}
    process = start_bouquet("run", "--engine", "local", *pairs(given), "--out", str(out.path))
    await_condition(lambda: len(out.rounds()) >= 3)
    os.kill(process.pid, sign)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert stdout.strip().splitlines()[-1] == f"Go on with: bouquet run -c 'resume=\"{out.path}\"'"
    assert out.read_summary()["status"] == "stopped"
    assert "Traceback" not in stderr
