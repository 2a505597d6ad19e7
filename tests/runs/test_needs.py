"""What a run needs is known before its first round: as much as it then takes, and too much is refused at once."""

import json
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bouquet import needs
from bouquet.arrays import ArraySpec
from bouquet.cli.beforehand import FIRST_USE_BYTES
from bouquet.config import RunConfig, parsed
from bouquet.errors import RunFailed, StateError
from bouquet.methods import METHODS
from bouquet.needs import expected_rows, in_words, refuse_disk, reserved_addresses, update_bytes, writable
from bouquet.reporting.run_directory import RunDirectory
from strategies import strategy_of
from strategies.federation.needs import disk_needed, memory_needed, refuse_what_does_not_fit
from strategies.federation.roster import Roster
from tests.runs.helpers import bouquet, pairs, run_here, small_settings, write_data

# A run in a process of its own, under a limit of so many bytes more than it has when its need is known. A run of few
# users goes before it: what a process takes once (imports, the compiler where no kernel is cached, threads) is no part
# of a need, and would be half of what is measured on a fresh machine.
MEASURED = """
import io, json, resource, sys, tempfile, threading
from pathlib import Path
from rich.console import Console
from bouquet.cli import beforehand, run
from bouquet.cli.screen import Screen
settings, nodes, room = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
screen = Screen(Console(file=io.StringIO()))
with tempfile.TemporaryDirectory() as out:
    run.execute(settings | {"max-users": 20, "out": out + "/run"}, 2, "local", screen)
told, most, disk, look = {}, [0, 0], [0], threading.Event()
def used(column):
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[column])
def noted(name, real, **also):
    def call(need, *rest, **options):
        told[name] = told.get(name, 0) + need
        most[0] = used(1)
        if room and name == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (used(0) + room, resource.RLIM_INFINITY))
        real(need, *rest, **options)
    return call
beforehand.refuse_memory = noted("memory", beforehand.refuse_memory)
beforehand.refuse_disk = noted("disk", beforehand.refuse_disk)
def watch():
    looks = 0
    while not look.wait(0.005):
        most[1] = max(most[1], used(1))
        looks += 1
        if looks % 10:
            continue
        files = [path for path in Path(settings["out"]).rglob("*.npy")]
        files += [path for path in Path(settings["out"]).rglob("*.safetensors")]
        try:
            disk[0] = max(disk[0], sum(512 * path.stat().st_blocks for path in files))
        except FileNotFoundError:
            pass
threading.Thread(target=watch).start()
try:
    run.execute(settings, nodes, "local", screen)
finally:
    look.set()
print(json.dumps({"told": told, "grew": most[1] - most[0], "disk": disk[0]}))
"""


