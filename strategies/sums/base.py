"""What methods of sums of cells share on the server: adding up, and keeping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bouquet.arrays import Arrays, Specs
from bouquet.cells import Cells, CellSpec
from bouquet.config import RunConfig
from bouquet.methods.parts import SumsOptions
from bouquet.reporting.events import event
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.federation.base import Extra
from strategies.sums.publishing import PublishingStrategy

Matrix = NDArray[np.floating]
Weights: TypeAlias = Matrix | sparse.csr_matrix
Sums = Mapping[str, sparse.csr_matrix]
# So many cells of a row-wise result are looked at at once.
_BLOCK = 2**24
# Of a cell its value in 64 bits and its column in 32.
_CELL_BYTES = 12


@dataclass(frozen=True)
class Largest:
    """How large what users give can be, by their number of training items.

    Attributes:
        cell: [k] the largest cell of a matrix.
        all_cells: [k] the sum of all of them.
        line: [k] the sum of what is said of one item: a row or a column, of a symmetric matrix both as one; None for
            a vector.
    """

    cell: NDArray[np.float64]
    all_cells: NDArray[np.float64]
    line: NDArray[np.float64] | None = None


class SumsStrategy(PublishingStrategy):
    """Adds up what users count, and publishes what devices recommend with.

    Every user is asked in every round; who has nothing new sends nothing. Sums are exact (`bouquet.cells`), so a model
    depends on what users have and on nothing else: not on nodes, rounds, or users that were here before.
    """

    update = "cells"
    options: SumsOptions

    def __init__(self, config: RunConfig, options: SumsOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self._sums: dict[str, sparse.csr_matrix] = {}

    @abstractmethod
    def largest(self, sizes: NDArray[np.float64]) -> Mapping[str, Largest]:
        """The most that users with so many training items [k] can give, by matrix."""

    @abstractmethod
    def weights_of(self, sums: Sums) -> Weights:
        """K [m, m], what each item says for every other one, of all users' sums."""

    def returning(self, specs: Specs) -> Specs:
        return {}

    def summed(self, num_items: int) -> Mapping[str, CellSpec]:
        return self.options.cells(num_items)

    def needed(self, shared: Arrays) -> Arrays:
        return {}

    def prepare(self) -> None:
        self._sums = {name: sparse.csr_matrix(spec.shape) for name, spec in self.summed(self.roster.num_items).items()}

    def refusal(self, reply: TrainReply, users: NDArray[np.int64]) -> str:
        """Users give no more than their histories can hold; an increment can take off as much and add as much."""
        known = np.maximum(reply.sizes, self.roster.sizes[users])
        if (reply.sizes < 0).any() or (known > self.roster.num_items).any():
            return f"a user has a number of interactions outside 0 to {self.roster.num_items}"
        times = 1.0 + (self.versions[users] > 0)
        for name, largest in self.largest(known.astype(float)).items():
            values = np.abs(reply.cells[name].values.astype(np.float64))
            # These sums of many numbers are not exact themselves: the limits are sums of powers in another order.
            room = 1 + 1e-6
            beyond = values.sum() > (times * largest.all_cells).sum() * room
            if beyond or values.max(initial=0) > largest.cell.sum() * room:
                return f"the cells of '{name}' are larger than {len(users)} users with its histories can give"
            if largest.line is None:
                continue
            longest = longest_line(reply.cells[name], self.summed(self.roster.num_items)[name])
            if longest > (times * largest.line).sum() * room:
                return f"'{name}' says more of one item than {len(users)} users with its histories can"
        return ""

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        for reply in replies:
            for name, cells in reply.cells.items():
                if len(cells.columns):
                    added = matrix_of(cells, self._sums[name].shape)
                    self._sums[name] = self._sums[name] + added if self._sums[name].nnz else added
        for matrix in self._sums.values():
            matrix.eliminate_zeros()
        return self.publish(self.model_of(self._sums), server_round)

    def model_of(self, sums: Sums) -> Arrays:
        """What devices recommend with, of all users' sums."""
        return self.publishable(self.weights_of(sums))

    def publishable(self, weights: Weights) -> Arrays:
        """K as it is published."""
        return published(weights, self.traveling({}))

    def withdraw(self, user: int, given: Mapping[int, Mapping[str, Cells]]) -> None:
        """Subtract what a user gave; exactly, so that it has never been here.

        Nothing is subtracted of a user whose device does not say what it gave, or says what it cannot have given: that
        stays in the sums, and is told.
        """
        version, key = int(self.versions[user]), f"{int(self.roster.users[user]):016x}"
        if not version:
            return
        if version not in given:
            event("not withdrawn", user=key, reason=f"its device does not know what it gave in round {version}")
            return
        left = {}
        for name, cells in given[version].items():
            left[name] = self._sums[name] - matrix_of(cells, self._sums[name].shape)
            if left[name].nnz and left[name].data.min() < 0:
                event("not withdrawn", user=key, reason=f"there is less in '{name}' than its device says that it gave")
                return
        self._sums = left

    def extra_arrays(self) -> Extra:
        found = super().extra_arrays()
        for name, matrix in self._sums.items():
            found |= {f"{name}/{part}": getattr(matrix, part) for part in ("indptr", "indices", "data")}
        return found

    def restore_extra(self, arrays: Extra) -> None:
        for name, spec in self.summed(self.roster.num_items).items():
            data, indices, indptr = (arrays[f"{name}/{part}"] for part in ("data", "indices", "indptr"))
            # Items that have joined the catalogue since then stand at its end.
            rows = np.concatenate([indptr, np.full(spec.shape[0] + 1 - len(indptr), indptr[-1])])
            self._sums[name] = sparse.csr_matrix((data, indices, rows), shape=spec.shape)

    def kept_bytes(self) -> int:
        return int(_CELL_BYTES * self.most_cells())

    def working_bytes(self) -> float:
        return 2.0 * self.kept_bytes()

    def most_cells(self) -> float:
        """Cells of all sums; users overlap, so that there are at most as many as a matrix has."""
        mass = self.largest(self.roster.sizes.astype(float))
        return sum(
            int(min(spec.size, mass[name].all_cells.sum() / max(mass[name].cell.max(initial=0), 1e-9)))
            for name, spec in self.summed(self.roster.num_items).items()
        )


