"""Trees of processes: they end with their owner, whatever ends it and wherever they went."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bouquet.engines.processes import TREE_MARK, Members, end_all, marked_processes
from bouquet.own_packages import command as own_program
from tests.runs.helpers import await_condition

# A child, a grandchild in a session of its own, and one that can be made not to listen to SIGTERM.
LAST = """
import signal, sys, time
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
FAMILY = f"""
import subprocess, sys, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
command = [sys.executable, "-c", {LAST!r}, *sys.argv[1:]]
with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as last:
    last.stdout.readline()
    print("up", flush=True)
    time.sleep(600)
"""
OWNER = f"""
import os, subprocess, sys, time
from pathlib import Path
from bouquet.engines.processes import Tree
tree = Tree(Path(sys.argv[1]), grace=float(sys.argv[2]))
environment = {{**os.environ, **tree.environment}}
command = [sys.executable, "-c", {FAMILY!r}, sys.argv[3]]
with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as family:
    tree.lead(family.pid)
    family.stdout.readline()
    print(*tree.environment.values(), flush=True)
    sys.stdin.readline()
    tree.close()
"""
# As `bouquet serve` does it: what it becomes lets a program inherit the pipe.
ROLE = """
import sys
from bouquet.cli.serve import _become
_become(["sh", "-c", "sleep 600 & setsid sleep 600 & echo $BOUQUET_TREE; wait"])
"""


