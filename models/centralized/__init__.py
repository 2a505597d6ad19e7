"""Recommenders that see all data in one place: the comparison rows of every results table.

`CENTRALIZED[name]().fit(train).scores(users)`, with `train` a scipy CSR matrix of users by items. Models that read what
a user did (`ReadsHistories`) also score users after other histories: `scores_after(histories)`.
"""

from models.centralized.base import CentralizedModel, ReadsHistories
from models.centralized.ease import EASE, EASEParameters
from models.centralized.factorization import MFBCE, MFBPR, FactorizationParameters
from models.centralized.itemknn import ItemKNN, ItemKNNParameters
from models.centralized.popularity import Popularity, PopularityParameters
from models.centralized.sequential import CentralGRU4Rec, CentralSASRec, SequentialModel, SequentialParameters
from models.centralized.softmax import SoftmaxGRU4Rec, SoftmaxSASRec

CENTRALIZED: dict[str, type[CentralizedModel]] = {
    "popularity": Popularity,
    "itemknn": ItemKNN,
    "ease": EASE,
    "mf-bce": MFBCE,
    "mf-bpr": MFBPR,
}

SEQUENTIAL: dict[str, type[SequentialModel]] = {
    "gru4rec": CentralGRU4Rec,
    "sasrec": CentralSASRec,
    "gru4rec-softmax": SoftmaxGRU4Rec,
    "sasrec-softmax": SoftmaxSASRec,
}
"""Models of histories in order: `SEQUENTIAL[name]().fit(histories, num_items).scores_after(histories)`."""

POOLED: dict[str, type[CentralizedModel] | type[SequentialModel]] = {**CENTRALIZED, **SEQUENTIAL}
"""All models of pooled data."""

__all__ = [
    "CENTRALIZED",
    "EASE",
    "MFBCE",
    "MFBPR",
    "POOLED",
    "SEQUENTIAL",
    "CentralGRU4Rec",
    "CentralSASRec",
    "CentralizedModel",
    "EASEParameters",
    "FactorizationParameters",
    "ItemKNN",
    "ItemKNNParameters",
    "Popularity",
    "PopularityParameters",
    "ReadsHistories",
    "SequentialModel",
    "SequentialParameters",
    "SoftmaxGRU4Rec",
    "SoftmaxSASRec",
]
