"""Compiled code that is kept for the next process.

Flower runs an app from a folder that is new for every run, and numba looks its cache up by the path of the source
file; so the kernels are compiled from a copy in the user's cache folder, named by its content.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from bouquet.extras import is_there
from bouquet.files import write_atomically

# They are copied together, because one may import another (`from .kernels import …`).
_MODULES = (
    "kernels_compile",
    "kernels_batches",
    "kernels_logistic",
    "kernels",
    "row_kernels",
    "kernels_small",
    "kernels_ncf",
    "kernels_tiles",
    "kernels_products",
    "kernels_recurrence",
    "kernels_gru",
    "kernels_decorrelation",
    "kernels_nested",
    "kernels_columns",
    "kernels_redundancy",
    "kernels_mixed",
    "kernels_mixed_ncf",
    "kernels_transfer",
    "kernels_enhanced",
    "kernels_enhanced_ncf",
    "kernels_alternatives",
    "kernels_enhanced_sum",
    "kernels_constraints",
    "kernels_views",
    "kernels_normals",
)


def kernels() -> ModuleType | None:
    """The compiled kernels, or None where numba is not installed."""
    return _load("kernels")


def batch_kernels() -> ModuleType | None:
    """The compiled order of batches, or None where numba is not installed."""
    return _load("kernels_batches")


def row_kernels() -> ModuleType | None:
    """The kernels that find and sum rows, or None where numba is not installed."""
    return _load("row_kernels")


def ncf_kernels() -> ModuleType | None:
    """The compiled kernels of neural collaborative filtering, or None where numba is not installed."""
    return _load("kernels_nested")


def gru_kernels() -> ModuleType | None:
    """The compiled training of a gated recurrent unit, or None where numba is not installed."""
    return _load("kernels_gru")


def redundancy_kernels() -> ModuleType | None:
    """The compiled gradient of redundancy reduction, or None where numba is not installed."""
    return _load("kernels_redundancy")


def mixed_kernels() -> ModuleType | None:
    """The compiled steps of two item tables mixed, or None where numba is not installed."""
    return _load("kernels_mixed")


def mixed_ncf_kernels() -> ModuleType | None:
    """The same before a perceptron, or None where numba is not installed."""
    return _load("kernels_mixed_ncf")


def enhanced_kernels() -> ModuleType | None:
    """The compiled steps of a table that is turned for the user, or None where numba is not installed."""
    return _load("kernels_enhanced")


def enhanced_ncf_kernels() -> ModuleType | None:
    """The same before a perceptron, or None where numba is not installed."""
    return _load("kernels_enhanced_ncf")


def enhanced_sum_kernels() -> ModuleType | None:
    """The same with a table of the user's own beside it, or None where numba is not installed."""
    return _load("kernels_enhanced_sum")


def views_kernels() -> ModuleType | None:
    """The compiled steps of two views of the items, or None where numba is not installed."""
    return _load("kernels_views")


def normals_kernels() -> ModuleType | None:
    """The compiled normal numbers, or None where numba is not installed."""
    return _load("kernels_normals")


def in_use() -> list[tuple[str, str, list[Any]]]:
    """Functions that were called in this process: module, name, and the types that they were called with."""
    return [
        (name, function, list(value.signatures))
        for name in sorted(_loaded)
        for function, value in vars(_load(name)).items()
        if getattr(value, "signatures", None)
    ]


def load(functions: Iterable[tuple[str, str, Sequence[Any]]]) -> None:
    """Have what `in_use` gave in another process ready in this one."""
    for name, function, signatures in functions:
        if module := _load(name):
            for signature in signatures:
                getattr(module, function).compile(signature)


# Names of the modules that `_load` has found.
_loaded: set[str] = set()


@cache
def _load(name: str) -> ModuleType | None:
    if not is_there("numba"):
        return None
    _loaded.add(name)
    return importlib.import_module(f"{_package()}.{name}")


@cache
def _package() -> str:
    """The name of a package that consists of the copies."""
    here = Path(__file__).parent
    sources = {name: (here / f"{name}.py").read_bytes() for name in _MODULES}
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bouquet" / "kernels"
    folder = root / blake2b(b"".join(sources.values()), digest_size=8).hexdigest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in sources.items():
            if not (folder / f"{name}.py").exists():
                write_atomically(folder / f"{name}.py", source)
    except OSError:
        folder = here  # a read-only home: compile in place, for this process
    package = ModuleType(f"bouquet_kernels_{folder.name}")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package  # numba looks its own cache up by module name
    return package.__name__
