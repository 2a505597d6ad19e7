"""FedAtt: attentive aggregation (Ji et al., IJCNN 2019, "Learning private neural language modeling").

Round t on the server, for each array l (the paper's layer), over the users k of the round:
    distance    s_k^l = ‖w^l - w_k^l‖_p                      how far training took a user's array
    attention   α_k^l = exp(s_k^l) / Σ_j exp(s_j^l)          a softmax over users
    step        w^l ← w^l - ε (Σ_k α_k^l (w^l - w_k^l) + β N(0, 1))

Devices send Δ_k = w_k - w, so distances are norms of what came, and the step goes along Σ_k α_k Δ_k. It is a server
optimiser's, as in averaging: a row that few of the users touch hardly moves otherwise. `server-optimizer = "sgd"` is
the paper's, with ε = `server-learning-rate`. A user that moved far is heard more, not less: that is the paper's rule,
and a reason to hold single users to a bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.methods.fedatt import FedAttOptions
from bouquet.randomness import Purpose, generator
from bouquet.wire import TrainReply, Update
from strategies.averaging import FCF
from strategies.federation.needs import reply_bytes

Vector = NDArray[np.float64]


def attention(distance: Vector) -> Vector:
    """α_k = softmax_k(s_k), [n]; whatever the distances are, nothing overflows."""
    weights = np.exp(distance - distance.max())
    return np.asarray(weights / weights.sum())


def attentive_change(shared: Arrays, replies: list[TrainReply], p: float) -> dict[str, Vector]:
    """Σ_k α_k^l Δ_k^l of every array l, in float64; each array has attention of its own."""
    counts = [len(reply.users) for reply in replies]
    found = {}
    for name, values in shared.items():
        distances = np.concatenate([reply.rows[name].norms(p) for reply in replies])
        weights = np.split(attention(distances), np.cumsum(counts)[:-1])
        found[name] = np.zeros(values.shape)
        for reply, own in zip(replies, weights, strict=True):
            reply.rows[name].add_weighted(found[name], own)
    return found


class FedAtt(FCF):
    """A softmax over the users' distances, array by array."""

    options: FedAttOptions
    update: Update = "rows"

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        change = attentive_change(shared, replies, self.options.fedatt_norm)
        if (scale := self.options.fedatt_noise) > 0:
            for name, values in change.items():
                noise = generator(self.config.seed, server_round, Purpose.NOISE, name)
                values += noise.normal(0.0, scale, values.shape)
        return self.optimizer.step(server_round, shared, change)

    def working_bytes(self) -> float:
        """Beside the step, of one node's users at a time what they sent and its weighted part, both in float64."""
        return super().working_bytes() + 4 * reply_bytes(self) / self.roster.nodes
