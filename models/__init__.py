"""Scoring models. Torch only: nothing here knows of Flower, of files or of rounds."""

from models.backbone import Backbone
from models.mf import MatrixFactorization
from models.ncf import NeuralCollaborativeFiltering

BACKBONES: dict[str, type[Backbone]] = {"mf": MatrixFactorization, "ncf": NeuralCollaborativeFiltering}

__all__ = ["BACKBONES", "Backbone", "MatrixFactorization", "NeuralCollaborativeFiltering"]
