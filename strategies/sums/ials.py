"""iALS, the server's half (Hu, Koren and Volinsky, 2008; Rendle et al., 2022): alternating least squares from sums.

A sweep takes 1 + c rounds. Users solve for their vectors u from the factors V that it begins with, each on its own
device (`client_app.sums.ials`); the vector of an item i, of which U_i are the users, is then to solve

    A_i v_i = b_i,    A_i = Σ_{u ∈ U_i} u uᵀ + α0 G + λ_i I,    b_i = Σ_{u ∈ U_i} u,    G = Σ_u u uᵀ

with λ_i = λ (|U_i| + α0 n)^ν. A sum of all A_i would be m d² numbers. Conjugate gradients need only what A_i makes of
a direction, m d numbers (Takács, Pilászy and Tikk, 2011, of users; here of items, because devices have the users):

    first message   Σ u (u·v_i), Σ u and |U_i| by item, and G: the residual r_i = b_i - A_i v_i
    each step       Σ u (u·p_i) by item: A_i p_i, one step along p_i, and the next direction

All items go at once, each with steps of its own. They are preconditioned with what G says of A_i where users of the
item are like all users, M_i = (α0 + |U_i| / n) G + λ_i I, whose inverse takes one eigendecomposition of G. One step
a sweep is then about as good as three without (ML-100K).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Arrays, Specs, initial_shared
from bouquet.config import RunConfig
from bouquet.methods.ials import IalsOptions
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.federation.base import Extra
from strategies.sums.publishing import PublishingStrategy

Rows = NDArray[np.float64]
# What was rounded on the way, beside the bound of what users can give.
_ROOM = 1 + 1e-4
# A score of 1 is what every user's own items should have; where they have less than this, nothing is learned.
_LEAST_SCORE = 0.01


class ItemSystems:
    """A_i and M_i of all items, as far as the server knows them: without the sums over an item's users.

    Args:
        gram: G [d, d].
        count: [m] |U_i|.
        users: n.
        options: the method's settings.
    """

    def __init__(self, gram: Rows, count: Rows, users: int, options: IalsOptions) -> None:
        everywhere = options.ials_unobserved
        self._everywhere = everywhere * gram
        self._held = options.ials_regularization * (count + everywhere * users) ** options.ials_frequency
        values, self._vectors = np.linalg.eigh(gram)
        likely = (everywhere + count / users)[:, None] * np.maximum(values, 0.0)
        self._scale = 1 / (likely + self._held[:, None])

    def known(self, rows: Rows) -> Rows:
        """(α0 G + λ_i I) x_i for all rows x."""
        return rows @ self._everywhere + self._held[:, None] * rows

    def preconditioned(self, rows: Rows) -> Rows:
        """M_i^-1 x_i for all rows x."""
        return np.asarray(((rows @ self._vectors) * self._scale) @ self._vectors.T)


class Ials(PublishingStrategy):
    """Sweeps over users and items; what is published is the newest iterate, also between two steps.

    A sweep's users are those that were chosen and answered its first message; who comes later waits for the next. One
    whose reply to a step is lost is missing in A_i of that step alone: the step is then longer than it should be, and
    as no part of A_i that the server knows is missing, never without bound. The residual drifts until the next sweep,
    which measures it anew.

    Of a user that is forgotten nothing is in the sums of the next sweep. What items have learned from it stays in the
    factors that this sweep begins with, and fades as users and items are solved for without it; only a run from the
    start is without any trace.
    """

    update = "sum"
    draws_negatives = False
    options: IalsOptions

    def __init__(self, config: RunConfig, options: IalsOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        # The message of a sweep that comes next; 0: its first.
        self._step = 0
        self._start: Array
        self._direction: Array
        self._iterate: Rows
        self._residual: Rows
        self._gram: Rows
        self._count: Rows
        self._users = 0
        # The mean score of users' own items, by the factors that the newest sweep began with, and the one before it.
        self._mean_score = self._score_before = math.nan

    def returning(self, specs: Specs) -> Specs:
        return self.options.sums(self.roster.num_items, first=self._step == 0)

    def needed(self, shared: Arrays) -> Arrays:
        if self._step:
            return {"factors": self._start, "direction": self._direction}
        self._start = shared["factors"]
        return {"factors": self._start}

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        begun = server_round - self._step
        chosen = super().select_users(begun)
        answered = chosen[self.versions[chosen] >= begun]
        return answered if self._step and len(answered) else chosen

    def refusal(self, reply: TrainReply, users: NDArray[np.int64]) -> str:
        """A user's vector has a largest length: its loss is not above that of 0, so λ_u |u|² <= |I_u| <= m."""
        m, options, k = self.roster.num_items, self.options, len(users)
        longest = m / (options.ials_regularization * (m * (1 + options.ials_unobserved)) ** options.ials_frequency)
        sums = {name: packed.values.astype(np.float64) for name, packed in reply.sums.items()}
        along = (self._direction if self._step else self._start).astype(np.float64)
        rows = reply.sums["product"].rows
        largest = {"product": k * longest * np.linalg.norm(along if rows is None else along[rows], axis=1)}
        if not self._step:
            largest |= {"target": k * longest**0.5, "gram": k * longest, "count": float(k)}
        for name, most in largest.items():
            values = sums[name]
            with np.errstate(over="ignore"):
                length = np.linalg.norm(values, axis=1) if name in ("product", "target") else np.abs(values)
            if (length > _ROOM * most + np.finfo(np.float32).tiny).any():
                return f"'{name}' is larger than {k} users can give"
        return ""

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        sums = {}
        for name, spec in self.returning({}).items():
            sums[name] = np.zeros(spec.shape)
            for reply in replies:
                reply.sums[name].add_to(sums[name], reply.factor)
        if self._step == 0:
            self._measure(shared["factors"], sums, sum(map(len, users)))
            scores = (shared["factors"] * sums["target"]).sum()
            self._score_before = self._mean_score
            self._mean_score = float(scores / self._count.sum()) if self._count.any() else math.nan
        else:
            self._move(sums["product"])
        self._step = (self._step + 1) % (1 + self.options.ials_steps)
        return self.publish({"factors": self._iterate.astype(np.float32)}, server_round)

    def _measure(self, factors: Array, sums: dict[str, Rows], users: int) -> None:
        """r_i = b_i - A_i v_i and p_i = M_i^-1 r_i; an item that nobody has is solved by 0."""
        self._count, self._users = sums["count"], users
        self._gram = (sums["gram"] + sums["gram"].T) / 2
        systems = self._systems()
        self._iterate = np.where(self._count[:, None] > 0, factors, np.float64(0))
        self._residual = sums["target"] - sums["product"] - systems.known(self._iterate)
        self._residual[self._count == 0] = 0.0
        self._direction = systems.preconditioned(self._residual).astype(np.float32)

    def _move(self, product: Rows) -> None:
        """One step of preconditioned conjugate gradients, of every item on its own."""
        systems, direction = self._systems(), self._direction.astype(np.float64)
        known = systems.known(direction)
        # Σ (u·p)² is not below 0, whatever comes: a step is at most as long as without an item's users.
        energy = np.maximum(_dots(direction, product), 0.0) + _dots(direction, known)
        before = _dots(self._residual, systems.preconditioned(self._residual))
        length = _quotient(before, energy)[:, None]
        self._iterate = self._iterate + length * direction
        self._residual = self._residual - length * (product + known)
        steepest = systems.preconditioned(self._residual)
        turn = _quotient(_dots(self._residual, steepest), before)[:, None]
        self._direction = (steepest + turn * direction).astype(np.float32)

    def results(self) -> dict[str, Any]:
        # Small ones can also be on their way up: the factors that a run begins with are small.
        if not self._mean_score < min(_LEAST_SCORE, self._score_before):
            return super().results()
        options = self.options
        shrunk = (
            f"The vectors of ials have shrunk to nothing: users' own items score {self._mean_score:.1g}, and 1 is "
            f"aimed at. For so many users and items ials-regularization = {options.ials_regularization:g} and "
            f"ials-unobserved = {options.ials_unobserved:g} hold them down too much; take a third of one, or less."
        )
        return super().results() | {"remarks": [shrunk]}

    def _systems(self) -> ItemSystems:
        return ItemSystems(self._gram, self._count, self._users, self.options)

    def extra_arrays(self) -> Extra:
        found = super().extra_arrays() | {"step": np.array([self._step, self._users])}
        if self._step:
            found |= {"start": self._start, "direction": self._direction, "iterate": self._iterate}
            found |= {"residual": self._residual, "gram": self._gram, "count": self._count}
        return found

    def restore_extra(self, arrays: Extra) -> None:
        self._step, self._users = arrays["step"].tolist()
        if self._step:
            self._start, self._direction, self._iterate = (arrays[name] for name in ("start", "direction", "iterate"))
            self._residual, self._gram, self._count = (arrays[name] for name in ("residual", "gram", "count"))

    def grown(self, shared: Arrays) -> Arrays:
        """Items that have joined start as all did; a sweep that the others are in is begun anew."""
        start = initial_shared(self.traveling({}), self.config.seed)["factors"]
        before = len(shared["factors"])
        if before == len(start):
            return shared
        self._step = 0
        start[:before] = shared["factors"]
        return {"factors": start}

    def kept_bytes(self) -> int:
        # Two tables in 32 bits and two in 64, G and the counts.
        m, d = self.roster.num_items, self.options.ials_rank
        return 24 * m * d + 8 * d * d + 8 * m

    def working_bytes(self) -> float:
        # Sums in 64 bits and what a step is made of; and the direction, which every node is sent beside factors.
        m, d = self.roster.num_items, self.options.ials_rank
        return 8.0 * 8 * m * d + 4.0 * self.roster.nodes * m * d


def _dots(one: Rows, other: Rows) -> Rows:
    """[m] the inner product of every row of the one with that of the other."""
    return np.asarray(np.einsum("ij,ij->i", one, other))


def _quotient(above: Rows, below: Rows) -> Rows:
    """above / below, 0 where that is not above 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
