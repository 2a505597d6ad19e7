"""Every message between server and node: names, types and shapes, encoded and decoded in one place.

A node hosts one user or many. One message per node and round carries the shared arrays once and the users that
take part. What comes back about the model is a *weighted sum* over the node's users (when the strategy knows the
weights before training), *packed rows per user* (when it decides afterwards), or *cells*: sums over the node's users of
sparse matrices, which no training comes before. Rows that training did not touch do not travel, nor do empty cells.

Server and node both keep something of a user: the server what it made of the user's updates, the node the user's
private arrays. A reply can be lost, late or refused, and then the node is ahead. So every request names the version
that it goes on from, by user: the round of the last update that the server has. The node takes up its private arrays
of exactly that round, and what it learned in a round that the server does not have has never happened.

A user whose training diverged is left out of its node's reply, with the reason; the node's other users stay.

Whatever is not named here does not leave a node. Decoding checks names, types, shapes and finiteness, and a
message that fails is refused with `WireError`; it never reaches a strategy.
"""

from bouquet.wire.declared import (
    DIVERGED,
    EVALUATE,
    EVALUATE_ARRAYS,
    METRIC_SHAPE,
    PROTOCOL,
    REPORTS,
    ROSTER,
    ROSTER_ARRAYS,
    TRAIN,
    TRAIN_ARRAYS,
    WITHIN,
    Reports,
    Update,
    Weighting,
)
from bouquet.wire.evaluation import EvaluateReply, EvaluateRequest
from bouquet.wire.limits import MOST_ROSTER_BYTES, most_evaluate_bytes, most_train_bytes
from bouquet.wire.parts import refuse_other_round
from bouquet.wire.roster import RosterReply, RosterRequest
from bouquet.wire.training import TrainReply, TrainRequest

__all__ = [
    "DIVERGED",
    "EVALUATE",
    "EVALUATE_ARRAYS",
    "METRIC_SHAPE",
    "MOST_ROSTER_BYTES",
    "PROTOCOL",
    "REPORTS",
    "ROSTER",
    "ROSTER_ARRAYS",
    "TRAIN",
    "TRAIN_ARRAYS",
    "WITHIN",
    "EvaluateReply",
    "EvaluateRequest",
    "Reports",
    "RosterReply",
    "RosterRequest",
    "TrainReply",
    "TrainRequest",
    "Update",
    "Weighting",
    "most_evaluate_bytes",
    "most_train_bytes",
    "refuse_other_round",
]
