"""What a device's method can do: declare arrays, choose where training starts, change what the model sees, add losses.

A device trains a backbone. A personalization stands between the arrays that are trained and the arrays that the
backbone sees, and several can stand in a row: the plug-ins first, then the base method. What they are given stands in
`client_app.personalization.round`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array, Specs
from bouquet.config import Options, RunConfig
from bouquet.ragged import Ragged
from bouquet.randomness import Draws, Words
from client_app.personalization.linear import Linear
from client_app.personalization.proximal import Proximal
from client_app.personalization.round import Batch, Changes, Given, OwnArrays, Pull, Tensors, Tuning, Working
from models import Backbone

if TYPE_CHECKING:
    from torch import Tensor

Task = TypeVar("Task")


class Personalization:
    """A device-side method; by itself it changes nothing.

    Args:
        backbone: the model.
        config: settings that every run has.
        options: the method's own settings, an instance of its manifest's `options`.
    Raises:
        ConfigError: they do not go together.

    Attributes:
        shared, private: the arrays that the method adds to those of the backbone.
        fixed: the arrays that its losses read and nobody trains.
        kept: shared arrays of which every user keeps a version of its own on the device.
        replaced: those among them that training starts from without the user's own version.
        tuned: common tables, by item, that the user trains from as they come and recommends with as its training left
            them; a plug-in that keeps versions of a table for its own purpose goes before.
        by_rows: its private arrays by item of which training, from `start` on, reads and changes the rows that are
            worked on and no others, so that all that was never among them is as it was drawn.
        rates: learning rates of arrays that do not take the run's, by name.
        whole_table: a loss reads or moves every row, so all rows are worked on.
        fewer_rows: the settings with which it would not, for a user whose disk is too small; "" where there are none.
        norms_of: arrays by item of which it needs the norm of the rows that are not worked on.
        tuning: how the device fine-tunes what it recommends with; None: it does not.
        needs_validation: `validation_reports` is asked for.
        without_order: what to do where the method reads the order of histories, and they have none.
        reads_history: what the backbone sees depends on which items are the user's: in training on all training items,
            of which a sequence may have only the newest as samples.
        term: all that the method adds to the loss; None: nothing, or something else.
        only_sum: the backbone sees the sum of the common item table and `PERSONAL`, and nothing else is minimised.
    """

    kept: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    tuned: frozenset[str] = frozenset()
    by_rows: frozenset[str] = frozenset()
    whole_table = False
    fewer_rows = ""
    norms_of: tuple[str, ...] = ()
    tuning: Tuning | None = None
    needs_validation = False
    without_order = ""
    reads_history = False
    term: Proximal | Linear | None = None
    only_sum = False

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        options.check_run(config)
        self.backbone, self.config, self.options = backbone, config, options
        self.shared: Specs = {}
        self.private: Specs = {}
        self.fixed: Specs = {}
        self.rates: Mapping[str, float] = {}

    @classmethod
    def reads_order(cls, options: Options) -> bool:
        """Whether the method, with these settings, makes use of the order of a history, which then must be in time."""
        return False

    @property
    def in_loss(self) -> bool:
        """Whether the method changes what is minimised or what the backbone sees."""
        cls = type(self)
        return cls.view is not Personalization.view or cls.penalty is not Personalization.penalty

    @property
    def in_view(self) -> bool:
        """Whether the method changes what the backbone sees, so that scores are not those of the arrays alone."""
        return type(self).view is not Personalization.view

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """Where training starts.

        Args:
            given: what the server sent to all and what the device has kept.
            personal: [k, …] what the server sent to each of the users, or [j, …] to those that are `given.addressed`.
            first: [k] users that have not trained before.
        """
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        """What the device recommends with; by default what its next training would start from."""
        return self.start(given, personal, first)

    def view(self, arrays: Tensors, working: Working) -> Tensors:
        """What the next method, and at last the backbone, sees in place of `arrays`; entries may be added.

        Args:
            arrays: name -> [k, R, …] by item, [k, …] others; trained, frozen and anchored ones.
        """
        return arrays

    def two_views(self, arrays: Tensors, seen: Tensors) -> tuple[Tensor, Tensor] | None:
        """The items as the common table shows them and as the user's own shows them, [k, R, d] each, for diagnostics.

        Args:
            arrays: as for `penalty`.
            seen: as for `penalty`.
        Returns:
            None where the method has no two such tables.
        """
        return None

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor | None:
        """[k] what is added to each user's loss, or None.

        Args:
            arrays: what is trained and what is frozen, as for `view`.
            seen: the same after the views of all methods.
        """
        return None

    def forward(self, arrays: Tensors, batch: Batch, working: Working) -> tuple[Tensors, Pull] | None:
        """What `view` gives, and the way back of gradients, by hand where that is faster than autograd.

        Args:
            batch: every row is an entry (`rows` is None).
        Returns:
            The seen arrays, and a function from ∂L/∂seen by name to ∂L/∂array by name, which adds the gradient of the
            method's own penalty. It is called without a graph, and for users without samples its result is not used.
            None where nobody wrote it down.
        """
        return None

    def train(self, backend: Callable[[Task], Iterator[Changes]], task: Task) -> Iterator[Changes]:
        """One round of local training, for methods that make another task of it, or more of what comes of it.

        Args:
            backend: computes a `LocalTask`.
            task: of some users, from what they were given; its private arrays are those that will be kept.
        """
        return backend(task)

    def compiled(self, task: Task) -> Iterator[Changes] | None:
        """One round of local training by compiled loops of the method's own; None where they do not compute this task.

        Args:
            task: as a backend is given it; the method is the first in it.
        """
        return None

    def additive_terms(self, round_: int) -> tuple[float, float] | None:
        """Weights a and b of - ‖C - D_u‖² and ‖C‖₁ of a sample's rows in a round, C being the common table and D_u that
        of each user whose sum with it the model sees; None: the method does something else."""
        return None

    def scores(self, given: Given) -> Callable[[NDArray[np.int64]], Array] | None:
        """What matrix factorisation gives after `view`, by compiled loops of the method's own; None where it has none.

        Args:
            given: as `deploy` left it; no other method changes what the model sees.
        Returns:
            rows [b] of the users -> [b, m].
        """
        return None

    def reports(
        self, given: Given, users: Words, positives: Ragged, negatives: Ragged, round_: int, draws: Draws
    ) -> dict[str, NDArray[np.float32]]:
        """What each user tells the server beside its update, by a name that the wire declares: [k, …] each.

        Args:
            given: as `start` left it, with `own` after training.
            users: [k] keys.
            positives: [k] rows of this round's training items.
            negatives: [k] rows of what they were trained against.
            draws: of noise that protects what is reported.
        """
        return {}

    def validation_reports(self, metrics: NDArray[np.float64]) -> dict[str, NDArray[np.float32]]:
        """What each user tells of how well training has served it.

        Args:
            metrics: [k, candidate sets, metrics] of the trained model on what the users hold out for validation; NaN
                for a user who holds out nothing.
        """
        return {}

    def evaluation_reports(self, given: Given, positives: Ragged) -> dict[str, NDArray[np.float32]]:
        """What each user tells beside its metrics when it is evaluated: [k, …] each.

        Args:
            given: as `deploy` left it.
            positives: [k] rows of training items, oldest first.
        """
        return {}

    def disguise(self, changes: Changes, given: Given, users: Words, round_: int, draws: Draws) -> Changes:
        """What is uploaded in place of the changes of some of the users."""
        return changes
