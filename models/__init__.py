"""Scoring models: nothing here knows of Flower, of files or of rounds.

To declare one takes no torch; who computes with one loads it, and matrix factorisation alone is computed without.
"""

from __future__ import annotations

from typing import Any

from bouquet.config import wrong_options
from bouquet.installed import Names
from models.backbone import HISTORY, Backbone
from models.gru4rec import GRU4Rec
from models.lightgcn import LightGCN
from models.mf import MatrixFactorization
from models.ncf import NeuralCollaborativeFiltering
from models.nested import NestedBackbone
from models.sasrec import SASRec
from models.sequence import SequenceBackbone, is_sequential


def _wrong(name: str, value: Any) -> str:
    """What is wrong with something that is installed as a backbone, or ""."""
    if not (isinstance(value, type) and issubclass(value, Backbone)):
        return "it is no class of Backbone"
    ours = {field for kind in _BACKBONES.values() for field in kind.options_class.model_fields}
    return wrong_options(name, value.options_class, ours)


_BACKBONES: dict[str, type[Backbone]] = {
    "gru4rec": GRU4Rec,
    "lightgcn": LightGCN,
    "mf": MatrixFactorization,
    "ncf": NeuralCollaborativeFiltering,
    "sasrec": SASRec,
}

BACKBONES: Names[type[Backbone]] = Names(_BACKBONES, "bouquet.backbones", _wrong)
"""The values of the setting 'backbone'; those of other packages are entry points of the group "bouquet.backbones"."""

__all__ = [
    "BACKBONES",
    "HISTORY",
    "Backbone",
    "GRU4Rec",
    "LightGCN",
    "MatrixFactorization",
    "NestedBackbone",
    "NeuralCollaborativeFiltering",
    "SASRec",
    "SequenceBackbone",
    "is_sequential",
]
