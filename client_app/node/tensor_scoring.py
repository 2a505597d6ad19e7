"""Scores of models that are computed with torch: networks, histories that are read, methods that change the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.ragged import Ragged, follow_one_another, positions
from client_app.personalization.base import Personalization
from client_app.personalization.round import Given, Tensors, Working
from client_app.state.row_overrides import OwnRows
from client_app.training.compiled_gru import read_gru
from client_app.training.compiler import gru_kernels
from client_app.training.sequences import last
from models import HISTORY, Backbone, SequenceBackbone, is_sequential
from models.sequence import STATE, rows_of

# Views of whole tables are made for as many users at once as fit into this many bytes.
VIEW_BYTES = 64 * 2**20
# Histories of so many users are read at once; fewer, where their own networks would not stay in the cache from one item
# to the next.
READ_USERS = 256
READ_BYTES = 4 * 2**20


def tensor_scorer(
    backbone: Backbone,
    methods: Sequence[Personalization],
    given: Given,
    histories: Ragged,
    round_: int,
    own_rows: OwnRows | None,
) -> ScoreBlock:
    """As `scorer`.

    Args:
        methods: those that change what is minimised or what the backbone sees.
    """
    common = {name: torch.from_numpy(values) for name, values in (given.shared | given.frozen).items()}
    own = {name: torch.from_numpy(values) for name, values in (given.own | given.anchors).items()}

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        arrays = common | {name: _rows(values, rows) for name, values in own.items()}
        mine = own_rows.take(rows) if own_rows is not None else None
        with torch.inference_mode():
            return _scores(backbone, arrays, histories.take(rows), mine).numpy()

    def viewed(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        arrays = {name: values.expand(len(rows), *values.shape) for name, values in common.items()}
        arrays |= {name: _rows(values, rows) for name, values in own.items()}
        read = histories.take(rows)
        working = whole_catalogue(backbone, methods, read, round_)
        with torch.inference_mode():
            seen = arrays
            for method in methods:
                seen = dict(method.view(seen, working))
            return _scores(backbone, seen, read, None).numpy()

    def through_tables(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        tables = {name: np.repeat(values.numpy()[None], len(rows), axis=0) for name, values in common.items()}
        arrays = {name: _rows(values, rows) for name, values in own.items()}
        if own_rows is not None:
            mine = own_rows.take(rows)
            for name in mine.values:
                mine.put(name, tables[name])
        arrays = {name: torch.from_numpy(values) for name, values in tables.items()} | arrays
        with torch.inference_mode():
            return _scores(backbone, arrays, histories.take(rows), None).numpy()

    per_user = 4 * sum(spec.size for spec in backbone.shared.values())
    if methods:
        return _in_blocks(viewed, max(1, VIEW_BYTES // per_user))
    if backbone.reads_history and own_rows is not None:
        # Every score depends on the user's own rows of its history, also those of items that it did not train.
        return _in_blocks(through_tables, max(1, VIEW_BYTES // per_user))
    if is_sequential(backbone):
        # Users with histories of like length are read together.
        of_user = 4 * sum(spec.size for name, spec in backbone.network().items() if name in own)
        return _in_blocks(scores, min(READ_USERS, max(1, READ_BYTES // max(of_user, 1))), histories.lengths)
    return scores


def _rows(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """values[rows]; rows that follow one another are not copied."""
    if follow_one_another(rows):
        return values[int(rows[0]) : int(rows[-1]) + 1]
    return values[torch.from_numpy(rows)]


def _in_blocks(score: ScoreBlock, size: int, lengths: NDArray[np.int64] | None = None) -> ScoreBlock:
    def in_blocks(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        order = np.arange(len(rows)) if lengths is None else np.argsort(lengths[rows], kind="stable")
        parts = [score(rows[order[start : start + size]]) for start in range(0, len(rows), size)]
        found = np.empty((len(rows), parts[0].shape[1]), dtype=parts[0].dtype)
        for number, part in enumerate(parts):
            found[order[number * size : number * size + len(part)]] = part
        return found

    return in_blocks


def _scores(backbone: Backbone, arrays: Tensors, histories: Ragged, mine: OwnRows | None) -> Tensor:
    """[b, m] scores of b users, whose model may read `histories`, with rows of their own where they have any."""
    private = {name: arrays[name] for name in backbone.private}
    shared = {name: arrays[name] for name in backbone.shared}
    if is_sequential(backbone):
        private |= _read(backbone, shared, histories, mine)
    if backbone.reads_history:
        private[HISTORY] = _marks(histories, _num_items(backbone))
    found = backbone.scores(private, shared)
    if mine is None or not len(mine.rows.values):
        return found
    owner, place = mine.rows.row_of_value, positions(mine.rows.lengths)
    k, width = len(mine.rows), int(mine.rows.lengths.max())
    of_user: dict[str, Tensor] = {}
    for name, spec in backbone.shared.items():
        if spec.by_item:
            of_user[name] = torch.zeros(k, width, *spec.shape[1:])
            of_user[name][owner, place] = torch.from_numpy(mine.values[name])
        else:
            of_user[name] = shared[name] if shared[name].ndim > len(spec.shape) else shared[name].expand(k, *spec.shape)
    found[owner, mine.rows.values.astype(np.int64)] = backbone.logits(private, of_user)[owner, place]
    return found


def _read(backbone: SequenceBackbone, shared: Tensors, histories: Ragged, mine: OwnRows | None) -> dict[str, Tensor]:
    """The state of each user after the newest items of its history."""
    table = shared["item_embedding"]
    histories = last(histories, np.minimum(histories.lengths, backbone.settings.max_length))
    owner, place = histories.row_of_value, positions(histories.lengths)
    items = np.zeros((len(histories), int(histories.lengths.max(initial=1))), dtype=np.int64)
    items[owner, place] = histories.values
    embedded = rows_of(table, torch.from_numpy(items))
    if mine is not None and len(mine.rows.values):
        num_items = table.shape[-2]
        known = mine.rows.row_of_value * num_items + mine.rows.values
        wanted = owner * num_items + histories.values
        found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        there = known[found] == wanted
        embedded[owner[there], place[there]] = torch.from_numpy(mine.values["item_embedding"][found[there]])
    lengths = np.maximum(histories.lengths, 1)
    own = all(shared[name].ndim > len(spec.shape) for name, spec in backbone.network().items())
    if backbone.kernel == "gru4rec" and own and (code := gru_kernels()) is not None:
        networks = {name: shared[name].numpy() for name in backbone.network()}
        return {STATE: torch.from_numpy(read_gru(networks, embedded.numpy(), lengths, code))}
    return backbone.read(shared, embedded, torch.from_numpy(lengths))


def whole_catalogue(backbone: Backbone, methods: Sequence[Personalization], histories: Ragged, round_: int) -> Working:
    """The whole catalogue as the rows that k users work on; histories [k] rows of items that may be read."""
    k, m = len(histories), _num_items(backbone)
    return Working(
        items=torch.arange(m).expand(k, m),
        valid=torch.ones(k, m, dtype=torch.bool),
        positive=_marks(histories, m),
        outside={name: torch.zeros(k) for method in methods for name in method.norms_of},
        round=round_,
    )


def _num_items(backbone: Backbone) -> int:
    return next(spec.shape[0] for spec in backbone.shared.values() if spec.by_item)


def _marks(items: Ragged, num_items: int) -> Tensor:
    """[k, m] 1 where an item is in the user's row, else 0."""
    marks = torch.zeros(len(items), num_items)
    marks[torch.from_numpy(items.row_of_value), torch.from_numpy(items.values.astype(np.int64))] = 1
    return marks
