"""Scoring models. Torch only: nothing here knows of Flower, of files or of rounds."""

from models.backbone import HISTORY, Backbone
from models.gru4rec import GRU4Rec
from models.lightgcn import LightGCN
from models.mf import MatrixFactorization
from models.ncf import NeuralCollaborativeFiltering
from models.nested import NestedBackbone
from models.sasrec import SASRec
from models.sequence import SequenceBackbone

BACKBONES: dict[str, type[Backbone]] = {
    "gru4rec": GRU4Rec,
    "lightgcn": LightGCN,
    "mf": MatrixFactorization,
    "ncf": NeuralCollaborativeFiltering,
    "sasrec": SASRec,
}

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
]
