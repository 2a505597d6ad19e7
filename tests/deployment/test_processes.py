"""SuperLink and SuperNodes as processes on the loopback: trained on, killed, resumed, and closed to strangers."""

import json
import os
import signal
import subprocess

import psutil
import pytest

from bouquet.cli.public_keys import fingerprint
from bouquet.deployment.keys import make_node_keys
from bouquet.deployment.local import MARK, SUPERLINK
from bouquet.engines.ports import free_port
from bouquet.engines.processes import end_all, marked_processes
from bouquet.engines.release import EXECUTOR_POLL, supernode_command
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.words import short
from bouquet.testing import assert_equal_runs
from tests.deployment.devices import kill, log_of, start_device, with_programs, words_of, write_history
from tests.runs.helpers import await_condition, bouquet, pairs, run_here, small_settings, start_bouquet

pytestmark = [pytest.mark.flower, pytest.mark.slow]

DATA = ("dataset", "data-file", "time-column")


def settings_of(tmp_path, **changes):
    """All settings of a small run, and the arguments of `deploy up` and `deploy run` that give it."""
    settings = small_settings(tmp_path, **changes)
    plain = ("embedding-size", "batch-size", *(key.replace("_", "-") for key in changes))
    up = ["--data-file", settings["data-file"], "-c", "time-column=time"]
    return settings, up, pairs({key: settings[key] for key in plain})


def up(deployment, arguments, nodes=2):
    done = bouquet("deploy", "up", "--dir", str(deployment.folder), "--nodes", str(nodes), *arguments)
    assert done.returncode == 0, done.stderr
    return done


def servers(deployment):
    """The processes that run a ServerApp."""
    return [
        process
        for process in deployment.processes(SUPERLINK)
        if any(b"flwr-serverapp" in word for word in words_of(process))
    ]


