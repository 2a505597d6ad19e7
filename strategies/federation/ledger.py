"""What a private run decides when it begins, and what it has spent since."""

from __future__ import annotations

from dataclasses import dataclass

from bouquet.accounting import Releases, epsilon_of

LEDGER = "privacy.json"
ADJACENCY = "add or remove one user"


@dataclass
class Ledger:
    """What is decided when a run begins, and what was spent since.

    Attributes:
        users: n, that the run began with.
        delta: δ.
        noise: z of a round: all that is released in it together.
        sampling: q.
        metrics_noise: of the sums of metrics; 0: none are released.
        clip: C of the next round.
        rounds: noisy sums that were made.
        evaluations: noisy sums of metrics that were made.
    """

    users: int
    delta: float
    noise: float
    sampling: float
    metrics_noise: float
    clip: float
    rounds: int = 0
    evaluations: int = 0

    def epsilon(self, rounds: int, evaluations: int) -> float:
        """After so many releases."""
        return epsilon_of(
            [Releases(self.noise, self.sampling, rounds), Releases(self.metrics_noise or 1.0, 1.0, evaluations)],
            self.delta,
        )

    @property
    def next_evaluations(self) -> int:
        """How many evaluations are spent after the next."""
        return self.evaluations + bool(self.metrics_noise)

    def rounds_within(self, budget: float, wanted: int) -> int:
        """How many of the wanted rounds, and an evaluation, still cost no more than ε = `budget`."""
        low, high = 0, wanted + 1
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.epsilon(self.rounds + middle, self.next_evaluations) <= budget * (1 + 1e-9)
            low, high = (middle, high) if fits else (low, middle)
        return low
