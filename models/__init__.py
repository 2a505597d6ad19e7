"""Scoring models. Torch only: nothing here knows of Flower, of files or of rounds."""

from models.backbone import Backbone
from models.mf import MatrixFactorization

BACKBONES: dict[str, type[Backbone]] = {"mf": MatrixFactorization}

__all__ = ["BACKBONES", "Backbone", "MatrixFactorization"]
