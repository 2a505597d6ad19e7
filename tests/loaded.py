"""What a fresh process has loaded."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import REPOSITORY


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Top-level names of all modules that a fresh process has after some code."""
    said = "\nimport json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", code + said, *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))
