"""What a method decides, and what it can know: everything that a strategy of a paper is written with.

A method says how users are chosen, what travels, and how replies become the next shared arrays. It thinks in users;
nodes, messages, missing replies and checkpoints are the business of `round_loop`.
"""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs, exchanged, initial_shared
from bouquet.cells import Cells, CellSpec
from bouquet.config import Options, RunConfig
from bouquet.errors import ConfigError
from bouquet.methods import METHODS, only_embeddings
from bouquet.picked import PerUser
from bouquet.randomness import Purpose, generator
from bouquet.records import Report, payload_bytes
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import EvaluateReply, TrainReply, Update, Weighting
from strategies.federation.best_round import BestRound
from strategies.federation.private import PrivateSums
from strategies.federation.roster import Roster

Extra = dict[str, NDArray[Any]]
"""What a method keeps beside shared arrays, by name."""
T = TypeVar("T")


def refuse_masks(config: RunConfig) -> None:
    """Refuse secure sums where there are none, or where something would have to look under the masks.

    Raises:
        ConfigError: one sentence.
    """
    if not config.secure_sums:
        return
    method = METHODS[config.strategy]
    if not method.sums_only:
        known = ", ".join(sorted(name for name, other in METHODS.items() if other.sums_only))
        raise ConfigError(
            f"{config.strategy} looks at single users' updates, so they cannot be masked: leave secure-sums out, or "
            f"take a strategy that needs sums alone ({known})."
        )
    if config.update_bound > 0:
        raise ConfigError(
            "update-bound compares the updates of a round, and secure-sums hides them: leave one of the two out."
        )


