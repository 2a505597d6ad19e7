"""What all nodes of a run hold to in secure sums."""

from __future__ import annotations

from dataclasses import dataclass

from bouquet.masking.fixed import Bits


@dataclass(frozen=True)
class Rules:
    """What each round's transcript says beside the keys.

    Attributes:
        neighbors: k; 0: all others.
        threshold: τ.
        clip: C.
        bits: of a number that travels.
        noise: standard deviation of the noise that the sum over the nodes left has at least, by shares of the nodes; 0:
            none.
    """

    neighbors: int = 0
    threshold: float = 2 / 3
    clip: float = 8.0
    bits: Bits = 32
    noise: float = 0.0
