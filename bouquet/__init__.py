"""Federated recommendation on Flower.

    import bouquet

    run = bouquet.run(strategy="fedavg", dataset="ml-100k", num_server_rounds=100)
    run.metrics
    run.recommend("42", k=10)
    bouquet.compare([run, bouquet.load("runs/another")])

What is in `__all__` is stable; every other module is free to move, but for `bouquet.extend` and `bouquet.testing`,
which methods of other packages are written with. Names are loaded when they are asked for, so the import is quick, and
a run is carried out by a process of its own: this one loads neither torch nor Ray, and none of the other packages of
this program.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # For editors and type checkers. The same names stand below, and a test compares them.
    from bouquet.api.comparing import compare as compare
    from bouquet.api.ground import Split as Split
    from bouquet.api.ground import evaluate as evaluate
    from bouquet.api.ground import split as split
    from bouquet.api.keeping import kept_cells as kept_cells
    from bouquet.api.model import Model as Model
    from bouquet.api.result import Run as Run
    from bouquet.api.result import load as load
    from bouquet.api.running import run as run
    from bouquet.errors import (
        BouquetError as BouquetError,
    )
    from bouquet.errors import (
        ConfigError as ConfigError,
    )
    from bouquet.errors import (
        DataError as DataError,
    )
    from bouquet.errors import (
        RunFailed as RunFailed,
    )
    from bouquet.errors import (
        StateError as StateError,
    )

    __version__: str

_NAMES = {
    "api.comparing": "compare",
    "api.ground": "Split evaluate split",
    "api.keeping": "kept_cells",
    "api.model": "Model",
    "api.result": "Run load",
    "api.running": "run",
    "errors": "BouquetError ConfigError DataError RunFailed StateError",
}
_PLACES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PLACES:
        raise AttributeError(f"module 'bouquet' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    """What pyproject.toml alone says: through the installed package, or beside the sources."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("bouquet")
    except PackageNotFoundError:  # an app that Flower shipped is not installed
        project = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])
