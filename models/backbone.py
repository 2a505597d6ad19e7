"""What a backbone declares and computes.

A backbone is stateless: it names its arrays and turns given arrays into logits. All tensors carry a leading
dimension of users, because a node trains many users at once, each with its own copy of the rows that it touches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from bouquet.arrays import Specs
from bouquet.config import ModelOptions, Options

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]
PullBack = Callable[["Tensor"], dict[str, "Tensor"]]

HISTORY = "history"
"""The name under which a backbone that reads it finds a user's history among its private arrays."""


class Backbone(ABC):
    """A model that scores items for users.

    Attributes:
        shared: the arrays that describe items or the network; a strategy decides which of them travel.
        private: the arrays of one user, which never leave its device.
        options_class: the backbone's own settings.
        heads: how many logits a sample has; the loss is their sum.
        reads_history: `private` has an entry `HISTORY` too, [k, r]: 1 where a row is one of the user's items, else 0.
            All of them are among the rows. In training they are its training positives; when items are scored, what
            is known of the user by then.
        reads_order: whether it learns from the order of a history, which then must be the order in time.
        sequential: whether it predicts the next item of a history, as a `SequenceBackbone` does.
        kernel: the compiled kernels that compute its logits and their gradient; empty: there are none.
    """

    options_class: type[Options] = Options
    heads: int = 1
    reads_history: bool = False
    reads_order: bool = False
    sequential: bool = False
    kernel: Literal["", "mf", "ncf", "gru4rec"] = ""
    shared: Specs
    private: Specs

    @abstractmethod
    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        """Declare the arrays.

        Args:
            num_items: size of the catalogue.
            options: the settings of all models.
            own: the backbone's own settings, an instance of its `options_class`; None: the defaults.
        """

    @abstractmethod
    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        """Scores of every user for the item rows that it is given.

        Args:
            private: name -> [k, …].
            shared: name -> [k, r, …] for arrays by item (r chosen rows, different ones for each user) and
                [k, …] for the others.
        Returns:
            [k, heads r] logits, one head after another.
        """

    def forward(self, private: Tensors, shared: Tensors) -> tuple[Tensor, PullBack | None]:
        """The logits, and how a gradient goes back from them, written by hand where that is faster than autograd.

        Args:
            private: as for `logits`.
            shared: as for `logits`.
        Returns:
            [k, heads r] logits, and a function from ∂L/∂logits to name -> ∂L/∂array [k, …]; None where nobody
            wrote it down, and autograd is used.
        """
        return self.logits(private, shared), None

    def sgd_step(self, private: Tensors, shared: Tensors, slope: Tensor, rates: Mapping[str, float]) -> bool:
        """One step of plain SGD in place, array -= rate · ∂L/∂array, where that is cheaper than the gradient itself.

        Args:
            private: as for `logits`.
            shared: as for `logits`.
            slope: ∂L/∂logits, [k, r].
            rates: name -> learning rate.
        Returns:
            Whether the step was made; False leaves it to the optimiser.
        """
        return False

    @abstractmethod
    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        """Scores of every user for the whole catalogue.

        Args:
            private: name -> [k, …]; `HISTORY` is [k, m].
            shared: each array either once for all users, in its declared shape, or per user with a leading k.
        Returns:
            [k, m] logits.
        """
