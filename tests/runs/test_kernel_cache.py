"""What a process compiles rounds as what the next one finds compiled, or a resumed run would be another one."""

import json
import os

import pytest

from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs
from tests.runs.helpers import bouquet, method, small_settings

ROWS = {
    "fedavg on ncf": {"strategy": "fedavg", "backbone": "ncf"},
    "fed3cr": method("fed3cr"),
    "cf-fedsr": method("cf-fedsr"),
    "pfedrec+ace": method("pfedrec+ace"),
    "pfedrec+plgc": method("pfedrec+plgc"),
}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_run_that_compiles_its_kernels_equals_one_that_finds_them(tmp_path, row):
    """Two processes and a cache that was empty: the first run on a machine, and every later one."""
    cache = tmp_path / "cache"
    settings = small_settings(tmp_path, **ROWS[row], num_server_rounds=6)
    file = tmp_path / "settings.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    runs = [RunDirectory(tmp_path / name) for name in ("compiled", "found")]
    for run in runs:
        arguments = ("--config", str(file), "--engine", "local", "--nodes", "2", "--out", str(run.path))
        done = bouquet("run", *arguments, "--compare-with", "", env={**os.environ, "XDG_CACHE_HOME": str(cache)})
        assert done.returncode == 0, done.stderr
        assert list(cache.rglob("*.nbi")), "nothing was compiled"
    assert_equal_runs(*runs)
