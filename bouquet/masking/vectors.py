"""What a node gives in a secure sum, as one row of numbers, and what the sum over nodes says.

All arrays stand one after another in the order of their names, whole: rows that nobody touched are zeros under masks
like all others. After them stand three numbers about users: how many values were clipped, how many users have a
training loss, and the sum of their losses; so no user's own loss leaves a node.

Sums of cells are whole, too, or their upper half where they are symmetric; they are exact (`bouquet.cells`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.cells import FINE, Cells, CellSpec
from bouquet.errors import ConfigError, WireError
from bouquet.masking.fixed import Bits, FixedPoint, Whole, dtype_of
from bouquet.masking.graph import least
from bouquet.masking.rules import Rules
from bouquet.packed import PackedArray
from bouquet.randomness import normals
from bouquet.secret_draws import SecretStreams

MOST_VALUES = 2**24
"""Numbers of one node's input: 64 or 128 MiB."""
LARGEST_LOSS = 64.0
"""What is above it counts as it."""
_TAIL = 3
# Of its standard deviation noise goes no further in 10^23 draws; there it is cut off.
_TAILS = 10.0


@dataclass(frozen=True)
class Said:
    """What the sum says beside the arrays.

    Attributes:
        clipped: how many values were clipped.
        loss: the mean training loss of the users that have one; NaN where nobody has.
    """

    clipped: int
    loss: float


@dataclass(frozen=True)
class Layout:
    """What stands where.

    Attributes:
        specs: arrays whose changes are summed.
        cells: matrices that are summed instead.
        rules: of the run.
        weight: W, of all users of the round.
        users: how many there are.
        nodes: n.
    """

    specs: Specs
    cells: Mapping[str, CellSpec]
    rules: Rules
    weight: float
    users: int
    nodes: int

    @property
    def bits(self) -> Bits:
        """Of a number that travels; the cells of many users need more than 32."""
        return 64 if self.cells else self.rules.bits

    @property
    def length(self) -> int:
        """How many numbers there are."""
        return length_of(self.specs, self.cells)

    def encode_sums(
        self, sums: Mapping[str, PackedArray], factor: float, weight: float, losses: NDArray[np.floating]
    ) -> Whole:
        """One node's numbers.

        Args:
            sums: of its users; times `factor` they are weighted.
            weight: of its users.
            losses: [k] of its users; NaN where there is none.
        Raises:
            WireError: they are of other arrays, not finite, or heavier than the whole round.
        """
        if sums.keys() != self.specs.keys() or not 0 <= weight <= self.weight * (1 + 1e-9):
            raise WireError("what the node has does not fit the sum that it is asked for")
        found, clipped = self._empty(), 0
        key = secrets.token_bytes(32)  # of this sum alone, and forgotten with it
        for number, (name, place) in enumerate(self._places()):
            part, values = sums[name], np.zeros(self.specs[name].shape)
            part.add_to(values, factor)
            if not np.isfinite(values).all():
                raise WireError(f"the update of '{name}' has values that are not finite")
            if self.share:
                drawn = normals(SecretStreams(key, np.array([number], np.uint64)), values.size)[0]
                values += self.share * drawn.reshape(values.shape)
            most = self.rules.clip * weight + _TAILS * self.share
            found[place], beyond = self._grid.encode(values.ravel(), most)
            clipped += beyond
        return self._with_tail(found, clipped, losses)

    def encode_cells(self, cells: Mapping[str, Cells], losses: NDArray[np.floating]) -> Whole:
        """One node's numbers, of exact cells.

        Raises:
            WireError: there is a cell that is not exact.
        """
        found = self._empty()
        for name, place in self._places():
            spec = self.cells[name]
            found[place][_positions(cells[name].keys(spec), spec)] = _FINE.exact(cells[name].values, name)
        return self._with_tail(found, 0, losses)

    def decode_sums(self, total: Whole) -> dict[str, PackedArray]:
        """The sums over all nodes, by array."""
        return {
            name: PackedArray(None, self._grid.decode(total[place]).reshape(self.specs[name].shape))
            for name, place in self._places()
        }

    def decode_cells(self, total: Whole) -> dict[str, Cells]:
        """The same of matrices."""
        found = {}
        for name, place in self._places():
            spec, part = self.cells[name], total[place]
            filled = np.flatnonzero(part)
            found[name] = Cells.of_keys(_keys(filled, spec), _FINE.decode(part[filled]), spec)
        return found

    def decode_rest(self, total: Whole) -> Said:
        """What stands after the arrays."""
        clipped, count = (int(value) for value in total[-_TAIL : -_TAIL + 2])
        loss = float(self._losses.decode(total[-1:])[0])
        return Said(clipped, loss / count if count else float("nan"))

    @property
    def share(self) -> float:
        """Standard deviation of the noise of one node: so much that whoever is left has enough together."""
        if not self.rules.noise:
            return 0.0
        from bouquet.accounting import noise_share  # with SciPy, which other masks do without

        lost = self.nodes - least(self.nodes, self.rules.threshold)
        return noise_share(self.rules.noise, self.nodes, lost)

    @property
    def _grid(self) -> FixedPoint:
        return FixedPoint.for_sums(self.rules.clip, self.weight, self.nodes, self.bits, _TAILS * self.share)

    @property
    def _losses(self) -> FixedPoint:
        return FixedPoint.for_sums(LARGEST_LOSS, float(self.users), self.nodes, self.bits)

    def _places(self) -> Iterator[tuple[str, slice]]:
        start = 0
        for name, size in _sizes(self.specs, self.cells):
            yield name, slice(start, start + size)
            start += size

    def _empty(self) -> Whole:
        return np.zeros(self.length, dtype_of(self.bits))

    def _with_tail(self, found: Whole, clipped: int, losses: NDArray[np.floating]) -> Whole:
        known = losses[np.isfinite(losses)].astype(np.float64)
        found[-_TAIL:-1] = clipped, len(known)
        held = np.array([np.clip(known, -LARGEST_LOSS, LARGEST_LOSS).sum()])
        found[-1:], _ = self._losses.encode(held, LARGEST_LOSS * max(len(known), 1))
        return found


