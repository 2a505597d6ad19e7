"""The real thing: Flower's own processes, started, broken, interrupted; and nothing of them left afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tomli_w

from bouquet.engines.flower import FlowerSimulation
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import end_all
from bouquet.engines.release import QUIET_ENVIRONMENT
from bouquet.errors import RunFailed
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.words import short
from bouquet.testing import assert_equal_runs
from tests.conftest import REPOSITORY
from tests.runs.helpers import await_condition, bouquet, pairs, run_here, small_settings, start_bouquet

pytestmark = [pytest.mark.flower, pytest.mark.slow]

KEYS = ("dataset", "data-file", "time-column", "num-server-rounds", "evaluate-every", "checkpoint-every", "batch-size")


@pytest.fixture
def short_folder():
    """A folder with a short path: Ray puts sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def processes_below(folder):
    """Processes whose Flower home is below a folder."""
    mark = f"FLWR_HOME={folder}/".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(line.startswith(mark) for line in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("masks", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "masks"])
def test_flower_gives_what_one_process_gives(tmp_path, short_folder, masks):
    """Sums under masks are exact on their grid, whatever the masks."""
    settings = small_settings(tmp_path)
    given = [*pairs({key: settings[key] for key in KEYS}), "-c", f"secure-sums={str(masks).lower()}"]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    for engine in ("flower", "local"):
        out = str(tmp_path / engine)
        arguments = ["run", "--engine", engine, "--nodes", "3", "--compare-with", "", *given, "--out", out]
        done = bouquet(*arguments, env=environment)
        assert done.returncode == 0, done.stderr
    assert_equal_runs(RunDirectory(tmp_path / "flower"), RunDirectory(tmp_path / "local"), exact=False)
    assert processes_below(short_folder) == []
    assert list(short_folder.iterdir()) == [], "Flower's private folder must be gone"


def simulate(tmp_path, short_folder, fault):
    """A simulation of three nodes whose ClientApp begins training with `fault`."""
    folder = tmp_path / "run"
    settings = small_settings(tmp_path) | {"out": str(folder), "state-dir": str(folder / "nodes")}
    directory = RunDirectory(folder)
    directory.create(settings, {"engine": "flower", "nodes": 3})
    tempfile.tempdir = str(short_folder)
    try:
        with FlowerSimulation(3, settings) as simulation:
            app = simulation.home / "app" / "client_app" / "app.py"
            text = app.read_text()
            place = "    request = TrainRequest.decode("
            assert place in text
            app.write_text(text.replace(place, f"    {fault}\n{place}"))
            simulation.run(lambda: directory.read_summary()["status"] != "running")
    finally:
        tempfile.tempdir = None
        assert processes_below(short_folder) == []
    return directory


def test_a_node_that_raises_under_flower_is_left_out(tmp_path, short_folder):
    fault = 'if context.node_config["partition-id"] == 1: raise RuntimeError("the battery is empty")'
    directory = simulate(tmp_path, short_folder, fault)
    assert directory.read_summary()["status"] == "completed"
    for line in directory.rounds():
        assert line["users"] == 27
        assert line["failures"][0]["reason"] == "the battery is empty"


def test_all_nodes_raising_under_flower_is_a_failed_run(tmp_path, short_folder):
    with pytest.raises(RunFailed, match="finished:failed"):
        simulate(tmp_path, short_folder, 'raise RuntimeError("the battery is empty")')
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert summary["status"] == "failed"
    assert "only 0 of 40 users gave a valid reply" in summary["error"]
    assert "the battery is empty" in summary["error"]


