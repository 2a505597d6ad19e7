"""Common ground of server and device: configuration, wire format, randomness, evaluation, reporting."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """`__version__`, which pyproject.toml alone says: through the installed package, or beside the sources."""
    if name != "__version__":
        raise AttributeError(f"module 'bouquet' has no attribute '{name}'")
    import tomllib
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("bouquet")
    except PackageNotFoundError:  # an app that Flower shipped is not installed
        project = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"])
