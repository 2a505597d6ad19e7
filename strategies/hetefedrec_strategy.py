"""HeteFedRec over rounds: who is in which group, what each group is sent, and when the stages of `hetefedrec` run.

Arrays are kept by group, as `group/name`. The networks of a size stand once in every group that trains it (`b.name`
in groups above b) and are always equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs, initial_shared
from bouquet.config import RunConfig
from bouquet.evaluation import METRICS, metric_values, singular_value_variance
from bouquet.methods.hetefedrec import HeteFedRecOptions
from bouquet.needs import bytes_of
from bouquet.randomness import Purpose, generator
from bouquet.records import Report, payload_bytes
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from strategies.federation.base import BaseStrategy, Extra
from strategies.hetefedrec import (
    aggregate_padded,
    assign_groups,
    boundaries,
    distill,
    distillation_loss,
    group_by_size,
)
from strategies.numerics.server_optimizer import Mean, ServerOptimizer

T = TypeVar("T")


class HeteFedRec(BaseStrategy):
    """Groups of users with item tables of different widths, which learn from each other."""

    options: HeteFedRecOptions

    def __init__(self, config: RunConfig, options: HeteFedRecOptions, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self.weighting = options.hetefedrec_weighting
        self.widths = options.widths
        self.optimizer = ServerOptimizer(options)

    # -- groups ----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        sizes = self.roster.sizes
        self.groups = assign_groups(sizes, self.options.ratio)
        self.bounds = boundaries(sizes, self.groups, len(self.widths))

    def groups_of(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """[k] the group of each of these users now. Who has more data than before moves up, and nobody moves down."""
        self.groups = np.maximum(self.groups, group_by_size(self.roster.sizes, self.bounds))
        return self.groups[users]

    def users_joined(self, count: int) -> None:
        self.groups = np.concatenate([self.groups, group_by_size(self.roster.sizes[-count:], self.bounds)])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        self.groups = np.delete(self.groups, positions)

    def extra_arrays(self) -> Extra:
        return {**self.optimizer.arrays(), "groups": self.groups, "bounds": self.bounds}

    def restore_extra(self, arrays: Extra) -> None:
        self.optimizer.restore(arrays)
        self.groups, self.bounds = arrays["groups"], arrays["bounds"]

    def kept_bytes(self) -> int:
        return self.optimizer.kept_bytes(self._shared_bytes)

    @property
    def _shared_bytes(self) -> int:
        return bytes_of(self.traveling(self.roster.specs))

    def working_bytes(self) -> float:
        """As the mean of one group; and the cosines of the items that a distillation compares, for every group."""
        compared = min(self.options.hetefedrec_kd_items, self.roster.num_items)
        cosines = 8 * compared**2 * (len(self.widths) + 3) if self.options.kd_steps else 0
        return max(self.optimizer.working_bytes(self._shared_bytes), cosines)

    # -- what travels ----------------------------------------------------------------------------------------------

    def traveling(self, specs: Specs) -> Specs:
        return {} if self.options.hetefedrec_method == "standalone" else super().traveling(specs)

    def initial(self, specs: Specs) -> Arrays:
        """Every table is the first columns of the largest (eq. 10), and every network the same in all groups."""
        arrays: Arrays = {}
        last = len(self.widths) - 1
        for name, spec in specs.items():
            group, inner = self._where(name)
            source = f"{last if spec.by_item else self._owner(group, inner)}/{inner.rpartition('.')[2]}"
            whole = initial_shared({source.partition("/")[2]: specs[source]}, self.config.seed)
            arrays[name] = np.ascontiguousarray(next(iter(whole.values()))[..., : spec.shape[-1]])
        return arrays

    def meant_for(self, named: Mapping[str, T], users: NDArray[np.int64]) -> dict[str, T]:
        groups = set(self.groups_of(users).tolist())
        return {name: value for name, value in named.items() if self._where(name)[0] in groups}

    def personal(self, users: NDArray[np.int64]) -> Arrays:
        return {"group": self.groups_of(users)}  # type: ignore[dict-item]

    def tells(self) -> tuple[str, ...]:
        return ("seconds",)

    def reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        return {"seconds": Report((), 0.0)}

    def down_bytes(self, shared: Arrays, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """A device is sent what its group has and no more."""
        sizes = np.array([payload_bytes(self._of_group(shared, g)) for g in range(len(self.widths))], dtype=float)
        return sizes[self.groups_of(users)]

    def expected(self, users: NDArray[np.int64], specs: Specs) -> Specs:
        """A node may only change arrays of the groups that its users were given."""
        return self.meant_for(specs, users)

    # -- aggregation -----------------------------------------------------------------------------------------------

    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        self._note_costs(shared, replies, users)
        self.note(hetefedrec={})
        if not shared:
            return shared
        totals, weights = self._totals(shared, replies, users)
        updated = self.optimizer.step(server_round, shared, self._mean(totals, weights))
        record: dict[str, Any] = {}
        if self.options.kd_steps:
            record = self._distill(server_round, updated)
        for name in self._tables(updated, len(self.widths) - 1):
            record["singular_variance"] = float(singular_value_variance(updated[name]))
        self.note(hetefedrec=record)
        return updated

    def _totals(
        self, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> tuple[Mean, NDArray[np.float64]]:
        """Σ w_u Δ_u of each group's arrays, and each group's Σ w_u."""
        totals = {name: np.zeros(values.shape) for name, values in shared.items()}
        weights = np.zeros(len(self.widths))
        exclusive = self.options.hetefedrec_method == "all-large-exclusive"
        for reply, members in zip(replies, users, strict=True):
            groups = self.groups[members]
            own = self.roster.sizes[members] if self.weighting == "size" else np.ones(len(members))
            if len(set(groups.tolist())) == 1:
                weights[groups[0]] += reply.weight
            else:
                weights += np.bincount(groups, own, minlength=len(weights))
            for name, packed in reply.sums.items():
                packed.add_to(totals[name], reply.factor)
        if exclusive:
            weights[:-1] = 0
            for name, total in totals.items():
                if self._where(name)[0] < len(weights) - 1:
                    total[:] = 0
        return totals, weights

    def _mean(self, totals: Mean, weights: NDArray[np.float64]) -> Mean:
        """Eq. 7 to 9 for tables and eq. 15 for networks, or every group by itself."""
        rule = self.options.hetefedrec_aggregation
        mean: Mean = {}
        if self.options.hetefedrec_method == "clustered":
            for name, total in totals.items():
                weight = weights[self._where(name)[0]]
                mean[name] = total / weight if weight > 0 and rule == "mean" else total
            return mean
        carriers: dict[tuple[int, str], list[str]] = {}
        for name, total in totals.items():
            group, inner = self._where(name)
            if name in self._tables(totals, group):
                names = [f"{g}/{inner}" for g in range(len(self.widths))]
                padded = aggregate_padded([totals[n] for n in names], self.widths, rule, weights=list(weights))
                mean[name] = padded[:, : total.shape[1]]
            else:
                carriers.setdefault((self._owner(group, inner), inner.rpartition(".")[2]), []).append(name)
        for names in carriers.values():
            total = sum((totals[name] for name in names[1:]), start=totals[names[0]])
            weight = sum(weights[self._where(name)[0]] for name in names)
            mean |= dict.fromkeys(names, total / weight if weight > 0 and rule == "mean" else total)
        return mean

    def _distill(self, server_round: int, shared: Arrays) -> dict[str, Any]:
        """Eq. 16 and 17, in place, on items drawn for this round."""
        options = self.options
        names = [name for g in range(len(self.widths)) for name in self._tables(shared, g)]
        tables = [shared[name] for name in names]
        source = generator(self.config.seed, server_round, Purpose.DISTILLATION)
        items = source.choice(len(tables[0]), min(options.hetefedrec_kd_items, len(tables[0])), replace=False)
        moved = distill(tables, items, options.kd_steps, options.hetefedrec_kd_learning_rate)
        shared |= {name: table.astype(np.float32) for name, table in zip(names, moved, strict=True)}
        return {"kd_before": distillation_loss(tables, items), "kd_after": distillation_loss(moved, items)}

    # -- what it costs and gives, by group -------------------------------------------------------------------------

    def _note_costs(self, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]) -> None:
        groups = self.groups[np.concatenate(users)]
        down = [payload_bytes(self._of_group(shared, g)) for g in range(len(self.widths))]
        up = np.concatenate([reply.upload_bytes for reply in replies])
        seconds = np.concatenate([reply.reports["seconds"] for reply in replies])
        costs = [
            {
                "users": int((groups == g).sum()),
                "down_per_user": down[g],
                "up_per_user": float(up[groups == g].mean()) if (groups == g).any() else None,
                "seconds_per_user": float(seconds[groups == g].mean()) if (groups == g).any() else None,
            }
            for g in range(len(self.widths))
        ]
        self.note(groups=costs)

    def results(self) -> dict[str, Any]:
        """What each group's models cost over the run, how well the reported round serves them, and collapse."""
        rounds = self.directory.rounds()
        groups = []
        for g, width in enumerate(self.widths):
            mine = self.groups == g
            lines = [line["groups"][g] for line in rounds if line["groups"][g]["users"]]
            costs = {
                key: float(np.mean([line[key] for line in lines])) if lines else None
                for key in ("down_per_user", "up_per_user", "seconds_per_user")
            }
            test = {}
            if len(self.best.values):
                columns = {name: metric_values(self.best.values, "test", "full", name)[mine] for name in METRICS}
                test = {n: float(np.nanmean(c)) if np.isfinite(c).any() else None for n, c in columns.items()}
            groups.append({"size": width, "users": int(mine.sum()), **costs, "test": test})
        best = [line for line in rounds if line["round"] == self.best.round]
        variance = best[0]["hetefedrec"].get("singular_variance") if best else None
        return {"groups": groups, "singular_variance": variance}

    # -- names -----------------------------------------------------------------------------------------------------

    def _where(self, name: str) -> tuple[int, str]:
        """An array's group, and its name there."""
        group, _, inner = name.partition("/")
        return int(group), inner

    def _owner(self, group: int, inner: str) -> int:
        """The first group whose own network a group's array belongs to; groups of one width share theirs."""
        number, dot, _ = inner.partition(".")
        return self.widths.index(self.widths[int(number) if dot else group])

    def _tables(self, named: Mapping[str, object], group: int) -> list[str]:
        """The names of a group's arrays by item."""
        specs = self.roster.specs
        return [name for name in named if self._where(name)[0] == group and specs[name].by_item]

    def _of_group(self, shared: Arrays, group: int) -> Arrays:
        return {name: values for name, values in shared.items() if self._where(name)[0] == group}
