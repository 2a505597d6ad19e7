"""FedAtt (Ji et al., IJCNN 2019): attentive aggregation."""

from __future__ import annotations

from pydantic import Field

from bouquet.methods.manifest import Method
from bouquet.methods.parts import ServerOptimizerOptions


class FedAttOptions(ServerOptimizerOptions):
    """What the server's attention to a user's array is measured by, and noise on what it hears."""

    fedatt_norm: float = Field(
        2.0,
        ge=1,
        le=10,
        description="p of the norm ‖w - w_k‖_p that attention is paid to; over all values of an array.",
    )
    fedatt_noise: float = Field(
        0.0, ge=0, description="Standard deviation of normal noise on the attentive mean, β in the paper; 0: none."
    )


FEDATT = Method(
    name="fedatt",
    title="FedAtt (Ji et al., 2019)",
    options=FedAttOptions,
    strategy="strategies.fedatt:FedAtt",
    sends="changes of all shared arrays, each user's on its own",
    plug_ins=False,
    no_plug_in="{name} hears users by how far training took them from what the server sent, and with personalization "
    "'{plug_in}' a device may start elsewhere. Choose one of them.",
    compared_by=("FedCA",),
)
