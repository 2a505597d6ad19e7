"""FedFast: active sampling and active aggregation (Muhammad et al., KDD 2020, "Going beyond average").

Round t on the server, over N users in clusters by their profiles:
    ActvSAMP    S = S_1 ∪ … ∪ S_k           delegates, drawn from every cluster C_c
    ActvAGG     Δ = Σ_c (|C_c| / N) (1/|S_c|) Σ_{u in S_c} Δ_u
                                            delegates speak for their cluster, and clusters weigh by their size

With one cluster, or where everybody trains, that is the plain mean. The weights are known before training, so nodes
send sums. For delegates whose reply is missing the others of all clusters speak.

In the paper the other users of a cluster, its subordinates, also take over what the delegates' user embeddings changed
by. User embeddings do not leave a device here, so each is trained when its user is drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.methods.fedfast import FedFastOptions
from strategies.clustered import ClusteredUsers, Drawing


def delegate_weights(labels: NDArray[np.int64], present: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray:
    """(|C_c| / N) (|S| / |S_c|) of every user in S, [|S|]: 1 where all clusters give the same part of their users.

    Args:
        labels: [n] the cluster of each user.
        present: the users that clusters are made of, N positions.
        chosen: S, positions among all users.
    """
    sizes, delegates = (np.bincount(labels[users], minlength=labels.max() + 1) for users in (present, chosen))
    mine = labels[chosen]
    return np.asarray(sizes[mine] * len(chosen) / (delegates[mine] * len(present)))


class FedFast(ClusteredUsers):
    """The mean over clusters of the mean over their delegates."""

    options: FedFastOptions

    @property
    def clusters(self) -> int:
        return self.options.fedfast_clusters

    @property
    def drawing(self) -> Drawing:
        return self.options.fedfast_sampling

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        chosen = super().select_users(server_round)
        self._weights = np.zeros(len(self.roster.users))
        self._weights[chosen] = delegate_weights(self.labels, self.roster.present(), chosen)
        return chosen

    def weights(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._weights[users] if self.options.fedfast_aggregation == "clusters" else super().weights(users)
