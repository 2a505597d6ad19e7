"""A Flower app folder for one run: this program's own packages and the run's settings.

Built from the packages as they are installed, so that it makes no difference whether the program runs from a
checkout or from a wheel, and what Flower ships to its processes is what is running here.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from bouquet import __version__
from bouquet.config import Scalar
from bouquet.own_packages import PACKAGES, ROOT


def write_app_folder(folder: Path, settings: Mapping[str, Scalar]) -> None:
    """Fill an empty folder with an app that `flwr run` takes.

    Args:
        folder: created if it is not there.
        settings: the whole configuration of the run; it becomes `[tool.flwr.app.config]`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        # Ready-made configurations are no part of an app, and an image has none.
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "configs")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore, dirs_exist_ok=True)
    document = {
        "project": {"name": "bouquet", "version": __version__, "dependencies": []},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "bouquet",
                    "components": {"serverapp": "server_app.app:app", "clientapp": "client_app.app:app"},
                    "config": dict(settings),
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(document))