class Hooks:
    """A federated method over users.

    Args:
        config: settings that every run has.
        options: the method's own settings, an instance of its manifest's `options`.
        directory: where results and checkpoints go.
    Raises:
        ConfigError: settings do not go together.

    A method overrides `traveling`, `returning`, `needed`, `summed`, `tells`, `reports`, `prepare`, `select_users`,
    `personal`, `aggregate` and, where it keeps more than shared arrays, `extra_arrays`, `restore_extra` and those that
    say how much that is: `personal_bytes`, `kept_bytes`, `stored_bytes` and `working_bytes`. `dense_updates` says that
    every row of an update travels, and `draws_negatives` that rows of items travel too that a user does not have.

    Attributes:
        roster: the users, in an order that does not depend on nodes; known from `prepare` on.
        versions: [n] the round of each user's last update that the server has; 0: none.
        kept_versions: [n] the same as of the last checkpoint.
        checkpoint_round: the round of the last checkpoint; 0: there is none.
        best: the best evaluated round so far.
        series: names the private state of this run, and of those that go on with it, on the nodes.
        keeps_ids: whether a node comes back under its id when the run is resumed, so that users can belong to it.
        most_users: that one node may bring; 0: any number.
        update_bound: the largest change of one user, in multiples of the round's median; 0: any.
        privacy: the noise on its sums, and their budget; None: there is none.
        line: what `metrics.jsonl` will say of the round; a method adds to it with `note`.
    """

    update: Update = "sum"
    weighting: Weighting = "size"
    dense_updates: bool = False
    draws_negatives: bool = True

    def __init__(self, config: RunConfig, options: Options, directory: RunDirectory) -> None:
        options.check_run(config)
        refuse_masks(config)
        self.config, self.options, self.directory = config, options, directory
        if config.robust_aggregation != "none":  # then what `aggregate` is given is made of users' own changes
            self.update = "rows"
        self.series = uuid.uuid4().hex
        self.roster: Roster
        self.versions: NDArray[np.int64]
        self.kept_versions: NDArray[np.int64]
        self.checkpoint_round = 0
        self.keeps_ids = False
        self.most_users = 0
        self.update_bound = 0.0
        self.privacy = PrivateSums(config, directory) if config.private else None
        self.best = BestRound()
        self.line: dict[str, Any] = {}

    def note(self, **values: Any) -> None:
        """Add to the round's line in `metrics.jsonl`."""
        self.line |= values

    def traveling(self, specs: Specs) -> Specs:
        """The shared arrays that the server keeps and sends to all alike; by default those that `exchange` says."""
        return exchanged(specs, only_embeddings(self.config))

    def returning(self, specs: Specs) -> Specs:
        """The arrays whose changes come back; by default those that travel."""
        return self.traveling(specs)

    def summed(self, num_items: int) -> Mapping[str, CellSpec]:
        """The matrices that are summed over users of a catalogue of this size, where `update` is "cells"."""
        return {}

    def needed(self, shared: Arrays) -> Arrays:
        """Those of the shared arrays that a device trains from; by default all."""
        return shared

    def refusal(self, reply: TrainReply, users: NDArray[np.int64]) -> str:
        """Why a reply that is well-formed cannot be true, or ""."""
        return ""

    def initial(self, specs: Specs) -> Arrays:
        """What a new run starts from."""
        return initial_shared(specs, self.config.seed)

    def meant_for(self, named: Mapping[str, T], users: NDArray[np.int64]) -> Mapping[str, T]:
        """Those of the arrays that are sent to the nodes of these users; by default all."""
        return named

    def down_bytes(self, shared: Arrays, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """[k] bytes of the shared arrays that a device of each of these users alone would be sent; by default all."""
        return np.full(len(users), float(payload_bytes(shared)))

    def expected(self, users: NDArray[np.int64], specs: Specs) -> Specs:
        """The arrays that a reply about these users must change, out of those that come back; by default all."""
        return specs

    def weights(self, users: NDArray[np.int64]) -> NDArray[np.float64]:
        """[k] weights of users in the sum that a node sends: training interactions, or 1; 1 where sums are private."""
        # A weight would multiply what one user can change.
        sizes = self.weighting == "size" and not self.privacy
        return self.roster.sizes[users].astype(float) if sizes else np.ones(len(users))

    def tells(self) -> tuple[str, ...]:
        """Names of what `reports` and `evaluation_reports` ask for in any round: nodes are told before the first."""
        return ()

    def everything_told(self) -> tuple[str, ...]:
        """The same with what a private run asks for: whether a user is within a limit that follows all users."""
        return (*self.tells(), *(self.privacy.reports() if self.privacy else ()))

    def reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        """What users tell beside their update of a round, by name; asked for only where something is done with it."""
        return {}

    def telling(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Places among these users of this round of those who shall tell what `reports` says; None: all."""
        return None

    def evaluation_reports(self, server_round: int, shared: Arrays) -> dict[str, Report]:
        """What users tell beside their metrics; as `reports`."""
        return {}

    def take_evaluation(self, reply: EvaluateReply, users: NDArray[np.int64]) -> None:
        """Called for every valid reply to an evaluation, with its users' positions in the roster."""

    def prepare(self) -> None:
        """Called once, when the roster is known and before anything is restored or sent."""

    def select_users(self, server_round: int) -> NDArray[np.int64]:
        """Positions in the roster of this round's users: a fraction r of those present, without replacement."""
        present, size = self.roster.present(), self.users_per_round()
        if size == len(present):
            return present
        source = generator(self.config.seed, server_round, Purpose.USER_SAMPLING)
        return present[np.sort(source.choice(len(present), size, replace=False))]

    def users_per_round(self) -> int:
        """How many users train in a round."""
        return max(1, round(self.config.fraction_train * len(self.roster.present())))

    def personal(self, users: NDArray[np.int64]) -> PerUser:
        """Per-user arrays [k, …] for these users, for methods that treat every user differently."""
        return {}

    def personal_to_evaluate(self, users: NDArray[np.int64]) -> PerUser:
        """The same for an evaluation; by default what training would get."""
        return self.personal(users)

    def addressed(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Places among these users of those that `personal` is asked for, where the others get nothing; None: all."""
        return None

    def addressed_to_evaluate(self, users: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The same for `personal_to_evaluate`."""
        return None

    def parts_to_evaluate(self) -> list[NDArray[np.int64]]:
        """All users, in parts that are asked one after another where what they are sent is much; by default one."""
        return [np.arange(len(self.roster.users))]

    @abstractmethod
    def aggregate(
        self, server_round: int, shared: Arrays, replies: list[TrainReply], users: list[NDArray[np.int64]]
    ) -> Arrays:
        """The next shared arrays.

        Args:
            shared: those of this round.
            replies: valid replies, in roster order.
            users: for each reply its users' positions in the roster.
        """

    def personal_bytes(self) -> int:
        """Bytes that each user is sent for itself alone; known with the roster, as are the next five."""
        return 0

    def evaluation_bytes(self) -> float:
        """Bytes that users are sent for themselves alone in an evaluation, of the largest of its parts."""
        return len(self.roster.users) * self.personal_bytes()

    def kept_bytes(self) -> int:
        """Bytes that are kept from round to round beside shared arrays, in memory and in every checkpoint."""
        return 0

    def held_bytes(self) -> float:
        """Bytes that are kept from round to round in memory and in files, but in no checkpoint itself."""
        return 0

    def stored_bytes(self) -> float:
        """Bytes that lie in files of the method's own, beside the checkpoints, when they are largest."""
        return 0

    def working_bytes(self) -> float:
        """Bytes that an aggregation works with beside all these and the replies."""
        return 0

    def extra_arrays(self) -> Extra:
        """What else must be in a checkpoint."""
        return {}

    def restore_extra(self, arrays: Extra) -> None:
        """Take back what `extra_arrays` gave."""

    def checkpoint_due(self) -> None:
        """A checkpoint is about to be written; for methods with files of their own, which must be on the disk then."""

    def checkpoint_written(self) -> None:
        """It is there, and a run that is resumed goes on from it or from a later one."""

    def grows_from(self, arrays: Extra) -> bool:
        """Whether a run can go on from what `extra_arrays` gave, though its shared arrays have other shapes now."""
        return False

    def grown(self, shared: Arrays) -> Arrays:
        """The shared arrays of a checkpoint as they are with the items of today; called after `restore_extra`."""
        return shared

    def finish(self) -> None:
        """Called once, after the last round."""

    def results(self) -> dict[str, Any]:
        """What `summary.json` says beside what it says of every method; called after `finish`."""
        return {}

    def users_joined(self, count: int) -> None:
        """So many new users stand at the end of the roster; for methods that keep something of every user."""

    def withdraw(self, user: int, given: Mapping[int, Mapping[str, Cells]]) -> None:
        """The user at this position is about to be forgotten; take off what it had given to sums.

        Args:
            given: what its device says that was, by round.
        """

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        """The users at these positions are about to leave the roster for good; drop what is kept of them."""
