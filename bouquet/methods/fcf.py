"""FCF (Ammad-ud-din et al., 2019): one shared model, the plain mean of all changes; FedMF and FedNCF by backbone."""

from __future__ import annotations

from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions

FCF = Method(
    name="fcf",
    title="FCF, FedMF, FedNCF (Ammad-ud-din et al., 2019)",
    options=ServerOptimizerOptions,
    strategy="strategies.averaging:FCF",
    sums_only=True,
    compared_by=("FedCA", "Fed3CR", "PLGC"),
)
