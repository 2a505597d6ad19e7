"""Real numbers as whole ones modulo 2^k, so that masks hide them and sums of them are exact.

Of a weighted sum over users each value is at most C times the weight of these users: what is beyond is clipped. With W
the weight of all users of a round and n nodes, the step

    q = C W / (2^(k-1) - 1 - n)

leaves room for every sum, rounding included. Each node rounds to the nearest multiple of q, so a sum over n nodes is
within n q / 2 of the sum of what was clipped.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import WireError

Bits = Literal[32, 64]
Whole = NDArray[Any]
"""Values modulo 2^32 or 2^64: uint32 or uint64."""

_TYPES: dict[int, Any] = {32: np.uint32, 64: np.uint64}
# Beyond it, whole numbers are not exact in float64.
_EXACT = 2.0**53
# Masks are streams of bytes that are read as numbers; all machines must read the same ones.
assert sys.byteorder == "little"


def dtype_of(bits: Bits) -> Any:
    """The type of numbers modulo 2^bits."""
    return np.dtype(_TYPES[bits])


@dataclass(frozen=True)
class FixedPoint:
    """Numbers on a grid.

    Attributes:
        step: q, above 0.
        bits: k.
    """

    step: float
    bits: Bits = 32

    @classmethod
    def for_sums(cls, clip: float, weight: float, nodes: int, bits: Bits = 32, beside: float = 0.0) -> FixedPoint:
        """The grid on which no sum over so many nodes overflows.

        Args:
            clip: C, the largest value per unit of weight.
            weight: W, of all users of the round.
            beside: what each node's value can be beyond that.
        Raises:
            WireError: there is no such grid.
        """
        room = 2.0 ** (bits - 1) - 1 - nodes
        if bits == 64:  # so that a node's numbers are exact before they become whole
            room = _EXACT - nodes
        if not (0 < clip < np.inf and 0 < weight < np.inf and room > 0):
            raise WireError(f"no sum can be made of values up to {clip} with a weight of {weight} over {nodes} nodes")
        return cls((clip * weight + nodes * beside) / room, bits)

    def encode(self, values: NDArray[np.floating], most: float) -> tuple[Whole, int]:
        """The nearest whole multiples of the step.

        Args:
            values: finite.
            most: what is larger in size is clipped to it.
        Returns:
            them, modulo 2^k, and how many values were clipped.
        """
        values = np.asarray(values, np.float64)
        held = np.clip(values, -most, most)
        whole = np.rint(held / self.step).astype(np.int64)
        return whole.astype(_TYPES[self.bits]), int(np.count_nonzero(held != values))

    def exact(self, values: NDArray[np.floating], what: str) -> Whole:
        """Values that lie on the grid, as they are.

        Raises:
            WireError: one does not, or is too large; names `what`.
        """
        scaled = np.asarray(values, np.float64) / self.step
        if (np.rint(scaled) != scaled).any() or (np.abs(scaled) > _EXACT).any():
            raise WireError(f"'{what}' has values that are no multiples of {self.step:g}")
        return scaled.astype(np.int64).astype(_TYPES[self.bits])

    def decode(self, sums: Whole) -> NDArray[np.float64]:
        """The sums as real numbers; they lie in the lower half of all numbers, or stand for negative ones."""
        signed = sums.view(np.int32 if self.bits == 32 else np.int64)
        return signed.astype(np.float64) * self.step