# Tables of .26 MB for each of 500 users.
FEDCA = {"strategy": "fedca", "embedding-size": 128}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Settings of two rounds for 500 users and about 500 items."""
    file = write_data(tmp_path_factory.mktemp("data") / "data.csv", users=500, items=500, length=20.0)
    settings = small_settings(file.parent, num_server_rounds=2, embedding_size=32)
    return settings | {"data-file": str(file), "batch-size": 2048}


def measured(settings, out, nodes, room=0, **environment):
    settings = settings | {"out": str(out)}
    arguments = [json.dumps(settings), str(nodes), str(room)]
    return subprocess.run(
        [sys.executable, "-c", MEASURED, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def of_fedca(data, tmp_path_factory):
    """What FedCA is told to need of a machine, and what it took."""
    # The GNU library keeps some of what was freed: up to a third of this run, and another part of it every time.
    returned = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = measured(data | FEDCA, tmp_path_factory.mktemp("fedca") / "run", 4, **returned)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_memory_is_told_and_not_much_more(data, tmp_path, of_fedca):
    """Tables of all users, and messages to many nodes; what libraries take once is apart."""
    settings = data | {"strategy": "fcf", "embedding-size": 128, "checkpoint-every": 0, "num-server-rounds": 1}
    done = measured(settings, tmp_path / "run", 400)
    assert done.returncode == 0, done.stderr
    for found in (of_fedca, json.loads(done.stdout)):
        told = found["told"]["memory"] - FIRST_USE_BYTES
        assert 0.9 * found["grew"] < told < 1.7 * found["grew"], found


@pytest.mark.slow
def test_disk_is_told_within_a_tenth(data, tmp_path, of_fedca):
    measures = [of_fedca]
    for strategy in ("local", "pfedrec"):
        done = measured(data | {"strategy": strategy}, tmp_path / strategy, 4)
        assert done.returncode == 0, done.stderr
        measures.append(json.loads(done.stdout))
    for found in measures:
        assert 0.9 * found["disk"] < found["told"]["disk"] < 1.1 * found["disk"], found


@pytest.mark.slow
def test_what_is_let_through_fits_and_what_does_not_is_refused(data, tmp_path, of_fedca):
    """Under limits of half of what FedCA is told to need here, and of a third more."""
    settings, need = data | FEDCA, of_fedca["told"]["memory"]
    refused = measured(settings, tmp_path / "refused", 4, reserved_addresses() + int(0.5 * need))
    assert refused.returncode != 0
    assert "RunFailed: fedca on 4 nodes for 500 users with tables of " in refused.stderr
    assert "a smaller fraction-train, a smaller embedding-size, or another strategy." in refused.stderr
    assert not (tmp_path / "refused").exists()
    fits = measured(settings, tmp_path / "fits", 4, reserved_addresses() + int(1.33 * need))
    assert fits.returncode == 0, fits.stderr


def test_fedca_for_fifty_thousand_users_is_refused_in_seconds(tmp_path):
    """n x n matrices alone are 20 GB each; a limit stands for a machine with less than that."""
    users, items = 50_000, 1000
    columns = {"user": np.repeat(np.arange(users), 4), "item": np.arange(4 * users) % items, "time": 0}
    pd.DataFrame(columns).to_csv(tmp_path / "data.csv", index=False)
    settings = {"dataset": "file", "data-file": str(tmp_path / "data.csv"), "strategy": "fedca"}
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({40 * 10**9}, {40 * 10**9})); "
    program = limit + "from bouquet.cli.main import main; main()"
    arguments = ["run", "--engine", "local", "--out", str(tmp_path / "run"), *pairs(settings)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("fedca on 4 nodes for 50,000 users with tables of 1,000 x 16 needs about ")
    assert "GB of memory, and this machine has" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_server_refuses_it_by_itself(tmp_path):
    """By hand, n = 50,000 and P = 4 * 1000 * 16 = 64 KB a user: the tables to mix are n P = 3.2 GB, one goes to each
    user, 3.2 GB, and s, c, w and what w is made of are 4 * 8 n^2 = 80 GB.
    """
    n = 50_000
    specs = {"item_embedding": ArraySpec((1000, 16), by_item=True)}
    roster = Roster(
        np.arange(n, dtype=np.uint64), np.full(n, 2), np.ones(n, np.uint64), 1, 2 * n, 0, 1000, "", specs
    )  # fmt: skip
    settings = parsed({"strategy": "fedca"})
    strategy = strategy_of(settings, RunDirectory(tmp_path / "run"))
    strategy.roster = roster
    # Replies, twice: 2 positives and 8 negatives of 1000 items are 10 rows of 17 words.
    assert memory_needed(strategy) == pytest.approx(86.4e9 + 2 * n * 10 * 68, rel=0.01)
    small = strategy_of(settings, RunDirectory(tmp_path / "run"))
    small.roster = Roster(roster.users[:9], roster.sizes[:9], roster.node_of[:9], 1, 18, 0, 1000, "", specs)
    refuse_what_does_not_fit(small)


def fedca_on_gowalla(tmp_path, **changes):
    """FedCA's server for 29,858 users with 34 interactions each and tables of 40,981 items, d = 16: P = 2.62 MB."""
    n, m = 29_858, 40_981
    settings = parsed({"strategy": "fedca", "num-server-rounds": 3, **changes})
    strategy = strategy_of(settings, RunDirectory(tmp_path / "run"))
    specs = {"item_embedding": ArraySpec((m, 16), by_item=True)}
    strategy.roster = Roster(
        np.arange(n, dtype=np.uint64), np.full(n, 34), np.ones(n, np.uint64), 1, 34 * n, 0, m, "", specs
    )  # fmt: skip
    return strategy


