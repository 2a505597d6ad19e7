"""Compiled code that is kept for the next process.

Flower runs an app from a folder that is new for every run, and numba looks its cache up by the path of the source
file; so the kernels are compiled from a copy in the user's cache folder, named by its content.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

from bouquet.files import write_atomically


def kernels() -> ModuleType | None:
    """The kernels of local training, or None where numba is not installed."""
    return _load("kernels")


def row_kernels() -> ModuleType | None:
    """The kernels that find and sum rows, or None where numba is not installed."""
    return _load("row_kernels")


@cache
def _load(name: str) -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    original = Path(__file__).with_name(f"{name}.py")
    source = original.read_bytes()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bouquet" / "kernels"
    path = root / f"{name}_{blake2b(source, digest_size=8).hexdigest()}.py"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, source)
    except OSError:
        path = original  # a read-only home: compile in place, for this process
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # numba looks its own cache up by module name
    spec.loader.exec_module(module)
    return module