def start(code, *arguments):
    """A Python program, and the mark of its tree once everything of it runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, process.stdout.readline().strip()


def none_left(mark):
    return lambda: marked_processes(TREE_MARK, mark) == []


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "private"
    made.mkdir()
    (made / "file").write_text("x")
    return made


def watcher_of(mark):
    """The watcher has the mark among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if mark.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def ignores(process, signs):
    """Whether a process has said that it does not listen to these signals, of which Linux keeps one bit each."""
    (said,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return all(int(said.split()[1], 16) >> (sign - 1) & 1 for sign in signs)


needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found through /proc")


@needs_proc
@pytest.mark.parametrize("grace", [0.0, 1.0])
@pytest.mark.parametrize("whom", ["the owner", "its group"])
def test_a_tree_ends_when_its_owner_is_killed(folder, grace, whom):
    owner, mark = start(OWNER, str(folder), str(grace), "stubborn")
    await_condition(lambda: len(marked_processes(TREE_MARK, mark)) == 4, seconds=60)
    (os.kill if whom == "the owner" else os.killpg)(owner.pid, signal.SIGKILL)
    owner.wait()
    await_condition(none_left(mark), seconds=60)
    await_condition(lambda: not folder.exists(), seconds=60)
    await_condition(lambda: watcher_of(mark) == [], seconds=60)


@needs_proc
def test_an_owner_ends_its_tree_itself_even_without_the_watcher(folder):
    """The watcher does not listen to Ctrl-C and SIGTERM; killed all the same, it takes nothing with it."""
    owner, mark = start(OWNER, str(folder), "0", "obedient")
    (watcher,) = watcher_of(mark)
    signs = (signal.SIGINT, signal.SIGTERM)
    await_condition(lambda: ignores(watcher, signs), seconds=60)
    for sign in signs:
        os.kill(watcher, sign)
    time.sleep(0.2)
    assert watcher_of(mark) == [watcher]
    os.kill(watcher, signal.SIGKILL)
    owner.communicate("\n", timeout=300)
    assert owner.returncode == 0
    assert none_left(mark)()
    assert not folder.exists()


@needs_proc
def test_what_a_role_has_started_ends_with_it():
    role, mark = start(ROLE)
    # What it starts in the background may be on its way to be another program, and has no environment then.
    await_condition(lambda: len(marked_processes(TREE_MARK, mark)) == 3, seconds=60)
    os.kill(role.pid, signal.SIGKILL)
    role.wait()
    await_condition(none_left(mark), seconds=60)


@needs_proc
def test_what_a_supervisor_supervises_ends_with_it():
    code = f"import os; print(os.environ['{TREE_MARK}'], flush=True)\n{FAMILY}"
    command = "import runpy, sys; sys.argv[1:] = [sys.executable, '-c', sys.argv[1], 'obedient']\n"
    command += "runpy.run_module('bouquet.deployment.supervise', run_name='__main__')"
    supervisor, mark = start(command, code)
    assert supervisor.stdout.readline() == "up\n"
    await_condition(lambda: len(marked_processes(TREE_MARK, mark)) == 4, seconds=60)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    await_condition(none_left(mark), seconds=60)


@needs_proc
def test_a_process_that_keeps_becoming_another_program_is_ended_too(tmp_path):
    """Between two programs a process has no environment for an instant, but it has its session."""
    script = tmp_path / "again.sh"
    script.write_text('#!/bin/sh\nexec /bin/sh "$0"\n')
    for number in range(30):
        mark = f"{os.getpid()}-{number}"
        environment = {**os.environ, TREE_MARK: mark}
        process = subprocess.Popen(["/bin/sh", str(script)], env=environment, start_new_session=True)
        members = Members(mark, os.getsid(0))
        try:
            end_all(lambda members=members, leader=process.pid: members.find([leader]), grace=0)
            assert process.wait(timeout=300) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()


# Its children have nothing in their environment, as after a new name was written over it: two in its session, of which
# one has lost its parent, and one in a session of its own.
NAMELESS = """
import subprocess, sys
lost = "import subprocess; print(subprocess.Popen(['sleep', '600'], env={}, stdout=subprocess.DEVNULL).pid)"
here = subprocess.Popen(["sleep", "600"], env={})
away = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
print(here.pid, away.pid, subprocess.check_output([sys.executable, "-c", lost], text=True).strip(), flush=True)
here.wait()
"""
HOLDER = f"""
import os, subprocess, sys
from bouquet.engines.processes import Tree
tree = Tree(grace=float(sys.argv[1]))
command = [sys.executable, "-c", {NAMELESS!r}]
environment = {{**os.environ, **tree.environment}}
with subprocess.Popen(command, env=environment, start_new_session=True) as family:
    tree.lead(family.pid)
    sys.stdin.readline()
    tree.close()
"""


@needs_proc
@pytest.mark.parametrize("grace", [0.0, 1.0])
@pytest.mark.parametrize("how", ["killed", "in order"])
def test_processes_that_wrote_over_their_environment_are_ended_too(how, grace):
    """Ray's agents write their new names over it, and what they overwrite differs from start to start."""
    beside = subprocess.Popen(["sleep", "600"], env={})
    holder, told = start(HOLDER, str(grace))
    started = [int(number) for number in told.split()]
    assert len(started) == 3
    assert all(is_running(number) for number in started)
    if how == "killed":
        os.kill(holder.pid, signal.SIGKILL)
    holder.communicate("\n", timeout=300)
    await_condition(lambda: not any(is_running(number) for number in started), seconds=60)
    assert beside.poll() is None, "what another process of the owner's session has started is not the tree's"
    beside.kill()
    beside.wait()


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def autogroup_of(*words, **how):
    """The autogroup of a program of ours that is started like this, as it sees it."""
    statement = "print(open('/proc/self/autogroup').read())"
    return subprocess.run(
        [*words, *own_program("timeit"), "-n1", "-r1", statement], capture_output=True, text=True, check=True, **how
    ).stdout.splitlines()[0]


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="the processor is not shared out by sessions here"
)
def test_a_session_of_its_own_gives_way_as_its_process_does():
    assert autogroup_of("nice", "-n", "7", start_new_session=True).endswith("nice 7")
    assert autogroup_of(start_new_session=True).endswith("nice 0")
    before = Path("/proc/self/autogroup").read_text().strip()
    # One that does not lead its session leaves the others in it alone.
    assert autogroup_of("nice", "-n", "7") == before