def test_fedca_needs_memory_for_the_users_of_a_round_and_disk_for_those_of_all(tmp_path):
    """By hand, P = 4 * 40,981 * 16 = 2.62 MB and 300 users a round of three: 600 P are sent and mixed, 1.57 GB, and
    three times those of 32 users are worked with.

    Of the users 1 - (1 - .01005)^3 = 2.98 % take part, with two tables each: 891 * 2 P = 4.67 GB of disk, and one
    more of each kind that all start from. With a checkpoint after each round it has, of the 2 % who took part before
    the third, a hundredth's older tables as well: 6 * 2 P. All users in every round are 2 * 78 GB.
    """
    size = 4 * 40_981 * 16
    few = fedca_on_gowalla(tmp_path, **{"fraction-train": 0.01005, "checkpoint-every": 0})
    replies = 2 * 300 * 4 * 17 * (34 + (40_981 - 34) * (1 - np.exp(-4 * 34 / (40_981 - 34))))
    working = 3 * 32 * size + 4 * 8 * 300**2 + 2 * 29_858 * (8 + 4)
    assert memory_needed(few) == pytest.approx(600 * size + replies + working, rel=0.001)
    assert disk_needed(few) == pytest.approx((891 + 1) * 2 * size, rel=0.001)
    often = fedca_on_gowalla(tmp_path, **{"fraction-train": 0.01005, "checkpoint-every": 1})
    assert often.stored_bytes() == pytest.approx((891 + 6 + 1) * 2 * size, rel=0.001)
    everybody = fedca_on_gowalla(tmp_path, **{"checkpoint-every": 0})
    assert disk_needed(everybody) == pytest.approx((29_858 + 1) * 2 * size)


def test_fedca_that_does_not_fit_says_that_fewer_in_a_round_would(tmp_path, monkeypatch):
    strategy = fedca_on_gowalla(tmp_path)
    monkeypatch.setattr("bouquet.needs.free_memory", lambda **_: 10e9)
    with pytest.raises(
        RunFailed, match=r"of memory, .* take fewer users \(max-users\), a smaller fraction-train, a sm"
    ):
        refuse_what_does_not_fit(strategy)
    monkeypatch.setattr("bouquet.needs.free_memory", lambda **_: 1e12)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100e9))
    with pytest.raises(
        RunFailed, match="^The checkpoints and the users' tables of fedca on .* needs about 157 GB of disk"
    ):
        refuse_what_does_not_fit(strategy)


@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_every_strategy_says_what_it_needs(tmp_path, strategy, monkeypatch):
    """A machine without memory, and one without disk, refuse every one before training."""
    settings = small_settings(tmp_path, strategy=strategy, num_server_rounds=1, checkpoint_every=1)
    if strategy != "local":
        monkeypatch.setattr("bouquet.needs.free_memory", lambda **_: 1)
        with pytest.raises(RunFailed, match=f"^{strategy} on 2 nodes for 40 users .* of memory, and this machine has"):
            run_here(tmp_path / "memory", settings, 2)
        assert RunDirectory(tmp_path / "memory").rounds() == []
        monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
    with pytest.raises(RunFailed, match="of disk under .* and there is room for"):
        run_here(tmp_path / "disk", settings, 2)
    assert RunDirectory(tmp_path / "disk").rounds() == []