_FINE = FixedPoint(FINE, 64)


def length_of(specs: Specs, cells: Mapping[str, CellSpec]) -> int:
    """How many numbers a node gives."""
    return sum(size for _, size in _sizes(specs, cells)) + _TAIL


def refuse_length(specs: Specs, cells: Mapping[str, CellSpec], what: str) -> None:
    """Refuse sums that are too large to be whole.

    Raises:
        ConfigError: names the sizes.
    """
    count = length_of(specs, cells)
    if count > MOST_VALUES:
        raise ConfigError(
            f"secure-sums hides which cells a user has, so every node sends all {count:,} numbers of {what}, and at "
            f"most {MOST_VALUES:,} make sense: take fewer items, another strategy, or leave secure-sums out."
        )


def model_digest(shared: Mapping[str, NDArray[Any]]) -> bytes:
    """What nodes sign of the arrays that they were sent."""
    found = sha256(b"bouquet model")
    for name, values in sorted(shared.items()):
        found.update(f"{len(name)} {name} {values.dtype.str} {values.shape} ".encode())
        found.update(np.ascontiguousarray(values).data)
    return found.digest()


def _sizes(specs: Specs, cells: Mapping[str, CellSpec]) -> list[tuple[str, int]]:
    return sorted((name, spec.size) for name, spec in (cells or specs).items())


def _positions(keys: NDArray[np.int64], spec: CellSpec) -> NDArray[np.int64]:
    """Where cells stand: row after row; of a symmetric matrix each row from its diagonal on."""
    if not spec.symmetric:
        return keys
    m = spec.shape[1]
    rows, columns = np.divmod(keys, m)
    return np.asarray(rows * m - rows * (rows - 1) // 2 + columns - rows)


def _keys(positions: NDArray[np.int64], spec: CellSpec) -> NDArray[np.int64]:
    """The inverse of `_positions`."""
    if not spec.symmetric:
        return positions
    m = spec.shape[1]
    starts = np.arange(m) * m - np.arange(m) * (np.arange(m) - 1) // 2
    rows = np.searchsorted(starts, positions, side="right") - 1
    return np.asarray(rows * m + rows + positions - starts[rows])
