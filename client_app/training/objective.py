"""The loss that a device minimises, for k users at once: the backbone's, and the penalties of the personalizations."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bouquet.ragged import Ragged, positions
from client_app.personalization.round import Batch, Tensors, Working
from client_app.training.sequences import SequenceBatch
from client_app.training.task import LocalTask
from models import HISTORY, is_sequential


def losses(task: LocalTask, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensor, Tensor]:
    """The mean loss of each user's samples, and what personalizations add to it.

    Args:
        arrays: name -> [k, R, …] by item, [k, …] others.
    Returns:
        [k] and [k]; both 0 for a user without samples in the batch.
    """
    seen = arrays
    for method in task.personalizations:
        seen = method.view(seen, working)
    backbone = task.backbone
    private = {name: seen[name] for name in backbone.private}
    if isinstance(batch, SequenceBatch):
        assert is_sequential(backbone)
        logits = batch.logits(backbone, {name: seen[name] for name in backbone.shared})
    elif backbone.reads_history:
        # All rows: a history is whole, whatever part of it is in the batch.
        private[HISTORY] = working.positive
        logits = backbone.logits(private, {name: seen[name] for name in backbone.shared})
        by_row = logits.unflatten(1, (backbone.heads, -1)).transpose(1, 2)
        logits = batch.pick(by_row).transpose(1, 2).flatten(1)
    else:
        shared = {n: batch.pick(seen[n]) if spec.by_item else seen[n] for n, spec in backbone.shared.items()}
        logits = backbone.logits(private, shared)
    size = batch.size.clamp(min=1)
    recommendation = sample_losses(logits, batch.for_heads(backbone.heads)) / size
    added = torch.zeros_like(recommendation)
    for method in task.personalizations:
        penalty = method.penalty(arrays, seen, batch, working)
        if penalty is not None:
            added = added + penalty * (batch.size > 0)
    return recommendation, added


def sample_losses(logits: Tensor, batch: Batch) -> Tensor:
    """[k] sum of the losses of each user's samples: Σ_r samples_r softplus(z_r) - positive_r z_r."""
    return (batch.samples * F.softplus(logits) - batch.positive * logits).sum(dim=1)


def working_rows(task: LocalTask, users: NDArray[np.int64], rows: Ragged, device: torch.device) -> Working:
    """What personalizations may know of the rows that some users work on.

    Args:
        users: [c] positions in the task.
        rows: [c] rows of items, those that are worked on.
    """
    if not task.personalizations and not task.backbone.reads_history:  # then nobody asks
        nothing = torch.zeros(len(users), 0, device=device)
        return Working(nothing, nothing, nothing, {}, task.round)
    width = int(rows.lengths.max(initial=0))
    owner, place = rows.row_of_value, positions(rows.lengths)
    items = np.zeros((len(users), width), dtype=np.int64)
    items[owner, place] = rows.values
    valid = np.arange(width) < rows.lengths[:, None]
    liked = np.zeros((len(users), task.num_items), dtype=bool)
    all_liked = (task.positives if task.liked is None else task.liked).take(users)
    liked[all_liked.row_of_value, all_liked.values] = True
    positive = np.take_along_axis(liked, items, axis=1) & valid
    outside = {
        name: torch.from_numpy(task.norms_outside(name, users, rows).astype(task.dtype)).to(device)
        for method in task.personalizations
        for name in method.norms_of
    }
    return Working(
        items=torch.from_numpy(items).to(device),
        valid=torch.from_numpy(valid).to(device),
        positive=torch.from_numpy(positive.astype(task.dtype)).to(device),
        outside=outside,
        round=task.round,
    )
