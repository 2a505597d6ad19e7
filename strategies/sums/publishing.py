"""Publishing what devices recommend with, whatever it was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bouquet.arrays import Arrays, Specs
from bouquet.catalogue import fingerprint, read_catalogue
from bouquet.config import RunConfig
from bouquet.methods.parts import ModelOfSums
from bouquet.published import PublishedModel
from bouquet.reporting.run_directory import RunDirectory
from strategies.federation.base import BaseStrategy, Extra

# In a checkpoint: how many items its rows are of, and their fingerprint.
_ITEMS, _CATALOGUE = "items", "catalogue"


class PublishingStrategy(BaseStrategy):
    """Publishes arrays that devices recommend with, each from its own history."""

    weighting = "uniform"
    options: ModelOfSums

    def __init__(self, config: RunConfig, options: ModelOfSums, directory: RunDirectory) -> None:
        super().__init__(config, options, directory)
        self._published: Arrays = {}
        self._round = 0

    def traveling(self, specs: Specs) -> Specs:
        return self.options.published(self.roster.num_items)

    def publish(self, arrays: Arrays, server_round: int) -> Arrays:
        """The arrays, which `finish` writes if none are published after them."""
        self._published, self._round = arrays, server_round
        return arrays

    def extra_arrays(self) -> Extra:
        fingerprinted = np.frombuffer(self.roster.catalogue.encode(), np.uint8)
        return {_ITEMS: np.array(self.roster.num_items), _CATALOGUE: fingerprinted}

    def grows_from(self, arrays: Extra) -> bool:
        """Items may join a published catalogue at its end: what was learned of the others stays."""
        if not self.config.catalogue_file or _CATALOGUE not in arrays:
            return False
        before = int(arrays[_ITEMS].item())
        items = read_catalogue(Path(self.config.catalogue_file)).items
        return before <= len(items) and fingerprint(items[:before]).encode() == arrays[_CATALOGUE].tobytes()

    def finish(self) -> None:
        """Write what was published last, for devices that never took part."""
        if self._published:
            model = PublishedModel(
                self.config.strategy, self.options.to_flat(), self.roster.catalogue, self._published, self._round
            )
            model.save(self.directory.model)