def test_a_node_says_that_its_state_does_not_fit(tmp_path, monkeypatch):
    """The server keeps no checkpoints here, so only nodes need a disk; their sentence comes back."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
    settings = small_settings(tmp_path, strategy="local", checkpoint_every=0)
    with pytest.raises(RunFailed, match="The private state of 40 users needs about .* of disk under .*state-dir"):
        run_here(tmp_path / "run", settings, 2)


def test_a_run_that_is_stopped_by_a_full_disk_needs_nothing_more_when_it_goes_on(tmp_path, monkeypatch):
    """What lies in the folder counts as room: it is replaced."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "state").write_bytes(b"x" * 40_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    refuse_disk(40_000, tmp_path / "here", "A run", "nothing.")
    with pytest.raises(RunFailed, match=r"^A run needs about 50 KB of disk under .*, and there is room for 4. KB: no"):
        refuse_disk(50_000, tmp_path / "here", "A run", "nothing.")


def test_rows_by_hand():
    """Of 10 items a user has 2; 4 negatives a positive hit each of the other 8 with 1 - e^-1: 2 + 8 * 0.632 = 7.06."""
    rows = expected_rows(np.array([2, 10]), 10, 4, RunConfig())
    np.testing.assert_allclose(rows, [2 + 8 * (1 - np.exp(-1)), 10])
    np.testing.assert_array_equal(expected_rows(np.array([2]), 10, 4, RunConfig(weight_decay=0.1)), [10])
    specs = {"item": ArraySpec((10, 3), by_item=True), "network": ArraySpec((5,))}
    assert update_bytes(specs, np.array([7.0, 10.0])) == 17 * 4 * 4 + 2 * 5 * 4


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (2_400_000, "2 MB"), (11.2e9, "11.2 GB"),
                         (96.4e9, "96.4 GB"), (1.234e12, "1,234 GB")],
)  # fmt: skip
def test_bytes_in_words(count, words):
    assert in_words(count) == words


def test_limits_of_groups_and_of_the_process_count(tmp_path, monkeypatch):
    """A group of version 2 with 1,000 of 5,000 bytes used, 300 of them cached; one above it without a limit."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, most in ((inner, "5000"), (inner.parent, "max")):
        (folder / "memory.max").write_text(most + "\n")
        (folder / "memory.current").write_text("1000\n")
        (folder / "memory.stat").write_text("anon 700\ninactive_file 300\n")
    monkeypatch.setattr(needs, "_CGROUPS", tmp_path)
    monkeypatch.setattr(needs, "_GROUPS_OF_PROCESS", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    assert needs.free_memory() == 4300
    version_1 = tmp_path / "memory" / "one"
    version_1.mkdir(parents=True)
    for name, text in {"limit_in_bytes": "2000", "usage_in_bytes": "900", "stat": "total_inactive_file 100"}.items():
        (version_1 / f"memory.{name}").write_text(text)
    (tmp_path / "cgroup").write_text("4:memory:/one\n2:cpu:/other\n")
    assert needs.free_memory() == 1200
    (tmp_path / "cgroup").write_text("")
    assert 0 < needs.free_memory() <= resource.RLIM_INFINITY % 2**64


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    assert writable(tmp_path / "a" / "b") == tmp_path
    with pytest.raises(StateError, match=r"b cannot be a folder: .*file is a file"):
        writable(tmp_path / "file" / "b")


def test_the_program_ends_with_the_sentence(tmp_path):
    """More nodes than cores, each with its copy of a wide table: refused before anything is written."""
    settings = {"max-users": 600, "embedding-size": 2_000_000, "strategy": "fcf"}
    done = bouquet("run", "--nodes", "600", "--out", str(tmp_path / "run"), *pairs(settings))
    assert done.returncode == 1
    assert "take fewer users (max-users), a smaller embedding-size, or fewer nodes." in done.stderr
    assert list(tmp_path.iterdir()) == []