def test_a_deployment_gives_what_one_process_gives_and_leaves_nothing(tmp_path, deployment):
    settings, data, given = settings_of(tmp_path, num_server_rounds=2, evaluate_every=2)
    up(deployment, [*data, "--poll-interval", "0.15", "--rest-poll-interval", "2.5"])
    said = [words_of(process) for process in deployment.processes("node-2")]
    assert any({b"--poll-interval=0.15", b"--rest-poll-interval=2.5"} <= set(words) for words in said)
    (asks,) = {psutil.Process(process).environ().get(EXECUTOR_POLL) for process in deployment.processes(SUPERLINK)}
    assert asks == "0.15"
    out = tmp_path / "run"
    into = ["--out", out.name, "--compare-with", "popularity"]
    done = bouquet("deploy", "run", "--dir", str(deployment.folder), *given, *into, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_equal_runs(RunDirectory(out), run_here(tmp_path / "here", settings, 2), exact=False)
    kept = [path.name for path in RunDirectory(out).reported.path.iterdir()]
    best = RunDirectory(out).read_summary()["best_round"]
    assert kept == [f"round-{best:06d}.safetensors"], "what single users would be shown stays with them"
    row = next(line for line in done.stdout.splitlines() if line.startswith("most popular items"))
    beside = RunDirectory(out).read_json("comparison.json")["popularity"]["test"]["full"]["NDCG@10"]
    assert f"{beside:.3f}".removeprefix("0") in row

    said = log_of(deployment, 2)
    measured = RunDirectory(out).rounds()[1]["validation"]["full"]
    figures = f"HR@10 {short(measured['HR@10'])}, NDCG@10 {short(measured['NDCG@10'])}"
    assert "round 1/2; users 40/40; loss " in said
    assert f"; validation {figures}; " in said[said.index("round 2/2") :]
    assert "completed after round 2; best round 2: test HR@10 " in said

    refused = bouquet("deploy", "run", "--dir", str(deployment.folder), *given, "--out", str(out))
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr
    for rows, reason in {
        ("--compare-with", "popularty"): "Did you mean 'popularity'?",
        ("--compare-with", "ease", "-c", 'catalogue-file="c.csv"'): "those of devices stay on the devices",
    }.items():
        refused = bouquet("deploy", "run", "--dir", str(deployment.folder), *given, *rows)
        assert refused.returncode == 2
        assert reason in refused.stderr

    # Without enough users the run fails, and so does the command.
    failing = ["-c", f'min-nodes=3 node-timeout=2.0 out="{tmp_path / "failing"}"']
    failed = bouquet("deploy", "run", "--dir", str(deployment.folder), *given, *failing)
    assert failed.returncode == 1
    assert "of 3 nodes came within 2 s" in failed.stderr

    status = json.loads(bouquet("deploy", "status", "--dir", str(deployment.folder), "--format", "json").stdout)
    assert (status["superlink"], status["nodes"]) == ("up", {"online": 2})

    keys = deployment.keys / "nodes" / "node-1"
    assert (keys / "node.key").stat().st_mode & 0o077 == 0, "nobody else may read a private key"
    (state,) = (deployment.folder / "nodes" / "node-1" / "state").glob("*/node-0-of-2")
    assert {path.suffix for path in state.iterdir()} == {".sealed"}, "private state is encrypted"
    events = [json.loads(line) for line in RunDirectory(out).events.read_text().splitlines()]
    assert [entry["round"] for entry in events if entry["event"] == "round"] == [1, 2]
    assert '"event": "trained"' in deployment.log("node-1").read_text()

    assert bouquet("deploy", "down", "--dir", str(deployment.folder)).returncode == 0
    assert marked_processes(MARK, str(deployment.folder)) == []


def test_what_a_removed_folder_left_running_does_not_keep_a_new_deployment_from_starting(tmp_path, deployment):
    up(deployment, [], nodes=0)
    left = deployment.processes(SUPERLINK)
    assert left
    deployment.folder.rename(tmp_path / "away")  # at once, whatever is being written
    up(deployment, [], nodes=0)
    assert deployment.processes(SUPERLINK)
    assert not set(left) & set(deployment.processes(SUPERLINK))


def test_every_user_has_a_table_of_its_own_over_grpc_too(tmp_path, deployment):
    """FedCA sends each user another item table; 2 rounds give what one process gives."""
    changes = {"strategy": "fedca", "num_server_rounds": 2, "evaluate_every": 2, "fedca_k": 2}
    settings, data, given = settings_of(tmp_path, **changes)
    up(deployment, data)
    out = RunDirectory(tmp_path / "run")
    done = bouquet("deploy", "run", "--dir", str(deployment.folder), *given, "-c", f'out="{out.path}"')
    assert done.returncode == 0, done.stderr
    assert_equal_runs(out, run_here(tmp_path / "here", settings, 2), exact=False)
    assert (out.path / "fedca" / "matrices.safetensors").exists()


def test_a_killed_node_is_left_out_and_taken_back(tmp_path, deployment):
    """kill -9 of a SuperNode and its ClientApp after round 1; started again, it takes part with its old state."""
    _, data, given = settings_of(tmp_path, num_server_rounds=500, evaluate_every=500, round_timeout=45.0)
    up(deployment, data)
    out = RunDirectory(tmp_path / "run")
    process = start_bouquet("deploy", "run", "--dir", str(deployment.folder), *given, "-c", f'out="{out.path}"')
    await_condition(lambda: len(out.rounds()) >= 1)
    kill(deployment.processes("node-2"))
    await_condition(lambda: out.rounds()[-1]["users"] == 20)
    deployment.start_node("node-2")
    await_condition(lambda: out.rounds()[-1]["users"] == 40, seconds=240)
    rounds = out.rounds()
    assert any(line["nodes"]["came"] for line in rounds), "the node came back"
    assert sum(len(line["failures"]) for line in rounds) <= 2, "a dead node is not asked in every round"
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert out.read_summary()["status"] == "stopped"


def test_a_run_goes_on_after_its_superlink_and_its_server_were_killed(tmp_path, deployment):
    """Invariant 6 over gRPC: 6 rounds with two kills equal 6 rounds without."""
    settings, data, given = settings_of(tmp_path, num_server_rounds=6, evaluate_every=3, checkpoint_every=1)
    up(deployment, data)
    out = RunDirectory(tmp_path / "run")
    folder = ["--dir", str(deployment.folder)]

    process = start_bouquet("deploy", "run", *folder, *given, "-c", f'out="{out.path}"')
    await_condition(lambda: len(out.rounds()) >= 2)
    kill(deployment.processes(SUPERLINK))
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 1
    assert f"Go on with: bouquet deploy run -c 'resume=\"{out.path}\"'" in stderr

    up(deployment, data)
    process = start_bouquet("deploy", "run", *folder, "-c", f'resume="{out.path}"')
    await_condition(lambda: len(out.rounds()) >= 4)
    kill(servers(deployment))
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 1, stderr

    done = bouquet("deploy", "run", *folder, "-c", f'resume="{out.path}"')
    assert done.returncode == 0, done.stderr
    assert_equal_runs(out, run_here(tmp_path / "here", settings, 2), exact=False)


def started(command, tmp_path):
    """Run a SuperNode that must end by itself: its status and what it printed."""
    environment = {**with_programs(tmp_path), "FLWR_TELEMETRY_ENABLED": "0"}
    log = tmp_path / "log.txt"
    # A file, not a pipe: what a SuperNode starts lives a little longer than it does.
    with log.open("w") as file:
        done = subprocess.run([*command, "--max-retries", "1"], env=environment, stdout=file, stderr=file, timeout=300)
    return done.returncode, log.read_text()


def test_strangers_are_refused(tmp_path, deployment):
    """A key that nobody registered, no certificate of the authority, a client without TLS: none gets in."""
    up(deployment, [], nodes=0)
    fleet, good = deployment.plan.fleet, tmp_path / "stranger"
    make_node_keys(good)
    (good / "ca.crt").write_bytes((deployment.keys / "operator" / "ca.crt").read_bytes())
    command = supernode_command(fleet, good, {"partition-id": 0})

    status, said = started(command, tmp_path)
    assert status != 0
    assert "Failed to activate SuperNode" in said, said

    place = command.index("--root-certificates")
    status, said = started(command[:place] + command[place + 2 :], tmp_path)
    assert status != 0
    assert "Failed to initialize the connection" in said, said

    plain = ["flower-supernode", "--insecure", "--superlink", fleet, "--host", "127.0.0.1", "--port", str(free_port())]
    status, said = started(plain, tmp_path)
    assert status != 0
    assert "Failed to initialize the connection" in said, said
    assert deployment.control.nodes() == [], "nobody was let in"

    # The same command gets in once its key is registered: nothing else was wrong with it.
    deployment.control.register(good / "node.pub")
    environment = {**with_programs(tmp_path), MARK: str(deployment.folder)}
    with (tmp_path / "log.txt").open("w") as file:
        node = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        await_condition(lambda: [entry["status"] for entry in deployment.control.nodes()] == ["online"])
    finally:
        node.terminate()
        node.wait(timeout=300)


def test_a_device_waits_in_words_joins_once_registered_and_leaves_nothing_when_it_is_killed(tmp_path, deployment):
    up(deployment, [], nodes=0)
    before = set(marked_processes(MARK, str(deployment.folder)))
    said, fleet, public = tmp_path / "said.txt", deployment.plan.fleet, tmp_path / "state" / "keys" / "node.pub"
    write_history(tmp_path / "history.csv", ["a", "b", "c"])
    device = start_device(tmp_path, deployment, said)
    await_condition(lambda: "Not let in yet. Next try in 4 s." in said.read_text())
    waiting = (
        f"Waiting to be let in by the SuperLink at {fleet}: the operator must register this device's key, {public} ("
    )
    assert said.read_text().count(waiting) == 1
    assert f"  bouquet deploy register {public}\nNext try in 2 s." in said.read_text()

    status = bouquet("node", "status", "--state", str(tmp_path / "state")).stdout
    assert f"SuperLink  {fleet}: waiting to be let in since " in status
    assert f"with: bouquet deploy register {public}" in status

    node = f"{public} ({fingerprint(public)}): "
    for answer in (f"{node}let in, as node ", f"{node}was let in before."):
        done = bouquet("deploy", "register", str(public), "--dir", str(deployment.folder))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(answer)
    connected = f"Connected: the SuperLink at {fleet} has let this device in."
    await_condition(lambda: connected in said.read_text())
    assert [entry["status"] for entry in deployment.control.nodes()] == ["online"]

    os.kill(device.pid, signal.SIGKILL)
    device.wait()
    await_condition(lambda: set(marked_processes(MARK, str(deployment.folder))) <= before, seconds=60)
    assert [entry["status"] for entry in deployment.control.nodes()] == ["offline"], "the SuperNode said goodbye"

    again = tmp_path / "again.txt"
    device = start_device(tmp_path, deployment, again)
    await_condition(lambda: connected in again.read_text())
    os.kill(device.pid, signal.SIGINT)
    assert device.wait(timeout=300) == 130
    assert set(marked_processes(MARK, str(deployment.folder))) <= before
    for text in (said.read_text(), again.read_text()):
        assert "Traceback" not in text
        assert "Exit Code" not in text
    assert "Exit Code: 305" in (tmp_path / "state" / "flower.log").read_text()


def test_what_a_killed_supervisor_has_started_ends_too_and_no_secret_stays_behind(tmp_path, deployment, monkeypatch):
    """kill -9 of the process that keeps node-1 running; `up` starts it again; then kill -9 of all of node-1 at once."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    _, data, _ = settings_of(tmp_path)
    up(deployment, data, nodes=1)
    (supervisor,) = [
        process for process in deployment.processes("node-1") if b"bouquet.deployment.supervise" in words_of(process)
    ]
    assert len(deployment.processes("node-1")) > 2
    os.kill(supervisor, signal.SIGKILL)
    await_condition(lambda: deployment.processes("node-1") == [], seconds=60)
    up(deployment, data, nodes=1)
    end_all(lambda: deployment.processes("node-1"), grace=0)
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert not [path for path in left if "secret" in path.name or len(path.read_bytes()) == 32], left
