"""Scoring models. Torch only: nothing here knows of Flower, of files or of rounds."""

from models.backbone import Backbone
from models.gru4rec import GRU4Rec
from models.mf import MatrixFactorization
from models.ncf import NeuralCollaborativeFiltering
from models.sasrec import SASRec
from models.sequence import SequenceBackbone

BACKBONES: dict[str, type[Backbone]] = {
    "gru4rec": GRU4Rec,
    "mf": MatrixFactorization,
    "ncf": NeuralCollaborativeFiltering,
    "sasrec": SASRec,
}

__all__ = [
    "BACKBONES",
    "Backbone",
    "GRU4Rec",
    "MatrixFactorization",
    "NeuralCollaborativeFiltering",
    "SASRec",
    "SequenceBackbone",
]
