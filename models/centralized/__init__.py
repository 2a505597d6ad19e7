"""Recommenders that see all data in one place: the comparison rows of every results table.

`CENTRALIZED[name]().fit(train).scores(users)`, with `train` a scipy CSR matrix of users by items. Models that read what
a user did (`ReadsHistories`) also score users after other histories: `scores_after(histories)`.

They are imported when they are asked for: matrices in closed form take no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bouquet.places import Places
from models.centralized.base import CentralizedModel, ReadsHistories

if TYPE_CHECKING:
    from models.centralized.ease import EASE, EASEParameters
    from models.centralized.factorization import MFBCE, MFBPR
    from models.centralized.ials import IALS, IALSParameters
    from models.centralized.itemknn import ItemKNN, ItemKNNParameters
    from models.centralized.lightgcn import LightGCN, LightGCNParameters
    from models.centralized.most_recent import MostRecent
    from models.centralized.neumf import NeuMF, NeuMFParameters
    from models.centralized.pairs import FactorizationParameters
    from models.centralized.popularity import Popularity, PopularityParameters
    from models.centralized.sequential import CentralGRU4Rec, CentralSASRec, SequentialModel, SequentialParameters
    from models.centralized.softmax import AveragedGRU4Rec, AveragedSASRec, SoftmaxGRU4Rec, SoftmaxSASRec

_CENTRALIZED = {
    "popularity": "popularity:Popularity",
    "itemknn": "itemknn:ItemKNN",
    "ease": "ease:EASE",
    "ials": "ials:IALS",
    "mf-bce": "factorization:MFBCE",
    "mf-bpr": "factorization:MFBPR",
    "neumf": "neumf:NeuMF",
    "lightgcn": "lightgcn:LightGCN",
}
_IN_ORDER = {"most-recent": "most_recent:MostRecent"}
_SEQUENTIAL = {
    "gru4rec": "sequential:CentralGRU4Rec",
    "sasrec": "sequential:CentralSASRec",
    "gru4rec-softmax": "softmax:SoftmaxGRU4Rec",
    "sasrec-softmax": "softmax:SoftmaxSASRec",
    "gru4rec-averaged": "softmax:AveragedGRU4Rec",
    "sasrec-averaged": "softmax:AveragedSASRec",
}


def _here(names: dict[str, str]) -> dict[str, str]:
    return {name: f"models.centralized.{place}" for name, place in names.items()}


CENTRALIZED: Places[type[CentralizedModel]] = Places(_here(_CENTRALIZED))

SEQUENTIAL: Places[type[SequentialModel]] = Places(_here(_SEQUENTIAL))
"""Models of histories in order: `SEQUENTIAL[name]().fit(histories, num_items).scores_after(histories)`."""

POOLED: Places[type[CentralizedModel] | type[SequentialModel] | type[MostRecent]] = Places(
    _here({**_CENTRALIZED, **_IN_ORDER, **_SEQUENTIAL})
)
"""All models of pooled data."""

IN_ORDER = frozenset({*_IN_ORDER, *_SEQUENTIAL})
"""The names of those that are fitted to histories in the order of time."""

WITH_TORCH = frozenset({"mf-bce", "mf-bpr", "neumf", "lightgcn", *_SEQUENTIAL})
"""The names of those that are trained with torch."""

REVISIONS = {"mf-bpr": 2}
"""Of models that give other numbers than when they came: how often that was so."""

_PLACES = {
    **dict.fromkeys(("EASE", "EASEParameters"), "ease"),
    **dict.fromkeys(("MFBCE", "MFBPR"), "factorization"),
    **dict.fromkeys(("IALS", "IALSParameters"), "ials"),
    **dict.fromkeys(("ItemKNN", "ItemKNNParameters"), "itemknn"),
    **dict.fromkeys(("LightGCN", "LightGCNParameters"), "lightgcn"),
    "MostRecent": "most_recent",
    **dict.fromkeys(("NeuMF", "NeuMFParameters"), "neumf"),
    "FactorizationParameters": "pairs",
    **dict.fromkeys(("Popularity", "PopularityParameters"), "popularity"),
    **dict.fromkeys(("CentralGRU4Rec", "CentralSASRec", "SequentialModel", "SequentialParameters"), "sequential"),
    **dict.fromkeys(("AveragedGRU4Rec", "AveragedSASRec", "SoftmaxGRU4Rec", "SoftmaxSASRec"), "softmax"),
}

__all__ = [
    "CENTRALIZED",
    "EASE",
    "IALS",
    "IN_ORDER",
    "MFBCE",
    "MFBPR",
    "POOLED",
    "REVISIONS",
    "SEQUENTIAL",
    "WITH_TORCH",
    "AveragedGRU4Rec",
    "AveragedSASRec",
    "CentralGRU4Rec",
    "CentralSASRec",
    "CentralizedModel",
    "EASEParameters",
    "FactorizationParameters",
    "IALSParameters",
    "ItemKNN",
    "ItemKNNParameters",
    "LightGCN",
    "LightGCNParameters",
    "MostRecent",
    "NeuMF",
    "NeuMFParameters",
    "Popularity",
    "PopularityParameters",
    "ReadsHistories",
    "SequentialModel",
    "SequentialParameters",
    "SoftmaxGRU4Rec",
    "SoftmaxSASRec",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'models.centralized' has no attribute '{name}'")
    found = getattr(import_module(f"models.centralized.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
