"""Next-item prediction: a network reads the items of a user in order, and what it has read meets an item in a product.

    h_1, …, h_L = network(q_{s_1}, …, q_{s_L})        r̂_{t, i} = h_t · q_i        for the item after s_t

The item embedding Q stands at both ends. The network is causal: h_t knows s_1 to s_t and nothing later, so sequences
of different length are padded at their end, and nothing that is read there counts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from pydantic import Field

from bouquet.arrays import ArraySpec
from bouquet.config import ModelOptions, Options
from models.backbone import Backbone, Tensors

if TYPE_CHECKING:
    from torch import Tensor

Drop = Callable[["Tensor", int], "Tensor"]
"""`drop(values [k, L, w], site)`: dropout, with a number for each place in the network that has one."""

STATE = "state"
"""The name of what a user's history was read into, [k, d], among its private arrays."""


class SequenceOptions(Options):
    """Sequences: how much of a history is read, and by which network."""

    max_length: int = Field(50, ge=1, description="The newest interactions of a user that a sequence model reads.")
    dropout: float = Field(0.3, ge=0, lt=1, description="Share of values that sequence models drop while they train.")
    sasrec_blocks: int = Field(2, ge=1, description="Self-attention blocks of 'sasrec'.")
    sasrec_heads: int = Field(1, ge=1, description="Heads of each block of 'sasrec'; they divide embedding-size.")


def no_drop(values: Tensor, site: int) -> Tensor:
    """Nothing is dropped: what a device recommends with."""
    return values


class SequenceBackbone(Backbone):
    """A backbone that reads a user's history in order.

    Attributes:
        settings: its own settings.
        size: the embedding size d.
        sites: number of places with dropout.
    """

    options_class = SequenceOptions
    reads_order = True
    sequential = True
    sites: int

    def __init__(self, num_items: int, options: ModelOptions, own: Options | None = None) -> None:
        self.settings = own if isinstance(own, SequenceOptions) else SequenceOptions()
        self.size = options.embedding_size
        table = ArraySpec((num_items, self.size), "normal", options.init_scale, by_item=True)
        self.shared = {"item_embedding": table, **self.network()}
        self.private = {}

    @abstractmethod
    def network(self) -> Mapping[str, ArraySpec]:
        """The arrays of the network."""

    @abstractmethod
    def states(self, shared: Tensors, embedded: Tensor, drop: Drop = no_drop) -> Tensor:
        """What the network has read after each item.

        Args:
            shared: the network's arrays, [k, …] each, or in their declared shapes for all users alike.
            embedded: [k, L, d] embeddings of the items, the oldest first.
        Returns:
            [k, L, d].
        """

    def next_logits(self, shared: Tensors, inputs: Tensor, candidates: Tensor, drop: Drop = no_drop) -> Tensor:
        """Logits of some items at every place of a sequence.

        Args:
            shared: `item_embedding` [k, R, d] (or [R, d] for all users) and the network's arrays.
            inputs: [k, L] rows of the table.
            candidates: [k, L, c] rows of the table.
        Returns:
            [k, L, c].
        """
        table = shared["item_embedding"]
        states = self.states(shared, rows_of(table, inputs), drop)
        items = rows_of(table, candidates.flatten(1)).view(*candidates.shape, self.size)
        return (items @ states.unsqueeze(3)).squeeze(3)

    def read(self, shared: Tensors, embedded: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """A user's history as a private array.

        Args:
            embedded: [k, L, d], padded at the end.
            lengths: [k], at least 1.
        Returns:
            "state": [k, d], the state after the last item.
        """
        import torch

        states = self.states(shared, embedded)
        return {STATE: states[torch.arange(len(states)), lengths - 1]}

    def logits(self, private: Tensors, shared: Tensors) -> Tensor:
        import torch

        return torch.bmm(private[STATE].unsqueeze(1), shared["item_embedding"].transpose(1, 2)).squeeze(1)

    def scores(self, private: Tensors, shared: Tensors) -> Tensor:
        table = shared["item_embedding"]
        return private[STATE] @ table.T if table.ndim == 2 else self.logits(private, shared)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """[k, n, d] rows [k, n] of each user's table [k, R, d], or of one table [R, d]."""
    import torch

    if table.ndim == 2:
        return torch.nn.functional.embedding(index, table)
    k, rows, size = table.shape
    # One embedding look-up in all tables at once: its gradient is several times faster than that of indexing.
    start = (torch.arange(k, device=index.device) * rows).unsqueeze(1)
    return torch.nn.functional.embedding(index + start, table.reshape(k * rows, size))


def along(vector: Tensor) -> Tensor:
    """A vector of the network, [k, w] or [w], in a shape that broadcasts over [k, L, w]."""
    return vector.unsqueeze(-2)


def is_sequential(backbone: Backbone) -> TypeGuard[SequenceBackbone]:
    """Whether a backbone predicts the next item of a history."""
    return backbone.sequential
