"""PFedRec (Zhang et al., IJCAI 2023): item embeddings travel, score functions do not.

The server takes the plain mean of the fine-tuned item tables (Algorithm 1); what a device does with it stands in
`client_app.personalization.pfedrec`.
"""

from __future__ import annotations

from bouquet.arrays import Specs
from strategies.averaging import FCF


class PFedRec(FCF):
    """The mean change of the item tables; the network of 'ncf' is part of the score function and stays."""

    def traveling(self, specs: Specs) -> Specs:
        return {name: spec for name, spec in specs.items() if spec.by_item or name.startswith("transfer_")}
