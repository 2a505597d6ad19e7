"""Packages that only some runs need: each comes with an extra of the installation, and who misses one is told which."""

from __future__ import annotations

from importlib.util import find_spec

from bouquet.errors import MissingPackage

EXTRAS = {
    "cvxpy": "solver",
    "dp_accounting": "privacy",
    "matplotlib": "plots",
    "mlflow": "mlflow",
    "numba": "numba",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "optuna": "search",
    "pandas": "data",
    "pyarrow": "data",
    "ray": "simulation",
    "sklearn": "clustering",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "wandb": "wandb",
}
"""Module -> the extra that it comes with."""

_PACKAGES = {"dp_accounting": "dp-accounting", "sklearn": "scikit-learn"}


def is_there(module: str) -> bool:
    """Whether a module can be imported, as far as that can be told without importing it."""
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def need(module: str, what: str) -> None:
    """Refuse to begin what a package is missing for.

    Args:
        what: that needs it, as the beginning of a sentence.
    Raises:
        MissingPackage: names the package and the extra.
    """
    if not is_there(module):
        raise MissingPackage(missing(module, what))


def missing(module: str, what: str = "") -> str:
    """The sentence of who misses a package."""
    package, install = _PACKAGES.get(module, module), f'pip install "bouquet[{EXTRAS[module]}]"'
    if what:
        return f"{what} needs {package}, which is not installed: {install}."
    return f"{package} is not installed: {install}."