def test_ctrl_c_ends_flower_too(tmp_path, short_folder):
    out = RunDirectory(tmp_path / "run")
    given = pairs({"num-server-rounds": 5000, "checkpoint-every": 1})
    process = start_bouquet("run", *given, "--out", str(out.path), environment={"TMPDIR": str(short_folder)})
    try:
        await_condition(lambda: len(out.rounds()) >= 2)
        assert processes_below(short_folder) != []
        os.kill(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        end_all(lambda: processes_below(short_folder))
    assert process.returncode == 130, stderr
    assert "Go on with: bouquet run -c" in stdout.strip().splitlines()[-1]
    assert out.read_summary()["status"] == "stopped"
    assert processes_below(short_folder) == []


def test_a_killed_run_leaves_no_process_and_no_folder_and_goes_on_exactly(tmp_path, short_folder):
    """kill -9 of `bouquet run` alone after its second round, with everything that Flower and Ray have started."""
    settings = small_settings(tmp_path)
    given = {key: settings[key] for key in (*KEYS, "embedding-size")}
    out = RunDirectory(tmp_path / "run")
    environment = {"TMPDIR": str(short_folder)}
    arguments = ["run", "--nodes", "2", "--compare-with", "", *pairs(given), "--out", str(out.path)]
    process = start_bouquet(*arguments, environment=environment)
    try:
        await_condition(lambda: len(out.rounds()) >= 2)
        assert len(processes_below(short_folder)) > 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        await_condition(lambda: processes_below(short_folder) == [], seconds=60)
        await_condition(lambda: list(short_folder.iterdir()) == [], seconds=60)
    finally:
        end_all(lambda: processes_below(short_folder))
        process.communicate()
    assert out.read_summary() == {"status": "running"}
    resume = ["run", "--compare-with", "", "-c", f'resume="{out.path}"']
    done = bouquet(*resume, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    assert list(short_folder.iterdir()) == []
    assert_equal_runs(out, run_here(tmp_path / "here", settings, 2), exact=False)


def test_plain_flwr_run_works_from_the_checkout(tmp_path, short_folder):
    """`flwr run .` with Flower's own command, against a SuperLink that somebody else started."""
    port, home = free_port(), short_folder / "home"
    home.mkdir()
    connection = {"superlink": {"default": "mine", "mine": {"address": f"127.0.0.1:{port}", "insecure": True}}}
    (home / "config.toml").write_text(tomli_w.dumps(connection))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **QUIET_ENVIRONMENT, "FLWR_HOME": str(home), "RAY_TMPDIR": str(home), "PATH": path}
    superlink = subprocess.Popen(
        ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await_condition(lambda: is_healthy(f"127.0.0.1:{port}"))
        out = RunDirectory(tmp_path / "run")
        changed = f'num-server-rounds=2 out="{out.path}" state-dir="{tmp_path}/state" strategy="fcf"'
        federation = "num-supernodes=3 client-resources-num-cpus=1"
        command = ["flwr", "run", ".", "mine", "--run-config", changed, "--federation-config", federation, "--stream"]
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
        await_condition(lambda: out.summary.exists() and out.read_summary()["status"] != "running")
        summary = out.read_summary()
        assert summary["status"] == "completed", done.stdout + done.stderr
        assert (summary["strategy"], summary["nodes"], summary["rounds"]) == ("fcf", 3, 2)
        assert f"Results go to {out.path}" in done.stdout
        assert "round 1/2; users " in done.stdout
        figures = short(summary["validation"]["full"]["NDCG@10"])
        assert f", NDCG@10 {figures}; " in done.stdout[done.stdout.index(f"round {summary['best_round']}/2; ") :]
        assert f"completed after round 2; best round {summary['best_round']}: test HR@10 " in done.stdout
    finally:
        superlink.send_signal(signal.SIGTERM)
        superlink.wait(timeout=300)
        end_all(lambda: processes_below(short_folder))


def test_results_repeat_from_their_own_configuration(tmp_path):
    first = run_here(tmp_path / "first", small_settings(tmp_path), 2)
    arguments = ["--config", str(first.config), "--engine", "local", "--nodes", "2", "--compare-with", ""]
    done = bouquet("run", *arguments, "--out", str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert_equal_runs(RunDirectory(tmp_path / "again"), first)
