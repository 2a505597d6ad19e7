"""The packages of this program, and that they are never mistaken for somebody else's.

`models` and `strategies` are words that other projects use too. A process of ours has the folder that bouquet lies in
before all others on its path, so such a folder where it was started, or in PYTHONPATH, changes nothing. A process of
somebody else, such as a notebook, is left as it is: `bouquet` itself imports none of the other five.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("bouquet", "client_app", "data_partition", "models", "server_app", "strategies")
ROOT = Path(__file__).resolve().parents[1]
"""The folder that all of them lie in."""


def command(module: str) -> list[str]:
    """The beginning of a command line that runs a module of ours as a program, in whatever folder it is started."""
    return [sys.executable, str(ROOT / "bouquet" / "program.py"), module]


def put_first() -> None:
    """Have this process find our packages in our folder, before any other folder but those of Python itself."""
    # In site-packages there may be a package with the name of a module of Python.
    standard = os.path.dirname(os.__file__)
    python = [path for path in sys.path if path in (standard, os.path.join(standard, "lib-dynload"))]
    rest = [path for path in sys.path if path not in python and path != str(ROOT)]
    sys.path[:] = [*python, str(ROOT), *rest]


def foreign(name: str) -> str:
    """Why the package of this name in this process is not ours, in a sentence; "" where it is."""
    found = _place_of(name)
    if not found or found == ROOT / name:
        return ""
    return (
        f"'{name}' is {found} here, and bouquet needs its own package of that name, {ROOT / name}. Start from another "
        f"folder, or rename yours: the command `bouquet` and `bouquet.run` do not mind it."
    )


def broken(error: ImportError) -> str:
    """What an import error that names one of our packages means, in a sentence; "" where it names none."""
    name = (error.name or "").partition(".")[0]
    if name not in PACKAGES:
        return ""
    if sentence := foreign(name):
        return sentence
    return (
        f"{ROOT / name} is not bouquet's package '{name}', or not all of it ({error}). Another package may have been "
        "installed over it: install bouquet in an environment of its own."
    )


def _place_of(name: str) -> Path | None:
    """The folder of a package as this process finds it, imported already or not."""
    module = sys.modules.get(name)
    try:
        spec = getattr(module, "__spec__", None) or find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    if places:
        return Path(places[0]).resolve()
    return Path(spec.origin).resolve() if spec and spec.origin else None
