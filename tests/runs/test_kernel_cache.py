"""What a process compiles rounds as what the next one finds compiled, or a resumed run would be another one."""

import json
import os

import pytest

from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs
from tests.runs.helpers import bouquet, method, small_settings


@pytest.mark.slow
def test_a_run_that_compiles_its_kernels_equals_one_that_finds_them(tmp_path):
    """Two processes and a cache that was empty: the first run on a machine, and every later one.

    Of PLGC, because it differed where kernels were linked with what they call; that all of them hold it is tested
    beside the kernels.
    """
    cache = tmp_path / "cache"
    settings = small_settings(tmp_path, **method("pfedrec+plgc"), num_server_rounds=6)
    file = tmp_path / "settings.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    runs = [RunDirectory(tmp_path / name) for name in ("compiled", "found")]
    for run in runs:
        arguments = ("--config", str(file), "--engine", "local", "--nodes", "2", "--out", str(run.path))
        done = bouquet("run", *arguments, "--compare-with", "", env={**os.environ, "XDG_CACHE_HOME": str(cache)})
        assert done.returncode == 0, done.stderr
        assert list(cache.rglob("*.nbi")), "nothing was compiled"
    assert_equal_runs(*runs)
