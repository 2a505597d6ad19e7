"""The device's half: training is drawn towards the item table that came from the server."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bouquet.extend import GLOBAL, Backbone, Batch, Given, OwnArrays, Personalization, RunConfig, Tensors, Working
from my_method import MyOptions


class StayNear(Personalization):
    """FedProx's term, over the rows of the batch's samples: no other row moves."""

    options: MyOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: MyOptions) -> None:
        super().__init__(backbone, config, options)
        self.table = next(name for name, spec in backbone.shared.items() if spec.by_item)
        self.fixed = {GLOBAL: backbone.shared[self.table]}

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        return replace(given, frozen={**given.frozen, GLOBAL: given.shared[self.table]})

    def penalty(self, arrays: Tensors, seen: Tensors, batch: Batch, working: Working) -> Tensor:
        apart = batch.pick(arrays[self.table]) - batch.pick(arrays[GLOBAL])
        of_entry = self.options.my_method_mu / 2 * apart.square().sum(dim=2)
        return (batch.samples * of_entry).sum(dim=1) / batch.count
