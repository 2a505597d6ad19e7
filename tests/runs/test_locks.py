"""One run at a time in a folder, and one process at a time on a node's state."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from bouquet.errors import ConfigError, StateError
from bouquet.files import is_locked, locked, private_folder, write_atomically
from bouquet.reporting import run_directory
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs
from client_app.node.host import host_of
from client_app.state import folders as folders_module
from tests.conftest import REPOSITORY
from tests.runs.helpers import await_condition, bouquet, pairs, run_here, small_settings, start_bouquet


def given(settings, **changes):
    """The arguments that make `bouquet run` carry out these small settings."""
    keys = ("dataset", "data-file", "time-column", "embedding-size", "batch-size", "evaluate-every", "checkpoint-every")
    chosen = {key: settings[key] for key in keys} | changes
    return ["run", "--engine", "local", "--nodes", "2", "--compare-with", "", *pairs(chosen)]


def go_on(directory, text=""):
    return ["run", "--compare-with", "", "-c", f'resume="{directory.path}" {text}']


def test_a_folder_in_which_a_run_is_at_work_is_refused_until_the_run_is_gone(tmp_path, monkeypatch):
    settings = small_settings(tmp_path, num_server_rounds=100_000)
    directory = RunDirectory(tmp_path / "run")
    process = start_bouquet(*given(settings, **{"num-server-rounds": 100_000}), "--out", str(directory.path))
    try:
        await_condition(lambda: any(directory.checkpoints.glob("*.safetensors")))
        sentence = f"Another run is at work in {directory.path}. Wait until it has ended, or end it."
        done = bouquet(*go_on(directory))
        assert (done.returncode, done.stderr.strip()) == (2, sentence)
        # A ServerApp that anybody else has started, as `flwr run` does.
        monkeypatch.setattr(run_directory, "_ENDING_SECONDS", 0.0)
        with pytest.raises(ConfigError, match="Another run is at work in"):
            run_here(directory.path, settings | {"resume": str(directory.path)}, 2)
        assert directory.read_summary() == {"status": "running"}, "nothing of the run at work was touched"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not directory.is_at_work()
    rounds = directory.rounds()[-1]["round"] + 2
    done = bouquet(*go_on(directory, f"num-server-rounds={rounds}"))
    assert done.returncode == 0, done.stderr


def test_of_two_resumes_at_once_one_is_refused_and_the_other_is_exact(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=150, checkpoint_every=50)
    whole = run_here(tmp_path / "whole", settings, 2)
    short = given(settings, **{"num-server-rounds": 50, "checkpoint-every": 50})
    directory = RunDirectory(tmp_path / "parts")
    assert bouquet(*short, "--out", str(directory.path)).returncode == 0
    both = [start_bouquet(*go_on(directory, "num-server-rounds=150")) for _ in range(2)]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in both]
    assert sorted(status for _, _, status in ended) == [0, 2], ended
    (refused,) = [error for _, error, status in ended if status == 2]
    # Which of them is late is up to the machine: it finds the other at work, or done.
    assert f"Another run is at work in {directory.path}" in refused or "has finished all 150 rounds" in refused
    assert_equal_runs(directory, whole)


def test_a_message_waits_for_another_process_on_the_same_state(tmp_path, monkeypatch):
    """A Ray actor of a run that was ended, still in the middle of a round: another process holds the node's lock."""
    monkeypatch.setattr(folders_module, "BUSY_SECONDS", 0.2)
    settings = small_settings(tmp_path) | {"state-dir": str(tmp_path / "state")}
    host, other = (host_of(settings, {"partition-id": n, "num-partitions": 2}) for n in (0, 1))
    with host.folders.alone("series"):
        lock = host.folders.of_series("series") / "node-0-of-2.lock"
        script = f"""
import fcntl
try:
    fcntl.flock(open({str(lock)!r}, "r+"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("busy")
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "busy\n"
        with (
            pytest.raises(StateError, match="Another process is at work on .*node-0-of-2"),
            host.folders.alone("series"),
        ):
            pass
        with other.folders.alone("series"), host.folders.alone("another"):
            pass
    with host.folders.alone("series"):
        pass


def test_a_lock_ends_with_its_process(tmp_path):
    script = """
import sys, time
from pathlib import Path
from bouquet.files import locked
with locked(Path(sys.argv[1]), ValueError()):
    print("held", flush=True)
    time.sleep(600)
"""
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout.readline() == "held\n"
    assert is_locked(path)
    process.kill()
    process.communicate()
    assert not is_locked(path)
    with locked(path, ValueError()):
        assert is_locked(path)


# -- who may look ------------------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def generous():
    """A umask that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous")
def test_private_state_checkpoints_and_metrics_by_user_are_their_owners_alone(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, strategy="pfedrec", num_server_rounds=2), 2)
    (series,) = directory.nodes.iterdir()
    for folder in (directory.checkpoints, series, *(path for path in series.iterdir() if path.is_dir())):
        assert mode(folder) == 0o700, folder
        for path in folder.iterdir():
            assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    assert mode(directory.users) == 0o600
    assert mode(directory.summary) == 0o666, "figures over all users are as readable as the umask says"


@pytest.mark.usefixtures("generous")
def test_a_wider_folder_of_ours_is_closed_and_what_lies_in_it_stays(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("kept")
    assert mode(private_folder(folder)) == 0o700
    assert (folder / "file").read_text() == "kept"
    write_atomically(folder / "file", "new", private=True)
    assert mode(folder / "file") == 0o600


def test_a_folder_that_somebody_else_has_made_is_refused(tmp_path, monkeypatch):
    """Whose owner may open it again whenever he likes; root looks after the folders of others."""
    folder = tmp_path / "state"
    folder.mkdir()
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=rf"it belongs to another user of this machine \({owner}\): '{folder}'"):
        private_folder(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert private_folder(folder) == folder


def test_who_stopped_a_run_has_the_last_word_and_a_completed_one_stays_completed(tmp_path):
    """A server whose run is ended under it fails a moment before or after the operator writes."""
    directory = RunDirectory(tmp_path)
    words = {"failed": lambda: directory.write_failed("no such run"), "stopped": directory.write_stopped}
    for first, second in (("failed", "stopped"), ("stopped", "failed")):
        directory.write_summary({"status": "running"})
        words[first]()
        assert directory.read_summary()["status"] == first
        words[second]()
        assert directory.read_summary() == {"status": "stopped", "rounds": 0}
    directory.write_summary({"status": "completed"})
    directory.write_stopped()
    assert directory.read_summary() == {"status": "completed"}


def test_a_server_that_still_works_is_waited_for_before_a_run_is_called_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "_ENDING_SECONDS", 60.0)
    directory = RunDirectory(tmp_path)
    directory.write_summary({"status": "running"})
    held, wanted = threading.Event(), threading.Event()

    def server():
        with RunDirectory(tmp_path).work():
            held.set()
            wanted.wait()
            directory.write_summary({"status": "failed", "error": "no such run"})

    thread = threading.Thread(target=server)
    thread.start()
    held.wait()
    waiting = directory.work

    def observed():
        wanted.set()
        return waiting()

    monkeypatch.setattr(directory, "work", observed)
    directory.write_stopped()
    thread.join()
    assert directory.read_summary()["status"] == "stopped"
