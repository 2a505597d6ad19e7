"""The device side of PerFedRec (Luo et al., CIKM 2022): three levels in one item table.

    training     Q_u ← G                                      from the global arrays, as in averaging
    use          V_u = a_l Q_u + a_c G_c + a_g G              Q_u: as the user's last training left it
                                                              a_g = 1 - a_l - a_c

What comes for a user is D_c = G_c - G, of its cluster c. Item tables alone are mixed; the rest of a model is the global
one. Who has not trained yet has no Q_u, and G in its place.

After the plug-in of PLGC, which has a table of the user's own, the local level is its: that table is mixed with V_u
without Q_u, with G + (a_c / (a_c + a_g)) D_c, in the place of the table that is the same for all. ACE turns V_u.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array
from bouquet.config import Options, RunConfig
from bouquet.methods.perfedrec import PerFedRecOptions
from client_app.personalization.profiles import Profiled
from client_app.personalization.round import GLOBAL, Given, OwnArrays, checked_personal
from models import Backbone


class ThreeLevels(Profiled):
    """Each user trains from the global tables, and recommends with a mixture of theirs, its cluster's and its own."""

    options: PerFedRecOptions

    def __init__(self, backbone: Backbone, config: RunConfig, options: Options) -> None:
        super().__init__(backbone, config, options)
        self.mixed = {name: spec for name, spec in backbone.shared.items() if spec.by_item}
        if self.options.perfedrec_local_share > 0:
            self.kept = self.replaced = frozenset(self.mixed)

    def start(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        given = self.noted(given)
        if self.table not in given.shared:
            return self._for_plug_in(given, personal, len(first))
        for name in self.mixed if self.kept else ():
            table = np.repeat(given.shared[name][None], len(first), axis=0)
            given = given.with_own(name, table, reported=True)
        return given

    def deploy(self, given: Given, personal: OwnArrays, first: NDArray[np.bool_]) -> Given:
        given = self.noted(given)
        if self.table not in given.shared:
            return self._for_plug_in(given, personal, len(first))
        options = self.options
        for name in self.mixed if options.perfedrec_local_share + options.perfedrec_cluster_share > 0 else ():
            common = given.shared[name]
            table = np.repeat(common[None], len(first), axis=0)
            if options.perfedrec_cluster_share > 0:
                table += np.float32(options.perfedrec_cluster_share) * self._apart(personal, name, len(first))
            if options.perfedrec_local_share > 0:
                trained = ~first
                table[trained] += np.float32(options.perfedrec_local_share) * (given.own[name][trained] - common)
            given = given.with_own(name, table)
        return given

    def _for_plug_in(self, given: Given, personal: OwnArrays, users: int) -> Given:
        """The plug-in's global table becomes each user's: G and what its cluster adds."""
        options = self.options
        rest = 1 - options.perfedrec_local_share
        if options.perfedrec_cluster_share == 0:
            return given
        share = np.float32(options.perfedrec_cluster_share / rest)
        table = share * self._apart(personal, self.table, users)
        table += given.frozen[GLOBAL]
        frozen = {name: values for name, values in given.frozen.items() if name != GLOBAL}
        return replace(given, frozen=frozen, anchors={**given.anchors, GLOBAL: table})

    def _apart(self, personal: OwnArrays, name: str, users: int) -> Array:
        return checked_personal(personal, name, self.backbone.shared[name], users)