def longest_line(cells: Cells, spec: CellSpec) -> float:
    """The largest sum of sizes in a row or a column of the whole matrix."""
    values, rows = np.abs(cells.values.astype(np.float64)), np.repeat(cells.rows, cells.lengths)
    by_row, by_column = (np.bincount(places, values, minlength=max(spec.shape)) for places in (rows, cells.columns))
    if spec.symmetric:
        twice = rows == cells.columns
        by_row += by_column - np.bincount(rows[twice], values[twice], minlength=max(spec.shape))
    return float(max(by_row.max(initial=0.0), by_column.max(initial=0.0)))


def matrix_of(cells: Cells, shape: tuple[int, int]) -> sparse.csr_matrix:
    """The cells as a matrix in float64."""
    indptr = np.zeros(shape[0] + 1, np.int64)
    indptr[cells.rows + 1] = cells.lengths
    data = cells.values.astype(np.float64)
    return sparse.csr_matrix((data, cells.columns.copy(), np.cumsum(indptr)), shape=shape)


def whole(upper: sparse.csr_matrix) -> sparse.csr_matrix:
    """A symmetric matrix of which only cells on and above the diagonal are given."""
    return (upper + sparse.triu(upper, 1).T).tocsr()


def published(weights: Weights, specs: Specs) -> Arrays:
    """K as it is published: all of it, or of each item the neighbours whose weights are the largest in size."""
    m = weights.shape[0]
    if "neighbors" not in specs:
        return {"weights": np.concatenate([block.astype(np.float32) for _, block in _blocks(weights)])}
    kept = specs["neighbors"].shape[1]
    neighbors, values = np.zeros((m, kept), np.int32), np.zeros((m, kept), np.float32)
    if not isinstance(weights, np.ndarray):
        return _nearest(weights, kept)
    for rows, block in _blocks(weights):
        # In the order of items, so that equal models are published as equal bytes.
        chosen = np.sort(np.argpartition(-np.abs(block), kept, axis=1)[:, :kept], axis=1)
        neighbors[rows], values[rows] = chosen, np.take_along_axis(block, chosen, axis=1)
    return {"neighbors": neighbors, "weights": values}  # type: ignore[dict-item]  # item numbers are integers


def _nearest(weights: sparse.csr_matrix, kept: int) -> Arrays:
    """As `published`, from cells alone; where a row has too few of them, other items stand beside them, for 0."""
    shape = (weights.shape[0], kept)
    neighbors, values = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
    bounds, columns, data = weights.indptr.tolist(), weights.indices, weights.data
    for row, (start, end) in enumerate(pairwise(bounds)):
        found, of_row = columns[start:end], data[start:end]
        if len(found) > kept:
            chosen = np.argpartition(-np.abs(of_row), kept)[:kept]
            found, of_row = found[chosen], of_row[chosen]
        elif len(found) < kept:
            others = np.setdiff1d(np.arange(kept), found)[: kept - len(found)]
            found, of_row = np.append(found, others), np.append(of_row, np.zeros(len(others)))
        order = np.argsort(found)
        neighbors[row], values[row] = found[order], of_row[order]
    return {"neighbors": neighbors, "weights": values}


def _blocks(weights: Weights) -> Iterator[tuple[slice, Matrix]]:
    rows, columns = weights.shape
    step = max(1, _BLOCK // columns)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        block = weights[part]
        yield part, block if isinstance(block, np.ndarray) else block.toarray()
